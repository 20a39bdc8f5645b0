# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of cuda_toolkit: toolkits from wheels with a stand-in for uv, packages with a stand-in for apt, the default link."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_install, toolkit_wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import cuda_toolkit_info, cuda_toolkit_link, cuda_toolkit_packages, cuda_toolkit_wheels
from test_cuda_toolkit import host, plant

HASH = "--hash=sha256:" + "0" * 64
LOCK = f"cuda-toolkit==13.0.3.0 \\\n    {HASH}\nnvidia-cuda-nvcc==13.0.88 \\\n    {HASH}\nnvidia-cuda-runtime==13.0.96 \\\n    {HASH}\n"

# Answers `pip compile` with a lock and `pip install` with an unpacked tree; what it was asked goes to a file beside it.
FAKE_UV = r"""#!{python}
import os, stat, sys
arguments = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "asked"), "a") as log:
    log.write(" ".join(arguments) + "\n")
if os.path.exists(os.path.join(here, "broken")):
    sys.exit("error: Failed to fetch: https://user:secret@index.example/simple/nvidia-nvvm/")
arguments = arguments[arguments.index("pip"):]
if arguments[1] == "compile":
    minor = open(arguments[2]).read().split("==")[1].split(".*")[0]
    sys.stdout.write({lock!r}.replace("13.0", minor))
    sys.exit(0)
minor = [line for line in open(arguments[arguments.index("-r") + 1]) if line.startswith("nvidia-cuda-nvcc==")][0].split("==")[1][:4]
site = arguments[arguments.index("--target") + 1]
parts = {parts!r}
rows = []
for name, places in parts.items():
    path = places.split("|")[-1].replace("lib64", "lib")
    if path == "lib/libcudart.so":
        path = "lib/libcudart.so.13"
    if path.endswith(".so"):
        path += ".13"
    text = "#!/bin/sh\necho Cuda compilation tools, release %s, V%s.88\n" % (minor, minor) if name == "nvcc" else name
    file = os.path.join(site, "nvidia/cu13", path)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "w") as handle:
        handle.write(text)
    rows.append("nvidia/cu13/%s,sha256=x,%d" % (path, len(text)))
info = os.path.join(site, "nvidia_cuda_nvcc-%s.88.dist-info" % minor)
os.makedirs(info)
with open(os.path.join(info, "RECORD"), "w") as handle:
    handle.write("\n".join(rows) + "\nnvidia_cuda_nvcc.dist-info/RECORD,,\n")
"""


class Ended(Exception):
    """What a module said."""


@pytest.fixture
def call(monkeypatch):
    """Call a module in this process; its result, with ``failed`` where it failed."""

    def ended(_self, **result):
        raise Ended(result)

    def run(module, check=False, **arguments):
        monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.exit_json", ended)
        monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.fail_json", lambda self, **result: ended(self, failed=True, **result))
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(Ended) as caught:
            module.main()
        return caught.value.args[0]

    return run


# --- toolkits from wheels: pure parts ---


@pytest.mark.parametrize("version", ["12.8", "12.9", "11.8"])
def test_no_wheels_before_cuda_13(version):
    with pytest.raises(IronwheelError) as caught:
        toolkit_wheels.check_version(version)
    assert caught.value.error == "ToolkitNotInWheels"
    assert version in caught.value.message and "runfile" in caught.value.remedy


@pytest.mark.parametrize("version", ["13", "13.0.2", "latest", "", "13.0 "])
def test_a_version_is_major_and_minor(version):
    with pytest.raises(IronwheelError, match="major.minor"):
        toolkit_wheels.check_version(version)


def test_requirements_pin_the_minor_and_take_disassemblers_where_they_exist():
    old, new = (toolkit_wheels.requirements(version, "minimal") for version in ("13.0", "13.2"))
    assert old[0].endswith("]==13.0.*") and "nvidia-nvjitlink==13.0.*" in old
    assert "nvdisasm" not in old[0] and "cuobjdump,nvdisasm" in new[0]
    assert toolkit_wheels.requirements("13.0", "full")[0] == "cuda-toolkit[all]==13.0.*"


