# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Molecule with the repository's settings: ``run_molecule.py test --scenario-name default``.

``test`` keeps the hosts while it fails, shows what their services say, and removes them then, unless IRONWHEEL_KEEP is set.
All other commands (create, converge, verify, login, destroy) are handed on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    cache = ROOT / ".cache"
    (cache / "uv").mkdir(parents=True, exist_ok=True)
    settings = dict(os.environ)
    settings["PATH"] = f"{BIN}{os.pathsep}{settings.get('PATH', os.defpath)}"
    settings.setdefault("MOLECULE_JUNIT", str(cache / "molecule-junit.xml"))
    settings["MOLECULE_GLOB"] = "molecule/*/molecule.yml"
    settings["MOLECULE_COMMAND_BORDERS"] = "false"
    if not sys.stdout.isatty():
        settings.update(NO_COLOR="1", ANSIBLE_NOCOLOR="1", COLUMNS="160")
    settings["ANSIBLE_HOME"] = str(cache / "ansible")
    if "IRONWHEEL_TORCH" not in settings:
        settings["IRONWHEEL_TORCH"] = "true" if any((cache / "wheelhouse").glob("torch-*+cpu-*.whl")) else "false"
    # A leftover of the caller would replace the shared configuration.
    settings.pop("ANSIBLE_CONFIG", None)
    return settings


def molecule(arguments: list[str]) -> int:
    return subprocess.run([str(BIN / "molecule"), *arguments], cwd=ROOT, env=environment(), check=False, stdin=subprocess.DEVNULL).returncode


def show_services(scenario: str) -> None:
    """Failed units and the last lines of the journal of each host of the scenario."""
    text = (ROOT / "molecule" / scenario / "molecule.yml").read_text(encoding="utf-8")
    for platform in yaml.safe_load(text)["platforms"]:
        print(f"--- {platform['name']}: failed units, journal", flush=True)
        for command in (["systemctl", "--failed", "--no-pager", "--no-legend"], ["journalctl", "--no-pager", "-n", "60", "-o", "short-iso"]):
            subprocess.run(["podman", "exec", platform["name"], *command], check=False, timeout=60, stdin=subprocess.DEVNULL)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] != ["test"]:
        return molecule(arguments)
    scenario = arguments[arguments.index("--scenario-name") + 1] if "--scenario-name" in arguments else "default"
    status = molecule([*arguments, "--destroy", "never"])
    if status:
        show_services(scenario)
    if not os.environ.get("IRONWHEEL_KEEP"):
        status = molecule(["destroy", "--scenario-name", scenario]) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
