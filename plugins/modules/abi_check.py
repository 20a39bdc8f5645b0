#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: abi_check
short_description: Judge compiled extensions against the torch that they shall work with, without a GPU
version_added: 0.1.0
description:
  - Reads the needed libraries, undefined symbols, symbol versions and embedded GPU code of extension modules and compares
    them with what torch, its CUDA libraries and the host define.
  - A fault found is certain; the absence of one proves nothing, which is why an environment also records where each
    extension came from.
  - Needs C(pyelftools), which the tools environment below O(prefix) has.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  site_packages:
    description: The directories that the environment imports from, C(site-packages) first. The libraries of torch are looked for there.
    type: list
    elements: path
    required: true
  files:
    description:
      - The extension modules to judge. Left out, every compiled module in O(site_packages) that loads torch's libraries,
        or those of O(modules).
    type: list
    elements: path
    default: []
  modules:
    description: Top-level names that compiled modules are looked for under, such as V(flash_attn_2_cuda).
    type: list
    elements: str
    default: []
  torch:
    description:
      - Identity of torch as read from the environment, with C(version) including its local part, C(cuda) (V(null) for a build
        without CUDA) and C(cxx11_abi).
    type: dict
    required: true
  host:
    description: What the host offers, with the keys C(glibc) (version), C(capabilities) (list such as V(["12.0"])) and C(has_driver).
    type: dict
    default: {}
  prefix:
    description: The prefix whose tools environment has C(pyelftools), where the Python that runs the module does not.
    type: path
  wheel_name:
    description: Name of the wheel that the extension came in. What it says of the C++ ABI is reported when the symbols say otherwise.
    type: str
"""

EXAMPLES = r"""
- name: Judge flash-attn against the torch beside it
  ironwheel.gpu.abi_check:
    site_packages: [/opt/ironwheel/env/lib/python3.12/site-packages]
    modules: [flash_attn_2_cuda]
    torch: "{{ torch_identity }}"
    host:
      glibc: "{{ preflight_host.os.glibc }}"
      capabilities: ["9.0"]
      has_driver: true
  register: abi
"""

RETURN = r"""
verdict:
  description: V(failed) if any finding failed, V(not_run) if there was no module to judge, otherwise V(ok).
  returned: success
  type: str
modules:
  description: One entry a module.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    verdict:
      description: V(ok) or V(failed).
      type: str
    architectures:
      description: Compute capabilities of its machine code.
      type: list
      elements: str
    findings:
      description: One verdict a check (cuda_major, cxx11_abi, libraries, symbols, glibc, libstdcxx, architectures) with its reason.
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import abi, elf_modules, wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


def torch_side(identity: dict) -> abi.TorchSide:
    """Check and convert the ``torch`` option."""
    version = identity.get("version")
    if not version:
        raise IronwheelError("torch.version is empty: the identity of torch must be read from the environment.", "InvalidInput", "Use the role torch.")
    cuda = identity.get("cuda")
    return abi.TorchSide(str(version), None if cuda is None else str(cuda), "cuda" in identity and cuda is None, identity.get("cxx11_abi"))


def check(params: dict) -> dict:
    """All modules that the parameters name, judged."""
    libraries = elf_modules.LibrarySet(elf_modules.library_directories(params["site_packages"]))
    torch = torch_side(params["torch"])
    given = params["host"]
    host = elf_modules.host_side(libraries, given.get("glibc"), given.get("capabilities") or [], bool(given.get("has_driver")))
    abi_in_name = wheels.parse(params["wheel_name"]).cxx11_abi if params["wheel_name"] else None
    paths = params["files"] or [
        path for site in params["site_packages"] for path in elf_modules.extension_modules(site, params["modules"] or None)
    ]
    results = []
    for path in paths:
        if not params["files"] and not params["modules"] and not elf_modules.needs_torch(elf_modules.Library(path)):
            continue
        module, findings = elf_modules.judge_file(path, torch, host, libraries, abi_in_name)
        results.append(
            {
                "path": path,
                "verdict": "failed" if any(finding.verdict == "failed" for finding in findings) else "ok",
                "architectures": list(module.architectures),
                "findings": [finding.as_dict() for finding in findings],
            }
        )
    verdict = "not_run" if not results else "failed" if any(result["verdict"] == "failed" for result in results) else "ok"
    return {"changed": False, "verdict": verdict, "modules": results}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "site_packages": {"type": "list", "elements": "path", "required": True},
            "files": {"type": "list", "elements": "path", "default": []},
            "modules": {"type": "list", "elements": "str", "default": []},
            "torch": {"type": "dict", "required": True},
            "host": {"type": "dict", "default": {}},
            "prefix": {"type": "path"},
            "wheel_name": {"type": "str"},
        },
        supports_check_mode=True,
    )
    elf_modules.use_tools(module.params["prefix"] or "")
    try:
        module.exit_json(**check(module.params))
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())


if __name__ == "__main__":
    main()
