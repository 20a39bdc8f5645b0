# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Extensions: which wheel serves (store, prebuilt, build), and how a build would be done. Pure decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory, packages, torch_abi, versions, wheel_store, wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_notes import Notes
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import Request
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.flash_attn_releases import FLASH_ATTN_RELEASES

# No build isolation: what the builds need is part of the lock. Without ninja, torch ignores MAX_JOBS and PYTORCH_NVCC.
BUILD_REQUIREMENTS = ("ninja", "packaging", "psutil", "setuptools", "wheel")
# Extensions are installed by file and hash, so that what they need at run time must be in the lock too (their METADATA).
RUNTIME_REQUIREMENTS: dict[str, tuple[str, ...]] = {"flash-attn": ("einops",), "mamba-ssm": ("einops", "transformers")}


@dataclass(frozen=True)
class Wanted:
    """One extension that the request asks for."""

    package: packages.Package
    version: str
    sha256: str | None
    description: Mapping[str, Any] | None = None
    source_url: str | None = None


@dataclass(frozen=True)
class Target:
    """What the extensions of a host are for. ``torch`` is the full version, ``cuda`` torch's, ``capabilities`` those of the GPUs to serve."""

    torch: str
    cuda: str
    cxx11_abi: bool
    python: str
    machine: str
    glibc: str | None
    capabilities: tuple[str, ...]


def wanted_extensions(request: Request, notes: Notes) -> list[Wanted]:
    """The extensions of the request; those nobody described are errors."""
    asked: list[dict[str, Any]] = []
    if request["flash_attn_enabled"]:
        item = {"name": "flash-attn", "version": request["flash_attn_version"]}
        if request["flash_attn_source"]:
            item.update(source_url=request["flash_attn_source"], sha256=request["flash_attn_source_sha256"] or None)
        asked.append(item)
    asked += request["flash_attn_extensions"]
    wanted: dict[str, Wanted] = {}
    for item in asked:
        description = {key: value for key, value in item.items() if key not in ("version", "sha256", "source_url")}
        try:
            package = packages.from_user(description) if len(description) > 1 else packages.describe(str(item["name"]))
        except IronwheelError as error:
            notes.fail(error)
            continue
        version = str(item["version"])
        if package.name in wanted and wanted[package.name].version != version:
            notes.error("InvalidValue", f"{package.name} is asked for in {wanted[package.name].version} and in {version}.", "Name it once.")
            continue
        # The sources of known releases have known hashes; somebody's own source has not.
        known = FLASH_ATTN_RELEASES.get(version, {}) if package.name == "flash-attn" and not item.get("source_url") else {}
        own = description if len(description) > 1 else None
        wanted[package.name] = Wanted(package, version, item.get("sha256") or known.get("sha256"), own, item.get("source_url"))
    return list(wanted.values())


def build_capabilities(request: Request, gpu_capabilities: Sequence[str], notes: Notes) -> list[str]:
    """Compute capabilities that extensions are built for: those of the request, otherwise the host's own GPUs'."""
    asked = request["flash_attn_architectures"]
    for capability in gpu_capabilities if asked else ():
        if cuda_rules.code_for(asked, capability) is None:
            notes.error(
                "ArchNotInBinary",
                f"flash_attn_architectures is {', '.join(asked)}, whose code does not run on the host's GPU of compute capability {capability}.",
                f"Add {capability} to flash_attn_architectures, or leave it empty.",
            )
    return sorted(set(asked or gpu_capabilities), key=cuda_rules.capability_key)


def supported(wanted: Sequence[Wanted], capabilities: Sequence[str], notes: Notes) -> list[Wanted]:
    """The extensions that have code for every GPU; the others are errors, because building cannot help."""
    if wanted and not capabilities:
        notes.error(
            "ArchitecturesUnknown",
            f"{wanted[0].package.name} is asked for, but the host has no GPU whose compute capability is known, and flash_attn_architectures is empty.",
            'Name the compute capabilities in flash_attn_architectures, such as ["9.0"].',
        )
        return []
    kept = []
    for item in wanted:
        try:
            item.package.compiled(capabilities, item.version)
        except IronwheelError as error:
            notes.reject(item.package.name, item.version, error.message, error.error)
            notes.fail(error)
        else:
            kept.append(item)
    return kept


