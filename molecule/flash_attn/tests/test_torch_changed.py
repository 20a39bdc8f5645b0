# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people do by hand: another torch under the extensions, an extension that nobody recorded. Named by a verification, mended by the next run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PREFIX = "/opt/ironwheel"
UV = f"{PREFIX}/uv/0.13.9/uv"
ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
FOLDER = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
ONE, TWO = "ironwheel-flash-attn-one", "ironwheel-flash-attn-two"


def play(name: str, *arguments: str) -> str:
    """Run a playbook on both hosts as Molecule does; its whole output behind the return code."""
    command = ["ansible-playbook", "-i", os.environ["MOLECULE_INVENTORY_FILE"], str(ROOT / "playbooks" / name), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1500, cwd=FOLDER)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def failed_checks(name: str) -> str:
    report = json.loads((FOLDER / "reports" / f"{name}.json").read_text(encoding="utf-8"))
    return "\n".join(f"{check['name']} {check['subject']}: {check['reason']}" for check in report["checks"] if check["verdict"] == "failed")


def recap(output: str, key: str) -> dict[str, int]:
    """``{host: number}`` of a column of the recap."""
    lines = [line for line in output.splitlines() if line.startswith((ONE, TWO)) and " ok=" in line]
    return {line.split()[0]: int(line.split(f"{key}=")[1].split()[0]) for line in lines}


@pytest.fixture(scope="module", autouse=True)
def once(host):
    """The whole file is about both hosts at once."""
    if host.backend.get_hostname() != ONE:
        pytest.skip("seen from the first host")
    if "+cpu" not in host.check_output("ls /srv/wheelhouse"):
        pytest.skip("the wheelhouse has no CPU build of torch")


@pytest.fixture(scope="module")
def before(host) -> str:
    return host.check_output(f"readlink {PREFIX}/env")


def on(name: str, command: str) -> str:
    done = subprocess.run(["podman", "exec", name, "sh", "-c", command], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_check_mode_after_the_run_announces_nothing(before):
    output = play("site.yml", "--check")
    assert output.startswith("0\n"), output[-3000:]
    assert recap(output, "changed") == {ONE: 0, TWO: 0}, output[-3000:]


def test_changes_by_hand_are_named(before):
    # On one host nobody knows any more where the extensions came from, on the other somebody put a CPU build of torch under them.
    edit = "import json, sys; p = sys.argv[1]; r = json.load(open(p)); r['extensions'] = []; json.dump(r, open(p, 'w'))"
    on(ONE, f'python3 -c "{edit}" {PREFIX}/env/ironwheel.json')
    version = on(TWO, "ls /srv/wheelhouse | grep -o 'torch-[0-9.]*+cpu' | head -n 1").removeprefix("torch-")
    on(TWO, f"{UV} pip install -q --python {PREFIX}/env/bin/python --no-index --no-deps --find-links /srv/wheelhouse torch=={version}")
    output = play("verify.yml")
    assert not output.startswith("0\n")
    one, two = failed_checks(ONE), failed_checks(TWO)
    assert "provenance causal-conv1d: the environment does not record where it came from" in one
    assert "causal-conv1d 1.7.0 is not in the lock" in one
    assert f"it was built for torch 2.14.1+cu130, the environment has {version}" in two
    assert "symbols causal-conv1d:" in two and "libc10_cuda.so" in two
    assert "import causal-conv1d (causal_conv1d_cuda):" in two


def test_the_next_run_makes_new_environments_and_compiles_nothing(host, before):
    builds = {name: on(name, f"cat {PREFIX}/builds/*/build.log 2>/dev/null | grep -c 'build started' || true") for name in (ONE, TWO)}
    output = play("site.yml")
    assert output.startswith("0\n"), output[-3000:]
    assert "the lock says 2.14.1" in output and "causal-conv1d 1.7.0 is not in the lock" in output
    for name in (ONE, TWO):
        assert failed_checks(name) == ""
        assert on(name, f"cat {PREFIX}/builds/*/build.log 2>/dev/null | grep -c 'build started' || true") == builds[name]
        assert on(name, f"readlink {PREFIX}/env").endswith("-1"), "the environment in use was edited"
    assert host.check_output(f"readlink {PREFIX}/env.previous") == before
    again = play("site.yml")
    assert recap(again, "changed") == {ONE: 0, TWO: 0}, again[-3000:]
