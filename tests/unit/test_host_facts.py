# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module host_facts: arguments, documentation, faults, and this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import SECTIONS, complete_paths, default_paths
from ansible_collections.ironwheel.gpu.plugins.modules import host_facts
from host_trees import grow, load


def call(capsys: pytest.CaptureFixture, **arguments) -> dict:
    """Run the module in this process and return its result."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        host_facts.main()
    return json.loads(capsys.readouterr().out)


def test_this_machine_in_check_mode(capsys: pytest.CaptureFixture) -> None:
    started = time.monotonic()
    result = call(capsys, _ansible_check_mode=True)
    facts = result["host"]
    assert result["changed"] is False and facts["schema"] == 1
    assert facts["cpu"]["usable"] >= 1 and 0 < facts["memory"]["usable_mib"] <= facts["memory"]["total_mib"]
    assert facts["user"]["uid"] == os.geteuid()
    assert facts["pythons"] and all(disk["free_mib"] is not None for disk in facts["disk"])
    assert "SectionUnreadable" not in [entry["warning"] for entry in facts["warnings"]]
    assert time.monotonic() - started < 5


def test_another_root_runs_no_tools(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments, **_more):
        raise AssertionError("a tool was run for another root")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    facts = call(capsys, root=str(grow(tmp_path, load("mig"))))["host"]
    assert facts["os"]["id"] == "rocky" and len(facts["gpus"]) == 2 and facts["driver"]["state"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"root": "/nonexistent/root"}, "RootNotFound", "/nonexistent/root"),
        ({"timeout": 0}, "InvalidTimeout", "more than 0"),
        ({"gather_subset": ["memroy"]}, None, "memroy"),
    ],
)
def test_bad_arguments_are_named(capsys: pytest.CaptureFixture, arguments: dict, error: str, words: str) -> None:
    result = call(capsys, **arguments)
    assert result["failed"] is True and words in result["msg"] and result.get("error") == error


def test_subset(capsys: pytest.CaptureFixture) -> None:
    assert set(call(capsys, gather_subset=["cpu", "memory"])["host"]) == {"schema", "cpu", "memory", "warnings"}


def test_every_key_is_documented(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    documented = yaml.safe_load(host_facts.RETURN)["host"]["contains"]
    facts = call(capsys, root=str(grow(tmp_path, load("ubuntu2404_dual_blackwell"))))["host"]
    assert set(documented) == set(facts)
    for name, entry in documented.items():
        value = facts[name][0] if isinstance(facts[name], list) and facts[name] else facts[name]
        if "contains" in entry and isinstance(value, dict):
            assert set(entry["contains"]) == set(value), name


def test_options_name_every_section() -> None:
    options = yaml.safe_load(host_facts.DOCUMENTATION)["options"]
    assert options["gather_subset"]["choices"] == ["all", *SECTIONS]


def test_paths_follow_the_prefix() -> None:
    defaults = default_paths(False, "/home/llm")
    assert complete_paths({"prefix": None}, defaults) == defaults
    assert complete_paths({"prefix": "/srv/ai/", "cache": "/scratch"}, defaults) == {"prefix": "/srv/ai", "cache": "/scratch", "build": "/srv/ai/builds"}
    assert default_paths(True, "/root")["prefix"] == "/opt/ironwheel"


def test_only_the_standard_library_is_needed() -> None:
    collections = Path(__file__).parents[2] / ".collections"
    code = (
        f"import sys, json; sys.path.insert(0, {str(collections)!r})\n"
        "from ansible_collections.ironwheel.gpu.plugins.module_utils.host import read_host\n"
        "read_host()\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'__main__'})))\n"
    )
    # -I -S: neither site-packages nor the environment can help.
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == ["ansible_collections"]
