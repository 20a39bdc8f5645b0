# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Facts of a host that one does not have: a few lines from a file, checked and filled up to complete host facts (schema 1).

What must be said: ``os.id``, ``os.version``, ``cpu.usable`` (or ``online``), ``memory.total_mib`` (or ``usable_mib``). Everything else has a default:
x86_64, root, systemd, no container, no GPU, and the C library, Python and compiler that the distribution comes with.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus, plan_host, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# What a distribution comes with: (glibc, system Python, g++).
SYSTEMS: dict[str, tuple[str, str, str]] = {
    "ubuntu22.04": ("2.35", "3.10", "11.4.0"),
    "ubuntu24.04": ("2.39", "3.12", "13.3.0"),
    "ubuntu26.04": ("2.43", "3.14", "15.2.0"),
    "debian12": ("2.36", "3.11", "12.2.0"),
    "debian13": ("2.41", "3.13", "14.2.0"),
    "rhel9": ("2.34", "3.9", "11.5.0"),
    "rhel10": ("2.39", "3.12", "14.3.1"),
}
# Of the memory of a machine at rest, this share is taken to be usable.
USABLE_SHARE = 0.95

_TEXT, _FLAG, _COUNT, _NUMBER = "text", "true or false", "a whole number, not negative", "a number, not negative"
_SECTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "os": {
        "id": (_TEXT, None),
        "version": (_TEXT, None),
        "like": ("a list of texts", []),
        "name": (_TEXT, None),
        "codename": (_TEXT, None),
        "glibc": (_TEXT, None),
        "arch": (_TEXT, "x86_64"),
        "kernel": (_TEXT, None),
        "kernel_headers": (_FLAG, True),
        "kernel_compiler": (_TEXT, None),
        "secure_boot": (_FLAG, None),
        "virtualization": (_TEXT, None),
        "container": (_TEXT, None),
        "wsl": (_FLAG, False),
        "systemd": (_FLAG, True),
    },
    "user": {"name": (_TEXT, "root"), "uid": (_COUNT, 0), "home": (_TEXT, "/root"), "root": (_FLAG, True)},
    "cpu": {"online": (_COUNT, None), "affinity": (_COUNT, None), "quota": (_NUMBER, None), "usable": (_COUNT, None), "model": (_TEXT, None)},
    "memory": {
        "total_mib": (_COUNT, None),
        "available_mib": (_COUNT, None),
        "cgroup_limit_mib": (_COUNT, None),
        "cgroup_headroom_mib": (_COUNT, None),
        "limited_by": (_TEXT, None),
        "usable_mib": (_COUNT, None),
        "swap_total_mib": (_COUNT, 0),
        "swap_free_mib": (_COUNT, 0),
        "hugepages_mib": (_COUNT, 0),
    },
    "driver": {
        "state": (_TEXT, None),
        "module_version": (_TEXT, None),
        "module_flavour": (_TEXT, None),
        "userspace_version": (_TEXT, None),
        "cuda_max": (_TEXT, None),
        "nvidia_smi": (_TEXT, None),
        "packages": ("a dictionary", {}),
        "fabric_manager": (_TEXT, None),
        "persistence": (_FLAG, None),
        "nouveau": (_FLAG, False),
        "dkms": ("a list", []),
        "detail": (_TEXT, None),
    },
}
_ITEMS: dict[str, dict[str, tuple[str, Any]]] = {
    "gpus": {
        "index": (_COUNT, None),
        "pci_address": (_TEXT, None),
        "vendor_id": (_TEXT, gpus.NVIDIA),
        "device_id": (_TEXT, None),
        "class_id": (_TEXT, "0302"),
        "name": (_TEXT, None),
        "uuid": (_TEXT, None),
        "compute_capability": (_TEXT, None),
        "capability_source": (_TEXT, None),
        "memory_mib": (_COUNT, None),
        "unified_memory": (_FLAG, False),
        "mig": ("a dictionary", {"enabled": False, "devices": []}),
        "usable": (_FLAG, True),
    },
    "toolkits": {
        "path": (_TEXT, None),
        "version": (_TEXT, None),
        "full_version": (_TEXT, None),
        "nvcc_version": (_TEXT, None),
        "complete": (_FLAG, True),
        "missing": ("a list", []),
        "managed": (_FLAG, False),
    },
    "pythons": {"path": (_TEXT, None), "version": (_TEXT, None), "system": (_FLAG, False)},
    "disk": {
        "path": (_TEXT, None),
        "mount": (_TEXT, None),
        "free_mib": (_COUNT, None),
        "total_mib": (_COUNT, None),
        "noexec": (_FLAG, False),
        "read_only": (_FLAG, False),
    },
}
_OPEN_SECTIONS = ("compilers", "uv", "environment")
_OTHERS = {"schema": 1, "nvswitches": 0, "vgpu": False, "ca_bundle": None, "build_leftovers": [], "warnings": []}
_DRIVER_STATES = ("ok", "absent", "reboot_required", "broken")


