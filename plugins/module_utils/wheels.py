# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wheel names: what each naming scheme says about torch, CUDA, ABI, Python and platform, and whether such a wheel can serve a host.

A name can rule a wheel out, it proves nothing: some names lie about the C++ ABI, so that the symbols are judged after the download.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_abi, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.packages import normalize

_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)-(?P<version>[A-Za-z0-9_.!+]+)(?:-(?P<build>\d[A-Za-z0-9_.]*))?"
    r"-(?P<python>[A-Za-z0-9_.]+)-(?P<abi>[A-Za-z0-9_.]+)-(?P<platform>[A-Za-z0-9_.]+)\.whl"
)
# The schemes of local versions that say what an extension was built for.
_SCHEMES = (
    # flash-attn, causal-conv1d, mamba-ssm: cu12torch2.8cxx11abiTRUE, and cu122torch2.3cxx11abiFALSE before 2.7.0
    ("publisher", re.compile(r"cu(?P<cuda>\d{2,3})torch(?P<torch>\d+\.\d+)cxx11abi(?P<abi>TRUE|FALSE)", re.IGNORECASE)),
    # third-party build services: cu128torch2.9
    ("community", re.compile(r"cu(?P<cuda>\d{2,3})torch(?P<torch>\d+\.\d+)", re.IGNORECASE)),
    # GPU indexes: cu.13.0.torch.2.12
    ("index", re.compile(r"cu\.(?P<major>\d+)\.(?P<minor>\d+)\.torch\.(?P<torch>\d+\.\d+)", re.IGNORECASE)),
    # torch itself and its family: cu128, cpu
    ("variant", re.compile(r"(?:cu(?P<cuda>\d{3})|cpu)")),
)
_LEGACY_GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}


@dataclass(frozen=True)
class Wheel:
    """What a file name says. ``torch`` is major.minor, ``cuda`` a major (``12``) or major.minor (``12.8``); None where the name does not say."""

    filename: str
    name: str
    version: str
    local: str | None
    scheme: str | None
    torch: str | None
    cuda: str | None
    cxx11_abi: bool | None
    python_tags: tuple[str, ...]
    abi_tags: tuple[str, ...]
    platform_tags: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """What a wheel must serve. ``torch`` is the full version with local part, ``cuda`` major.minor, ``python`` major.minor."""

    name: str
    version: str
    torch: str
    cuda: str
    cxx11_abi: bool
    python: str
    machine: str
    glibc: str | None


def parse(filename: str) -> Wheel:
    """Read a wheel's file name; a path or URL is cut to its last part.

    Raises:
        IronwheelError: it is not the name of a wheel.
    """
    base = _base_name(str(filename))
    match = _WHEEL.fullmatch(base)
    if match is None:
        raise IronwheelError(
            f"'{base[:160]}' is not the name of a wheel.",
            "InvalidWheelName",
            "A wheel is named name-version-python-abi-platform.whl.",
        )
    version, plus, local = match.group("version").partition("+")
    scheme = torch = cuda = abi = None
    for label, pattern in _SCHEMES:
        said = pattern.fullmatch(local) if plus else None
        if said is None:
            continue
        groups = said.groupdict()
        scheme, torch = label, groups.get("torch")
        cuda = f"{groups['major']}.{groups['minor']}" if groups.get("major") else _cuda_of_digits(groups.get("cuda"))
        abi = None if groups.get("abi") is None else groups["abi"].upper() == "TRUE"
        break
    return Wheel(
        filename=base,
        name=normalize(match.group("name")),
        version=version.replace("_", "-"),
        local=local or None,
        scheme=scheme,
        torch=torch,
        cuda=cuda,
        cxx11_abi=abi,
        python_tags=tuple(match.group("python").split(".")),
        abi_tags=tuple(match.group("abi").split(".")),
        platform_tags=tuple(match.group("platform").split(".")),
    )


