# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sequence that brings a wheel to a host, with targets that answer as the module does: store, prebuilt, build, waiting, failures, broken connections."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.ironwheel.gpu.plugins.action import extension_wheel as action
from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_abi, wheel_store

FIELDS = torch_abi.fingerprint_fields("tiny", "1.0", None, [], "2.14.1+cu130", None, "13.0", True, "3.11", "x86_64", "2.36", ["9.0"])
BUILT = {**FIELDS, "source_sha256": "5" * 64}
KEY = torch_abi.fingerprint(BUILT)
WHEEL = "tiny-1.0-cp311-cp311-linux_x86_64.whl"
OK = {"outcome": "ok", "reason": "built", "elapsed_s": 3, "peak_mib": 900}
LOST = AnsibleConnectionFailure("the connection broke")
KILLED = {"failed": True, "msg": "MODULE FAILURE"}


def ended(outcome: str, reason: str) -> dict:
    return {"outcome": outcome, "reason": reason, "wheel": None, "elapsed_s": 3, "peak_mib": 900, "budget_mib": 4000, "log": "/b/build.log"}


class Target:
    """A host: what the module would answer there. ``polls`` are the answers of ``polled``, in turn; an exception is raised."""

    def __init__(self, folder: Path, name: str, polls: list | None = None, **answers: object) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.polls = list(polls or [OK])
        self.answers = answers
        self.states: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def wheel(self, text: str = "wheel") -> tuple[str, str]:
        path = self.folder / WHEEL
        path.write_text(text)
        return str(path), hashlib.sha256(text.encode()).hexdigest()

    def execute(self, module_args: dict) -> dict:
        state = module_args["state"]
        self.states.append(state)
        if state in self.answers:
            answer = self.answers[state]
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)
        return getattr(self, state)(module_args)

    def probed(self, _args: dict) -> dict:
        identity = {"full_version": "2.14.1+cu130", "cuda": "13.0", "cxx11_abi": True, "python": "3.11.2", "machine": "x86_64"}
        return {"identity": identity, "fields": FIELDS, "present": None, "glibc": "2.36"}

    def started(self, _args: dict) -> dict:
        return {"fingerprint": KEY, "fields": BUILT, "actions": ["Started"]}

    def polled(self, _args: dict) -> dict:
        self.gate.wait(10)
        answer = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        if isinstance(answer, Exception):
            raise AnsibleConnectionFailure(str(answer))
        if "failed" in answer or "status" in answer:
            return answer
        if answer["outcome"] == "ok":
            path, digest = self.wheel()
            answer = {**answer, "wheel": path, "sha256": digest}
        return {"result": answer, "status": {}, "costs": [{"unit": "a.cu", "peak_mib": 900}], "report": {"outcome": answer["outcome"]}}

    def fetched(self, args: dict) -> dict:
        path, digest = self.wheel("prebuilt")
        if digest != args["sha256"]:
            return {"failed": True, "msg": "sha256 differs", "error": "HashMismatch"}
        return {"wheel": path, "sha256": digest}

    def accepted(self, args: dict) -> dict:
        names = {"schema": 1, "package": "tiny", "version": "1.0", "fingerprint": args["fingerprint"], "fields": args["fields"], "wheel": WHEEL}
        return {**names, "changed": True, "wheel": args["wheel"], "sha256": args["sha256"], "entry": {**names, "sha256": args["sha256"], **args["origin"]}}

    def installed(self, _args: dict) -> dict:
        return {"changed": True, "diff": {"before": "", "after": "tiny==1.0\n"}}


class Run(action.ActionModule):
    """The action on one host of one run, without Ansible around it."""

    def __init__(self, target: Target, store: Path | str, check: bool = False, run: str = "run1", **arguments: object) -> None:
        args = {"name": "tiny", "version": "1.0", "environment": "/e", "store": str(store), **arguments}
        self._task = SimpleNamespace(args=args, check_mode=check, _uuid=f"{run}-000000000001")
        shell = SimpleNamespace(tmpdir=str(target.folder), join_path=lambda *parts: "/".join(parts))
        self.resets = 0
        self._connection = SimpleNamespace(_shell=shell, fetch_file=shutil.copyfile, reset=self.reset)
        self.target = target

    def reset(self) -> None:
        self.resets += 1

    def _execute_module(self, module_name=None, module_args=None, task_vars=None) -> dict:
        return self.target.execute(module_args)

    def _transfer_file(self, local_path: str, remote_path: str) -> None:
        shutil.copyfile(local_path, remote_path)

    def _fixup_perms2(self, *_arguments: object) -> None:
        pass

    def _remove_tmp_path(self, *_arguments: object) -> None:
        pass

    def go(self, *others: str) -> dict:
        return self.run(task_vars={"inventory_hostname": self.target.name, "ansible_play_hosts": [self.target.name, *others]})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})
    pause = threading.Event()
    monkeypatch.setattr(action, "time", SimpleNamespace(sleep=lambda _seconds: pause.wait(0.005), time=lambda: 1.0, monotonic=action.time.monotonic))


