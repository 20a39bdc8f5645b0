#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_link
short_description: Make /usr/local/cuda name one toolkit, or none, and keep it so
version_added: 0.1.0
description:
  - NVIDIA's packages manage C(/usr/local/cuda) as an alternative in automatic mode, so that installing a toolkit moves it to the
    newest version. This module sets the alternative to one toolkit in manual mode, which later packages respect.
  - Where the link is not an alternative, it is replaced in one step.
  - Something that is not a symbolic link is never touched.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  target:
    description: The toolkit's folder. Empty removes the link, and the alternative behind it.
    type: str
    default: ""
  path:
    description: The link.
    type: path
    default: /usr/local/cuda
  alternative:
    description: Name of the alternative that NVIDIA's packages manage it by.
    type: str
    default: cuda
"""

EXAMPLES = r"""
- name: /usr/local/cuda is CUDA 12.8 and stays so
  ironwheel.gpu.cuda_toolkit_link:
    target: /usr/local/cuda-12.8
"""

RETURN = r"""
path:
  description: The link.
  returned: success
  type: str
target:
  description: Where it leads, V(null) when there is none.
  returned: success
  type: str
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


def alternative_mode(text: str) -> str:
    """``auto`` or ``manual`` from the output of ``update-alternatives --query`` or ``alternatives --display``, empty when it is neither."""
    match = re.search(r"^Status: (auto|manual)$|status is (auto|manual)", text, re.MULTILINE)
    return (match.group(1) or match.group(2)) if match else ""


class Link:
    """The link and the alternative behind it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.path = module.params["path"]
        self.name = module.params["alternative"]
        self.program = module.get_bin_path("update-alternatives", opt_dirs=["/usr/sbin"]) or module.get_bin_path("alternatives", opt_dirs=["/usr/sbin"])
        self.actions: list[str] = []
        if os.path.lexists(self.path) and not os.path.islink(self.path):
            raise IronwheelError(
                f"{self.path} is not a symbolic link, so it is left as it is.", "PathInUse", "move it away, or set cuda_toolkit_default_link to false."
            )

    def leads_to(self) -> str | None:
        """Where the link leads in the end, None without one."""
        return os.path.realpath(self.path) if os.path.lexists(self.path) else None

    def is_alternative(self) -> bool:
        """Whether the alternatives manage the link now."""
        return self.program is not None and os.path.islink(self.path) and os.readlink(self.path) == f"/etc/alternatives/{self.name}"

    def told(self) -> str:
        """What the alternatives say of it; empty where there is no such alternative."""
        if self.program is None:
            return ""
        # Debian's program knows both, the one of RHEL only the second.
        for option in ("--query", "--display"):
            rc, out, _err = self.module.run_command([self.program, option, self.name], environ_update={"LC_ALL": "C"})
            if rc == 0:
                return out
        return ""

    def call(self, *arguments: str) -> None:
        """Run the alternatives program."""
        rc, out, err = self.module.run_command([self.program, *arguments], environ_update={"LC_ALL": "C"})
        if rc != 0:
            raise IronwheelError(
                f"{os.path.basename(self.program)} {' '.join(arguments)} failed (exit status {rc}): {(err or out).strip()}", "AlternativeFailed"
            )

    def name_toolkit(self, target: str) -> None:
        """Make the link lead to ``target`` and stay so."""
        if not os.path.isdir(target):
            # In check mode the toolkit may be one that would be installed by now.
            if self.module.check_mode:
                self.actions.append(f"point {self.path} at {target}")
                return
            raise IronwheelError(f"{target} is not a folder, so {self.path} cannot point there.", "TargetMissing")
        told = self.told()
        leads = self.leads_to() == os.path.realpath(target)
        if leads and (not self.is_alternative() or alternative_mode(told) == "manual"):
            return
        self.actions.append(f"point {self.path} at {target}" if not leads else f"keep {self.path} at {target} (manual alternative)")
        if self.module.check_mode:
            return
        if alternative_mode(told):
            if not re.search(rf"(?<!\S){re.escape(target)}(?!\S)", told):
                # A toolkit that did not come as a package. The priority only counts in automatic mode.
                self.call("--install", self.path, self.name, target, "1")
            self.call("--set", self.name, target)
        if self.leads_to() != os.path.realpath(target):
            self.replace(target)

    def replace(self, target: str) -> None:
        """Swap a plain link in one step."""
        folder = os.path.dirname(self.path)
        temporary = os.path.join(folder, f".{os.path.basename(self.path)}.{os.getpid()}")
        os.symlink(target, temporary)
        os.replace(temporary, self.path)

    def remove(self) -> None:
        """No link and no alternative that would bring it back."""
        if not os.path.lexists(self.path):
            return
        self.actions.append(f"remove {self.path}")
        if self.module.check_mode:
            return
        if self.is_alternative():
            self.call("--remove-all", self.name)
        if os.path.lexists(self.path):
            os.unlink(self.path)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "target": {"type": "str", "default": ""},
            "path": {"type": "path", "default": "/usr/local/cuda"},
            "alternative": {"type": "str", "default": "cuda"},
        },
        supports_check_mode=True,
    )
    try:
        link = Link(module)
        before = link.leads_to()
        target = module.params["target"]
        link.name_toolkit(target) if target else link.remove()
        after = (target or None) if module.check_mode and link.actions else link.leads_to()
    except IronwheelError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}. Remedy: run the role as root (become).", error="NotPermitted", remedy="become")
    module.exit_json(
        changed=bool(link.actions),
        path=link.path,
        target=after,
        actions=link.actions,
        diff={"before": f"{link.path} -> {before}\n", "after": f"{link.path} -> {after}\n"},
    )


if __name__ == "__main__":
    main()
