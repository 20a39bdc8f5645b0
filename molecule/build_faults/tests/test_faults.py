# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults in builds, each really made: what the run says, that nothing half-written is left, and that the next run finishes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

HOST = "ironwheel-build-faults"
PREFIX = "/opt/ironwheel"
UV = f"{PREFIX}/uv/0.13.9/uv"
FAULTS = "/srv/faults"
BUILD = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule" / "build_faults" / "files" / "build.yml"
LIMIT_S = 900


class Machine:
    """The host, from below: what a run cannot see."""

    def __init__(self, host) -> None:
        self.host = host

    def do(self, command: str) -> str:
        return self.host.check_output(command)

    def quietly(self, command: str) -> str:
        return self.host.run(command).stdout.strip()

    def orders(self, *lines: str) -> None:
        """What nvcc does at its next calls."""
        self.do(f"printf '{''.join(line + chr(92) + 'n' for line in lines)}' > {FAULTS}/orders")

    def hold(self) -> None:
        """The first compilation waits until it is released."""
        self.do(f"touch {FAULTS}/hold")
        self.orders("wait")

    def release(self) -> None:
        self.do(f"rm -f {FAULTS}/hold")

    def processes(self, pattern: str) -> list[int]:
        """Process ids whose command line matches, those of this search apart."""
        found = self.quietly(f"pgrep -f -- '{pattern}'")
        return [int(pid) for pid in found.split() if "pgrep" not in self.quietly(f"tr '\\0' ' ' < /proc/{pid}/cmdline")]

    def wait_for(self, pattern: str) -> list[int]:
        """Wait until such a process runs."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = self.processes(pattern)
            if found:
                return found
            time.sleep(1)
        raise AssertionError(f"no process '{pattern}'; {self.quietly(f'tail -n 20 {PREFIX}/builds/*/build.log')}")

    def folder(self) -> str:
        (name,) = self.do(f"ls {PREFIX}/builds").split()
        return f"{PREFIX}/builds/{name}"

    def compiled(self) -> list[str]:
        """The units that were compiled to their end, in all runs of the build."""
        lines = self.quietly(f"cat {self.folder()}/gate/costs.jsonl").splitlines()
        return sorted(json.loads(line)["unit"] for line in lines)

    def result(self) -> dict:
        return json.loads(self.do(f"cat {self.folder()}/result.json"))

    def nothing_runs(self) -> bool:
        return not self.processes("nvcc_gate|/nvcc |cicc|build_runner|runner[.]py|ninja")


class Run:
    """One run of the playbook in the background."""

    def __init__(self, store: Path, *arguments: str) -> None:
        command = ["ansible-playbook", "-i", os.environ["MOLECULE_INVENTORY_FILE"], str(BUILD), "-e", f"store={store}", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, start_new_session=True, cwd=store.parent
        )
        self.output = ""

    def end(self) -> str:
        """The output, once it ended."""
        self.output, _none = self.process.communicate(timeout=LIMIT_S)
        return self.output

    def kill(self) -> None:
        """kill -9 of the controller with everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def succeeded(self) -> str:
        output = self.end()
        assert self.process.returncode == 0, output
        return output

    def failed(self) -> str:
        output = self.end()
        assert self.process.returncode not in (0, None), output
        return output


@pytest.fixture
def machine(host):
    """A host without a build, a wheel and an order."""
    there = Machine(host)
    there.quietly(f"systemctl stop 'ironwheel-build-*'; umount {PREFIX}/builds; rm -rf {PREFIX}/builds {PREFIX}/wheels {FAULTS}/orders {FAULTS}/hold")
    yield there
    there.release()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def wheels(store: Path) -> list[Path]:
    return sorted(store.glob("*/*/*.whl"))


def test_a_plain_build(machine, store):
    output = Run(store).succeeded()
    assert "SOURCE=build" in output
    assert machine.compiled() == ["double.cu", "triple.cu"]
    assert len(wheels(store)) == 1
    # The same again: the host has it.
    assert "SOURCE=target" in Run(store).succeeded()


def test_a_killed_compiler_is_tried_again(machine, store):
    machine.hold()
    run = Run(store)
    (pid, *_more) = machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    machine.do(f"kill -9 {pid}")
    machine.release()
    run.succeeded()
    assert machine.compiled() == ["double.cu", "triple.cu"]
    events = [json.loads(line) for line in machine.do(f"cat {machine.folder()}/gate/events.jsonl").splitlines()]
    assert [event["event"] for event in events].count("retry") == 1


