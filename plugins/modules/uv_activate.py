#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: uv_activate
short_description: Switch to an environment, or back to the one before it
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Verifies a complete environment and points C(<prefix>/env) at it in one step. What was in use before stays reachable as C(<prefix>/env.previous).
  - Afterwards removes environments that are neither in use nor the one before, down to O(keep).
  - With O(rollback) the two links are exchanged.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  path:
    description: Path of the environment, as M(ironwheel.gpu.uv_sync) returns it. Empty in check mode when it is not known yet.
    type: str
    default: ""
  rollback:
    description: Switch to the environment that was in use before, instead of to O(path).
    type: bool
    default: false
  prefix:
    description: The prefix; empty for C(/opt/ironwheel) as root and C(~/.local/share/ironwheel) otherwise.
    type: str
    default: ""
  uv:
    description: Path of uv on the host. With it, requirements that are not met within the environment are reported.
    type: str
    default: ""
  keep:
    description: How many environments stay, the one in use and the one before it included.
    type: int
    default: 2
"""

EXAMPLES = r"""
- name: Switch to the new environment
  ironwheel.gpu.uv_activate:
    path: "{{ uv_venv_environment.path }}"

- name: Switch back
  ironwheel.gpu.uv_activate:
    rollback: true
"""

RETURN = r"""
path:
  description: Path of the environment in use.
  type: str
  returned: success
link:
  description: Path of the link that was switched.
  type: str
  returned: success
previous:
  description: Path of the environment before it, or empty.
  type: str
  returned: success
python:
  description: C({version, path}) of the environment's interpreter.
  type: dict
  returned: success
inconsistent:
  description: Requirements of installed packages that the environment does not meet, in uv's words. Packages that were excluded on purpose are among them.
  type: list
  elements: str
  returned: success
removed:
  description: Environments that were removed, or would be in check mode.
  type: list
  elements: str
  returned: success
packages:
  description: Difference between the environment before and the one in use, as in M(ironwheel.gpu.uv_sync).
  type: dict
  returned: success
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: success
"""

import contextlib
import os
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import environments
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

_LINK = "env"
_PREVIOUS = "env.previous"


def interpreter(path: str) -> dict:
    """``{version, path}`` of an environment's Python, by running it."""
    python = os.path.join(path, "bin", "python")
    try:
        done = subprocess.run(
            [python, "-I", "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True, errors="replace", check=False
        )
        status, said = done.returncode, done.stderr
    except OSError as fault:
        status, said = 1, str(fault)
    if status != 0:
        raise IronwheelError(
            f"The environment {path} cannot be used: its interpreter {python} does not run ({said.strip()[-300:]}).",
            "InterpreterBroken",
            "run the role uv_venv: it makes the environment anew.",
        )
    return {"version": done.stdout.strip(), "path": python}


def inconsistencies(uv: str, path: str) -> list:
    """What ``uv pip check`` finds wrong."""
    if not uv:
        return []
    environ = {**os.environ, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    command = [uv, "--no-cache", "pip", "check", "--python", os.path.join(path, "bin", "python")]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, cwd="/", check=False)
    return [line for line in done.stderr.splitlines() if line.startswith("The package ")]


def activate(params: dict, check_mode: bool) -> dict:
    """Converge the links and return the module's result."""
    prefix = environments.live_prefix(params["prefix"])
    used, previous = environments.linked(prefix, _LINK), environments.linked(prefix, _PREVIOUS)
    path = params["path"]
    if params["rollback"]:
        if previous is None or previous == used:
            raise IronwheelError(
                f"There is no environment to switch back to: {os.path.join(prefix, _PREVIOUS)} names none besides {used or 'none'}.",
                "NoPreviousEnvironment",
                "set the versions that you want and run the site playbook.",
            )
        path = previous
    result = {
        "path": path,
        "link": os.path.join(prefix, _LINK),
        "previous": previous or "",
        "python": {},
        "inconsistent": [],
        "removed": [],
        "changed": False,
        "actions": [],
    }
    result["packages"] = {"added": {}, "removed": {}, "changed": {}}
    if check_mode and (not path or environments.read_record(path) is None):
        result.update(changed=True, actions=[f"switch {result['link']} to {path or 'the new environment'}"])
        return result
    path = os.path.normpath(path)
    if not path.startswith(os.path.join(prefix, "envs") + os.sep) or environments.read_record(path) is None:
        raise IronwheelError(
            f"'{path}' is no complete environment below {os.path.join(prefix, 'envs')}.", "EnvironmentMissing", "run the role uv_venv as a whole."
        )
    result.update(path=path, python=interpreter(path), inconsistent=inconsistencies(params["uv"], path))
    if path != used:
        before = environments.versions(environments.scan(used)) if used else {}
        after = environments.versions(environments.scan(path))
        result.update(changed=True, previous=used or "", packages=environments.package_changes(before, after))
        result["diff"] = {
            "before": environments.pin_lines(before),
            "after": environments.pin_lines(after),
            "before_header": used or "no environment",
            "after_header": path,
        }
        result["actions"].append(f"switch {result['link']} from {used or 'no environment'} to {path}")
        previous = used
    found = environments.find_environments(prefix)
    result["removed"] = environments.prunable(found, params["keep"], [item for item in (path, previous) if item])
    if result["removed"]:
        result["changed"] = True
        result["actions"] += [f"remove {old}" for old in result["removed"]]
    if not check_mode and result["changed"]:
        _apply(prefix, used, path, result["removed"])
    return result


def _apply(prefix: str, used: str | None, path: str, removed: list) -> None:
    with environments.exclusive(prefix):
        if path != used:
            # First the way back, then the switch: a run that is killed between them can still be rolled back.
            if used is not None:
                environments.switch_link(prefix, _PREVIOUS, used)
            else:
                # Nothing was in use, so nothing may be offered as a way back.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(prefix, _PREVIOUS))
            environments.switch_link(prefix, _LINK, path)
        for old in removed:
            environments.remove_environment(old)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "default": ""},
            "rollback": {"type": "bool", "default": False},
            "prefix": {"type": "str", "default": ""},
            "uv": {"type": "str", "default": ""},
            "keep": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    os.umask(0o022)
    try:
        if module.params["keep"] < 1:
            raise IronwheelError(
                f"uv_venv_keep is {module.params['keep']}: at least the environment in use stays.", "InvalidInput", "set uv_venv_keep to 1 or more."
            )
        result = activate(module.params, module.check_mode)
    except IronwheelError as fault:
        module.fail_json(**fault.as_result())
    except OSError as fault:
        module.fail_json(msg=f"The environment could not be switched: {fault}.", error="ActivationFailed", remedy="")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
