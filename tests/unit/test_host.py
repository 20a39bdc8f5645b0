# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Host facts from whole hosts, from reported cases, and from garbage."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus, host, host_files, host_gpu, host_software, host_system
from host_trees import Tools, case, grow, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CONTRACT = {
    "os": "id version like name codename glibc arch kernel kernel_headers kernel_compiler secure_boot virtualization container wsl systemd",
    "user": "name uid home root",
    "cpu": "online affinity quota usable model",
    "memory": "total_mib available_mib cgroup_limit_mib cgroup_headroom_mib limited_by usable_mib swap_total_mib swap_free_mib hugepages_mib",
    "driver": "state module_version module_flavour userspace_version cuda_max nvidia_smi packages fabric_manager persistence nouveau dkms detail",
    "compilers": "gcc gxx clang all",
}
GPU_KEYS = "index pci_address vendor_id device_id class_id name uuid compute_capability capability_source memory_mib unified_memory mig usable"
MIB = 1024 * 1024


def read(tmp_path: Path, fixture: dict | str, **more) -> dict:
    """Facts of a fixture (or its name) with its own tools."""
    fixture = load(fixture) if isinstance(fixture, str) else fixture
    return host.read_host(root=str(grow(tmp_path, fixture)), run=Tools(fixture), **more)


def names(facts: dict) -> list[str]:
    return [entry["warning"] for entry in facts["warnings"]]


def plain(**files: object) -> dict:
    """A host with nothing but what a test is about."""
    return {"files": {path: content for path, content in files.items() if content is not None}}


@pytest.mark.parametrize("name", sorted(path.stem for path in (Path(__file__).parent / "fixtures" / "hosts").glob("*.json")))
def test_every_host_keeps_the_contract(tmp_path: Path, name: str) -> None:
    facts = read(tmp_path, name)
    for section, keys in CONTRACT.items():
        assert set(facts[section]) == set(keys.split()), section
    for gpu in facts["gpus"]:
        assert set(gpu) == set(GPU_KEYS.split())
    assert set(facts) - set(CONTRACT) == {
        "schema", "disk", "gpus", "nvswitches", "vgpu", "toolkits", "pythons", "uv", "environment", "ca_bundle", "build_leftovers", "warnings",
    }  # fmt: skip
    assert "SectionUnreadable" not in names(facts)
    assert json.loads(json.dumps(facts)) == facts


def test_bare_debian(tmp_path: Path) -> None:
    facts = read(tmp_path, "debian13_bare")
    system = facts["os"]
    assert (system["id"], system["version"], system["codename"], system["like"], system["glibc"]) == ("debian", "13", "trixie", [], "2.41")
    assert (system["arch"], system["kernel"], system["kernel_headers"], system["kernel_compiler"]) == ("x86_64", "6.12.48+deb13-amd64", True, "gcc-14")
    assert (system["secure_boot"], system["virtualization"], system["container"], system["wsl"], system["systemd"]) == (True, "none", None, False, True)
    assert facts["user"] == {"name": "root", "uid": 0, "home": "/root", "root": True}
    assert (facts["cpu"]["online"], facts["cpu"]["usable"], facts["cpu"]["quota"]) == (32, 32, None)
    assert facts["memory"]["usable_mib"] == 126000000 // 1024 and facts["memory"]["swap_total_mib"] == 8192
    gpu = facts["gpus"][0]
    assert (gpu["name"], gpu["compute_capability"], gpu["capability_source"], gpu["memory_mib"], gpu["usable"]) == ("H100 PCIe", "9.0", "table", None, True)
    assert (facts["driver"]["state"], facts["driver"]["nouveau"], facts["driver"]["packages"]) == ("absent", True, {})
    assert (facts["compilers"]["gcc"], facts["compilers"]["gxx"], facts["compilers"]["clang"]) == ("14", "14", None)
    assert facts["pythons"] == [{"path": "/usr/bin/python3.13", "version": "3.13", "system": True}]
    assert facts["ca_bundle"] == "/etc/ssl/certs/ca-certificates.crt" and facts["uv"] is None and facts["toolkits"] == []


def test_dual_blackwell(tmp_path: Path) -> None:
    facts = read(tmp_path, "ubuntu2404_dual_blackwell")
    assert [(gpu["index"], gpu["pci_address"], gpu["compute_capability"], gpu["memory_mib"]) for gpu in facts["gpus"]] == [
        (0, "0000:01:00.0", "12.0", 97887),
        (1, "0000:21:00.0", "12.0", 97887),
    ]
    driver = facts["driver"]
    assert (driver["state"], driver["module_version"], driver["module_flavour"], driver["userspace_version"]) == ("ok", "590.48.01", "open", "590.48.01")
    assert (driver["cuda_max"], driver["persistence"], driver["fabric_manager"]) == ("13.1", True, None)
    assert driver["packages"] == {"libnvidia-compute": "590.48.01-1ubuntu1", "nvidia-dkms-open": "590.48.01-1ubuntu1"}
    assert driver["dkms"] == [
        {"module": "nvidia", "version": "590.48.01", "kernel": "6.8.0-85-generic", "arch": "x86_64", "state": "installed", "make_log": None}
    ]
    ours, theirs = facts["toolkits"]
    assert (theirs["path"], theirs["version"], theirs["full_version"], theirs["nvcc_version"]) == ("/usr/local/cuda-13.1", "13.1", "13.1.115", "13.1.115")
    assert (theirs["complete"], theirs["managed"]) == (True, False)
    assert (ours["path"], ours["managed"], ours["missing"]) == ("/opt/ironwheel/toolkits/cuda-12.8", True, ["ptxas", "libcudart.so"])
    assert facts["uv"] == {"path": "/opt/ironwheel/uv/0.13.9/uv", "version": "0.13.9"}
    assert [python["version"] for python in facts["pythons"]] == ["3.12", "3.13.1"]
    assert facts["environment"] == {
        "PIP_FIND_LINKS": "/wheels",
        "UV_INDEX_CORP_PASSWORD": "********",
        "UV_INDEX_URL": "https://********@mirror.example/simple",
        "https_proxy": "http://********@proxy.example:3128",
    }


