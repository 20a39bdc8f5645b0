# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of extension_wheel on a target: a real environment with a small stand-in for torch, and real compiled modules."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import environments, extension_build, extension_checks, torch_abi
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import extension_wheel
from package_files import real_uv

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")

TORCH = """
import ctypes, os
__version__ = "{version}"
class version:
    cuda, git_version, debug, hip = "13.0", "0", False, None
class _C:
    _GLIBCXX_USE_CXX11_ABI = True
ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libc10.so"), ctypes.RTLD_GLOBAL)
"""
# An extension module without Python's headers; it calls one function of torch.
MODULE = """
struct definition {{ long count; void *type, *init; long index; void *copy; const char *name, *doc; long size; void *rest[5]; }};
static struct definition module = {{1, 0, 0, 0, 0, "tiny_cuda", 0, -1, {{0}}}};
extern void *PyModule_Create2(void *, int);
extern int {symbol}(void);
void *PyInit_tiny_cuda(void) {{ return {symbol}() == {number} ? PyModule_Create2(&module, 1013) : 0; }}
"""
PRESENT, ABSENT = "_ZN3c107presentEv", "_ZN3c106absentEv"


def compile_library(target: Path, text: str, *arguments: str) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(target), "-", *arguments], input=text, text=True, check=True, timeout=60)


def make_wheel(folder: Path, module: bytes, version: str = "1.0") -> Path:
    """A wheel with one compiled module and a RECORD with hashes, as a build leaves it."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny_cuda.so": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
    }
    rows = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}\n")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tiny-{version}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, Path]:
    """What is compiled once: torch's library, a module that fits, another build of it, and one that needs a symbol that torch lacks."""
    folder = tmp_path_factory.mktemp("parts")
    library = folder / "libc10.so"
    compile_library(library, f"int {PRESENT}(void) {{ return 1; }}", "-Wl,-soname,libc10.so")
    for name, symbol, number in (("fits", PRESENT, 1), ("again", PRESENT, "(1 + 0)/1"), ("foreign", ABSENT, 1)):
        compile_library(folder / f"{name}.so", MODULE.format(symbol=symbol, number=number), f"-L{folder}", "-lc10", "-Wl,--allow-shlib-undefined")
    # Another build of the same source differs in its bytes.
    (folder / "again.so").write_bytes((folder / "again.so").read_bytes() + b"\0" * 64)
    return {name: folder / f"{name}.so" for name in ("fits", "again", "foreign")} | {"library": library}


class Host:
    """A prefix with one environment whose torch is the stand-in."""

    def __init__(self, folder: Path, parts: dict[str, Path]) -> None:
        self.prefix = folder / "prefix"
        self.environment = self.prefix / "envs" / "one"
        self.parts = parts
        venv.create(self.environment, with_pip=False, symlinks=True)
        self.site = Path(environments.site_packages(str(self.environment)))
        self.torch("2.14.1+cu130")
        record = {"schema": 1, "packages": {}, "extensions": []}
        (self.environment / "ironwheel.json").write_text(json.dumps(record))

    def torch(self, version: str) -> None:
        library = self.site / "torch" / "lib"
        library.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.parts["library"], library)
        (self.site / "torch" / "__init__.py").write_text(TORCH.format(version=version))
        info = self.site / "torch-2.14.1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Name: torch\nVersion: {version}\n\n")
        (info / "RECORD").write_text("")

    def step(self, state: str, check: bool = False, **more: object) -> dict:
        given = {"name": "tiny", "version": "1.0", "state": state, "environment": str(self.environment), "prefix": str(self.prefix), **more}
        given.update(description={"name": "tiny", "module": "tiny_cuda", "units": 2}, architectures=["9.0"], uv=str(real_uv()))
        params = {name: given.get(name, option.get("default")) for name, option in extension_wheel.ARGUMENTS.items()}
        return extension_wheel.run_state(extension_wheel.Extension(params), state, check)

    def accept(self, wheel: Path, **more: object) -> dict:
        fields = {**self.step("probed")["fields"], "source_sha256": "5" * 64}
        digest = extension_build.file_sha256(str(wheel))
        return self.step("accepted", wheel=str(wheel), **{"sha256": digest, "fields": fields, "fingerprint": torch_abi.fingerprint(fields), **more})

    def install(self, accepted: dict, check: bool = False) -> dict:
        return self.step("installed", check, wheel=accepted["wheel"], sha256=accepted["sha256"])

    def record(self) -> list[dict]:
        return json.loads((self.environment / "ironwheel.json").read_text())["extensions"]