def complete_facts(facts: Any) -> dict[str, Any]:
    """Complete host facts from the few that a file gives.

    Raises:
        IronwheelError: a fact that is missing, unknown, or not of its kind; the message names it by its path.
    """
    if not isinstance(facts, Mapping):
        raise _bad("the facts", facts, "must be a dictionary with os, cpu, memory and, if there are any, gpus, driver and toolkits")
    _known("", facts, [*_SECTIONS, *_ITEMS, *_OPEN_SECTIONS, *_OTHERS])
    if facts.get("schema", 1) != 1:
        raise _bad("schema", facts["schema"], "must be 1")
    host: dict[str, Any] = {key: copy.deepcopy(facts.get(key, default)) for key, default in _OTHERS.items()}
    for section, keys in _SECTIONS.items():
        host[section] = _filled(section, {} if facts.get(section) is None else facts[section], keys)
    for section, keys in _ITEMS.items():
        given = [] if facts.get(section) is None else facts[section]
        if not isinstance(given, list):
            raise _bad(section, given, "must be a list")
        host[section] = [_filled(f"{section}[{index}]", item, keys) for index, item in enumerate(given)]
    for section in _OPEN_SECTIONS:
        given = facts.get(section)
        if given is not None and not isinstance(given, Mapping):
            raise _bad(section, given, "must be a dictionary")
        host[section] = dict(given) if given is not None else None
    host["environment"] = host["environment"] or {}
    if isinstance(host["nvswitches"], bool) or not isinstance(host["nvswitches"], int):
        raise _bad("nvswitches", host["nvswitches"], f"must be {_COUNT}")
    _fill_machine(host)
    _fill_software(host, facts.get("pythons") is None)
    _fill_gpus(host)
    return host


def _fill_machine(host: dict[str, Any]) -> None:
    for name in ("id", "version"):
        if not host["os"][name]:
            raise IronwheelError(f"os.{name} is missing.", "InvalidFacts", "Name the distribution as /etc/os-release does, such as ubuntu and 24.04.")
    cpu, memory = host["cpu"], host["memory"]
    if not cpu["usable"]:
        if not cpu["online"]:
            raise IronwheelError("cpu.usable is missing.", "InvalidFacts", "Give the number of cores that a build may use.")
        cpu["usable"] = cpu["online"]
    cpu["online"] = cpu["online"] or cpu["usable"]
    cpu["affinity"] = cpu["affinity"] or cpu["online"]
    if not memory["usable_mib"]:
        if not memory["total_mib"]:
            raise IronwheelError("memory.total_mib is missing.", "InvalidFacts", "Give the memory of the host in MiB.")
        memory["usable_mib"] = int(memory["total_mib"] * USABLE_SHARE)
    memory["total_mib"] = memory["total_mib"] or memory["usable_mib"]
    memory["available_mib"] = memory["available_mib"] or memory["usable_mib"]


def _fill_software(host: dict[str, Any], without_pythons: bool) -> None:
    """What the distribution comes with, where the facts say nothing. An empty list says something: that there is none."""
    known = SYSTEMS.get(plan_host.system_key(host["os"]) or "")
    if known is None:
        host["compilers"] = host["compilers"] or {"gcc": None, "gxx": None, "clang": None, "all": []}
        return
    glibc, python, gcc = known
    host["os"]["glibc"] = host["os"]["glibc"] or glibc
    if without_pythons:
        host["pythons"] = [{"path": f"/usr/bin/python{python}", "version": python, "system": True}]
    if host["compilers"] is None:
        host["compilers"] = {"gcc": gcc, "gxx": gcc, "clang": None, "all": [{"path": "/usr/bin/g++", "kind": "gxx", "version": gcc}]}


