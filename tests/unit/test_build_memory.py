# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The memory model, the choice of jobs against reported hosts, and the replay against the measured builds."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory, nvcc_gate, packages
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "fixtures" / "cases"
GB = 1e9 / 1048576  # MiB in a gigabyte: reports give gigabytes


def case(name: str) -> tuple[dict, dict]:
    data = json.loads((CASES / f"{name}.json").read_text())
    return data["input"], data["expected"]


def choose_for(given: dict) -> build_memory.JobChoice:
    """The choice for a case's input: package (or memory class), its architectures as compiled, memory and cores."""
    name = "flash-attn-3" if given.get("with_fa3") else given["package"]
    package = packages.PACKAGES.get(name)
    architectures = len(given.get("archs") or ["9.0"])
    units = package.units(given.get("version")) if package else None
    return build_memory.choose_jobs(
        memory_class=package.memory_class if package else name,
        units=units,
        architectures=architectures,
        usable_mib=given.get("mem_available_gb", given.get("cgroup_limit_gb")) * GB,
        usable_cores=given["cores"],
        nvcc_threads=given.get("nvcc_threads"),
        parallel_extensions=(given.get("options") or {}).get("parallel_extensions", 1),
    )


REPORTED = ("A01", "A03", "A04", "A05", "A06", "A10", "A13", "A17", "A18", "A22")


@pytest.mark.parametrize("name", [pytest.param(name, id=f"case-{name}") for name in REPORTED])
def test_reported_hosts(name):
    given, expected = case(name)
    choice = choose_for(given)
    architectures = len(given["archs"])
    value = {
        "jobs": choice.jobs,
        "jobs_x_arch_threads": choice.jobs * min(choice.nvcc_threads, architectures),
    }[expected["field"]]
    assert expected["min"] <= value <= expected["max"], choice.explanation


@pytest.mark.parametrize("name", [pytest.param("A16", id="case-A16")])
def test_one_thread_and_more_jobs_when_memory_binds(name):
    given, expected = case(name)
    choice = choose_for(given)
    assert choice.limited_by == "memory"
    assert choice.nvcc_threads == expected["checks"]["nvcc_threads"]
    assert expected["checks"]["jobs_min"] <= choice.jobs <= expected["checks"]["jobs_max"]


@pytest.mark.parametrize("name", [pytest.param("A21", id="case-A21")])
def test_extensions_at_once_share_the_jobs(name):
    given, expected = case(name)
    choice = choose_for(given)
    assert choice.nvcc_threads == expected["checks"]["nvcc_threads"]
    assert 1 < choice.parallel_extensions <= expected["checks"]["parallel_extensions_max"]
    assert choice.jobs * choice.parallel_extensions * choice.job_mib <= given["mem_available_gb"] * GB
    assert "extensions at once" in choice.explanation


@pytest.mark.parametrize("name", [pytest.param("A11", id="case-A11")])
def test_runtime_compilation_of_a_service_is_shared_over_its_engines(name):
    given, expected = case(name)
    choice = build_memory.service_jobs(usable_mib=given["cgroup_limit_gib"] * 1024, cores=given["cores"], engines=given["engines_on_host"])
    assert expected["min"] <= choice.jobs <= expected["max"]
    assert choice.jobs > build_memory.service_jobs(usable_mib=given["cgroup_limit_gib"] * 1024, cores=given["cores"], engines=4).jobs


@pytest.mark.parametrize("name", [pytest.param("A15", id="case-A15")])
def test_without_ninja_the_number_of_jobs_has_no_effect(name, tmp_path):
    given, expected = case(name)
    assert given["ninja_on_path"] is False
    with pytest.raises(IronwheelError, match=expected["detail"]) as caught:
        build_memory.require_ninja([str(tmp_path)])
    assert caught.value.error == expected["error"]
    (tmp_path / "ninja").write_text("#!/bin/sh\n")
    with pytest.raises(IronwheelError):
        build_memory.require_ninja([str(tmp_path)])
    (tmp_path / "ninja").chmod(0o755)
    assert build_memory.require_ninja([str(tmp_path)]) == str(tmp_path / "ninja")
    # With it, that host's memory and cores are used.
    choice = build_memory.choose_jobs(
        memory_class="flash-attn-2", units=72, architectures=1, usable_mib=given["mem_available_gb"] * GB, usable_cores=given["cores"]
    )
    assert choice.jobs == 72


