# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verdicts over extensions: the reported cases, then real ELF files made with the host's compiler."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import abi, elf_modules, wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import abi_check
from hypothesis import given, settings
from hypothesis import strategies as st

CASES = Path(__file__).parent / "fixtures" / "cases"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def case(name: str) -> dict:
    return json.loads((CASES / f"{name}.json").read_text())


def finding(findings: list[abi.Finding], check: str) -> abi.Finding:
    return next(entry for entry in findings if entry.check == check)


@pytest.mark.parametrize("name", [pytest.param("B05", id="case-B05")])
def test_cuda_major_mismatch(name: str) -> None:
    given_case = case(name)
    torch = abi.TorchSide(given_case["input"]["torch"]["version"], given_case["input"]["torch"]["cuda"])
    result = abi.check_cuda_major(abi.ElfModule("x.so", needed=tuple(given_case["input"]["so_needed"])), torch)
    assert (result.verdict, result.error) == ("failed", given_case["expected"]["error"])
    assert result.detail == given_case["expected"]["detail"]


@pytest.mark.parametrize("name", [pytest.param("B01", id="case-B01")])
def test_abi_is_read_from_symbols_not_from_the_name(name: str) -> None:
    given_case = case(name)
    source = given_case["input"]
    torch = abi.TorchSide(source["torch"]["version"], "12.4", cxx11_abi=source["torch"]["cxx11_abi"])
    module = abi.ElfModule("x.so", undefined=tuple(source["undefined_symbols"]))
    result = abi.check_cxx11_abi(module, torch, wheels.parse(source["wheel"]).cxx11_abi)
    assert (result.verdict, result.error) == ("failed", given_case["expected"]["error"])
    assert result.detail == given_case["expected"]["detail"]
    assert "name of its wheel says otherwise" in result.reason


@pytest.mark.parametrize("name", [pytest.param("B20", id="case-B20")])
def test_missing_torch_symbols_mean_another_torch(name: str) -> None:
    given_case = case(name)
    source = given_case["input"]
    result = abi.check_symbols(source["undefined_symbols"], abi.TorchSide(source["torch"]["version"]))
    assert (result.verdict, result.error) == ("failed", given_case["expected"]["error"])
    assert source["torch"]["version"] in result.reason


@pytest.mark.parametrize("name", [pytest.param("B12", id="case-B12")])
def test_a_gpu_without_code_is_named(name: str) -> None:
    given_case = case(name)
    source = given_case["input"]
    code = tuple(f"{arch[3:-1]}.{arch[-1]}" for arch in source["torch"]["arch_list"])
    result = abi.check_architectures(abi.ElfModule("x.so", architectures=code), tuple(gpu["cc"] for gpu in source["gpus"]))
    assert (result.verdict, result.error) == ("failed", given_case["expected"]["error"])
    assert result.detail["cc"] == given_case["expected"]["detail"]["cc"]


@pytest.mark.parametrize("name", [pytest.param("B15", id="case-B15")])
def test_libstdcxx_floor(name: str) -> None:
    given_case = case(name)
    source = given_case["input"]
    module = abi.ElfModule("x.so", glibcxx=source["so_needs"]["GLIBCXX"])
    findings = abi.judge(module, abi.TorchSide("2.9.1"), abi.HostSide(glibcxx=source["libstdcxx_max"]), [], [])
    result = finding(findings, "libstdcxx")
    assert (result.verdict, result.error) == ("failed", given_case["expected"]["error"])


def test_glibc_floor_names_both_versions() -> None:
    findings = abi.judge(abi.ElfModule("x.so", glibc="2.32"), abi.TorchSide("2.9.1"), abi.HostSide(glibc="2.31"), [], [])
    result = finding(findings, "glibc")
    assert (result.verdict, result.error) == ("failed", "GlibcTooOld")
    assert "2.32" in result.reason and "2.31" in result.reason


def test_cpu_torch_beside_a_cuda_extension() -> None:
    module = abi.ElfModule("x.so", needed=("libc10.so", "libc10_cuda.so"))
    result = abi.check_cuda_major(module, abi.TorchSide("2.13.0+cpu", cpu_build=True))
    assert (result.verdict, result.error) == ("failed", "TorchWithoutCuda")
    assert "libc10_cuda.so" in result.reason


@pytest.mark.parametrize(
    ("code", "capability", "runs"),
    [
        ("8.0", "8.0", True),
        ("8.0", "8.9", True),
        ("8.6", "8.0", False),
        ("8.0", "9.0", False),
        ("9.0a", "9.0", True),
        ("10.0a", "10.3", False),
        ("10.0f", "10.3", True),
        ("12.0", "12.1", True),
        ("12.0", "10.0", False),
    ],
)
def test_which_code_runs_on_which_gpu(code: str, capability: str, runs: bool) -> None:
    assert abi.covers(code, capability) is runs


def test_ptx_alone_is_ok_with_a_warning_in_the_reason() -> None:
    result = abi.check_architectures(abi.ElfModule("x.so", architectures=("8.0",), ptx=("9.0",)), ("12.0",))
    assert result.verdict == "ok"
    assert result.detail["ptx_only"] == ["12.0"]


def test_no_gpu_is_not_run() -> None:
    assert abi.check_architectures(abi.ElfModule("x.so", architectures=("8.0",)), ()).verdict == "not_run"


def test_driver_library_is_only_missed_where_a_driver_is() -> None:
    assert abi.check_libraries(["libcuda.so.1"], abi.HostSide(has_driver=False)).verdict == "ok"
    assert abi.check_libraries(["libcuda.so.1"], abi.HostSide(has_driver=True)).verdict == "failed"
    assert abi.check_libraries(["libfoo.so.1"], abi.HostSide(has_driver=False)).error == "LibraryMissing"


