# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judging observations: one verdict a check, one a host, and nothing is ok that did not run."""

from __future__ import annotations

import copy
import json
from importlib import metadata

import pytest
from ansible_collections.ironwheel.gpu.plugins.action import verification_report
from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_probe, verification
from hypothesis import given, settings
from hypothesis import strategies as st

H200 = {"compute_capability": "9.0", "name": "NVIDIA H200", "usable": True, "mig": {"enabled": False}}
GPU_HOST = {
    "gpus": [H200, H200],
    "driver": {"state": "ok", "module_version": "580.95.05", "userspace_version": "580.95.05", "module_flavour": "open"},
    "toolkits": [{"path": "/usr/local/cuda-13.0", "version": "13.0", "nvcc_version": "13.0.88", "complete": True, "missing": []}],
}
GPU_PLAN = {
    "driver": {"floor": "580"},
    "cuda": {"version": "13.0", "install": ["13.0"]},
    "torch": {"version": "2.14.0", "local": "cu130"},
    "python": {"version": "3.12"},
}
CUDA_TORCH = {
    "python": "3.12.3",
    "version": "2.14.0",
    "local": "cu130",
    "full_version": "2.14.0+cu130",
    "cuda": "13.0",
    "debug": False,
    "arch_list": ["sm_75", "sm_80", "sm_90", "sm_100", "compute_120"],
    "family": {"torchvision": {"version": "0.29.0", "local": "cu130", "requires_torch": "2.14.0", "error": None}},
    "nvidia": ["nvidia-cublas", "nvidia-nccl-cu13"],
}


def changed(base, **keys):
    return {**copy.deepcopy(base), **keys}


def verdicts(checks):
    return [entry["verdict"] for entry in (checks if isinstance(checks, list) else [checks])]


# Verdicts


@pytest.mark.parametrize(
    ("given_verdicts", "verdict"),
    [([], "not_run"), (["not_run"], "not_run"), (["ok", "not_run"], "ok"), (["ok", "failed"], "failed"), (["not_run", "failed"], "failed"), (["ok"], "ok")],
)
def test_a_hosts_verdict_is_its_worst(given_verdicts, verdict):
    assert verification.host_verdict([verification.check("x", "y", entry, "") for entry in given_verdicts]) == verdict


def test_checks_of_gpus_do_not_run_without_one():
    bare = {"gpus": [], "driver": {"state": "absent"}, "toolkits": []}
    checks = [
        verification.driver(bare, {}),
        verification.gpu_count(bare, None),
        *verification.toolkits({"cuda": None}, bare),
        *verification.gpu_compute(bare, None),
        verification.numerics("numerics", "flash-attn", bare, None),
        *verification.torch_architectures({}, bare, CUDA_TORCH),
    ]
    assert verdicts(checks) == ["not_run"] * 6 and all(entry["reason"] for entry in checks)


# Driver, GPUs, toolkit


@pytest.mark.parametrize(
    ("driver", "verdict", "word"),
    [
        ({}, "ok", "580.95.05"),
        ({"state": "reboot_required", "detail": "module 570, user space 580"}, "failed", "module 570"),
        ({"state": "absent"}, "failed", "absent"),
        ({"userspace_version": "580.65.06"}, "failed", "reboot"),
        ({"module_version": "570.26", "userspace_version": "570.26"}, "failed", "floor 580"),
    ],
)
def test_the_driver_runs_in_one_version_above_the_floor(driver, verdict, word):
    found = verification.driver(changed(GPU_HOST, driver={**GPU_HOST["driver"], **driver}), GPU_PLAN)
    assert found["verdict"] == verdict and word in found["reason"]


@pytest.mark.parametrize(("count", "verdict"), [(2, "ok"), (1, "failed"), (None, "failed")])
def test_nvidia_smi_lists_what_the_bus_has(count, verdict):
    assert verification.gpu_count(GPU_HOST, count, "timed out")["verdict"] == verdict


@pytest.mark.parametrize(
    ("toolkit", "verdict", "word"),
    [
        ({}, "ok", "13.0.88"),
        ({"nvcc_version": "13.5.37"}, "failed", "13.5.37"),
        ({"complete": False, "missing": ["bin/ptxas"]}, "failed", "ptxas"),
        ({"version": "12.8"}, "failed", "no toolkit"),
    ],
)
def test_planned_toolkits_are_complete_and_of_their_version(toolkit, verdict, word):
    (found,) = verification.toolkits(GPU_PLAN, changed(GPU_HOST, toolkits=[{**GPU_HOST["toolkits"][0], **toolkit}]))
    assert found["verdict"] == verdict and word in found["reason"]