def test_the_dual_blackwell_host():
    choice = build_memory.choose_jobs(memory_class="flash-attn-2", units=72, architectures=1, usable_mib=432 * GB * 0.95, usable_cores=128)
    assert choice.jobs > 20
    assert choice.nvcc_threads == 1
    assert choice.predicted_peak_mib < 432 * GB * 0.95
    assert choice.limited_by == "memory"


def test_threads_rise_only_when_every_unit_runs_at_once():
    ample = build_memory.choose_jobs(memory_class="small", units=4, architectures=4, usable_mib=100_000, usable_cores=16)
    assert (ample.jobs, ample.nvcc_threads, ample.limited_by) == (4, 4, "units")
    fewer_cores = build_memory.choose_jobs(memory_class="small", units=4, architectures=4, usable_mib=100_000, usable_cores=11)
    assert (fewer_cores.jobs, fewer_cores.nvcc_threads) == (4, 2)
    less_memory = build_memory.choose_jobs(memory_class="small", units=4, architectures=4, usable_mib=12_000, usable_cores=16)
    assert (less_memory.jobs, less_memory.nvcc_threads) == (4, 2)


def test_the_users_limits():
    choice = build_memory.choose_jobs(memory_class="generic", units=50, architectures=1, usable_mib=100_000, usable_cores=64, max_jobs=5)
    assert (choice.jobs, choice.limited_by) == (5, "max_jobs")
    kept = build_memory.choose_jobs(memory_class="generic", units=50, architectures=1, usable_mib=100_000, usable_cores=64, reserve_mib=90_000)
    assert (kept.jobs, kept.reserve_mib) == (3, 90_000)
    lowered = build_memory.choose_jobs(memory_class="flash-attn-2", units=72, architectures=4, usable_mib=16_000, usable_cores=8, nvcc_threads=4)
    assert (lowered.jobs, lowered.nvcc_threads) == (1, 2)
    assert "lowered from 4 to 2" in lowered.explanation


def test_not_even_one_unit():
    with pytest.raises(IronwheelError, match=r"usable memory is 6000 MiB.*needs 6975 MiB") as caught:
        build_memory.choose_jobs(memory_class="flash-attn-2", units=72, architectures=1, usable_mib=6000, usable_cores=8)
    assert caught.value.error == "NotEnoughMemory"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory_class": "gigantic"}, "memory_class 'gigantic' is not known"),
        ({"units": 0}, "units is 0"),
        ({"architectures": 0}, "architectures is 0"),
        ({"usable_mib": float("nan")}, "usable_mib is nan"),
        ({"usable_cores": -1}, "usable_cores is -1"),
        ({"nvcc_threads": 0}, "nvcc_threads is 0"),
        ({"max_jobs": True}, "max_jobs is True"),
        ({"reserve_mib": -5}, "reserve_mib is -5"),
    ],
)
def test_wrong_arguments_are_named(change, says):
    good = {"memory_class": "generic", "units": 5, "architectures": 1, "usable_mib": 50_000, "usable_cores": 8}
    with pytest.raises(IronwheelError, match=says):
        build_memory.choose_jobs(**{**good, **change})


def test_never_more_than_the_budget_and_monotone_in_memory_and_cores():
    rng = random.Random(1)
    for _round in range(200):
        given = {
            "memory_class": rng.choice(list(build_costs.CLASSES)),
            "units": rng.choice([None, rng.randint(1, 100)]),
            "architectures": rng.randint(1, 9),
            "usable_mib": rng.uniform(500, 600_000),
            "usable_cores": rng.uniform(0.5, 200),
            "nvcc_threads": rng.choice([None, None, rng.randint(1, 8)]),
            "max_jobs": rng.choice([None, None, rng.randint(1, 64)]),
        }
        try:
            choice = build_memory.choose_jobs(**given)
        except IronwheelError as error:
            assert error.error == "NotEnoughMemory"
            continue
        assert choice.predicted_peak_mib <= given["usable_mib"] - choice.reserve_mib
        assert choice.reserve_mib >= build_memory.RESERVE_FLOOR_MIB
        streams = choice.jobs * min(choice.nvcc_threads, given["architectures"])
        assert streams <= max(given["usable_cores"], min(choice.nvcc_threads, given["architectures"]))
        more_memory = build_memory.choose_jobs(**{**given, "usable_mib": given["usable_mib"] * rng.uniform(1, 2)})
        more_cores = build_memory.choose_jobs(**{**given, "usable_cores": given["usable_cores"] * rng.uniform(1, 2)})
        for other in (more_cores, *([more_memory] if given["nvcc_threads"] is None else [])):
            assert other.jobs * other.nvcc_threads >= choice.jobs * choice.nvcc_threads
            assert other.jobs >= choice.jobs


