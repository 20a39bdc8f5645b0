# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A plan as text: the summary and the trace as tables, the errors as lines. Nothing is decided here."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils.plan import mask_secrets

WIDTH = 100


def render(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], lines: Sequence[str] = (), width: int = WIDTH) -> str:
    """A table of plain text, no line longer than ``width``; cells wrap. ``lines`` stand below it, wrapped as well.

    Every column but the last is as wide as its widest cell, up to its fair share.
    """
    cells = [[str("" if cell is None else cell) for cell in row] for row in rows]
    count = max([len(columns), *(len(row) for row in cells)], default=0)
    cells = [row + [""] * (count - len(row)) for row in cells]
    header = [*columns, *[""] * (count - len(columns))]
    widths = _widths([header, *cells] if any(columns) else cells, count, width)
    out = [*textwrap.wrap(title, width), "=" * min(width, max(len(title), 1))] if title else []
    if any(columns):
        out += _row(header, widths)
        out.append("  ".join("-" * size for size in widths))
    for row in cells:
        out += _row(row, widths)
    for line in lines:
        out += textwrap.wrap(str(line), width, subsequent_indent="  ", break_long_words=True) or [""]
    return "\n".join(line.rstrip() for line in out)


def _widths(rows: Sequence[Sequence[str]], count: int, width: int) -> list[int]:
    if not count:
        return []
    widest = [max((max((len(part) for part in row[index].splitlines()), default=0) for row in rows), default=1) or 1 for index in range(count)]
    room = width - 2 * (count - 1)
    # Narrow columns keep what they need, the others share the rest.
    sizes = [0] * count
    open_columns = sorted(range(count), key=lambda index: widest[index])
    while open_columns:
        index = open_columns.pop(0)
        share = max(1, (room - sum(sizes)) // (len(open_columns) + 1))
        sizes[index] = min(widest[index], share)
    return sizes


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = []
    for cell, size in zip(cells, widths):
        wrapped: list[str] = []
        for part in cell.splitlines() or [""]:
            wrapped += textwrap.wrap(part, size, break_long_words=True) or [""]
        columns.append(wrapped)
    height = max((len(column) for column in columns), default=0)
    return ["  ".join((column[line] if line < len(column) else "").ljust(size) for column, size in zip(columns, widths)) for line in range(height)]


def summary(plan: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``show_table`` for one plan: ``{title, columns, rows, lines}``. Errors come first."""
    plan = mask_secrets(plan)
    rows = [["ERROR", entry["error"], _sentence(entry)] for entry in plan["errors"]]
    rows += [["profile", plan["profile"], _reason(plan, "profile", plan["profile"])]]
    rows += [["GPUs", _gpus(host), f"architectures {', '.join(plan['architectures'])}" if plan["architectures"] else ""]]
    rows += _driver(plan["driver"])
    if plan["cuda"]:
        cuda = plan["cuda"]
        what = [f"install {', '.join(f'{version} from {source}' for version, source in cuda['sources'].items())}" if cuda["install"] else "nothing to install"]
        if cuda["keep"]:
            what.append(f"keep {', '.join(cuda['keep'])}")
        rows.append(["CUDA toolkit", cuda["version"] or "-", f"{cuda['reason']}; {'; '.join(what)}"])
    rows.append(["Python", plan["python"]["version"], f"{plan['python']['path'] or 'managed by uv'}: {plan['python']['reason']}"])
    if plan["torch"]:
        torch = plan["torch"]
        where = "PyPI" if torch["source"] == "pypi" else torch["index_url"]
        rows.append(["torch", f"{torch['version']} ({torch['local']})", f"{torch['reason']}; from {where}"])
    if plan["vllm"]:
        vllm = plan["vllm"]
        rows.append(["vLLM", f"{vllm['package']} {vllm['version']}", _reason(plan, "vLLM", vllm["version"])])
        for instance in vllm["instances"]:
            gpus = f", {instance['tensor_parallel_size']} GPU" + ("s" if instance["tensor_parallel_size"] > 1 else "") if plan["profile"] == "gpu" else ""
            rows.append(["server", instance["name"], f"{instance['model']} on {instance['host']}:{instance['port']}{gpus}"])
    for item in plan["extensions"]:
        rows.append([item["name"], item["version"], _extension(item)])
    rows.append(["packages", str(len(plan["packages"])), ", ".join(plan["packages"]) or "none"])
    if plan["constraints"]:
        rows.append(["constraints", str(len(plan["constraints"])), ", ".join(plan["constraints"])])
    if plan["excluded"]:
        rows.append(["left out", str(len(plan["excluded"])), ", ".join(plan["excluded"])])
    rows += [["warning", entry["warning"], _sentence(entry)] for entry in plan["warnings"]]
    lines = ["", "Steps:", *(f"{number}. {step}" for number, step in enumerate(plan["steps"], 1))] if not plan["errors"] else []
    return {"title": f"Plan for {plan['host'] or 'the host'}", "columns": ["what", "value", "why"], "rows": rows, "lines": lines}


def trace(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``show_table`` for the whole trace."""
    plan = mask_secrets(plan)
    rows = [[entry["subject"], entry["candidate"], entry["verdict"], entry["reason"]] for entry in plan["trace"]]
    return {"title": f"Trace of the plan for {plan['host'] or 'the host'}", "columns": ["subject", "candidate", "verdict", "reason"], "rows": rows, "lines": []}


def error_message(plan: Mapping[str, Any]) -> str:
    """All errors of a plan as readable lines."""
    errors = mask_secrets(plan["errors"])
    lines = [f"The plan for {plan['host'] or 'the host'} has {len(errors)} error{'s' if len(errors) > 1 else ''}; nothing was changed."]
    for number, entry in enumerate(errors, 1):
        lines.append(f"{number}. {entry['error']}: {entry['message']}")
        if entry["remedy"]:
            lines.append(f"   Remedy: {entry['remedy']}")
    return "\n".join(lines)


def _sentence(entry: Mapping[str, str]) -> str:
    return f"{entry['message']} Remedy: {entry['remedy']}" if entry.get("remedy") else entry["message"]


def _reason(plan: Mapping[str, Any], subject: str, candidate: str) -> str:
    for entry in plan["trace"]:
        if entry["subject"] == subject and entry["verdict"] == "accepted" and candidate in entry["candidate"]:
            return entry["reason"]
    return ""


def _gpus(host: Mapping[str, Any]) -> str:
    names: dict[str, int] = {}
    for gpu in host.get("gpus") or []:
        name = str(gpu.get("name") or "GPU").removeprefix("NVIDIA ")
        names[name] = names.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


def _driver(driver: Mapping[str, Any] | None) -> list[list[str]]:
    if driver is None:
        return []
    parts = [f"{driver['state']}, {'managed' if driver['managed'] else 'not managed'}"]
    if driver["floor"]:
        parts.append(f"floor {driver['floor']}")
    if driver["flavour"]:
        parts.append(f"{driver['flavour']} module")
    if driver["reason"]:
        parts.append(driver["reason"])
    if driver["reboot"]:
        parts.append("reboot allowed")
    return [["driver", driver["wanted"] or "-", "; ".join(parts)]]


def _extension(item: Mapping[str, Any]) -> str:
    if item["source"] != "build":
        return f"{item['source']} wheel {item['wheel']['file']}"
    text = f"built from source for {', '.join(item['architectures'])}"
    if item["jobs"]:
        threads = f"{item['nvcc_threads']} nvcc thread{'s' if item['nvcc_threads'] != 1 else ''}"
        text += f": {item['jobs']} jobs at {threads} (limited by {item['limited_by']}), predicted peak {item['predicted_peak_mib']} MiB"
        if item["predicted_s"]:
            text += f", about {max(1, round(item['predicted_s'] / 60))} min"
        if item["gate"]:
            text += f" (through the gate {item['gate']['predicted_peak_mib']} MiB, {max(1, round(item['gate']['predicted_s'] / 60))} min)"
    if item["fixes"]:
        text += f"; fixes {', '.join(fix['name'] for fix in item['fixes'])}"
    forced = [f"{name}={value}" for name, value in item["env"].items() if "FORCE_BUILD" in name]
    return f"{text}; forced by {', '.join(forced)}" if forced else text