def test_wrong_arithmetic_and_missing_gpus_fail():
    good = {"dtype": "float32", "error": 1e-7, "tolerance": 2e-3, "ok": True}
    bad = {"dtype": "bfloat16", "error": 0.5, "tolerance": 2e-2, "ok": False}
    device = {"index": 0, "name": "H200", "matmul": [good], "error": None}
    assert verdicts(verification.gpu_compute(GPU_HOST, {"devices": [device, {**device, "index": 1}]})) == ["ok", "ok"]
    assert verdicts(verification.gpu_compute(GPU_HOST, {"devices": [device]})) == ["failed", "ok"]
    assert verdicts(verification.gpu_compute(GPU_HOST, {"devices": [device, {**device, "matmul": [good, bad]}]})) == ["ok", "failed"]
    assert verdicts(verification.gpu_compute(GPU_HOST, {"devices": []})) == ["failed"]
    assert verdicts(verification.gpu_compute(GPU_HOST, None, "timed out")) == ["failed"]


def test_wrong_kernels_fail_and_kernels_for_no_gpu_do_not_run():
    ok, wrong = {"case": "dense dim 64", "ok": True}, {"case": "varlen dim 256 causal", "ok": False}
    assert verification.numerics("numerics", "flash-attn", GPU_HOST, {"cases": [ok]})["verdict"] == "ok"
    found = verification.numerics("numerics", "flash-attn", GPU_HOST, {"cases": [ok, wrong]})
    assert found["verdict"] == "failed" and "varlen dim 256 causal" in found["reason"]
    assert verification.numerics("numerics", "flash-attn", GPU_HOST, {"cases": [], "reason": "too old"})["verdict"] == "not_run"


# torch and its family


@pytest.mark.parametrize(
    ("identity", "verdict", "word"),
    [
        ({}, "ok", "planned release"),
        ({"version": "2.13.0", "full_version": "2.13.0+cu130"}, "failed", "planned is 2.14.0"),
        ({"cuda": None, "local": "cpu", "full_version": "2.14.0+cpu"}, "failed", "planned is cu130"),
        ({"debug": True}, "failed", "debug"),
        ({"hip": "6.4"}, "failed", "ROCm"),
        ({"import_error": "ImportError: libcudart.so.13"}, "failed", "libcudart.so.13"),
    ],
)
def test_torch_is_the_planned_one(identity, verdict, word):
    found = verification.torch_identity(GPU_PLAN, changed(CUDA_TORCH, **identity))
    assert found["verdict"] == verdict and word in found["reason"]


@pytest.mark.parametrize(
    ("member", "word"),
    [
        ({"local": "cpu"}, "cpu build"),
        ({"requires_torch": "2.13.0"}, "needs torch 2.13.0"),
        ({"error": "OSError: libc10_cuda.so"}, "libc10_cuda.so"),
    ],
)
def test_a_family_member_of_another_build_fails(member, word):
    family = {"torchvision": {**CUDA_TORCH["family"]["torchvision"], **member}}
    (found,) = verification.torch_family(changed(CUDA_TORCH, family=family))
    assert found["verdict"] == "failed" and word in found["reason"]


def test_nvidia_packages_of_another_cuda_fail():
    checks = verification.torch_family(changed(CUDA_TORCH, nvidia=["nvidia-nccl-cu12", "nvidia-cublas"]))
    assert verdicts(checks) == ["ok", "failed"] and "nvidia-nccl-cu12" in checks[1]["reason"]


@pytest.mark.parametrize(
    ("capability", "serves"),
    [("9.0", "sm_90"), ("8.6", "sm_80"), ("8.9", "sm_80"), ("7.0", None), ("10.3", "sm_100"), ("12.1", "compute_120"), ("8.7", "sm_80"), ("6.1", None)],
)
def test_which_code_serves_a_gpu(capability, serves):
    assert verification.architecture_covered(capability, CUDA_TORCH["arch_list"]) == serves


def test_special_code_serves_its_own_gpu_alone():
    assert verification.architecture_covered("9.0", ["sm_90a"]) == "sm_90a"
    assert verification.architecture_covered("12.1", ["sm_120a"]) is None
    assert verification.architecture_covered("12.1", ["sm_120f"]) == "sm_120f"


