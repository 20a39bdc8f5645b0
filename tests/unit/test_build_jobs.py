# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module build_jobs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import read_host
from ansible_collections.ironwheel.gpu.plugins.modules import build_jobs


def run(capsys, **args) -> dict:
    with patch_module_args(args), pytest.raises(SystemExit):
        build_jobs.main()
    return json.loads(capsys.readouterr().out)


def test_the_answer_for_a_host_of_432_gb(capsys):
    result = run(capsys, package="flash-attn", version="2.8.3", architectures=["12.0"], memory_mib=400_000, cores=128)
    assert result["changed"] is False
    assert result["jobs"] > 20
    assert result["env"] == {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "120", "MAX_JOBS": str(result["jobs"]), "NVCC_THREADS": "1"}
    assert result["predicted_peak_mib"] < 400_000
    assert (result["units"], result["architectures"], result["limited_by"]) == (72, ["12.0"], "memory")


def test_it_sees_what_host_facts_sees(capsys, monkeypatch):
    facts = read_host(subset={"memory", "cpu"})
    result = run(capsys, package="small", architectures=["9.0"])
    assert result["usable_cores"] == facts["cpu"]["usable"]
    # Memory moves between two looks on a busy host.
    assert result["usable_mib"] == pytest.approx(facts["memory"]["usable_mib"], abs=3000)
    monkeypatch.setattr(build_jobs, "read_host", lambda **_kwargs: {"memory": {"usable_mib": 12_345}, "cpu": {"usable": 3}})
    assert build_jobs.measure() == (12_345, 3)


def test_psutil_answers_what_proc_does_not(monkeypatch):
    answers = SimpleNamespace(
        virtual_memory=lambda: SimpleNamespace(available=5 << 30),
        Process=lambda: SimpleNamespace(cpu_affinity=lambda: [0, 1, 2, 3]),
    )
    monkeypatch.setattr(build_jobs, "read_host", lambda **_kwargs: {"memory": None, "cpu": None})
    monkeypatch.setattr(build_jobs, "psutil", answers)
    assert build_jobs.measure() == (5120, 4)
    monkeypatch.setattr(build_jobs, "psutil", None)
    assert build_jobs.measure() == (None, None)


def test_vllm_divides_what_flash_attn_multiplies(capsys):
    limits = {"architectures": ["9.0", "12.0"], "memory_mib": 200_000, "cores": 64, "nvcc_threads": 2}
    assert run(capsys, package="vllm", **limits)["env"]["MAX_JOBS"] == str(2 * run(capsys, package="vllm", **limits)["jobs"])
    flash = run(capsys, package="flash-attn", **limits)
    assert flash["env"]["MAX_JOBS"] == str(flash["jobs"])


def test_hard_coded_architectures_are_planned_for_unless_the_gate_drops_them(capsys):
    args = {"package": "causal-conv1d", "version": "1.7.0", "architectures": ["9.0"], "memory_mib": 40_000, "cores": 16}
    plain = run(capsys, **args)
    gated = run(capsys, **args, gated=True)
    assert (len(plain["architectures"]), plain["nvcc_threads"]) == (9, 4)
    assert gated["architectures"] == ["9.0"]
    assert gated["job_mib"] < plain["job_mib"]
    refused = run(capsys, **{**args, "memory_mib": 9000})
    assert refused["error"] == "NotEnoughMemory"
    assert "hard-codes 4 nvcc threads" in refused["msg"]


def test_an_extension_of_ones_own_and_a_memory_class(capsys):
    own = run(
        capsys,
        package="my-kernels",
        description={"module": "my_kernels._C", "memory_class": "small", "units": 3},
        architectures=["9.0"],
        memory_mib=50_000,
        cores=16,
    )
    assert (own["jobs"], own["limited_by"], own["env"]["TORCH_CUDA_ARCH_LIST"]) == (3, "units", "9.0")
    assert run(capsys, package="torch-source", architectures=["8.6"], memory_mib=15_000, cores=16)["env"] == {"MAX_JOBS": "3", "NVCC_THREADS": "1"}


def test_history_comes_in_as_rows(capsys):
    rows = [{"unit": "a.cu", "peak_mib": 20_000, "archs": ["90"], "threads": 1, "wall_s": 9}]
    assert run(capsys, package="generic", architectures=["9.0"], memory_mib=50_000, cores=16, history=rows)["jobs"] == 2


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        ({"package": "flash-atn"}, "UnknownExtension", "Did you mean 'flash-attn'"),
        ({"architectures": ["7.5"]}, "UnsupportedGpu", "building cannot help"),
        ({"architectures": ["sm_90"]}, "InvalidArchitecture", "is not a compute capability"),
        ({"architectures": []}, "InvalidArchitecture", "architectures is empty"),
        ({"memory_mib": 4000}, "NotEnoughMemory", "needs 6975 MiB"),
        ({"max_jobs": 0}, "InvalidInput", "max_jobs is 0"),
        ({"search_path": ["/does/not/exist"]}, "BuildToolMissing", "ninja is in none of /does/not/exist"),
        ({"description": {"name": "other", "module": "x"}}, "InvalidExtension", "description.name is 'other'"),
        ({"version": "new"}, "InvalidVersion", "is not a version"),
    ],
)
def test_faults_are_said_with_name_value_and_rule(capsys, args, error, says):
    result = run(capsys, **{"package": "flash-attn", "architectures": ["9.0"], "memory_mib": 50_000, "cores": 8, **args})
    assert result["failed"] is True
    assert result["error"] == error
    assert says in result["msg"]