def choose_source(item: Wanted, target: Target, request: Request, store: Sequence[Mapping[str, Any]], notes: Notes) -> dict[str, Any]:
    """Where one extension's wheel comes from: the store, a listed prebuilt one, or a build."""
    package = item.package
    subject = f"{package.name} {item.version}"
    architectures = package.compiled(target.capabilities, item.version)
    fixes = package.fixes_for(item.version, target.torch)
    fields = torch_abi.fingerprint_fields(
        package=package.name,
        version=item.version,
        source_sha256=item.sha256,
        fixes=[fix.name for fix in fixes],
        torch=target.torch,
        torch_git=None,
        cuda=target.cuda,
        abi=target.cxx11_abi,
        python=target.python,
        machine=target.machine,
        glibc=target.glibc,
        architectures=architectures,
    )
    wheel = _from_store(subject, fields, store, notes) or _from_prebuilt(subject, item, target, request, notes)
    _explain_publisher(subject, item, target, notes)
    for fix in fixes:
        notes.accept(f"{subject} fix", fix.name, fix.reason)
    return {
        "name": package.name,
        "version": item.version,
        "module": package.module,
        "description": dict(item.description) if item.description else None,
        "source_url": item.source_url,
        "sha256": item.sha256,
        "source": wheel.pop("source") if wheel else "build",
        "fingerprint": torch_abi.fingerprint(fields),
        "fingerprint_fields": fields,
        "architectures": architectures,
        "jobs": None,
        "nvcc_threads": None,
        "predicted_peak_mib": None,
        "predicted_s": None,
        "limited_by": None,
        "explanation": [],
        "gate": None,
        "fixes": [fix.as_dict() for fix in fixes],
        "env": {},
        "wheel": wheel,
    }


def plan_build(
    item: Wanted,
    extension: dict[str, Any],
    target: Target,
    toolkit: Mapping[str, Any] | None,
    compiler: Mapping[str, str] | None,
    host: Mapping[str, Any],
    request: Request,
    history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    notes: Notes,
) -> None:
    """Fill in how one extension would be built. A wheel that is there needs no memory for a build, but the numbers are said where they can be."""
    package = item.package
    subject = f"{package.name} {item.version}"
    building = extension["source"] == "build"
    fixed = None if package.thread_variable else package.fixed_threads
    rows = _rows(history, package.name)
    try:
        choice = build_memory.choose_jobs(
            memory_class=package.memory_class,
            units=package.units(item.version),
            architectures=len(package.planned_architectures(target.capabilities, item.version)),
            usable_mib=host["memory"]["usable_mib"],
            usable_cores=host["cpu"]["usable"],
            nvcc_threads=request["flash_attn_nvcc_threads"] or None,
            hard_coded_threads=fixed,
            max_jobs=request["flash_attn_jobs"] or None,
            history=rows,
        )
    except IronwheelError as error:
        if building:
            notes.reject(subject, "build", error.message, error.error)
            notes.fail(error)
        return
    gate = _gated(item, target, host, request, rows)
    explanation = [choice.explanation]
    if gate:
        explanation.append(
            f"Through the gate {gate['most_running']} units at once at most, {gate['predicted_peak_mib']} MiB at the peak, about {gate['predicted_s']} s."
        )
    extension.update(
        jobs=choice.jobs,
        nvcc_threads=choice.nvcc_threads,
        predicted_peak_mib=choice.predicted_peak_mib,
        predicted_s=choice.predicted_s,
        limited_by=choice.limited_by,
        explanation=explanation,
        gate=gate,
        env=_environment(item, target, toolkit, compiler, choice),
    )
    if not building:
        notes.reject(subject, "build", "a wheel that serves is there")
        return
    reason = f"no wheel in the store or among the listed ones serves torch {target.torch}"
    if package.force_build:
        reason += f"; {', '.join(f'{name}={value}' for name, value in package.force_build.items())} keeps setup.py from downloading one"
    notes.accept(subject, "build", reason)


