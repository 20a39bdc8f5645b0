# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The memory model of a build: how many jobs, how long, how much memory.

A *unit* is one source file that nvcc compiles, a *stream* one compiler inside it (one architecture at a time), a *job* one unit being compiled. Memory of a job
is ``base + min(nvcc threads, architectures) * peak of one stream``. Memory in MiB, times in seconds, throughout.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import nvcc_gate
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

# Kept back from usable memory for the host, its page cache and the link: a tenth, but never less than this.
RESERVE_SHARE = 0.10
RESERVE_FLOOR_MIB = 256
# A further architecture costs this share of the first one's time: the front end's work is shared. Measured: four architectures take 3.4 times the CPU time.
FURTHER_ARCHITECTURE = 0.80
# What link and packing add at the end.
LINK_S = 15.0
# Predictions from a host's own builds carry this margin.
HISTORY_MARGIN = 1.05


@dataclass(frozen=True)
class Unit:
    """What one unit costs: name, wall time alone on a core, peak of its process tree, and the shape of its memory (a key of ``build_costs.SHAPES``)."""

    name: str
    wall_s: float
    peak_mib: float
    shape: str = "split"


@dataclass(frozen=True)
class JobChoice:
    """Jobs for a build without the gate, and why.

    ``limited_by`` is ``memory``, ``cores``, ``units`` or ``max_jobs``; ``predicted_peak_mib`` is what all jobs need at their peaks together (an upper bound),
    ``predicted_s`` the time of the compile and the link, None when the number of units is not known.
    """

    jobs: int
    nvcc_threads: int
    predicted_peak_mib: int
    predicted_s: int | None
    limited_by: str
    explanation: str
    job_mib: int
    reserve_mib: int
    parallel_extensions: int = 1

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def class_figures(name: str) -> Mapping[str, Any]:
    """The figures of a memory class.

    Raises:
        IronwheelError: no such class.
    """
    if name not in build_costs.CLASSES:
        raise IronwheelError(
            f"memory_class '{name}' is not known; known are {', '.join(build_costs.CLASSES)}.", "UnknownMemoryClass", "Use 'generic' for a torch extension."
        )
    return build_costs.CLASSES[name]


def architecture_factor(architectures: int) -> float:
    """Time of a unit for that many architectures as a multiple of its time for one: 3.4 for four."""
    return 1.0 + FURTHER_ARCHITECTURE * (architectures - 1)


def job_memory(memory: Mapping[str, Any], nvcc_threads: int, architectures: int, stream_mib: float | None = None) -> int:
    """Peak memory of one job in MiB."""
    stream = float(memory["stream_mib"]) if stream_mib is None else stream_mib
    return math.ceil(memory["base_mib"] + min(nvcc_threads, architectures) * stream)


def stream_peak(memory: Mapping[str, Any], units: int | None, history: Iterable[Mapping[str, Any]] | None) -> float:
    """Peak of one stream in MiB: the class's, or what this host's own builds say.

    A history that covers every unit replaces the class's figure (it may be lower); a partial one can only raise it. Rows are the gate's cost log:
    ``{unit, peak_mib, archs, threads}``.
    """
    default = float(memory["stream_mib"])
    peaks: dict[str, float] = {}
    for row in history or ():
        streams = max(1, min(int(row.get("threads") or 1), len(row.get("archs") or ()) or 1))
        peak = (float(row["peak_mib"]) - (memory["base_mib"] if streams > 1 else 0)) / streams
        name = str(row["unit"])
        peaks[name] = max(peaks.get(name, 0.0), peak)
    if not peaks:
        return default
    seen = max(peaks.values()) * HISTORY_MARGIN
    return seen if units is not None and len(peaks) >= units else max(seen, default)


def reserve(usable_mib: float, one_job_mib: float) -> int:
    """Memory kept back in MiB: a tenth, at least 256; on a small host less than a tenth, where the rest would not hold one job."""
    wanted = max(RESERVE_FLOOR_MIB, math.ceil(usable_mib * RESERVE_SHARE))
    spare = math.floor(usable_mib - one_job_mib)
    return max(RESERVE_FLOOR_MIB, min(wanted, spare))


