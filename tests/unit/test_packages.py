# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Descriptions of extensions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import packages
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

CASES = Path(__file__).parent / "fixtures" / "cases"


@pytest.mark.parametrize("name", [pytest.param("A19", id="case-A19")])
def test_each_package_reads_its_own_arch_variable(name):
    case = json.loads((CASES / f"{name}.json").read_text())
    wanted = case["input"]["archs"]
    for name, expected in case["expected"]["checks"].items():
        package = packages.describe(name)
        if isinstance(expected, dict):
            assert package.arch_env(wanted) == expected
            assert package.planned_architectures(wanted) == wanted
        else:
            assert "default arch list assumed" in expected
            assert package.arch_env(wanted) == {}
            assert len(package.planned_architectures(wanted)) > 1
            # The gate drops what nobody asked for.
            assert package.planned_architectures(wanted, gated=True) == wanted


@pytest.mark.parametrize(
    ("capabilities", "value"),
    [
        (["8.0"], "80"),
        (["8.6"], "80"),
        (["8.9", "8.0"], "80"),
        (["9.0", "8.9"], "80;90"),
        (["10.3"], "100"),
        (["12.1"], "120"),
        (["12.0", "10.0", "9.0", "8.0"], "80;90;100;120"),
    ],
)
def test_flash_attn_architectures(capabilities, value):
    assert packages.describe("flash_attn").arch_value(capabilities, "2.8.3") == value


@pytest.mark.parametrize("capability", ["7.0", "7.5", "6.1", "13.0"])
def test_flash_attn_refuses_gpus_without_code(capability):
    package = packages.describe("flash-attn")
    assert not package.supports(capability)
    with pytest.raises(IronwheelError, match=f"architecture {capability}: flash-attn.*building cannot help") as caught:
        package.arch_value([capability])
    assert caught.value.error == "UnsupportedGpu"


def test_support_and_variables_follow_the_release():
    package = packages.describe("flash-attn")
    assert not package.supports("11.0", "2.8.3.post2")
    assert package.arch_value(["11.0"], "2.8.4") == "110"
    assert package.arch_env(["8.0"], "2.7.2") == {}
    assert package.planned_architectures(["8.0"], "2.7.2") == ["8.0", "9.0", "10.0", "12.0"]
    assert (package.units("2.8.3"), package.units("2.6.3"), package.units()) == (72, None, 72)


def test_max_jobs_means_processes_or_threads():
    assert packages.describe("flash-attn").jobs_env(4, 2) == {"MAX_JOBS": "4", "NVCC_THREADS": "2"}
    assert packages.describe("vllm").jobs_env(4, 2) == {"MAX_JOBS": "8", "NVCC_THREADS": "2"}
    assert packages.describe("causal-conv1d").jobs_env(4) == {"MAX_JOBS": "4"}


@pytest.mark.parametrize(
    ("version", "torch", "names"),
    [
        ("2.8.3.post2", "2.14.0+cu130", ["cxx20"]),
        ("2.8.3", "2.15.0", ["cxx20"]),
        ("2.7.4.post1", "2.14.1", ["cxx20"]),
        ("2.8.3.post2", "2.13.0", []),
        ("2.8.3.post2", "2.9.1+cu128", []),
        ("2.8.4", "2.14.0", []),
        ("2.8.3.post3", "2.14.0", []),
    ],
)
def test_the_known_fault_of_flash_attn_beside_torch_2_14(version, torch, names):
    assert [fix.name for fix in packages.describe("flash-attn").fixes_for(version, torch)] == names


def test_a_fix_replaces_says_why_and_refuses_what_it_does_not_know():
    (fix,) = packages.describe("flash-attn").fixes_for("2.8.3", "2.14.0")
    text = 'extra_compile_args={"cxx": ["-O3", "-std=c++17"], "nvcc": ["-std=c++17"]}'
    mended = fix.apply(text)
    assert mended == text.replace("17", "20")
    assert fix.apply(mended) == mended
    assert "C++17" in fix.reason
    assert fix.condition == "torch >= 2.14 and flash-attn <= 2.8.3.post2"
    with pytest.raises(IronwheelError, match="does not apply") as caught:
        fix.apply("nothing of the kind")
    assert caught.value.error == "FixDoesNotApply"


def test_names_are_found_in_any_spelling_and_wrong_ones_named():
    assert packages.describe("Flash_Attn") is packages.describe("flash-attn")
    with pytest.raises(IronwheelError, match="Did you mean 'flash-attn'") as caught:
        packages.describe("flash-atn")
    assert caught.value.error == "UnknownExtension"


def test_every_description_is_complete():
    for package in packages.PACKAGES.values():
        assert package.memory_class in build_costs.CLASSES
        assert package.max_jobs in ("multiplies", "divides")
        assert package.arch_variable or package.hard_coded
        for capability in package.hard_coded:
            assert package.supports(capability), (package.name, capability)


def test_an_extension_of_the_users_own():
    package = packages.from_user(
        {
            "name": "My_Kernels",
            "module": "my_kernels._C",
            "memory_class": "small",
            "units": 3,
            "force_build": {"MY_FORCE": 1},
            "fixes": [{"name": "std", "reason": "old", "file": "setup.py", "old": "a", "new": "b", "torch_from": "2.14"}],
        }
    )
    assert package.name == "my-kernels"
    assert package.arch_env(["9.0", "12.0"]) == {"TORCH_CUDA_ARCH_LIST": "9.0;12.0"}
    assert package.units("0.1") == 3
    assert package.force_build == {"MY_FORCE": "1"}
    assert [fix.name for fix in package.fixes_for("1.0", "2.14.0")] == ["std"]
    assert package.fixes_for("1.0", "2.13.0") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"module": None}, "'module' must be of type str"),
        ({"module": "not a module"}, "is not a module name"),
        ({"memory_clas": "small"}, "Did you mean 'memory_class'"),
        ({"memory_class": "huge"}, "'memory_class' is 'huge'; it must be one of"),
        ({"max_jobs": "adds"}, "'max_jobs' is 'adds'"),
        ({"arch_variable": "MY ARCH"}, "is not the name of an environment variable"),
        ({"units": 0}, "must be at least 1"),
        ({"units": True}, "must be of type int"),
        ({"min_capability": "9"}, "is not a compute capability"),
        ({"force_build": {"A B": "1"}}, "is not the name of an environment variable"),
        ({"fixes": [{"name": "x"}]}, "'reason' is missing"),
        ({"fixes": [{"name": "x", "reason": "y", "file": "../a", "old": "1", "new": "2"}]}, "must be a path inside the source"),
        ({"fixes": [{"name": "x", "reason": "y", "file": "a", "old": "1", "new": "2", "until": "new"}]}, "is not a version"),
    ],
)
def test_wrong_descriptions_are_named(change, says):
    with pytest.raises(IronwheelError, match=says):
        packages.from_user({"name": "mine", "module": "mine", **change})


def test_a_description_needs_name_and_module():
    with pytest.raises(IronwheelError, match="'name' is missing"):
        packages.from_user({"module": "x"})
    with pytest.raises(IronwheelError, match="'module' is missing"):
        packages.from_user({"name": "x"})
    with pytest.raises(IronwheelError, match="must be a mapping"):
        packages.from_user(["x"])
