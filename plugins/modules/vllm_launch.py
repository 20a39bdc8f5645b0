#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_launch
short_description: Say how vLLM instances are started on a host, and refuse what cannot work
version_added: 0.1.0
description:
  - Turns the description of vLLM instances into command line, environment, paths and addresses, and holds them against the
    host - the model is there and readable for the service user, it fits into memory, the port is free or the instance's own,
    the interpreter can be run by the service user, a compiler is there if kernels are compiled at run time.
  - Changes nothing. It runs before anything of a running service is touched.
  - No secret is handed to it; the API key and the hub token stand in the environment file alone.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
    details: In check mode an environment or model that earlier tasks would have made is taken as there.
  diff_mode:
    support: none
options:
  instances:
    description: Descriptions of the instances, as in C(preflight_plan.vllm.instances). Keys that are left out or V(null) come from O(defaults).
    type: list
    elements: dict
    required: true
  defaults:
    description: Description that completes each instance.
    type: dict
    default: {}
  environment:
    description: The environment in use, with the keys C(path) and C(link).
    type: dict
    required: true
  plan:
    description: The plan; its keys C(profile) and C(cuda) are used.
    type: dict
    default: {}
  host:
    description: The host facts.
    type: dict
    default: {}
  user:
    description: User that the service runs as, where the role may create one.
    type: str
    default: vllm
  state_dir:
    description: Home of the service. Empty is C(/var/lib/vllm) as root and below the prefix otherwise.
    type: str
    default: ''
  cache_dir:
    description: Caches of vLLM, torch and the model hub. Empty is C(/var/cache/vllm) as root and below the prefix otherwise.
    type: str
    default: ''
  api_key:
    description: Whether an API key is set and whether it can be used.
    type: str
    choices: [none, set, invalid]
    default: none
  hf_token:
    description: Whether a hub token is set and whether it can be used.
    type: str
    choices: [none, set, invalid]
    default: none
  allow_unauthenticated:
    description: Allow a server that others can reach and that asks for no key.
    type: bool
    default: false
  offline:
    description: Never ask the model hub; what is not in the cache is an error.
    type: bool
    default: false
  compile_jobs:
    description: Compilers that vLLM may start at once while it runs. V(0) chooses by cores and memory.
    type: int
    default: 0
  usage_stats:
    description: Let vLLM report usage statistics to its makers.
    type: bool
    default: false
  variables:
    description: Further environment variables of the server.
    type: dict
    default: {}
  system_packages:
    description: Whether packages of the distribution that are missing are left to be installed (RV(packages)). Otherwise, and without root, they are an error.
    type: bool
    default: true
  planned:
    description: Whether the environment is still to be made, so that what can be checked before it is checked and the rest is left out.
    type: bool
    default: false
  report_only:
    description: Return what cannot work as RV(problem) instead of failing, for a verification of all that is there.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Say how the demo model is served
  ironwheel.gpu.vllm_launch:
    instances: [{name: default, model: demo, port: 8000}]
    environment: "{{ uv_venv_environment }}"
    plan: "{{ preflight_plan }}"
    host: "{{ preflight_host }}"
  register: launch
"""

RETURN = r"""
instances:
  description: One launch specification an instance, with C(name), C(unit), C(argv), C(environment), C(environment_file), C(host), C(port) and more.
  returned: success
  type: list
  elements: dict
service:
  description: Whether the instances run as systemd services; otherwise they are started for verification only.
  returned: success
  type: bool
user:
  description: The service user, empty where none is created.
  returned: success
  type: str
directories:
  description: Directories that must exist, with C(path), C(mode) and whether the service user owns them (C(writable)).
  returned: success
  type: list
  elements: dict
demo_path:
  description: Folder of the demo model, empty if no instance serves it.
  returned: success
  type: str
packages:
  description: Packages of the distribution that the instances need and the host lacks.
  returned: success
  type: list
  elements: str
problem:
  description: With O(report_only), what cannot work; otherwise empty.
  returned: success
  type: str
warnings_found:
  description: What was adjusted, as C(warning), C(message) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

import ctypes
import hashlib
import json
import os
import pwd
import shutil
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import demo_model, environment_python, server_process, serving
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

CONFIG_DIR = "/etc/ironwheel"
HEADER_QUESTION = "import os, sys, sysconfig; sys.stdout.write(str(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))))"


