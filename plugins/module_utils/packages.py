# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What has to be known about an extension to build it: one small description a package.

A description says which environment variable names the GPU architectures and in which form, which one forces a build, which one sets nvcc's threads,
whether ``MAX_JOBS`` counts compiler processes or threads, what a unit costs (its memory class) and which known faults of its source are mended.

Sources: setup.py of each package as published; flash-attn's variables by release in its setup.py history (``FLASH_ATTN_CUDA_ARCHS`` since 2.7.3,
``NVCC_THREADS`` since 2.5.7); vLLM's setup.py (``num_jobs = MAX_JOBS // NVCC_THREADS``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)([af]?)")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")


def normalize(name: str) -> str:
    """The canonical form of a distribution's name: lower case, runs of ``-_.`` as one dash."""
    return re.sub(r"[-_.]+", "-", str(name)).strip().lower()


def split_capability(capability: str) -> tuple[int, int, str]:
    """``(major, minor, suffix)`` of a compute capability: (12, 0, "") for "12.0", (9, 0, "a") for "9.0a".

    Raises:
        IronwheelError: not a compute capability.
    """
    match = _CAPABILITY.fullmatch(str(capability).strip())
    if match is None:
        raise IronwheelError(
            f"architecture '{capability}' is not a compute capability: it must look like 9.0 or 12.0.",
            "InvalidArchitecture",
            "Give compute capabilities with their dot, as nvidia-smi --query-gpu=compute_cap prints them.",
        )
    return int(match.group(1)), int(match.group(2)), match.group(3)


