# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the first and the second run of the site playbook on one bare container host (``make bench-site``).

Prints a Markdown table for docs/benchmarks.md: seconds, tasks by outcome and the slowest tasks of each run. The host is the Debian 12
one of the Molecule scenario ``default`` (the other one idles meanwhile) with an empty uv cache, so the first run includes every
download but those of the wheelhouse. The hosts are removed afterwards.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import ansible_runner

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HOST = "ironwheel-default-debian12"


@dataclass
class Run:
    """One run: its wall clock in seconds, outcomes of the tasks on the host, and seconds by task."""

    name: str
    seconds: float = 0.0
    outcomes: Counter = field(default_factory=Counter)
    tasks: list[tuple[float, str]] = field(default_factory=list)


def molecule(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "tests" / "tools" / "run_molecule.py"), *arguments, "--scenario-name", "default"],
        check=True,
        stdout=sys.stderr,
    )


def inventory(folder: Path) -> Path:
    """Inventory with the one host: Molecule's own lists every host of the scenario."""
    path = folder / "hosts.yml"
    ssh = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    path.write_text(
        "gpu_hosts:\n  hosts:\n"
        f"    {HOST}:\n"
        "      ansible_host: 127.0.0.1\n      ansible_port: 22312\n      ansible_user: root\n"
        f"      ansible_ssh_private_key_file: {ROOT}/.cache/ssh/id_ed25519\n"
        f"      ansible_ssh_common_args: {ssh}\n"
        "      uv_venv_find_links: [/srv/wheelhouse]\n",
        encoding="utf-8",
    )
    return path


def site(name: str, hosts: Path, folder: Path) -> Run:
    run = Run(name)
    kinds = {"runner_on_ok": "ok", "runner_on_skipped": "skipped", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}

    def note(event: dict) -> bool:
        data = event.get("event_data", {})
        kind = kinds.get(event["event"])
        if kind and data.get("host") == HOST:
            changed = kind == "ok" and bool((data.get("res") or {}).get("changed"))
            run.outcomes["changed" if changed else kind] += 1
            run.tasks.append((float(data.get("duration") or 0), f"{data.get('role') or 'play'}: {data.get('task')}"))
        return False

    private = folder / name.replace(" ", "-")
    private.mkdir()
    began = time.monotonic()
    result = ansible_runner.run(
        private_data_dir=str(private),
        project_dir=str(ROOT),
        playbook="site.yml",
        inventory=str(hosts),
        event_handler=note,
        quiet=False,
        envvars={"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"},
        extravars={"uv_venv_lock_dir": str(folder / "locks"), "stack_verify_report_dir": str(folder / "reports")},
    )
    run.seconds = time.monotonic() - began
    if result.rc:
        raise SystemExit(f"bench_site.py: the {name} ended with exit status {result.rc}")
    return run


def machine() -> list[str]:
    """What the numbers were measured on."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1])
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    core = subprocess.run([str(BIN / "ansible-playbook"), "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    podman = subprocess.run(["podman", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    cores = f"{len(os.sched_getaffinity(0))} cores ({models[0] if models else platform.machine()})"
    return [
        f"- {cores}, {memory_kib / 2**20:.0f} GiB of memory, Linux {platform.release()}",
        f"- controller: {release}, Python {platform.python_version()}, {core}; host: Debian 12 container over SSH, {podman}",
    ]


def report(runs: list[Run]) -> str:
    kinds = ["ok", "changed", "skipped", "failed"]
    lines = ["| run | seconds | tasks run | ok | changed | skipped | failed |", "|---|---:|---:|---:|---:|---:|---:|"]
    for run in runs:
        executed = sum(count for kind, count in run.outcomes.items() if kind != "skipped")
        lines.append(f"| {run.name} | {run.seconds:.0f} | {executed} | " + " | ".join(str(run.outcomes[kind]) for kind in kinds) + " |")
    for run in runs:
        slowest = sorted(run.tasks, reverse=True)[:5]
        lines += ["", f"Slowest tasks of the {run.name}: " + "; ".join(f"{name} ({seconds:.1f} s)" for seconds, name in slowest) + "."]
    return "\n".join([*machine(), "", *lines])


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="ironwheel-bench-"))
    molecule("destroy")
    molecule("create")
    try:
        hosts = inventory(folder)
        runs = [site(name, hosts, folder) for name in ("first run", "second run")]
    finally:
        molecule("destroy")
        shutil.rmtree(folder, ignore_errors=True)
    print("\n" + report(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
