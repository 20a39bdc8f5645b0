# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""torch versions, C++ ABI, and the fingerprint of an extension."""

from __future__ import annotations

import contextlib

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_abi
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import case


@pytest.mark.parametrize(
    ("text", "release", "local", "cuda", "vendor"),
    [
        ("2.9.1+cu128", "2.9.1", "cu128", "12.8", False),
        ("2.13.0+cpu", "2.13.0", "cpu", None, False),
        ("2.14.0", "2.14.0", None, None, False),
        ("2.5.0a0+872d972e41.nv24.08", "2.5.0", "872d972e41.nv24.08", None, True),
        ("2.13.0a0+8145d630e8.nv26.06", "2.13.0", "8145d630e8.nv26.06", None, True),
        ("2.10.0.dev20251101+cu130", "2.10.0", "cu130", "13.0", True),
        ("2.7.0a0+git1234567", "2.7.0", "git1234567", None, True),
        ("2.9.1+rocm6.4", "2.9.1", "rocm6.4", None, True),
        ("2.4.1.post3", "2.4.1", None, None, False),
    ],
)
def test_parse(text, release, local, cuda, vendor):
    found = torch_abi.parse(text)
    assert (found.release, found.local, found.cuda, found.vendor) == (release, local, cuda, vendor)


@pytest.mark.parametrize("text", ["", "torch", "2", "2.9.1+", "2.9.1 cu128", "2.9.1+cu128;rm", "v2.9.1", "2.9.1\n+cu128"])
def test_parse_refuses(text):
    with pytest.raises(IronwheelError):
        torch_abi.parse(text)


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(max_size=40), st.from_regex(r"2\.\d{1,2}\.\d(a0)?(\+[a-z0-9.]{0,20})?", fullmatch=True)))
def test_parse_raises_nothing_but_its_own(text):
    with contextlib.suppress(IronwheelError):
        torch_abi.parse(text)


@pytest.mark.parametrize(
    ("version", "variant", "new"),
    [("2.6.0", "cu124", False), ("2.6.0", "cu126", True), ("2.7.0", "cu126", True), ("2.14.0", "cu130", True), ("2.4.1", "cu121", False)],
)
def test_cxx11_abi(version, variant, new):
    assert torch_abi.cxx11_abi(version, variant) is new


def fields(**changes):
    arguments = {
        "package": "flash-attn",
        "version": "2.8.3",
        "source_sha256": "a" * 64,
        "fixes": ["cxx20"],
        "torch": "2.14.0+cu130",
        "torch_git": None,
        "cuda": "13.0",
        "abi": True,
        "python": "3.12.3",
        "machine": "x86_64",
        "glibc": "2.39",
        "architectures": ["9.0", "12.0"],
    }
    return torch_abi.fingerprint_fields(**{**arguments, **changes})


def test_fields_have_one_form():
    assert fields(architectures=["12.0", "9.0", "9.0"], fixes=["cxx20", "cxx20"], python="3.12", cuda="13.0.88") == fields()
    assert fields()["architectures"] == ["9.0", "12.0"]
    assert set(fields()) == set(torch_abi.FINGERPRINT_FIELDS)
    assert fields(torch_git="abcdef0") == fields()
    vendor = "2.13.0a0+8145d630e8.nv26.06"
    assert fields(torch=vendor, torch_git="8145d630e8")["torch_git"] == "8145d630e8"


OTHERS = {
    "package": "causal-conv1d",
    "version": "2.8.3.post2",
    "source_sha256": "b" * 64,
    "fixes": [],
    "torch": "2.14.1+cu130",
    "torch_git": "abcdef0",
    "cuda": "13.2",
    "cxx11_abi": False,
    "python": "3.13",
    "machine": "aarch64",
    "glibc": "2.41",
    "architectures": ["9.0"],
}


@pytest.mark.parametrize("name", torch_abi.FINGERPRINT_FIELDS)
def test_fingerprint_changes_with_each_of_its_fields(name):
    assert torch_abi.fingerprint({**fields(), name: OTHERS[name]}) != torch_abi.fingerprint(fields())


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(torch_abi.FINGERPRINT_FIELDS), st.booleans()), st.dictionaries(st.text(max_size=8), st.integers(), max_size=3))
def test_fingerprint_changes_exactly_when_a_field_does(changes, strangers):
    changed = {name: OTHERS[name] for name, really in changes.items() if really}
    mixed = {**{key: value for key, value in strangers.items() if key not in torch_abi.FINGERPRINT_FIELDS}, **fields(), **changed}
    assert (torch_abi.fingerprint(mixed) == torch_abi.fingerprint(fields())) is (not changed)


def test_fingerprint_needs_every_field():
    with pytest.raises(IronwheelError, match="glibc"):
        torch_abi.fingerprint({name: value for name, value in fields().items() if name != "glibc"})


def test_serves():
    host = fields()
    assert torch_abi.serves(host, host) == []
    assert torch_abi.serves({**host, "architectures": ["8.0", "9.0", "12.0"], "glibc": "2.35"}, host) == []
    assert torch_abi.serves({**host, "glibc": "2.41"}, host) == ["built with glibc 2.41, the host has 2.39"]
    assert torch_abi.serves({**host, "architectures": ["9.0"]}, host) == ["no code for architecture 12.0"]
    assert "glibc" in torch_abi.serves({**host, "glibc": None}, host)[0]
    for name in torch_abi.FINGERPRINT_FIELDS:
        if name not in ("architectures", "glibc"):
            reasons = torch_abi.serves({**host, name: OTHERS[name]}, host)
            assert len(reasons) == 1, name
    assert len(torch_abi.serves({}, host)) > 5


@pytest.mark.parametrize("name", [pytest.param("B10", id="case-B10")])
def test_cached_wheel_of_another_torch_is_no_hit(name):
    reported = case(name)
    (cached,) = reported["input"]["cache"]
    now = reported["input"]["now"]
    common = {"package": cached["package"], "version": cached["version"], "fixes": []}
    built = fields(**common, torch=cached["built_for"]["torch"], cuda=cached["built_for"]["cuda"], abi=cached["built_for"]["abi"])
    wanted = fields(**common, torch=now["torch"], cuda=now["cuda"], abi=now["abi"])
    assert (torch_abi.fingerprint(built) == torch_abi.fingerprint(wanted)) is reported["expected"]["checks"]["cache_hit"]
    assert torch_abi.serves(built, wanted)


@pytest.mark.parametrize(
    ("planned", "version", "cuda", "error"),
    [
        (("2.9.1", "cu128"), "2.9.1+cu128", "12.8", None),
        (("2.9.1", "cu128"), "2.9.1", "12.8", None),
        (("2.13.0", "cpu"), "2.13.0+cpu", None, None),
        (("2.9.1", "cu126"), "2.9.1", "12.8", "TorchVariantMismatch"),
        (("2.13.0", "cpu"), "2.13.0+cu130", "13.0", "TorchVariantMismatch"),
        (("2.9.1", "cu128"), "2.9.1+cpu", None, "TorchWithoutCuda"),
        (("2.9.1", "cu128"), "2.10.0+cu128", "12.8", "TorchVersionMismatch"),
    ],
)
def test_check_identity(planned, version, cuda, error):
    wanted = {"version": planned[0], "local": planned[1]}
    if error is None:
        torch_abi.check_identity(wanted, version, cuda)
        return
    with pytest.raises(IronwheelError) as caught:
        torch_abi.check_identity(wanted, version, cuda)
    assert caught.value.error == error
    assert "+".join(planned) in caught.value.message or planned[1] in caught.value.message
