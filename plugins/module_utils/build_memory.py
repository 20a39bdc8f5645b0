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
import os
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
# What a build takes beside its units: the start of setup.py (6 s), link and packing (16 s); 22 to 24 s measured.
OTHER_S = 22.0
# Predictions from a host's own builds carry this margin.
HISTORY_MARGIN = 1.05
# A real build's highest memory lies this much above its replay's at most: units do not start on the second.
REPLAY_PEAK_MARGIN = 1.10
# Steps of the replay behind a prediction: about as far apart as the gate's own looks.
PREDICTION_STEPS = 400


@dataclass(frozen=True)
class Unit:
    """What one unit costs, compiled alone on a core.

    ``wall_s`` is its wall time, ``peak_mib`` the peak of its process tree, ``shape`` its memory over its life as shares of the peak in equal steps, and
    ``passes`` how often that shape is repeated (architectures that one stream compiles one after another).
    """

    name: str
    wall_s: float
    peak_mib: float
    shape: tuple[float, ...] = build_costs.SHAPE
    passes: int = 1


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


@dataclass(frozen=True)
class _Seen:
    """What earlier builds on this host say of one unit, for one architecture in one stream."""

    wall_s: float
    peak_mib: float
    shape: tuple[float, ...] | None


def read_history(rows: Iterable[Mapping[str, Any]] | None) -> dict[str, _Seen]:
    """Units by name from rows of the gate's cost log: the largest time and peak of each, brought to one architecture in one stream, and its last shape.

    A row is ``{unit, wall_s, peak_mib, archs[], threads, profile[]}``; rows that lack name or peak are passed over.
    """
    found: dict[str, _Seen] = {}
    for row in rows or ():
        try:
            name, peak, wall = str(row["unit"]), float(row["peak_mib"]), float(row.get("wall_s") or 0.0)
            architectures = max(1, len(row.get("archs") or ()))
            streams = max(1, min(int(row.get("threads") or 1), architectures))
            profile = tuple(float(share) for share in row.get("profile") or ())
        except (KeyError, TypeError, ValueError):
            continue
        if not (math.isfinite(peak) and peak > 0 and math.isfinite(wall) and wall >= 0):
            continue
        old = found.get(name, _Seen(0.0, 0.0, None))
        usable = architectures == 1 and len(profile) >= 5 and max(profile) > 0 and all(0 <= share <= 1 for share in profile)
        if usable:
            # The peak itself mostly lay between two looks.
            top = profile.index(max(profile))
            profile = (*profile[:top], 1.0, *profile[top + 1 :])
        found[name] = _Seen(
            max(old.wall_s, wall * streams / architecture_factor(architectures)),
            max(old.peak_mib, peak / streams),
            profile if usable else old.shape,
        )
    return found


def stream_peak(memory: Mapping[str, Any], units: int | None, seen: Mapping[str, _Seen]) -> float:
    """Peak of one stream in MiB: the class's, or what this host's own builds say.

    A history that covers every unit replaces the class's figure (it may be lower); a partial one can only raise it.
    """
    default = float(memory["stream_mib"])
    if not seen:
        return default
    own = max(item.peak_mib for item in seen.values()) * HISTORY_MARGIN
    return own if units is not None and len(seen) >= units else max(own, default)


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
    hard_coded_threads: int | None = None,
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
        hard_coded_threads: number of threads that the package hard-codes, which neither the user nor we can change; None where it can be chosen.
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
        ("hard_coded_threads", hard_coded_threads, True),
        ("max_jobs", max_jobs, True),
        ("parallel_extensions", parallel_extensions, False),
    ):
        _positive(name, value, optional)
    if reserve_mib is not None and reserve_mib < 0:
        raise IronwheelError(f"reserve_mib is {reserve_mib}; it must not be negative.", "InvalidInput")
    stream = stream_peak(figures, units, read_history(history))
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
    if hard_coded_threads is not None and job_memory(figures, hard_coded_threads, architectures, stream) > budget:
        raise IronwheelError(
            f"usable memory is {usable_mib:.0f} MiB, {kept} MiB of it kept back for the host: the package hard-codes {hard_coded_threads} nvcc threads "
            f"(for {architectures} architectures), and not even one such job fits ({job_memory(figures, hard_coded_threads, architectures, stream)} MiB).",
            "NotEnoughMemory",
            "Build through the nvcc gate, which lowers threads and drops architectures, or on a larger host.",
        )
    notes = []
    nvcc_threads = hard_coded_threads or nvcc_threads
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


