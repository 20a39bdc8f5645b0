# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prints the table of docs/build-memory.md: a whole flash-attn build replayed with static jobs and with the gate."""

from __future__ import annotations

import sys

from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory


def main() -> None:
    """One line a host."""
    units = build_memory.class_units("flash-attn-2", 72)
    highest = max(unit.peak_mib for unit in units)
    lines = ["| cores | budget | static jobs | static | gate | gate's peak |", "|---|---|---|---|---|---|"]
    for cores, gib in ((16, 14.4), (16, 21.6), (16, 28.8), (16, 32.0), (16, 43.2), (16, 48.0), (16, 57.6), (16, 86.4), (128, 388.8)):
        budget = gib * 1024
        jobs = min(cores, int(budget // highest))
        static = build_memory.replay(units, cores=cores, jobs=jobs, tick_s=5)
        gate = build_memory.replay(units, cores=cores, budget_mib=budget)
        lines.append(f"| {cores} | {gib:.1f} GiB | {jobs} | {static.time_s:,.0f} s | {gate.time_s:,.0f} s | {gate.peak_mib / 1024:.1f} GiB |")
    measured = build_memory.replay(units, cores=16, jobs=16)
    lines.append("")
    lines.append(f"16 static jobs: {measured.time_s + build_memory.OTHER_S:,.0f} s with start, link and packing, peak {measured.peak_mib:,.0f} MiB")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
