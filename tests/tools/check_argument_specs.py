# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold every role's argument_specs against its defaults: names, values, types, choices and descriptions."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"str": str, "bool": bool, "int": int, "float": (int, float), "list": list, "dict": dict, "path": str, "raw": object}


def load(path: Path) -> dict:
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def has_type(value: object, kind: str) -> bool:
    """Whether a default is of the declared type; a template's type is known only when it is rendered."""
    if isinstance(value, str) and "{{" in value:
        return True
    if isinstance(value, bool) and kind in ("int", "float"):
        return False
    return isinstance(value, TYPES[kind])


def option_faults(name: str, option: dict, role: str) -> list[str]:
    """Faults of one option by itself."""
    faults = []
    if not name.startswith(f"{role}_"):
        faults.append(f"{name}: the name of a role's variable starts with '{role}_'")
    if not option.get("description"):
        faults.append(f"{name}: has no description")
    kind = option.get("type")
    if kind not in TYPES:
        return [*faults, f"{name}: type is {kind!r}, not one of {', '.join(TYPES)}"]
    if kind == "list" and "elements" not in option:
        faults.append(f"{name}: a list names the type of its elements")
    if "default" in option:
        value = option["default"]
        if option.get("required"):
            faults.append(f"{name}: is required and has a default")
        if not has_type(value, kind):
            faults.append(f"{name}: default {value!r} is not of type {kind}")
        chosen = value if isinstance(value, list) else [value]
        if "choices" in option and not all(one in option["choices"] or "{{" in str(one) for one in chosen):
            faults.append(f"{name}: default {value!r} is not among its choices {option['choices']}")
    return faults


def role_faults(role: Path) -> list[str]:
    specs = load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
    defaults = load(role / "defaults" / "main.yml")
    if "main" not in specs:
        return ["meta/argument_specs.yml describes no entry point 'main'"]
    faults = []
    for entry, spec in specs.items():
        if not spec.get("short_description"):
            faults.append(f"entry point {entry}: has no short_description")
        if not (role / "tasks" / f"{entry}.yml").exists():
            faults.append(f"entry point {entry}: there is no tasks/{entry}.yml")
        for name, option in spec.get("options", {}).items():
            faults += option_faults(name, option, role.name)
            if "default" in option and name not in defaults:
                faults.append(f"{name}: has a default in {entry}'s spec and none in defaults/main.yml")
            if name in defaults and "default" in option and (option["default"], type(option["default"])) != (defaults[name], type(defaults[name])):
                faults.append(f"{name}: the spec of {entry} says {option['default']!r}, defaults/main.yml says {defaults[name]!r}")
            if name in defaults and "default" not in option:
                faults.append(f"{name}: defaults/main.yml says {defaults[name]!r}, the spec of {entry} has no default")
    described = {name for spec in specs.values() for name in spec.get("options", {})}
    faults += [f"{name}: is in defaults/main.yml and in no spec" for name in defaults if name not in described]
    return faults


def main() -> int:
    roles = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
    faults = [f"roles/{role.name}: {fault}" for role in roles for fault in role_faults(role)]
    print("\n".join(faults) or f"{len(roles)} roles: argument_specs and defaults agree")
    return 1 if faults or not roles else 0


if __name__ == "__main__":
    sys.exit(main())
