#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_info
short_description: Which CUDA toolkits a host has, whether they are whole, and what it lacks
version_added: 0.1.0
description:
  - Looks at every toolkit below C(/usr/local), C(/opt) and the prefix. A toolkit counts when it has the compiler, the headers and
    libraries that extensions of torch are built with, and its C(nvcc) answers with the right version.
  - Says for each wanted version that is missing where it would come from, by which package names or file, after holding its limits
    (glibc, gcc, GPU architectures, driver) against the host.
  - With O(compile), builds a small program with each named version and links it against its runtime library.
  - Changes nothing.
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
  versions:
    description: Wanted versions as major.minor.
    type: list
    elements: str
    default: []
  host:
    description: Host facts, of which C(os), C(user), C(compilers), C(gpus) and C(driver) are read.
    type: dict
    required: true
  prefix:
    description:
      - Folder of this collection on the host; toolkits that do not come as packages are in C(toolkits) below it.
      - Empty is C(/opt/ironwheel) as root and C(~/.local/share/ironwheel) otherwise.
    type: path
    default: ""
  source:
    description: Where missing toolkits come from. V(auto) is NVIDIA's repository where there are root and a repository, otherwise wheels for CUDA 13.
    type: str
    choices: [auto, repository, runfile, wheels]
    default: auto
  packages:
    description: V(minimal) is what extensions of torch need, V(full) everything.
    type: str
    choices: [minimal, full]
    default: minimal
  default:
    description: Version that C(/usr/local/cuda) shall name. Empty leaves the link as it is.
    type: str
    default: ""
  remove_unlisted:
    description: Whether toolkits that O(versions) does not name are to be removed, if this collection or the package manager installed them.
    type: bool
    default: false
  repository_url:
    description: A repository of one's own, which makes hosts serve that NVIDIA has no repository for.
    type: str
    default: ""
  runfile_url:
    description: Address that C(<release>/local_installers/<file>) is appended to.
    type: str
    default: https://developer.download.nvidia.com/compute/cuda
  runfiles:
    description: C(sha256), and C(url) if wanted, of the runfile by version.
    type: dict
    default: {}
  enforce_limits:
    description: Whether a toolkit that would not serve on this host is an error or a warning.
    type: bool
    default: true
  compile:
    description: Versions to build a small program with. Left out when the host has no C++ compiler that the toolkit accepts.
    type: list
    elements: str
    default: []
  require:
    description: Fail when a wanted version is not there.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: See what is missing
  ironwheel.gpu.cuda_toolkit_info:
    versions: ["12.8", "13.0"]
    host: "{{ preflight_host }}"
  register: toolkits
"""

RETURN = r"""
toolkits:
  description: One entry a wanted version.
  returned: success
  type: list
  elements: dict
  contains:
    version:
      description: As wanted.
      type: str
    path:
      description: Where it is or would be.
      type: str
    source:
      description: C(repository), C(runfile), C(wheels), or C(unknown) for one that somebody else installed.
      type: str
    present:
      description: Whether it is there and whole.
      type: bool
    reason:
      description: Why it does not count, empty when it does.
      type: str
    nvcc_version:
      description: What its nvcc says; V(null) when it is not there.
      type: str
    compiled:
      description: C(ok), or why it was not tried (C(not_run) with a reason). Only for versions in O(compile).
      type: str
found:
  description: Every toolkit on the host with its path, version, source and, if it is not whole, its fault.
  returned: success
  type: list
  elements: dict
steps:
  description: What is to be done, in order, of C(repository), C(wheels), C(runfile), C(remove), C(link), C(verify). Empty on a converged host.
  returned: success
  type: list
  elements: str
packages:
  description: Packages to install from NVIDIA's repository.
  returned: success
  type: list
  elements: str
manager:
  description: C(apt) or C(dnf).
  returned: success
  type: str
wheels:
  description: Versions to make from wheels.
  returned: success
  type: list
  elements: str
runfiles:
  description: Runfiles to run, each with C(version), C(url), C(sha256), C(name) and C(path).
  returned: success
  type: list
  elements: dict
remove_packages:
  description: Packages to remove.
  returned: success
  type: list
  elements: str
remove_folders:
  description: Folders to remove.
  returned: success
  type: list
  elements: str
removed:
  description: Versions to remove.
  returned: success
  type: list
  elements: str
link:
  description: Where C(/usr/local/cuda) shall point, V(null) when it shall stay as it is.
  returned: success
  type: str
prefix:
  description: The folder of this collection on the host.
  returned: success
  type: str
folder:
  description: The folder of toolkits below it.
  returned: success
  type: str
default_link:
  description: Where C(/usr/local/cuda) leads now, V(null) without one.
  returned: success
  type: str
error:
  description: Name of the fault.
  returned: failure
  type: str
remedy:
  description: What to do about it.
  returned: failure
  type: str
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda, toolkit_install
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import default_paths
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import Host, run_command
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_software import read_toolkits

PROGRAM = """\
#include <cstdio>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
__global__ void scale(float factor, const __half* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * __half2float(in[i]) + expf(out[i]);
}
int main() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) return 1;
  scale<<<1, 1>>>(1.0f, nullptr, nullptr, 0);
  std::printf("%d", version);
  return 0;
}
"""


