# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate against static jobs and against its own replay, with fake compilers scaled down in time and memory from the measured units.

``PYTHONPATH=.collections python tests/bench/gate_replay.py --budget-gib 32 --cores 16`` prints one JSON object: seconds, scaled back up, of the gate as it
really ran, of its replay, and of static jobs; memory as the fakes really had it. Needs no GPU, no nvcc and about a gigabyte of memory. Fake compilers sleep,
so a machine with few cores can play one with many; a busy machine makes the real times longer.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory, nvcc_gate

FAKE = Path(__file__).with_name("fake_nvcc.py")
PYTHON = os.path.realpath(sys.executable)
# What a fake compiler takes before it holds anything: part of each unit's prediction and of the budget.
BASE_MIB = 10.0


def as_fake(unit: build_memory.Unit, time_scale: float, memory_scale: float) -> build_memory.Unit:
    """The unit as its fake lives it: scaled down, and with the base of the fake all the time."""
    peak = unit.peak_mib / memory_scale + BASE_MIB
    shape = tuple((share * unit.peak_mib / memory_scale + BASE_MIB) / peak for share in unit.shape)
    return build_memory.Unit(unit.name, unit.wall_s / time_scale, peak, shape)


def write_unit(folder: Path, unit: build_memory.Unit, time_scale: float, memory_scale: float) -> Path:
    """A source file that makes the fake compiler live this unit's life."""
    step_s = unit.wall_s / time_scale / len(unit.shape)
    lines = [f"hold {share * unit.peak_mib / memory_scale:.2f} {step_s:.4f}" for share in unit.shape]
    path = folder / unit.name
    path.write_text("\n".join(lines) + "\n")
    return path


class Watch(threading.Thread):
    """Highest memory of all fake compilers together, looked at ten times a second and more."""

    def __init__(self, marker: str) -> None:
        super().__init__(daemon=True)
        self.marker = marker.encode()
        self.peak_mib = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        known: dict[int, bool] = {}
        while not self.ended.wait(0.05):
            total = 0.0
            for name in os.listdir("/proc"):
                if not name.isdigit():
                    continue
                pid = int(name)
                if not known.get(pid):
                    words = nvcc_gate.read_bytes(f"/proc/{pid}/cmdline")
                    known[pid] = self.marker in words and b"fake_nvcc" in words
                if known[pid]:
                    pages = nvcc_gate.read_bytes(f"/proc/{pid}/statm").split()
                    if pages:
                        total += int(pages[1]) * nvcc_gate.PAGE / nvcc_gate.MIB
            self.peak_mib = max(self.peak_mib, total)


def measured(marker: str, work) -> tuple[float, float]:
    """Seconds and highest memory of a piece of work."""
    watch = Watch(marker)
    watch.start()
    begin = time.monotonic()
    work()
    seconds = time.monotonic() - begin
    watch.ended.set()
    watch.join()
    return seconds, watch.peak_mib


def run_static(sources: Sequence[Path], jobs: int) -> None:
    """A fixed number of fake compilers at a time, in the order given."""
    todo: queue.Queue[Path] = queue.Queue()
    for source in sources:
        todo.put(source)

    def worker() -> None:
        while True:
            try:
                source = todo.get_nowait()
            except queue.Empty:
                return
            subprocess.run([PYTHON, "-I", "-S", str(FAKE), "-c", str(source), "-o", f"{source}.o"], check=True)

    workers = [threading.Thread(target=worker) for _job in range(jobs)]
    for item in workers:
        item.start()
    for item in workers:
        item.join()


def run_gated(folder: Path, sources: Sequence[Path], env: dict[str, str]) -> None:
    """All calls at once, as ninja makes them."""
    command = nvcc_gate.install(str(folder / "stable"), PYTHON).split()
    calls = [subprocess.Popen([*command, "-c", str(source), "-o", f"{source}.o"], env=env) for source in sources]
    failed = [call for call in calls if call.wait() != 0]
    if failed:
        raise SystemExit(f"{len(failed)} calls failed; see {folder}")


