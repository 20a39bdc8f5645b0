# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Source, build folder, runner and store, with real processes and no compiler."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import build_runner, extension_build, torch_abi, wheel_store
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


def sdist(path: Path, members: dict[str, str], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.SYMTYPE
            entry.linkname = target
            tar.addfile(entry)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- source ---------------------------------------------------------------------------------------------------------------------------------------------------


def test_fetch_keeps_a_file_with_the_right_hash_and_refuses_another(tmp_path: Path) -> None:
    source = tmp_path / "thing-1.0.tar.gz"
    source.write_bytes(b"content")
    target, found = extension_build.fetch(extension_build.Source(str(source), digest(source)), str(tmp_path / "kept"), open)
    assert found == digest(source)
    before = os.stat(target).st_mtime_ns
    extension_build.fetch(extension_build.Source(str(source), found), str(tmp_path / "kept"), open)
    assert os.stat(target).st_mtime_ns == before
    with pytest.raises(IronwheelError, match="sha256") as caught:
        extension_build.fetch(extension_build.Source(str(source), "0" * 64), str(tmp_path / "other"), open)
    assert caught.value.error == "HashMismatch"
    assert os.listdir(tmp_path / "other") == []


def test_unpack_once_and_again_only_for_another_stamp(tmp_path: Path) -> None:
    archive = sdist(tmp_path / "a.tar.gz", {"thing-1.0/setup.py": "one"})
    folder = str(tmp_path / "source")
    assert extension_build.unpack(str(archive), folder, "s1") is True
    (tmp_path / "source" / "object.o").write_text("kept for the next try")
    assert extension_build.unpack(str(archive), folder, "s1") is False
    assert (tmp_path / "source" / "object.o").exists()
    assert extension_build.unpack(str(archive), folder, "s2") is True
    assert not (tmp_path / "source" / "object.o").exists()


@pytest.mark.parametrize(
    ("members", "links"),
    [
        ({"../evil": "x"}, {}),
        ({"thing/../../evil": "x"}, {}),
        ({"/evil": "x"}, {}),
        ({"thing/a": "x"}, {"thing/link": "/etc/passwd"}),
        ({"a/x": "1", "b/y": "2"}, {}),
    ],
)
def test_archives_that_lead_outside_are_refused(tmp_path: Path, members: dict, links: dict) -> None:
    archive = sdist(tmp_path / "evil.tar.gz", members, links)
    with pytest.raises(IronwheelError):
        extension_build.unpack(str(archive), str(tmp_path / "source"), "s")
    assert not (tmp_path / "source").exists()
    assert not (tmp_path.parent / "evil").exists()


def test_a_truncated_archive_is_a_clear_error(tmp_path: Path) -> None:
    archive = sdist(tmp_path / "a.tar.gz", {"thing-1.0/setup.py": "x" * 5000})
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(IronwheelError, match="cannot be unpacked"):
        extension_build.unpack(str(archive), str(tmp_path / "source"), "s")


FIX = {"name": "cxx20", "file": "setup.py", "replace": [["-std=c++17", "-std=c++20"]]}


def test_a_fix_is_applied_once_and_refused_on_another_source(tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text("flags = ['-std=c++17', '-O3', '-std=c++17']")
    extension_build.apply_fixes(str(tmp_path), [FIX])
    assert setup.read_text() == "flags = ['-std=c++20', '-O3', '-std=c++20']"
    before = setup.stat().st_mtime_ns
    extension_build.apply_fixes(str(tmp_path), [FIX])
    assert setup.stat().st_mtime_ns == before
    setup.write_text("flags = []")
    with pytest.raises(IronwheelError, match="does not apply"):
        extension_build.apply_fixes(str(tmp_path), [FIX])


# --- runner ---------------------------------------------------------------------------------------------------------------------------------------------------


def job(folder: Path, script: str, **more) -> Path:
    (folder / "out").mkdir(parents=True, exist_ok=True)
    environ = {"PATH": os.environ["PATH"], extension_build.MARKER: str(folder), "OUT": str(folder / "out")}
    extension_build.install_program(str(folder / "runner.py"), build_runner, sys.executable)
    values = {"argv": ["/bin/sh", "-c", script], "cwd": str(folder), "env": environ, "out_dir": str(folder / "out")}
    values.update(gate_dir="", units=3, budget_mib=100, timeout_s=0)
    (folder / "job.json").write_text(json.dumps({**values, **more}))
    return folder


def run(folder: Path) -> dict:
    subprocess.run([sys.executable, str(folder / "runner.py"), str(folder)], check=False, timeout=60)
    return json.loads((folder / "result.json").read_text())


def test_a_build_leaves_its_wheel_and_its_digest(tmp_path: Path) -> None:
    result = run(job(tmp_path, 'echo "[3/3] done"; printf wheel > "$OUT/x-1.0-py3-none-any.whl"'))
    assert result["outcome"] == "ok"
    assert result["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "ended"


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        ("echo 'a.cu(3): error: this unit is wrong'; exit 1", "compile_error", "this unit is wrong"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1", "out_of_memory", "Killed"),
        ("echo 'ninja: exited with status 137'; exit 1", "out_of_memory", "137"),
        ("echo 'sh: line 1: 77 Killed   cicc'; exit 1", "out_of_memory", "Killed"),
        ("echo 'nvcc error : cicc died due to signal 9 (Kill signal)'; exit 1", "out_of_memory", "signal 9"),
        ("echo 'write: No space left on device'; exit 1", "out_of_disk", "disk"),
        ("exit 0", "no_wheel", "no wheel"),
        ("kill -11 $$", "killed", "signal 11"),
    ],
)
def test_every_way_to_fail_is_recognised(tmp_path: Path, script: str, outcome: str, words: str) -> None:
    result = run(job(tmp_path, script))
    assert (result["outcome"], result["wheel"]) == (outcome, None)
    assert words in result["reason"]


@pytest.mark.parametrize(
    ("code", "log", "kills", "outcome", "words"),
    [
        (1, b"nvcc_gate: a.cu ran out of memory at 900 MiB and is tried again\nb.cu(1): error: wrong", 1, "compile_error", "wrong"),
        (1, b"c.cu(1): error: wrong", 3, "compile_error", "wrong"),
        (1, b"g++: fatal error: Killed signal terminated program cc1plus", 2, "out_of_memory", "kernel counted 2"),
        (1, b"g++: fatal error: Killed signal terminated program cc1plus", 0, "out_of_memory", "kernel counted none"),
        (1, b"FAILED: [code=137] a.o", 0, "out_of_memory", "code=137"),
        (1, b"FAILED: a.o\nninja: build stopped: subcommand failed.", 1, "out_of_memory", "kernel counted 1"),
        (-9, b"", 1, "out_of_memory", "status -9"),
        (-9, b"", 0, "killed", "signal 9"),
    ],
)
def test_who_killed_a_compiler_is_said(code: int, log: bytes, kills: int, outcome: str, words: str) -> None:
    found, reason = build_runner.classify(code, log, kills, None, 10_000)
    assert found == outcome and words in reason


def test_two_runs_at_one_moment_start_one_after_the_other(tmp_path: Path) -> None:
    with extension_build.starting(str(tmp_path)):
        code = (
            "import sys; from ansible_collections.ironwheel.gpu.plugins.module_utils import extension_build as b\n"
            "with b.starting(sys.argv[1]): print('in', flush=True)"
        )
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
        )
        with pytest.raises(subprocess.TimeoutExpired):
            second.communicate(timeout=1)
    assert second.communicate(timeout=20)[0] == "in\n"


def test_an_old_log_does_not_decide_a_new_build(tmp_path: Path) -> None:
    run(job(tmp_path, "echo 'ninja: exited with status 137'; exit 1"))
    assert run(job(tmp_path, "echo 'b.cu(1): error: wrong'; exit 1"))["outcome"] == "compile_error"


def wait_for(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_detached_start_attach_and_stop(tmp_path: Path) -> None:
    job(tmp_path, "echo '[1/3] x'; sleep 60")
    extension_build.start(str(tmp_path), "0" * 32, 100, systemd=False)
    assert extension_build.alive(str(tmp_path))
    # A second runner finds the lock held and leaves the build alone.
    assert subprocess.run([sys.executable, str(tmp_path / "runner.py"), str(tmp_path)], check=False).returncode == 75
    assert extension_build.stop(str(tmp_path)) is True
    assert not extension_build.alive(str(tmp_path))
    assert json.loads((tmp_path / "result.json").read_text())["outcome"] == "killed"
    assert extension_build.marked_processes(str(tmp_path)) == []
    assert extension_build.stop(str(tmp_path)) is False


def test_a_killed_runner_leaves_no_result_and_its_compilers_are_ended(tmp_path: Path) -> None:
    job(tmp_path, "sleep 60 & sleep 60")
    extension_build.start(str(tmp_path), "0" * 32, 100, systemd=False)
    wait_for(lambda: len(extension_build.marked_processes(str(tmp_path))) >= 2)
    os.kill(int((tmp_path / "lock").read_text()), signal.SIGKILL)
    wait_for(lambda: not extension_build.alive(str(tmp_path)))
    assert not (tmp_path / "result.json").exists()
    assert extension_build.end_leftovers(str(tmp_path))
    assert extension_build.marked_processes(str(tmp_path)) == []


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    assert run(job(tmp_path, "sleep 60", timeout_s=1))["outcome"] == "timed_out"


def test_the_service_survives_and_is_limited() -> None:
    arguments = extension_build.service_arguments("/b", "abcdef0123456789", 4096, "builder")
    assert "--unit=ironwheel-build-abcdef012345" in arguments
    for wanted in ("OOMPolicy=continue", "MemoryMax=4096M", "MemorySwapMax=0", "User=builder"):
        assert f"--property={wanted}" in arguments


def test_the_environment_of_a_build_is_ours() -> None:
    made = extension_build.Job("/b", "/e/bin/python", "/c", {"MAX_JOBS": "3"}, "/uv", 72, 1000, 16, ("9.0",), gated=True)
    environ = made.environ({"LD_LIBRARY_PATH": "/evil", "PYTHONPATH": "/evil", "PATH": "/evil", "LANG": "C"}, "/p -I -S /b/nvcc_gate.pyc")
    assert "LD_LIBRARY_PATH" not in environ and "PYTHONPATH" not in environ and "/evil" not in environ["PATH"]
    assert environ["PATH"].startswith("/c/bin:/e/bin:")
    assert (environ["MAX_JOBS"], environ["PYTORCH_NVCC"], environ["IRONWHEEL_GATE_ARCHS"]) == ("72", "/p -I -S /b/nvcc_gate.pyc", "9.0")
    static = extension_build.Job("/b", "/e/bin/python", "/c", {"MAX_JOBS": "3"}, "/uv", 72, 1000, 16, ("9.0",), gated=False).environ({})
    assert static["MAX_JOBS"] == "3" and "PYTORCH_NVCC" not in static
    assert {"--no-build-isolation", "--no-cache", "--offline"} <= set(made.argv())


# --- store ----------------------------------------------------------------------------------------------------------------------------------------------------

FIELDS = torch_abi.fingerprint_fields("flash-attn", "2.8.3", "0" * 64, [], "2.9.1+cu128", None, "12.8", True, "3.12", "x86_64", "2.39", ["12.0"])


def stored(tmp_path: Path, **fields) -> tuple[str, dict]:
    wheel = tmp_path / "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    kept = {**FIELDS, **fields}
    entry = {
        "schema": 1,
        "package": "flash-attn",
        "version": "2.8.3",
        "fingerprint": torch_abi.fingerprint(kept),
        "fields": kept,
        "wheel": wheel.name,
        "sha256": digest(wheel),
    }
    return str(tmp_path / "store"), wheel_store.put(str(tmp_path / "store"), str(wheel), entry)


def test_a_stored_wheel_comes_back_and_is_listed(tmp_path: Path) -> None:
    store, entry = stored(tmp_path)
    found, faults = wheel_store.entries(store)
    assert faults == [] and [item["fingerprint"] for item in found] == [entry["fingerprint"]]
    assert Path(wheel_store.verified(found[0])).read_bytes() == b"wheel"
    assert json.loads((Path(store) / "index.json").read_text())["wheels"][0]["sha256"] == entry["sha256"]
    best = wheel_store.candidates(found, {**FIELDS, "source_sha256": None})[0]
    assert best["verdict"] == "accepted"


@pytest.mark.parametrize(
    ("field", "value"),
    [("torch", "2.10.0+cu128"), ("torch", "2.9.1+cu130"), ("python", "3.11"), ("cxx11_abi", False), ("glibc", "2.36"), ("architectures", ["9.0"])],
)
def test_a_wheel_for_something_else_is_rejected_with_the_reason(tmp_path: Path, field: str, value: object) -> None:
    store, _entry = stored(tmp_path)
    judged = wheel_store.candidates(wheel_store.entries(store)[0], {**FIELDS, field: value})
    assert judged[0]["verdict"] == "rejected" and judged[0]["reasons"]


def test_an_altered_or_missing_wheel_is_refused(tmp_path: Path) -> None:
    store, entry = stored(tmp_path)
    Path(entry["path"]).write_bytes(b"other")
    with pytest.raises(IronwheelError) as caught:
        wheel_store.verified(entry)
    assert caught.value.error == "HashMismatch"
    os.unlink(entry["path"])
    with pytest.raises(IronwheelError) as caught:
        wheel_store.verified(entry)
    assert caught.value.error == "StoreDamaged"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": 1}',
        '{"schema": 1, "package": "../x", "version": "1", "fingerprint": "a", "fields": {}, "wheel": "w", "sha256": "00"}',
    ],
)
def test_a_damaged_entry_is_named_and_passed_over(tmp_path: Path, text: str) -> None:
    store, entry = stored(tmp_path)
    bad = Path(store) / "flash-attn" / "bad"
    bad.mkdir()
    (bad / "wheel.json").write_text(text)
    found, faults = wheel_store.entries(store)
    assert [item["fingerprint"] for item in found] == [entry["fingerprint"]]
    assert len(faults) == 1 and "bad" in faults[0]


def test_only_one_builds_and_the_right_dies_with_its_holder(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with wheel_store.building(store, "f") as first:
        assert first.take() and first.builder() == ""
        first.set_builder("host-with-a-long-name")
        first.set_builder("host1")
        with wheel_store.building(store, "f") as second:
            assert not second.take()
            first.give_back()
            assert second.take() and second.builder() == "host1"
        with wheel_store.building(store, "g") as other:
            assert other.take() and other.builder() == ""
    with wheel_store.building(store, "f") as third:
        assert third.take()
        third.set_builder("")
        assert third.builder() == ""