# Costs


def test_the_table_is_the_measurement():
    units = build_costs.FLASH_ATTN_UNITS
    assert len(units) == 72
    assert round(sum(row[2] for row in units)) == 12_830
    assert max(row[3] for row in units) == build_costs.CLASSES["flash-attn-2"]["stream_mib"] == 6719
    assert 83 <= min(row[1] for row in units) <= max(row[1] for row in units) <= 331


def test_four_architectures_at_four_threads_are_not_underestimated():
    one = {name: (wall, cpu, peak) for name, wall, cpu, peak in build_costs.FLASH_ATTN_UNITS}
    for name, _wall, cpu, peak in build_costs.FLASH_ATTN_FOUR_ARCHITECTURES:
        assert build_memory.job_memory({"base_mib": 256, "stream_mib": one[name][2]}, 4, 4) >= peak
        assert cpu / one[name][1] == pytest.approx(build_memory.architecture_factor(4), rel=0.15)


def test_history_replaces_and_raises_predictions():
    row = {"wall_s": 10.0, "peak_mib": 1000, "archs": ["90"], "threads": 1, "profile": [1.0, 0.5, 0.4, 0.3, 0.2]}
    rows = [{"unit": f"u{index}.cu", **row} for index in range(3)]
    args = {"memory_class": "generic", "units": 3, "architectures": 1, "usable_mib": 50_000, "usable_cores": 8}
    assert build_memory.choose_jobs(**args, history=rows).job_mib == 256 + 1050
    # One unit of three: the class's figure stays, unless the host's own is higher.
    assert build_memory.choose_jobs(**args, history=rows[:1]).job_mib == 256 + 3072
    assert build_memory.choose_jobs(**args, history=[{**rows[0], "peak_mib": 9000}]).job_mib == 256 + 9450
    (unit, *_rest) = build_memory.class_units("generic", 3, rows)
    assert (unit.name, unit.wall_s, unit.peak_mib) == ("u0.cu", 10.0, 1050)
    assert unit.shape == (1.0, 0.5, 0.4, 0.3, 0.2)
    # The highest look stands for the peak, which mostly lay between two looks.
    (unit, *_rest) = build_memory.class_units("generic", 1, [{**row, "unit": "v.cu", "profile": [0.2, 0.93, 0.4, 0.3, 0.2]}])
    assert unit.shape == (0.2, 1.0, 0.4, 0.3, 0.2)


def test_history_of_other_architectures_is_brought_to_one():
    seen = build_memory.read_history([{"unit": "a.cu", "wall_s": 34.0, "peak_mib": 4000, "archs": ["80", "90", "100", "120"], "threads": 4}])
    assert seen["a.cu"].wall_s == pytest.approx(34.0 * 4 / 3.4)
    assert seen["a.cu"].peak_mib == 1000


def test_a_damaged_history_is_passed_over():
    peaks = [{"unit": "a", "peak_mib": peak} for peak in ("many", -4, None, float("inf"))]
    rows = [{}, {"unit": "a"}, *peaks, {"unit": "b", "peak_mib": 5, "profile": [2, "x"]}, {"unit": "c", "peak_mib": 7}]
    assert set(build_memory.read_history(rows)) == {"c"}


def test_the_gates_predictions_are_read_back_by_the_gate(tmp_path):
    path = tmp_path / "costs.tsv"
    history = [{"unit": "flash_bwd_hdim64_bf16_sm80.cu", "wall_s": 100, "peak_mib": 8000, "archs": ["90"], "threads": 1}]
    path.write_text(build_memory.gate_costs("flash-attn-2", 72, history))
    assert nvcc_gate.prediction(str(path), "/x/flash_fwd_hdim32_fp16_sm80.cu")[:2] == (3351, 127.3)
    peak, wall, later, own, streams, passes = nvcc_gate.prediction(str(path), "flash_bwd_hdim64_bf16_sm80.cu")
    assert (peak, wall, own, streams, passes) == (8400, 100, True, 1, 1)
    assert max(later) == 0.38
    assert nvcc_gate.prediction(str(path), "unknown.cu")[0] == 8400
    four = build_memory.gate_costs("generic", None, architectures=4, nvcc_threads=2)
    path.write_text(four)
    peak, wall, later, own, streams, passes = nvcc_gate.prediction(str(path), "any.cu")
    assert (peak, streams, passes, len(later)) == (6144, 2, 2, 20)
    path.write_text("*\tmuch\n")
    with pytest.raises(nvcc_gate.GateError, match="is not a prediction"):
        nvcc_gate.prediction(str(path), "any.cu")


