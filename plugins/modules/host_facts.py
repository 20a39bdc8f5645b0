#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module ``ironwheel.gpu.host_facts``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Reads what a GPU host is, has and has left
version_added: 0.1.0
description:
  - Reads operating system, processors, memory, disks, GPUs, driver, CUDA toolkits, compilers, Pythons, uv and leftovers of builds.
  - Facts come from C(/proc), C(/sys) and file contents first and from tools second. Tools run with C(LC_ALL=C) and a time-out, so that a hanging
    C(nvidia-smi) does not hang the run. It is run only when a kernel module is loaded, since it would load one otherwise.
  - What cannot be read is V(null), with an entry in RV(host.warnings). The module needs nothing but the standard library of Python 3.9 or newer.
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
  root:
    description:
      - Root directory of the host to read. Another one than V(/), such as a mounted image or a copy of a host's files, is read from its files
        alone and no tool is run.
    type: path
    default: /
  prefix:
    description:
      - Folder of the collection's own installation, searched for toolkits, Pythons, uv and builds.
      - The default is C(/opt/ironwheel) for root and C(~/.local/share/ironwheel) for others.
    type: str
  cache_dir:
    description: Folder of the package cache, whose disk is examined. The default is C(cache) below O(prefix).
    type: str
  build_dir:
    description: Folder of the builds, whose disk is examined. The default is C(builds) below O(prefix).
    type: str
  gather_subset:
    description: Sections to read. Keys of other sections are left out of RV(host).
    type: list
    elements: str
    choices: [all, os, user, cpu, memory, disk, gpus, driver, toolkits, compilers, pythons, uv, environment, build_leftovers]
    default: [all]
  timeout:
    description: Seconds after which a tool is given up.
    type: float
    default: 20
author:
  - ironwheel.gpu contributors (@ironwheel)
"""

EXAMPLES = r"""
- name: Read everything
  ironwheel.gpu.host_facts:
  register: facts

- name: Read what a plan for memory needs
  ironwheel.gpu.host_facts:
    gather_subset: [cpu, memory]
  register: facts

- name: Read an image that is mounted
  ironwheel.gpu.host_facts:
    root: /mnt/image
  register: facts

- name: Say how much memory a build may use
  ansible.builtin.debug:
    msg: "{{ facts.host.memory.usable_mib }} MiB"