def test_a_killed_gate_fails_clearly_and_the_next_run_goes_on(machine, store):
    machine.orders("", "wait")
    machine.do(f"touch {FAULTS}/hold")
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    # One unit may be through already; the gate of the waiting one is killed.
    end = time.monotonic() + 60
    gates = "^[^ ]*python[^ ]* -I -S [^ ]*nvcc_gate[.]pyc"
    while len(machine.processes(gates)) > 1 and time.monotonic() < end:
        time.sleep(0.5)
    for pid in machine.processes(gates):
        machine.quietly(f"kill -9 {pid}")
    output = run.failed()
    assert "The build of ironwheel-probe 1.0.0 failed" in output and "Traceback" not in output
    assert "counted none: another program or person ended it" in output
    machine.release()
    assert machine.nothing_runs() and wheels(store) == []
    done = machine.compiled()
    Run(store).succeeded()
    assert machine.compiled() == ["double.cu", "triple.cu"], f"{done} was compiled before and is compiled again"


def test_a_killed_runner_fails_clearly_and_the_next_run_finishes(machine, store):
    machine.hold()
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    machine.do(f"kill -9 $(cat {machine.folder()}/lock)")
    output = run.failed()
    assert "its runner was killed" in output and "what compiled is kept" in output
    assert wheels(store) == []
    machine.release()
    assert "SOURCE=build" in Run(store).succeeded()
    assert machine.nothing_runs()


def test_memory_runs_out_once_and_the_unit_is_tried_again(machine, store):
    machine.orders("eat 9000")
    output = Run(store).succeeded()
    assert "SOURCE=build" in output
    events = [json.loads(line) for line in machine.do(f"cat {machine.folder()}/gate/events.jsonl").splitlines()]
    (retry,) = [event for event in events if event["event"] == "retry"]
    assert retry["peak_mib"] > 2000
    assert machine.result()["outcome"] == "ok"


def test_memory_runs_out_always_and_the_host_lives(machine, store):
    started = machine.do("stat -c %Y /proc/1")
    machine.orders("always eat 9000")
    output = Run(store).failed()
    assert "BuildOutOfMemory" in output or "killed, most likely for lack of memory" in output
    assert re.search(r"peak \d{4} MiB of \d{4} MiB", output) and "what compiled is kept" in output
    assert machine.result()["outcome"] == "out_of_memory" and machine.result()["oom_kills"] > 0
    assert machine.do("stat -c %Y /proc/1") == started and machine.nothing_runs()
    assert wheels(store) == [] and machine.quietly(f"ls {PREFIX}/wheels") == ""
    machine.do(f"rm {FAULTS}/orders")
    assert "SOURCE=build" in Run(store).succeeded()


def test_the_disk_fills_up(machine, store):
    machine.do(f"mkdir -p {PREFIX}/builds && mount -t tmpfs -o size=1500m tmpfs {PREFIX}/builds")
    machine.orders(f"fill {PREFIX}/builds")
    output = Run(store).failed()
    assert "the disk of the build folder is full (0 MiB free)" in output and "Free space below uv_venv_prefix" in output
    folder = machine.do(f"ls -d {PREFIX}/builds/*/").rstrip("/")
    result = json.loads(machine.do(f"cat {folder}/result.json"))
    assert (result["outcome"], result["wheel"]) == ("out_of_disk", None)
    assert wheels(store) == [] and machine.quietly(f"ls {PREFIX}/wheels") == "" and machine.nothing_runs()
    # Still full: refused with the numbers, before anything is started.
    output = Run(store).failed()
    assert re.search(r"has 0 MiB free, the build needs about \d{4} MiB", output)
    machine.do(f"rm {PREFIX}/builds/filler")
    assert "SOURCE=build" in Run(store).succeeded()


def test_the_connection_breaks_and_the_same_run_finishes(machine, store):
    machine.hold()
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    # Every session but the one that does this.
    machine.quietly("for pid in $(pgrep -f 'sshd: root@notty'); do [ $pid = $PPID ] || kill -9 $pid; done")
    time.sleep(12)
    machine.release()
    assert "SOURCE=build" in run.succeeded()
    assert machine.compiled() == ["double.cu", "triple.cu"]


