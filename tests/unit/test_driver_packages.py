# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt and dnf: what is asked of them and what is made of their answers. The answers are those of apt 2.6 and dnf 4.14."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import package_managers as managers
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

CASES = Path(__file__).parent / "fixtures/cases"
LOCKED = (
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 ({name})\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?\n"
)


class Answers:
    """Stands in for ``run_command``: answers by the first key that occurs in the command, and remembers the commands. A list gives one answer a call."""

    def __init__(self, answers: dict):
        self.answers = answers
        self.commands: list[str] = []

    def __call__(self, arguments, environ_update=None):
        command = " ".join(arguments)
        self.commands.append(command)
        for key, answer in self.answers.items():
            if key in command:
                if isinstance(answer, list):
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                return answer if isinstance(answer, tuple) else (0, answer, "")
        return 0, "", ""


class Clock:
    """A clock that sleeping moves."""

    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def apt(answers: dict, timeout: int = 60) -> managers.Apt:
    clock = Clock()
    return managers.Apt(Answers(answers), timeout, clock.sleep, clock)


def dnf(answers: dict) -> managers.Dnf:
    clock = Clock()
    return managers.Dnf(Answers(answers), 60, clock.sleep, clock)


# --- the lock ------------------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [pytest.param("E05", id="case-E05")])
def test_held_lock_is_waited_for(reported):
    content = json.loads((CASES / f"{reported}.json").read_text())
    given, expected = content["input"], content["expected"]["checks"]
    locked = (100, "", LOCKED.format(name=given["lock_holder"]))
    manager = apt({"install": [locked] * (given["held_s"] // 2) + [(0, "done", "")]}, timeout=given["held_s"] + 10)
    status, stdout, _stderr = manager.transaction({"nvidia-open": None}, [])
    assert (status != 0) is expected["failed"] and stdout == "done"
    assert (manager.clock() >= given["held_s"]) is expected["waits"]
    assert manager.waited_for == f"process 812 ({given['lock_holder']})"
    assert f"DPkg::Lock::Timeout={given['held_s'] + 10}" in manager.run.commands[1]


def test_lock_that_stays_held_is_an_error_that_names_the_holder():
    manager = apt({"install": (100, "", LOCKED.format(name="unattended-upgr"))}, timeout=10)
    with pytest.raises(IronwheelError, match=r"process 812 \(unattended-upgr\) for longer than the limit \(10 s\)") as caught:
        manager.transaction({"nvidia-open": None}, [])
    assert caught.value.error == "PackageManagerLocked"


@pytest.mark.parametrize(
    "message",
    [
        "dpkg: error: dpkg frontend lock was locked by another process with pid 99\n",
        "E: Unable to lock directory /var/lib/apt/lists/\n",
        "Failed to obtain the transaction lock (logged in as: root).\n",
    ],
)
def test_every_kind_of_lock_is_waited_for(message):
    manager = apt({"--configure": [(2, "", message), (0, "", "")]})
    assert manager.repair()[0] == 0 and len(manager.run.commands) == 2


def test_other_failures_are_not_waited_for():
    manager = apt({"install": (100, "", "E: Unable to correct problems\n")})
    assert manager.transaction({"a": None}, [])[0] == 100 and manager.clock() == 0


# --- apt -----------------------------------------------------------------------------------------------------------------------------------------------------


def test_apt_installed_packages_and_half_configured_ones():
    text = "libcuda1\tii \t580.95.05-1\nnvidia-open\thi \t580.95.05-1\nnvidia-kernel-open-dkms\tiF \t580.95.05-1\nold\trc \t1\ngone\tun \t\n"
    versions, broken = apt({"dpkg-query": text}).installed()
    assert versions == {"libcuda1": "580.95.05-1", "nvidia-open": "580.95.05-1", "nvidia-kernel-open-dkms": "580.95.05-1"}
    assert broken == ["nvidia-kernel-open-dkms"]


def test_apt_available_versions():
    text = (
        "nvidia-open | 590.48.01-1 | http://127.0.0.1/x  Packages\n"
        "nvidia-open | 580.95.05-1 | http://127.0.0.1/x  Packages\n"
        "nvidia-open | 580.95.05-1 | http://127.0.0.1/y  Packages\n"
        "nvidia-graphics | 1 | http://127.0.0.1/x Sources\n"
    )
    assert apt({"madison": text}).available(["nvidia-open"]) == {"nvidia-open": ["590.48.01-1", "580.95.05-1"]}
    assert apt({}).available([]) == {}


def test_apt_transaction_is_explicit():
    manager = apt({"showauto": "libc6\nnvidia-persistenced\n"})
    manager.transaction({"nvidia-open": "580.95.05-1", "nvidia-persistenced": None}, ["cuda-drivers"])
    command = manager.run.commands[1]
    assert manager.run.commands[2].endswith("auto nvidia-persistenced"), "a dependency stays one"
    assert command.endswith(
        "install -y --no-install-recommends --allow-downgrades --allow-change-held-packages nvidia-open=580.95.05-1 nvidia-persistenced cuda-drivers-"
    )
    assert "--force-confold" in command


def test_apt_simulation():
    text = (
        "Inst libcuda1 [580.95.05-1] (590.48.01-1 NVIDIA CUDA:now [amd64]) []\n"
        "Inst linux-image-6.1.0-50-amd64 (6.1.192-3 Debian-Security:12/oldstable-security [amd64])\n"
        "Remv cuda-drivers [580.95.05-1]\nConf libcuda1 (590.48.01-1 NVIDIA CUDA:now [amd64])\n"
    )
    assert apt({"-s": text}).simulate({"x": None}, [], "/tmp/pins") == [
        ("install", "libcuda1", "590.48.01-1"),
        ("install", "linux-image-6.1.0-50-amd64", "6.1.192-3"),
        ("remove", "cuda-drivers", ""),
        ("configure", "libcuda1", "590.48.01-1"),
    ]


def test_apt_says_why_there_is_no_solution():
    text = (
        "Reading…\nThe following packages have unmet dependencies:\n nvidia-open : Depends: nvidia-driver (= 580.95.05-1) but 590.48.01-1 is to be installed\n"
    )
    with pytest.raises(IronwheelError, match="nvidia-open : Depends: nvidia-driver") as caught:
        apt({"-s": (100, text, "E: Unable to correct problems, you have held broken packages.")}).simulate({"nvidia-open": "580.95.05-1"}, [])
    assert caught.value.error == "PackageConflict"


def test_apt_update_fails_with_its_reason():
    manager = apt({"update": (100, "Err:1 http://127.0.0.1/x InRelease\n", "E: The repository 'http://127.0.0.1/x InRelease' is not signed.\n")})
    with pytest.raises(IronwheelError, match="is not signed"):
        manager.update()


def test_apt_holds():
    manager = apt({"showhold": "nvidia-open\nlibcuda1:amd64\n"})
    assert manager.held() == {"nvidia-open": "nvidia-open", "libcuda1": "libcuda1:amd64"}
    manager.unhold({"libcuda1": "libcuda1:amd64"})
    manager.hold(["b", "a"], {})
    manager.hold([], {})
    assert [command.split(" ", 3)[3] for command in manager.run.commands[1:]] == ["unhold libcuda1:amd64", "hold a b"]


def test_apt_lists(tmp_path):
    there = tmp_path / "Packages"
    there.write_text("")
    assert apt({"indextargets": f"{there}\n"}).has_lists([])
    assert not apt({"indextargets": f"{there}\n{tmp_path}/missing\n"}).has_lists([])
    assert not apt({"indextargets": ""}).has_lists([])


# --- dnf -----------------------------------------------------------------------------------------------------------------------------------------------------

DNF_TABLE = """\
Last metadata expiration check: 0:00:36 ago on Tue Dec  1 03:40:00 2026.
Dependencies resolved.
================================================================================
 Package                     Arch       Version                Repository  Size
================================================================================
Installing:
 cuda-drivers                noarch     3:590.48.01-1.el9      local      5.5 k
Installing dependencies:
 kernel-core                 noarch     5.14.0-570.12.1.el9_6  local      5.4 k
Downgrading:
 nvidia-driver               noarch     3:590.48.01-1.el9      local      5.4 k
Removing dependent packages:
 nvidia-open                 noarch     3:590.48.01-1.el9      @local       0

Transaction Summary
================================================================================
Install  2 Packages
Operation aborted.
"""


def test_dnf_transaction_table():
    assert dnf({"--assumeno": (1, DNF_TABLE, "")}).simulate({"cuda-drivers": "3:590.48.01-1.el9"}, []) == [
        ("install", "cuda-drivers", "3:590.48.01-1.el9"),
        ("install", "kernel-core", "5.14.0-570.12.1.el9_6"),
        ("install", "nvidia-driver", "3:590.48.01-1.el9"),
        ("remove", "nvidia-open", ""),
    ]


def test_dnf_says_why_there_is_no_solution():
    with pytest.raises(IronwheelError, match="Unable to find a match: nvidia-open-3:999-1"):
        dnf({"--assumeno": (1, "No match for argument: nvidia-open-3:999-1\n", "Error: Unable to find a match: nvidia-open-3:999-1\n")}).simulate(
            {"nvidia-open": "3:999-1"}, []
        )


def test_dnf_versions_keep_their_epoch():
    text = "kernel-devel\t0:5.14.0-570.12.1.el9_6\nnvidia-open\t3:570.211.01-1.el9\nnvidia-open\t3:580.95.05-1.el9\n"
    manager = dnf({"repoquery": text})
    assert manager.available(["nvidia-open", "kernel-devel"]) == {
        "kernel-devel": ["5.14.0-570.12.1.el9_6"],
        "nvidia-open": ["3:570.211.01-1.el9", "3:580.95.05-1.el9"],
    }
    assert "--disable-modular-filtering" in manager.run.commands[0] and "--disableplugin=versionlock" in manager.run.commands[0]


def test_dnf_locks():
    text = "nvidia-open-3:590.48.01-1.el9.*\nkmod-nvidia-open-dkms-3:590.48.01-1.el9.*\n*nvidia*580*\n"
    held = dnf({"versionlock list": text}).held()
    assert held == {
        "nvidia-open": "nvidia-open-3:590.48.01-1.el9.*",
        "kmod-nvidia-open-dkms": "kmod-nvidia-open-dkms-3:590.48.01-1.el9.*",
        "*nvidia*580*": "*nvidia*580*",
    }
    manager = dnf({})
    manager.hold(["nvidia-open"], {"nvidia-open": "3:590.48.01-1.el9"})
    manager.unhold({"nvidia-open": "nvidia-open-3:580.95.05-1.el9.*"})
    assert manager.run.commands == ["dnf -y versionlock add --raw nvidia-open-3:590.48.01-1.el9.*", "dnf -y versionlock delete nvidia-open-3:580.95.05-1.el9.*"]


def test_dnf_streams():
    rows = ["l", "Name          Stream      Profiles Summary", "nvidia-driver latest-dkms [d] default x", "nvidia-driver open-dkms [e] default  x"]
    text = "\n".join([*rows, "nvidia-driver 570-open  default  x", ""])
    manager = dnf({"module list": text})
    assert manager.streams("nvidia-driver") == {"latest-dkms": False, "open-dkms": True, "570-open": False}
    assert dnf({"module list": (1, "", "Error: No matching Modules to list")}).streams("nvidia-driver") == {}
    manager.switch_stream("nvidia-driver", "570-open")
    assert manager.run.commands[1:] == ["dnf -y module reset nvidia-driver", "dnf -y module enable nvidia-driver:570-open"]
    with pytest.raises(IronwheelError, match="module enable nvidia-driver:1-open failed"):
        dnf({"enable": (1, "", "Error: Problems in request")}).switch_stream("nvidia-driver", "1-open")


def test_dnf_takes_the_old_flavour_away_only_after_the_new_one_is_there():
    manager = dnf({"rpm -qa": "kmod-nvidia-latest-dkms\t3:570.1-1\n"})
    manager.transaction({"nvidia-open": "3:580.95.05-1.el9"}, ["kmod-nvidia-latest-dkms", "cuda-drivers"])
    assert manager.run.commands[0].endswith("--allowerasing --setopt=install_weak_deps=False install nvidia-open-3:580.95.05-1.el9")
    assert manager.run.commands[2] == "dnf -y remove --noautoremove kmod-nvidia-latest-dkms"
    failing = dnf({"rpm -qa": "kmod-nvidia-latest-dkms\t3:570.1-1\n", "install": (1, "", "Error: Unable to find a match")})
    assert failing.transaction({"nvidia-open": "3:1-1"}, ["kmod-nvidia-latest-dkms"])[0] == 1
    assert not [command for command in failing.run.commands if " remove " in command]


def test_file_is_written_at_once(tmp_path):
    path = tmp_path / "new/folder/file"
    managers.write_file(str(path), b"text")
    assert path.read_bytes() == b"text" and path.stat().st_mode & 0o777 == 0o644 and list(path.parent.iterdir()) == [path]