def _positive(name: str, value: float | None, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise IronwheelError(f"{name} is {value!r}; it must be a number above 0.", "InvalidInput", f"Give {name} a positive number.")


def choose_jobs(
    *,
    memory_class: str,
    units: int | None,
    architectures: int,
    usable_mib: float,
    usable_cores: float,
    nvcc_threads: int | None = None,
    max_jobs: int | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    reserve_mib: float | None = None,
    parallel_extensions: int = 1,
) -> JobChoice:
    """Jobs and nvcc threads for a build without the gate.

    More jobs at one thread come first; threads rise only when every unit runs at once and cores and memory are left over. A number of threads that the user
    fixed is kept, unless not even one job fits with it: then it is lowered, and the explanation says so.

    Args:
        memory_class: key of ``build_costs.CLASSES``.
        units: CUDA units of the package, None when not known.
        architectures: how many are really compiled.
        usable_mib: memory that a build may use (available, and within every cgroup limit); swap does not count.
        usable_cores: affinity and quota applied.
        nvcc_threads: fixed number of threads, or None to choose.
        max_jobs: upper bound of the user's.
        history: rows of the gate's cost log from this host's earlier builds of the package.
        reserve_mib: memory to keep back instead of a tenth.
        parallel_extensions: extensions of one source that are built at the same time; each runs ``jobs``, and all together stay within the limits.

    Raises:
        IronwheelError: not even one unit fits (``NotEnoughMemory``), or an argument is out of its range.
    """
    figures = class_figures(memory_class)
    for name, value, optional in (
        ("units", units, True),
        ("architectures", architectures, False),
        ("usable_mib", usable_mib, False),
        ("usable_cores", usable_cores, False),
        ("nvcc_threads", nvcc_threads, True),
        ("max_jobs", max_jobs, True),
        ("parallel_extensions", parallel_extensions, False),
    ):
        _positive(name, value, optional)
    if reserve_mib is not None and reserve_mib < 0:
        raise IronwheelError(f"reserve_mib is {reserve_mib}; it must not be negative.", "InvalidInput")
    stream = stream_peak(figures, units, history)
    cores = max(1, math.floor(usable_cores))
    one = job_memory(figures, 1, architectures, stream)
    kept = math.ceil(reserve_mib) if reserve_mib is not None else reserve(usable_mib, one)
    budget = math.floor(usable_mib - kept)
    if one > budget:
        raise IronwheelError(
            f"usable memory is {usable_mib:.0f} MiB, {kept} MiB of it kept back for the host: one {memory_class} unit needs {one} MiB even at one nvcc thread.",
            "NotEnoughMemory",
            "Free memory, raise the container's or cgroup's limit, take a prebuilt wheel, or build on a larger host (swap does not count).",
        )
    notes = []
    threads = nvcc_threads or 1
    if nvcc_threads is not None and job_memory(figures, threads, architectures, stream) > budget:
        while threads > 1 and job_memory(figures, threads, architectures, stream) > budget:
            threads -= 1
        notes.append(f"nvcc_threads lowered from {nvcc_threads} to {threads}, because not even one job at {nvcc_threads} fits")
    each = job_memory(figures, threads, architectures, stream)
    streams = min(threads, architectures)
    limits = {"memory": budget // each, "cores": max(1, cores // streams)}
    if units is not None:
        limits["units"] = int(units)
    if max_jobs is not None:
        limits["max_jobs"] = int(max_jobs)
    total = min(limits.values())
    limited_by = next(name for name in ("memory", "cores", "max_jobs", "units") if limits.get(name) == total)
    if nvcc_threads is None and limits.get("units") == total:
        # Every unit runs at once: what is left of cores and memory shortens each of them.
        while threads < architectures and total * (threads + 1) <= cores and total * job_memory(figures, threads + 1, architectures, stream) <= budget:
            threads += 1
        each = job_memory(figures, threads, architectures, stream)
    side = max(1, min(int(parallel_extensions), total))
    jobs = total // side
    peak = jobs * side * each
    seconds = None if units is None else math.ceil(static_seconds(class_units(memory_class, int(units), history), jobs * side, architectures, threads))
    words = ", ".join(f"{name} allow{'s' if name == 'memory' else ''} {count}" for name, count in limits.items())
    notes.insert(0, f"{total} job{'s' if total > 1 else ''} at {threads} nvcc thread{'s' if threads > 1 else ''}, limited by {limited_by} ({words})")
    notes.insert(1, f"one job needs {each} MiB at its peak; {usable_mib:.0f} MiB usable, {kept} MiB kept back, {peak} MiB predicted at most")
    if side > 1:
        notes.append(f"{side} extensions at once with {jobs} job{'s' if jobs > 1 else ''} each")
    return JobChoice(
        jobs=jobs,
        nvcc_threads=threads,
        predicted_peak_mib=peak,
        predicted_s=seconds,
        limited_by=limited_by,
        explanation="; ".join(notes) + ".",
        job_mib=each,
        reserve_mib=kept,
        parallel_extensions=side,
    )


def class_units(memory_class: str, units: int, history: Sequence[Mapping[str, Any]] | None = None) -> list[Unit]:
    """The units of a build, in ninja's order: measured ones where there are any, otherwise equal ones at the class's figures.

    History rows replace wall time and peak of the unit that they name (the largest of them; times are taken for one architecture as they are).
    """
    figures = class_figures(memory_class)
    if memory_class == "flash-attn-2":
        known = [Unit(name, wall, peak, shape_of(name)) for name, wall, _cpu, peak in build_costs.FLASH_ATTN_UNITS]
        found = known[:units] + [Unit(f"unit_{index}", figures["unit_s"], figures["stream_mib"]) for index in range(units - len(known))]
    else:
        found = [Unit(f"unit_{index}", figures["unit_s"], figures["stream_mib"]) for index in range(units)]
    rows: dict[str, tuple[float, float]] = {}
    for row in history or ():
        wall, peak = rows.get(str(row["unit"]), (0.0, 0.0))
        rows[str(row["unit"])] = (max(wall, float(row.get("wall_s") or 0.0)), max(peak, float(row["peak_mib"])))
    if not rows:
        return found
    if memory_class == "flash-attn-2" or len(rows) < units:
        return [Unit(unit.name, rows[unit.name][0] or unit.wall_s, rows[unit.name][1], unit.shape) if unit.name in rows else unit for unit in found]
    return [Unit(name, wall or figures["unit_s"], peak, shape_of(name)) for name, (wall, peak) in sorted(rows.items())]


def shape_of(unit: str) -> str:
    """Which measured memory shape stands for a unit: backward units drop to a third of their peak, all others are taken to hold up to 0.56 of it."""
    return "backward" if "_bwd_" in unit else "split"


def static_seconds(units: Sequence[Unit], jobs: int, architectures: int = 1, nvcc_threads: int = 1) -> float:
    """Wall time of a build with a fixed number of jobs, in the order given, link included."""
    factor = architecture_factor(architectures) / min(nvcc_threads, architectures)
    ends: list[float] = []
    for unit in units:
        start = heapq.heappop(ends) if len(ends) >= jobs else 0.0
        heapq.heappush(ends, start + unit.wall_s * factor)
    return max(ends) + LINK_S


@dataclass(frozen=True)
class Replay:
    """What a replay says: wall time without the link, highest memory in use and in reservation, and ``(t_s, running, used_mib, reserved_mib)`` over time."""

    time_s: float
    peak_mib: float
    reserved_mib: float
    most_running: int
    timeline: tuple[tuple[float, int, float, float], ...]


@dataclass
class _Running:
    unit: Unit
    start: float
    peak: float = 0.0
    passed: bool = False
    reserved: float = 0.0


def memory_at(unit: Unit, age_s: float) -> float:
    """Memory of a unit in MiB at an age, from the measured shape."""
    shape = build_costs.SHAPES[unit.shape]
    place = min(len(shape) - 1, int(len(shape) * age_s / unit.wall_s))
    return shape[place] * unit.peak_mib


def later_shares(shape: str, steps: int = 10) -> tuple[float, ...]:
    """For each tenth of a unit's life the largest share of its peak at or after it, the peak itself left out: what a unit that has passed it can still need."""
    values = build_costs.SHAPES[shape]
    # The peak ends where memory first falls below what counts as passed.
    top = values.index(max(values))
    after = next(index for index in range(top, len(values)) if values[index] <= nvcc_gate.PASSED_SHARE)
    result = []
    for step in range(steps):
        first = max(after, step * len(values) // steps)
        result.append(max(values[first:]))
    return tuple(result)


def replay(
    units: Sequence[Unit],
    *,
    cores: int,
    budget_mib: float | None = None,
    jobs: int | None = None,
    keep_mib: float = 0.0,
    tick_s: float = 1.0,
) -> Replay:
    """Replay a build step by step.

    With ``jobs`` a fixed number of jobs runs in the order given and memory does not matter. With ``budget_mib`` the gate decides, by the very functions that
    the gate itself uses. ``keep_mib`` is kept back all the time.

    Raises:
        IronwheelError: neither or both policies are named.
    """
    if (jobs is None) == (budget_mib is None):
        raise IronwheelError("replay needs either jobs (static) or budget_mib (gate).", "InvalidInput")
    later = {name: later_shares(name) for name in build_costs.SHAPES}
    waiting = list(enumerate(units))
    running: list[_Running] = []
    now = 0.0
    head_since: tuple[int, float] | None = None
    timeline = []
    while waiting or running:
        if budget_mib is None:
            while waiting and len(running) < min(int(jobs or 1), cores):
                running.append(_Running(waiting.pop(0)[1], now))
        else:
            blocked = now - head_since[1] if head_since is not None else 0.0
            keys, head = nvcc_gate.choose(
                [(index, unit.peak_mib, unit.wall_s, 1, index) for index, unit in waiting],
                [(item.reserved, 1) for item in running],
                budget_mib - keep_mib,
                cores,
                blocked,
            )
            if head is None:
                head_since = None
            elif head_since is None or head_since[0] != head:
                head_since = (head, now)
            chosen = set(keys)
            for index, unit in waiting:
                if index in chosen:
                    running.append(_Running(unit, now, reserved=unit.peak_mib * nvcc_gate.PEAK_MARGIN))
            waiting = [item for item in waiting if item[0] not in chosen]
        used = 0.0
        for item in running:
            age = now - item.start
            current = memory_at(item.unit, age)
            used += current
            item.peak = max(item.peak, current)
            if not item.passed:
                item.passed = nvcc_gate.has_passed(item.unit.peak_mib, item.peak, current, age, item.unit.wall_s, 0)
                item.reserved = nvcc_gate.reservation(
                    item.unit.peak_mib, item.peak, current, age, item.unit.wall_s, item.passed, later[item.unit.shape]
                )
            else:
                hold = nvcc_gate.reservation(item.unit.peak_mib, item.peak, current, age, item.unit.wall_s, True, later[item.unit.shape])
                item.reserved = min(item.reserved, hold)
        timeline.append((now, len(running), used, sum(item.reserved for item in running)))
        ends = [item.start + item.unit.wall_s for item in running]
        now = min([now + tick_s, *ends])
        running = [item for item in running if item.start + item.unit.wall_s > now + 1e-9]
    return Replay(
        time_s=now,
        peak_mib=max(row[2] for row in timeline),
        reserved_mib=max(row[3] for row in timeline),
        most_running=max(row[1] for row in timeline),
        timeline=tuple(timeline),
    )
