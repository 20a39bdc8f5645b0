# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts and requests for the tests of the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan, what_if
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import read_request

FIXTURES = Path(__file__).parent / "fixtures"
REPOSITORY = Path(__file__).parents[2]


def case(name: str) -> dict[str, Any]:
    """A reported case: its input and the outcome that is right for it."""
    return json.loads((FIXTURES / "cases" / f"{name}.json").read_text(encoding="utf-8"))


def minimal(name: str) -> dict[str, Any]:
    """The few facts of a host of tests/unit/fixtures/plan."""
    return yaml.safe_load((FIXTURES / "plan" / f"{name}.yml").read_text(encoding="utf-8"))


def gpu(capability: str | None, memory_mib: int | None = 81559, **more: Any) -> dict[str, Any]:
    """One GPU of minimal facts."""
    return {"compute_capability": capability, "memory_mib": memory_mib, "name": f"GPU {capability}", **more}


def host(gpus: tuple = (), driver: str | dict[str, Any] | None = None, system: str = "ubuntu 24.04", **sections: Any) -> dict[str, Any]:
    """Complete facts of a plain host. ``sections`` are merged into the sections of that name."""
    name, version = system.split()
    facts: dict[str, Any] = {
        "os": {"id": name, "version": version},
        "cpu": {"usable": 32},
        "memory": {"total_mib": 262144},
        "gpus": [gpu(item) if isinstance(item, str) else item for item in gpus],
        "driver": driver if isinstance(driver, dict) else {"module_version": driver, "module_flavour": "open" if driver else None},
    }
    for section, value in sections.items():
        facts[section] = {**facts[section], **value} if isinstance(facts.get(section), dict) else value
    return what_if.complete_facts(facts)


def planned(facts: dict[str, Any], store: tuple = (), history: Any = None, **variables: Any) -> dict[str, Any]:
    """The plan of a host for these variables."""
    return plan.make_plan(facts, read_request(variables), store=store, history=history, name="host1")


def errors(result: dict[str, Any]) -> list[str]:
    """Names of a plan's errors, in their order."""
    return [entry["error"] for entry in result["errors"]]


def warnings(result: dict[str, Any]) -> list[str]:
    """Names of a plan's warnings."""
    return [entry["warning"] for entry in result["warnings"]]


def verdict(result: dict[str, Any], subject: str, candidate: str) -> dict[str, Any]:
    """The one trace entry of a candidate."""
    found = [entry for entry in result["trace"] if entry["subject"] == subject and entry["candidate"] == candidate]
    if len(found) != 1:
        raise LookupError(f"{len(found)} trace entries for {subject} {candidate}: {[(e['subject'], e['candidate']) for e in result['trace']]}")
    return found[0]
