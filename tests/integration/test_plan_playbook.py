# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/plan.yml as a user runs it: tables, JSON, exit status, hosts that cannot be reached, bad input."""

from __future__ import annotations

import json

import pytest

DUAL = "inventories/dual_blackwell"


@pytest.fixture
def plan(root, run_tool, tmp_path):
    """Run the playbook in the clone; the result, and the lines between the tasks."""

    def run(*arguments: str, inventory: str = DUAL):
        return run_tool("ansible-playbook", "playbooks/plan.yml", "-i", inventory, *arguments, cwd=root, HOME=str(tmp_path))

    return run


def tables(output: str) -> list[str]:
    """The lines of all tables: from a title's underline to the next task."""
    lines, inside = [], False
    for line in output.splitlines():
        inside = inside or set(line) == {"="}
        if inside and line.startswith(("ok:", "TASK", "skipping:")):
            inside = False
        if inside:
            lines.append(line)
    return lines


def test_what_if_host(plan, tmp_path):
    written = tmp_path / "plans.json"
    first = plan("-e", f"plan_output={written}", "-v")
    assert first.returncode == 0, first.stdout + first.stderr
    shown = tables(first.stdout)
    assert max(len(line) for line in shown) <= 100
    text = " ".join(" ".join(shown).split())
    for piece in ("2.9.1 (cu128)", "vllm 0.15.1 pins it", "install 12.8", "keep 13.1", "FLASH_ATTENTION_FORCE_BUILD=TRUE", "rejected"):
        assert piece in text
    assert "Trace of the plan for dual-blackwell" in first.stdout
    document = json.loads(written.read_text(encoding="utf-8"))
    assert document["schema"] == 1
    (name,) = document["hosts"]
    assert name == "dual-blackwell"
    assert document["hosts"][name]["torch"]["version"] == "2.9.1"
    assert "changed=1" in first.stdout
    before = written.stat().st_mtime_ns
    second = plan("-e", f"plan_output={written}")
    assert second.returncode == 0
    assert "changed=0" in second.stdout
    assert written.stat().st_mtime_ns == before
    assert "Trace of the plan" not in second.stdout


def test_check_mode_writes_nothing(plan, tmp_path):
    written = tmp_path / "plans.json"
    assert plan("-e", f"plan_output={written}", "--check").returncode == 0
    assert not written.exists()


def test_contradiction_is_printed_and_ends_with_an_error(plan, tmp_path):
    written = tmp_path / "plans.json"
    result = plan("-e", "torch_version=2.10.0", "-e", f"plan_output={written}")
    assert result.returncode == 2
    text = " ".join(result.stdout.split())
    assert "UnsatisfiableStack" in text
    assert "pins torch 2.9.1" in text
    assert json.loads(written.read_text(encoding="utf-8"))["hosts"]["dual-blackwell"]["errors"][0]["error"] == "UnsatisfiableStack"
    assert "Traceback" not in result.stdout + result.stderr


def test_hosts_that_cannot_be_reached(plan, root, tmp_path):
    """One has facts in a file and is planned; the other is reported, and neither keeps the first one's plan from being written."""
    facts = root / DUAL / "host_vars" / "dual-blackwell.facts.yml"
    inventory = tmp_path / "hosts.yml"
    hosts = {"here": {"preflight_facts_file": str(facts)}, "gone": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}}
    inventory.write_text(json.dumps({"machines": {"hosts": hosts}}), encoding="utf-8")
    written = tmp_path / "plans.json"
    result = plan("-e", "plan_hosts=machines", "-e", f"plan_output={written}", inventory=str(inventory))
    assert result.returncode == 4
    assert "unreachable=1" in result.stdout
    assert "Plan for here" in result.stdout
    assert list(json.loads(written.read_text(encoding="utf-8"))["hosts"]) == ["here"]


def test_several_hosts_have_a_table_each(plan, root, tmp_path):
    facts = root / DUAL / "host_vars" / "dual-blackwell.facts.yml"
    inventory = tmp_path / "hosts.yml"
    hosts = {f"gpu{number}": {"preflight_facts_file": str(facts)} for number in range(3)}
    hosts["gpu1"]["vllm_port"] = 99999
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}), encoding="utf-8")
    written = tmp_path / "plans.json"
    result = plan("-e", f"plan_output={written}", inventory=str(inventory))
    assert result.returncode == 2
    for name in hosts:
        assert result.stdout.count(f"Plan for {name}\n") == 1
    assert sorted(json.loads(written.read_text(encoding="utf-8"))["hosts"]) == sorted(hosts)


def test_no_host_is_an_error(plan, tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"gpu_hosts": {}}), encoding="utf-8")
    result = plan(inventory=str(inventory))
    assert result.returncode != 0
    assert "matches no host" in " ".join((result.stdout + result.stderr).split())


def test_mistyped_variable(plan):
    result = plan("-e", "vllm_vresion=0.33.0")
    assert result.returncode == 2
    text = " ".join(result.stdout.split())
    assert "UnknownVariable" in text
    assert "vllm_version" in text


def test_from_the_installed_collection(run_tool, root, tmp_path):
    """Outside of the clone, from the built archive."""
    built = run_tool("ansible-galaxy", "collection", "build", str(root), "--output-path", str(tmp_path), cwd=tmp_path, HOME=str(tmp_path))
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("ironwheel-gpu-*.tar.gz")
    place = tmp_path / "collections"
    installed = run_tool("ansible-galaxy", "collection", "install", str(archive), "-p", str(place), "--offline", "--no-deps", cwd=tmp_path, HOME=str(tmp_path))
    assert installed.returncode == 0, installed.stderr
    result = run_tool("ansible-playbook", "ironwheel.gpu.plan", "-i", str(root / DUAL), cwd=tmp_path, HOME=str(tmp_path), ANSIBLE_COLLECTIONS_PATH=str(place))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2.9.1 (cu128)" in result.stdout
