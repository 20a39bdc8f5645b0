# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wheel names of every known scheme, judged for a host."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import case

TARGET = wheels.Target("flash-attn", "2.8.3", "2.8.0+cu128", "12.8", True, "3.12", "x86_64", "2.39")


@pytest.mark.parametrize(
    ("name", "scheme", "torch", "cuda", "abi"),
    [
        ("flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", "publisher", "2.8", "12", True),
        ("flash_attn-2.8.2%2Bcu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl", "publisher", "2.6", "12", False),
        ("flash_attn-2.5.8+cu122torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl", "publisher", "2.3", "12.2", False),
        ("flash_attn-2.8.3+cu130torch2.14-cp312-cp312-linux_x86_64.whl", "community", "2.14", "13.0", None),
        ("flash_attn-2.8.3.post1+cu.13.0.torch.2.12-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl", "index", "2.12", "13.0", None),
        ("https://example.org/a/b/torch-2.9.1%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl#sha256=00", "variant", None, "12.8", None),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "variant", None, None, None),
        ("/srv/wheels/vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl", None, None, None, None),
        ("flash_attn-2.8.3-1-cp312-cp312-linux_x86_64.whl", None, None, None, None),
    ],
)
def test_schemes(name, scheme, torch, cuda, abi):
    found = wheels.parse(name)
    assert (found.scheme, found.torch, found.cuda, found.cxx11_abi) == (scheme, torch, cuda, abi)


def test_parts():
    found = wheels.parse("Flash_Attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert found.name == "flash-attn"
    assert (found.version, found.local) == ("2.8.3", "cu12torch2.8cxx11abiTRUE")
    assert found.platform_tags == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")


@pytest.mark.parametrize(
    "name", ["", "flash_attn.whl", "flash_attn-2.8.3.tar.gz", "a-1-b-c.whl", "../../etc/passwd", "x-1-py3-none-any.whl.exe", "https://[::1/x.whl"]
)
def test_names_that_are_none(name):
    with pytest.raises(IronwheelError) as caught:
        wheels.parse(name)
    assert caught.value.error == "InvalidWheelName"


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(r"[a-z_]{1,8}-[0-9.]{1,6}(\+[a-z0-9.]{0,24})?-(cp3\d{1,2}|py3)-(cp3\d{1,2}|abi3|none)-[a-z0-9_.]{1,24}\.whl", fullmatch=True),
        st.from_regex(r"https?://[^/]{0,20}/[^/]{0,40}\.whl", fullmatch=True),
    )
)
def test_parsing_and_judging_raise_nothing_but_their_own(name):
    try:
        found = wheels.parse(name)
        for target in (TARGET, dataclasses.replace(TARGET, glibc=None, torch="2.5.0a0+872d972e41.nv24.08")):
            assert all(isinstance(reason, str) for reason in wheels.judge(found, target))
    except IronwheelError:
        pass


GOOD = "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"


def test_fitting_wheel_has_no_fault():
    assert wheels.judge(wheels.parse(GOOD), TARGET) == []


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("flash_attn", "flash_attn_3", "wanted flash-attn"),
        ("2.8.3+", "2.8.2+", "release 2.8.2"),
        ("cu12torch", "cu13torch", "built for CUDA 13"),
        ("torch2.8", "torch2.9", "built for torch 2.9"),
        ("abiTRUE", "abiFALSE", "C++ ABI old"),
        ("cp312-cp312", "cp311-cp311", "for Python cp311-cp311"),
        ("linux_x86_64", "linux_aarch64", "for platform linux_aarch64"),
        ("linux_x86_64", "manylinux_2_41_x86_64", "needs glibc 2.41"),
        ("linux_x86_64", "musllinux_1_2_x86_64", "Linux with glibc"),
        ("linux_x86_64", "win_amd64", "for platform win_amd64"),
        ("+cu12torch2.8cxx11abiTRUE", "", "does not say which torch"),
    ],
)
def test_each_difference_has_its_reason(old, new, word):
    reasons = wheels.judge(wheels.parse(GOOD.replace(old, new)), TARGET)
    assert len(reasons) == 1
    assert word in reasons[0]


@pytest.mark.parametrize(("tags", "fits"), [("cp39-abi3", True), ("cp313-abi3", False), ("py3-none", True), ("cp312-cp312t", False), ("py2.py3-none", True)])
def test_python_tags(tags, fits):
    found = wheels.parse(GOOD.replace("cp312-cp312", tags))
    assert (wheels.judge(found, TARGET) == []) is fits


@pytest.mark.parametrize(
    ("platform", "fits"), [("manylinux1_x86_64", True), ("manylinux2014_x86_64", True), ("manylinux_2_99_x86_64.manylinux_2_28_x86_64", True), ("any", True)]
)
def test_platform_tags(platform, fits):
    assert (wheels.judge(wheels.parse(GOOD.replace("linux_x86_64", platform)), TARGET) == []) is fits


@pytest.mark.parametrize("name", [pytest.param("B03", id="case-B03")])
def test_no_public_wheel_serves_a_vendor_build_of_torch(name):
    reported = case(name)
    version = reported["input"]["torch"]["version"]
    target = dataclasses.replace(TARGET, torch=version, cuda=reported["input"]["torch"]["cuda"])
    public = GOOD.replace("torch2.8", f"torch{'.'.join(version.split('.')[:2])}").replace("2.5a0", "2.5")
    reasons = wheels.judge(wheels.parse(public), target)
    assert (reasons == []) is reported["expected"]["checks"]["public_wheel_allowed"]
    assert any("no public release" in reason for reason in reasons)


@pytest.mark.parametrize("name", [pytest.param("B20", id="case-B20-name")])
def test_wheel_for_the_neighbouring_torch_minor(name):
    reported = case(name)
    version = reported["input"]["torch"]["version"]
    target = dataclasses.replace(TARGET, torch=version, cuda="12.1", cxx11_abi=False)
    neighbour = "flash_attn-2.8.3+cu122torch2.3cxx11abiFALSE-cp312-cp312-linux_x86_64.whl"
    assert wheels.judge(wheels.parse(neighbour), target) == [f"built for torch 2.3, the environment has {version}"]
    assert wheels.judge(wheels.parse(neighbour.replace("torch2.3", "torch2.2")), target) == []


@pytest.mark.parametrize("name", [pytest.param("B01", id="case-B01-name")])
def test_a_name_that_fits_proves_nothing(name):
    """The name says the old ABI, as torch does; only the symbols tell. The name alone must therefore not rule it out, and never rules it in."""
    reported = case(name)
    torch = reported["input"]["torch"]
    found = wheels.parse(reported["input"]["wheel"])
    assert found.cxx11_abi is reported["expected"]["detail"]["wheel_abi_from_name"]
    target = wheels.Target("flash-attn", "2.8.2", torch["version"], "12.4", torch["cxx11_abi"], "3.12", "x86_64", "2.35")
    assert wheels.judge(found, target) == []