def test_a_gpu_that_torch_has_no_code_for_fails():
    v100 = changed(GPU_HOST, gpus=[{**H200, "compute_capability": "7.0"}])
    (found,) = verification.torch_architectures(GPU_PLAN, v100, CUDA_TORCH)
    assert found["verdict"] == "failed" and "sm_75" in found["reason"]


def test_the_torch_error_names_all_that_is_wrong_and_the_remedy():
    wrong = changed(CUDA_TORCH, cuda=None, local="cpu", full_version="2.14.0+cpu")
    error = verification.torch_error([verification.torch_identity(GPU_PLAN, wrong), *verification.torch_family(wrong)])
    assert error.error == "TorchMismatch" and "planned is cu130" in error.message and "torchvision" in error.message and "lock" in error.remedy
    assert verification.torch_error([verification.torch_identity(GPU_PLAN, CUDA_TORCH)]) is None


# Environment and extensions


def test_packages_without_a_record_are_not_run_and_differences_fail():
    assert verification.packages(None, [], [])["verdict"] == "not_run"
    record = {"packages": {"torch": "2.14.0"}, "lock": {"digest": "x"}}
    assert verification.packages(record, [], [])["verdict"] == "ok"
    assert verification.packages({"packages": {}}, [], [])["verdict"] == "failed"
    found = verification.packages(record, [{}] * 9, [f"p{index} is missing" for index in range(9)])
    assert found["verdict"] == "failed" and "and 3 more" in found["reason"]


def test_a_toolkit_that_check_mode_announced_is_not_run():
    plan = {"cuda": {"version": "13.0", "install": ["13.0"]}}
    assert verdicts(verification.toolkits(plan, {"toolkits": []})) == ["failed"]
    assert verdicts(verification.toolkits(plan, {"toolkits": []}, announced=True)) == ["not_run"]
    assert verdicts(verification.toolkits({"cuda": {"version": "13.0", "install": []}}, {"toolkits": []}, announced=True)) == ["failed"]


def test_an_extension_is_what_was_recorded_for_this_torch():
    planned = {"name": "flash-attn", "version": "2.8.3"}
    recorded = {"fingerprint": "abc", "torch": "2.14.0+cu130"}
    assert verification.provenance(planned, recorded, [], False)["verdict"] == "ok"
    wrong = verification.provenance(planned, recorded, ["it was built for torch 2.13.0+cu130, the environment has 2.14.0+cu130"], False)
    assert wrong["verdict"] == "failed" and "2.13.0+cu130" in wrong["reason"]
    assert verification.provenance(planned, None, ["by hand"], False)["verdict"] == "failed"
    # In somebody else's environment it is only reported.
    assert verification.provenance(planned, None, ["by hand"], True)["verdict"] == "not_run"
    absent = verification.provenance(planned, None, None, True)
    assert absent["verdict"] == "failed" and "2.8.3" in absent["reason"]


def test_symbols_of_an_extension():
    fits = {"module": "x.so", "check": "symbols", "verdict": "ok", "reason": "all there"}
    assert verification.symbols("x", [fits])["verdict"] == "ok"
    wrong = verification.symbols("x", [fits, {**fits, "verdict": "failed", "reason": "built for another torch"}])
    assert wrong["verdict"] == "failed" and "x.so: built for another torch" in wrong["reason"]
    assert verification.symbols("x", [])["verdict"] == "failed"
    assert verification.symbols("x", None, "no pyelftools")["verdict"] == "not_run"


def test_a_missing_driver_says_nothing_about_an_extension():
    answer = {"error": "ImportError: libcuda.so.1: cannot open shared object file"}
    assert verification.extension_imported("x", "x_cuda", answer, "", False)["verdict"] == "not_run"
    assert verification.extension_imported("x", "x_cuda", answer, "", True)["verdict"] == "failed"
    assert verification.extension_imported("x", "x_cuda", {"error": "ImportError: undefined symbol"}, "", False)["verdict"] == "failed"


def test_the_environment_in_use_is_the_one_of_this_run():
    assert verification.environment("/p/envs/a", "/p/env", "/p/envs/a", True)["verdict"] == "ok"
    assert verification.environment("/p/envs/b", "/p/env", "/p/envs/a", True)["verdict"] == "failed"
    assert verification.environment("", "/p/env", None, False)["verdict"] == "failed"


# Serving


