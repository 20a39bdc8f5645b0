# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes the plan of a host, on the controller: reads facts, request and wheel store, and leaves every decision to ``module_utils/plan.py``. Changes nothing."""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ironwheel.gpu.plugins.module_utils import plan_table, what_if, wheel_store
from ansible_collections.ironwheel.gpu.plugins.module_utils.defaults import OPTIONS
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan import make_plan, mask_secrets
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import Request, known_variables, read_request, unknown_variables

_ARGUMENTS = {
    "host": {"type": "dict"},
    "facts_file": {"type": "str", "default": ""},
    "fail_on_errors": {"type": "bool", "default": True},
    "mask_secrets": {"type": "bool", "default": False},
}
_ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "roles")
_SECTIONS = ("os", "user", "cpu", "memory", "driver")


class ActionModule(ActionBase):
    """``ironwheel.gpu.stack_plan``."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        _validation, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        try:
            result.update(self._plan(arguments, task_vars or {}))
        except IronwheelError as fault:
            result.update(failed=True, **fault.as_result())
        # -v shows the trace as a table; the dictionaries behind it are for -vvv.
        result["_ansible_verbose_override"] = Display().verbosity < 3
        return result

    def _plan(self, arguments: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        host = self._host(arguments)
        request, faults = self._request(task_vars)
        faults += unknown_variables(task_vars, _known_variables(), request["preflight_ignore_variables"])
        store, damaged = _store(request["flash_attn_store"])
        name = str(task_vars.get("inventory_hostname", ""))
        history = _costs(os.path.join(os.path.abspath(os.path.expanduser(request["flash_attn_cost_dir"])), name))
        plan = make_plan(host, request, store=store, history=history, name=name, faults=faults)
        plan["warnings"] += [{"warning": "StoreDamaged", "message": message, "remedy": "Remove that entry; the wheel is built again."} for message in damaged]
        shown = mask_secrets(plan) if arguments["mask_secrets"] else plan
        result: dict[str, Any] = {"changed": False, "plan": shown, "host": host, "table": plan_table.summary(plan, host), "trace_table": plan_table.trace(plan)}
        if plan["errors"] and arguments["fail_on_errors"]:
            result.update(failed=True, error=plan["errors"][0]["error"], remedy=plan["errors"][0]["remedy"], msg=plan_table.error_message(plan))
        return result

    def _host(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if bool(arguments["host"]) == bool(arguments["facts_file"]):
            raise IronwheelError("Exactly one of host and facts_file must be given.", "InvalidInput", "Pass the result of ironwheel.gpu.host_facts as host.")
        if arguments["facts_file"]:
            return what_if.complete_facts(_read_facts(arguments["facts_file"]))
        host = arguments["host"]
        missing = [name for name in _SECTIONS if not isinstance(host.get(name), Mapping)]
        if missing:
            raise IronwheelError(f"host lacks {', '.join(missing)}.", "InvalidFacts", "Pass the host that ironwheel.gpu.host_facts returns.")
        return host

    def _request(self, task_vars: Mapping[str, Any]) -> tuple[Request, list[IronwheelError]]:
        """The request, with every variable of it templated; one that cannot be templated is an error beside the others."""
        values, faults = {}, []
        for option in OPTIONS:
            if option.name not in task_vars:
                continue
            try:
                values[option.name] = self._templar.template(task_vars[option.name])
            except AnsibleError as fault:
                faults.append(IronwheelError(f"{option.name} cannot be evaluated: {fault}", "InvalidValue", f"Correct the template in {option.name}."))
        return read_request(values), faults


@functools.lru_cache(maxsize=1)
def _known_variables() -> frozenset[str]:
    """Names that the roles of this collection know, read from their argument specs."""
    specs = []
    for path in sorted(glob.glob(os.path.join(_ROLES, "*", "meta", "argument_specs.yml"))):
        with open(path, encoding="utf-8") as stream:
            specs.append(yaml_load(stream) or {})
    return known_variables(specs)


def _read_facts(name: str) -> Any:
    path = os.path.abspath(os.path.expanduser(name))
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise IronwheelError(
            f"preflight_facts_file is '{name}', which cannot be read: {reason}.", "FactsFileUnreadable", "Name a file on the controller."
        ) from fault
    try:
        facts = json.loads(text) if path.endswith(".json") else yaml_load(text)
    except Exception as fault:  # PyYAML has exceptions of its own, and this file must not depend on which parser is used
        where = str(fault).splitlines()[0] if str(fault) else "no reason given"
        raise IronwheelError(
            f"preflight_facts_file is '{name}', which is neither JSON nor YAML: {where}.", "FactsFileUnreadable", "Correct the file."
        ) from fault
    # The saved result of host_facts is taken as it is.
    return facts["host"] if isinstance(facts, Mapping) and isinstance(facts.get("host"), Mapping) else facts


def _store(place: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Entries of the wheel store on the controller; one behind a server is looked at when a wheel is needed."""
    if "://" in place:
        return [], []
    try:
        return wheel_store.entries(os.path.abspath(os.path.expanduser(place)))
    except OSError as fault:
        return [], [f"flash_attn_store is '{place}', which cannot be read: {fault.strerror}."]


def _costs(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Costs of a host's earlier builds by package. What cannot be read is left out: the calibration stands in for it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.jsonl"))):
        rows = []
        with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        found[os.path.basename(path)[: -len(".jsonl")]] = [row for row in rows if _is_cost(row)]
    return found


def _is_cost(row: Any) -> bool:
    if not isinstance(row, Mapping) or not isinstance(row.get("unit"), str) or not isinstance(row.get("archs", []), list):
        return False
    numbers = (row.get("peak_mib"), row.get("wall_s") or 0.0, row.get("threads") or 1)
    return all(isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < 1e9 for number in numbers) and row["peak_mib"] > 0