def test_the_controller_dies_and_the_next_run_attaches(machine, store):
    machine.hold()
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    run.kill()
    assert machine.processes("runner[.]py"), "the build ended with its controller"
    again = Run(store)
    time.sleep(5)
    machine.release()
    output = again.succeeded()
    assert "Attached to the build of ironwheel-probe 1.0.0" in output or "ended in" in output
    assert machine.compiled() == ["double.cu", "triple.cu"]


def test_the_build_ends_while_no_controller_is_there(machine, store):
    machine.hold()
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    run.kill()
    machine.release()
    end = time.monotonic() + LIMIT_S
    while machine.quietly(f"cat {machine.folder()}/result.json") == "" and time.monotonic() < end:
        time.sleep(1)
    log = machine.do(f"cat {machine.folder()}/build.log")
    output = Run(store).succeeded()
    assert "while nobody was connected" in output
    assert machine.do(f"cat {machine.folder()}/build.log") == log


def test_two_controllers_at_once_make_one_build(machine, store, tmp_path):
    other = tmp_path / "other" / "store"
    other.parent.mkdir()
    runs = [Run(store), Run(other)]
    outputs = [run.succeeded() for run in runs]
    assert sum("Started the build" in output for output in outputs) == 1, outputs
    assert machine.compiled() == ["double.cu", "triple.cu"]
    (one,), (two,) = wheels(store), wheels(other)
    assert one.read_bytes() == two.read_bytes()


def test_two_runs_of_one_store_make_one_build(machine, store):
    runs = [Run(store), Run(store)]
    outputs = [run.succeeded() for run in runs]
    assert sorted(re.search(r"SOURCE=(\w+)", output).group(1) for output in outputs)[0] == "build"
    assert sum("Started the build" in output for output in outputs) == 1, outputs
    assert len(wheels(store)) == 1


def test_the_host_restarts_in_the_middle(machine, store):
    machine.hold()
    run = Run(store)
    machine.wait_for(f"{FAULTS}/cuda/bin/nvcc .*[.]cu")
    subprocess.run(["podman", "restart", "--time", "2", HOST], check=True, capture_output=True, timeout=120)
    output = run.failed()
    assert "its runner was killed" in output or "UNREACHABLE" in output, output
    machine.release()
    assert "SOURCE=build" in Run(store).succeeded()


def test_an_altered_wheel_in_the_store_is_refused_and_built_again(machine, store):
    Run(store).succeeded()
    (wheel,) = wheels(store)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-100] + bytes(100))
    machine.do(f"rm -rf {PREFIX}/wheels")
    output = Run(store).succeeded()
    assert "its wheel.json says" in output and "SOURCE=build" in output
    assert wheels(store)[0].read_bytes() == whole, "the same source makes the same wheel"


def test_another_wheel_in_the_cache_of_uv_is_not_used(machine, store):
    # uv keeps what it once built of a source, whatever torch or flags that was for: here the small variant, which has no operator for torch.
    source = "/srv/probe/ironwheel_probe-1.0.0.tar.gz"
    install = f"{UV} --cache-dir {PREFIX}/cache/uv pip install --python /srv/stale/bin/python --no-build-isolation --no-deps {source}"
    machine.do(f"{UV} venv -q --allow-existing --system-site-packages --python {FAULTS}/env/bin/python /srv/stale")
    machine.do(f"echo {FAULTS}/env/lib/python3.11/site-packages > /srv/stale/lib/python3.11/site-packages/all.pth")
    environment = f"PATH={FAULTS}/env/bin:$PATH CUDA_HOME={FAULTS}/cuda TORCH_CUDA_ARCH_LIST=9.0 IRONWHEEL_PROBE_SMALL=1"
    machine.do(f"{environment} {install}")
    again = machine.host.run(f"{environment} {install} --reinstall")
    assert "Building" not in again.stderr, "the cache does not hold the wheel, so that this test shows nothing"
    assert "SOURCE=build" in Run(store, "-e", "small=false").succeeded()
    said = machine.do(f"{FAULTS}/env/bin/python -I -c 'import torch, ironwheel_probe_cuda; print(torch.ops.ironwheel_probe.scale)'")
    assert "ironwheel_probe.scale" in said