def stored(store: Path, folder: Path, fields: dict = BUILT, text: str = "wheel") -> dict:
    wheel = folder / WHEEL
    wheel.write_text(text)
    entry = {"schema": 1, "package": "tiny", "version": "1.0", "fingerprint": torch_abi.fingerprint(fields), "fields": fields, "wheel": WHEEL}
    return wheel_store.put(str(store), str(wheel), {**entry, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def verdicts(result: dict) -> list[tuple[str, str]]:
    return [(entry["candidate"], entry["verdict"]) for entry in result["trace"]]


def test_a_wheel_of_the_store_is_taken(tmp_path: Path) -> None:
    target, store = Target(tmp_path, "a"), tmp_path / "store"
    stored(store, tmp_path)
    stored(store, tmp_path, {**BUILT, "torch": "2.13.0+cu130"}, "older")
    result = Run(target, store).go()
    assert (result["source"], result["changed"], target.states) == ("store", True, ["probed", "accepted", "installed"])
    assert dict(verdicts(result))[f"store {KEY}"] == "accepted"
    # The other entry is only looked at when the first one does not hold.
    refused = Target(tmp_path, "b", accepted={"failed": True, "msg": "a symbol is missing", "error": "AbiMismatch"})
    result = Run(refused, store, build_allowed=False).go()
    assert result["error"] == "NoWheel"
    assert [entry["reason"] for entry in result["trace"]] == ["a symbol is missing", "torch is 2.13.0+cu130, wanted 2.14.1+cu130"]


def test_what_the_target_has_needs_no_store(tmp_path: Path) -> None:
    entry = {"wheel": WHEEL, "path": "/p/wheels/tiny.whl", "sha256": "a" * 64, "fingerprint": KEY, "fields": BUILT}
    present = {**Target.probed(None, {}), "present": entry}
    target = Target(tmp_path, "a", probed=present, installed={"changed": False})
    result = Run(target, tmp_path / "store").go()
    assert (result["source"], result["changed"], result["wheel"], target.states) == ("target", False, "/p/wheels/tiny.whl", ["probed", "installed"])


def test_prebuilt_wheels_are_judged_by_name_hash_and_symbols(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"prebuilt").hexdigest()
    listed = [
        {"url": "https://example.org/other-1.0-cp311-cp311-linux_x86_64.whl", "sha256": digest},
        {"url": "https://example.org/tiny-1.0+cu130torch2.14cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", "sha256": digest},
        {"url": "https://example.org/tiny-1.0+cu130torch2.14cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", "sha256": "0" * 64},
        {"path": "/srv/tiny-1.0+cu13torch2.14cxx11abiTRUE-cp311-cp311-linux_x86_64.whl", "sha256": digest},
    ]
    target = Target(tmp_path, "a")
    result = Run(target, tmp_path / "store", prebuilt=listed).go()
    assert (result["source"], target.states) == ("prebuilt", ["probed", "fetched", "fetched", "accepted", "installed"])
    assert [verdict for _name, verdict in verdicts(result)] == ["rejected", "rejected", "accepted"]
    assert "cp312" in result["trace"][0]["reason"]
    gone = Target(tmp_path, "c", fetched={"failed": True, "msg": "404", "error": "SourceNotFound"})
    assert Run(gone, tmp_path / "store", prebuilt=listed, build_allowed=False).go()["error"] == "NoWheel"
    full = Target(tmp_path, "d", fetched={"failed": True, "msg": "no space", "error": "FileSystem"})
    assert Run(full, tmp_path / "store", prebuilt=listed).go()["error"] == "FileSystem"
    broken = Run(Target(tmp_path, "b"), tmp_path / "store", prebuilt=[{"url": "https://example.org/x.whl"}]).go()
    assert (broken["failed"], broken["error"]) == (True, "InvalidInput")


def test_a_build_is_stored_and_its_costs_are_kept(tmp_path: Path) -> None:
    target, store = Target(tmp_path, "a"), tmp_path / "store"
    result = Run(target, store, cost_dir=str(tmp_path / "costs")).go()
    assert (result["source"], result["report"]) == ("build", {"outcome": "ok"})
    assert target.states == ["probed", "started", "polled", "accepted", "installed"]
    (entry,) = wheel_store.entries(str(store))[0]
    assert (entry["fingerprint"], entry["builder"], entry["origin"]) == (KEY, "a", "build")
    assert json.loads((tmp_path / "costs" / "a" / "tiny.jsonl").read_text()) == {"unit": "a.cu", "peak_mib": 900}
    # A host that joins later compiles nothing.
    later = Target(tmp_path, "b")
    assert Run(later, store, run="run2").go()["source"] == "store" and "started" not in later.states


def together(*runs: Run) -> list[dict]:
    """The results of hosts that are served at the same time; the first one takes the right to build."""
    results: list[dict] = [{} for _run in runs]

    def go(index: int) -> None:
        results[index] = runs[index].go()

    threads = [threading.Thread(target=go, args=(index,)) for index in range(len(runs))]
    runs[0].target.gate.clear()
    threads[0].start()
    while "polled" not in runs[0].target.states:
        threads[0].join(0.005)
    for thread in threads[1:]:
        thread.start()
    while any("probed" not in run.target.states for run in runs):
        threads[0].join(0.005)
    runs[0].target.gate.set()
    for thread in threads:
        thread.join(20)
    return results


def test_one_builds_and_the_others_wait_for_its_wheel(tmp_path: Path) -> None:
    store = tmp_path / "store"
    targets = [Target(tmp_path, name) for name in "abc"]
    results = together(*(Run(target, store) for target in targets))
    assert [result["source"] for result in results] == ["build", "store", "store"]
    assert [target.states.count("started") for target in targets] == [1, 0, 0]


def test_the_next_host_builds_when_the_first_one_could_not(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = Target(tmp_path, "a", [ended("out_of_memory", "compilers were killed")])
    results = together(Run(first, store), Run(Target(tmp_path, "b"), store))
    assert (results[0]["error"], results[1]["source"]) == ("BuildOutOfMemory", "build")
    assert "peak 900 MiB of 4000 MiB" in results[0]["msg"] and "compiled is kept" in results[0]["remedy"]


def test_nobody_tries_again_what_does_not_compile(tmp_path: Path) -> None:
    store = tmp_path / "store"
    second = Target(tmp_path, "b")
    results = together(Run(Target(tmp_path, "a", [ended("compile_error", "a.cu(3): error: wrong")]), store), Run(second, store))
    assert [result["error"] for result in results] == ["BuildFailed", "BuildFailed"]
    assert "a built for this group and failed" in results[1]["msg"] and "a.cu(3): error: wrong" in results[1]["msg"]
    assert "started" not in second.states
    # The next run does try.
    assert Run(Target(tmp_path, "c"), store, run="run2").go()["source"] == "build"


def test_two_hosts_try_and_no_more(tmp_path: Path) -> None:
    store = tmp_path / "store"
    targets = [Target(tmp_path, name, [ended("out_of_disk", "the disk is full")]) for name in "abcd"]
    results = [Run(target, store).go() for target in targets]
    assert {result["error"] for result in results} == {"BuildOutOfDisk"}
    assert [target.states.count("started") for target in targets] == [1, 1, 0, 0]


def test_a_build_outlives_its_connection(tmp_path: Path) -> None:
    target = Target(tmp_path, "a", [LOST, {"status": {"units_done": 1}}, LOST, LOST, KILLED, OK])
    run = Run(target, tmp_path / "store")
    result = run.go()
    assert (result["source"], run.resets, target.states.count("started")) == ("build", 4, 1)


def test_the_host_whose_build_did_not_end_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr(action, "LOST_POLLS", 2)
    with pytest.raises(AnsibleConnectionFailure):
        Run(Target(tmp_path, "b", [LOST]), store).go()
    first, again = Run(Target(tmp_path, "a"), store, run="run2"), Run(Target(tmp_path, "b2"), store, run="run2")
    again.target.name = "b"
    results: list[dict] = []
    thread = threading.Thread(target=lambda: results.append(first.go("b")))
    thread.start()
    while "probed" not in first.target.states:
        thread.join(0.005)
    assert again.go("a")["source"] == "build"
    thread.join(20)
    assert results[0]["source"] == "store" and "started" not in first.target.states
    # A host that is not part of the run is not waited for, and one that does not come is not waited for long.
    shutil.rmtree(store)
    with pytest.raises(AnsibleConnectionFailure):
        Run(Target(tmp_path, "c", [LOST]), store).go()
    assert Run(Target(tmp_path, "d"), store, run="run2").go("e")["source"] == "build"
    shutil.rmtree(store)
    with pytest.raises(AnsibleConnectionFailure):
        Run(Target(tmp_path, "f", [LOST]), store).go()
    monkeypatch.setattr(action, "PRECEDENCE_S", 0.05)
    assert Run(Target(tmp_path, "g"), store, run="run2").go("f")["source"] == "build"


@pytest.mark.parametrize(("poll", "polls"), [(LOST, action.LOST_POLLS), (KILLED, action.CRASHED_POLLS)])
def test_a_host_that_never_answers_again_is_given_up(tmp_path: Path, poll: object, polls: int) -> None:
    store = tmp_path / "store"
    target = Target(tmp_path, "a", [poll])
    run = Run(target, store)
    if poll is LOST:
        # The executor turns it into an unreachable host.
        with pytest.raises(AnsibleConnectionFailure):
            run.go()
    else:
        assert run.go()["msg"] == "MODULE FAILURE"
    assert target.states.count("polled") == polls
    # Another host may have more luck.
    assert Run(Target(tmp_path, "b"), store).go()["source"] == "build"


def test_an_altered_wheel_is_refused_and_built_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    entry = stored(store, tmp_path)
    Path(entry["path"]).write_text("altered")
    result = Run(Target(tmp_path, "a"), store).go()
    assert result["source"] == "build"
    assert verdicts(result)[0] == (f"store {KEY}", "rejected") and "sha256" in result["trace"][0]["reason"]
    (again,) = wheel_store.entries(str(store))[0]
    assert Path(wheel_store.verified(again)).read_text() == "wheel"


def test_a_store_behind_a_server_is_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    entry = stored(served, tmp_path)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    monkeypatch.setattr(handler.func, "log_message", lambda *_arguments: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        announced = Run(Target(tmp_path, "a"), url, check=True).go()
        assert announced["source"] == "store" and not (tmp_path / "cache").exists()
        assert Run(Target(tmp_path, "b"), url).go()["source"] == "store"
        # Another wheel behind the same name is refused.
        Path(entry["path"]).write_text("altered")
        shutil.rmtree(tmp_path / "cache")
        refused = Run(Target(tmp_path, "c"), url, build_allowed=False).go()
        assert refused["error"] == "NoWheel" and "sha256" in refused["trace"][0]["reason"]
        (served / "index.json").write_text("[]")
        assert Run(Target(tmp_path, "d"), url, build_allowed=False).go()["error"] == "NoWheel"
        server.shutdown()
    # A server that is gone is no reason not to build.
    assert Run(Target(tmp_path, "e"), url).go()["source"] == "build"
    assert Run(Target(tmp_path, "f"), "http://example.org/wheels").go()["error"] == "InvalidStore"


def test_check_mode_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    missing = {"failed": True, "msg": "no bin/python", "error": "EnvironmentMissing"}
    unknown = Run(Target(tmp_path, "a", probed=missing), store, check=True).go()
    assert (unknown["changed"], unknown["source"]) == (True, "unknown")
    assert Run(Target(tmp_path, "b", probed=missing), store).go()["error"] == "EnvironmentMissing"
    target = Target(tmp_path, "c")
    build = Run(target, store, check=True).go()
    assert (build["changed"], build["source"], build["actions"], target.states) == (True, "build", ["Would build tiny 1.0"], ["probed"])
    assert not store.exists()
    stored(store, tmp_path)
    taken = Run(target, store, check=True).go()
    assert (taken["changed"], taken["source"]) == (True, "store") and "accepted" not in target.states


def test_an_unreachable_host_is_not_a_wheel_that_does_not_fit(tmp_path: Path) -> None:
    store = tmp_path / "store"
    stored(store, tmp_path)
    with pytest.raises(AnsibleConnectionFailure):
        Run(Target(tmp_path, "a", accepted=LOST), store).go()


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ({}, "tiny: starting"),
        ({"state": "ended", "outcome": "ok", "elapsed_s": 300}, "tiny: ended"),
        (
            {"units_done": 3, "units": 72, "running": 4, "used_mib": 20480, "budget_mib": 65536, "elapsed_s": 130, "left_s": 600},
            "tiny: 3/72 units, 4 running, 20.0 of 64.0 GiB, 2 min, about 10 min left",
        ),
        (
            {"units_done": 0, "units": None, "running": None, "used_mib": 0, "budget_mib": None, "elapsed_s": 5, "left_s": None},
            "tiny: 0/? units, 0.0 of 0.0 GiB, 0 min",
        ),
    ],
)
def test_progress_in_one_line(status: dict, line: str) -> None:
    assert action.progress_line("tiny", status) == line
