# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An installed extension: where it came from, whether it is still that, and whether it can work beside the torch that is there now.

Provenance is what the environment's record says of the wheel (``ironwheel.json``, ``extensions[]``: name, version, module, fingerprint, fields, sha256, torch,
record_sha256). Symbols can refute an extension and never prove it, so that both are asked.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import abi, elf_modules, environments, torch_abi
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import Installed, normalize


def find(environment: str, name: str) -> Installed | None:
    """The installed distribution of an extension, None when it is not there."""
    return next((item for item in environments.scan(environment) if item.name == normalize(name)), None)


def record_sha256(installed: Installed) -> str:
    """sha256 of a distribution's RECORD, which lists the hash of each of its files: another wheel of the same release has another one. Empty without a RECORD.

    The lines that the installer adds are left out, since each installer adds its own.
    """
    lines = []
    with contextlib.suppress(OSError, UnicodeDecodeError), open(os.path.join(installed.info, "RECORD"), encoding="utf-8") as stream:
        lines = [line.strip() for line in stream if ".dist-info/" not in line and "__pycache__" not in line]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() if lines else ""


def compiled_modules(installed: Installed) -> list[str]:
    """Paths of the shared objects of a distribution, from its RECORD."""
    site = os.path.dirname(installed.info)
    try:
        with open(os.path.join(installed.info, "RECORD"), encoding="utf-8", newline="") as stream:
            names = [row[0] for row in csv.reader(stream) if row and row[0].endswith(".so")]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    return sorted(path for path in (os.path.join(site, name) for name in names) if os.path.isfile(path))


def torch_side(identity: Mapping[str, Any]) -> abi.TorchSide:
    """torch as ``torch_probe.py`` describes it, for ``abi.judge``."""
    return abi.TorchSide(str(identity["full_version"]), identity.get("cuda"), identity.get("cuda") is None, identity.get("cxx11_abi"))


def judge_files(
    paths: list[str], site_packages: list[str], identity: Mapping[str, Any], host: Mapping[str, Any], abi_in_name: bool | None = None
) -> list[dict[str, Any]]:
    """Findings of ``abi.judge`` over compiled modules, each with its ``module``; ``ok`` ones too.

    Args:
        paths: the modules.
        site_packages: where the libraries are that torch loads.
        identity: torch's, from ``torch_probe.py``.
        host: host facts with os, gpus and driver.
        abi_in_name: what the wheel's name says of the C++ ABI.

    Raises:
        IronwheelError: pyelftools is not there, or a file is damaged.
    """
    libraries = elf_modules.LibrarySet(elf_modules.library_directories([*site_packages, os.path.dirname(identity["path"])]))
    capabilities = [gpu["compute_capability"] for gpu in host.get("gpus") or [] if gpu.get("compute_capability") and gpu.get("usable", True)]
    has_driver = (host.get("driver") or {}).get("userspace_version") is not None
    there = elf_modules.host_side(libraries, (host.get("os") or {}).get("glibc"), capabilities, has_driver)
    findings = []
    for path in paths:
        _module, found = elf_modules.judge_file(path, torch_side(identity), there, libraries, abi_in_name)
        findings += [{"module": os.path.basename(path), **finding.as_dict()} for finding in found]
    return findings


def provenance_faults(recorded: Mapping[str, Any] | None, installed: Installed, torch: str | None) -> list[str]:
    """Why an installed extension is not what the environment's record says, in words; empty when it is.

    Args:
        recorded: its entry in the record, None when there is none.
        installed: what is there.
        torch: full version of the torch that is there now, None when it does not import.
    """
    if recorded is None:
        return ["the environment does not record where it came from: somebody installed it by hand"]
    faults = []
    if recorded.get("version") != installed.version:
        faults.append(f"version {installed.version} is there, recorded is {recorded.get('version')}")
    elif recorded.get("record_sha256") and recorded["record_sha256"] != record_sha256(installed):
        faults.append("its files are not those of the recorded wheel: somebody installed another one over it")
    damaged = environments.damaged_files(installed)
    if damaged:
        faults.append(f"files are missing or of another size: {', '.join(damaged[:3])}")
    if torch is not None and recorded.get("torch") != torch:
        faults.append(f"it was built for torch {recorded.get('torch')}, the environment has {torch}")
    return faults


def plan_faults(recorded: Mapping[str, Any], planned: Mapping[str, Any] | None) -> list[str]:
    """Why the recorded wheel does not serve what is planned. What a plan cannot know (source hash, torch's commit, glibc) is taken as it is recorded."""
    fields = recorded.get("fields")
    if not isinstance(fields, Mapping) or not planned:
        return []
    unknown = {name: fields.get(name) for name in ("source_sha256", "torch_git", "glibc") if planned.get(name) is None}
    return torch_abi.serves(fields, {**planned, **unknown})


def drift(environment: str, locked: Mapping[str, str], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """How an environment differs from its lock and from the extensions that its record names, as ``environments.find_drift`` says it.

    An extension that nobody recorded is one too many; one that is not the recorded wheel any more has the kind ``replaced``.
    """
    recorded = {normalize(str(item.get("name"))): item for item in (record or {}).get("extensions") or [] if isinstance(item, Mapping)}
    found = environments.find_drift(environment, {**locked, **{name: str(item.get("version")) for name, item in recorded.items()}}, [])
    named = {item["package"] for item in found}
    for name, item in sorted(recorded.items()):
        installed = None if name in named else find(environment, name)
        faults = provenance_faults(item, installed, None) if installed else []
        if faults:
            detail = f"{name} {installed.version}: {'; '.join(faults)}"
            found.append({"package": name, "kind": "replaced", "expected": installed.version, "found": installed.version, "detail": detail})
    return found
