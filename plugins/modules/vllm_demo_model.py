#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_demo_model
short_description: Make the demo model, offline
version_added: 0.1.0
description:
  - Writes a two-layer Llama with random weights and a byte-level tokenizer of its own. It speaks nonsense, and proves that a
    server loads a model, tokenizes, computes and answers, without a model hub.
  - The same bytes come out on every host. A folder that holds them is left alone; one that differs is made again.
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
  path:
    description: Folder of the model. It is readable for everybody.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Make the demo model
  ironwheel.gpu.vllm_demo_model:
    path: /opt/ironwheel/models/demo
"""

RETURN = r"""
path:
  description: Folder of the model.
  returned: success
  type: str
version:
  description: Version of the demo model.
  returned: success
  type: int
"""

import hashlib
import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import demo_model
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


def differing(path: str, wanted: dict[str, bytes]) -> list[str]:
    """Names of the files that are missing, differ or are not readable for everybody."""
    found = []
    for name, content in wanted.items():
        file = os.path.join(path, name)
        try:
            with open(file, "rb") as handle:
                same = hashlib.sha256(handle.read()).digest() == hashlib.sha256(content).digest()
            same = same and os.stat(file).st_mode & 0o044 == 0o044
        except OSError:
            same = False
        if not same:
            found.append(name)
    return found


def make(path: str, wanted: dict[str, bytes]) -> None:
    """Write the folder beside its place and move it there."""
    parent = os.path.dirname(path)
    try:
        if not os.path.isdir(parent):
            os.makedirs(parent)
            # A strict umask of the installing user must not shut the service user out.
            os.chmod(parent, 0o755)
        work = tempfile.mkdtemp(prefix=".demo-", dir=parent)
    except OSError as exc:
        raise IronwheelError(f"path is '{path}', where no folder can be made: {exc.strerror}.", "NotWritable", "Choose another uv_venv_prefix.") from exc
    try:
        fresh, old = os.path.join(work, "new"), os.path.join(work, "old")
        os.mkdir(fresh)
        for name, content in wanted.items():
            with open(os.path.join(fresh, name), "wb") as handle:
                handle.write(content)
            os.chmod(os.path.join(fresh, name), 0o644)
        os.chmod(fresh, 0o755)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(fresh, path)
    except OSError as exc:
        raise IronwheelError(f"path is '{path}', where the demo model cannot be written: {exc.strerror}.", "NotWritable", "Free some disk space.") from exc
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path = module.params["path"]
    wanted = demo_model.files()
    changed = differing(path, wanted)
    try:
        if changed and not module.check_mode:
            make(path, wanted)
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    result = {"changed": bool(changed), "path": path, "version": demo_model.VERSION}
    if module._diff:
        result["diff"] = {"before": "", "after": "".join(f"{os.path.join(path, name)}\n" for name in changed)}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