def main() -> None:
    """Run both ways and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-gib", type=float, default=32.0)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--every", type=int, default=1, help="take every Nth unit by cost")
    parser.add_argument("--time-scale", type=float, default=25.0)
    parser.add_argument("--memory-scale", type=float, default=100.0)
    parser.add_argument("--skip-static", action="store_true")
    options = parser.parse_args()
    found = build_memory.class_units("flash-attn-2", 72)
    if options.every > 1:
        chosen = sorted(found, key=lambda unit: -unit.wall_s)[:: options.every]
        found = [unit for unit in found if unit in chosen]
    budget = options.budget_gib * 1024
    scale_t, scale_m = options.time_scale, options.memory_scale
    highest = max(unit.peak_mib for unit in found)
    jobs = max(1, min(options.cores, int(budget // highest)))
    fakes = [as_fake(unit, scale_t, scale_m) for unit in found]
    # As many bases as units would run at once.
    given_mib = budget / scale_m + BASE_MIB * build_memory.replay(found, cores=options.cores, budget_mib=budget).most_running
    replayed = build_memory.replay(fakes, cores=options.cores, budget_mib=given_mib, tick_s=1 / scale_t)
    result: dict[str, object] = {
        "units": len(found),
        "cores": options.cores,
        "budget_mib": round(budget),
        "time_scale": scale_t,
        "memory_scale": scale_m,
        "load": round(os.getloadavg()[0], 1),
        "gate_replay_s": round(replayed.time_s * scale_t),
        "static_jobs": jobs,
        "static_replay_s": round(build_memory.replay(found, cores=options.cores, jobs=jobs).time_s),
        "fake_budget_mib": round(given_mib, 1),
        "fake_replay_peak_mib": round(replayed.peak_mib, 1),
    }
    with tempfile.TemporaryDirectory(prefix="gate-replay-") as name:
        folder = Path(name)
        sources = [write_unit(folder, unit, scale_t, scale_m) for unit in found]
        costs = folder / "costs.tsv"
        lines = ["#\t1\t1"]
        for unit in fakes:
            later = ",".join(f"{share:.3f}" for share in build_memory.later_shares(unit.shape))
            lines.append(f"{unit.name}\t{unit.peak_mib:.2f}\t{unit.wall_s:.3f}\t{later}\thistory")
        costs.write_text("\n".join(lines) + "\n")
        env = {
            "PATH": os.environ["PATH"],
            "IRONWHEEL_NVCC": str(folder / "nvcc"),
            "IRONWHEEL_GATE_DIR": str(folder / "gate"),
            "IRONWHEEL_GATE_BUILD": "bench",
            "IRONWHEEL_GATE_BUDGET_MIB": str(given_mib),
            "IRONWHEEL_GATE_CORES": str(options.cores),
            "IRONWHEEL_GATE_COSTS": str(costs),
            "IRONWHEEL_GATE_KEEP_MIB": "0",
            "IRONWHEEL_GATE_UNITS": str(len(found)),
            "IRONWHEEL_GATE_SAMPLE_S": str(max(0.02, 0.25 / scale_t)),
        }
        (folder / "nvcc").write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {FAKE} "$@"\n')
        (folder / "nvcc").chmod(0o755)
        seconds, peak = measured(str(folder), lambda: run_gated(folder, sources, env))
        rows = [json.loads(line) for line in (folder / "gate" / "costs.jsonl").read_text().splitlines()]
        cpu = sorted(row["gate_cpu_s"] for row in rows)
        # The units as long as they really were: what is left is the gate's own part of the difference.
        walls = {row["unit"]: row["wall_s"] for row in rows}
        lives = [build_memory.Unit(unit.name, walls[unit.name], unit.peak_mib, unit.shape) for unit in fakes]
        as_it_was = build_memory.replay(fakes, cores=options.cores, budget_mib=given_mib, tick_s=1 / scale_t, lives=lives)
        events = [json.loads(line) for line in (folder / "gate" / "events.jsonl").read_text().splitlines()]
        result.update(
            gate_s=round(seconds * scale_t),
            fake_peak_mib=round(peak, 1),
            gate_most_running=max(row["running"] for row in events),
            gate_cpu_ms_median=round(1000 * cpu[len(cpu) // 2], 1),
            gate_cpu_ms_highest=round(1000 * cpu[-1], 1),
            gate_against_replay=round(seconds / replayed.time_s, 3),
            gate_against_replay_of_real_unit_times=round(seconds / as_it_was.time_s, 3),
        )
        if not options.skip_static:
            seconds, _peak = measured(str(folder), lambda: run_static(sources, jobs))
            result.update(static_s=round(seconds * scale_t))
            result["times_faster"] = round(float(str(result["static_s"])) / float(str(result["gate_s"])), 2)
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