def test_old_abi_string_is_recognised() -> None:
    assert abi.cxx11_abi_of(("_ZN3c105ErrorC2ENS_14SourceLocationESs",)) is False
    assert abi.cxx11_abi_of(("_ZN2at4callEv",)) is None


def fat_entry(kind: int, arch: int, flags: int, payload: bytes = b"\0" * 16) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 257, 64, len(payload))
    struct.pack_into("<I", header, 28, arch)
    struct.pack_into("<Q", header, 40, flags)
    return bytes(header) + payload


def fat_binary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_architectures_of_a_fat_binary() -> None:
    # Flags as nvcc 13.0 writes them for sm_90, sm_90a, sm_120f and PTX.
    data = fat_binary(fat_entry(2, 90, 0x11), fat_entry(2, 90, 0x100011), fat_entry(2, 120, 0x1200011), fat_entry(1, 120, 0x8011)) + b"\0" * 24
    data += fat_binary(fat_entry(2, 75, 0x11))
    assert elf_modules.fat_architectures(data) == (("7.5", "9.0", "9.0a", "12.0f"), ("12.0",))


@given(st.binary(max_size=400))
def test_garbage_in_a_fat_binary_never_raises(data: bytes) -> None:
    elf_modules.fat_architectures(struct.pack("<I", 0xBA55ED50) + data)


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_a_file_that_is_no_module_is_a_clear_error(tmp_path_factory, data: bytes, elf_magic: bool) -> None:
    path = tmp_path_factory.mktemp("elf") / "x.so"
    path.write_bytes((b"\x7fELF" if elf_magic else b"") + data)
    with pytest.raises(IronwheelError):
        elf_modules.Library(str(path)).module()


def build(folder: Path, name: str, source: str, *arguments: str) -> Path:
    (folder / "source.cpp").write_text(source)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(target), str(folder / "source.cpp"), *arguments], check=True)
    return target


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A site-packages directory with a stand-in for torch's C++ library."""
    build(tmp_path, "torch/lib/libc10.so", "#include <string>\nnamespace c10 { void now(const std::string&) {} void both(int) {} }", "-Wl,-soname,libc10.so")
    return tmp_path


def judged(environment: Path, extension: Path, **torch) -> dict:
    parameters = {
        "site_packages": [str(environment)],
        "files": [str(extension)],
        "modules": [],
        "torch": {"version": "2.9.1+cu128", "cuda": "12.8", "cxx11_abi": True, **torch},
        "host": {"glibc": "9.99"},
        "wheel_name": None,
    }
    return abi_check.check(parameters)


@needs_compiler
def test_a_matching_extension_is_ok(environment: Path) -> None:
    source = "#include <string>\nnamespace c10 { void now(const std::string&); }\nvoid go() { c10::now(\"a\"); }"
    extension = build(environment, "good.so", source, f"-L{environment}/torch/lib", "-lc10")
    result = judged(environment, extension)
    assert result["verdict"] == "ok", result
    assert elf_modules.Library(str(extension)).module().needed[0] == "libc10.so"


@needs_compiler
def test_an_extension_for_another_torch_names_the_symbol(environment: Path) -> None:
    source = "namespace c10 { void both(int); void gone(long); }\nvoid go() { c10::both(1); c10::gone(2); }"
    extension = build(environment, "stale.so", source, f"-L{environment}/torch/lib", "-lc10", "-Wl,--unresolved-symbols=ignore-all")
    result = judged(environment, extension)
    symbols = next(entry for entry in result["modules"][0]["findings"] if entry["check"] == "symbols")
    assert result["verdict"] == "failed"
    assert symbols["error"] == "AbiMismatch"
    assert symbols["detail"]["missing"] == ["_ZN3c104goneEl"]


@needs_compiler
def test_a_library_that_nobody_has_is_named(environment: Path) -> None:
    build(environment, "torch/lib/libgone.so", "void gone_api() {}", "-Wl,-soname,libgone.so.7")
    extension = build(environment, "lost.so", "void gone_api(); void go() { gone_api(); }", f"-L{environment}/torch/lib", "-lgone")
    (environment / "torch/lib/libgone.so").unlink()
    libraries = next(entry for entry in judged(environment, extension)["modules"][0]["findings"] if entry["check"] == "libraries")
    assert (libraries["verdict"], libraries["error"]) == ("failed", "LibraryMissing")
    assert "libgone.so.7" in libraries["reason"]


@needs_compiler
def test_only_extensions_of_torch_are_looked_at(environment: Path) -> None:
    build(environment, "plain.so", "int plain() { return 1; }")
    build(environment, "stack_ext.so", "namespace c10 { void both(int); }\nvoid go() { c10::both(1); }", f"-L{environment}/torch/lib", "-lc10")
    torch = {"version": "2.9.1", "cuda": "12.8"}
    result = abi_check.check({"site_packages": [str(environment)], "files": [], "modules": [], "torch": torch, "host": {}, "wheel_name": None})
    assert [Path(entry["path"]).name for entry in result["modules"]] == ["stack_ext.so"]


@needs_compiler
def test_a_damaged_module_is_a_clear_error(environment: Path) -> None:
    extension = build(environment, "whole.so", "namespace c10 { void both(int); }\nvoid go() { c10::both(1); }", f"-L{environment}/torch/lib", "-lc10")
    whole = extension.read_bytes()

    @settings(deadline=None, max_examples=40)
    @given(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=8), st.booleans())
    def damaged(offset: int, noise: bytes, cut: bool) -> None:
        extension.write_bytes(whole[:offset] + (b"" if cut else noise + whole[offset + len(noise) :]))
        try:
            judged(environment, extension)
        except IronwheelError as exc:
            assert str(extension) in exc.message

    damaged()
