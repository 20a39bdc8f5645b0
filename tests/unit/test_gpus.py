# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs: PCI identity, capability, and nvidia-smi's output of every generation."""

from __future__ import annotations

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.gpu_models import MODELS
from host_trees import case
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", [pytest.param("F01", id="case-F01")])
def test_banner_labels_since_610(name: str) -> None:
    reported = case(name)
    checks = reported["expected"]["checks"]
    assert gpus.parse_banner(reported["input"]["nvidia_smi_header"]) == (checks["driver"], checks["cuda_max"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("| NVIDIA-SMI 470.256.02   Driver Version: 470.256.02   CUDA Version: 11.4     |", ("470.256.02", "11.4")),
        ("| NVIDIA-SMI 390.157                Driver Version: 390.157                   |", ("390.157", None)),
        ("| NVIDIA-SMI 575.64.01   Driver Version: 576.80   CUDA Version: 12.9 |", ("576.80", "12.9")),
        ("| NVIDIA-SMI 560.35   Driver Version: 560.35   CUDA Version: N/A |", ("560.35", None)),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", (None, None)),
    ],
)
def test_banner(text: str, expected: tuple) -> None:
    assert gpus.parse_banner(text) == expected


@pytest.mark.parametrize("name", [pytest.param("F02", id="case-F02")])
def test_capability_of_old_driver_comes_from_the_table(name: str) -> None:
    reported = case(name)
    assert gpus.rejected_field(reported["input"]["stdout"]) == reported["input"]["query"]
    assert [gpus.capability(model) for model in reported["input"]["names"]] == [reported["expected"]["checks"]["cc"]]


@pytest.mark.parametrize("name", [pytest.param("F03", id="case-F03")])
def test_placeholders_are_null(name: str) -> None:
    reported = case(name)
    assert gpus.parse_csv_line(reported["input"]["csv"]) == reported["expected"]["checks"]["fields"]


@pytest.mark.parametrize("text", ["ERR!", "[Unknown Error]", "[GPU is lost]", "[GPU requires reset]", "N/A", "", "  [N/A] "])
def test_more_placeholders(text: str) -> None:
    assert gpus.parse_value(text) is None


@pytest.mark.parametrize("name", [pytest.param("F06", id="case-F06")])
def test_lost_address(name: str) -> None:
    reported = case(name)
    assert gpus.lost_addresses(reported["input"]["smi_stderr"]) == ["0000:41:00.0"]
    rows = gpus.parse_query("\n".join(reported["input"]["smi_rows"]), ("index", "name", "memory.total", "compute_cap"))
    assert len(rows) == reported["expected"]["checks"]["gpu_count_usable"]


@pytest.mark.parametrize("name", [pytest.param("F07", id="case-F07")])
def test_mig_lines_belong_to_the_gpu_above(name: str) -> None:
    reported = case(name)
    checks = reported["expected"]["checks"]
    listed = gpus.parse_list(reported["input"]["smi_L"])
    assert len(listed) == checks["gpus"]
    assert sum(len(gpu["mig"]) for gpu in listed) == checks["mig_devices"]
    assert [gpu["index"] for gpu in listed if gpu["mig"]] == [checks["mig_parent"]]
    assert [device["profile"] for device in listed[0]["mig"]] == ["2g.20gb", "1g.10gb"]


def test_rows_that_are_no_rows_are_left_out() -> None:
    text = "0, NVIDIA L4, 23034, 8.9\nUnable to determine the device handle for GPU0000:41:00.0: Unknown Error\n1, NVIDIA L4, ERR!, 8.9\n"
    rows = gpus.parse_query(text, ("index", "name", "memory.total", "compute_cap"))
    assert [(row["index"], row["memory.total"]) for row in rows] == [(0, 23034), (1, None)]


