#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: torch_verify
short_description: Read the identity of an environment's torch and hold it against the plan
version_added: 0.1.0
description:
  - Asks the environment's own Python what its torch is, and whether the packages that belong to torch (torchvision, torchaudio,
    torchcodec, triton, the nvidia wheels) are of the same build and import beside it.
  - Fails with one message that names everything that differs. Changes nothing.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
    details: In check mode an environment that does not exist yet is not an error, its checks are V(not_run).
  diff_mode:
    support: none
options:
  environment:
    description: Path of the environment.
    type: path
    required: true
  plan:
    description: The plan; its keys C(torch) and C(architectures) are used.
    type: dict
    default: {}
  host:
    description: The host facts; the compute capabilities of its key C(gpus) are used.
    type: dict
    default: {}
  timeout:
    description: Seconds that importing torch and its family may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Read torch's identity and hold it against the plan
  ironwheel.gpu.torch_verify:
    environment: "{{ uv_venv_environment.path }}"
    plan: "{{ preflight_plan }}"
    host: "{{ preflight_host }}"
  register: torch_state
"""

RETURN = r"""
identity:
  description: What torch says of itself, or V(null) for an environment that does not exist yet.
  returned: success
  type: dict
  contains:
    version:
      description: Release without the local part.
      type: str
    local:
      description: Local part of the version such as V(cu130) or V(cpu).
      type: str
    full_version:
      description: Version with its local part.
      type: str
    cuda:
      description: CUDA release that torch was built with, V(null) for a CPU build.
      type: str
    cxx11_abi:
      description: Whether torch uses the C++11 ABI.
      type: bool
    git_version:
      description: Commit that torch was built from.
      type: str
    python_tag:
      description: The interpreter's tag, such as V(cp312).
      type: str
    arch_list:
      description: GPU architectures that torch has code for.
      type: list
      elements: str
    debug:
      description: Whether this is a debug build.
      type: bool
    family:
      description: Installed packages of torch's family with version and import error.
      type: dict
checks:
  description: One entry a check with C(name), C(subject), C(verdict), C(reason) and C(value).
  returned: success
  type: list
  elements: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import environment_python, verification
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


def read(params: dict, check_mode: bool) -> dict:
    """Identity and checks; raises the one error that names all that is wrong."""
    path = params["environment"]
    if not os.path.exists(os.path.join(path, environment_python.PYTHON)):
        if check_mode:
            reason = f"{path} does not exist yet"
            return {"changed": False, "identity": None, "checks": [verification.check("torch", "torch", verification.NOT_RUN, reason)]}
        raise IronwheelError(
            f"environment is '{path}', which holds no bin/python: there is no environment to read torch from.",
            "EnvironmentMissing",
            "Run the role uv_venv first.",
        )
    identity = environment_python.probe(path, {"task": "torch"}, params["timeout"])
    checks = [
        verification.torch_identity(params["plan"], identity),
        *verification.torch_family(identity),
        *verification.torch_architectures(params["plan"], params["host"], identity),
    ]
    error = verification.torch_error(checks)
    if error is not None:
        raise error
    return {"changed": False, "identity": identity, "checks": checks}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "environment": {"type": "path", "required": True},
            "plan": {"type": "dict", "default": {}},
            "host": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**read(module.params, module.check_mode))
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())


if __name__ == "__main__":
    main()