@pytest.mark.parametrize(
    ("status", "answer", "verdict"),
    [
        (200, {"choices": [{"text": "abc"}], "usage": {"completion_tokens": 3}}, "ok"),
        (200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 3}}, "failed"),
        (200, {"choices": [{"text": "abc"}], "usage": {"completion_tokens": 0}}, "failed"),
        (200, {"choices": []}, "failed"),
        (200, "hello", "failed"),
        (401, {"error": "Unauthorized"}, "failed"),
    ],
)
def test_a_completion_has_text_and_counts_tokens(status, answer, verdict):
    assert verification.completion("default", status, answer)["verdict"] == verdict


def test_the_served_model_is_listed():
    assert verification.models("default", "demo", 200, {"data": [{"id": "demo"}]})["verdict"] == "ok"
    assert verification.models("default", "demo", 200, {"data": [{"id": "other"}]})["verdict"] == "failed"
    assert verification.models("default", "demo", 500, "oops")["verdict"] == "failed"


def test_who_has_no_key_is_refused():
    assert verification.authentication("default", True, 401, True)["verdict"] == "ok"
    assert verification.authentication("default", True, 200, True)["verdict"] == "failed"
    assert verification.authentication("default", False, None, True)["verdict"] == "not_run"


def test_a_service_is_active_enabled_and_runs_what_is_on_disk():
    seen = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    assert verification.service("vllm.service", seen)["verdict"] == "ok"
    assert verification.service("vllm.service", {**seen, "UnitFileState": "disabled"})["verdict"] == "failed"
    assert verification.service("vllm.service", {**seen, "ActiveState": "failed"})["verdict"] == "failed"
    assert verification.service("vllm.service", None, "no systemd")["verdict"] == "not_run"
    assert verdicts([verification.configuration("u", "a", running) for running in ("a", "b", None)]) == ["ok", "failed", "not_run"]


# Reports


def test_a_host_without_a_report_is_not_run_and_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    installed = {"torch": "2.14.0+cu130", "vllm": "0.33.0", "driver": "580.95.05", "gpus": ["NVIDIA H200", "NVIDIA H200"]}
    good = verification.report("gpu01", [verification.check("torch", "torch", "ok", "fine")], installed, "/p", {})
    reports = {"gpu01": good, "../../gpu02": verification.missing_report("../../gpu02")}
    path = verification_report.write_reports(reports, "reports")
    assert sorted(entry.name for entry in (tmp_path / "reports").iterdir()) == ["_.._gpu02.json", "gpu01.json", "verification.json"]
    whole = json.loads((tmp_path / "reports" / "verification.json").read_text())
    assert whole["verdict"] == "not_run" and whole["hosts"]["gpu01"]["verdict"] == "ok"
    summary = verification.summary(reports, verification_report.shown_folder(path.rsplit("/", 1)[0]))
    assert summary["rows"][0] == ["gpu01", "2x H200", "580.95.05", "2.14.0+cu130", "0.33.0", "ok", "reports/gpu01.json"]
    assert "not reached" in summary["failures"]["../../gpu02"][0] and "gpu01" not in summary["failures"]


@pytest.mark.parametrize(("verdict_of_hosts", "verdict"), [(["ok", "ok"], "ok"), (["ok", "not_run"], "not_run"), (["not_run", "failed"], "failed")])
def test_a_run_is_ok_when_every_host_is(verdict_of_hosts, verdict):
    assert verification.run_verdict({str(index): {"verdict": entry} for index, entry in enumerate(verdict_of_hosts)}) == verdict


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=20)), st.integers(0, 20), st.integers(0, 9))
def test_any_arch_list_is_read(entries, major, minor):
    assert verification.architecture_covered(f"{major}.{minor}", entries) is None or entries


def test_the_probe_says_what_is_missing_instead_of_raising():
    assert torch_probe.answer({"task": "import", "module": "no_such_module_xyz"})["error"].startswith("ModuleNotFoundError")
    assert torch_probe.answer({"task": "import", "module": "json"})["error"] is None
    assert "pytest" in torch_probe.answer({"task": "packages"})["packages"]
    identity = torch_probe.answer({"task": "torch"})
    assert identity["python_tag"].startswith("cp3") and ("import_error" in identity or identity["version"])


def test_a_folder_without_a_package_is_no_import(tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "namespace package" in torch_probe.import_module("flash_attn")["error"]


def test_an_environment_without_torch_says_which_interpreter_it_has() -> None:
    """A host that gets no torch is asked for its packages only, and its interpreter is judged from that answer."""
    answer = torch_probe.packages()
    judged = verification.interpreter({"python": {"version": answer["python"]}}, answer)
    assert (judged["verdict"], answer["packages"]["pytest"]) == (verification.OK, metadata.version("pytest"))