@pytest.mark.parametrize(
    ("lock", "error"),
    [
        (LOCK.replace(f"nvidia-cuda-runtime==13.0.96 \\\n    {HASH}\n", "nvidia-cuda-runtime==13.0.96\n"), "LockWithoutHash"),
        (LOCK.replace("nvidia-cuda-nvcc", "nvidia-cuda-x"), "LockWithoutCompiler"),
        (LOCK.replace("13.0.88", "13.3.73"), "LockForAnotherToolkit"),
        ("", "LockWithoutCompiler"),
    ],
)
def test_a_lock_that_is_none(lock, error):
    with pytest.raises(IronwheelError) as caught:
        toolkit_wheels.check_lock("13.0", lock)
    assert caught.value.error == error


def test_version_json_reads_as_nvidias_own():
    document = toolkit_wheels.version_json("13.0", toolkit_wheels.check_lock("13.0", LOCK))
    assert document["cuda"] == {"name": "CUDA SDK", "version": "13.0.3"}
    assert document["cuda_nvcc"]["version"] == "13.0.88"
    assert document["cuda_cudart"]["version"] == "13.0.96"


def test_a_failed_swap_leaves_the_old_toolkit(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(OSError, match="new"):
        toolkit_wheels.swap_in(str(tmp_path / "new"), str(tmp_path / "old"), str(tmp_path / "trash"))
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


# --- toolkits from wheels: the module ---


@pytest.fixture
def uv(tmp_path):
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(FAKE_UV.format(python=sys.executable, lock=LOCK, parts=toolkit_install.PARTS))
    program.chmod(0o755)
    return program


@pytest.fixture
def make(call, uv, tmp_path):
    def run(*versions, check=False, **more):
        return call(cuda_toolkit_wheels, check, versions=list(versions or ["13.0"]), prefix=str(tmp_path / "toolkits"), uv=str(uv), **more)

    return run


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.exists() else []


def snapshot(path: Path) -> dict:
    return {str(file.relative_to(path)): (file.lstat().st_mtime_ns, file.lstat().st_ino) for file in path.rglob("*")}


def test_wheels_become_a_toolkit_and_then_nothing_changes(make, tmp_path):
    result = make()
    home = tmp_path / "toolkits" / "cuda-13.0"
    assert result["changed"] and result["toolkits"][0]["full_version"] == "13.0.88"
    assert toolkit_install.missing_parts(str(home)) == []
    assert os.readlink(home / "lib") == "lib64" and os.readlink(home / "lib64/libcudart.so") == "libcudart.so.13"
    assert os.access(home / "bin/nvcc", os.X_OK)
    assert (home / "ironwheel.lock").read_text() == LOCK
    assert names(tmp_path / "toolkits") == [".lock", "cuda-13.0"]
    before = snapshot(home)
    assert not make()["changed"]
    assert snapshot(home) == before


def test_check_mode_changes_nothing_and_asks_nobody(make, tmp_path, uv):
    result = make("13.0", "13.3", check=True)
    assert result["changed"] and [entry["full_version"] for entry in result["toolkits"]] == [None, None]
    assert len(result["actions"]) == 2 and "cuda-13.3" in result["diff"]["after"]
    assert not (tmp_path / "toolkits").exists() and not (uv.parent / "asked").exists()


def test_another_version_leaves_the_first_untouched(make, tmp_path):
    make("13.0")
    before = snapshot(tmp_path / "toolkits" / "cuda-13.0")
    result = make("13.0", "13.3")
    assert [entry["changed"] for entry in result["toolkits"]] == [False, True]
    assert snapshot(tmp_path / "toolkits" / "cuda-13.0") == before


@pytest.mark.parametrize("damage", ["bin/ptxas", "include/cuda.h", "share/wheels/nvidia_cuda_nvcc-13.0.88.dist-info/RECORD"])
def test_a_damaged_toolkit_is_made_anew(make, tmp_path, damage):
    make()
    (tmp_path / "toolkits/cuda-13.0" / damage).unlink()
    result = make()
    assert result["changed"] and damage in result["actions"][0]
    assert (tmp_path / "toolkits/cuda-13.0" / damage).exists()
    assert not make()["changed"]


def test_a_cut_file_counts_as_damage(make, tmp_path):
    make()
    (tmp_path / "toolkits/cuda-13.0/nvvm/bin/cicc").write_text("")
    assert make()["changed"]


def test_the_full_set_replaces_the_minimal_one_and_not_the_other_way(make):
    make()
    assert make(packages="full")["changed"]
    assert not make(packages="minimal")["changed"]


def test_a_lock_of_ones_own_is_used_and_another_one_makes_it_anew(make, uv):
    assert make(locks={"13.0": LOCK})["changed"]
    assert "compile" not in (uv.parent / "asked").read_text()
    assert not make(locks={"13.0": LOCK})["changed"]
    assert make(locks={"13.0": LOCK + "# newer\n"})["changed"]
    assert make(locks={"13.3": LOCK})["error"] == "UnknownVersion"


def test_hashes_are_required_and_nothing_is_built(make, uv):
    make()
    compiled, installed = (uv.parent / "asked").read_text().splitlines()
    assert "--generate-hashes" in compiled and "--no-build" in compiled
    assert "--require-hashes" in installed and "--no-deps" in installed and "--no-build" in installed


def test_a_failing_uv_leaves_nothing_and_hides_the_password(make, uv, tmp_path):
    (uv.parent / "broken").touch()
    result = make()
    assert result["failed"] and "nvidia-nvvm" in result["msg"] and "secret" not in result["msg"]
    assert names(tmp_path / "toolkits") == [".lock"]


def test_a_failed_repair_keeps_what_was_there(make, uv, tmp_path):
    make()
    (tmp_path / "toolkits/cuda-13.0/bin/ptxas").unlink()
    (uv.parent / "broken").touch()
    assert make()["failed"]
    assert (tmp_path / "toolkits/cuda-13.0/bin/nvcc").exists()


def test_what_a_killed_run_left_is_cleared(make, tmp_path):
    leftover = tmp_path / "toolkits" / ".cuda-13.0.abc"
    leftover.mkdir(parents=True)
    make()
    assert not leftover.exists()


def test_a_folder_of_somebody_else_is_left_alone(make, tmp_path):
    (tmp_path / "toolkits/cuda-13.0").mkdir(parents=True)
    result = make()
    assert result["error"] == "PathInUse" and "cuda_toolkit_prefix" in result["remedy"]
    assert names(tmp_path / "toolkits/cuda-13.0") == []


def test_cuda_12_is_refused_before_anything_happens(make, tmp_path, uv):
    assert make("13.0", "12.8")["error"] == "ToolkitNotInWheels"
    assert not (tmp_path / "toolkits").exists() and not (uv.parent / "asked").exists()


def test_too_little_space_is_said_with_both_numbers(make, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_toolkit_wheels, "NEEDED_MIB", {"minimal": 10**12, "full": 10**12})
    result = make()
    assert result["error"] == "DiskTooSmall" and str(10**12) in result["msg"]
    assert names(tmp_path / "toolkits") == [".lock"]


def test_toolkits_are_readable_for_everybody(make, tmp_path):
    old = os.umask(0o077)
    try:
        make()
    finally:
        os.umask(old)
    for path in [tmp_path / "toolkits", *(tmp_path / "toolkits/cuda-13.0").rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o444 == 0o444, path


# --- what a host lacks ---


@pytest.fixture
def info(call, tmp_path, monkeypatch):
    monkeypatch.setattr(toolkit_install, "DEFAULT_LINK", str(tmp_path / "cuda"))

    def run(*versions, **more):
        arguments = {"host": host(root=False), "prefix": str(tmp_path), "source": "wheels", **more}
        return call(cuda_toolkit_info, versions=list(versions), **arguments)

    return run


def grown(tmp_path: Path, version: str, nvcc: str) -> Path:
    home = tmp_path / "toolkits" / f"cuda-{version}"
    plant(home, version, {"source": "runfile", "packages": "full"})
    (home / "version.json").write_text(json.dumps({"cuda": {"version": version + ".1"}}))
    (home / "bin/nvcc").write_text(nvcc)
    (home / "bin/nvcc").chmod(0o755)
    return home


ANSWER = "#!/bin/sh\n[ $1 = --version ] && echo release 13.0, V13.0.88 && exit\n"


def test_info_of_a_host_with_one_of_two(info, tmp_path):
    home = grown(tmp_path, "13.0", ANSWER)
    (tmp_path / "cuda").symlink_to("toolkits/cuda-13.0")
    result = info("13.0", "13.2")
    assert not result["changed"]
    assert [(entry["version"], entry["present"], entry["nvcc_version"]) for entry in result["toolkits"]] == [("13.0", True, "13.0.88"), ("13.2", False, None)]
    assert result["steps"] == ["wheels", "verify"] and result["wheels"] == ["13.2"]
    assert result["default_link"] == str(home) and result["folder"] == str(tmp_path / "toolkits")


def test_info_requires_what_was_installed(info, tmp_path):
    grown(tmp_path, "13.0", "#!/bin/sh\nexit 3\n")
    result = info("13.0", require=True)
    assert result["error"] == "IncompleteToolkit" and "nvcc" in result["msg"]


def test_a_compiler_that_cannot_compile_is_an_error_with_its_words(info, tmp_path):
    grown(tmp_path, "13.0", ANSWER + "echo 'fatal error: bits/c++config.h' >&2; exit 1\n")
    result = info("13.0", compile=["13.0"])
    assert result["error"] == "ToolkitDoesNotCompile" and "bits/c++config.h" in result["msg"] and "g++ 13.3.0" in result["msg"]


def test_a_compiler_that_compiles_is_ok_and_none_is_not_run(info, tmp_path):
    grown(tmp_path, "13.0", ANSWER + 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    assert info("13.0", compile=["13.0"])["toolkits"][0]["compiled"] == "ok"
    facts = host(root=False, gcc=None)
    assert info("13.0", compile=["13.0"], host=facts)["toolkits"][0]["compiled"] == "not_run: the host has no C++ compiler"


# --- packages ---


class FakeApt:
    """Answers what the module asks apt and dpkg: ``installed`` names, ``simulated`` lines, ``offered`` names."""

    def __init__(self, installed=(), simulated="", offered=(), failures=0):
        self.installed, self.simulated, self.offered, self.failures = list(installed), simulated, list(offered), failures
        self.asked = []

    def __call__(self, command, **_options):
        self.asked.append(" ".join(command))
        text = self.asked[-1]
        if command[0] == "dpkg-query":
            return 0, "".join(f"{name}\tii \t1\n" for name in self.installed), ""
        if command[:2] == ["apt-cache", "madison"]:
            return 0, "".join(f"{name} | 1 | file:/x Packages\n" for name in command[2:] if name in self.offered), ""
        if command[:2] == ["apt-cache", "pkgnames"]:
            return 0, "\n".join(name for name in self.offered if name.startswith(command[2])), ""
        if " -s " in text:
            return 0, self.simulated, ""
        if " install " in text or " purge " in text:
            self.failures -= 1
            return (100, "", "E: 404 Not Found") if self.failures >= 0 else (0, "", "")
        return 0, "", ""

    def changes(self) -> list[str]:
        return [text for text in self.asked if (" install " in text or " purge " in text) and " -s " not in text]


@pytest.fixture
def packages(call, monkeypatch):
    def run(apt, *names, check=False, **more):
        monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.run_command", lambda self, command, **options: apt(command, **options))
        return call(cuda_toolkit_packages, check, packages=list(names), manager="apt", **more)

    return run


INST = "Inst cuda-nvcc-12-8 (12.8.93-1 x [amd64])\nInst cuda-crt-12-8 (12.8.93-1 x [amd64])\nConf cuda-nvcc-12-8 (12.8.93-1 x [amd64])\n"


def test_packages_are_installed_without_recommends(packages):
    apt = FakeApt(simulated=INST, offered=["cuda-nvcc-12-8"])
    result = packages(apt, "cuda-nvcc-12-8")
    assert result["changed"] and result["installed"] == ["cuda-crt-12-8", "cuda-nvcc-12-8"]
    assert len(apt.changes()) == 1 and "--no-install-recommends" in apt.changes()[0]


def test_check_mode_simulates_only(packages):
    apt = FakeApt(simulated=INST, offered=["cuda-nvcc-12-8"])
    result = packages(apt, "cuda-nvcc-12-8", check=True)
    assert result["changed"] and result["diff"]["after"] == "cuda-crt-12-8\ncuda-nvcc-12-8\n"
    assert apt.changes() == []


@pytest.mark.parametrize(
    ("more", "error", "word"),
    [
        ("Inst cuda-drivers (570 x [amd64])\n", "DriverWouldChange", "cuda-drivers"),
        ("Inst libnvidia-compute-580 [580.1] (580.2 x [amd64])\n", "DriverWouldChange", "libnvidia-compute-580"),
        ("Remv important [1]\n", "PackagesWouldBeRemoved", "important"),
    ],
)
def test_nothing_is_done_when_more_would_happen(packages, more, error, word):
    apt = FakeApt(simulated=INST + more, offered=["cuda-nvcc-12-8"])
    result = packages(apt, "cuda-nvcc-12-8")
    assert result["error"] == error and word in result["msg"] and apt.changes() == []


def test_a_toolkit_that_the_repository_lacks(packages):
    apt = FakeApt(offered=["cuda-nvcc-13-0", "cuda-nvcc-13-1"])
    result = packages(apt, "cuda-nvcc-12-8", repository="https://x/")
    assert result["error"] == "ToolkitNotInRepository"
    assert all(word in result["msg"] for word in ("https://x/", "cuda-nvcc-12-8", "13.0, 13.1", "runfile"))


def test_stale_lists_are_read_again_once(packages):
    apt = FakeApt(simulated=INST, offered=["cuda-nvcc-12-8"], failures=1)
    assert packages(apt, "cuda-nvcc-12-8")["changed"]
    assert sum(" update " in text for text in apt.asked) == 1
    apt = FakeApt(simulated=INST, offered=["cuda-nvcc-12-8"], failures=2)
    result = packages(apt, "cuda-nvcc-12-8")
    assert result["error"] == "PackageManagerFailed" and "404" in result["msg"]


def test_a_damaged_toolkit_is_installed_again_with_what_it_depends_on(packages):
    apt = FakeApt(installed=["cuda-nvcc-12-8", "cuda-crt-12-8", "cuda-nvcc-13-0", "bash"])
    result = packages(apt, "cuda-nvcc-12-8")
    assert result["changed"] and result["installed"] == ["cuda-crt-12-8", "cuda-nvcc-12-8"]
    assert "--reinstall" in apt.changes()[0] and "13-0" not in apt.changes()[0]


def test_removal(packages):
    apt = FakeApt(installed=["cuda-nvcc-12-8"], simulated="Purg cuda-nvcc-12-8 [12.8.93-1]\n")
    result = packages(apt, "cuda-nvcc-12-8", "cuda-crt-12-8", state="absent")
    assert result["removed"] == ["cuda-nvcc-12-8"] and len(apt.changes()) == 1
    apt = FakeApt(installed=["cuda-nvcc-12-8"], simulated="Purg cuda-nvcc-12-8 [1]\nRemv mine [1]\n")
    assert packages(apt, "cuda-nvcc-12-8", state="absent")["error"] == "PackagesWouldBeRemoved" and apt.changes() == []
    assert not packages(FakeApt(), "cuda-nvcc-12-8", state="absent")["changed"]


# --- the default link ---


@pytest.fixture
def link(call, tmp_path):
    for version in ("12.8", "13.0"):
        (tmp_path / f"cuda-{version}").mkdir()

    def run(target, check=False):
        return call(
            cuda_toolkit_link, check, target=target and str(tmp_path / target), path=str(tmp_path / "cuda"), alternative="ironwheel-no-such-alternative"
        )

    return run


def test_the_link_is_made_moved_and_removed(link, tmp_path):
    path = tmp_path / "cuda"
    assert link("cuda-12.8", check=True)["changed"] and not path.exists()
    assert link("cuda-12.8")["changed"] and path.resolve().name == "cuda-12.8"
    assert not link("cuda-12.8")["changed"]
    assert link("cuda-13.0")["changed"] and path.resolve().name == "cuda-13.0"
    assert link("")["target"] is None and not os.path.lexists(path)
    assert not link("")["changed"]


def test_a_relative_link_that_leads_there_stays_as_it_is(link, tmp_path):
    (tmp_path / "cuda").symlink_to("cuda-12.8")
    assert not link("cuda-12.8")["changed"] and os.readlink(tmp_path / "cuda") == "cuda-12.8"


def test_a_folder_in_its_place_is_not_touched(link, tmp_path):
    (tmp_path / "cuda").mkdir()
    assert link("cuda-12.8")["error"] == "PathInUse"


def test_a_toolkit_that_is_not_there_is_no_target(link):
    assert link("cuda-9.9")["error"] == "TargetMissing"
    assert link("cuda-9.9", check=True)["changed"]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("Name: cuda\nLink: /usr/local/cuda\nStatus: manual\nBest: /usr/local/cuda-13.1\n", "manual"),
        ("Name: cuda\nStatus: auto\n", "auto"),
        ("cuda - status is auto.\n link currently points to /usr/local/cuda-13.1\n", "auto"),
        ("cuda - status is manual.\n", "manual"),
        ("", ""),
    ],
)
def test_mode_of_the_alternative(text, mode):
    assert cuda_toolkit_link.alternative_mode(text) == mode
