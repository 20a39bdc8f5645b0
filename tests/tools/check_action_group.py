# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the action group of meta/runtime.yml against plugins/modules: each module is listed once, nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def faults() -> list[str]:
    groups = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8")).get("action_groups", {})
    if not groups:
        return ["meta/runtime.yml has no action group"]
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__"}
    actions = {path.stem for path in (ROOT / "plugins" / "action").glob("*.py") if path.stem != "__init__"}
    found = [f"plugins/action/{name}.py has no module of that name to document it" for name in sorted(actions - modules)]
    for group, entries in groups.items():
        listed = [entry.removeprefix("ironwheel.gpu.") for entry in entries or [] if isinstance(entry, str)]
        found += [f"action group {group}: {name} is listed twice" for name in sorted({name for name in listed if listed.count(name) > 1})]
        found += [f"action group {group}: plugins/modules/{name}.py is not listed" for name in sorted(modules - set(listed))]
        found += [f"action group {group}: {name} is listed and there is no such module" for name in sorted(set(listed) - modules)]
    return found


if __name__ == "__main__":
    problems = faults()
    print("\n".join(problems) or "meta/runtime.yml lists every module")
    sys.exit(1 if problems else 0)