def test_v100_with_proprietary_580(tmp_path: Path) -> None:
    facts = read(tmp_path, "v100_580")
    assert (facts["driver"]["state"], facts["driver"]["module_flavour"], facts["driver"]["userspace_version"]) == ("ok", "proprietary", "580.95.05")
    assert facts["gpus"][0]["compute_capability"] == "7.0"
    assert (facts["os"]["virtualization"], facts["os"]["secure_boot"]) == ("kvm", False)


def test_mixed_gpus(tmp_path: Path) -> None:
    facts = read(tmp_path, "mixed")
    assert [(gpu["index"], gpu["pci_address"], gpu["compute_capability"], gpu["class_id"], gpu["usable"]) for gpu in facts["gpus"]] == [
        (0, "0000:01:00.0", "12.0", "0300", True),
        (1, "0000:03:00.0", "8.6", "0380", True),
        (2, "0000:02:00.0", "8.9", "0302", True),
        (None, "0000:04:00.0", "8.9", "0300", False),
    ]
    assert facts["driver"]["cuda_max"] == "13.3"
    # One is set aside for a virtual machine: that is not a loss.
    assert "GpuLost" not in names(facts)
    assert facts["user"]["name"] == "llm" and facts["disk"][0]["path"] == "/home/llm/.local/share/ironwheel"


def test_mig(tmp_path: Path) -> None:
    facts = read(tmp_path, "mig")
    assert [gpu["mig"]["enabled"] for gpu in facts["gpus"]] == [True, False]
    assert [[device["profile"] for device in gpu["mig"]["devices"]] for gpu in facts["gpus"]] == [["2g.20gb", "1g.10gb"], []]
    assert facts["driver"]["packages"] == {"kmod-nvidia-open-dkms": "570.172.08-1.el9", "nvidia-driver-cuda": "570.172.08-1.el9"}
    assert (facts["os"]["like"], facts["os"]["glibc"], facts["os"]["kernel_headers"]) == (["rhel", "centos", "fedora"], "2.34", True)


def test_mismatch(tmp_path: Path) -> None:
    driver = read(tmp_path, "mismatch")["driver"]
    assert driver["state"] == "reboot_required"
    assert "550.90.07" in driver["detail"] and "550.107.02" in driver["detail"]


def test_cgroup_v1_seen_from_a_container(tmp_path: Path) -> None:
    facts = read(tmp_path, "cgroup_v1")
    memory = facts["memory"]
    # 16 GiB limit, 10 GiB used of which 6 GiB are cache that goes when needed: 12 GiB are left.
    assert (memory["cgroup_limit_mib"], memory["cgroup_headroom_mib"], memory["usable_mib"]) == (16384, 12288, 12288)
    assert memory["limited_by"] == "/sys/fs/cgroup/memory" and memory["swap_total_mib"] == 16384
    assert (facts["cpu"]["quota"], facts["cpu"]["usable"], facts["cpu"]["affinity"]) == (2.5, 2, 32)
    assert facts["os"]["container"] == "docker"


def test_cgroup_v1_without_hierarchy_does_not_charge_ancestors(tmp_path: Path) -> None:
    fixture = load("cgroup_v1")
    fixture["files"]["/sys/fs/cgroup/memory/memory.use_hierarchy"] = "0"
    assert read(tmp_path, fixture)["memory"]["cgroup_limit_mib"] is None


def test_cgroup_v2_limit_on_a_grandparent(tmp_path: Path) -> None:
    facts = read(tmp_path, "cgroup_v2")
    memory = facts["memory"]
    assert memory["limited_by"] == "/sys/fs/cgroup/batch.slice"
    # memory.high (48 GiB) binds before memory.max (64 GiB); 30 of 40 GiB are cache.
    assert (memory["cgroup_limit_mib"], memory["cgroup_headroom_mib"]) == (48 * 1024, 38 * 1024)
    assert (facts["cpu"]["quota"], facts["cpu"]["usable"]) == (12.5, 12)


def test_cgroup_hybrid(tmp_path: Path) -> None:
    facts = read(tmp_path, "cgroup_hybrid", paths={"prefix": "/srv/ai", "cache": "/tmp/cache"})
    assert (facts["memory"]["cgroup_headroom_mib"], facts["memory"]["limited_by"]) == (6144, "/sys/fs/cgroup/memory/system.slice")
    disks = {disk["path"]: disk for disk in facts["disk"]}
    assert list(disks) == ["/srv/ai", "/tmp/cache", "/srv/ai/builds"]
    assert (disks["/srv/ai"]["mount"], disks["/srv/ai"]["read_only"], disks["/srv/ai"]["noexec"]) == ("/", True, False)
    assert (disks["/tmp/cache"]["mount"], disks["/tmp/cache"]["noexec"]) == ("/tmp", True)
    assert disks["/tmp/cache"]["free_mib"] > 0


def test_wsl(tmp_path: Path) -> None:
    facts = read(tmp_path, "wsl")
    assert facts["os"]["wsl"] is True and facts["os"]["virtualization"] == "wsl"
    assert (facts["driver"]["state"], facts["driver"]["nvidia_smi"]) == ("ok", "/usr/lib/wsl/lib/nvidia-smi")
    assert "Windows" in facts["driver"]["detail"]
    assert [(gpu["index"], gpu["compute_capability"], gpu["device_id"]) for gpu in facts["gpus"]] == [(0, "8.9", None)]


