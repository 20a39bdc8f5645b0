# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts, one build: the wheels, where they came from, what is in them, and what the verification said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

PREFIX = "/opt/ironwheel"
FOLDER = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
MODULES = {"causal-conv1d": "causal_conv1d_cuda", "ironwheel-probe": "ironwheel_probe_cuda"}


@pytest.fixture(scope="module")
def name(host) -> str:
    return host.backend.get_hostname()


@pytest.fixture(scope="module")
def record(host) -> dict:
    return json.loads(host.file(f"{PREFIX}/env/ironwheel.json").content_string)


@pytest.fixture(scope="module")
def store() -> dict[str, dict]:
    """The one entry of each package in the store on the controller."""
    entries = [json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "wheels").glob("*/*/wheel.json")]
    assert sorted(entry["package"] for entry in entries) == sorted(MODULES), "each package was built once"
    return {entry["package"]: entry for entry in entries}


@pytest.mark.parametrize("package", MODULES)
def test_one_host_built_and_this_one_uses_that_wheel(host, name, record, store, package):
    entry = store[package]
    (installed,) = [item for item in record["extensions"] if item["name"] == package]
    assert (installed["fingerprint"], installed["sha256"]) == (entry["fingerprint"], entry["sha256"])
    assert installed["torch"] == entry["fields"]["torch"] == "2.14.1+cu130"
    assert host.check_output(f"sha256sum {installed['wheel']}").split()[0] == entry["sha256"]
    log = host.file(f"{PREFIX}/builds/{entry['fingerprint']}/build.log")
    if name == entry["builder"]:
        assert "nvcc" in log.content_string
    else:
        assert not log.exists, "this host compiled too"


def test_the_builder_told_what_it_cost(store):
    entry = store["causal-conv1d"]
    units = entry["report"]["units"]
    assert len(units) == 3
    # Nine hard-coded architectures, of which the gate let one through.
    assert all(unit["archs"] == ["90"] for unit in units)
    assert 0 < max(unit["peak_mib"] for unit in units) <= entry["report"]["peak_mib"] <= entry["report"]["budget_mib"]
    assert entry["report"]["gated"] is True and isinstance(entry["report"]["contained"], bool)
    kept = [json.loads(line) for line in (FOLDER / "costs" / entry["builder"] / "causal-conv1d.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["unit"] for row in kept} == {unit["unit"] for unit in units}


def test_machine_code_is_for_the_wanted_architecture_alone(host):
    site = host.check_output(f"ls -d {PREFIX}/env/lib/python3*/site-packages")
    torch = {"version": "2.14.1+cu130", "cuda": "13.0", "cxx11_abi": True}
    glibc = host.check_output("getconf GNU_LIBC_VERSION").split()[1]
    there = {"glibc": glibc, "capabilities": ["9.0"]}
    arguments = {"site_packages": [site], "modules": list(MODULES.values()), "torch": torch, "host": there, "prefix": PREFIX}
    judged = host.ansible("ironwheel.gpu.abi_check", json.dumps(arguments), check=False)
    assert (judged["verdict"], len(judged["modules"])) == ("ok", 2), judged
    assert all(module["architectures"] == ["9.0"] for module in judged["modules"])
    # A GPU of another kind would have no code.
    there["capabilities"] = ["12.0"]
    other = host.ansible("ironwheel.gpu.abi_check", json.dumps(arguments), check=False)
    assert {finding["error"] for module in other["modules"] for finding in module["findings"] if finding["verdict"] == "failed"} == {"ArchNotInBinary"}


def test_modules_import_with_every_symbol_bound(host):
    code = "import torch, causal_conv1d_cuda, ironwheel_probe_cuda; print(torch.ops.ironwheel_probe.scale, torch.__version__)"
    said = host.run(f"LD_BIND_NOW=1 {PREFIX}/env/bin/python -I -c '{code}'")
    assert said.rc == 0, said.stderr
    assert "ironwheel_probe.scale" in said.stdout and "2.14.1+cu130" in said.stdout


def test_the_verification_says_so(name):
    report = json.loads((FOLDER / "reports" / f"{name}.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "ok", json.dumps(report, indent=1)
    found = {(check["name"], check["subject"]): check["verdict"] for check in report["checks"]}
    for package, module in MODULES.items():
        assert [found[key] for key in (("provenance", package), ("symbols", package), ("import", f"{package} ({module})"))] == ["ok", "ok", "ok"]
    assert found["torch_architectures", "GPUs"] == "not_run"


def test_nothing_runs_on_and_nothing_is_half_written(host):
    assert host.check_output("systemctl list-units --all --no-legend 'ironwheel-build-*'") == ""
    assert host.run("pgrep -x 'nvcc|cicc|ptxas|ninja'").rc != 0
    left = host.check_output(rf"find {PREFIX} -maxdepth 4 \( -name '*.tmp' -o -name '*.new' -o -name '.judge-*' -o -name '.unpack-*' \) -not -path '*/cache/*'")
    assert left == ""
    # Objects are gone once the wheel is there.
    assert host.check_output(f"find {PREFIX}/builds -name '*.o'") == ""
    writable = host.check_output(rf"find {PREFIX}/builds {PREFIX}/wheels {PREFIX}/sources ! -type l \( -perm /022 -o ! -user root \) -print -quit")
    assert writable == ""