def test_what_can_still_come_covers_the_rest_of_the_shape():
    for shape in {unit.shape for unit in UNITS} | {build_costs.SHAPE}:
        for passes in (1, 3):
            later = build_memory.later_shares(shape, passes)
            assert list(later) == sorted(later, reverse=True)
            values = list(shape) * passes
            top = len(values) - len(shape) + shape.index(1.0)
            fallen = next(index for index in range(top, len(values)) if values[index] <= nvcc_gate.PASSED_SHARE)
            for index in range(fallen, len(values)):
                assert nvcc_gate.later_share(later, index / len(values)) >= values[index]
    assert all(a >= b for a, b in zip(nvcc_gate.LATER, build_memory.later_shares(build_costs.SHAPE)))


# Replay


UNITS = build_memory.class_units("flash-attn-2", 72)


@pytest.fixture(scope="module")
def units():
    return UNITS


@pytest.mark.parametrize(("jobs", "seconds"), [(2, 6550), (3, 4400), (4, 3330), (6, 2280), (8, 1730), (12, 1210)])
def test_replay_of_static_jobs(units, jobs, seconds):
    assert build_memory.replay(units, cores=16, jobs=jobs, tick_s=20).time_s == pytest.approx(seconds, rel=0.02)


def test_replay_of_static_jobs_on_128_cores(units):
    assert build_memory.static_seconds(units, 20) - build_memory.OTHER_S == pytest.approx(775, rel=0.02)
    assert build_memory.static_seconds(units, 57) - build_memory.OTHER_S == pytest.approx(458, rel=0.02)


def test_replay_of_the_measured_build(units):
    """16 jobs took 981 s with the wheel and peaked at 69,610 MiB."""
    result = build_memory.replay(units, cores=16, jobs=16)
    assert result.time_s + build_memory.OTHER_S == pytest.approx(981, rel=0.02)
    assert 69_610 <= result.peak_mib * build_memory.REPLAY_PEAK_MARGIN <= 1.25 * 69_610


def test_replay_of_the_builds_that_were_measured_through_the_gate():
    """Time within 5 % of the replay when the units live as they did, a predicted peak that is never below the measured one and 25 % above at most."""
    data = json.loads((ROOT / "docs" / "data" / "flash-attn-build.json").read_text())
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    try:
        import measured_replay
    finally:
        sys.path.pop(0)
    found = measured_replay.replays(data)
    for what, (replay, seconds, peak) in found.items():
        if seconds is not None:
            assert replay.time_s == pytest.approx(seconds, rel=0.05), what
            assert peak <= replay.peak_mib
            assert replay.peak_mib * build_memory.REPLAY_PEAK_MARGIN <= 1.25 * peak, what
    # What the measured shapes gain for the gate.
    assert found["subset, gate with the measured shapes"][0].time_s < 0.9 * found["subset, gate"][0].time_s
    prediction = build_memory.predict_gate(memory_class="flash-attn-2", units=72, architectures=1, budget_mib=data["build"]["budget_mib"], cores=16)
    assert data["build"]["peak_mib"] <= prediction.predicted_peak_mib <= 1.25 * data["build"]["peak_mib"]
    # That machine's cores were a tenth slower than the ones of the calibration.
    assert prediction.predicted_s == pytest.approx(data["build"]["build_s"], rel=0.10)
    assert build_costs.FLASH_ATTN_SHAPES.keys() == {row["unit"] for row in data["units"]}


def test_a_replay_of_units_that_go_otherwise_than_predicted():
    """Short and small in the prediction, long and large in life: the gate sees it and lets nobody in beside a unit that grows."""
    predicted = [build_memory.Unit(f"u{index}", 50, 100) for index in range(4)]
    lives = [build_memory.Unit(unit.name, 100, 180) for unit in predicted]
    result = build_memory.replay(predicted, cores=4, budget_mib=250, lives=lives)
    assert result.time_s >= 200
    assert result.peak_mib == 2 * 180  # both were let in by the prediction; nobody else came before they had passed their peaks
    same = build_memory.replay(predicted, cores=4, budget_mib=250)
    assert build_memory.replay(predicted, cores=4, budget_mib=250, lives=predicted) == same


