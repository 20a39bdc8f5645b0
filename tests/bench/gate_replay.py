# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate against static jobs and against its own replay, with fake compilers scaled down in time and memory from the measured units.

``PYTHONPATH=.collections python tests/bench/gate_replay.py --budget-gib 32 --cores 16`` prints one JSON object: seconds and MiB, scaled back up, of the
gate as it really ran, of its replay, and of static jobs. Needs no GPU, no nvcc and about a gigabyte of memory. Fake compilers sleep, so a machine with few
cores can play one with many; a busy machine makes the real times longer.
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
# What a fake compiler takes before it holds anything; part of each unit's prediction, taken out of the results.
BASE_MIB = 10.0


def write_unit(folder: Path, unit: build_memory.Unit, time_scale: float, memory_scale: float) -> Path:
    """A source file that makes the fake compiler live this unit's life."""
    step_s = unit.wall_s / time_scale / len(unit.shape)
    lines = [f"hold {share * unit.peak_mib / memory_scale:.2f} {step_s:.4f}" for share in unit.shape]
    path = folder / unit.name
    path.write_text("\n".join(lines) + "\n")
    return path


class Watch(threading.Thread):
    """Memory of all fake compilers together, ten times a second and more: ``total_mib`` at its highest, ``peak_mib`` the same without their base."""

    def __init__(self, marker: str) -> None:
        super().__init__(daemon=True)
        self.marker = marker.encode()
        self.peak_mib = self.total_mib = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        known: dict[int, bool] = {}
        while not self.ended.wait(0.05):
            total, count = 0.0, 0
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
                        count += 1
            self.total_mib = max(self.total_mib, total)
            self.peak_mib = max(self.peak_mib, total - count * BASE_MIB)


def measured(marker: str, work) -> tuple[float, Watch]:
    """Seconds of a piece of work, and its memory."""
    watch = Watch(marker)
    watch.start()
    begin = time.monotonic()
    work()
    seconds = time.monotonic() - begin
    watch.ended.set()
    watch.join()
    return seconds, watch


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
    replayed = build_memory.replay(found, cores=options.cores, budget_mib=budget)
    result: dict[str, object] = {
        "units": len(found),
        "cores": options.cores,
        "budget_mib": round(budget),
        "time_scale": scale_t,
        "memory_scale": scale_m,
        "load": round(os.getloadavg()[0], 1),
        "gate_replay_s": round(replayed.time_s),
        "gate_replay_peak_mib": round(replayed.peak_mib),
        "static_jobs": jobs,
        "static_replay_s": round(build_memory.replay(found, cores=options.cores, jobs=jobs).time_s),
    }
    with tempfile.TemporaryDirectory(prefix="gate-replay-") as name:
        folder = Path(name)
        sources = [write_unit(folder, unit, scale_t, scale_m) for unit in found]
        costs = folder / "costs.tsv"
        # The base of every fake is one more thing that a unit holds: it goes into prediction, later shares and budget alike.
        lines = ["#\t1\t1"]
        for unit in found:
            peak = unit.peak_mib / scale_m + BASE_MIB
            later = ",".join(f"{(share * unit.peak_mib / scale_m + BASE_MIB) / peak:.3f}" for share in build_memory.later_shares(unit.shape))
            lines.append(f"{unit.name}\t{peak:.2f}\t{unit.wall_s / scale_t:.3f}\t{later}\thistory")
        costs.write_text("\n".join(lines) + "\n")
        env = {
            "PATH": os.environ["PATH"],
            "IRONWHEEL_NVCC": str(folder / "nvcc"),
            "IRONWHEEL_GATE_DIR": str(folder / "gate"),
            "IRONWHEEL_GATE_BUILD": "bench",
            "IRONWHEEL_GATE_BUDGET_MIB": str(budget / scale_m + BASE_MIB * replayed.most_running),
            "IRONWHEEL_GATE_CORES": str(options.cores),
            "IRONWHEEL_GATE_COSTS": str(costs),
            "IRONWHEEL_GATE_KEEP_MIB": "0",
            "IRONWHEEL_GATE_UNITS": str(len(found)),
            "IRONWHEEL_GATE_SAMPLE_S": str(max(0.02, 0.25 / scale_t)),
        }
        given_mib = float(env["IRONWHEEL_GATE_BUDGET_MIB"])
        (folder / "nvcc").write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {FAKE} "$@"\n')
        (folder / "nvcc").chmod(0o755)
        seconds, watch = measured(str(folder), lambda: run_gated(folder, sources, env))
        rows = [json.loads(line) for line in (folder / "gate" / "costs.jsonl").read_text().splitlines()]
        cpu = sorted(row["gate_cpu_s"] for row in rows)
        # The units as long as they really were: what is left is the gate's own part of the difference.
        walls = {row["unit"]: row["wall_s"] * scale_t for row in rows}
        real_units = [build_memory.Unit(unit.name, walls[unit.name], unit.peak_mib, unit.shape) for unit in found]
        as_it_was = build_memory.replay(real_units, cores=options.cores, budget_mib=budget)
        events = [json.loads(line) for line in (folder / "gate" / "events.jsonl").read_text().splitlines()]
        result.update(
            gate_s=round(seconds * scale_t),
            gate_peak_mib=round(watch.peak_mib * scale_m),
            # With the base of the fakes on both sides, which is what the gate really saw.
            gate_peak_of_its_budget=round(watch.total_mib / given_mib, 3),
            gate_most_running=max(row["running"] for row in events),
            gate_cpu_ms_median=round(1000 * cpu[len(cpu) // 2], 1),
            gate_cpu_ms_highest=round(1000 * cpu[-1], 1),
            gate_against_replay=round(seconds * scale_t / replayed.time_s, 3),
            gate_against_replay_of_real_unit_times=round(seconds * scale_t / as_it_was.time_s, 3),
        )
        if not options.skip_static:
            seconds, watch = measured(str(folder), lambda: run_static(sources, jobs))
            result.update(static_s=round(seconds * scale_t), static_peak_mib=round(watch.peak_mib * scale_m))
            result["times_faster"] = round(float(str(result["static_s"])) / float(str(result["gate_s"])), 2)
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
