# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replays the builds of docs/data/flash-attn-build.json and prints them beside what was measured.

``PYTHONPATH=.collections python tests/bench/measured_replay.py``. The units live as long and use as much memory as they did; the gate decides by what it knew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory
from ansible_collections.ironwheel.gpu.plugins.module_utils.build_memory import Replay, Unit
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

DATA = Path(__file__).parents[2] / "docs" / "data" / "flash-attn-build.json"


def lived(row: dict[str, Any]) -> Unit:
    """A unit as it really went; the highest look stands for the peak, which mostly lay between two looks."""
    shares = [share / 100 for share in row["profile"]]
    shares[shares.index(max(shares))] = 1.0
    return Unit(row["unit"], row["wall_s"], row["peak_mib"], tuple(shares))


def replays(data: dict[str, Any]) -> dict[str, tuple[Replay, float | None, int | None]]:
    """``{what: (replay, measured seconds of the units, measured peak in MiB)}``."""
    known = {unit.name: unit for unit in build_memory.class_units("flash-attn-2", 72)}
    whole = sorted(map(lived, data["units"]), key=lambda unit: unit.name)
    few = sorted(map(lived, data["subset"]["units"]), key=lambda unit: unit.name)
    # What the gate knew on that day: times and peaks, but one shape for all forward units.
    then = [Unit(unit.name, known[unit.name].wall_s, known[unit.name].peak_mib, build_costs.SHAPE) for unit in few]
    now = [known[unit.name] for unit in few]
    build, subset = data["build"], data["subset"]
    budget, jobs, cores = subset["budget_mib"], subset["static_jobs"], data["machine"]["cores"]
    return {
        "whole build": (
            build_memory.replay([known[unit.name] for unit in whole], cores=cores, budget_mib=build["budget_mib"], lives=whole),
            build["compile_s"],
            build["peak_mib"],
        ),
        "subset, gate": (
            build_memory.replay(then, cores=cores, budget_mib=budget, lives=few),
            subset["gate"]["seconds"],
            subset["gate"]["peak_mib"],
        ),
        "subset, static jobs": (
            build_memory.replay(few, cores=cores, jobs=jobs),
            subset["static"]["seconds"],
            subset["static"]["peak_mib"],
        ),
        "subset, gate with the measured shapes": (build_memory.replay(now, cores=cores, budget_mib=budget, lives=few), None, None),
    }


def main() -> None:
    """One line a build."""
    lines = ["| | measured | replay | | measured peak | replayed peak | |", "|---|---|---|---|---|---|---|"]
    for name, (replay, seconds, peak) in replays(json.loads(DATA.read_text(encoding="utf-8"))).items():
        time = f"{seconds:,.1f} s | {replay.time_s:,.1f} s | {replay.time_s / seconds:.2f}" if seconds else f"not run | {replay.time_s:,.1f} s | "
        memory = f"{peak:,} MiB | {replay.peak_mib:,.0f} MiB | {replay.peak_mib / peak:.2f}" if peak else f"not run | {replay.peak_mib:,.0f} MiB | "
        lines.append(f"| {name} | {time} | {memory} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