def test_gb10(tmp_path: Path) -> None:
    facts = read(tmp_path, "gb10")
    gpu = facts["gpus"][0]
    assert (gpu["pci_address"], gpu["memory_mib"], gpu["unified_memory"], gpu["usable"]) == ("000f:01:00.0", 127600000 // 1024, True, True)
    assert facts["os"]["arch"] == "aarch64" and "UnifiedMemory" in names(facts)


def test_vgpu_guest(tmp_path: Path) -> None:
    facts = read(tmp_path, "vgpu_guest")
    assert facts["vgpu"] is True and facts["os"]["virtualization"] == "vmware"


def test_podman_container_with_one_of_two_gpus(tmp_path: Path) -> None:
    facts = read(tmp_path, "podman")
    assert facts["os"]["container"] == "podman" and facts["driver"]["state"] == "ok"
    assert [(gpu["index"], gpu["usable"]) for gpu in facts["gpus"]] == [(0, True), (None, False)]
    assert "GpuLost" not in names(facts)
    assert facts["memory"]["cgroup_headroom_mib"] == 30 * 1024


def test_gpus_without_a_pci_view(tmp_path: Path) -> None:
    information = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 77\nGPU UUID: \t GPU-0a1b2c3d-0000-0000-0000-000000000000\nBus Location: \t 0000:31:00.0\n"
    said = read(tmp_path / "a", plain(**{"/proc/driver/nvidia/gpus/0000:31:00.0/information": information, "/dev/nvidia0": ""}))["gpus"]
    assert [(gpu["name"], gpu["pci_address"], gpu["compute_capability"]) for gpu in said] == [("NVIDIA L4", "0000:31:00.0", "8.9")]
    assert said[0]["uuid"].startswith("GPU-0a1b2c3d")
    # Only device nodes were handed in: there is a GPU, and more is not known.
    facts = read(tmp_path / "b", plain(**{"/dev/nvidia0": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/.dockerenv": ""}))
    assert [(gpu["name"], gpu["compute_capability"]) for gpu in facts["gpus"]] == [(None, None)]
    assert "CapabilityUnknown" in names(facts)


def test_hgx_h200(tmp_path: Path) -> None:
    facts = read(tmp_path, "hgx_h200")
    assert (len(facts["gpus"]), facts["nvswitches"], facts["vgpu"]) == (8, 4, False)
    assert facts["driver"]["fabric_manager"] == "580.105.08" and "FabricManagerMismatch" in names(facts)
    assert facts["memory"]["hugepages_mib"] == 2048


def test_nvlink5_switches_are_seen_by_their_management_ports(tmp_path: Path) -> None:
    fixture = {
        "pci": [{"address": "0000:1b:00.0", "device": "2901", "class": "0302"}],
        "files": {"/sys/class/infiniband/mlx5_0/device/vpd": "SMDL=SW_MNG", "/sys/class/infiniband/mlx5_1/device/vpd": "a network card"},
    }
    assert read(tmp_path, fixture)["nvswitches"] == 1


def test_gpu_memory_of_grace_is_not_the_hosts(tmp_path: Path) -> None:
    fixture = {
        "pci": [{"address": "0009:01:00.0", "device": "2342", "class": "0302"}],
        "files": {
            "/proc/meminfo": "MemTotal: 600000000 kB\nMemAvailable: 580000000 kB\n",
            "/sys/devices/system/node/node0/cpulist": "0-71\n",
            "/sys/devices/system/node/node0/meminfo": "Node 0 MemFree: 480000000 kB\n",
            "/sys/devices/system/node/node1/cpulist": "\n",
            "/sys/devices/system/node/node1/meminfo": "Node 1 MemTotal: 100000000 kB\nNode 1 MemFree: 99000000 kB\n",
        },
    }
    facts = read(tmp_path, fixture)
    assert facts["memory"]["usable_mib"] == 580000000 // 1024 - 99000000 // 1024
    assert "GpuMemoryInHostMemory" in names(facts)


# ---- reported cases


@pytest.mark.parametrize("name", [pytest.param("F02", id="case-F02")])
def test_old_driver_without_compute_cap(tmp_path: Path, name: str) -> None:
    reported = case(name)
    fixture = load("v100_580")
    row = dict(fixture["smi"]["rows"][0], name=reported["input"]["names"][0])
    fixture["pci"][0]["device"] = "1eb8"
    fixture["smi"] = {"rows": [row], "unknown": [reported["input"]["query"], "mig.mode.current"], "banner": ""}
    gpu = read(tmp_path, fixture)["gpus"][0]
    checks = reported["expected"]["checks"]
    assert (gpu["compute_capability"], gpu["capability_source"]) == (checks["cc"], checks["source"])
    assert gpu["memory_mib"] == 32768 and gpu["usable"]


@pytest.mark.parametrize("name", [pytest.param("F04", id="case-F04"), pytest.param("D11", id="case-D11")])
def test_unified_memory(tmp_path: Path, name: str) -> None:
    reported = case(name)
    fixture = load("gb10")
    total = reported["input"].get("mem_total_kib") or reported["input"]["mem_total_gib"] * MIB
    fixture["files"]["/proc/meminfo"] = f"MemTotal: {total} kB\nMemAvailable: {total} kB\n"
    facts = read(tmp_path, fixture)
    checks = reported["expected"]["checks"]
    gpu = facts["gpus"][0]
    assert (len(facts["gpus"]), gpu["memory_mib"], gpu["unified_memory"]) == (1, total // 1024, True)
    if name == "F04":
        assert (gpu["memory_mib"], len(facts["gpus"])) == (checks["gpu_memory_mib"], checks["gpu_count"])
    else:
        warning = next(entry for entry in facts["warnings"] if entry["warning"] == checks["warning"])
        assert str(checks["gpu_memory_utilization_max"]) in warning["remedy"]


@pytest.mark.parametrize("name", [pytest.param("F06", id="case-F06")])
def test_lost_gpu(tmp_path: Path, name: str) -> None:
    reported = case(name)
    fixture = load("mig")
    kept, lost = fixture["pci"]
    lost["address"] = "0000:41:00.0"
    values = gpus.parse_csv_line(reported["input"]["smi_rows"][0])
    row = {"index": values[0], "name": values[1], "memory.total": values[2], "compute_cap": values[3], "pci.bus_id": f"0000{kept['address']}"}
    fixture["smi"] = {"rows": [row], "stderr": reported["input"]["smi_stderr"], "banner": ""}
    facts = read(tmp_path, fixture)
    checks = reported["expected"]["checks"]
    assert len(facts["gpus"]) == checks["gpu_count_pci"]
    assert sum(gpu["usable"] for gpu in facts["gpus"]) == checks["gpu_count_usable"]
    warning = next(entry for entry in facts["warnings"] if entry["warning"] == checks["warning"])
    assert "0000:41:00.0" in warning["message"]


@pytest.mark.parametrize("name", [pytest.param("F08", id="case-F08")])
def test_nvcc_with_and_without_build_line(tmp_path: Path, name: str) -> None:
    reported = case(name)
    assert [host_software.parse_nvcc(text) for text in reported["input"]["nvcc_V"]] == reported["expected"]["checks"]["versions"]
    # An nvcc that fails is not an nvcc that is missing.
    fixture = load("ubuntu2404_dual_blackwell")
    fixture["commands"] = [["/usr/local/cuda-13.1/bin/nvcc --version", 1, ""], ["/opt/ironwheel", 0, reported["input"]["nvcc_V"][1]]]
    facts = read(tmp_path, fixture)
    assert [toolkit["missing"] for toolkit in facts["toolkits"]] == [["ptxas", "libcudart.so"], []]
    assert [toolkit["nvcc_version"] for toolkit in facts["toolkits"]] == ["12.8.93", "13.1.115"]
    failed = [entry["message"] for entry in facts["warnings"] if entry["warning"] == "NvccFailed"]
    assert len(failed) == 1 and "/usr/local/cuda-13.1/bin/nvcc" in failed[0]


@pytest.mark.parametrize("name", [pytest.param("F11", id="case-F11")])
def test_wsl_memory(tmp_path: Path, name: str) -> None:
    reported = case(name)
    fixture = load("wsl")
    fixture["files"]["/proc/meminfo"] = f"MemTotal: {reported['input']['MemTotal_kib']} kB\nMemAvailable: 15000000 kB\n"
    facts = read(tmp_path, fixture)
    checks = reported["expected"]["checks"]
    assert round(facts["memory"]["total_mib"] / 1024, 1) == checks["mem_total_gib"]
    assert checks["hint"] in next(entry for entry in facts["warnings"] if entry["warning"] == "WslMemory")["remedy"]


@pytest.mark.parametrize("name", [pytest.param("F12", id="case-F12")])
def test_hugepages_are_not_available(tmp_path: Path, name: str) -> None:
    reported = case(name)
    values = reported["input"]
    lines = [f"{key[: -len('_kib')]}: {values[key]} kB" for key in values if key.endswith("_kib")] + [f"HugePages_Total: {values['HugePages_Total']}"]
    memory = read(tmp_path, plain(**{"/proc/meminfo": lines}))["memory"]
    assert reported["expected"]["min"] <= memory["usable_mib"] / 1024 <= reported["expected"]["max"]
    assert memory["hugepages_mib"] == values["HugePages_Total"] * values["Hugepagesize_kib"] // 1024


@pytest.mark.parametrize("name", [pytest.param("A06", id="case-A06"), pytest.param("A17", id="case-A17")])
def test_swap_is_never_memory(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    available = values["mem_available_gb"] * MIB
    lines = [f"MemTotal: {available + MIB} kB", f"MemAvailable: {available} kB"]
    lines += [f"SwapTotal: {values['swap_gb'] * MIB} kB", f"SwapFree: {values['swap_gb'] * MIB} kB"]
    memory = read(tmp_path, plain(**{"/proc/meminfo": lines}))["memory"]
    assert memory["usable_mib"] == values["mem_available_gb"] * 1024
    assert memory["swap_free_mib"] == values["swap_gb"] * 1024


@pytest.mark.parametrize("name", [pytest.param("A22", id="case-A22")])
def test_container_limit_binds(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    fixture = load("podman")
    fixture["files"]["/sys/fs/cgroup/memory.max"] = str(values["cgroup_limit_gb"] << 30)
    fixture["files"]["/sys/fs/cgroup/memory.current"] = "0"
    fixture["files"]["/sys/devices/system/cpu/online"] = f"0-{values['cores'] - 1}"
    facts = read(tmp_path, fixture)
    assert facts["memory"]["usable_mib"] == values["cgroup_limit_gb"] * 1024
    assert facts["cpu"]["usable"] == values["cores"]


@pytest.mark.parametrize("name", [pytest.param("E10", id="case-E10")])
def test_gpus_by_ids(tmp_path: Path, name: str) -> None:
    reported = case(name)
    devices = []
    for line in reported["input"]["lspci"]:
        address, class_id = line.split(" ", 1)[0], line.split("[")[1][:4]
        ids = line.rsplit("[", 1)[1].rstrip("]") if line.endswith("]") else "15b3:1017"
        devices.append({"address": f"0000:{address}", "vendor": ids[:4], "device": ids[5:], "class": class_id})
    # What else sits on such cards and boards.
    devices += [{"address": "0000:01:00.1", "device": "22ba", "class": "0403"}, {"address": "0000:02:00.0", "device": "0052", "class": "0680"}]
    facts = read(tmp_path, {"pci": devices})
    assert len(facts["gpus"]) == reported["expected"]["checks"]["gpu_count"]
    assert [gpu["compute_capability"] for gpu in facts["gpus"]] == ["8.9", "8.0"]


@pytest.mark.parametrize("name", [pytest.param("E09", id="case-E09")])
def test_no_gpu(tmp_path: Path, name: str) -> None:
    reported = case(name)
    facts = read(tmp_path, {"pci": reported["input"]["pci_nvidia"], "folders": ["/sys/bus/pci/devices"]})
    assert facts["gpus"] == [] and facts["driver"]["state"] == "absent" and "no NVIDIA GPU" in facts["driver"]["detail"]


@pytest.mark.parametrize("name", [pytest.param("E11", id="case-E11")])
def test_wsl_is_told_by_kernel_and_paths(tmp_path: Path, name: str) -> None:
    reported = case(name)
    files = dict.fromkeys(reported["input"]["paths"], "")
    facts = read(tmp_path, plain(**{"/proc/sys/kernel/osrelease": reported["input"]["kernel"], **files}))
    checks = reported["expected"]["checks"]
    assert facts["os"]["virtualization"] == checks["platform"]
    assert facts["driver"]["nvidia_smi"] == checks["nvidia_smi"]


@pytest.mark.parametrize("name", [pytest.param("E12", id="case-E12")])
def test_lxc_guest(tmp_path: Path, name: str) -> None:
    reported = case(name)
    kind = reported["input"]["virtualization_type"]
    fixture = plain(**{"/proc/1/environ": f"TERM=linux\0container={kind}\0", "/dev/nvidiactl": "" if reported["input"]["dev_nvidia"] else None})
    fixture["files"]["/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"] = ""
    facts = read(tmp_path, fixture)
    assert facts["os"]["container"] == kind
    # The module is the host's matter: nothing here asks for a reboot.
    assert facts["driver"]["state"] == "broken" and "load it on the host" in facts["driver"]["detail"]


@pytest.mark.parametrize("name", [pytest.param("E13", id="case-E13")])
def test_vgpu_is_told_by_configuration_space_or_name(tmp_path: Path, name: str) -> None:
    assert case(name)["input"]["pci_subsystem"] == "vgpu"
    by_space, by_name = load("vgpu_guest"), load("vgpu_guest")
    del by_space["smi"], by_name["pci"][0]["config"]
    assert read(tmp_path / "a", by_space)["vgpu"] is True
    assert read(tmp_path / "b", by_name)["vgpu"] is True


@pytest.mark.parametrize("name", [pytest.param("C01", id="case-C01")])
def test_user_space_upgraded_under_a_loaded_module(tmp_path: Path, name: str) -> None:
    reported = case(name)["input"]
    fixture = load("mismatch")
    (package, version), loaded = next(iter(reported["packages"].items())), reported["proc_driver_version"]
    fixture["files"]["/proc/driver/nvidia/version"] = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {loaded}  Wed Jul  3"
    fixture["smi"] = {"fail": [reported["nvidia_smi"]["rc"], reported["nvidia_smi"]["stdout"]]}
    driver = read(tmp_path, fixture)["driver"]
    assert driver["state"] == "reboot_required" and "installing again changes nothing" in driver["detail"]
    assert (driver["module_version"], driver["userspace_version"]) == (loaded, version)
    assert driver["packages"][package].startswith(version)


@pytest.mark.parametrize("name", [pytest.param("C06", id="case-C06")])
def test_fabric_manager_must_equal_the_driver(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    found = {}
    for version in values["candidates"]["nvidia-fabricmanager"]:
        fixture = load("hgx_h200")
        status = fixture["files"]["/var/lib/dpkg/status"]
        fixture["files"]["/var/lib/dpkg/status"] = [line.replace("1:580.105.08-1", f"{version}-1ubuntu1") for line in status]
        facts = read(tmp_path / version, fixture)
        assert facts["driver"]["module_version"] == values["driver"] and facts["driver"]["fabric_manager"] == version
        found[version] = "FabricManagerMismatch" in names(facts)
    assert [version for version, mismatch in found.items() if not mismatch] == [case(name)["expected"]["checks"]["fabricmanager"]]


@pytest.mark.parametrize("name", [pytest.param("C11", id="case-C11")])
def test_headers_of_another_kernel_do_not_count(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    files = {"/proc/sys/kernel/osrelease": values["uname_r"]}
    files.update({f"/usr/src/kernels/{version}/Makefile": "" for version in values["headers_available"]})
    fixture = plain(**files)
    # What an update leaves behind: a link whose target is gone.
    fixture["links"] = {f"/lib/modules/{values['uname_r']}/build": f"/usr/src/kernels/{values['uname_r']}"}
    assert read(tmp_path, fixture)["os"]["kernel_headers"] is False


@pytest.mark.parametrize("name", [pytest.param("C12", id="case-C12")])
def test_compiler_of_the_kernel(name: str) -> None:
    reported = case(name)
    assert host_system.kernel_compiler(reported["input"]["proc_version"]) == reported["expected"]["checks"]["dkms_compiler"]


@pytest.mark.parametrize("name", [pytest.param("C13", id="case-C13")])
def test_dkms_that_failed_names_its_log(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    module, version = values["dkms_status"].split(":")[0].split("/")
    log = f"/var/lib/dkms/{module}/{version}/build/make.log"
    fixture = plain(**{"/proc/sys/kernel/osrelease": values["kernel"], log: "error", f"/usr/src/linux-headers-{values['kernel']}/Makefile": ""})
    fixture["pci"] = [{"address": "0000:01:00.0", "device": "2684", "class": "0300"}]
    driver = read(tmp_path, fixture)["driver"]
    assert driver["dkms"] == [{"module": module, "version": version, "kernel": None, "arch": None, "state": "added", "make_log": log}]
    assert driver["state"] == "broken" and log in driver["detail"]


@pytest.mark.parametrize("name", [pytest.param("C14", id="case-C14")])
def test_secure_boot(tmp_path: Path, name: str) -> None:
    fixture = load("debian13_bare")
    assert read(tmp_path / "on", fixture)["os"]["secure_boot"] is case(name)["input"]["secure_boot"]
    variable = next(iter(fixture["hex"]))
    fixture["hex"][variable] = "0600000000"
    assert read(tmp_path / "off", fixture)["os"]["secure_boot"] is False
    fixture["hex"] = {variable: "06"}
    assert read(tmp_path / "cut", fixture)["os"]["secure_boot"] is None


@pytest.mark.parametrize("name", [pytest.param("C16", id="case-C16")])
def test_a_link_is_not_a_second_toolkit(tmp_path: Path, name: str) -> None:
    values = case(name)["input"]
    fixture: dict = {"files": {}, "links": {"/usr/local/cuda": values["cuda_symlink"]}}
    for home in values["toolkits"]:
        fixture["files"][f"{home}/version.json"] = json.dumps({"cuda": {"version": home.rsplit("-", 1)[1] + ".1"}})
        fixture["files"][f"{home}/bin/nvcc"] = ""
    # The second trap: an nvcc of the distribution.
    fixture["files"]["/usr/bin/nvcc"] = "#!/bin/sh\n"
    fixture["files"]["/usr/include/cuda.h"] = "#define CUDA_VERSION 11080\n"
    toolkits = read(tmp_path, fixture)["toolkits"]
    expected = [("/usr", "11.8"), *((home, home.rsplit("-", 1)[1]) for home in values["toolkits"])]
    assert [(toolkit["path"], toolkit["version"]) for toolkit in toolkits] == expected
    torch = values["torch_cuda"]
    assert [toolkit["path"] for toolkit in toolkits if toolkit["version"] == torch] == [case(name)["expected"]["checks"]["CUDA_HOME"]]


# ---- driver states


@pytest.mark.parametrize(
    ("smi", "more", "state", "words"),
    [
        (host_gpu.Smi(state="ok"), {"module": "580.1.2", "userspace": "580.1.2"}, "ok", "580.1.2"),
        (host_gpu.Smi(), {"module": "580.1.2", "userspace": "580.1.2"}, "ok", "not asked"),
        (host_gpu.Smi(state="failed", text="No devices were found"), {"module": "580.1.2", "userspace": "580.1.2"}, "broken", "No devices were found"),
        (host_gpu.Smi(state="hung"), {"module": "580.1.2", "userspace": "580.1.2"}, "broken", "does not answer"),
        (host_gpu.Smi(state="failed", text="Driver/library version mismatch"), {"module": "580.1.2"}, "reboot_required", "reboot"),
        (host_gpu.Smi(), {"module": "580.1.2"}, "broken", "no user space"),
        (host_gpu.Smi(), {"userspace": "580.1.2", "installed": True, "nouveau": True, "module_file": True}, "reboot_required", "nouveau"),
        (host_gpu.Smi(), {"userspace": "580.1.2", "installed": True, "module_file": True}, "broken", "modprobe"),
        (host_gpu.Smi(), {"userspace": "580.1.2", "installed": True, "headers": False}, "broken", "headers are missing"),
        (host_gpu.Smi(), {}, "absent", "No NVIDIA driver"),
        (host_gpu.Smi(), {"wsl": True}, "absent", "Windows"),
    ],
)
def test_driver_states(smi: host_gpu.Smi, more: dict, state: str, words: str) -> None:
    given_ = {"module": None, "userspace": None, **more}
    found, detail = host_gpu.judge_driver(1, given_.pop("module"), given_.pop("userspace"), smi, **given_)
    assert found == state and words in detail


@pytest.mark.parametrize(
    ("package", "listed", "state"),
    [
        ("nvidia-driver-580-open", True, "broken"),
        ("nvidia-open-kernel-dkms", True, "broken"),
        ("libnvidia-compute-580", True, "broken"),
        # Helpers and pins are there before the driver is, and the toolkit's parts never are one.
        ("nvidia-driver-pinning-580", True, "absent"),
        ("nvidia-modprobe", True, "absent"),
        ("nvidia-kernel-common", True, "absent"),
        ("cuda-compat-13-0", False, "absent"),
        ("nvidia-container-toolkit", False, "absent"),
        ("nvidia-cuda-toolkit", False, "absent"),
    ],
)
def test_which_packages_are_a_driver(tmp_path: Path, package: str, listed: bool, state: str) -> None:
    fixture = plain(**{"/var/lib/dpkg/status": [f"Package: {package}", "Status: install ok installed", "Architecture: amd64", "Version: 1:580.95.05-1", ""]})
    fixture["pci"] = [{"address": "0000:01:00.0", "device": "2335", "class": "0302"}]
    driver = read(tmp_path, fixture)["driver"]
    assert (package in driver["packages"], driver["state"]) == (listed, state)


def test_nvidia_smi_is_not_run_without_a_module(tmp_path: Path) -> None:
    fixture = plain(**{"/usr/bin/nvidia-smi": "", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05": ""})
    tools = Tools(fixture)
    facts = host.read_host(root=str(grow(tmp_path, fixture)), run=tools)
    assert [call for call in tools.calls if "nvidia-smi" in call[0]] == []
    assert facts["driver"]["userspace_version"] == "580.95.05"


def test_a_hanging_nvidia_smi_is_asked_once(tmp_path: Path) -> None:
    fixture = load("mixed")
    fixture["smi"] = {"fail": [host_files.TIMED_OUT, ""]}
    tools = Tools(fixture)
    facts = host.read_host(root=str(grow(tmp_path, fixture)), run=tools)
    assert len([call for call in tools.calls if "nvidia-smi" in call[0]]) == 1
    assert facts["driver"]["state"] == "broken" and "NvidiaSmiTimeout" in names(facts)


def test_a_hanging_tool_is_given_up() -> None:
    started = time.monotonic()
    # The child keeps the output open, as a stuck helper of a tool would.
    status, out, _err = host_files.run_command([sys.executable, "-c", "print('x', flush=True); import os, time; os.fork(); time.sleep(60)"], timeout_s=0.5)
    assert (status, out.split()[0]) == (host_files.TIMED_OUT, "x")
    assert time.monotonic() - started < 5


def test_a_tool_runs_in_the_c_locale_or_is_not_there() -> None:
    status, out, _err = host_files.run_command([sys.executable, "-c", "import os; print(os.environ['LC_ALL'])"])
    assert (status, out.strip()) == (0, "C")
    assert host_files.run_command(["/nonexistent/tool"])[0] == host_files.NOT_FOUND


# ---- containers, virtualization, processes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/run/systemd/container": "podman\n"}, "podman"),
        ({"/proc/1/environ": "container=systemd-nspawn\0"}, "systemd-nspawn"),
        ({"/run/.containerenv": "engine=podman"}, "podman"),
        ({"/.dockerenv": ""}, "docker"),
        ({"/proc/1/cgroup": "0::/kubepods.slice/x\n"}, "kubernetes"),
        ({}, None),
    ],
)
def test_containers(tmp_path: Path, files: dict, expected: str) -> None:
    assert host_system.read_container(host_files.Host(root=str(grow(tmp_path, plain(**files))))) == expected


def test_a_marker_file_in_the_first_namespaces_is_no_container(tmp_path: Path) -> None:
    fixture = plain(**{"/.dockerenv": ""})
    fixture["links"] = {"/proc/self/ns/pid": "pid:[4026531836]", "/proc/self/ns/uts": "uts:[4026531838]", "/proc/self/ns/ipc": "ipc:[4026531839]"}
    assert host_system.read_container(host_files.Host(root=str(grow(tmp_path, fixture)))) is None


def test_leftovers(tmp_path: Path) -> None:
    build = "/opt/ironwheel/builds/abc123"
    processes = [
        {"pid": 1, "ppid": 0, "comm": "systemd"},
        # Alive: python waits for ninja, which waits for a shell, which waits for nvcc.
        {"pid": 100, "ppid": 1, "comm": "python3.12"},
        {"pid": 101, "ppid": 100, "comm": "ninja", "cwd": f"{build}/src/build", "uid": 1000},
        {"pid": 102, "ppid": 101, "comm": "sh", "argv": ["sh", "-c", "nvcc x.cu"]},
        {"pid": 103, "ppid": 102, "comm": "nvcc", "cwd": f"{build}/src/build", "uid": 1000},
        {"pid": 104, "ppid": 103, "comm": "cicc", "cwd": f"{build}/src/build", "uid": 1000, "rss_kib": 4096000, "start_ticks": 400000},
        # Orphans: what was above them is gone, and process 1 or the user's systemd took them.
        {"pid": 200, "ppid": 1, "comm": "cicc", "cwd": "/home/llm/fa", "uid": 1000, "rss_kib": 8192000},
        {"pid": 300, "ppid": 1, "comm": "systemd", "uid": 1000},
        {"pid": 301, "ppid": 300, "comm": "sh", "argv": ["sh", "-c", "nvcc y.cu"]},
        {"pid": 302, "ppid": 301, "comm": "ptxas", "uid": 1000, "argv": ["ptxas", "/opt/ironwheel/builds/old/tmp/y.ptx"]},
        # A person at a shell, and make: alive, whoever they are.
        {"pid": 400, "ppid": 1, "comm": "sshd"},
        {"pid": 401, "ppid": 400, "comm": "bash", "argv": ["-bash"]},
        {"pid": 402, "ppid": 401, "comm": "nvcc", "uid": 1000},
        {"pid": 403, "ppid": 1, "comm": "make"},
        {"pid": 404, "ppid": 403, "comm": "cudafe++"},
        # ssh runs one command without a shell around it; a container's shell runs a script.
        {"pid": 405, "ppid": 400, "comm": "nvcc"},
        {"pid": 410, "ppid": 1, "comm": "bash", "argv": ["bash", "build.sh"]},
        {"pid": 411, "ppid": 410, "comm": "cicc"},
        # A gate is not what waits for a build: without ninja above it, it is an orphan like its compiler.
        {"pid": 420, "ppid": 1, "comm": "python3", "argv": ["python3", "-I", "-S", "/opt/ironwheel/builds/x/nvcc_gate", "-c", "a.cu"]},
        {"pid": 421, "ppid": 420, "comm": "nvcc"},
        # Its parent cannot be seen (hidepid): not known to be an orphan.
        {"pid": 430, "ppid": 99999, "comm": "nvcc"},
        # Dead already.
        {"pid": 500, "ppid": 1, "comm": "nvcc", "state": "Z"},
    ]
    fixture = {"files": {"/etc/passwd": "llm:x:1000:1000::/home/llm:/bin/sh\n", "/proc/uptime": "5000.5 1.0\n"}, "processes": processes}
    found = {entry["pid"]: entry for entry in read(tmp_path, fixture)["build_leftovers"]}
    assert sorted(found) == [101, 103, 104, 200, 302, 402, 404, 405, 411, 421, 430]
    assert {pid for pid, entry in found.items() if entry["orphan"]} == {200, 302, 421}
    assert all(entry["alive"] is not entry["orphan"] for entry in found.values())
    assert found[104] == {
        "pid": 104, "name": "cicc", "user": "llm", "age_s": 1000, "rss_mib": 4000, "build": build, "ours": True, "alive": True, "orphan": False,
    }  # fmt: skip
    assert (found[200]["build"], found[200]["ours"], found[200]["rss_mib"]) == ("/home/llm/fa", False, 8000)
    assert (found[302]["build"], found[302]["ours"]) == ("/opt/ironwheel/builds/old", True)


@pytest.mark.parametrize(("first", "orphan"), [("make", False), ("bash", False), ("python3", False), ("systemd", True), ("sleep", True), ("agent", True)])
def test_what_process_one_means(tmp_path: Path, first: str, orphan: bool) -> None:
    fixture = {"processes": [{"pid": 1, "ppid": 0, "comm": first}, {"pid": 7, "ppid": 1, "comm": "nvcc"}]}
    assert [entry["orphan"] for entry in read(tmp_path, fixture)["build_leftovers"]] == [orphan]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:secret@host/simple", "https://********@host/simple"),
        ("https://a:b@one/s https://two/s https://c@three/s", "https://********@one/s https://two/s https://********@three/s"),
        ("name=https://u:p@host/x", "name=https://********@host/x"),
        ("user:pw@proxy:3128", "********@proxy:3128"),
        ("https://host/simple?token=abc&x=1", "https://host/simple?token=********&x=1"),
        ("https://host/@scope/pkg", "https://host/@scope/pkg"),
        ("/wheels", "/wheels"),
        ("localhost,127.0.0.1,.example", "localhost,127.0.0.1,.example"),
    ],
)
def test_secrets_in_urls_are_masked(text: str, expected: str) -> None:
    assert host_software.mask_urls(text) == expected


def test_a_missing_certificate_bundle_is_said(tmp_path: Path) -> None:
    facts = read(tmp_path, plain(), environ={"SSL_CERT_FILE": "/etc/none.pem"})
    assert facts["ca_bundle"] is None and "CaBundleMissing" in names(facts)


def test_subset_leaves_other_sections_out(tmp_path: Path) -> None:
    assert set(read(tmp_path, "mixed", subset={"cpu", "gpus"})) == {"schema", "cpu", "gpus", "nvswitches", "vgpu", "warnings"}


def test_os_release_quoting() -> None:
    text = "ID='sles'\nVERSION_ID=\"15.6\"\nPRETTY_NAME=\"A \\\"quoted\\\" name\"\n# comment\nID_LIKE=suse\nnonsense\nBROKEN=\""
    parsed = host_system.parse_os_release(text)
    assert (parsed["ID"], parsed["VERSION_ID"], parsed["PRETTY_NAME"], parsed["BROKEN"]) == ("sles", "15.6", 'A "quoted" name', '"')


def test_an_empty_root_gives_nulls_and_warnings(tmp_path: Path) -> None:
    facts = read(tmp_path, {})
    assert facts["os"]["id"] is None and facts["memory"]["usable_mib"] is None and facts["cpu"]["usable"] is None
    assert {"OsUnknown", "GlibcUnknown", "CpuUnknown", "MemoryUnknown"} <= set(names(facts))


def test_what_is_there_but_cannot_be_read_is_said(tmp_path: Path) -> None:
    facts = read(tmp_path, {"folders": ["/proc/meminfo"]})
    assert "FileUnreadable" in names(facts) and facts["memory"]["total_mib"] is None


def test_links_cannot_leave_the_root_or_loop(tmp_path: Path) -> None:
    fixture = {"files": {"/etc/real": "inside"}, "links": {"/a": "/etc/real", "/b": "../../../etc/real", "/c": "/d", "/d": "/c"}}
    there = host_files.Host(root=str(grow(tmp_path, fixture)))
    assert there.text("/a") == "inside" and there.text("/b") == "inside" and there.text("/c", quiet=True) is None


# ---- nothing raises

GARBAGE_PATHS = (
    "/etc/os-release",
    "/etc/passwd",
    "/proc/77/cmdline",
    "/proc/77/stat",
    "/proc/77/status",
    "/proc/cpuinfo",
    "/proc/driver/nvidia/version",
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/proc/self/environ",
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/sys/kernel/osrelease",
    "/proc/uptime",
    "/proc/version",
    "/sys/bus/pci/devices/0000:01:00.0/config",
    "/sys/devices/system/cpu/online",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory.max",
    "/sys/module/nvidia/version",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/local/cuda-13.0/include/cuda.h",
    "/usr/local/cuda-13.0/version.json",
    "/var/lib/dpkg/status",
)
SHAPED = st.text(alphabet="0123456789-,:./ \n\t=maxkB", max_size=60)
CONTENT = st.binary(max_size=120) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")) | SHAPED.map(str.encode)


@pytest.fixture(scope="module")
def garbage_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("garbage")
    files = {"/usr/local/cuda-13.0/bin/nvcc": "", "/usr/bin/nvidia-smi": "", "/usr/bin/gcc": "", "/usr/bin/python3.12": "", "/proc/77/comm": "cicc\n"}
    return grow(root, {"files": {**files, **dict.fromkeys(GARBAGE_PATHS, "")}, "pci": [{"address": "0000:01:00.0", "device": "2684", "class": "0300"}]})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(st.sampled_from(GARBAGE_PATHS), CONTENT, max_size=8), output=st.text(max_size=80) | SHAPED, status=st.sampled_from([0, 1, 127]))
def test_garbage_never_raises(garbage_root: Path, files: dict, output: str, status: int) -> None:
    for path in GARBAGE_PATHS:
        (garbage_root / path.lstrip("/")).write_bytes(files.get(path, b""))
    facts = host.read_host(root=str(garbage_root), run=lambda argv: (status, output, output))
    # The guard around a section is for what nobody foresaw: no garbage may need it.
    assert [entry for entry in facts["warnings"] if entry["warning"] == "SectionUnreadable"] == []
    json.dumps(facts)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | SHAPED)
def test_parsers_never_raise(text: str) -> None:
    host_system.parse_os_release(text)
    host_system.parse_list_format(text)
    host_system.parse_keyed_kib(text)
    host_system.parse_mountinfo(text)
    host_system.parse_cgroups(text)
    host_system.parse_status(text)
    host_system.kernel_compiler(text)
    host_software.parse_nvcc(text)
    host_software.parse_version_json(text)
    host_software.parse_version_txt(text)
    host_software.parse_cuda_h(text)
    host_software.parse_compiler_version(text)
    host_software.parse_environ(text)
    host_software.mask_urls(text)
    host_gpu.parse_dpkg_status(text)
    host_gpu.upstream_version(text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 31))
def test_usable_memory_never_exceeds_any_limit(limit: int, usage: int, cache: int, available_kib: int) -> None:
    headroom = max(0, limit - max(0, usage - cache))
    group_limit = limit

    class Fake(host_files.Host):
        def data(self, path: str, limit: int = 0, quiet: bool = False) -> bytes | None:
            content = {
                "/proc/meminfo": f"MemTotal: {1 << 31} kB\nMemAvailable: {available_kib} kB\nSwapTotal: {1 << 31} kB\nSwapFree: {1 << 31} kB\n",
                "/proc/self/cgroup": "0::/\n",
                "/proc/self/mountinfo": "31 27 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                "/sys/fs/cgroup/memory.max": str(group_limit),
                "/sys/fs/cgroup/memory.current": str(usage),
                "/sys/fs/cgroup/memory.stat": f"inactive_file {cache}\n",
            }.get(path)
            return None if content is None else content.encode()

    memory = host_system.read_memory(Fake(root="/nonexistent"))
    assert memory["usable_mib"] == min(headroom // MIB, available_kib // 1024)