def _gated(item: Wanted, target: Target, host: Mapping[str, Any], request: Request, rows: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """What the same build takes through the gate (``flash_attn_gate``), which drops the architectures that nobody asked for; None without a number of units."""
    package, units = item.package, item.package.units(item.version)
    if units is None:
        return None
    usable, cores = host["memory"]["usable_mib"], host["cpu"]["usable"]
    architectures = len(package.planned_architectures(target.capabilities, item.version, gated=True))
    choice = build_memory.choose_jobs(
        memory_class=package.memory_class,
        units=units,
        architectures=architectures,
        usable_mib=usable,
        usable_cores=cores,
        nvcc_threads=request["flash_attn_nvcc_threads"] or None,
        history=rows,
    )
    prediction = build_memory.predict_gate(
        memory_class=package.memory_class,
        units=units,
        architectures=architectures,
        budget_mib=usable - choice.reserve_mib,
        cores=cores,
        nvcc_threads=choice.nvcc_threads,
        history=rows,
    )
    return prediction.as_dict()


def _environment(
    item: Wanted, target: Target, toolkit: Mapping[str, Any] | None, compiler: Mapping[str, str] | None, choice: build_memory.JobChoice
) -> dict[str, str]:
    """Environment of the build. Nothing of it is ever set for the host as a whole."""
    package = item.package
    env = {**package.force_build, **package.arch_env(target.capabilities, item.version), **package.jobs_env(choice.jobs, choice.nvcc_threads)}
    # Read by torch itself where the package adds no -gencode of its own; harmless elsewhere.
    env.setdefault("TORCH_CUDA_ARCH_LIST", ";".join(package.compiled(target.capabilities, item.version)))
    if toolkit and toolkit.get("path"):
        env["CUDA_HOME"] = toolkit["path"]
    if compiler and compiler["path"] != "g++":
        env["CXX"] = compiler["path"]
        env["CC"] = _c_compiler(compiler["path"])
    return env


def _from_store(subject: str, fields: Mapping[str, Any], store: Sequence[Mapping[str, Any]], notes: Notes) -> dict[str, Any] | None:
    for judged in wheel_store.candidates(list(store), fields):
        entry = judged["entry"]
        name = f"store: {entry['wheel']} ({entry['fingerprint']})"
        if judged["verdict"] == "accepted":
            notes.accept(subject, name, "built for exactly this torch, CUDA, ABI, Python and these architectures")
            return {"source": "store", "file": entry["wheel"], "sha256": entry["sha256"], "fingerprint": entry["fingerprint"]}
        notes.reject(subject, name, "; ".join(judged["reasons"]), "FingerprintMismatch")
    return None


def _from_prebuilt(subject: str, item: Wanted, target: Target, request: Request, notes: Notes) -> dict[str, Any] | None:
    wanted = wheels.Target(item.package.name, item.version, target.torch, target.cuda, target.cxx11_abi, target.python, target.machine, target.glibc)
    for entry in request["flash_attn_prebuilt"]:
        place = str(entry.get("name") or entry.get("url") or entry.get("path"))
        try:
            wheel = wheels.parse(place)
        except IronwheelError as error:
            notes.fail(IronwheelError(f"flash_attn_prebuilt: {error.message}", error.error, error.remedy))
            continue
        if wheel.name != item.package.name:
            continue
        reasons = wheels.judge(wheel, wanted)
        if reasons:
            notes.reject(subject, f"prebuilt: {wheel.filename}", "; ".join(reasons), "WheelMismatch")
            continue
        notes.accept(subject, f"prebuilt: {wheel.filename}", "its name fits; its hash and symbols are checked before it is used")
        return {"source": "prebuilt", "file": wheel.filename, "url": entry.get("url"), "path": entry.get("path"), "sha256": entry["sha256"]}
    return None


def _explain_publisher(subject: str, item: Wanted, target: Target, notes: Notes) -> None:
    """Say why the publisher's own wheels are not taken: mostly there is none for this torch."""
    known = FLASH_ATTN_RELEASES.get(item.version) if item.package.name == "flash-attn" else None
    if known is None:
        return
    torch, candidate = versions.minor(target.torch), "publisher's wheel"
    if torch not in known["wheel_torch"] or versions.major(target.cuda) != 12:
        last = f"the last is for torch {known['wheel_torch'][-1]} with CUDA 12" if known["wheel_torch"] else "there are none at all"
        notes.reject(
            subject, candidate, f"the makers published none of {item.version} for torch {torch} with CUDA {versions.major(target.cuda)}; {last}", "NoWheel"
        )
    else:
        notes.reject(subject, candidate, "not listed in flash_attn_prebuilt with its sha256", "NotListed")


def _rows(history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, name: str) -> list[Mapping[str, Any]] | None:
    """Cost rows of one package: ``history`` is ``{package: rows}``, or the rows of one package."""
    rows = history.get(name) if isinstance(history, Mapping) else history
    return list(rows) if rows else None


def _c_compiler(cxx: str) -> str:
    """The C compiler beside a C++ one: /usr/bin/gcc-13 for /usr/bin/g++-13."""
    head, _sep, name = cxx.rpartition("/")
    return f"{head}/{name.replace('g++', 'gcc')}" if head else name.replace("g++", "gcc")
