# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nvcc gate: its decisions as functions, and the program itself with fake compilers that hold tens of MiB."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import nvcc_gate

FAKE = Path(__file__).parents[1] / "bench" / "fake_nvcc.py"
PYTHON = os.path.realpath(sys.executable)


class Build:
    """A folder with a gate, a fake nvcc and the calls that ninja would make."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        self.gate = command
        self.state = folder / "gate"
        self.nvcc = folder / "nvcc"
        self.nvcc.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {FAKE} "$@"\n')
        self.nvcc.chmod(0o755)
        self.calls: dict[str, subprocess.Popen] = {}
        self.env = {
            "PATH": os.environ["PATH"],
            "IRONWHEEL_NVCC": str(self.nvcc),
            "IRONWHEEL_GATE_DIR": str(self.state),
            "IRONWHEEL_GATE_BUDGET_MIB": "100",
            "IRONWHEEL_GATE_CORES": "16",
            "IRONWHEEL_GATE_KEEP_MIB": "0",
            "IRONWHEEL_GATE_SETTLE_S": "0",
            "IRONWHEEL_GATE_SAMPLE_S": "0.02",
            "IRONWHEEL_GATE_BUILD": "first",
        }

    def predict(self, **units: tuple[float, float]) -> None:
        """Predictions (peak in MiB, wall time) by unit; ``_`` stands for all others."""
        path = self.folder / "costs.tsv"
        lines = [f"{'*' if name == '_' else name + '.cu'}\t{peak}\t{wall}\t0.2\tcalibration" for name, (peak, wall) in units.items()]
        path.write_text("\n".join(["#\t1\t1", *lines]) + "\n")
        self.env["IRONWHEEL_GATE_COSTS"] = str(path)

    def start(self, unit: str, program: str = "use 20 0.2", *arguments: str, **env: str) -> subprocess.Popen:
        source = self.folder / f"{unit}.cu"
        source.write_text(program.replace("; ", "\n") + "\n")
        command = [*self.gate, *arguments, "-c", str(source), "-o", str(self.folder / f"{unit}.o")]
        self.calls[unit] = subprocess.Popen(command, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self.calls[unit]

    def finish(self, timeout: float = 20.0) -> dict[str, int]:
        return {unit: call.wait(timeout) for unit, call in self.calls.items()}

    def rows(self, name: str) -> list[dict]:
        path = self.state / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, what: str) -> list[str]:
        return [row["unit"] for row in self.rows("events.jsonl") if row["event"] == what]

    def until(self, test, what: str, timeout: float = 10.0) -> None:
        limit = time.monotonic() + timeout
        while not test():
            assert time.monotonic() < limit, f"{what} did not happen: {self.rows('events.jsonl')}"
            time.sleep(0.02)

    def stop(self) -> None:
        for call in self.calls.values():
            if call.poll() is None:
                call.terminate()
        for call in self.calls.values():
            call.wait(10)
            call.stdout.close()
            call.stderr.close()


@pytest.fixture(scope="session")
def gate_command(tmp_path_factory) -> list[str]:
    return nvcc_gate.install(str(tmp_path_factory.mktemp("stable")), PYTHON).split()


@pytest.fixture
def build(tmp_path, gate_command):
    found = Build(tmp_path, gate_command)
    yield found
    found.stop()


# Decisions


def test_most_expensive_first_and_within_the_budget():
    waiting = [("small", 10, 5, 1, 0), ("long", 40, 90, 1, 1), ("middle", 40, 30, 1, 2)]
    assert nvcc_gate.choose(waiting, [], 100, 16) == (["long", "middle", "small"], None)
    assert nvcc_gate.choose(waiting, [(30, 1)], 100, 16) == (["long", "small"], "middle")


def test_cores_are_respected():
    waiting = [(index, 1, 10, 1, index) for index in range(10)]
    assert nvcc_gate.choose(waiting, [(1, 2)], 100, 4)[0] == [0, 1]
    assert nvcc_gate.choose([("threads", 1, 10, 3, 0)], [(1, 2)], 100, 4) == ([], None)


def test_a_unit_larger_than_the_budget_runs_alone():
    waiting = [("huge", 500, 90, 1, 0), ("small", 10, 5, 1, 1)]
    assert nvcc_gate.choose(waiting, [], 100, 16)[0] == ["huge"]
    assert nvcc_gate.choose([("huge", 500, 90, 1, 0)], [(10, 1)], 100, 16) == ([], "huge")


def test_the_head_is_not_overtaken_beyond_its_patience():
    waiting = [("big", 80, 100, 1, 0), ("small", 10, 5, 1, 1)]
    assert nvcc_gate.choose(waiting, [(50, 1)], 100, 16, blocked_s=1) == (["small"], "big")
    assert nvcc_gate.choose(waiting, [(50, 1)], 100, 16, blocked_s=nvcc_gate.patience_s(100)) == ([], "big")


def test_admissions_never_exceed_budget_or_cores():
    rng = random.Random(4)
    for _round in range(500):
        waiting = [(index, rng.uniform(1, 60), rng.uniform(1, 300), rng.randint(1, 4), index) for index in range(rng.randint(0, 20))]
        running = [(rng.uniform(1, 30), 1) for _index in range(rng.randint(1, 3))]
        budget, cores = rng.uniform(90, 200), rng.randint(4, 16)
        keys, head = nvcc_gate.choose(waiting, running, budget, cores, rng.uniform(0, 60))
        chosen = [item for item in waiting if item[0] in keys]
        assert sum(item[1] for item in chosen) + sum(item[0] for item in running) <= budget + 1e-9
        assert sum(item[3] for item in chosen) + len(running) <= cores
        assert head is None or head not in keys


def test_a_unit_that_cannot_be_overtaken_for_ever_starts_in_bounded_time():
    """Small units keep arriving; the big one starts after its patience and the longest running one."""
    now, running, started, arrival = 0.0, [], None, 100
    waiting = [("big", 70, 100, 1, 0)]
    running = [(40, 1, 8.0)]
    head_since = None
    while started is None and now < 200:
        waiting += [(arrival, 40, 8.0, 1, arrival)]
        arrival += 1
        keys, head = nvcc_gate.choose(waiting, [item[:2] for item in running], 100, 16, now - head_since if head_since is not None else 0.0)
        head_since = (head_since if head_since is not None else now) if head == "big" else None
        running += [(item[1], 1, now + item[2]) for item in waiting if item[0] in keys]
        started = now if "big" in keys else None
        waiting = [item for item in waiting if item[0] not in keys]
        now += 1.0
        running = [item for item in running if item[2] > now]
    assert started is not None
    assert started <= nvcc_gate.patience_s(100) + 8.0 + 2.0


def test_the_peak_is_reserved_until_it_has_passed():
    assert not nvcc_gate.has_passed(100, 50, 30, 5, 100, 0)  # it has not come near what was predicted
    assert not nvcc_gate.has_passed(100, 90, 80, 20, 100, 0)  # it has not fallen
    assert not nvcc_gate.has_passed(100, 95, 30, 20, 100, 1)  # another architecture is still to come
    assert nvcc_gate.has_passed(100, 95, 30, 20, 100, 0)
    assert nvcc_gate.has_passed(100, 50, 30, 60, 100, 0)  # overestimated
    assert not nvcc_gate.has_passed(100, 5, 1, 60, 100, 0)  # late, but it has not begun to grow
    assert nvcc_gate.reservation(100, 95, 30, 20, 100, False) >= 100
    assert nvcc_gate.reservation(100, 130, 130, 20, 100, False) >= 130
    # Using what was predicted is no reason to hold more than what was promised.
    assert nvcc_gate.reservation(100, 101, 101, 20, 100, False) <= 1.01 * 100 * nvcc_gate.PEAK_MARGIN


def test_a_passed_unit_keeps_what_its_profile_says_can_come():
    shape_peak = 100
    for age in range(10, 100, 5):
        held = nvcc_gate.reservation(100, shape_peak, 10, age, 100, True)
        assert held >= nvcc_gate.LATER[min(9, age // 10)] * shape_peak
        assert held <= 0.6 * shape_peak
    assert nvcc_gate.reservation(100, 100, 80, 90, 100, True) >= 80


# Arguments


GENCODE = [word for number in (75, 80, 87, 90, 100, 103, 110, 120, 121) for word in ("-gencode", f"arch=compute_{number},code=sm_{number}")]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (["9.0"], ["90"]),
        (["12.0"], ["120"]),
        (["8.0", "12.0"], ["80", "120"]),
        (["8.9"], ["80"]),  # the embedded 8.7 is not the one for a data-centre or desktop GPU
        (["12.1"], ["121"]),
        (["10.3"], ["103"]),
        (["6.0"], ["75", "80", "87", "90", "100", "103", "110", "120", "121"]),  # never none
        ([], ["75", "80", "87", "90", "100", "103", "110", "120", "121"]),
    ],
)
def test_gencode_pairs_that_nobody_asked_for_are_dropped(wanted, kept):
    arguments, architectures, threads = nvcc_gate.filter_arguments(["-O3", *GENCODE, "--threads", "4", "-c", "a.cu"], wanted)
    assert architectures == kept
    assert [word for word in arguments if word.startswith("arch=")] == [f"arch=compute_{number},code=sm_{number}" for number in kept]
    assert arguments.count("-gencode") == len(kept)
    assert arguments[0] == "-O3"
    assert arguments[-2:] == ["-c", "a.cu"]
    assert threads == 4


def test_every_spelling_of_a_pair_is_read():
    words = [
        "-gencode=arch=compute_90a,code=sm_90a",
        "--generate-code",
        "arch=compute_80,code=[sm_80,compute_80]",
        "--generate-code=arch=compute_120,code=sm_120",
    ]
    assert nvcc_gate.filter_arguments(words, ["9.0"])[0] == words[:1]
    assert nvcc_gate.filter_arguments(words, ["8.6"])[0] == words[1:3]
    assert nvcc_gate.filter_arguments(words, ["12.1"])[0] == words[3:]
    # 9.0a code runs on nothing but 9.0: a GPU of another minor falls back to PTX that it can compile itself.
    assert nvcc_gate.filter_arguments(words, ["10.0"])[0] == words[1:3]


def test_threads_are_lowered_not_raised():
    assert nvcc_gate.filter_arguments(["--threads", "4"], [], 1) == (["--threads", "1"], [], 1)
    assert nvcc_gate.filter_arguments(["--threads=4"], [], 2) == (["--threads=2"], [], 2)
    assert nvcc_gate.filter_arguments(["-t", "2"], [], 4) == (["-t", "2"], [], 2)


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["-O3", "-c", "/x/a.cu", "-o", "a.o"], "/x/a.cu"),
        (["-MF", "a.cu", "-o", "b.cu", "-c", "c.cu"], "c.cu"),
        (["--version"], None),
        (["-dlink", "a.o", "-o", "b.o"], None),
        (["a.o", "b.o", "-o", "x.so"], None),
    ],
)
def test_the_source_of_a_call(words, source):
    assert nvcc_gate.find_source(words) == source


def test_gencode_filter_never_raises_and_never_leaves_none():
    rng = random.Random(8)
    alphabet = ["arch=", "compute_", "90", "90a", ",", "code=", "sm_", "[", "]", "=", "", "x", '"']
    for _round in range(500):
        pairs = []
        for _pair in range(rng.randint(1, 5)):
            pairs += ["-gencode", "".join(rng.choice(alphabet) for _piece in range(rng.randint(0, 8)))]
        kept = nvcc_gate.filter_arguments(pairs, rng.sample(["9.0", "12.0", "8.6", "junk", ""], 2))[0]
        assert kept.count("-gencode") >= 1


# The program


def test_status_output_and_exit_status_pass_through(build):
    build.start(
        "good",
        "args; say a warning; use 10 0.05",
        "-gencode",
        "arch=compute_90,code=sm_90",
        "-gencode",
        "arch=compute_80,code=sm_80",
        IRONWHEEL_GATE_ARCHS="9.0",
    )
    _out, err = build.calls["good"].communicate(timeout=10)
    assert build.calls["good"].returncode == 0
    assert err == "a warning\n"
    assert (build.folder / "good.cu.args").read_text().splitlines()[:3] == ["-gencode", "arch=compute_90,code=sm_90", "-c"]
    build.start("bad", "say error: no such thing; exit 3", IRONWHEEL_GATE_BUILD="second")
    _out, err = build.calls["bad"].communicate(timeout=10)
    assert build.calls["bad"].returncode == 3
    assert "error: no such thing" in err
    (row,) = build.rows("costs.jsonl")
    assert row["unit"] == "good.cu"
    assert row["archs"] == ["90"]
    assert 10 <= row["peak_mib"] <= 40
    assert len(row["profile"]) == 20
    status = nvcc_gate.status(str(build.state))
    assert (status["running"], status["waiting"], status["failed"]) == (0, 0, "bad.cu failed with exit status 3")


def test_calls_that_compile_nothing_do_not_wait(build):
    build.nvcc.write_text('#!/bin/sh\necho "$@"\n')
    answer = subprocess.run([*build.gate, "--version"], env=build.env, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "--version\n")
    assert not build.state.exists()


def test_the_budget_is_kept_and_the_most_expensive_goes_first(build):
    build.predict(a=(45, 3), b=(45, 9), c=(45, 6), d=(45, 1))
    for unit in "abcd":
        build.start(unit, "use 30 0.2", IRONWHEEL_GATE_SETTLE_S="0.2")
    assert set(build.finish().values()) == {0}
    admitted = [row for row in build.rows("events.jsonl") if row["event"] == "admitted"]
    assert [row["unit"] for row in admitted][0:2] in (["b.cu", "c.cu"], ["c.cu", "b.cu"])
    assert max(row["reserved_mib"] for row in build.rows("events.jsonl")) <= 100


def test_a_passed_peak_makes_room(build):
    build.predict(_=(60, 1))
    build.start("first", "use 55 0.2; use 8 20")
    build.until(lambda: build.events("admitted") == ["first.cu"], "start of the first")
    build.start("second", "use 55 0.1")
    build.until(lambda: "second.cu" in build.events("admitted"), "start of the second")
    assert build.calls["first"].poll() is None
    order = [(row["event"], row["unit"]) for row in build.rows("events.jsonl")]
    assert order.index(("passed", "first.cu")) < order.index(("admitted", "second.cu"))
    assert build.calls["second"].wait(10) == 0


def test_cores_limit_what_runs(build):
    build.predict(_=(10, 1))
    build.env["IRONWHEEL_GATE_CORES"] = "2"
    for unit in "abcd":
        build.start(unit, "use 10 0.15")
    assert set(build.finish().values()) == {0}
    assert max(row["running"] for row in build.rows("events.jsonl")) == 2


def test_a_killed_holder_frees_its_memory_and_leaves_no_compiler(build):
    build.predict(_=(90, 30))
    holder = build.start("holder", "use 80 30")
    build.until(lambda: "holder.cu" in build.events("admitted"), "start of the holder")
    waiter = build.start("waiter", "use 20 0.05")
    build.until(lambda: nvcc_gate.status(str(build.state)).get("waiting") == 1, "arrival of the waiter")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert waiter.wait(10) == 0
    (lost,) = [row for row in build.rows("events.jsonl") if row["event"] == "lost"]
    assert lost["lost"] == "holder.cu"
    assert lost["ended"] >= 1
    assert not [name for name in os.listdir("/proc") if name.isdigit() and b"holder.cu" in nvcc_gate.read_bytes(f"/proc/{name}/cmdline")]


def test_a_killed_waiter_is_forgotten(build):
    build.predict(_=(90, 30))
    build.start("holder", "use 20 0.6")
    build.until(lambda: "holder.cu" in build.events("admitted"), "start of the holder")
    waiter = build.start("waiter", "use 20 0.05")
    build.until(lambda: nvcc_gate.status(str(build.state)).get("waiting") == 1, "arrival of the waiter")
    waiter.send_signal(signal.SIGKILL)
    waiter.wait()
    last = build.start("last", "use 20 0.05")
    assert last.wait(10) == 0
    assert build.events("admitted") == ["holder.cu", "last.cu"]


def test_waiting_calls_give_up_at_once_when_a_unit_fails_and_a_new_build_starts_afresh(build):
    build.predict(_=(90, 30))
    build.start("bad", "use 20 0.3; exit 2")
    build.until(lambda: "bad.cu" in build.events("admitted"), "start of the failing unit")
    for unit in "xyz":
        build.start(unit, "use 20 30")
    begin = time.monotonic()
    codes = build.finish(8)
    assert codes == {"bad": 2, "x": 1, "y": 1, "z": 1}
    assert time.monotonic() - begin < 3
    assert "bad.cu failed with exit status 2" in build.calls["x"].stderr.read()
    assert build.start("late", "use 10 0").wait(5) == 1
    assert build.start("again", "use 10 0", IRONWHEEL_GATE_BUILD="second").wait(5) == 0


@pytest.mark.parametrize(
    ("code", "words", "memory"),
    [
        (137, "", True),
        (9, "", True),
        (9, "nvcc error : 'cicc' died due to signal 9 (Kill signal)", True),
        (1, "c++: fatal error: Killed signal terminated program cc1plus", True),
        (1, "error: no such thing", False),
        (3, "", False),
    ],
)
def test_how_a_death_for_want_of_memory_is_told(tmp_path, code, words, memory):
    (tmp_path / "errors").write_text("a warning\n" * 3000 + words)
    with open(tmp_path / "errors", encoding="utf-8") as stream:
        assert nvcc_gate.Gate.out_of_memory(code, stream.fileno(), nvcc_gate.oom_kills()) is memory


@pytest.mark.parametrize("death", ["kill", "say c++: fatal error: Killed signal terminated program cc1plus\nexit 1"], ids=["signal 9", "gcc's words"])
def test_a_unit_that_the_oom_killer_took_is_tried_again_with_a_raised_prediction(build, death):
    build.predict(_=(30, 1))
    # The first attempt meets the end, the second one finds a mended source.
    source = build.folder / "unit.cu"
    build.nvcc.write_text(f'#!/bin/sh\n{PYTHON} -I -S {FAKE} "$@"\ncode=$?\necho "use 30 0.05" > {source}\n[ $code -lt 129 ] || kill -9 $$\nexit $code\n')
    assert build.start("unit", "use 30 0.05\n" + death).wait(10) == 0
    (retry,) = [row for row in build.rows("events.jsonl") if row["event"] == "retry"]
    assert retry["predicted_mib"] >= 1.5 * 30
    assert [row["predicted_mib"] for row in build.rows("events.jsonl") if row["event"] == "admitted"] == [30, retry["predicted_mib"]]
    assert build.rows("costs.jsonl")[0]["retries"] == 1
    assert (build.folder / "unit.o").exists()


def test_three_tries_and_then_it_fails_with_the_numbers(build):
    build.predict(_=(30, 1))
    assert build.start("unit", "use 12 0.02; kill").wait(10) == 137
    assert len(build.events("admitted")) == 3
    assert "ran out of memory 3 times" in nvcc_gate.status(str(build.state))["failed"]
    assert build.rows("events.jsonl")[-1]["oom"] is True


def test_signals_reach_the_compiler_and_nothing_is_left(build):
    call = build.start("unit", "use 20 30")
    build.until(lambda: "unit.cu" in build.events("admitted"), "start")
    time.sleep(0.2)
    call.terminate()
    assert call.wait(5) == 143
    assert not [name for name in os.listdir("/proc") if name.isdigit() and str(build.folder).encode() in nvcc_gate.read_bytes(f"/proc/{name}/cmdline")]


def test_a_call_whose_ninja_is_gone_stops(build):
    source = build.folder / "unit.cu"
    source.write_text("use 10 30\n")
    inner = [*build.gate, "-c", str(source), "-o", str(build.folder / "unit.o")]
    program = f"import os, subprocess, time; subprocess.Popen({inner!r}); time.sleep(30)"
    ninja = subprocess.Popen([PYTHON, "-c", program], env=build.env, stderr=subprocess.DEVNULL)
    build.until(lambda: "unit.cu" in build.events("admitted"), "start")
    ninja.kill()
    ninja.wait()
    build.until(lambda: "unit.cu" in build.events("failed"), "end of the orphan")


def test_a_unit_that_needs_more_than_predicted_teaches_the_others(build):
    build.predict(_=(20, 5))
    build.start("first", "use 50 0.4; use 10 0.3")
    build.until(lambda: [row for row in build.rows("events.jsonl") if row["event"] == "passed"], "the first peak")
    build.start("second", "use 10 0.05")
    assert set(build.finish().values()) == {0}
    second = [row for row in build.rows("events.jsonl") if row["event"] == "admitted" and row["unit"] == "second.cu"]
    assert second[0]["predicted_mib"] >= 50


def test_memory_is_kept_back_while_ninja_compiles_for_the_host(build):
    """The test itself plays ninja: its other child stands for a host-compiled unit."""
    build.predict(_=(50, 5))
    build.env.update(IRONWHEEL_GATE_KEEP_MIB="60")
    host_unit = subprocess.Popen(["sleep", "0.6"])
    build.start("a", "use 10 1")
    build.until(lambda: "a.cu" in build.events("admitted"), "start of the first")
    build.start("b", "use 10 0.05")
    try:
        time.sleep(0.3)
        assert build.events("admitted") == ["a.cu"]
    finally:
        host_unit.wait()
    build.until(lambda: "b.cu" in build.events("admitted"), "start of the second", 5)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("IRONWHEEL_GATE_BUDGET_MIB", "much", "must be a number"),
        ("IRONWHEEL_GATE_BUDGET_MIB", "", "is not set"),
        ("IRONWHEEL_NVCC", "", "is not set"),
        ("IRONWHEEL_NVCC", "/does/not/exist", "cannot run /does/not/exist"),
        ("IRONWHEEL_GATE_DIR", "/proc/nothing", "/proc/nothing"),
    ],
)
def test_wrong_settings_are_said_in_one_line(build, variable, value, says):
    call = build.start("unit", "use 10 0", **{variable: value})
    _out, err = call.communicate(timeout=5)
    assert call.returncode == 2
    assert says in err
    assert "Traceback" not in err


def test_a_torn_state_file_is_replaced(build):
    build.state.mkdir()
    (build.state / "state").write_text("first\tno")
    assert build.start("unit", "use 10 0").wait(5) == 0


def test_a_call_costs_little(build):
    """CPU time of the gate itself, start-up included: under 60 ms (the best of three, since the machine may be busy)."""
    for unit in "abc":
        build.start(unit, "use 20 0.5", IRONWHEEL_GATE_SAMPLE_S="0.25")
    assert set(build.finish().values()) == {0}
    assert min(row["gate_cpu_s"] for row in build.rows("costs.jsonl")) < 0.060


def test_the_command_for_ninja_is_stable(tmp_path):
    first = nvcc_gate.install(str(tmp_path / "stable"), PYTHON)
    assert first == nvcc_gate.install(str(tmp_path / "stable"), PYTHON)
    assert first == f"{PYTHON} -I -S {tmp_path}/stable/nvcc_gate.pyc"
    assert "IRONWHEEL" not in first
    with pytest.raises(nvcc_gate.GateError, match="cannot compile"):
        nvcc_gate.install(str(tmp_path / "stable"), "/bin/false")
