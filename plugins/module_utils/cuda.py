# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CUDA toolkits: which one a torch build needs, and what limits one (gcc, glibc, architectures, driver). Data in ``tables/cuda_toolkits.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.cuda_toolkits import CUDA_TOOLKITS
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.drivers import FIRST_TOOLKIT, MIN_DRIVER_BY_CUDA_MAJOR
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.torch_releases import MIN_GCC_FOR_STANDARD, TORCH_MAX_GCC, TORCH_RELEASES

_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


def capability_key(capability: str) -> tuple[int, int]:
    """``(12, 0)`` for ``12.0``; what compute capabilities are compared by.

    Raises:
        IronwheelError: it is not a compute capability.
    """
    match = _CAPABILITY.fullmatch(str(capability))
    if match is None:
        raise IronwheelError(f"'{capability}' is not a compute capability.", "InvalidCapability", "Write it as in 9.0 or 12.0.")
    return int(match.group(1)), int(match.group(2))


def variant_cuda(variant: str) -> str | None:
    """CUDA release of a torch variant: ``12.8`` for ``cu128``, None for ``cpu``.

    Raises:
        IronwheelError: neither cpu nor cuNNN.
    """
    if variant == "cpu":
        return None
    match = re.fullmatch(r"cu(\d{2})(\d)", variant)
    if match is None:
        raise IronwheelError(f"'{variant}' is not a torch variant.", "InvalidVariant", "Use cpu or a CUDA variant such as cu130.")
    return f"{match.group(1)}.{match.group(2)}"


def toolkit(cuda: str) -> dict[str, Any] | None:
    """What is known of a toolkit, by major.minor; None for one that the table does not have."""
    return CUDA_TOOLKITS.get(versions.minor(cuda))


def min_driver(cuda: str) -> str:
    """Lowest driver that runs programs of this CUDA release (minor version compatibility)."""
    known = toolkit(cuda)
    if known is not None:
        return known["min_driver"]
    # A toolkit newer than the table: the floor of its major, or the newest known one for a new major.
    return MIN_DRIVER_BY_CUDA_MAJOR.get(versions.major(cuda), CUDA_TOOLKITS[next(iter(CUDA_TOOLKITS))]["driver"])


def loads_ptx(cuda: str, driver: str) -> bool:
    """True when a driver can load PTX made by this toolkit: it must not be older than the driver that came with it."""
    known = toolkit(cuda)
    return known is None or versions.at_least(driver, known["driver"])


def driver_for_capability(capability: str) -> str | None:
    """First driver that knows a GPU: the one that came with the first toolkit for it. None for GPUs that every driver in the tables knows."""
    first = FIRST_TOOLKIT.get(capability)
    known = toolkit(first) if first else None
    return known["driver"] if known else None


def code_for(architectures: Iterable[str], capability: str) -> str | None:
    """How a binary with these architectures runs on a GPU: ``machine`` code, ``ptx``, or None when it cannot.

    Machine code runs on a GPU of the same major whose minor is not lower; PTX (``12.0+PTX``) is compiled by the driver for any newer GPU.
    """
    wanted = capability_key(capability)
    by_ptx = False
    for entry in architectures:
        name, _sep, suffix = entry.partition("+")
        have = capability_key(name.rstrip("af"))
        if suffix == "PTX":
            by_ptx = by_ptx or have <= wanted
        elif have[0] == wanted[0] and have[1] <= wanted[1]:
            return "machine"
    return "ptx" if by_ptx else None


def compiles_for(cuda: str, capability: str) -> bool:
    """True when this nvcc has machine code for the GPU (of the same major, minor not higher). An unknown toolkit is believed to."""
    known = toolkit(cuda)
    return known is None or code_for(known["capabilities"], capability) == "machine"


def glibc_fault(cuda: str, glibc: str | None) -> str | None:
    """Why nvcc of this toolkit cannot compile with the host's C library, None when it can (or the library's version is not known)."""
    known = toolkit(cuda)
    if known is None or glibc is None or known["max_glibc"] is None or not versions.compare(glibc, known["max_glibc"]) > 0:
        return None
    return (
        f"CUDA {versions.minor(cuda)} does not compile with glibc {glibc}: its headers and those of glibc newer than {known['max_glibc']} "
        "declare the same mathematical functions differently"
    )