def judge(wheel: Wheel, target: Target) -> list[str]:
    """Why a wheel cannot serve the target, by its name; empty when nothing in the name speaks against it.

    A wheel of a CUDA extension must say which torch it was built for: without that, it is rejected.
    """
    reasons = []
    if wheel.name != normalize(target.name):
        reasons.append(f"it is {wheel.name}, wanted {normalize(target.name)}")
    if wheel.version != target.version:
        reasons.append(f"release {wheel.version}, wanted {target.version}")
    torch = torch_abi.parse(target.torch)
    if torch.vendor:
        reasons.append(f"torch {target.torch} is no public release, so that no public wheel was built for it")
    elif wheel.torch is None:
        reasons.append("its name does not say which torch it was built for")
    elif not versions.same_minor(wheel.torch, torch.release):
        reasons.append(f"built for torch {wheel.torch}, the environment has {target.torch}")
    if wheel.cuda is None:
        if wheel.torch is not None:
            reasons.append("its name does not say which CUDA it was built for")
    elif versions.major(wheel.cuda) != versions.major(target.cuda):
        reasons.append(f"built for CUDA {wheel.cuda}, torch is built for {target.cuda}")
    if wheel.cxx11_abi is not None and wheel.cxx11_abi != target.cxx11_abi:
        reasons.append(f"C++ ABI {_abi_name(wheel.cxx11_abi)}, torch uses the {_abi_name(target.cxx11_abi)} one")
    if not _python_fits(wheel, target.python):
        reasons.append(f"for Python {'.'.join(wheel.python_tags)}-{'.'.join(wheel.abi_tags)}, the environment has {target.python}")
    reasons += _platform_faults(wheel, target)
    return reasons


def _base_name(text: str) -> str:
    if "://" in text:
        try:
            text = urlsplit(text).path
        except ValueError:
            text = text.split("://", 1)[1]
    return unquote(text).rsplit("/", 1)[-1]


def _cuda_of_digits(digits: str | None) -> str | None:
    """``12`` for cu12, ``12.8`` for cu128."""
    if digits is None:
        return None
    return digits if len(digits) == 2 else f"{digits[:2]}.{digits[2:]}"


def _abi_name(new: bool) -> str:
    return "new" if new else "old"


def _python_fits(wheel: Wheel, python: str) -> bool:
    wanted = versions.minor(python).split(".")
    digits = "".join(wanted)
    for tag in wheel.python_tags:
        if tag in (f"py{wanted[0]}", f"py{digits}") and "none" in wheel.abi_tags:
            return True
        match = re.fullmatch(r"cp3(\d{1,3})", tag)
        if match is None:
            continue
        if f"cp3{match.group(1)}" in wheel.abi_tags and tag == f"cp{digits}":
            return True
        if "abi3" in wheel.abi_tags and int(match.group(1)) <= int(wanted[1]):
            return True
    return False


def _platform_faults(wheel: Wheel, target: Target) -> list[str]:
    """A platform tag that fits is enough; otherwise the reason of the nearest one."""
    reasons = []
    for tag in wheel.platform_tags:
        if tag == "any":
            return []
        if not tag.endswith(f"_{target.machine}"):
            reasons.append(f"for platform {tag}, the host is {target.machine}")
            continue
        prefix = tag[: -len(target.machine) - 1]
        if prefix == "linux":
            return []
        match = re.fullmatch(r"manylinux_(\d{1,3})_(\d{1,3})", prefix)
        floor = f"{match.group(1)}.{match.group(2)}" if match else _LEGACY_GLIBC.get(prefix)
        if floor is None:
            reasons.append(f"for platform {tag}, the host runs Linux with glibc")
        elif target.glibc is None or not versions.at_least(target.glibc, floor):
            reasons.append(f"needs glibc {floor}, the host has {target.glibc or 'another C library'}")
        else:
            return []
    return reasons[:1]
