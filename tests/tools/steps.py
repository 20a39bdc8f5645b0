# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run test steps one after the other and count what passed.

``steps.py lint sanity unit integration molecule:default`` runs every step even when an earlier one failed, says which one is
running and how long each took, and closes with one line ``N passed, N failed``. A step that writes a JUnit file counts its
tests; any other step counts as one. The exit status is 1 when anything failed or nothing ran.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
BIN = Path(PYTHON).parent


@dataclass(frozen=True)
class Step:
    """One command of a test run; ``{junit}`` in an argument or a variable stands for the JUnit file it writes."""

    name: str
    command: list[str]
    timeout_s: int
    junit: bool = False
    env: tuple[tuple[str, str], ...] = ()


@dataclass
class Outcome:
    """What a step came to: counts of tests, skipped tests and the seconds it took."""

    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float


def tool(name: str) -> str:
    return str(BIN / name)


def shell_scripts() -> list[str]:
    """Tracked and new shell scripts: named ``*.sh``, or beginning with a shell's shebang."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = []
    for name in listed:
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or path.suffix in (".py", ".md", ".yml", ".json", ".j2"):
            continue
        with path.open("rb") as stream:
            first = stream.readline(80)
        if path.suffix == ".sh" or (first.startswith(b"#!") and first.split(b"/")[-1].split()[-1] in (b"sh", b"bash")):
            found.append(name)
    return found


def lint_steps() -> list[Step]:
    steps = [
        Step("lint: ruff", [tool("ruff"), "check", "."], 120),
        Step("lint: yamllint", [tool("yamllint"), "--strict", "-c", ".config/yamllint.yml", "."], 120),
        Step("lint: argument_specs agree with defaults", [PYTHON, "tests/tools/check_argument_specs.py"], 60),
        Step("lint: action group lists every module", [PYTHON, "tests/tools/check_action_group.py"], 60),
        Step("lint: changelog fragments", [tool("antsibull-changelog"), "lint"], 60),
        Step("lint: ansible-lint", [tool("ansible-lint"), "--profile", "production", "--offline", "--nocolor"], 600),
    ]
    if shutil.which("shellcheck"):
        steps.append(Step("lint: shellcheck", ["shellcheck", *shell_scripts()], 120))
    return steps


def molecule_step(scenario: str) -> Step:
    return Step(
        f"molecule: {scenario}",
        [PYTHON, "tests/tools/run_molecule.py", "test", "--scenario-name", scenario],
        2700,
        junit=True,
        env=(("MOLECULE_JUNIT", "{junit}"),),
    )


def scenarios() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def expand(name: str) -> list[Step]:
    """The steps behind a name on the command line."""
    kind, _colon, value = name.partition(":")
    if kind == "lint":
        return lint_steps()
    if kind == "sanity":
        return [Step("sanity", [PYTHON, "tests/tools/run_sanity.py"], 1200)]
    if kind == "unit":
        return [Step("unit", [tool("pytest"), "-q", "-n", "2", "--junitxml={junit}", "tests/unit"], 600, junit=True)]
    if kind == "integration":
        return [Step("integration", [tool("pytest"), "-v", "--durations=5", "--junitxml={junit}", "tests/integration"], 1800, junit=True)]
    if kind == "molecule":
        chosen = scenarios() if value == "all" else [value]
        return [molecule_step(scenario) for scenario in chosen]
    raise SystemExit(f"steps.py: unknown step '{name}'; known: lint, sanity, unit, integration, molecule:<scenario>, molecule:all")


def count_junit(path: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit file; (0, 0, 0) when there is none."""
    if not path.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        tests, bad, skip = (int(suite.get(key, "0")) for key in ("tests", "failures", "skipped"))
        bad += int(suite.get("errors", "0"))
        passed += tests - bad - skip
        failed += bad
        skipped += skip
    return passed, failed, skipped


def execute(step: Step, junit: Path) -> int:
    """Exit status of the step's command; 124 after its time limit, when its whole process group is ended."""
    environment = {**os.environ, **{key: value.replace("{junit}", str(junit)) for key, value in step.env}}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment.get('PATH', os.defpath)}"
    command = [word.replace("{junit}", str(junit)) for word in step.command]
    print(f"    $ {shlex.join(command)}".replace(f"{ROOT}/", ""), flush=True)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(step.timeout_s)
    except subprocess.TimeoutExpired:
        print(f"    no end after {step.timeout_s} s: ended", flush=True)
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return 124
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def judge(step: Step, status: int, junit: Path, seconds: float) -> Outcome:
    """Count a step: by its JUnit file where it writes one, and as one more failure when it failed without a failed test."""
    if not step.junit:
        return Outcome(step.name, int(status == 0), int(status != 0), 0, seconds)
    passed, failed, skipped = count_junit(junit)
    if status == 0 and step.name.startswith("molecule"):
        passed += 1  # the sequence itself: create, check, converge, idempotence
    if status != 0 and failed == 0:
        failed = 1
    return Outcome(step.name, passed, failed, skipped, seconds)


def run(steps: list[Step]) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="ironwheel-junit-") as folder:
        for number, step in enumerate(steps, 1):
            print(f"==> [{number}/{len(steps)}] {step.name}", flush=True)
            junit = Path(folder) / f"{number}.xml"
            began = time.monotonic()
            status = execute(step, junit)
            outcome = judge(step, status, junit, time.monotonic() - began)
            verdict = "ok" if status == 0 else f"FAILED (exit status {status})"
            print(f"<== [{number}/{len(steps)}] {step.name}: {verdict} in {outcome.seconds:.1f} s", flush=True)
            outcomes.append(outcome)
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    lines = ["", f"{'step':<46} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}"]
    lines += [f"{one.name:<46} {one.passed:>6} {one.failed:>6} {one.skipped:>7} {one.seconds:>8.1f}" for one in outcomes]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", metavar="STEP")
    names = parser.parse_args().steps
    outcomes = run([step for name in names for step in expand(name)])
    passed, failed = sum(one.passed for one in outcomes), sum(one.failed for one in outcomes)
    print(summary(outcomes))
    print(f"\n{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
