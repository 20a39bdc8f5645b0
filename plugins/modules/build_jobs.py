#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module ``ironwheel.gpu.build_jobs``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: build_jobs
short_description: Chooses MAX_JOBS and NVCC_THREADS for building a CUDA extension
version_added: 0.1.0
description:
  - Chooses how many compiler jobs and nvcc threads a build may use on this host, so that it cannot run out of memory, and explains the choice.
  - Memory of one job is its base plus the peak of one compiler stream for each architecture that is compiled at the same time. More jobs at one thread come
    before more threads; threads rise only when every unit runs at once and memory and cores are left over.
  - Usable memory and cores are those that M(ironwheel.gpu.host_facts) reports (available memory, every cgroup limit, affinity and CPU quota).
    Swap never counts.
  - Not even one unit fitting is an error with the numbers.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
    details: [Changes nothing and returns the same in check mode.]
  diff_mode:
    support: none
    details: [Changes nothing, so there is nothing to compare.]
options:
  package:
    description:
      - Distribution name of the extension, such as V(flash-attn), or the name of a memory class, such as V(torch-source) or V(generic).
    type: str
    required: true
  description:
    description:
      - Description of an extension of your own; its C(name) is taken from O(package).
    type: dict
  version:
    description: Version of the extension. It decides what the extension reads and how many units it has.
    type: str
  architectures:
    description: Compute capabilities to build for, such as V(12.0). For a memory class only their number matters.
    type: list
    elements: str
    required: true
  units:
    description: Number of CUDA units, where it is known better than by the collection.
    type: int
  gated:
    description: Whether the nvcc gate is in front of the compiler. It drops the architectures that nobody asked for, also where a package hard-codes its list.
    type: bool
    default: false
  nvcc_threads:
    description: Number of nvcc threads to keep to. Chosen when left out. Lowered when not even one job fits with it.
    type: int
  max_jobs:
    description: Highest number of jobs.
    type: int
  reserve_mib:
    description: Memory in MiB to keep back for the host. A tenth of what is usable, and at least 256 MiB, when left out.
    type: int
  memory_mib:
    description: Usable memory in MiB, instead of what the host has.
    type: int
  cores:
    description: Usable cores, instead of what the host has.
    type: float
  parallel_extensions:
    description: How many extensions of one source are built at the same time. Jobs are shared among them.
    type: int
    default: 1
  history:
    description:
      - Rows of the cost log of this host's earlier builds of the package.
      - Each row has C(unit), C(wall_s), C(peak_mib), C(archs) and C(threads).
    type: list
    elements: dict
    default: []
  search_path:
    description:
      - Folders in which C(ninja) must be found, such as the C(bin) of the environment that builds. Not checked when empty.
      - Without ninja torch compiles one file at a time, and the number of jobs has no effect.
    type: list
    elements: path
    default: []
author:
  - ironwheel.gpu contributors (@ironwheel)
"""

EXAMPLES = r"""
- name: Choose jobs for flash-attn on this host
  ironwheel.gpu.build_jobs:
    package: flash-attn
    version: 2.8.3.post2
    architectures: ["12.0"]
  register: jobs

- name: What would a 32 GiB runner with 8 cores do?
  ironwheel.gpu.build_jobs:
    package: xformers
    architectures: ["8.0", "9.0"]
    memory_mib: 30000
    cores: 8

- name: An extension of one's own
  ironwheel.gpu.build_jobs:
    package: my-kernels
    description:
      module: my_kernels._C
      memory_class: small
      units: 12
    architectures: ["9.0"]
"""

RETURN = r"""
jobs:
  description: Compiler processes at the same time, for each of RV(parallel_extensions) extensions.
  returned: success
  type: int
  sample: 51
nvcc_threads:
  description: nvcc threads of each job.
  returned: success
  type: int
  sample: 1
predicted_peak_mib:
  description: Memory in MiB that all jobs need at their peaks together. An upper bound; never above usable memory less the reserve.
  returned: success
  type: int
  sample: 355725
predicted_s:
  description: Predicted seconds of compilation and link. V(null) when the number of units is not known.
  returned: success
  type: int
  sample: 478
limited_by:
  description: What bound the number of jobs. One of V(memory), V(cores), V(units), V(max_jobs).
  returned: success
  type: str
  sample: memory
explanation:
  description: The choice in words, with the numbers.
  returned: success
  type: str
job_mib:
  description: Peak memory of one job in MiB.
  returned: success
  type: int
reserve_mib:
  description: Memory in MiB that is kept back for the host.
  returned: success
  type: int
parallel_extensions:
  description: Extensions built at the same time.
  returned: success
  type: int
usable_mib:
  description: Memory in MiB that the choice is made for.
  returned: success
  type: int
usable_cores:
  description: Cores that the choice is made for.
  returned: success
  type: float
units:
  description: Number of CUDA units, V(null) when not known.
  returned: success
  type: int
architectures:
  description: Compute capabilities that are really compiled.
  returned: success
  type: list
  elements: str