def installed_packages(module: AnsibleModule, manager: str) -> list[str]:
    """Names of the installed packages; empty where there is no such package manager."""
    command = {"apt": ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\\n"], "dnf": ["rpm", "-qa", "--qf", "ii %{NAME}\\n"]}[manager]
    program = module.get_bin_path(command[0])
    if program is None:
        return []
    _rc, out, _err = module.run_command([program, *command[1:]], environ_update={"LC_ALL": "C"})
    lines = (line.split() for line in out.splitlines())
    return [words[1] for words in lines if len(words) == 2 and words[0].startswith("ii")]


def compile_program(module: AnsibleModule, path: str, version: str, compilers: dict) -> str:
    """``ok``, or ``not_run: reason`` when there is no host compiler for it.

    Raises:
        IronwheelError: the toolkit cannot build the program, with what it said.
    """
    chosen, tried = cuda.choose_gcc(compilers or {}, cuda.gcc_limits(version, None))
    if chosen is None:
        return "not_run: " + ("; ".join(reason for _name, _verdict, reason in tried) or "the host has no C++ compiler")
    with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
        source, binary = os.path.join(folder, "program.cu"), os.path.join(folder, "program")
        with open(source, "w", encoding="utf-8") as handle:
            handle.write(PROGRAM)
        # Every toolkit from 12.0 to 13.5 has machine code for 8.0.
        command = [os.path.join(path, "bin", "nvcc"), "-ccbin", chosen["path"], "-arch=sm_80", "--cudart=shared", "-o", binary, source]
        rc, out, err = module.run_command(command, cwd=folder, environ_update={"LC_ALL": "C", "CUDA_HOME": path, "TMPDIR": folder})
        if rc != 0 or not os.path.exists(binary):
            said = " ".join((err or out).split())[-600:]
            raise IronwheelError(
                f"The CUDA {version} toolkit at {path} cannot build a small program with {chosen['path']} {chosen['version']} (exit status {rc}): {said}",
                "ToolkitDoesNotCompile",
                "see that the C++ development files (build-essential or gcc-c++) are there; otherwise remove the toolkit and run again.",
            )
    return "ok"


def look(module: AnsibleModule) -> dict:
    """The module's result."""
    params = module.params
    user = params["host"].get("user") or {}
    prefix = os.path.realpath(params["prefix"] or default_paths(bool(user.get("root")), user.get("home"))["prefix"])
    reader = Host(root="/", run=run_command, environ=dict(os.environ))
    facts = read_toolkits(reader, prefix)
    manager = toolkit_install.package_manager(params["host"].get("os") or {})
    packaged = toolkit_install.packaged_versions(installed_packages(module, manager))
    found = [toolkit_install.examine(fact, packaged) for fact in facts]
    link = os.path.realpath(toolkit_install.DEFAULT_LINK) if os.path.lexists(toolkit_install.DEFAULT_LINK) else None
    request = toolkit_install.Request(
        versions=tuple(dict.fromkeys(params["versions"])),
        source=params["source"],
        packages=params["packages"],
        folder=os.path.join(prefix, "toolkits"),
        default=params["default"],
        remove_unlisted=params["remove_unlisted"],
        repository_url=params["repository_url"],
        runfile_url=params["runfile_url"],
        runfiles=params["runfiles"],
        enforce_limits=params["enforce_limits"],
    )
    result = toolkit_install.decide(request, found, params["host"], link, packaged)
    absent = [f"CUDA {entry['version']}: {entry['reason']}" for entry in result["toolkits"] if not entry["present"]]
    if params["require"] and absent:
        raise IronwheelError(
            f"A toolkit that was installed is not whole. {'. '.join(absent)}.",
            "IncompleteToolkit",
            "see what the package manager says about its packages, and run again.",
        )
    for entry in result["toolkits"]:
        if entry["version"] in params["compile"] and entry["present"]:
            entry["compiled"] = compile_program(module, entry["path"], entry["version"], params["host"].get("compilers") or {})
    for warning in result.pop("warnings"):
        module.warn(warning)
    return {
        "changed": False,
        "found": [{"path": one.path, "version": one.version, "source": one.source, "fault": one.fault} for one in found],
        "default_link": link,
        "prefix": prefix,
        "folder": request.folder,
        **result,
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "versions": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "dict", "required": True},
            "prefix": {"type": "path", "default": ""},
            "source": {"type": "str", "choices": ["auto", "repository", "runfile", "wheels"], "default": "auto"},
            "packages": {"type": "str", "choices": ["minimal", "full"], "default": "minimal"},
            "default": {"type": "str", "default": ""},
            "remove_unlisted": {"type": "bool", "default": False},
            "repository_url": {"type": "str", "default": ""},
            "runfile_url": {"type": "str", "default": "https://developer.download.nvidia.com/compute/cuda"},
            "runfiles": {"type": "dict", "default": {}},
            "enforce_limits": {"type": "bool", "default": True},
            "compile": {"type": "list", "elements": "str", "default": []},
            "require": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = look(module)
    except IronwheelError as error:
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