class Host:
    """What this module looks at on the host, for one run."""

    def __init__(self, params: dict, check_mode: bool) -> None:
        self.params = params
        self.check_mode = check_mode
        self.facts = params["host"]
        self.root = os.geteuid() == 0
        self.service = self.root and bool((self.facts.get("os") or {}).get("systemd"))
        self.gpu_profile = params["plan"].get("profile") == "gpu"
        self.link = params["environment"].get("link") or params["environment"]["path"]
        # Where the environment in use is switched after this module (the first run), the new one is looked at.
        self.environment = params["environment"].get("path") or self.link
        self.prefix = os.path.dirname(self.link)
        self.user = params["user"] if self.root else ""
        if self.root and self.user in ("", "root"):
            raise IronwheelError(f"vllm_user is '{self.user}': the server must not run as root.", "InvalidValue", "Name a user of its own, such as vllm.")
        cuda = (params["plan"].get("cuda") or {}).get("path")
        self.places = serving.Places(
            environment=self.link,
            prefix=self.prefix,
            state_dir=params["state_dir"] or ("/var/lib/vllm" if self.root else os.path.join(self.prefix, "vllm", "state")),
            cache_dir=params["cache_dir"] or ("/var/cache/vllm" if self.root else os.path.join(self.prefix, "vllm", "cache")),
            config_dir=CONFIG_DIR if self.root else os.path.join(self.prefix, "vllm"),
            cuda_home=cuda,
        )
        for name in ("state_dir", "cache_dir"):
            check_directory(f"vllm_{name}", getattr(self.places, name), self.prefix)

    def identity(self) -> tuple[int, list[int], str]:
        """User id, groups and name that the server runs with; -1 for a user that does not exist yet."""
        if not self.root:
            return os.geteuid(), [os.getegid(), *os.getgroups()], str(os.geteuid())
        try:
            entry = pwd.getpwnam(self.user)
        except KeyError:
            return -1, [], self.user
        return entry.pw_uid, os.getgrouplist(self.user, entry.pw_gid), self.user


def check_directory(variable: str, path: str, prefix: str) -> None:
    """A directory that will belong to the service user is one of its own."""
    normal = os.path.normpath(path)
    if not os.path.isabs(path) or normal.count("/") < 2 or normal in (prefix, "/var/lib", "/var/cache", "/usr/local") or any(ord(char) < 33 for char in path):
        raise IronwheelError(
            f"{variable} is '{path}': it must be an absolute path, without spaces, of a directory that the service may own alone.",
            "InvalidValue",
            f"Give {variable} a directory of its own, such as /data/vllm.",
        )


def below_home(path: str) -> bool:
    """True for what ``ProtectHome=`` hides."""
    return any(path == home or path.startswith(home + "/") for home in ("/home", "/root", "/run/user"))


def check_interpreter(host: Host) -> bool | None:
    """The interpreter can be run by the service user. Returns whether its headers are there, None when there is no environment yet."""
    python = os.path.join(host.environment, environment_python.PYTHON)
    if not os.path.exists(python):
        if host.check_mode or host.params["planned"]:
            return None
        raise IronwheelError(f"environment is '{host.environment}', which holds no bin/python.", "EnvironmentMissing", "Run the role uv_venv first.")
    uid, gids, user = host.identity()
    for place in (os.path.realpath(python), os.path.abspath(host.environment)):
        if host.service and below_home(place):
            raise IronwheelError(
                f"The environment uses {place}, below a home directory: the service sees no homes (ProtectHome).",
                "InterpreterNotAccessible",
                "Keep uv_venv_prefix, and with it managed Pythons, outside of home directories (UV_PYTHON_INSTALL_DIR outside /root).",
            )
    serving.check_access(os.path.realpath(python), "The interpreter of the environment", uid, gids, user, os.stat, execute=True)
    _status, output, _errors = environment_python.run([python, "-I", "-c", HEADER_QUESTION], 30)
    return output.strip() == "True"


