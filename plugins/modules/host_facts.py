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
    type: path
  cache_dir:
    description: Folder of the package cache, whose disk is examined. The default is C(cache) below O(prefix).
    type: path
  build_dir:
    description: Folder of the builds, whose disk is examined. The default is C(builds) below O(prefix).
    type: path
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
      description: Version of this structure, 1.
      type: int
      returned: always
    os:
      description: Operating system and kind of machine.
      type: dict
      returned: when gathered
      contains:
        id: {description: "ID of os-release, such as debian.", type: str, returned: always}
        version: {description: "VERSION_ID of os-release.", type: str, returned: always}
        like: {description: "ID_LIKE of os-release.", type: list, returned: always, elements: str}
        name: {description: "Name for people.", type: str, returned: always}
        codename: {description: "VERSION_CODENAME of os-release.", type: str, returned: always}
        glibc: {description: "Version of the GNU C library.", type: str, returned: always}
        arch: {description: "Machine as uname gives it, such as x86_64.", type: str, returned: always}
        kernel: {description: "Release of the running kernel.", type: str, returned: always}
        kernel_headers: {description: "Whether a module can be built for the running kernel.", type: bool, returned: always}
        kernel_compiler: {description: "Compiler that built the running kernel, such as gcc-12.", type: str, returned: always}
        secure_boot: {description: "Whether Secure Boot is on; null when it cannot be seen.", type: bool, returned: always}
        virtualization: {description: "Hypervisor in the words of systemd-detect-virt, or none.", type: str, returned: always}
        container: {description: "Kind of container, such as docker, podman or lxc; null outside of one.", type: str, returned: always}
        wsl: {description: "Whether this is the Windows Subsystem for Linux.", type: bool, returned: always}
        systemd: {description: "Whether systemd is process 1.", type: bool, returned: always}
    user:
      description: Who the module runs as.
      type: dict
      returned: when gathered
      contains:
        name: {description: "Name.", type: str, returned: always}
        uid: {description: "Effective user id.", type: int, returned: always}
        home: {description: "Home folder.", type: str, returned: always}
        root: {description: "Whether that is root.", type: bool, returned: always}
    cpu:
      description: Processors.
      type: dict
      returned: when gathered
      contains:
        online: {description: "Processors that the kernel uses.", type: int, returned: always}
        affinity: {description: "Processors that this process may run on.", type: int, returned: always}
        quota: {description: "Smallest quota over all control groups above, in processors; null without one.", type: float, returned: always}
        usable: {description: "The smallest of these, at least 1.", type: int, returned: always}
        model: {description: "Name of the model.", type: str, returned: always}
    memory:
      description: Memory.
      type: dict
      returned: when gathered
      contains:
        total_mib: {description: "Memory of the host in MiB.", type: int, returned: always}
        available_mib: {description: "What the kernel estimates as available, in MiB.", type: int, returned: always}
        cgroup_limit_mib: {description: "Limit of the tightest control group among all ancestors, in MiB.", type: int, returned: always}
        cgroup_headroom_mib: {description: "Its limit minus its usage without reclaimable page cache, in MiB.", type: int, returned: always}
        limited_by: {description: "Its folder.", type: str, returned: always}
        usable_mib: {description: "What new processes can use, in MiB; without swap, hugepages and GPU memory.", type: int, returned: always}
        swap_total_mib: {description: "Swap in MiB.", type: int, returned: always}
        swap_free_mib: {description: "Free swap in MiB.", type: int, returned: always}
        hugepages_mib: {description: "Memory reserved for hugepages in MiB.", type: int, returned: always}
    disk:
      description: For prefix, cache and builds the file system that holds them, or will.
      type: list
      returned: when gathered
      elements: dict
      contains:
        path: {description: "The path asked about.", type: str, returned: always}
        mount: {description: "Mount point.", type: str, returned: always}
        free_mib: {description: "Room for this user in MiB.", type: int, returned: always}
        total_mib: {description: "Size in MiB.", type: int, returned: always}
        noexec: {description: "Whether programs on it cannot run.", type: bool, returned: always}
        read_only: {description: "Whether it is mounted read-only.", type: bool, returned: always}
    gpus:
      description: NVIDIA GPUs, from the PCI bus and from the driver.
      type: list
      returned: when gathered
      elements: dict
      contains:
        index: {description: "Number that the driver gives; null when it does not report the GPU.", type: int, returned: always}
        pci_address: {description: "Address such as 0000:41:00.0; null without a PCI view.", type: str, returned: always}
        vendor_id: {description: "PCI vendor id, 10de.", type: str, returned: always}
        device_id: {description: "PCI device id in hexadecimal.", type: str, returned: always}
        class_id: {description: "PCI class and subclass in hexadecimal, such as 0302.", type: str, returned: always}
        name: {description: "Name of the model.", type: str, returned: always}
        uuid: {description: "UUID.", type: str, returned: always}
        compute_capability: {description: "Compute capability such as 12.0.", type: str, returned: always}
        capability_source: {description: "Who says so: driver, table (by PCI id or name) or null.", type: str, returned: always}
        memory_mib: {description: "Memory in MiB; the host's where it is shared.", type: int, returned: always}
        unified_memory: {description: "Whether the GPU has no memory of its own and uses the host's.", type: bool, returned: always}
        mig: {description: "Multi-instance mode: enabled, and devices with index, profile and uuid.", type: dict, returned: always}
        usable: {description: "False when a working driver does not report it, or it is set aside for a virtual machine.", type: bool, returned: always}
    nvswitches:
      description: Number of NVSwitches, or of the management ports of NVLink 5 switches; such hosts need fabric manager.
      type: int
      returned: when gpus are gathered
    vgpu:
      description: Whether this is a guest with a vGPU, which needs a GRID driver that matches its host.
      type: bool
      returned: when gpus are gathered
    driver:
      description: NVIDIA driver.
      type: dict
      returned: when gathered
      contains:
        state: {description: "ok, absent, reboot_required (the loaded module has another version than the user space) or broken.", type: str, returned: always}
        detail: {description: "The reason in words.", type: str, returned: always}
        module_version: {description: "Version of the loaded kernel module.", type: str, returned: always}
        module_flavour: {description: "open or proprietary, of the loaded module.", type: str, returned: always}
        userspace_version: {description: "Version of the user space libraries.", type: str, returned: always}
        cuda_max: {description: "Highest CUDA that the driver runs.", type: str, returned: always}
        nvidia_smi: {description: "Path of nvidia-smi.", type: str, returned: always}
        packages: {description: "Versions of the driver's packages by name.", type: dict, returned: always}
        fabric_manager: {description: "Version of fabric manager.", type: str, returned: always}
        persistence: {description: "Whether persistence mode is on for all GPUs; null when unknown.", type: bool, returned: always}
        nouveau: {description: "Whether the module nouveau is loaded.", type: bool, returned: always}
        dkms: {description: "Modules in dkms: module, version, kernel, arch, state, make_log (of a failure).", type: list, returned: always, elements: dict}
    toolkits:
      description: CUDA toolkits.
      type: list
      returned: when gathered
      elements: dict
      contains:
        path: {description: "Folder, links resolved.", type: str, returned: always}
        version: {description: "Major and minor, such as 13.0.", type: str, returned: always}
        full_version: {description: "Full version.", type: str, returned: always}
        nvcc_version: {description: "Version of nvcc.", type: str, returned: always}
        complete: {description: "Whether nvcc, cicc, ptxas and the runtime's header and library are there.", type: bool, returned: always}
        missing: {description: "Which of these are not.", type: list, returned: always, elements: str}
        managed: {description: "Whether it lies below O(prefix).", type: bool, returned: always}
    compilers:
      description: Host compilers.
      type: dict
      returned: when gathered
      contains:
        gcc: {description: "Version of gcc.", type: str, returned: always}
        gxx: {description: "Version of g++.", type: str, returned: always}
        clang: {description: "Version of clang.", type: str, returned: always}
        all: {description: "Every one that is there: path, kind and version.", type: list, returned: always, elements: dict}
    pythons:
      description: CPython interpreters.
      type: list
      returned: when gathered
      elements: dict
      contains:
        path: {description: "Path.", type: str, returned: always}
        version: {description: "Version.", type: str, returned: always}
        system: {description: "Whether it is the distribution's.", type: bool, returned: always}
    uv:
      description: The newest uv below O(prefix), else the one on PATH; null without one.
      type: dict
      returned: when gathered
      contains:
        path: {description: "Path.", type: str, returned: always}
        version: {description: "Version.", type: str, returned: always}
    environment:
      description: Variables that steer uv, pip, proxies and certificates. Secrets are masked, so it is for reading and not for passing on.
      type: dict
      returned: when gathered
    ca_bundle:
      description: Path of the certificate bundle that programs use.
      type: str
      returned: when environment is gathered
    build_leftovers:
      description: Compilers and ninjas that run.
      type: list
      returned: when gathered
      elements: dict
      contains:
        pid: {description: "Process id.", type: int, returned: always}
        name: {description: "Name of the process.", type: str, returned: always}
        user: {description: "Owner.", type: str, returned: always}
        age_s: {description: "Age in seconds.", type: int, returned: always}
        rss_mib: {description: "Resident memory in MiB.", type: int, returned: always}
        build: {description: "Folder of the build, or working folder.", type: str, returned: always}
        ours: {description: "Whether that is a build below O(prefix).", type: bool, returned: always}
        alive: {description: "Whether what started it still waits for it.", type: bool, returned: always}
        orphan: {description: "The opposite.", type: bool, returned: always}
    warnings:
      description: What was met while reading.
      type: list
      returned: always
      elements: dict
      contains:
        warning: {description: "Stable name.", type: str, returned: always}
        message: {description: "What was found.", type: str, returned: always}
        remedy: {description: "What to do.", type: str, returned: always}
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
            "prefix": {"type": "path"},
            "cache_dir": {"type": "path"},
            "build_dir": {"type": "path"},
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
