# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""torch version strings, the C++ ABI of its builds, and the ABI fingerprint of an extension built against one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils import versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

_VERSION = re.compile(r"(?P<release>\d+\.\d+(?:\.\d+)*)(?P<pre>(?:a|b|rc)\d+|\.dev\d+)?(?:\.post\d+)?(?:\+(?P<local>[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*))?")
_GIT_HASH = re.compile(r"git[0-9a-f]{7,40}|[0-9a-f]{7,40}")

# What an extension depends on. The fingerprint is the hash over these fields and over nothing else.
FINGERPRINT_FIELDS = (
    "package",
    "version",
    "source_sha256",
    "fixes",
    "torch",
    "torch_git",
    "cuda",
    "cxx11_abi",
    "python",
    "machine",
    "glibc",
    "architectures",
)


@dataclass(frozen=True)
class TorchVersion:
    """A torch version string, taken apart.

    ``local`` is the part after +. ``cuda`` is the CUDA release that a variant such as cu130 names, None for a CPU build and for a local part that does not say.
    ``vendor`` is True for builds that no public wheel was made for: pre-releases, nightlies, builds from source, vendor images.
    """

    text: str
    release: str
    local: str | None
    cuda: str | None
    vendor: bool


@dataclass(frozen=True)
class Variant:
    """One build of a torch release: ``local`` is its variant, ``source`` where it comes from (``pypi`` or ``index``)."""

    version: str
    local: str
    source: str

    @property
    def full(self) -> str:
        """``2.9.1+cu128``."""
        return f"{self.version}+{self.local}"


def parse(text: str) -> TorchVersion:
    """Take apart a torch version such as ``2.9.1+cu128``, ``2.13.0+cpu`` or ``2.5.0a0+872d972e41.nv24.08``.

    Raises:
        IronwheelError: it is not a version.
    """
    match = _VERSION.fullmatch(str(text).strip())
    if match is None:
        raise IronwheelError(f"'{text}' is not a torch version.", "InvalidVersion", "It must look like 2.9.1+cu128.")
    local = match.group("local")
    public = local is None or local == "cpu" or re.fullmatch(r"cu\d{3}", local) is not None
    cuda = cuda_rules.variant_cuda(local) if local and public else None
    return TorchVersion(str(text).strip(), match.group("release"), local, cuda, bool(match.group("pre")) or not public)


def cxx11_abi(version: str, variant: str | None) -> bool:
    """Whether a public build of torch uses the new C++ ABI: from 2.7 on, and the cu126 build of 2.6.

    Before, the builds for x86_64 used the old one. Seen in the symbols of extensions built for them.
    """
    return versions.at_least(version, "2.7") or (versions.same_minor(version, "2.6") and variant == "cu126")


def fingerprint_fields(
    package: str,
    version: str,
    source_sha256: str | None,
    fixes: Iterable[str],
    torch: str,
    torch_git: str | None,
    cuda: str | None,
    abi: bool,
    python: str,
    machine: str,
    glibc: str | None,
    architectures: Iterable[str],
) -> dict[str, Any]:
    """The fields of a fingerprint in their one comparable form: names sorted, versions cut to what matters.

    ``torch`` is the full version with its local part; ``torch_git`` only counts for builds that are no release. ``cuda`` and ``python`` are cut to major.minor.
    """
    return {
        "package": package,
        "version": version,
        "source_sha256": source_sha256,
        "fixes": sorted(set(fixes)),
        "torch": torch,
        "torch_git": torch_git if parse(torch).vendor else None,
        "cuda": versions.minor(cuda) if cuda else None,
        "cxx11_abi": bool(abi),
        "python": versions.minor(python),
        "machine": machine,
        "glibc": versions.minor(glibc) if glibc else None,
        "architectures": sorted(set(architectures), key=_architecture_key),
    }


def fingerprint(fields: Mapping[str, Any]) -> str:
    """32 hexadecimal digits over exactly ``FINGERPRINT_FIELDS``.

    Raises:
        IronwheelError: a field is missing.
    """
    missing = [name for name in FINGERPRINT_FIELDS if name not in fields]
    if missing:
        raise IronwheelError(f"fingerprint fields lack {', '.join(missing)}.", "InvalidFingerprint")
    text = json.dumps({name: fields[name] for name in FINGERPRINT_FIELDS}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def serves(wheel: Mapping[str, Any], host: Mapping[str, Any]) -> list[str]:
    """Why a wheel built under one fingerprint does not serve a host that wants another; empty when it does.

    Everything must be equal, but the wheel may have more architectures and must not have been built with a newer glibc.
    """
    reasons = []
    labels = {
        "package": "package",
        "version": "release",
        "source_sha256": "source",
        "fixes": "fixes",
        "torch": "torch",
        "torch_git": "torch commit",
        "cuda": "CUDA",
        "cxx11_abi": "C++ ABI",
        "python": "Python",
        "machine": "machine",
    }
    for name, label in labels.items():
        if wheel.get(name) != host.get(name):
            reasons.append(f"{label} is {_show(wheel.get(name))}, wanted {_show(host.get(name))}")
    lacking = [item for item in host.get("architectures") or [] if item not in (wheel.get("architectures") or [])]
    if lacking:
        reasons.append(f"no code for architecture {', '.join(lacking)}")
    built_with, there = wheel.get("glibc"), host.get("glibc")
    if not built_with or not there:
        if built_with != there:
            reasons.append("the glibc it was built with, or the host's, is not known")
    elif versions.compare(built_with, there) > 0:
        reasons.append(f"built with glibc {built_with}, the host has {there}")
    return reasons


def check_identity(planned: Mapping[str, Any], version: str, cuda: str | None) -> None:
    """Hold an installed torch (its ``__version__`` and ``torch.version.cuda``) against the plan's.

    Requirement strings prove nothing: an index that drops the local part hands out its default build.

    Raises:
        IronwheelError: another release, another variant, or a CPU build where CUDA was planned.
    """
    found = parse(version)
    wanted_cuda = cuda_rules.variant_cuda(planned["local"])
    wanted = f"{planned['version']}+{planned['local']}"
    if wanted_cuda is not None and cuda is None:
        raise IronwheelError(
            f"The environment has torch {version}, a build without CUDA; planned was {wanted}.",
            "TorchWithoutCuda",
            "Take torch from an index that has the CUDA build (torch_index_url); PyPI has only a CPU build of it for some platforms.",
        )
    if versions.compare(found.release, planned["version"]) != 0:
        raise IronwheelError(
            f"The environment has torch {version}; planned was {wanted}.", "TorchVersionMismatch", "Install the environment from its lock again."
        )
    same = cuda is None if wanted_cuda is None else versions.same_minor(cuda, wanted_cuda)
    if not same:
        got = f"cu{versions.minor(cuda).replace('.', '')}" if cuda else "cpu"
        raise IronwheelError(
            f"The environment has torch {version} built for {got}; planned was {planned['local']}.",
            "TorchVariantMismatch",
            "An index gave its default build: check uv_venv_index_url, uv_venv_extra_index_urls and torch_index_url.",
        )


def _architecture_key(name: str) -> tuple[tuple[int, int], str]:
    return cuda_rules.capability_key(name.rstrip("af")), name


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "none"
    return "unknown" if value is None else str(value)