def check_model(instance: serving.Instance, host: Host, share: float | None, gpus: list) -> None:
    """The model is there, readable and fits."""
    kind = serving.model_kind(instance.model)
    if kind == "hub":
        cached = os.path.join(host.places.cache_dir, "huggingface", "hub", "models--" + instance.model.replace("/", "--"), "snapshots")
        if host.params["offline"] and not os.path.isdir(cached):
            raise IronwheelError(
                f"vllm_model is '{instance.model}', a name on a model hub, vllm_hf_offline is true and the model is not in {cached}.",
                "ModelNotAvailable",
                "Put the model there, give vllm_model a path on the host, or allow the hub with vllm_hf_offline: false.",
            )
        return
    if kind == serving.DEMO:
        return
    path = instance.model
    if not os.path.exists(path):
        raise IronwheelError(
            f"vllm_model is '{path}', which does not exist on this host: a value that begins with / is a path.",
            "ModelNotFound",
            "Copy the model there, correct the path, or set vllm_model: demo.",
        )
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json")):
        raise IronwheelError(
            f"vllm_model is '{path}', a folder without config.json: it holds no model.", "ModelNotFound", "Name the folder that holds config.json."
        )
    uid, gids, user = host.identity()
    target = os.path.realpath(path)
    if host.service and below_home(target):
        raise IronwheelError(
            f"vllm_model is '{path}', below a home directory: the service sees no homes (ProtectHome).",
            "ModelNotReadable",
            "Move the model, for example to /srv/models.",
        )
    for place in [target, *([os.path.join(target, "config.json")] if os.path.isdir(target) else [])]:
        serving.check_access(os.path.realpath(place), "vllm_model", uid, gids, user, os.stat)
    usable = (host.facts.get("memory") or {}).get("usable_mib")
    serving.check_model_memory(instance, weights_mib(target), gpus, usable, share)


def weights_mib(path: str) -> int:
    """Size of a model's weights in MiB: the safetensors files, without any the older bin files, or the one file."""
    if os.path.isfile(path):
        return os.path.getsize(path) >> 20
    for suffix in (".safetensors", ".bin"):
        sizes = [os.path.getsize(os.path.join(path, name)) for name in os.listdir(path) if name.endswith(suffix)]
        if sizes:
            return sum(sizes) >> 20
    return 0


