# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CUDA limits, and that the tables behind them agree with each other."""

from __future__ import annotations

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import drivers
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.cuda_toolkits import CUDA_TOOLKITS
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.torch_releases import TORCH_ARCHITECTURES, TORCH_FAMILY, TORCH_MAX_GCC, TORCH_RELEASES
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.vllm_releases import VLLM_CPU_RELEASES, VLLM_RELEASES


@pytest.mark.parametrize(("variant", "release"), [("cu128", "12.8"), ("cu130", "13.0"), ("cu118", "11.8"), ("cpu", None)])
def test_variant_cuda(variant, release):
    assert cuda.variant_cuda(variant) == release


@pytest.mark.parametrize("variant", ["", "cu13", "cu1300", "rocm6.4", "CU130", "cu130\n"])
def test_variant_that_is_none(variant):
    with pytest.raises(IronwheelError):
        cuda.variant_cuda(variant)


@pytest.mark.parametrize(
    ("architectures", "capability", "how"),
    [
        (["8.0", "9.0"], "8.6", "machine"),
        (["8.6"], "8.0", None),
        (["9.0", "12.0", "12.0+PTX"], "12.1", "machine"),
        (["12.0", "12.0+PTX"], "13.0", "ptx"),
        (["10.0"], "10.3", "machine"),
        (["10.0"], "12.0", None),
        (["7.5", "12.0+PTX"], "9.0", None),
        (["9.0a"], "9.0", "machine"),
        ([], "9.0", None),
    ],
)
def test_code_for(architectures, capability, how):
    assert cuda.code_for(architectures, capability) == how


def test_drivers_of_cuda():
    assert cuda.min_driver("12.8") == "525.60.13"
    assert cuda.min_driver("13.2") == "580"
    assert cuda.min_driver("13.99") == "580"
    assert cuda.min_driver("14.0") == CUDA_TOOLKITS["13.5"]["driver"]
    assert cuda.loads_ptx("13.0", "580.95.05")
    assert not cuda.loads_ptx("13.2", "580.95.05")
    assert cuda.driver_for_capability("12.0") == "570.26"
    assert cuda.driver_for_capability("12.1") == "575.51.03"
    assert cuda.driver_for_capability("8.0") is None


@pytest.mark.parametrize(
    ("toolkit", "glibc", "works"),
    [
        ("12.8", "2.40", True),
        ("12.9", "2.41", False),
        ("13.0", "2.41", True),
        ("13.1", "2.42", False),
        ("13.2", "2.43", True),
        ("12.8", None, True),
        ("99.0", "2.43", True),
    ],
)
def test_glibc(toolkit, glibc, works):
    fault = cuda.glibc_fault(toolkit, glibc)
    assert (fault is None) is works
    if fault:
        assert glibc in fault
        assert toolkit in fault


@pytest.mark.parametrize(
    ("toolkit", "torch", "highest", "lowest"),
    [
        ("12.8", "2.9.1", 14, "9"),
        ("12.8", "2.11.0", 13, "9"),
        ("12.8", "2.12.0", 14, "9"),
        ("13.0", "2.14.0", 15, "11.3"),
        ("13.4", "2.15.0", 16, "11.3"),
        ("12.0", "2.4.0", 12, "9"),
    ],
)
def test_gcc_limits(toolkit, torch, highest, lowest):
    limits = cuda.gcc_limits(toolkit, torch)
    assert limits["max_major"] == highest
    assert limits["min_version"] == lowest
    assert cuda.gcc_fault(f"{highest}.2.0", limits) is None
    assert "too new" in cuda.gcc_fault(f"{highest + 1}.1.0", limits)
    assert "too old" in cuda.gcc_fault("8.5.0", limits)


def test_default_compiler_is_kept_when_it_serves():
    compilers = {
        "gxx": "13.3.0",
        "all": [{"path": "/usr/bin/g++-14", "kind": "gxx", "version": "14.2.0"}, {"path": "/usr/bin/gcc", "kind": "gcc", "version": "13.3.0"}],
    }
    chosen, trace = cuda.choose_gcc(compilers, cuda.gcc_limits("13.0", "2.14.0"))
    assert chosen == {"path": "g++", "version": "13.3.0"}
    assert [entry[:2] for entry in trace] == [("g++ 13.3.0", "accepted")]
    assert cuda.choose_gcc({}, cuda.gcc_limits("13.0", None)) == (None, [])


def test_toolkit_choice_prefers_the_equal_minor_over_an_allowed_one():
    installed = [{"path": "/a", "version": "13.1"}, {"path": "/b", "version": "13.0"}, {"path": "/c", "version": "12.8"}, {"path": "/d", "version": None}]
    chosen, trace = cuda.choose_toolkit(installed, "13.0", allow_same_major=True)
    assert chosen["path"] == "/b"
    assert [entry[1] for entry in trace].count("accepted") == 1
    assert len(trace) == len(installed)
    only, _trace = cuda.choose_toolkit(installed[:1], "13.0", allow_same_major=True)
    assert only["path"] == "/a"
    none, _trace = cuda.choose_toolkit(installed[2:], "13.0", allow_same_major=True)
    assert none is None


# --- the tables


@pytest.mark.parametrize("version", list(VLLM_RELEASES))
def test_every_vllm_pins_a_torch_that_has_a_build_of_its_cuda(version):
    row = VLLM_RELEASES[version]
    known = TORCH_RELEASES[row["torch"]]
    majors = {versions.major(cuda.variant_cuda(local)) for local in [known["pypi"], *known["variants"]]}
    assert row["cuda_major"] in majors
    assert row["torch"] in TORCH_FAMILY


def test_tables_are_newest_first():
    for table in (VLLM_RELEASES, TORCH_RELEASES, CUDA_TOOLKITS):
        assert list(table) == sorted(table, key=versions.parse, reverse=True)
    assert list(drivers.DRIVER_BRANCHES) == sorted(drivers.DRIVER_BRANCHES, key=int)


def test_tables_agree_with_each_other():
    for version, row in TORCH_RELEASES.items():
        assert row["pypi"] in row["variants"]
        for local in row["variants"]:
            assert versions.minor(cuda.variant_cuda(local)) in CUDA_TOOLKITS
        assert set(TORCH_ARCHITECTURES[versions.minor(version)]) <= set(row["variants"])
    for bounds in TORCH_MAX_GCC.values():
        assert all(bounds[release] <= CUDA_TOOLKITS[release]["max_gcc"] + 1 for release in bounds if release in CUDA_TOOLKITS)
    for row in VLLM_CPU_RELEASES.values():
        assert row["torch"] in TORCH_RELEASES
    assert drivers.DRIVER_BRANCHES[drivers.DEFAULT_BRANCH]["supported"]


def test_no_build_of_cuda_12_6_has_code_for_blackwell():
    for variants in TORCH_ARCHITECTURES.values():
        for machine in ("x86_64", "aarch64"):
            architectures = (variants.get("cu126") or {}).get(machine)
            if architectures:
                assert cuda.code_for(architectures, "12.0") is None
                assert cuda.code_for(architectures, "10.0") is None
