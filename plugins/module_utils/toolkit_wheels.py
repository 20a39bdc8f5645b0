# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A CUDA 13 toolkit made from the wheels that NVIDIA publishes on PyPI.

NVIDIA's meta package ``cuda-toolkit`` names, for each release, the matching version of every part as an extra. The parts all unpack into
``nvidia/cu13/{bin,include,lib,nvvm}``, which lacks three things that compilers and build systems expect of a toolkit: ``lib64``, the names of
libraries without version (``libcudart.so``), and ``version.json``. This file adds them.

CUDA 12 cannot be made this way: its ``nvidia-cuda-nvcc-cu12`` wheels hold ``ptxas`` but no ``nvcc``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.versions import at_least, major, minor

# The file in a toolkit that says that it is ours, and the locked requirements that it was made from.
MARKER = "ironwheel.json"
LOCK = "ironwheel.lock"
# The wheels' own metadata (licences, versions, file lists with hashes) are kept here.
METADATA = "share/wheels"

FIRST_VERSION = "13.0"

# What the headers of torch include (cuda.h, cublas, cufft, curand, cusolver, cusparse, nvml, nvrtc, nvtx3, thrust, cub) and nvcc needs.
MINIMAL_EXTRAS = (
    "cccl",
    "crt",
    "cublas",
    "cudart",
    "cufft",
    "curand",
    "cusolver",
    "cusparse",
    "nvcc",
    "nvjitlink",
    "nvml",
    "nvrtc",
    "nvtx",
    "nvvm",
    "profiler",
)
# Disassemblers are on PyPI from this release on.
DISASSEMBLERS = ("cuobjdump", "nvdisasm")
FIRST_WITH_DISASSEMBLERS = "13.2"

VERSION = re.compile(r"\d+\.\d+")
_VERSIONED_LIBRARY = re.compile(r"(lib.+\.so)\.[0-9.]+")
_LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
# version.json of NVIDIA's own packages calls these parts differently from their wheels.
_PART_NAMES = {
    "nvidia-cuda-runtime": "cuda_cudart",
    "nvidia-cuda-profiler-api": "cuda_profiler_api",
    "nvidia-cublas": "libcublas",
    "nvidia-cufft": "libcufft",
    "nvidia-curand": "libcurand",
    "nvidia-cusolver": "libcusolver",
    "nvidia-cusparse": "libcusparse",
    "nvidia-nvjitlink": "libnvjitlink",
    "nvidia-nvvm": "libnvvm",
    "nvidia-nvml-dev": "cuda_nvml_dev",
}


def directory_name(version: str) -> str:
    """Name of the toolkit's folder, as NVIDIA's packages call it: ``cuda-13.0``."""
    return f"cuda-{version}"


def check_version(version: str) -> None:
    """Accept ``major.minor`` of CUDA 13 or newer.

    Raises:
        IronwheelError: something else, or a CUDA that PyPI has no compiler for.
    """
    if VERSION.fullmatch(str(version)) is None:
        raise IronwheelError(
            f"'{version}' is not the version of a CUDA toolkit: it must be major.minor, for example 13.0.",
            "InvalidVersion",
        )
    if not at_least(version, FIRST_VERSION):
        raise IronwheelError(
            f"CUDA {version} cannot be made from PyPI wheels: those of CUDA {major(version)} hold no nvcc; those of {FIRST_VERSION} and newer do.",
            "ToolkitNotInWheels",
            f"set cuda_toolkit_source to repository or runfile for CUDA {version}, or plan a torch build for CUDA 13 (torch_variant: cu130).",
        )


def requirements(version: str, packages: str) -> list[str]:
    """Requirement strings whose resolution is the toolkit ``version`` ("13.0"), ``packages`` being minimal or full.

    nvJitLink is pinned beside it, because ``cuda-toolkit`` leaves it open to the newest release of CUDA 13.
    """
    extras = ["all"] if packages == "full" else list(MINIMAL_EXTRAS)
    if packages != "full" and at_least(version, FIRST_WITH_DISASSEMBLERS):
        extras += DISASSEMBLERS
    return [f"cuda-toolkit[{','.join(extras)}]=={version}.*", f"nvidia-nvjitlink=={version}.*"]


