# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""uv_install, uv_lock, uv_sync and uv_activate: real uv, real environments, wheels made here, no network."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import shutil
import sys
import tarfile
import threading
import types
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ironwheel.gpu.plugins.action import uv_lock as lock_action
from ansible_collections.ironwheel.gpu.plugins.action import uv_sync as sync_action
from ansible_collections.ironwheel.gpu.plugins.module_utils import environments, extension_checks
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Lock, parse_lock
from ansible_collections.ironwheel.gpu.plugins.modules import uv_activate, uv_install, uv_lock, uv_sync
from package_files import make_environment, make_wheel, real_uv, scrub_environment

MACHINE = os.uname().machine


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    scrub_environment(monkeypatch)


def tree(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*")) if path.exists() else []


# --- uv_install ---


FAKE_UV = b"#!/bin/sh\necho uv 9.9.9 \\(tests\\)\n"


def install(tmp_path, check=False, **more):
    params = {"version": "9.9.9", "sha256": "", "url": "", "prefix": str(tmp_path / "prefix"), "indexes": {}}
    return uv_install.ensure({**params, **more}, check)


@pytest.fixture
def uv_wheel(tmp_path):
    tag = f"py3-none-manylinux_2_17_{MACHINE}"
    return make_wheel(tmp_path / "links", "uv", "9.9.9", tag=tag, files={"uv-9.9.9.data/scripts/uv": FAKE_UV})


@pytest.fixture
def bare_path(tmp_path, monkeypatch):
    """A host without uv on PATH and without pip."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.setattr(uv_install.sys, "executable", "/nowhere/python3")
    monkeypatch.setattr(uv_install.os, "access", lambda path, mode: str(path).startswith(str(tmp_path)) and os.path.exists(path))
    return tmp_path / "bin"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_install_from_a_wheel_then_nothing_to_do(tmp_path, uv_wheel):
    arguments = {"sha256": "sha256:" + sha256(uv_wheel), "indexes": {"find_links": [str(uv_wheel.parent)]}}
    planned = install(tmp_path, check=True, **arguments)
    assert planned["changed"] and not (tmp_path / "prefix").exists()
    first = install(tmp_path, **arguments)
    assert (first["changed"], first["source"], first["reasons"]) == (True, "find-links", [])
    assert Path(first["path"]) == tmp_path / "prefix" / "uv" / "9.9.9" / "uv"
    assert uv_install.version_of(first["path"]) == "9.9.9"
    second = install(tmp_path, **arguments)
    assert (second["changed"], second["source"], second["actions"]) == (False, "present", [])


def test_a_broken_binary_is_replaced(tmp_path, uv_wheel):
    arguments = {"sha256": sha256(uv_wheel), "indexes": {"find_links": [str(uv_wheel.parent)]}}
    path = Path(install(tmp_path, **arguments)["path"])
    path.write_bytes(FAKE_UV[:10])
    assert install(tmp_path, **arguments)["changed"]
    assert uv_install.version_of(str(path)) == "9.9.9"


def test_no_source_serves_and_every_reason_is_told(tmp_path, uv_wheel, bare_path):
    fake = bare_path / "uv"
    fake.write_bytes(FAKE_UV.replace(b"9.9.9", b"1.0"))
    fake.chmod(0o755)
    with pytest.raises(IronwheelError, match="uv 9.9.9 could not be installed") as caught:
        install(tmp_path, sha256="0" * 64, indexes={"find_links": [str(uv_wheel.parent)]}, url="http://127.0.0.1:9/{version}/{target}.tar.gz")
    assert caught.value.error == "UvNotAvailable"
    for reason in (
        "find-links: uv-9.9.9-py3",
        "expected " + "0" * 64,
        "pip: no pip in",
        f"path: {fake} is version 1.0",
        f"release: http://127.0.0.1:9/9.9.9/{MACHINE}-",
    ):
        assert reason in caught.value.message
    assert tree(tmp_path / "prefix") == []


def test_a_version_whose_hash_nobody_gave_is_not_used(tmp_path, uv_wheel, bare_path):
    with pytest.raises(IronwheelError, match="the sha256 of uv 9.9.9 is not known; give uv_venv_uv_sha256"):
        install(tmp_path, indexes={"find_links": [str(uv_wheel.parent)]})


def test_the_default_version_has_known_hashes():
    assert len(uv_install.WHEEL_SHA256["0.13.9"]) == 4
    assert uv_install.known_hashes("0.13.9", "") == uv_install.WHEEL_SHA256["0.13.9"]
    assert uv_install.known_hashes("0.13.9", "AB") == ("ab",)


def test_the_same_version_on_path_is_taken(tmp_path, bare_path):
    (bare_path / "uv").write_bytes(FAKE_UV)
    (bare_path / "uv").chmod(0o755)
    result = install(tmp_path)
    assert result["source"] == "path"
    assert len(result["reasons"]) == 2


def test_a_binary_that_does_not_run_is_not_left_there(tmp_path, bare_path):
    wheel = make_wheel(tmp_path / "links", "uv", "9.9.9", tag=f"py3-none-manylinux_2_17_{MACHINE}", files={"uv-9.9.9.data/scripts/uv": b"\x7fELF nonsense"})
    with pytest.raises(IronwheelError, match="does not run here as uv 9.9.9"):
        install(tmp_path, sha256=sha256(wheel), indexes={"find_links": [str(wheel.parent)]})
    assert not [name for name in tree(tmp_path / "prefix") if name.endswith("uv") and (tmp_path / "prefix" / name).is_file()]


@pytest.fixture
def release(tmp_path):
    """A server with a release archive and its published sha256; yields the URL pattern and the folder."""
    folder = tmp_path / "release"
    folder.mkdir()
    archive = folder / "uv.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("uv-x/uv")
        member.size = len(FAKE_UV)
        tar.addfile(member, io.BytesIO(FAKE_UV))
    (folder / "uv.tar.gz.sha256").write_text(f"{sha256(archive)}  uv.tar.gz\n", encoding="utf-8")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/uv.tar.gz", folder
        server.shutdown()


def test_the_release_archive_with_its_published_hash(tmp_path, bare_path, release, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url, folder = release
    assert install(tmp_path, url=url)["source"] == "release"
    shutil.rmtree(tmp_path / "prefix")
    (folder / "uv.tar.gz.sha256").write_text("0" * 64, encoding="utf-8")
    with pytest.raises(IronwheelError, match=f"expected {'0' * 64}"):
        install(tmp_path, url=url)
    with pytest.raises(IronwheelError, match="uv_venv_offline is set"):
        install(tmp_path, url=url, indexes={"offline": True})


@pytest.mark.parametrize(
    ("name", "machine", "musl", "fits"),
    [
        ("uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x86_64", False, True),
        ("uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x86_64", True, False),
        ("uv-0.13.9-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl", "aarch64", True, True),
        ("uv-0.13.9-py3-none-manylinux_2_28_aarch64.whl", "x86_64", False, False),
        ("uv-0.13.10-py3-none-manylinux_2_28_aarch64.whl", "aarch64", False, False),
        ("uv_build-0.13.9-py3-none-manylinux_2_28_x86_64.whl", "x86_64", False, False),
    ],
)
def test_wheels_of_uv(name, machine, musl, fits):
    assert uv_install.wheel_fits(name, "0.13.9", machine, musl) == fits


# --- uv_sync and uv_activate ---


class Host:
    """A prefix, a folder of wheels and a cache."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.prefix, self.links, self.cache = path / "prefix", path / "links", cache
        self.links.mkdir()

    def lock(self, packages: dict[str, str]) -> str:
        lines = []
        for name, version in sorted(packages.items()):
            wheel = make_wheel(self.links, name, version)
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{sha256(wheel)}\n")
        return Lock(body="".join(lines), key="k" * 64, python="3.11", machine=MACHINE).render()

    def params(self, lock: str, **more):
        return {
            "lock": lock,
            "lock_file": "",
            "python": {},
            "extensions": [],
            "link": "",
            "uv": real_uv(),
            "prefix": str(self.prefix),
            "cache_dir": str(self.cache),
            "indexes": {"offline": True, "find_links": [str(self.links)]},
            "build_packages": [],
            "read_by": "",
            **more,
        }

    def sync(self, lock: str, check: bool = False, **more):
        return uv_sync.Sync(self.params(lock, **more), check).result()

    def activate(self, path: str = "", check: bool = False, **more):
        return uv_activate.activate({"path": path, "rollback": False, "prefix": str(self.prefix), "uv": "", "keep": 2, **more}, check)

    def stub(self, name: str, alpha: str) -> str:
        """A complete environment that was not made by uv, for what only switches between environments."""
        return str(make_environment(self.prefix / "envs" / name, {"alpha": alpha}, created=f"2026-01-{name}"))

    def use(self, packages: dict[str, str]) -> str:
        path = self.sync(self.lock(packages))["path"]
        self.activate(path)
        return path

    def site(self, path: str) -> Path:
        return Path(environments.site_packages(path))


@pytest.fixture
def host(tmp_path, tmp_path_factory):
    # uv's cache is shared by the tests, because it keeps what uv finds out about the interpreter.
    return Host(tmp_path, tmp_path_factory.getbasetemp() / "uv-cache")


def test_an_environment_is_made_once(host):
    lock = host.lock({"alpha": "1.0", "beta": "2.0"})
    planned = host.sync(lock, check=True)
    assert planned["changed"] and planned["created"]
    assert planned["packages"]["added"] == {"alpha": "1.0", "beta": "2.0"}
    assert planned["diff"]["after"] == "alpha==1.0\nbeta==2.0\n"
    assert not host.prefix.exists(), "check mode wrote something"
    made = host.sync(lock)
    assert (made["changed"], made["created"], made["active"], made["path"]) == (True, True, False, planned["path"])
    assert not (host.prefix / "env").exists(), "the link is switched by uv_activate alone"
    record = json.loads((Path(made["path"]) / "ironwheel.json").read_text(encoding="utf-8"))
    assert record["packages"] == {"alpha": "1.0", "beta": "2.0"}
    assert record["lock"]["digest"] == parse_lock(lock, "x").digest
    assert record["schema"] == 1 and record["created"]
    again = host.sync(lock)
    assert (again["changed"], again["created"], again["path"], again["drift"], again["actions"]) == (False, False, made["path"], [], [])
    host.activate(made["path"])
    assert host.sync(lock)["active"] is True


def test_a_new_lock_makes_a_new_environment_and_names_the_difference(host):
    old = host.use({"alpha": "1.0", "beta": "2.0"})
    before = tree(Path(old))
    lock = host.lock({"alpha": "1.1", "gamma": "3.0"})
    expected = {"added": {"gamma": "3.0"}, "removed": {"beta": "2.0"}, "changed": {"alpha": {"before": "1.0", "after": "1.1"}}}
    assert host.sync(lock, check=True)["packages"] == expected
    made = host.sync(lock)
    assert made["packages"] == expected and made["path"] != old
    assert tree(Path(old)) == before, "the environment in use was touched"


def test_what_was_changed_by_hand_is_named_and_put_back_beside(host):
    packages = {"alpha": "1.0", "beta": "2.0", "gamma": "3.0"}
    old = host.use(packages)
    site = host.site(old)
    lock = host.lock(packages)
    shutil.rmtree(site / "alpha-1.0.dist-info")
    make_wheel(host.links, "alpha", "9.0")
    shutil.unpack_archive(host.links / "alpha-9.0-py3-none-any.whl", site, "zip")
    make_wheel(host.links, "stranger", "1.0")
    shutil.unpack_archive(host.links / "stranger-1.0-py3-none-any.whl", site, "zip")
    # Edited in place: uv's cache, which shares the file, is edited as well.
    with open(site / "beta" / "__init__.py", "a", encoding="utf-8") as handle:
        handle.write("# edited\n")
    planned = host.sync(lock, check=True)
    assert planned["path"] == old + "-1" and not Path(old + "-1").exists()
    made = host.sync(lock)
    assert {(item["package"], item["kind"]) for item in made["drift"]} == {("alpha", "version"), ("stranger", "extra"), ("beta", "damaged")}
    assert any("alpha is 9.0, the lock says 1.0" in action for action in made["actions"])
    assert made["packages"] == {"added": {}, "removed": {"stranger": "1.0"}, "changed": {"alpha": {"before": "9.0", "after": "1.0"}}}
    assert made["path"] == old + "-1"
    assert (host.site(made["path"]) / "beta" / "__init__.py").read_text(encoding="utf-8") == '__version__ = "2.0"\n'
    assert (site / "stranger").exists(), "the environment in use was edited"
    host.activate(made["path"])
    again = host.sync(lock)
    assert (again["changed"], again["drift"], again["active"]) == (False, [], True)


def test_a_recorded_extension_is_no_drift_and_any_other_is(host):
    lock = host.lock({"alpha": "1.0"})
    flash = [{"name": "flash_attn", "version": "2.8.3", "fingerprint": "f"}]
    path = host.sync(lock, extensions=flash)["path"]
    make_wheel(host.links, "flash_attn", "2.8.3")
    shutil.unpack_archive(host.links / "flash_attn-2.8.3-py3-none-any.whl", host.site(path), "zip")
    host.activate(path)
    by_hand = host.sync(lock, extensions=flash, check=True)
    assert [(item["package"], item["kind"]) for item in by_hand["drift"]] == [("flash-attn", "extra")]
    record = Path(path) / "ironwheel.json"
    there = extension_checks.find(path, "flash-attn")
    entry = {"name": "flash-attn", "version": "2.8.3", "record_sha256": extension_checks.record_sha256(there)}
    record.write_text(json.dumps({**json.loads(record.read_text()), "extensions": [entry]}))
    again = host.sync(lock, extensions=flash)
    assert (again["changed"], again["drift"], again["packages"]["removed"]) == (False, [], {})
    assert host.sync(lock, check=True)["path"] != path, "another set of extensions is another environment"
    record.write_text(json.dumps({**json.loads(record.read_text()), "extensions": [{**entry, "record_sha256": "0" * 64}]}))
    assert [item["kind"] for item in host.sync(lock, extensions=flash, check=True)["drift"]] == ["replaced"]


def test_a_wrong_hash_is_refused_and_nothing_is_left(host):
    lock = parse_lock(host.lock({"alpha": "1.0"}), "x")
    wrong = Lock(body=lock.body.replace("sha256:", "sha256:0")[:-2] + "\n", key=lock.key).render()
    with pytest.raises(IronwheelError, match="Hash mismatch for `alpha==1.0`") as caught:
        host.sync(wrong)
    assert caught.value.error == "HashMismatch"
    assert tree(host.prefix / "envs") == []


def test_a_wheel_that_is_not_there(host):
    lock = host.lock({"alpha": "1.0"})
    (host.links / "alpha-1.0-py3-none-any.whl").unlink()
    with pytest.raises(IronwheelError, match="alpha==1.0"):
        host.sync(lock)
    assert tree(host.prefix / "envs") == []


def test_sources_are_built_only_where_the_user_says_so(host):
    sdist = host.links / "gamma-1.0.tar.gz"
    files = {
        "gamma-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: gamma\nVersion: 1.0\n",
        "gamma-1.0/pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "gamma-1.0/backend.py": (
            b"import zipfile\n"
            b"def build_wheel(folder, config=None, metadata=None):\n"
            b"    name = 'gamma-1.0-py3-none-any.whl'\n"
            b"    with zipfile.ZipFile(folder + '/' + name, 'w') as z:\n"
            b"        z.writestr('gamma.py', '')\n"
            b"        z.writestr('gamma-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: gamma\\nVersion: 1.0\\n')\n"
            b"        z.writestr('gamma-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
            b"        z.writestr('gamma-1.0.dist-info/RECORD', ''.join(n + ',,\\n' for n in [*z.namelist(), 'gamma-1.0.dist-info/RECORD']))\n"
            b"    return name\n"
        ),
    }
    with tarfile.open(sdist, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    lock = f"gamma==1.0 --hash=sha256:{sha256(sdist)}\n"
    with pytest.raises(IronwheelError):
        host.sync(lock)
    assert host.sync(lock, build_packages=["gamma"])["created"]


def test_what_a_killed_run_left_is_made_again(host):
    lock = host.lock({"alpha": "1.0"})
    path = host.sync(lock)["path"]
    (Path(path) / "ironwheel.json").unlink()
    shutil.rmtree(host.site(path) / "alpha")
    made = host.sync(lock)
    assert (made["created"], made["path"], made["drift"]) == (True, path, [])
    assert (host.site(path) / "alpha" / "__init__.py").exists()


def test_a_run_that_dies_while_installing_leaves_nothing_that_looks_complete(host, monkeypatch):
    lock = host.lock({"alpha": "1.0"})

    def die(self, path, lock):
        raise KeyboardInterrupt

    monkeypatch.setattr(uv_sync.Sync, "_verify", die)
    with pytest.raises(KeyboardInterrupt):
        host.sync(lock)
    assert tree(host.prefix / "envs") == []


def test_the_interpreter_is_gone(host):
    lock = host.lock({"alpha": "1.0"})
    path = host.sync(lock)["path"]
    (Path(path) / "bin" / "python").unlink()
    (Path(path) / "bin" / "python").symlink_to("/nowhere/python3")
    made = host.sync(lock)
    assert [item["kind"] for item in made["drift"]] == ["interpreter"]
    assert os.access(made["python"], os.X_OK)


def test_the_lock_is_not_known_yet(host):
    result = host.sync("", check=True)
    assert result["changed"] and result["path"] == "" and "not known yet" in result["msg"]
    with pytest.raises(IronwheelError) as caught:
        host.sync("")
    assert caught.value.error == "LockMissing"


def test_an_empty_lock_makes_an_empty_environment(host):
    assert host.sync(host.lock({}))["created"]


def test_a_managed_python_that_cannot_be_had(host):
    lock = host.lock({"alpha": "1.0"})
    with pytest.raises(IronwheelError, match="Installing Python 3.12 below") as caught:
        host.sync(lock, python={"version": "3.12", "path": None})
    assert caught.value.error == "PythonNotAvailable"
    assert "UV_PYTHON_INSTALL_MIRROR" in caught.value.remedy
    with pytest.raises(IronwheelError, match="/nowhere/python3"):
        host.sync(lock, python={"version": "3.12", "path": "/nowhere/python3"})


def test_a_prefix_that_the_service_user_cannot_enter(host):
    host.prefix.mkdir()
    host.prefix.chmod(0o700)
    with pytest.raises(IronwheelError, match="vllm could not run") as caught:
        host.sync(host.lock({"alpha": "1.0"}), read_by="vllm")
    assert caught.value.error == "InterpreterNotAccessible"
    assert tree(host.prefix) == []


def test_the_tools_link_is_switched_at_once_and_its_predecessor_stays(host):
    first = host.sync(host.lock({"alpha": "1.0"}), link="tools")
    assert first["path"].endswith("tools-" + first["digest"])
    assert os.path.realpath(host.prefix / "tools") == first["path"]
    assert host.sync(host.lock({"alpha": "1.0"}), link="tools")["changed"] is False
    second = host.sync(host.lock({"alpha": "1.1"}), link="tools")
    third = host.sync(host.lock({"alpha": "1.2"}), link="tools")
    assert os.path.realpath(host.prefix / "tools") == third["path"]
    assert sorted(environments.find_environments(str(host.prefix), tools=True)) == sorted([second["path"], third["path"]])


def test_activation_switches_keeps_the_way_back_and_removes_the_rest(host):
    paths = [host.stub(f"0{day}", f"1.{day}") for day in range(3)]
    first = host.activate(paths[0], keep=9)
    assert (first["changed"], first["previous"]) == (True, "")
    planned = host.activate(paths[1], check=True, keep=9)
    assert planned["changed"] and os.path.realpath(host.prefix / "env") == paths[0]
    assert planned["diff"] == {"before": "alpha==1.0\n", "after": "alpha==1.1\n", "before_header": paths[0], "after_header": paths[1]}
    host.activate(paths[1], keep=9)
    last = host.activate(paths[2], keep=1)
    assert last["removed"] == [paths[0]]
    assert (os.path.realpath(host.prefix / "env"), os.path.realpath(host.prefix / "env.previous")) == (paths[2], paths[1])
    assert host.activate(paths[2], keep=1)["changed"] is False


def test_rollback_there_and_back(host):
    with pytest.raises(IronwheelError, match="no environment to switch back to") as caught:
        host.activate(rollback=True)
    assert caught.value.error == "NoPreviousEnvironment"
    old, new = host.stub("01", "1.0"), host.stub("02", "1.1")
    host.activate(old)
    with pytest.raises(IronwheelError):
        host.activate(rollback=True)
    host.activate(new)
    back = host.activate(rollback=True)
    assert (back["path"], back["previous"]) == (old, new)
    assert back["packages"]["changed"] == {"alpha": {"before": "1.1", "after": "1.0"}}
    assert os.path.realpath(host.prefix / "env") == old
    assert host.activate(rollback=True)["path"] == new


def test_a_broken_environment_is_not_activated(host):
    old, new = host.stub("01", "1.0"), host.stub("02", "1.1")
    host.activate(old)
    (Path(new) / "bin" / "python").unlink()
    with pytest.raises(IronwheelError, match="does not run") as caught:
        host.activate(new)
    assert caught.value.error == "InterpreterBroken"
    (Path(old) / "ironwheel.json").rename(Path(old) / "x")
    for path in (old, "/usr", "", str(host.prefix / "envs")):
        with pytest.raises(IronwheelError, match="is no complete environment"):
            host.activate(path)
    assert os.path.realpath(host.prefix / "env") == old


def test_check_mode_before_there_is_an_environment(host):
    assert host.activate("", check=True)["changed"]
    assert host.activate(str(host.prefix / "envs" / "later"), check=True)["changed"]
    assert not host.prefix.exists()


def test_requirements_that_are_not_met_are_reported(host):
    make_wheel(host.links, "needy", "1.0", ("absent>=2",))
    lock = f"needy==1.0 --hash=sha256:{sha256(host.links / 'needy-1.0-py3-none-any.whl')}\n"
    path = host.sync(lock)["path"]
    assert host.activate(path, uv=real_uv())["inconsistent"] == ["The package `needy` requires `absent>=2`, but it's not installed"]


def run_main(module, params, capsys, check=False) -> dict:
    with patch_module_args({**params, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


def test_others_can_read_what_is_installed_whatever_the_umask(host, capsys):
    lock = host.lock({"alpha": "1.0"})
    old = os.umask(0o077)
    try:
        result = run_main(uv_sync, host.params(lock), capsys)
    finally:
        os.umask(old)
    assert result["created"]
    folders = [host.prefix / "envs", *(path for path in (host.prefix / "envs").rglob("*"))]
    closed = [path for path in folders if not path.is_symlink() and path.name != ".lock" and not path.stat().st_mode & (0o005 if path.is_dir() else 0o004)]
    assert closed == []


def test_faults_are_told_without_a_traceback(host, capsys):
    result = run_main(uv_sync, host.params("# ironwheel.gpu index lock\nx"), capsys)
    assert (result["failed"], result["error"]) == (True, "LockEdited")
    result = run_main(uv_activate, {"prefix": str(host.prefix), "rollback": True}, capsys)
    assert (result["failed"], result["error"]) == (True, "NoPreviousEnvironment")
    result = run_main(uv_activate, {"prefix": "relative", "rollback": True}, capsys)
    assert "uv_venv_prefix is 'relative'" in result["msg"] and "Remedy" in result["msg"]
    result = run_main(uv_activate, {"prefix": str(host.prefix), "keep": 0}, capsys)
    assert "uv_venv_keep is 0" in result["msg"]
    result = run_main(uv_lock, {"plan": {}, "machine": "x", "uv": "/nowhere/uv"}, capsys)
    assert (result["failed"], result["error"]) == (True, "UvNotAvailable")


# --- uv_lock on the controller ---


# What ActionBase asks of a connection before it runs; modules are answered by the tests.
CONNECTION = types.SimpleNamespace(_shell=types.SimpleNamespace(tmpdir="/nowhere"))


class Group:
    """Hosts of one run that share a lock; ``answers`` says what solving on a host gives."""

    def __init__(self, tmp_path: Path, monkeypatch) -> None:
        self.locks, self.solved, self.answers = tmp_path / "locks", [], {}
        (tmp_path / "run").mkdir()
        monkeypatch.setattr(lock_action.constants, "DEFAULT_LOCAL_TMP", str(tmp_path / "run"))
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, **more):
        inputs = {"packages": ["alpha"]}
        return {"lock": {"key": "a" * 64, "inputs": inputs}, "python": {"version": "3.11.2"}, "packages": ["alpha"], **more}

    def call(self, name: str, check: bool = False, plan: dict | None = None, **more) -> dict:
        task = types.SimpleNamespace(
            args={"plan": plan or self.plan(), "machine": "x86_64", "lock_dir": str(self.locks), "uv": "/x/uv", **more},
            check_mode=check,
            async_val=0,
            diff=False,
            action="ironwheel.gpu.uv_lock",
            environment=None,
        )
        action = lock_action.ActionModule(task, CONNECTION, None, None, None, None)

        def execute(**_arguments):
            self.solved.append(name)
            self.gate.wait(5)
            answer = self.answers.get(name, {"solved": True, "changed": True, "body": "alpha==1.0\n", "torch_index": [], "seconds": 0.1})
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        action._execute_module = execute
        action._remove_tmp_path = lambda path: None
        return action.run(task_vars={"inventory_hostname": name})

    @property
    def file(self) -> Path:
        return self.locks / "3.11-x86_64-aaaaaaaaaaaa.txt"


@pytest.fixture
def group(tmp_path, monkeypatch):
    return Group(tmp_path, monkeypatch)


def test_one_host_solves_for_all_even_at_the_same_time(group):
    group.gate.clear()
    results: dict[str, dict] = {}
    threads = [threading.Thread(target=lambda name=name: results.update({name: group.call(name)})) for name in "abcd"]
    for thread in threads:
        thread.start()
    group.gate.set()
    for thread in threads:
        thread.join(10)
    assert len(group.solved) == 1
    assert sorted(result["source"] for result in results.values()) == ["solved", "stored", "stored", "stored"]
    assert [result["changed"] for result in results.values()].count(True) == 1
    assert {result["digest"] for result in results.values()} == {parse_lock(group.file.read_text(encoding="utf-8"), "x").digest}
    assert [path.name for path in group.locks.iterdir()] == [group.file.name]


def test_a_stored_lock_is_not_solved_again(group):
    first = group.call("a")
    assert (first["changed"], first["path"], first["packages"]) == (True, str(group.file), {"alpha": "1.0"})
    assert first["diff"]["after"] == "alpha==1.0\n"
    again = group.call("a")
    assert (again["changed"], again["source"], group.solved) == (False, "stored", ["a"])
    other = group.plan(lock={"key": "b" * 64, "inputs": {}})
    assert group.call("a", plan=other)["changed"] is True


def test_packages_built_from_source_make_another_lock(group):
    plain, built = group.call("a"), group.call("a", build_packages=["gamma"])
    assert built["source"] == "solved" and built["key"] != plain["key"]
    assert '# input build_packages: ["gamma"]' in Path(built["path"]).read_text(encoding="utf-8")
    assert group.call("b", build_packages=["gamma"])["source"] == "stored"


def test_an_edited_lock_fails_and_stays(group):
    group.call("a")
    edited = group.file.read_text(encoding="utf-8").replace("alpha==1.0", "alpha==1.1")
    group.file.write_text(edited, encoding="utf-8")
    result = group.call("b")
    assert (result["failed"], result["error"]) == (True, "LockEdited")
    assert group.file.read_text(encoding="utf-8") == edited
    group.file.write_bytes(b"\xff\xfe")
    assert group.call("b")["error"] == "LockEdited"


def test_a_host_that_fails_is_followed_by_the_next(group):
    group.answers["a"] = {"failed": True, "msg": "no index. Remedy: r", "error": "IndexNotReachable", "remedy": "r"}
    group.answers["b"] = OSError("the connection is gone")
    assert group.call("a")["error"] == "IndexNotReachable"
    assert group.call("b")["failed"]
    assert not group.locks.exists()
    assert group.call("c")["source"] == "solved"
    assert group.solved == ["a", "b", "c"]


def test_a_request_without_solution_is_tried_once(group):
    group.answers["a"] = {"failed": True, "msg": "no solution. Remedy: r", "error": "UnsatisfiableRequest", "remedy": "r"}
    assert group.call("a")["failed"]
    second = group.call("b")
    assert (second["error"], group.solved) == ("UnsatisfiableRequest", ["a"])
    assert second["msg"] == "no solution. (a, which shares the lock, tried.) Remedy: r"


def test_check_mode_stores_nothing(group):
    group.answers["bare"] = {"changed": True, "solved": False}
    bare = group.call("bare", check=True)
    assert (bare["changed"], bare["source"], bare["path"]) == (True, "would_solve", "")
    solved = group.call("a", check=True)
    assert (solved["changed"], solved["source"], solved["packages"]) == (True, "solved", {"alpha": "1.0"})
    assert Path(solved["path"]).exists() and not group.locks.exists()
    assert group.call("b", check=True)["source"] == "stored"


def test_a_torch_that_the_plan_did_not_expect(group):
    group.answers["a"] = {"solved": True, "body": "torch==2.16.0\n", "torch_index": [], "seconds": 0.1}
    result = group.call("a", plan=group.plan(torch={"version": "2.14.0", "local": "cu130", "source": "pypi"}))
    assert "2.16.0. The lock is right" in result["warnings"][0]
    wanted = group.plan(torch={"version": "2.16.0", "local": "cu130", "source": "index"}, lock={"key": "b" * 64, "inputs": {}})
    assert group.call("a", plan=wanted)["error"] == "TorchVariantMismatch"
    assert len(list(group.locks.iterdir())) == 1


def test_a_lock_folder_that_cannot_be_written(group):
    group.locks.write_text("a file", encoding="utf-8")
    result = group.call("a")
    assert result["failed"] and "uv_venv_lock_dir" in result["msg"]


def test_a_plan_without_a_key(group):
    assert group.call("a", plan={"packages": []})["error"] == "InvalidPlan"


def test_sync_action_reads_the_lock_on_the_controller(tmp_path):
    (tmp_path / "lock.txt").write_text("alpha==1.0\n", encoding="utf-8")

    def call(path: str, check: bool) -> dict:
        task = types.SimpleNamespace(args={"lock_file": path, "uv": "/x"}, check_mode=check, async_val=0, diff=False, action="x", environment=None)
        action = sync_action.ActionModule(task, CONNECTION, None, None, None, None)
        action._execute_module = lambda module_args, **_more: {"invocation": {"module_args": module_args}, "got": module_args["lock"]}
        return action.run(task_vars={})

    result = call(str(tmp_path / "lock.txt"), False)
    assert result["got"] == "alpha==1.0\n"
    assert "lock" not in result["invocation"]["module_args"]
    assert call(str(tmp_path / "none.txt"), True)["got"] == ""
    assert call(str(tmp_path / "none.txt"), False)["error"] == "LockMissing"


def test_solving_on_the_host(tmp_path):
    make_wheel(tmp_path / "links", "alpha", "1.0")
    plan = {"packages": ["alpha"], "python": {"version": "3.11", "path": sys.executable}, "indexes": {"offline": True, "find_links": [str(tmp_path / "links")]}}
    params = {"plan": plan, "machine": MACHINE, "prefix": str(tmp_path / "prefix"), "cache_dir": "", "uv": real_uv(), "build_packages": []}
    answer = uv_lock.solve_here(params, True)
    assert answer["solved"] and answer["body"].startswith("alpha==1.0")
    assert not (tmp_path / "prefix").exists(), "check mode made a cache"
    uv_lock.solve_here(params, False)
    assert (tmp_path / "prefix" / "cache" / "uv").is_dir()
    assert uv_lock.solve_here({**params, "uv": "/nowhere/uv"}, True) == {"changed": True, "solved": False}