def gcc_limits(cuda: str, torch_version: str | None) -> dict[str, Any]:
    """Which gcc may compile extensions: ``{max_major, max_reason, min_version, min_reason}``, each None when there is no bound.

    nvcc refuses a newer gcc by its own check, torch by another, sometimes stricter one; the C++ standard of torch's headers sets the floor.
    """
    limits: dict[str, Any] = {"max_major": None, "max_reason": None, "min_version": None, "min_reason": None}
    known = toolkit(cuda)
    if known is not None and known["max_gcc"]:
        limits.update(max_major=known["max_gcc"], max_reason=f"nvcc {versions.minor(cuda)} accepts gcc up to {known['max_gcc']}")
    if torch_version is None:
        return limits
    bound = TORCH_MAX_GCC.get(versions.minor(torch_version), {}).get(versions.minor(cuda))
    if bound is not None and (limits["max_major"] is None or bound < limits["max_major"]):
        limits.update(max_major=bound, max_reason=f"torch {torch_version} accepts gcc up to {bound} for CUDA {versions.minor(cuda)}")
    standard = cxx_standard(torch_version)
    limits.update(min_version=MIN_GCC_FOR_STANDARD[standard], min_reason=f"the headers of torch {torch_version} need C++{standard}")
    return limits


def cxx_standard(torch_version: str) -> int:
    """Lowest C++ standard that torch's headers accept; for a release that the table does not have, that of the newest older one."""
    for release, known in TORCH_RELEASES.items():
        if versions.at_least(torch_version, release):
            return known["cxx_standard"]
    return 17


def gcc_fault(version: str, limits: Mapping[str, Any]) -> str | None:
    """Why a gcc is outside the limits of ``gcc_limits``, None when it is inside."""
    if limits["max_major"] is not None and versions.major(version) > limits["max_major"]:
        return f"gcc {version} is too new: {limits['max_reason']}"
    if limits["min_version"] is not None and not versions.at_least(version, limits["min_version"]):
        return f"gcc {version} is too old: {limits['min_reason']}, which needs gcc {limits['min_version']}"
    return None


def choose_gcc(compilers: Mapping[str, Any], limits: Mapping[str, Any]) -> tuple[dict[str, str] | None, list[tuple[str, str, str]]]:
    """The g++ that builds: the default one when it is inside the limits, otherwise the newest that is.

    ``compilers`` are those of the host facts. Returns ``({path, version} or None, trace)`` with trace entries ``(candidate, verdict, reason)``.
    """
    candidates = []
    default = compilers.get("gxx")
    if default:
        candidates.append({"path": "g++", "version": default})
    others = [item for item in compilers.get("all") or [] if item.get("kind") == "gxx" and item.get("version")]
    candidates += sorted(
        ({"path": item["path"], "version": item["version"]} for item in others),
        key=lambda item: versions.parse(item["version"]),
        reverse=True,
    )
    trace = []
    for candidate in candidates:
        fault = gcc_fault(candidate["version"], limits)
        name = f"{candidate['path']} {candidate['version']}"
        if fault is None:
            trace.append(
                (name, "accepted", "inside the limits of nvcc and torch" if candidate["path"] != "g++" else "the default compiler is inside the limits")
            )
            return candidate, trace
        trace.append((name, "rejected", fault))
    return None, trace


def choose_toolkit(
    installed: Sequence[Mapping[str, Any]], cuda: str, allow_same_major: bool = False
) -> tuple[Mapping[str, Any] | None, list[tuple[str, str, str]]]:
    """The installed toolkit that may build extensions for a torch of this CUDA release.

    torch refuses another major and only warns of another minor; major.minor must be equal, unless the same major is allowed. An incomplete toolkit never
    counts.
    ``/usr/local/cuda`` is never consulted: only the toolkit's own version decides. Returns ``(toolkit or None, trace)``.
    """
    trace = []
    chosen = None
    near = []
    for item in installed:
        version = item.get("version")
        name = f"{item.get('path')} (CUDA {version})"
        if not version:
            trace.append((name, "rejected", "its version is not known"))
        elif not item.get("complete", True):
            trace.append((name, "rejected", f"incomplete: {', '.join(item.get('missing') or []) or 'files are missing'}"))
        elif versions.same_minor(version, cuda):
            if chosen is None:
                chosen = item
                trace.append((name, "accepted", f"torch is built with CUDA {cuda}"))
            else:
                trace.append((name, "rejected", f"the one in {chosen.get('path')} serves"))
        elif versions.major(version) != versions.major(cuda):
            trace.append((name, "rejected", f"torch is built with CUDA {cuda} and refuses another major"))
        elif allow_same_major:
            near.append((item, name))
        else:
            trace.append((name, "rejected", f"torch is built with CUDA {cuda}; another minor is used only with cuda_toolkit_allow_same_major"))
    for item, name in near:
        if chosen is None:
            chosen = item
            trace.append((name, "accepted", f"same major as torch's CUDA {cuda}, allowed by cuda_toolkit_allow_same_major"))
        else:
            trace.append((name, "rejected", f"the one in {chosen.get('path')} serves"))
    return chosen, trace
