# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The built archive is what users install: it holds what it must and nothing else, and its playbooks run by their full names."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def archive(root, run_tool, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    done = run_tool("ansible-galaxy", "collection", "build", str(root), "--output-path", str(folder), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("ironwheel-gpu-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def installed(archive, run_tool, tmp_path_factory) -> Path:
    """A folder of collections with nothing but the installed archive."""
    folder = tmp_path_factory.mktemp("collections")
    done = run_tool("ansible-galaxy", "collection", "install", str(archive), "-p", str(folder), "--offline", "--no-deps", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_archive_holds_the_collection_and_nothing_of_the_workshop(archive):
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    wanted = {"MANIFEST.json", "README.md", "LICENSE", "meta/runtime.yml", "playbooks/site.yml", "plugins/modules", "roles/preflight/tasks/main.yml"}
    assert wanted <= set(names)
    unwanted = {"tests", "molecule", ".collections", ".venv", ".cache", ".ci", ".config", ".git", "locks", "reports", "wheels", "costs", "Makefile"}
    assert not unwanted & {name.split("/")[0] for name in names}


def test_every_module_has_documentation_in_the_installed_collection(root, installed, run_tool):
    done = run_tool("ansible-doc", "--list", "ironwheel.gpu", cwd=installed, ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert listed == {f"ironwheel.gpu.{path.stem}" for path in (root / "plugins" / "modules").glob("*.py") if path.stem != "__init__"}


def test_site_playbook_of_the_installed_collection_loads(root, installed, run_tool):
    hosts = str(root / "inventories" / "local")
    done = run_tool("ansible-playbook", "ironwheel.gpu.site", "-i", hosts, "--syntax-check", cwd=installed, ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert done.returncode == 0, done.stdout + done.stderr


def test_site_playbook_refuses_an_inventory_without_gpu_hosts(installed, run_tool):
    (installed / "empty.ini").write_text("[gpu_hosts]\n[others]\nlocalhost ansible_connection=local\n", encoding="utf-8")
    done = run_tool("ansible-playbook", "ironwheel.gpu.site", "-i", "empty.ini", cwd=installed, ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert done.returncode != 0
    assert "no host in the group gpu_hosts" in done.stdout


@pytest.fixture
def plan(root, installed, run_tool, tmp_path):
    """Plan the machine that nobody here has, with the installed collection; returns the run and the plan it wrote."""

    def run(*arguments: str):
        written = tmp_path / "plan.json"
        options = ["-i", str(root / "inventories" / "dual_blackwell"), "-e", f"plan_output={written}", *arguments]
        done = run_tool("ansible-playbook", "ironwheel.gpu.plan", *options, cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(installed))
        (made,) = json.loads(written.read_text(encoding="utf-8"))["hosts"].values()
        return done, made

    return run


def test_plan_playbook_plans_a_machine_from_its_facts(plan):
    done, made = plan()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (made["torch"]["version"], made["torch"]["local"]) == ("2.9.1", "cu128")
    assert made["cuda"]["version"] == "12.8"
    assert made["architectures"] == ["12.0"]
    (flash_attn,) = made["extensions"]
    assert flash_attn["source"] == "build"
    assert flash_attn["jobs"] > 20
    assert made["errors"] == []


def test_plan_playbook_fails_on_a_contradiction_and_names_both_sides(plan):
    done, made = plan("-e", "torch_version=2.10.0")
    assert done.returncode != 0
    assert any("2.9.1" in error["message"] and "2.10.0" in error["message"] for error in made["errors"]), made["errors"]