"""

RETURN = r"""
host:
  description: The host facts. Memory and disk in MiB, ages in seconds; V(null) where something is unknown.
  returned: success
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      returned: always
      sample: 1
    os:
      description: >-
        Operating system. C(id), C(version), C(like) (list), C(name) and C(codename) from os-release; C(glibc) version; C(arch) as uname gives it; running
        C(kernel); C(kernel_headers), whether a module can be built for it; C(kernel_compiler), such as gcc-12; C(secure_boot), null when it cannot be seen;
        C(virtualization) in systemd-detect-virt's words, none on bare metal; C(container), such as docker, podman or lxc, null outside of
        one; C(wsl); C(systemd), whether systemd is process 1.
      type: dict
      returned: when gathered
    user:
      description: Who the module runs as. C(name), C(uid), C(home), and C(root), whether that is root.
      type: dict
      returned: when gathered
    cpu:
      description: >-
        Processors. C(online), C(affinity) (how many this process may run on), C(quota) in processors (the smallest over all control groups, null without
        one), C(usable) (the smallest of these, at least 1), C(model).
      type: dict
      returned: when gathered
    memory:
      description: >-
        Memory in MiB. C(total_mib) and C(available_mib) of the host; C(cgroup_limit_mib) and C(cgroup_headroom_mib) (limit minus usage, reclaimable page cache not counted
        as used) of the tightest control group among all ancestors, C(limited_by) its folder; C(usable_mib), what new processes can use; C(swap_total_mib) and
        C(swap_free_mib), never part of it; C(hugepages_mib), reserved and not part of it either.
      type: dict
      returned: when gathered
      sample: {total_mib: 442368, available_mib: 430000, cgroup_limit_mib: null, cgroup_headroom_mib: null, limited_by: null, usable_mib: 430000,
               swap_total_mib: 8192, swap_free_mib: 8192, hugepages_mib: 0}
    disk:
      description: >-
        For prefix, cache and builds the file system that holds them or will. C(path), C(mount), C(free_mib) for this user, C(total_mib), C(noexec), C(read_only).
      type: list
      elements: dict
      returned: when gathered
    gpus:
      description: >-
        NVIDIA GPUs. C(index) of the driver; C(pci_address), C(vendor_id), C(device_id), C(class_id); C(name), C(uuid); C(compute_capability), such as 12.0, and its
        C(capability_source) (driver, or table by PCI id or name); C(memory_mib), the host's memory where C(unified_memory) is true; C(mig) with C(enabled) and C(devices);
        C(usable), false when a working driver does not report this GPU or another driver holds it.
      type: list
      elements: dict
      returned: when gathered
    nvswitches:
      description: Number of NVSwitches, or of the management ports of NVLink 5 switches. More than 0 means that fabric manager is needed.
      type: int
      returned: when gpus are gathered
    vgpu:
      description: Whether this is a guest with a vGPU, which needs a GRID driver that matches its host.
      type: bool
      returned: when gpus are gathered
    driver:
      description: >-
        C(state): V(ok), V(absent), V(reboot_required) (the loaded module has another version than the user space) or V(broken), and C(detail), the
        reason in words. C(module_version) and C(module_flavour) (open or proprietary) of the loaded module; C(userspace_version); C(cuda_max), the highest CUDA that it
        runs; C(nvidia_smi), its path; C(packages) with their versions; C(fabric_manager) version; C(persistence) mode of all GPUs; C(nouveau), whether that module is
        loaded; C(dkms), a list of C(module), C(version), C(kernel), C(arch), C(state) (added, built or installed) and C(make_log).
      type: dict
      returned: when gathered
    toolkits:
      description: >-
        CUDA toolkits. C(path) with links resolved; C(version) as major.minor; C(full_version); C(nvcc_version); C(complete), whether nvcc, cicc, ptxas and the
        runtime's header and library are there, else C(missing); C(managed), whether it lies below O(prefix).
      type: list
      elements: dict
      returned: when gathered
    compilers:
      description: Host compilers. Versions of plain C(gcc), C(gxx) (g++) and C(clang), null where missing; C(all), a list of C(path), C(kind) and C(version).
      type: dict
      returned: when gathered
    pythons:
      description: CPython interpreters. C(path), C(version), and C(system), whether it is the distribution's.
      type: list
      elements: dict
      returned: when gathered
    uv:
      description: The newest uv below O(prefix), else the one on PATH. C(path), C(version); null without one.
      type: dict
      returned: when gathered
    environment:
      description: Variables that steer uv, pip, proxies and certificates. Passwords and tokens are masked, so it is for reading and not for passing on.
      type: dict
      returned: when gathered
    ca_bundle:
      description: Path of the certificate bundle that programs use.
      type: str
      returned: when environment is gathered
    build_leftovers:
      description: >-
        Compilers and ninjas that run. C(pid), C(name), C(user), C(age_s) in seconds, C(rss_mib) of memory, C(build) (folder of the build), C(ours), whether that
        lies below O(prefix); C(alive), whether what started it still waits for it, and C(orphan), the opposite.
      type: list
      elements: dict
      returned: when gathered
    warnings:
      description: What was met while reading. C(warning) (a stable name), C(message), C(remedy).
      type: list
      elements: dict
      returned: always
"""

import os
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import SECTIONS, read_host, run_command


def gather(params: dict) -> dict:
    """Host facts for the module's parameters.

    Raises:
        IronwheelError: ``root`` is no folder, or ``timeout`` is not positive.
    """
    root = params["root"]
    if not os.path.isdir(root):
        raise IronwheelError(
            f"root is '{root}', which is not a folder.", "RootNotFound", "Name the root folder of a host's files, or leave it out to read this host."
        )
    if params["timeout"] <= 0:
        raise IronwheelError(f"timeout is {params['timeout']}, but must be more than 0 seconds.", "InvalidTimeout", "Give a positive number of seconds.")
    subset = set(params["gather_subset"])
    return read_host(
        root=root,
        run=partial(run_command, timeout_s=params["timeout"]) if os.path.abspath(root) == "/" else None,
        paths={"prefix": params["prefix"], "cache": params["cache_dir"], "build": params["build_dir"]},
        subset=set(SECTIONS) if "all" in subset else subset,
    )


def main() -> None:
    """Arguments in, facts out."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "prefix": {"type": "str"},
            "cache_dir": {"type": "str"},
            "build_dir": {"type": "str"},
            "gather_subset": {"type": "list", "elements": "str", "choices": ["all", *SECTIONS], "default": ["all"]},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, host=gather(module.params))
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())


if __name__ == "__main__":
    main()