def locked_versions(lock: str) -> dict[str, str]:
    """Distribution names and versions of a requirements file: ``{"nvidia-cuda-nvcc": "13.0.88"}``."""
    return {name.lower().replace("_", "-"): version for name, version in _LOCKED.findall(lock)}


def check_lock(version: str, lock: str) -> dict[str, str]:
    """Versions in ``lock`` after checking that it is a hashed lock of this toolkit.

    Raises:
        IronwheelError: an entry without hash, no compiler, or a compiler of another release.
    """
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    for entry in entries:
        if _LOCKED.match(entry) and "--hash=sha256:" not in entry:
            raise IronwheelError(
                f"The lock of CUDA {version} has no sha256 hash for '{entry.split()[0]}'; every package must have one.",
                "LockWithoutHash",
                "make the lock with `uv pip compile --generate-hashes`, and see that the index gives hashes.",
            )
    versions = locked_versions(lock)
    nvcc = versions.get("nvidia-cuda-nvcc")
    if nvcc is None:
        raise IronwheelError(f"The lock of CUDA {version} has no nvidia-cuda-nvcc, so it is not a toolkit.", "LockWithoutCompiler")
    if minor(nvcc) != version:
        raise IronwheelError(
            f"The lock of CUDA {version} has nvidia-cuda-nvcc {nvcc}, which is CUDA {minor(nvcc)}.",
            "LockForAnotherToolkit",
            "give cuda_toolkit_locks an entry for each version, made for exactly that version.",
        )
    return versions


def marker(version: str, packages: str, lock: str) -> dict:
    """What ``ironwheel.json`` in the toolkit says of it."""
    versions = locked_versions(lock)
    return {
        "schema": 1,
        "kind": "cuda_toolkit",
        "source": "wheels",
        "version": version,
        "full_version": versions["nvidia-cuda-nvcc"],
        "packages": packages,
        "lock_sha256": hashlib.sha256(lock.encode()).hexdigest(),
        "parts": versions,
    }


def read_marker(path: str) -> dict | None:
    """Our marker in the toolkit at ``path``, or None where there is none that can be read."""
    try:
        with open(os.path.join(path, MARKER), encoding="utf-8") as handle:
            found = json.load(handle)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == "cuda_toolkit" else None


def damaged_files(path: str) -> list[str]:
    """Files of the wheels that are gone from the toolkit at ``path`` or have another size, relative to it, sorted.

    Sizes and names come from the wheels' own RECORD files, so that this costs a few thousand ``stat`` calls and no reading.
    """
    metadata = os.path.join(path, METADATA)
    try:
        records = [os.path.join(metadata, name, "RECORD") for name in os.listdir(metadata) if name.endswith(".dist-info")]
    except OSError:
        return [METADATA]
    wrong = []
    for record in records:
        try:
            with open(record, encoding="utf-8", newline="") as handle:
                rows = [row for row in csv.reader(handle) if len(row) == 3]
        except OSError:
            wrong.append(os.path.relpath(record, path))
            continue
        for name, _digest, size in rows:
            parts = name.split("/")
            if parts[:1] != ["nvidia"] or len(parts) < 3 or not size:
                continue
            relative = "/".join(parts[2:])
            try:
                if os.path.getsize(os.path.join(path, relative)) != int(size):
                    wrong.append(relative)
            except OSError:
                wrong.append(relative)
    return sorted(wrong)


def state(path: str, packages: str, lock: str | None = None) -> str:
    """Why the toolkit at ``path`` has to be made, or "" when it is there as wanted.

    Raises:
        IronwheelError: something that is not ours lies there.
    """
    if not os.path.lexists(path):
        return "it is not there"
    found = read_marker(path)
    if found is None:
        raise IronwheelError(
            f"{path} exists and has no {MARKER}, so it was not made by this collection; it is left as it is.",
            "PathInUse",
            "move it away, or set cuda_toolkit_prefix to another folder.",
        )
    if packages == "full" and found.get("packages") != "full":
        return "it holds the minimal set and the full one is wanted"
    if lock is not None and found.get("lock_sha256") != hashlib.sha256(lock.encode()).hexdigest():
        return "it was made from another lock"
    damaged = damaged_files(path)
    if damaged:
        return f"{len(damaged)} of its files are gone or changed, the first is {damaged[0]}"
    return ""