def model_stamp(instance: serving.Instance) -> str:
    """Changes when the model does: version of the demo model; names, sizes and times of a local model's files; nothing for a hub's name."""
    if instance.demo:
        return f"demo-{demo_model.VERSION}"
    if serving.model_kind(instance.model) == "hub":
        return ""
    path = instance.model
    names = [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
    seen = [[os.path.basename(name), status.st_size, status.st_mtime_ns] for name in names for status in [os.stat(name)] if os.path.isfile(name)]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def check_port(instance: serving.Instance, host: Host) -> None:
    """The port is free, or the instance's own service holds it."""
    owner = server_process.listener(instance.port)
    if owner is None or (host.service and owner["unit"] == instance.unit):
        return
    who = f"by {owner['command']} (process {owner['pid']})" if owner["pid"] else "by a process of another user"
    raise IronwheelError(
        f"vllm_port is {instance.port} for instance {instance.name}, which is already taken {who}.",
        "PortInUse",
        "Choose another vllm_port, or stop that program.",
    )


def missing_packages(instance: serving.Instance, host: Host, headers: bool) -> list[str]:
    """Packages of the distribution that are missing for an instance and may be installed.

    Raises:
        IronwheelError: they may not be installed.
    """
    os_facts = host.facts.get("os") or {}
    compilers = host.facts.get("compilers") or {}
    compiler = (compilers.get("gcc") or shutil.which("gcc")) if host.gpu_profile else (compilers.get("gxx") or shutil.which("g++"))
    python = (host.params["plan"].get("python") or {}).get("version") or "3"
    like = [os_facts.get("id") or "", *(os_facts.get("like") or [])]
    missing = serving.missing_packages(instance, host.gpu_profile, python, headers, compiler, like, library_loads("libnuma.so.1"))
    if not (host.root and host.params["system_packages"]) or host.params["report_only"]:
        serving.check_packages(instance, missing)
    return missing


def library_loads(name: str) -> bool:
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def specification(instance: serving.Instance, host: Host) -> tuple[dict, dict | None]:
    """The launch specification of one instance, and a warning."""
    params = host.params
    facts_gpus = (host.facts.get("gpus") or []) if host.gpu_profile else []
    gpus = serving.instance_gpus(instance, facts_gpus)
    share, warning = serving.memory_share(instance, gpus)
    if host.gpu_profile:
        serving.check_parallel(instance, gpus)
    serving.check_bind(instance, params["api_key"] == "set", params["allow_unauthenticated"])
    check_model(instance, host, share, gpus)
    check_port(instance, host)
    cpu, memory = host.facts.get("cpu") or {}, host.facts.get("memory") or {}
    jobs = serving.compile_jobs(params["compile_jobs"], cpu.get("usable"), memory.get("usable_mib"))
    uuids = [str(gpu["uuid"]) for gpu in gpus if gpu.get("uuid")] if instance.gpus else []
    argv = serving.command(instance, host.places, share, host.gpu_profile)
    variables = serving.environment(instance, host.places, jobs, host.gpu_profile, params["offline"], uuids, params["variables"], params["usage_stats"])
    return {
        **asdict(instance),
        "unit": instance.unit,
        "unit_file": f"/etc/systemd/system/{instance.unit}" if host.service else "",
        "service": host.service,
        "gpu": host.gpu_profile,
        "model_path": serving.model_path(instance, host.prefix),
        "argv": argv,
        "exec_start": " ".join(serving.systemd_argument(argument) for argument in argv),
        "environment": variables,
        "environment_lines": [serving.systemd_assignment(name, value) for name, value in variables.items()],
        "environment_file": os.path.join(host.places.config_dir, instance.unit.replace(".service", ".env")),
        # Another environment changes the unit by this name, although the link in the command line stays the same.
        "generation": os.path.basename(os.path.realpath(host.environment)),
        "model_stamp": model_stamp(instance),
        "user": host.user,
        "working_directory": host.places.state_dir,
        "writable": [host.places.state_dir, host.places.cache_dir],
    }, warning


def launch(params: dict, check_mode: bool) -> dict:
    """All instances; raises the first thing that cannot work."""
    host = Host(params, check_mode)
    for name in ("api_key", "hf_token"):
        if params[name] == "invalid":
            raise IronwheelError(
                f"vllm_{name} must consist of printable ASCII characters without spaces: it becomes an HTTP header.", "InvalidValue", f"Correct vllm_{name}."
            )
    described = params["instances"] or [{}]
    instances = [serving.read_instance({**params["defaults"], **{key: value for key, value in raw.items() if value is not None}}) for raw in described]
    serving.check_collisions(instances)
    headers = check_interpreter(host)
    specifications, warnings, packages = [], [], []
    for instance in instances:
        packages += [] if headers is None else missing_packages(instance, host, headers)
        found, warning = specification(instance, host)
        specifications.append(found)
        if warning:
            warnings.append(warning)
    return {
        "changed": False,
        "instances": specifications,
        "service": host.service,
        "user": host.user,
        "directories": [
            {"path": host.places.config_dir, "mode": "0755", "writable": False},
            {"path": host.places.state_dir, "mode": "0750", "writable": True},
            {"path": host.places.cache_dir, "mode": "0750", "writable": True},
        ],
        "demo_path": next((found["model_path"] for found in specifications if found["model"] == serving.DEMO), ""),
        "warnings_found": warnings,
        "packages": sorted(set(packages)),
        "problem": "",
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "defaults": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "required": True},
            "plan": {"type": "dict", "default": {}},
            "host": {"type": "dict", "default": {}},
            "user": {"type": "str", "default": "vllm"},
            "state_dir": {"type": "str", "default": ""},
            "cache_dir": {"type": "str", "default": ""},
            "api_key": {"type": "str", "default": "none", "choices": ["none", "set", "invalid"], "no_log": False},
            "hf_token": {"type": "str", "default": "none", "choices": ["none", "set", "invalid"], "no_log": False},
            "allow_unauthenticated": {"type": "bool", "default": False},
            "offline": {"type": "bool", "default": False},
            "compile_jobs": {"type": "int", "default": 0},
            "usage_stats": {"type": "bool", "default": False},
            "variables": {"type": "dict", "default": {}},
            "system_packages": {"type": "bool", "default": True},
            "planned": {"type": "bool", "default": False},
            "report_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = launch(module.params, module.check_mode)
    except IronwheelError as exc:
        if not module.params["report_only"]:
            module.fail_json(**exc.as_result())
        result = {
            "changed": False,
            "instances": [],
            "service": False,
            "user": "",
            "directories": [],
            "demo_path": "",
            "warnings_found": [],
            "packages": [],
            "problem": exc.message,
        }
    for warning in result["warnings_found"]:
        module.warn(f"{warning['message']} {warning['remedy']}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