@dataclass(frozen=True)
class Fix:
    """A known fault of a package's source, mended in the unpacked copy.

    ``replace`` holds (old, new) pairs of literal text; ``file`` is relative to the source. The fix is wanted when the package is not newer than ``until``
    (None: any) and torch is not older than ``torch_from`` (None: any).
    """

    name: str
    reason: str
    condition: str
    file: str
    replace: tuple[tuple[str, str], ...]
    until: str | None = None
    torch_from: str | None = None

    def wanted(self, version: str, torch_version: str) -> bool:
        """True when this release beside this torch has the fault."""
        if self.until is not None and versions.compare(version, self.until) > 0:
            return False
        return self.torch_from is None or versions.at_least(torch_version, self.torch_from)

    def apply(self, text: str) -> str:
        """The mended text of ``file``. A text that is mended already comes back as it is.

        Raises:
            IronwheelError: a piece that should be replaced is not in the text: the source is not the one that the fix describes.
        """
        for old, new in self.replace:
            if old in text:
                text = text.replace(old, new)
            elif new not in text:
                raise IronwheelError(
                    f"fix '{self.name}' does not apply: '{old}' is not in {self.file}.",
                    "FixDoesNotApply",
                    "The source differs from the releases that the fix was made for: choose another release or exclude the fix.",
                )
        return text

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form for a plan or a report."""
        return {
            "name": self.name,
            "reason": self.reason,
            "condition": self.condition,
            "file": self.file,
            "replace": [list(pair) for pair in self.replace],
        }


@dataclass(frozen=True)
class Package:
    """How one extension is built.

    Attributes:
        name: canonical distribution name.
        module: what to import to prove that the compiled part loads.
        arch_variable: environment variable that the package reads for its architectures; None when it hard-codes them.
        arch_format: ``dotted`` (12.0) or ``number`` (120); architectures are joined with semicolons.
        arch_map: capability to the capability whose code serves it (flash-attn: 8.6 to 8.0); where it is not empty, a capability outside is unsupported.
        arch_since: first release that reads ``arch_variable``.
        hard_coded: capabilities that are compiled when nothing narrows them (no variable, no gate).
        force_build: environment that keeps setup.py from downloading a wheel.
        thread_variable: environment variable for nvcc's threads; None when hard-coded or unknown.
        fixed_threads: nvcc threads that the package hard-codes.
        max_jobs: ``multiplies`` when MAX_JOBS counts compiler processes (each with NVCC_THREADS), ``divides`` when it counts threads.
        memory_class: key of ``build_costs.CLASSES``.
        unit_counts: (from release, CUDA units), newest first; a release older than all of them is not known.
        min_capability: oldest capability that the package has code for; None for any.
    """

    name: str
    module: str
    arch_variable: str | None = "TORCH_CUDA_ARCH_LIST"
    arch_format: str = "dotted"
    arch_map: Mapping[str, str] = field(default_factory=dict)
    arch_map_from: Mapping[str, str] = field(default_factory=dict)
    arch_since: str | None = None
    hard_coded: tuple[str, ...] = ()
    force_build: Mapping[str, str] = field(default_factory=dict)
    thread_variable: str | None = None
    fixed_threads: int = 1
    max_jobs: str = "multiplies"
    memory_class: str = "generic"
    unit_counts: tuple[tuple[str, int], ...] = ()
    min_capability: str | None = None
    fixes: tuple[Fix, ...] = ()

    def serving(self, capability: str, version: str | None = None) -> str | None:
        """The capability whose code serves a GPU of ``capability``, or None when the package does not support it."""
        major, minor, suffix = split_capability(capability)
        plain = f"{major}.{minor}"
        if self.arch_map:
            served = self.arch_map.get(plain)
            since = self.arch_map_from.get(plain)
            if served is not None and since is not None and (version is None or not versions.at_least(version, since)):
                return None
            return served
        if self.min_capability is not None and (major, minor) < split_capability(self.min_capability)[:2]:
            return None
        return plain + suffix

    def supports(self, capability: str, version: str | None = None) -> bool:
        """True when a build of the package can serve a GPU of this compute capability."""
        return self.serving(capability, version) is not None

    def compiled(self, capabilities: Iterable[str], version: str | None = None) -> list[str]:
        """The capabilities that are compiled for these GPUs, sorted, each once.

        Raises:
            IronwheelError: no GPU given, or one that the package does not support.
        """
        wanted = [str(item) for item in capabilities]
        if not wanted:
            raise IronwheelError(
                f"architectures of {self.name} are empty: at least one compute capability is needed.",
                "InvalidArchitecture",
                "Name the architectures, or run on a host whose GPUs are visible.",
            )
        served = {}
        for capability in wanted:
            target = self.serving(capability, version)
            if target is None:
                known = ", ".join(self.arch_map) if self.arch_map else f"{self.min_capability} and newer"
                raise IronwheelError(
                    f"architecture {capability}: {self.name}{' ' + version if version else ''} has no code for it "
                    f"(it supports {known}), and building cannot help.",
                    "UnsupportedGpu",
                    f"Leave {self.name} out on this host, or use a release that supports the GPU.",
                )
            served[split_capability(target)] = target
        return [served[key] for key in sorted(served)]

    def arch_value(self, capabilities: Iterable[str], version: str | None = None) -> str:
        """The value of ``arch_variable``, such as ``80;120``; for a package without one, what the gate keeps."""
        names = self.compiled(capabilities, version)
        if self.arch_format == "number":
            names = [name.replace(".", "") for name in names]
        return ";".join(names)

    def arch_env(self, capabilities: Iterable[str], version: str | None = None) -> dict[str, str]:
        """Environment that narrows the architectures; empty when the package (or this release of it) hard-codes them."""
        value = self.arch_value(capabilities, version)
        if self.arch_variable is None:
            return {}
        if self.arch_since is not None and version is not None and not versions.at_least(version, self.arch_since):
            return {}
        return {self.arch_variable: value}

    def planned_architectures(self, capabilities: Sequence[str], version: str | None = None, gated: bool = False) -> list[str]:
        """The capabilities that memory and time must be planned for: what is really compiled.

        Without a variable and without the gate (which drops the pairs nobody asked for) a package compiles its hard-coded list, whatever was asked.
        """
        if gated or self.arch_env(capabilities, version) or not self.hard_coded:
            return self.compiled(capabilities, version)
        return list(self.hard_coded)

    def jobs_env(self, jobs: int, nvcc_threads: int = 1) -> dict[str, str]:
        """Environment for that many compiler processes at once with that many nvcc threads each."""
        env = {"MAX_JOBS": str(jobs * nvcc_threads if self.max_jobs == "divides" else jobs)}
        if self.thread_variable is not None:
            env[self.thread_variable] = str(nvcc_threads)
        return env

    def units(self, version: str | None = None) -> int | None:
        """Number of CUDA units of a release; None when it is not known (ninja says it when the build starts)."""
        if not self.unit_counts:
            return None
        if version is None:
            return self.unit_counts[0][1]
        for since, count in self.unit_counts:
            if versions.at_least(version, since):
                return count
        return None

    def fixes_for(self, version: str, torch_version: str) -> list[Fix]:
        """The known fixes that this release needs beside this torch."""
        return [fix for fix in self.fixes if fix.wanted(version, torch_version)]


_AMPERE = {"8.0": "8.0", "8.6": "8.0", "8.7": "8.0", "8.9": "8.0"}

_CXX20 = Fix(
    name="cxx20",
    reason="The headers of torch 2.14 and newer refuse C++17, and setup.py of flash-attn up to 2.8.3.post2 hard-codes -std=c++17 for g++ and nvcc.",
    condition="torch >= 2.14 and flash-attn <= 2.8.3.post2",
    file="setup.py",
    replace=(("-std=c++17", "-std=c++20"),),
    until="2.8.3.post2",
    torch_from="2.14",
)

_KNOWN = (
    Package(
        name="flash-attn",
        module="flash_attn_2_cuda",
        arch_variable="FLASH_ATTN_CUDA_ARCHS",
        arch_format="number",
        arch_map={**_AMPERE, "9.0": "9.0", "10.0": "10.0", "10.3": "10.0", "11.0": "11.0", "12.0": "12.0", "12.1": "12.0"},
        arch_map_from={"11.0": "2.8.4"},
        arch_since="2.7.3",
        hard_coded=("8.0", "9.0", "10.0", "12.0"),
        force_build={"FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
        thread_variable="NVCC_THREADS",
        memory_class="flash-attn-2",
        unit_counts=(("2.7.0", 72),),
        fixes=(_CXX20,),
    ),
    Package(
        name="flash-attn-3",
        module="flash_attn_3",
        arch_variable=None,
        arch_map={**_AMPERE, "9.0": "9.0"},
        hard_coded=("8.0", "9.0"),
        force_build={"FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
        thread_variable="NVCC_THREADS",
        memory_class="flash-attn-3",
    ),
    Package(
        name="causal-conv1d",
        module="causal_conv1d_cuda",
        arch_variable=None,
        hard_coded=("7.5", "8.0", "8.7", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"),
        force_build={"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"},
        fixed_threads=4,
        memory_class="causal-conv1d",
        unit_counts=(("1.0.0", 3),),
        min_capability="7.5",
    ),
    Package(
        name="mamba-ssm",
        module="selective_scan_cuda",
        arch_variable=None,
        hard_coded=("7.5", "8.0", "8.7", "9.0", "10.0", "12.0"),
        force_build={"MAMBA_FORCE_BUILD": "TRUE"},
        fixed_threads=4,
        memory_class="mamba-ssm",
        unit_counts=(("1.1.0", 9),),
        min_capability="7.0",
    ),
    Package(
        name="xformers",
        module="xformers._C",
        force_build={"FORCE_CUDA": "1"},
        thread_variable="NVCC_THREADS",
        memory_class="xformers",
        min_capability="7.0",
    ),
    Package(
        name="vllm",
        module="vllm._C",
        thread_variable="NVCC_THREADS",
        max_jobs="divides",
        memory_class="vllm",
        min_capability="7.0",
    ),
    Package(
        name="transformer-engine",
        module="transformer_engine_torch",
        arch_variable="NVTE_CUDA_ARCHS",
        arch_format="number",
        force_build={"NVTE_FRAMEWORK": "pytorch"},
        thread_variable="NVTE_BUILD_THREADS_PER_JOB",
        memory_class="transformer-engine",
        min_capability="7.5",
    ),
    Package(name="apex", module="amp_C", thread_variable="NVCC_THREADS", memory_class="apex", min_capability="7.0"),
)

PACKAGES: dict[str, Package] = {package.name: package for package in _KNOWN}

_ALIASES = {"transformer-engine-torch": "transformer-engine", "flash-attention": "flash-attn", "flash-attn-2": "flash-attn"}


def describe(name: str) -> Package:
    """The description of a package that is known.

    Raises:
        IronwheelError: nobody described it; the message names the nearest known one.
    """
    canonical = normalize(name)
    canonical = _ALIASES.get(canonical, canonical)
    if canonical in PACKAGES:
        return PACKAGES[canonical]
    near = difflib.get_close_matches(canonical, list(PACKAGES), 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise IronwheelError(
        f"extension '{name}' has no description; known are {', '.join(sorted(PACKAGES))}.{hint}",
        "UnknownExtension",
        "Correct the name, or describe the extension (name, module, arch_variable, memory_class …) among your own extensions.",
    )


# Keys of a user's description: type, and whether it may be null.
_USER_KEYS: dict[str, tuple[type, bool]] = {
    "name": (str, False),
    "module": (str, False),
    "arch_variable": (str, True),
    "arch_format": (str, False),
    "force_build": (dict, False),
    "thread_variable": (str, True),
    "max_jobs": (str, False),
    "memory_class": (str, False),
    "units": (int, True),
    "min_capability": (str, True),
    "hard_coded": (list, False),
    "fixes": (list, False),
}
_FIX_KEYS: dict[str, tuple[type, bool]] = {
    "name": (str, False),
    "reason": (str, False),
    "file": (str, False),
    "old": (str, False),
    "new": (str, False),
    "until": (str, True),
    "torch_from": (str, True),
}


def _checked(data: Any, keys: Mapping[str, tuple[type, bool]], required: Sequence[str], where: str) -> dict[str, Any]:
    """The mapping when it has only known keys of the right type and all required ones."""
    if not isinstance(data, Mapping):
        raise IronwheelError(f"{where} must be a mapping, not {type(data).__name__} ({data!r}).", "InvalidExtension")
    for key, value in data.items():
        if key not in keys:
            near = difflib.get_close_matches(str(key), list(keys), 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise IronwheelError(f"{where}: unknown key '{key}'; known are {', '.join(keys)}.{hint}", "InvalidExtension")
        kind, nullable = keys[key]
        if value is None and nullable:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise IronwheelError(f"{where}: '{key}' must be of type {kind.__name__}, not {type(value).__name__} ({value!r}).", "InvalidExtension")
    for key in required:
        if not data.get(key):
            raise IronwheelError(f"{where}: '{key}' is missing.", "InvalidExtension", f"Add '{key}' to the description.")
    return dict(data)


def _matching(pattern: re.Pattern, value: str | None, where: str, what: str) -> None:
    if value is not None and pattern.fullmatch(value) is None:
        raise IronwheelError(f"{where}: '{value}' is not {what}.", "InvalidExtension")


def _choice(value: str, choices: Iterable[str], where: str, key: str) -> None:
    allowed = list(choices)
    if value not in allowed:
        raise IronwheelError(f"{where}: '{key}' is '{value}'; it must be one of {', '.join(allowed)}.", "InvalidExtension")


def _user_fix(data: Any, where: str) -> Fix:
    fix = _checked(data, _FIX_KEYS, ("name", "reason", "file", "old", "new"), where)
    if fix["file"].startswith("/") or ".." in fix["file"].split("/"):
        raise IronwheelError(f"{where}: 'file' is '{fix['file']}'; it must be a path inside the source.", "InvalidExtension")
    conditions = []
    if fix.get("torch_from"):
        versions.parse(fix["torch_from"])
        conditions.append(f"torch >= {fix['torch_from']}")
    if fix.get("until"):
        versions.parse(fix["until"])
        conditions.append(f"release <= {fix['until']}")
    return Fix(
        name=fix["name"],
        reason=fix["reason"],
        condition=" and ".join(conditions) or "always",
        file=fix["file"],
        replace=((fix["old"], fix["new"]),),
        until=fix.get("until"),
        torch_from=fix.get("torch_from"),
    )


def from_user(data: Mapping[str, Any]) -> Package:
    """The description of an extension of the user's own.

    ``name`` and ``module`` are required; the rest has the defaults of a plain torch CUDA extension (``TORCH_CUDA_ARCH_LIST``, one nvcc thread, memory class
    ``generic``). ``fixes`` is a list of ``{name, reason, file, old, new, until, torch_from}``.

    Raises:
        IronwheelError: an unknown key, a wrong type or a value outside its rule; the message names extension, key and value.
    """
    label = data.get("name") if isinstance(data, Mapping) else None
    where = f"extension '{label}'" if label else "extension"
    found = _checked(data, _USER_KEYS, ("name", "module"), where)
    _matching(_NAME, found["name"], where, "a distribution name")
    _matching(_MODULE, found["module"], where, "a module name")
    _matching(_VARIABLE, found.get("arch_variable"), where, "the name of an environment variable")
    _matching(_VARIABLE, found.get("thread_variable"), where, "the name of an environment variable")
    arch_format = found.get("arch_format", "dotted")
    _choice(arch_format, ("dotted", "number"), where, "arch_format")
    max_jobs = found.get("max_jobs", "multiplies")
    _choice(max_jobs, ("multiplies", "divides"), where, "max_jobs")
    memory_class = found.get("memory_class", "generic")
    _choice(memory_class, build_costs.CLASSES, where, "memory_class")
    units = found.get("units")
    if units is not None and units < 1:
        raise IronwheelError(f"{where}: 'units' is {units}; it must be at least 1.", "InvalidExtension")
    force_build = found.get("force_build", {})
    for variable, value in force_build.items():
        _matching(_VARIABLE, str(variable), where, "the name of an environment variable")
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise IronwheelError(f"{where}: force_build.{variable} is {value!r}; it must be a string (quote it).", "InvalidExtension")
    hard_coded = tuple(str(item) for item in found.get("hard_coded", []))
    for capability in (*hard_coded, *([found["min_capability"]] if found.get("min_capability") else [])):
        split_capability(capability)
    return Package(
        name=normalize(found["name"]),
        module=found["module"],
        arch_variable=found.get("arch_variable", "TORCH_CUDA_ARCH_LIST"),
        arch_format=arch_format,
        hard_coded=hard_coded,
        force_build={str(key): str(value) for key, value in force_build.items()},
        thread_variable=found.get("thread_variable"),
        max_jobs=max_jobs,
        memory_class=memory_class,
        unit_counts=(("0", units),) if units is not None else (),
        min_capability=found.get("min_capability"),
        fixes=tuple(_user_fix(item, f"{where}, fix {index + 1}") for index, item in enumerate(found.get("fixes", []))),
    )