def test_a_capability_stays_text_and_units_do_not_hurt() -> None:
    rows = gpus.parse_query("0, 4090, 24564 MiB, 8.9", ("index", "name", "memory.total", "compute_cap"))
    assert rows == [{"index": 0, "name": "4090", "memory.total": 24564, "compute_cap": "8.9"}]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        ("Failed to initialize NVML: Driver Not Loaded", "no_module"),
        ("No devices were found", "no_devices"),
        ("Failed to initialize NVML: Insufficient Permissions", "no_permission"),
        ("GPU access blocked by the operating system", "blocked"),
        ("0, NVIDIA L4", None),
    ],
)
def test_faults(text: str, fault: str) -> None:
    assert gpus.smi_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:41:00.0", "0000:41:00.0"), ("0000000F:01:00.0", "000f:01:00.0"), ("C1:00.0", "0000:c1:00.0"), ("[N/A]", None)],
)
def test_addresses(text: str, address: str) -> None:
    assert gpus.normal_address(text) == address


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "12.0"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("NVIDIA B200", "10.0"),
        ("NVIDIA GB200", "10.0"),
        ("NVIDIA B300 SXM6 AC", "10.3"),
        ("NVIDIA GB10", "12.1"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA H200 NVL", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A10G", "8.6"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA A40-48Q", "8.6"),
        ("Quadro RTX 6000", "7.5"),
        ("GRID RTX6000-24Q", "7.5"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("GRID V100D-32Q", "7.0"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("NVIDIA TITAN Xp", "6.1"),
        ("Tesla M60", "5.2"),
        ("Tesla K80", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_capability_by_name(name: str, expected: str) -> None:
    assert gpus.capability(name) == expected


def test_names_and_ids_of_the_table_agree() -> None:
    by_name = {device: gpus.capability(name) for device, (name, _capability) in MODELS.items()}
    wrong = {device: (MODELS[device], found) for device, found in by_name.items() if found is not None and found != MODELS[device][1]}
    assert wrong == {}
    assert sum(found is not None for found in by_name.values()) > 300


def test_the_id_tells_more_than_the_name() -> None:
    assert gpus.capability("Graphics Device", "2bb5") == "12.0"
    assert gpus.capability("Graphics Device", "ffff") is None


@pytest.mark.parametrize(
    ("vendor", "class_id", "expected"),
    [("10de", "0300", True), ("10de", "0302", True), ("10de", "0380", True), ("10de", "0403", False), ("10de", "0680", False), ("1002", "0300", False)],
)
def test_gpus_by_vendor_and_class(vendor: str, class_id: str, expected: bool) -> None:
    assert gpus.is_gpu(vendor, class_id) is expected


def test_nvswitches_by_id() -> None:
    assert gpus.is_nvswitch("10de", "0680", "22a3") and gpus.is_nvswitch("10de", "0680", "1af1")
    # The PCI bridge in front of a switch, and a chipset of 2004, are none.
    assert not gpus.is_nvswitch("10de", "0604", "22a8") and not gpus.is_nvswitch("10de", "0680", "0052")


@pytest.mark.parametrize(
    ("version", "cuda"),
    [("535.288.01", "12.2"), ("580.126.09", "13.0"), ("576.80", "12.9"), ("610.43.02", "13.3"), ("390.1", None), ("700.1", None), (None, None)],
)
def test_cuda_of_driver(version: str, cuda: str) -> None:
    assert gpus.cuda_of_driver(version) == cuda


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\nGCC version: 1", ("580.95.05", "open")),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024", ("470.256.02", "proprietary")),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  610.43.02  Release Build", ("610.43.02", "open")),
        ("nonsense", (None, None)),
    ],
)
def test_module_version(text: str, expected: tuple) -> None:
    assert gpus.parse_module_version(text) == expected


def test_vgpu_capability() -> None:
    config = bytearray(256)
    assert not gpus.has_vgpu_capability(bytes(config))
    config[0x06], config[0x34] = 0x10, 0x60
    config[0x60:0x62] = b"\x05\x70"
    config[0x70:0x75] = b"\x09\x00\x20VF"
    assert gpus.has_vgpu_capability(bytes(config))
    # What a user without privileges can read does not tell.
    assert not gpus.has_vgpu_capability(bytes(config[:64]))
    config[0x61], config[0x70] = 0x60, 0x10
    assert not gpus.has_vgpu_capability(bytes(config))


@pytest.mark.parametrize(("name", "expected"), [("GRID T4-16Q", True), ("NVIDIA L40S-48C", True), ("NVIDIA A100-SXM4-80GB", False), ("Tesla T4", False)])
def test_vgpu_names(name: str, expected: bool) -> None:
    assert gpus.is_vgpu_name(name) is expected


TEXTS = st.text(max_size=200) | st.text(alphabet="GPU MIG0123456789:.,()[]/N-A\n \t", max_size=200)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_parsers_never_raise(text: str) -> None:
    gpus.parse_banner(text)
    gpus.parse_list(text)
    gpus.parse_module_version(text)
    gpus.lost_addresses(text)
    gpus.smi_fault(text)
    gpus.rejected_field(text)
    gpus.normal_address(text)
    gpus.hex_id(text)
    gpus.capability(text, text)
    gpus.cuda_of_driver(text)
    gpus.is_vgpu_name(text)
    for row in gpus.parse_query(text, ("index", "name", "memory.total", "compute_cap")):
        assert isinstance(row["index"], int)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_configuration_space_never_loops(config: bytes) -> None:
    assert gpus.has_vgpu_capability(config) in (True, False)