def class_units(memory_class: str, units: int | None, history: Sequence[Mapping[str, Any]] | None = None) -> list[Unit]:
    """The units of a build for one architecture, in ninja's order: measured ones where there are any, otherwise equal ones at the class's figures.

    What this host's own builds measured replaces time, peak (with a margin) and shape of the units that they name. Without a number of units, those that are
    known are returned.
    """
    figures = class_figures(memory_class)
    seen = read_history(history)
    known: dict[str, Unit] = {}
    if memory_class == "flash-attn-2":
        known = {name: Unit(name, wall, peak, shape_of(name)) for name, wall, _cpu, peak in build_costs.FLASH_ATTN_UNITS}
    for name, item in seen.items():
        shape = item.shape or (known[name].shape if name in known else shape_of(name))
        wall = item.wall_s or (known[name].wall_s if name in known else figures["unit_s"])
        known[name] = Unit(name, wall, item.peak_mib * HISTORY_MARGIN, shape)
    found = [known[name] for name in sorted(known)]
    if units is None:
        return found
    rest = [Unit(f"unit_{index}", figures["unit_s"], figures["stream_mib"]) for index in range(units - len(found))]
    return found[:units] + rest


def shape_of(unit: str) -> tuple[float, ...]:
    """Memory of a unit over its life, as shares of its peak in equal steps: its own measured shape, or the one that stands for all others."""
    measured = build_costs.FLASH_ATTN_SHAPES.get(unit)
    return tuple(int(share) / 100 for share in measured.split()) if measured else build_costs.SHAPE


def scaled(unit: Unit, architectures: int, nvcc_threads: int) -> Unit:
    """A one-architecture unit as it is for several: streams peak together, passes come one after another."""
    streams = min(nvcc_threads, architectures)
    return Unit(
        unit.name,
        unit.wall_s * architecture_factor(architectures) / streams,
        unit.peak_mib * streams,
        unit.shape,
        math.ceil(architectures / streams),
    )


def static_seconds(units: Sequence[Unit], jobs: int, architectures: int = 1, nvcc_threads: int = 1) -> float:
    """Wall time of a build with a fixed number of jobs, in the order given, with what a build takes beside its units."""
    factor = architecture_factor(architectures) / min(nvcc_threads, architectures)
    ends: list[float] = []
    for unit in units:
        start = heapq.heappop(ends) if len(ends) >= jobs else 0.0
        heapq.heappush(ends, start + unit.wall_s * factor)
    return max(ends) + OTHER_S


@dataclass(frozen=True)
class Replay:
    """What a replay says: wall time of the units alone, highest memory in use and in reservation, and ``(t_s, running, used_mib, reserved_mib)`` over time."""

    time_s: float
    peak_mib: float
    reserved_mib: float
    most_running: int
    timeline: tuple[tuple[float, int, float, float], ...]


@dataclass
class _Running:
    """A unit as it was predicted and as it lives."""

    unit: Unit
    life: Unit
    start: float
    reserved: float = 0.0
    peak: float = 0.0
    passed: bool = False


def memory_at(unit: Unit, age_s: float) -> float:
    """Memory of a unit in MiB at an age, from its shape."""
    life = min(unit.passes * 0.999999, unit.passes * age_s / unit.wall_s)
    return unit.shape[int(len(unit.shape) * (life % 1.0))] * unit.peak_mib