def _fill_gpus(host: dict[str, Any]) -> None:
    driver = host["driver"]
    version = driver["module_version"] or driver["userspace_version"]
    if driver["state"] is None:
        driver["state"] = "ok" if version else "absent"
    elif driver["state"] not in _DRIVER_STATES:
        raise _bad("driver.state", driver["state"], f"must be one of {', '.join(_DRIVER_STATES)}")
    driver["module_version"] = driver["module_version"] or version
    driver["userspace_version"] = driver["userspace_version"] or version
    for name in ("module_version", "userspace_version"):
        if driver[name]:
            _version(f"driver.{name}", driver[name])
    for index, gpu in enumerate(host["gpus"]):
        where = f"gpus[{index}]"
        if gpu["compute_capability"] is None:
            gpu["compute_capability"] = gpus.capability(gpu["name"], gpu["device_id"])
            gpu["capability_source"] = "table" if gpu["compute_capability"] else None
        if gpu["compute_capability"] is None:
            raise IronwheelError(
                f"{where}.compute_capability is missing, and the name '{gpu['name']}' is not known.",
                "InvalidFacts",
                "Give it, as in compute_capability: '12.0'.",
            )
        try:
            cuda_rules.capability_key(gpu["compute_capability"])
        except IronwheelError:
            raise _bad(f"{where}.compute_capability", gpu["compute_capability"], "must be a compute capability such as '12.0'") from None
        if gpu["index"] is None:
            gpu["index"] = index
    for index, item in enumerate(host["toolkits"]):
        where = f"toolkits[{index}].version"
        if not item["version"]:
            raise IronwheelError(f"{where} is missing.", "InvalidFacts", "Give the CUDA release, such as '13.1'.")
        _version(where, item["version"])
        item["full_version"] = item["full_version"] or item["version"]
        item["version"] = versions.minor(item["version"])
        item["path"] = item["path"] or f"/usr/local/cuda-{item['version']}"
    for index, item in enumerate(host["pythons"]):
        if not item["path"] or not item["version"]:
            raise IronwheelError(f"pythons[{index}] needs path and version.", "InvalidFacts", "Give both, or leave pythons out.")
        _version(f"pythons[{index}].version", item["version"])
    if host["os"]["glibc"]:
        _version("os.glibc", host["os"]["glibc"])


def _filled(where: str, given: Any, keys: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _bad(where, given, "must be a dictionary")
    _known(f"{where}.", given, list(keys))
    result = {}
    for key, (kind, default) in keys.items():
        value = given.get(key)
        result[key] = copy.deepcopy(default) if value is None else _checked(f"{where}.{key}", value, kind)
    return result


def _known(where: str, given: Mapping[Any, Any], known: list[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise IronwheelError(f"{where}{key} is not a host fact.", "InvalidFacts", f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}.")


def _checked(where: str, value: Any, kind: str) -> Any:
    if kind == _TEXT:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise _bad(where, value, "must be text")
        return str(value)
    if kind == _FLAG:
        if not isinstance(value, bool):
            raise _bad(where, value, f"must be {kind}")
    elif kind in (_COUNT, _NUMBER):
        if isinstance(value, bool) or not isinstance(value, int if kind == _COUNT else (int, float)) or not 0 <= value < 1e12:
            raise _bad(where, value, f"must be {kind}")
    elif kind == "a dictionary":
        if not isinstance(value, Mapping):
            raise _bad(where, value, f"must be {kind}")
    elif not isinstance(value, list):
        raise _bad(where, value, f"must be {kind}")
    return copy.deepcopy(value)


def _version(where: str, text: str) -> None:
    try:
        versions.parse(text)
    except IronwheelError:
        raise _bad(where, text, "must be a version") from None


def _bad(where: str, value: Any, rule: str) -> IronwheelError:
    shown = repr(value)
    return IronwheelError(f"{where} is {shown if len(shown) < 120 else shown[:117] + '...'}, but {rule}.", "InvalidFacts", "Correct the facts of this host.")