@pytest.mark.parametrize(("gib", "seconds"), [(16, 2710), (24, 1710), (32, 1280), (48, 900), (64, 860), (96, 870)])
def test_replay_of_the_gate(units, gib, seconds):
    """The table of the calibration, made with one rule for all units; ours knows each unit's shape, so it may be faster where memory binds."""
    budget = gib * 1024 * 0.9
    result = build_memory.replay(units, cores=16, budget_mib=budget, tick_s=4)
    assert seconds * 0.85 <= result.time_s <= seconds * 1.04
    assert result.reserved_mib <= budget
    assert result.peak_mib <= budget


def test_replay_of_the_gate_on_128_cores(units):
    assert build_memory.replay(units, cores=128, budget_mib=432 * 1024 * 0.9, tick_s=2).time_s == pytest.approx(331, abs=2)


def test_the_goals_of_the_gate(units):
    """At 32 GiB at least 2.5 times faster than floor(budget / highest peak) static jobs; at 48 GiB within a tenth of no limit at all."""
    highest = max(unit.peak_mib for unit in units)
    budget = 32 * 1024
    static = build_memory.replay(units, cores=16, jobs=int(budget // highest), tick_s=20).time_s
    assert static / build_memory.replay(units, cores=16, budget_mib=budget, tick_s=4).time_s >= 2.5
    free = build_memory.replay(units, cores=16, budget_mib=1e9, tick_s=4).time_s
    assert build_memory.replay(units, cores=16, budget_mib=48 * 1024, tick_s=4).time_s <= 1.1 * free


def test_the_prediction_of_a_gated_build():
    prediction = build_memory.predict_gate(memory_class="flash-attn-2", units=72, architectures=1, budget_mib=32 * 1024, cores=16)
    assert prediction.cpu_bound_s <= prediction.predicted_s <= 1.4 * prediction.cpu_bound_s
    assert 0.7 * 32 * 1024 <= prediction.predicted_peak_mib <= 32 * 1024
    assert prediction.most_running <= 16
    several = build_memory.predict_gate(memory_class="flash-attn-2", units=72, architectures=4, budget_mib=128 * 1024, cores=64, nvcc_threads=4)
    assert several.most_running <= 16
    with pytest.raises(IronwheelError, match="budget_mib is 0"):
        build_memory.predict_gate(memory_class="generic", units=1, architectures=1, budget_mib=0, cores=1)


def test_several_architectures_in_one_stream_peak_once_each():
    unit = build_memory.scaled(build_memory.Unit("a.cu", 100, 1000), 4, 1)
    assert (unit.wall_s, unit.peak_mib, unit.passes) == (pytest.approx(340), 1000, 4)
    memory = [build_memory.memory_at(unit, second) for second in range(340)]
    assert sum(1 for left, right in zip(memory, memory[1:]) if left < 1000 <= right) == 4
    result = build_memory.replay([unit, unit], cores=2, budget_mib=1500)
    assert result.peak_mib <= 1500
    assert result.time_s > 340 + 200  # the second waits for the last peak of the first


def test_a_replay_wants_one_policy(units):
    with pytest.raises(IronwheelError, match="either jobs"):
        build_memory.replay(units, cores=4)
    with pytest.raises(IronwheelError, match="either jobs"):
        build_memory.replay(units, cores=4, jobs=1, budget_mib=1)


def test_random_builds_stay_in_budget_and_end():
    rng = random.Random(3)
    for _round in range(12):
        shapes = [unit.shape for unit in UNITS[::9]]
        found = [build_memory.Unit(f"u{index}", rng.uniform(5, 60), rng.uniform(50, 400), rng.choice(shapes)) for index in range(rng.randint(1, 25))]
        budget, cores = rng.uniform(450, 2000), rng.randint(1, 12)
        result = build_memory.replay(found, cores=cores, budget_mib=budget)
        assert result.peak_mib <= budget
        assert result.most_running <= cores
        assert result.time_s >= max(unit.wall_s for unit in found) - 1e-6
        assert result.time_s <= sum(unit.wall_s for unit in found) + 1e-6