def later_shares(shape: Sequence[float], passes: int = 1) -> tuple[float, ...]:
    """For each tenth of a pass, the largest share of its peak that a unit which has passed its last peak can still need."""
    values = list(shape) * passes
    last = len(shape) * (passes - 1)
    top = last + list(shape).index(max(shape))
    # The peak ends where memory first falls below what counts as passed.
    after = next((index for index in range(top, len(values)) if values[index] <= nvcc_gate.PASSED_SHARE), len(values) - 1)
    steps = 10 * passes
    return tuple(max(values[max(after, step * len(values) // steps) :]) for step in range(steps))


def replay(
    units: Sequence[Unit],
    *,
    cores: int,
    budget_mib: float | None = None,
    jobs: int | None = None,
    streams: int = 1,
    keep_mib: float = 0.0,
    tick_s: float = 1.0,
    lives: Sequence[Unit] | None = None,
) -> Replay:
    """Replay a build step by step.

    With ``jobs`` a fixed number of jobs runs in the order given and memory does not matter. With ``budget_mib`` the gate decides, by the very functions that
    the gate itself uses. ``streams`` is how many cores one unit takes, ``keep_mib`` is kept back all the time. ``lives`` says how the units really go, where
    that differs from the prediction that the gate has.

    Raises:
        IronwheelError: neither or both policies are named.
    """
    if (jobs is None) == (budget_mib is None):
        raise IronwheelError("replay needs either jobs (static) or budget_mib (gate).", "InvalidInput")
    later = {key: later_shares(*key) for key in {(unit.shape, unit.passes) for unit in units}}
    lives = units if lives is None else lives
    waiting = list(enumerate(units))
    running: list[_Running] = []
    now = 0.0
    head_since: tuple[int, float] | None = None
    timeline = []
    while waiting or running:
        if budget_mib is None:
            while waiting and len(running) < min(int(jobs or 1), max(1, cores // streams)):
                index, unit = waiting.pop(0)
                running.append(_Running(unit, lives[index], now))
        else:
            blocked = now - head_since[1] if head_since is not None else 0.0
            keys, head = nvcc_gate.choose(
                [(index, unit.peak_mib * nvcc_gate.PEAK_MARGIN, unit.wall_s, streams, index) for index, unit in waiting],
                [(item.reserved, streams) for item in running],
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
                    running.append(_Running(unit, lives[index], now, unit.peak_mib * nvcc_gate.PEAK_MARGIN))
            waiting = [item for item in waiting if item[0] not in chosen]
        used = 0.0
        for item in running:
            unit, age = item.unit, now - item.start
            current = memory_at(item.life, age)
            used += current
            # More than ever before: what looked like the peak was not it.
            item.passed = item.passed and current <= 1.02 * item.peak
            item.peak = max(item.peak, current)
            left = unit.passes - 1 - int(unit.passes * age / item.life.wall_s)
            item.passed = item.passed or nvcc_gate.has_passed(unit.peak_mib, item.peak, current, age, unit.wall_s, left)
            shares = later[unit.shape, unit.passes]
            item.reserved = nvcc_gate.reservation(unit.peak_mib, item.peak, current, age, unit.wall_s, item.passed, shares)
        timeline.append((now, len(running), used, sum(item.reserved for item in running)))
        now = min(now + tick_s, *(item.start + item.life.wall_s for item in running))
        running = [item for item in running if item.start + item.life.wall_s > now + 1e-9]
    return Replay(
        time_s=now,
        peak_mib=max((row[2] for row in timeline), default=0.0),
        reserved_mib=max((row[3] for row in timeline), default=0.0),
        most_running=max((row[1] for row in timeline), default=0),
        timeline=tuple(timeline),
    )


@dataclass(frozen=True)
class GatePrediction:
    """What a gated build is predicted to take: time of the whole build, highest memory, units at once, the budget, and the time that the cores alone need."""

    predicted_s: int
    predicted_peak_mib: int
    most_running: int
    budget_mib: int
    cpu_bound_s: int

    def as_dict(self) -> dict[str, int]:
        """JSON-able form."""
        return asdict(self)


def gate_budget(usable_mib: float, memory_class: str = "generic") -> int:
    """Memory in MiB that the gate may give out on a host: what is usable less the reserve."""
    figures = class_figures(memory_class)
    return math.floor(usable_mib - reserve(usable_mib, job_memory(figures, 1, 1)))


def predict_gate(
    *,
    memory_class: str,
    units: int,
    architectures: int,
    budget_mib: float,
    cores: float,
    nvcc_threads: int = 1,
    history: Sequence[Mapping[str, Any]] | None = None,
) -> GatePrediction:
    """Time and peak of a gated build by replay, for plan and report.

    Raises:
        IronwheelError: unknown class, or a number out of its range.
    """
    for name, value in (("units", units), ("architectures", architectures), ("budget_mib", budget_mib), ("cores", cores), ("nvcc_threads", nvcc_threads)):
        _positive(name, value)
    whole = max(1, math.floor(cores))
    streams = min(nvcc_threads, architectures)
    found = [scaled(unit, architectures, nvcc_threads) for unit in class_units(memory_class, units, history)]
    longest = max(unit.wall_s for unit in found)
    work = sum(unit.wall_s for unit in found) * streams / whole
    result = replay(found, cores=whole, budget_mib=budget_mib, streams=streams, tick_s=max(1.0, (work + longest) / PREDICTION_STEPS))
    return GatePrediction(
        predicted_s=math.ceil(result.time_s + OTHER_S),
        predicted_peak_mib=math.ceil(min(budget_mib, result.peak_mib * REPLAY_PEAK_MARGIN)),
        most_running=result.most_running,
        budget_mib=math.floor(budget_mib),
        cpu_bound_s=math.ceil(max(work, longest) + OTHER_S),
    )


def gate_costs(
    memory_class: str,
    units: int | None,
    history: Sequence[Mapping[str, Any]] | None = None,
    *,
    architectures: int = 1,
    nvcc_threads: int = 1,
) -> str:
    """The gate's file of predictions: one line a unit that is known, and one for all others.

    Tab-separated: unit, peak in MiB, wall time in s, what can still come after the peak by tenths of a pass, source. The first line names the streams at once
    and the passes that the figures are for.
    """
    figures = class_figures(memory_class)
    streams = min(nvcc_threads, architectures)
    own = read_history(history)
    lines = [f"#\t{streams}\t{math.ceil(architectures / streams)}"]
    rest = Unit("*", float(figures["unit_s"]), stream_peak(figures, units, own))
    known = class_units(memory_class, None, history)
    for unit in [rest, *known]:
        real = scaled(unit, architectures, nvcc_threads)
        later = ",".join(f"{share:.2f}" for share in later_shares(real.shape, real.passes))
        source = "history" if unit.name in own else "class" if unit is rest else "calibration"
        lines.append(f"{real.name}\t{real.peak_mib:.0f}\t{real.wall_s:.1f}\t{later}\t{source}")
    return "\n".join(lines) + "\n"


def service_jobs(*, usable_mib: float, cores: float, engines: int = 1) -> JobChoice:
    """MAX_JOBS for a service that compiles kernels when it runs (vLLM with FlashInfer): memory and cores are shared by all engines of the host."""
    _positive("engines", engines)
    return choose_jobs(memory_class="flashinfer-jit", units=None, architectures=1, usable_mib=usable_mib / engines, usable_cores=max(1.0, cores / engines))


def require_ninja(search_path: Iterable[str]) -> str:
    """Path of ninja in one of the folders: without it torch compiles one file at a time and ignores MAX_JOBS and PYTORCH_NVCC.

    Raises:
        IronwheelError: it is in none of them.
    """
    folders = [str(folder) for folder in search_path]
    for folder in folders:
        path = os.path.join(folder, "ninja")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise IronwheelError(
        f"ninja is in none of {', '.join(folders) or 'no folder'}: torch would compile one file at a time, and the number of jobs would have no effect.",
        "BuildToolMissing",
        "Install ninja into the environment that builds.",
    )