@pytest.fixture
def host(tmp_path: Path, parts: dict[str, Path]) -> Host:
    return Host(tmp_path, parts)


@pytest.fixture
def wheel(tmp_path: Path, parts: dict[str, Path]) -> Path:
    return make_wheel(tmp_path / "wheels", parts["fits"].read_bytes())


def test_torch_is_read_from_the_environment(host: Host) -> None:
    probed = host.step("probed")
    fields = probed["fields"]
    assert (fields["torch"], fields["cuda"], fields["cxx11_abi"], fields["architectures"]) == ("2.14.1+cu130", "13.0", True, ["9.0"])
    assert fields["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert (probed["present"], probed["installed"], probed["changed"]) == (None, None, False)
    shutil.rmtree(host.site / "torch")
    with pytest.raises(IronwheelError) as caught:
        host.step("probed")
    assert caught.value.error == "TorchBroken"


def test_a_wheel_that_fits_is_accepted_once_and_found_again(host: Host, wheel: Path) -> None:
    first = host.accept(wheel)
    verdicts = {finding["check"]: finding["verdict"] for finding in first["findings"]}
    assert first["changed"] and verdicts["symbols"] == verdicts["import"] == "ok"
    assert not host.accept(wheel)["changed"]
    present = host.step("probed")["present"]
    assert (present["sha256"], present["path"]) == (first["sha256"], first["wheel"])
    # A wheel on the target that was altered does not count any more, and is replaced.
    Path(first["wheel"]).write_bytes(b"altered")
    assert host.step("probed")["present"] is None
    assert host.accept(wheel)["changed"]


def test_wheels_that_do_not_fit_are_refused_with_the_reason(host: Host, wheel: Path, tmp_path: Path, parts: dict[str, Path]) -> None:
    foreign = make_wheel(tmp_path / "foreign", parts["foreign"].read_bytes())
    with pytest.raises(IronwheelError, match="built for another torch than 2.14.1.cu130: it needs _ZN3c106absentEv") as caught:
        host.accept(foreign)
    assert caught.value.error == "AbiMismatch"
    with pytest.raises(IronwheelError, match="expected 0000") as caught:
        host.accept(wheel, sha256="0" * 64)
    assert caught.value.error == "HashMismatch"
    torn = tmp_path / "tiny-1.0-py3-none-linux_x86_64.whl"
    torn.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(IronwheelError) as caught:
        host.accept(torn)
    assert caught.value.error == "WheelDamaged"
    pure = make_wheel(tmp_path / "pure", b"")
    with zipfile.ZipFile(pure, "w") as archive:
        archive.writestr("tiny.py", "")
    with pytest.raises(IronwheelError) as caught:
        host.accept(pure)
    assert caught.value.error == "WheelWithoutExtension"
    assert not (host.prefix / "wheels").exists()
    assert not list(host.prefix.glob(".judge-*"))


def test_a_wheel_is_installed_once_with_its_provenance(host: Host, wheel: Path) -> None:
    accepted = host.accept(wheel)
    announced = host.install(accepted, check=True)
    assert announced["changed"] and host.record() == []
    done = host.install(accepted)
    assert done["actions"] == announced["actions"] and done["diff"]["after"] == "tiny==1.0\n"
    (entry,) = host.record()
    assert (entry["torch"], entry["sha256"], entry["fingerprint"]) == ("2.14.1+cu130", accepted["sha256"], accepted["fingerprint"])
    assert f"tiny @ file://{accepted['wheel']} --hash=sha256:{accepted['sha256']}" in (host.environment / "extensions.txt").read_text()
    assert host.install(accepted) == {"changed": False, "actions": []}
    assert host.install(accepted, check=True)["changed"] is False
    assert extension_checks.drift(str(host.environment), {"torch": "2.14.1+cu130"}, environments.read_record(str(host.environment))) == []


def test_what_somebody_did_by_hand_is_named_and_replaced(host: Host, wheel: Path, tmp_path: Path, parts: dict[str, Path]) -> None:
    def by_hand(path: Path) -> None:
        # Unpacked as any installer would, over what is there.
        shutil.unpack_archive(path, host.site, "zip")

    accepted = host.accept(wheel)
    by_hand(make_wheel(tmp_path / "hand", parts["again"].read_bytes()))
    assert "somebody installed it by hand" in host.install(accepted)["actions"][0]
    assert (host.site / "tiny_cuda.so").read_bytes() == parts["fits"].read_bytes()
    by_hand(tmp_path / "hand" / wheel.name)
    replaced = host.install(accepted)
    assert "not those of the recorded wheel" in replaced["actions"][0] and "tiny 1.0" in replaced["replaced"]
    assert host.install(accepted)["changed"] is False
    (host.site / "tiny_cuda.so").write_bytes(b"")
    assert "tiny_cuda.so" in host.install(accepted)["actions"][0]
    host.torch("2.15.0+cu132")
    assert "built for torch 2.14.1+cu130, the environment has 2.15.0+cu132" in host.step("probed")["installed"]["faults"][0]


def test_a_build_that_ended_unseen_is_taken_and_its_objects_go(host: Host, wheel: Path, tmp_path: Path) -> None:
    source = tmp_path / "tiny-1.0.tar.gz"
    source.write_bytes(b"a source that is never unpacked")
    digest = extension_build.file_sha256(str(source))
    fields = {**host.step("probed")["fields"], "source_sha256": digest}
    key = torch_abi.fingerprint(fields)
    folder = host.prefix / "builds" / key
    built = make_wheel(folder / "out", host.parts["fits"].read_bytes())
    (folder / "source").mkdir()
    (folder / "build.log").write_text("[2/2] done\n")
    result = {"outcome": "ok", "reason": "built", "wheel": str(built), "sha256": extension_build.file_sha256(str(built))}
    (folder / "result.json").write_text(json.dumps(result))
    started = host.step("started", source=str(source))
    assert (started["fingerprint"], started["attached"]) == (key, True) and "while nobody was connected" in started["actions"][0]
    accepted = host.step("accepted", wheel=str(built), sha256=result["sha256"], fingerprint=key, fields=fields, origin={"origin": "build"})
    assert accepted["entry"]["origin"] == "build"
    assert sorted(path.name for path in folder.iterdir()) == ["build.log", "result.json", "start.lock"]
    assert host.step("probed")["present"]["fingerprint"] == key


def test_refusals_before_a_build_name_what_is_missing(host: Host, tmp_path: Path) -> None:
    source = tmp_path / "tiny-1.0.tar.gz"
    source.write_bytes(b"source")
    for more, error in (
        ({"source": "https://example.org/tiny-1.0.tar.gz"}, "HashMissing"),
        ({"source": str(tmp_path / "absent.tar.gz")}, "SourceNotFound"),
        ({"source": str(source), "source_sha256": "0" * 64}, "HashMismatch"),
        ({"source": str(source), "cuda_home": str(tmp_path)}, "ToolkitMissing"),
    ):
        with pytest.raises(IronwheelError) as caught:
            host.step("started", **more)
        assert caught.value.error == error
    assert host.step("started", check=True, source=str(source))["actions"] == ["Would build tiny 1.0"]


def test_jobs_and_predictions_are_for_what_is_really_compiled(tmp_path: Path) -> None:
    """causal-conv1d hard-codes nine architectures at four threads: without the gate all of them are compiled, through it those that were asked for."""
    given = {"name": "causal-conv1d", "version": "1.7.0", "architectures": ["8.0", "9.0"], "memory_mib": 60_000, "cores": 8.0}
    given.update(prefix=str(tmp_path), environment=str(tmp_path))
    lines = {}
    for gate in (True, False):
        params = {name: option.get("default") for name, option in extension_wheel.ARGUMENTS.items()}
        extension = extension_wheel.Extension({**params, **given, "gate": gate})
        choice, _usable, _cores = extension.choose()
        (tmp_path / "gate").mkdir(exist_ok=True)
        extension.write_costs(str(tmp_path), choice.nvcc_threads)
        lines[gate] = (choice.nvcc_threads, (tmp_path / "gate" / "predictions").read_text().splitlines()[0])
    # Streams at once, and passes one after another.
    assert lines == {True: (2, "#\t2\t1"), False: (4, "#\t4\t3")}
