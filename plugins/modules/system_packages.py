#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: system_packages
short_description: Install packages of the distribution on a bare host
version_added: 0.1.0
description:
  - Installs what is missing of O(packages) with apt or dnf, without recommended packages. A lock that another process holds is
    waited for, and package lists that were never read, or are too old, are read.
  - Unlike M(ansible.builtin.package), it needs no Python binding of the package manager, so that check mode works on a bare
    host too.
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
  packages:
    description: Package names.
    type: list
    elements: str
    required: true
  lock_timeout:
    description: Seconds to wait for the package manager's lock.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: The library that vLLM's CPU build loads
  ironwheel.gpu.system_packages:
    packages: [libnuma1]
"""

RETURN = r"""
installed:
  description: Packages that were installed, or would be in check mode.
  returned: success
  type: list
  elements: str
"""

import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.package_managers import Apt, Dnf, Manager, last_lines


def choose_manager(module: AnsibleModule) -> Manager:
    """The package manager of the host.

    Raises:
        IronwheelError: it has neither apt nor dnf.
    """
    for kind, program in ((Apt, "apt-get"), (Dnf, "dnf")):
        if shutil.which(program):
            return kind(module.run_command, module.params["lock_timeout"])
    raise IronwheelError("This host has neither apt-get nor dnf.", "UnsupportedDistribution", f"Install {', '.join(module.params['packages'])} by hand.")


def converge(manager: Manager, packages: list[str], check_mode: bool) -> list[str]:
    """Install what is missing; returns its names.

    Raises:
        IronwheelError: the package manager's reason.
    """
    installed, broken = manager.installed()
    missing = sorted({name for name in packages if name not in installed})
    if not missing or check_mode:
        return missing
    if broken:
        # A run that was killed leaves packages unpacked; every later transaction would fail.
        manager.repair()
    answer = manager.transaction(dict.fromkeys(missing), [])
    if answer[0] != 0:
        # The lists were never read, or name files that are gone.
        manager.update()
        answer = manager.transaction(dict.fromkeys(missing), [])
    if answer[0] != 0:
        raise IronwheelError(
            f"The package manager could not install {', '.join(missing)} (exit status {answer[0]}): {last_lines(answer[2] or answer[1])}",
            "PackageManagerFailed",
            "Mend what it names, or install the packages by hand, and run again.",
        )
    return missing


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    try:
        installed = converge(choose_manager(module), module.params["packages"], module.check_mode)
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    module.exit_json(changed=bool(installed), installed=installed, diff={"before": "", "after": "".join(f"{name}\n" for name in installed)})


if __name__ == "__main__":
    main()
