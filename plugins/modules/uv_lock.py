#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: uv_lock
short_description: Solve the plan's packages into a lock with hashes, once a platform group
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Looks on the controller for the lock of the plan, C(<lock_dir>/<python>-<machine>-<key>.txt). One whose key and digest are right is used as it is,
    and nothing is solved.
  - Otherwise one host of those that share the key solves it with uv for its own Python and platform, and the lock is stored on the controller in one step.
    Hosts of the same run wait for that host. When it fails for a reason of its own, the next one that is alive solves;
    when the request itself cannot be solved, all of them fail with that reason.
  - The torch family comes from the plan's torch index and everything else from the other indexes,
    unless a find-links directory of the host holds exactly the wanted torch wheel.
  - C(UV_*) and C(PIP_FIND_LINKS) of the host are honoured; options of the plan win.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
    details: Solves where uv is on the host already, and stores nothing.
  diff_mode:
    support: full
options:
  plan:
    description: The plan of the host, C(preflight_plan).
    type: dict
    required: true
  machine:
    description: Machine of the host, such as V(x86_64).
    type: str
    required: true
  lock_dir:
    description: Directory of the locks on the controller; a relative one is below the directory in which Ansible was started.
    type: str
    default: locks
  prefix:
    description: The prefix; empty for C(/opt/ironwheel) as root and C(~/.local/share/ironwheel) otherwise.
    type: str
    default: ""
  cache_dir:
    description: uv's cache on the host; empty for C(UV_CACHE_DIR), or else C(<prefix>/cache/uv).
    type: str
    default: ""
  uv:
    description: Path of uv on the host, as M(ironwheel.gpu.uv_install) returns it.
    type: str
    required: true
  build_packages:
    description: Packages that may be built from source. All others come as wheels.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Lock the plan's packages
  ironwheel.gpu.uv_lock:
    plan: "{{ preflight_plan }}"
    machine: "{{ preflight_host.os.arch }}"
    uv: "{{ _uv.path }}"
  register: _lock
"""

RETURN = r"""
path:
  description: Path of the lock on the controller; in check mode a copy that lasts as long as the run, or empty when it could not be solved yet.
  type: str
  returned: success
source:
  description: V(stored) when the lock was there, V(solved) when this host solved it, V(would_solve) in check mode on a host without uv.
  type: str
  returned: success
key:
  description: Key of the plan's lock.
  type: str
  returned: success
digest:
  description: sha256 of the lock's body.
  type: str
  returned: when there is a lock
packages:
  description: Version of each package.
  type: dict
  returned: when there is a lock
seconds:
  description: Time that uv took, in seconds.
  type: float
  returned: when source is V(solved)
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: success
"""

import os
import sys
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import live_prefix
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Indexes, Request, Uv, cache_directory, solve


def solve_here(params: dict, check_mode: bool) -> dict:
    """Solve the request on this host: ``{solved, body, torch_index, seconds}``."""
    if not os.access(params["uv"], os.X_OK):
        if check_mode:
            return {"changed": True, "solved": False}
        raise IronwheelError(f"uv is not at {params['uv']}.", "UvNotAvailable", "run the role uv_venv as a whole: it installs uv first.")
    indexes = Indexes.on_host(params["plan"].get("indexes") or {}, os.environ)
    cache = cache_directory(params["cache_dir"], live_prefix(params["prefix"]), os.environ)
    # Check mode leaves no cache behind on a host that has none.
    uv = Uv(params["uv"], indexes.environment(os.environ), cache if not check_mode or os.path.isdir(cache) else "")
    request = Request.from_plan(params["plan"], params["machine"], params["build_packages"])
    python = (params["plan"].get("python") or {}).get("path")
    started = time.monotonic()
    body, torch_index = solve(uv, request, indexes, python if python and os.access(python, os.X_OK) else sys.executable)
    return {"changed": True, "solved": True, "body": body, "torch_index": list(torch_index), "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "machine": {"type": "str", "required": True},
            "lock_dir": {"type": "str", "default": "locks"},
            "prefix": {"type": "str", "default": ""},
            "cache_dir": {"type": "str", "default": ""},
            "uv": {"type": "str", "required": True},
            "build_packages": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    os.umask(0o022)
    try:
        result = solve_here(module.params, module.check_mode)
    except IronwheelError as fault:
        module.fail_json(**fault.as_result())
    except OSError as fault:
        module.fail_json(msg=f"The lock could not be solved: {fault}.", error="LockFailed", remedy="")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