env:
  description: Environment for the build, such as C(MAX_JOBS), C(NVCC_THREADS), the architecture variable and the one that forces a build.
  returned: success
  type: dict
  sample: {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "120", "MAX_JOBS": "51", "NVCC_THREADS": "1"}
"""

import platform
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory, packages
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import read_host, run_command
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

try:
    import psutil
except ImportError:
    psutil = None


def measure() -> tuple[int | None, float | None]:
    """Usable memory in MiB and usable cores of this host, None for what cannot be read.

    The readers are those of host_facts, so that plan and build see the same numbers; psutil, where it is there, answers what /proc did not.
    """
    subset = {"memory", "cpu"}
    if platform.machine() == "aarch64":
        # Where CPU and GPU share memory, the GPU's part counts as available: only the GPUs tell.
        subset.add("gpus")
    facts = read_host(run=partial(run_command, timeout_s=20.0), subset=subset)
    usable, cores = (facts.get("memory") or {}).get("usable_mib"), (facts.get("cpu") or {}).get("usable")
    if psutil is not None:
        if usable is None:
            usable = psutil.virtual_memory().available >> 20
        if cores is None:
            cores = len(psutil.Process().cpu_affinity())
    return usable, cores


def find_package(name: str, description: dict | None) -> packages.Package | None:
    """The description of a package, or None when the name is that of a memory class alone."""
    if description is not None:
        if description.get("name", name) != name:
            raise IronwheelError(f"description.name is '{description['name']}', but package is '{name}'.", "InvalidExtension", "Leave description.name out.")
        return packages.from_user({**description, "name": name})
    known = packages.normalize(name) in packages.PACKAGES
    if not known and name in build_costs.CLASSES:
        return None
    return packages.describe(name)


def choose(params: dict) -> dict:
    """The module's result for its parameters.

    Raises:
        IronwheelError: a parameter is wrong, ninja is missing, the GPU is not supported, or not even one unit fits.
    """
    if params["search_path"]:
        build_memory.require_ninja(params["search_path"])
    package = find_package(params["package"], params["description"])
    version, wanted = params["version"], params["architectures"]
    if not wanted:
        raise IronwheelError("architectures is empty: at least one compute capability is needed.", "InvalidArchitecture", 'Give one, such as ["9.0"].')
    usable, cores = params["memory_mib"], params["cores"]
    if usable is None or cores is None:
        found_mib, found_cores = measure()
        usable = found_mib if usable is None else usable
        cores = found_cores if cores is None else cores
    for name, option, value in (("memory", "memory_mib", usable), ("cores", "cores", cores)):
        if value is None:
            raise IronwheelError(f"The host does not tell its usable {name}.", "HostUnreadable", f"Check that /proc is mounted, or set {option}.")
    env: dict[str, str] = {}
    units, hard_coded = params["units"], None
    if package is None:
        for capability in wanted:
            packages.split_capability(capability)
        compiled, memory_class = sorted(set(wanted)), params["package"]
    else:
        compiled, memory_class = package.planned_architectures(wanted, version, gated=params["gated"]), package.memory_class
        units = package.units(version) if units is None else units
        if package.thread_variable is None and not params["gated"]:
            # Nothing can change the number that the package hard-codes.
            hard_coded = package.fixed_threads
    choice = build_memory.choose_jobs(
        memory_class=memory_class,
        units=units,
        architectures=len(compiled),
        usable_mib=usable,
        usable_cores=cores,
        nvcc_threads=params["nvcc_threads"],
        hard_coded_threads=hard_coded,
        max_jobs=params["max_jobs"],
        history=params["history"],
        reserve_mib=params["reserve_mib"],
        parallel_extensions=params["parallel_extensions"],
    )
    if package is None:
        env.update(MAX_JOBS=str(choice.jobs), NVCC_THREADS=str(choice.nvcc_threads))
    else:
        env.update({**package.force_build, **package.arch_env(wanted, version), **package.jobs_env(choice.jobs, choice.nvcc_threads)})
    return {**choice.as_dict(), "usable_mib": int(usable), "usable_cores": cores, "units": units, "architectures": compiled, "env": env}


def main() -> None:
    """Arguments in, a choice out."""
    module = AnsibleModule(
        argument_spec={
            "package": {"type": "str", "required": True},
            "description": {"type": "dict"},
            "version": {"type": "str"},
            "architectures": {"type": "list", "elements": "str", "required": True},
            "units": {"type": "int"},
            "gated": {"type": "bool", "default": False},
            "nvcc_threads": {"type": "int"},
            "max_jobs": {"type": "int"},
            "reserve_mib": {"type": "int"},
            "memory_mib": {"type": "int"},
            "cores": {"type": "float"},
            "parallel_extensions": {"type": "int", "default": 1},
            "history": {"type": "list", "elements": "dict", "default": []},
            "search_path": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **choose(module.params))
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())


if __name__ == "__main__":
    main()