def version_json(version: str, versions: dict[str, str]) -> dict:
    """The ``version.json`` that NVIDIA's own toolkits carry: ``{"cuda": {"name", "version"}, "cuda_nvcc": {…}, …}``."""
    whole = versions.get("cuda-toolkit", version)
    # The meta package carries a fourth number (13.0.3.0) in some releases; the toolkit's own version has three.
    document = {"cuda": {"name": "CUDA SDK", "version": ".".join(whole.split(".")[:3])}}
    for name in sorted(versions):
        if name != "cuda-toolkit":
            key = _PART_NAMES.get(name, name.replace("nvidia-", "", 1).replace("-", "_"))
            document[key] = {"name": name, "version": versions[name]}
    return document


def assemble(site: str, path: str, version: str, packages: str, lock: str) -> None:
    """Turn ``site`` (a folder that the wheels were unpacked into) into a toolkit at ``path``, a folder that does not exist yet.

    Files are moved, not copied: both must be on one file system. ``path`` is only complete when this returns.

    Raises:
        IronwheelError: the wheels do not hold what a toolkit needs.
    """
    folder = os.path.join(site, "nvidia")
    trees = sorted(name for name in os.listdir(folder) if re.fullmatch(r"cu\d+", name)) if os.path.isdir(folder) else []
    if trees != [f"cu{major(version)}"]:
        raise IronwheelError(
            f"The wheels of CUDA {version} unpacked into {trees or 'no folder'} below nvidia/, and nvidia/cu{major(version)} was expected.",
            "UnknownWheelLayout",
            "use cuda_toolkit_source: repository or runfile for this version and report it.",
        )
    os.rename(os.path.join(folder, trees[0]), path)
    _move_metadata(site, path)
    _library_folder(path)
    _executable_bits(path)
    _write(os.path.join(path, LOCK), lock)
    _write(os.path.join(path, "version.json"), json.dumps(version_json(version, locked_versions(lock)), indent=2) + "\n")
    # Last, because its presence says that the toolkit is whole.
    _write(os.path.join(path, MARKER), json.dumps(marker(version, packages, lock), indent=2, sort_keys=True) + "\n")


def _move_metadata(site: str, path: str) -> None:
    metadata = os.path.join(path, METADATA)
    os.makedirs(metadata)
    for name in sorted(os.listdir(site)):
        if name.endswith(".dist-info"):
            os.rename(os.path.join(site, name), os.path.join(metadata, name))


def _library_folder(path: str) -> None:
    """``lib64`` with the libraries, their names without version, and ``lib`` pointing at it (the wheels' own files look there)."""
    os.rename(os.path.join(path, "lib"), os.path.join(path, "lib64"))
    os.symlink("lib64", os.path.join(path, "lib"))
    folder = os.path.join(path, "lib64")
    for name in sorted(os.listdir(folder)):
        match = _VERSIONED_LIBRARY.fullmatch(name)
        if match is not None and not os.path.lexists(os.path.join(folder, match.group(1))):
            os.symlink(name, os.path.join(folder, match.group(1)))


def _executable_bits(path: str) -> None:
    """Programs are executable even where the tool that unpacked the wheels forgot it."""
    for folder in ("bin", "nvvm/bin"):
        for name in os.listdir(os.path.join(path, folder)):
            file = os.path.join(path, folder, name)
            if os.path.isfile(file) and "." not in name and not os.access(file, os.X_OK):
                os.chmod(file, 0o755)


def swap_in(new: str, path: str, trash: str) -> None:
    """Put the folder ``new`` at ``path``; what was there goes to ``trash`` (a free name beside it) and is removed."""
    if os.path.lexists(path):
        os.rename(path, trash)
        try:
            os.rename(new, path)
        except OSError:
            os.rename(trash, path)
            raise
        shutil.rmtree(trash, ignore_errors=True)
    else:
        os.rename(new, path)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
