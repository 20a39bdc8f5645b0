# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module nvidia_driver on hosts that stand-in tools describe: what it asks, in which order, and where it stops."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import nvidia_driver as module_under_test
from test_driver_packages import Answers

KERNEL = "6.8.0-60-generic"
MADISON = "".join(
    f"{name} | {version}-1ubuntu1 | http://127.0.0.1/x  Packages\n" for name in ("nvidia-open", "cuda-drivers") for version in ("590.48.01", "580.95.05")
)
HEADERS = f"linux-headers-{KERNEL} | 6.8.0-60.63 | http://127.0.0.1/x  Packages\n"
INSTALL = "Inst nvidia-open (580.95.05-1ubuntu1 NVIDIA:now [all])\nInst nvidia-dkms-open (580.95.05-1ubuntu1 NVIDIA:now [amd64])\n"


@pytest.fixture
def converge(monkeypatch, tmp_path):
    """A function that makes a run on a host; ``answers`` go before the usual ones. Nothing on the test machine is looked at or written."""

    def make(answers=None, os_changes=None, check=True, plan=None, headers=False, key=""):
        facts = {"id": "ubuntu", "version": "24.04", "arch": "x86_64", "kernel": KERNEL, "secure_boot": False, "container": None, **(os_changes or {})}
        usual = {
            "madison linux-headers": HEADERS,
            "madison": MADISON,
            "apt-get -q -s": INSTALL,
            "indextargets": f"{__file__}\n",
            "repoquery": "nvidia-open\t3:580.95.05-1.el9\nkernel-devel\t0:5.14.0-503.el9\n",
            "modinfo": (1, "", ""),
        }
        module = SimpleNamespace(
            params={
                "host": {"os": facts, "gpus": [{"index": 0}], "nvswitches": 0},
                "plan": {"wanted": "580.95.05", "branch": "580", "floor": "580", "flavour": "open", **(plan or {})},
                "source": "nvidia",
                "packages": [],
                "compute_only": False,
                "fabric_manager": "auto",
                "persistence": True,
                "hold": True,
                "upgrade": False,
                "repository_pending": False,
                "lock_timeout": 5,
            },
            check_mode=check,
            run_command=Answers({**(answers or {}), **{key: text for key, text in usual.items() if key not in (answers or {})}}),
            tmpdir=str(tmp_path),
        )
        run = module_under_test.Converge(module)
        run.host.root = str(tmp_path)
        monkeypatch.setattr(run, "headers_present", lambda: headers)
        monkeypatch.setattr(run, "put", lambda path, text: pytest.fail(f"wrote {path}"))
        monkeypatch.setattr(run, "signing_key", lambda: (key, False if key else None))
        monkeypatch.setattr(module_under_test, "read", lambda path: None)
        monkeypatch.setattr(module_under_test.shutil, "which", lambda name: None if name == "gcc" else f"/usr/bin/{name}")
        return run

    return make


def changing(run) -> list[str]:
    """Commands that change a host."""
    words = ("install -y", "dnf -y", "apt-mark -o", "dpkg --configure", "update-initramfs", "modprobe", "dkms")
    return [command for command in run.module.run_command.commands if any(word in command for word in words) and " -s " not in command]


def test_check_mode_tells_the_whole_transaction_and_changes_nothing(converge):
    run = converge()
    result = run.run()
    assert result["changed"] and result["version"] == "580.95.05"
    assert result["driver"]["packages"] == {"nvidia-open": "580.95.05-1ubuntu1", "nvidia-dkms-open": "580.95.05-1ubuntu1"}
    assert f"install linux-headers-{KERNEL}" in result["actions"] and "install nvidia-open 580.95.05-1ubuntu1" in result["actions"]
    assert not changing(run)
    simulated = next(command for command in run.module.run_command.commands if " -s " in command)
    assert f"linux-headers-{KERNEL}" in simulated and "PreferencesParts=" in simulated, "the pin takes part in the simulation"


def test_headers_that_no_source_has_stop_the_run_first(converge):
    run = converge({f"madison linux-headers-{KERNEL}": "", "pkgnames linux-headers-": "linux-headers-6.8.0-71-generic\nlinux-headers-generic\n"}, check=False)
    with pytest.raises(IronwheelError, match="Headers on offer: 6.8.0-71-generic") as caught:
        run.run()
    assert caught.value.error == "KernelHeadersMissing"
    assert not changing(run) and any(" update " in command for command in run.module.run_command.commands), "the lists were read anew before giving up"


def test_transaction_with_a_kernel_in_it_is_refused(converge):
    run = converge({"apt-get -q -s": INSTALL + "Inst linux-image-6.8.0-71-generic (6.8.0-71.71 Ubuntu:24.04 [amd64])\n"}, check=False)
    with pytest.raises(IronwheelError, match="linux-image-6.8.0-71-generic") as caught:
        run.run()
    assert caught.value.error == "KernelWouldChange" and not changing(run)


def test_secure_boot_key_that_is_not_enrolled_stops_the_run_first(converge):
    run = converge(os_changes={"secure_boot": True}, check=False, key="/var/lib/dkms/mok.pub")
    with pytest.raises(IronwheelError, match="not enrolled") as caught:
        run.run()
    assert caught.value.error == "SecureBootKeyNotEnrolled" and not changing(run)


def test_failed_transaction_sets_the_holds_again(converge, monkeypatch):
    installed = "nvidia-open\thi \t570.1.1-1ubuntu1\nlibnvidia-compute\thi \t570.1.1-1ubuntu1\n"
    run = converge({"dpkg-query": installed, "showhold": "nvidia-open\n", "Lock::Timeout=5 -o Dpkg": (100, "", "E: disk full")}, check=False, headers=True)
    monkeypatch.setattr(run, "put", lambda path, text: None)
    with pytest.raises(IronwheelError, match="disk full") as caught:
        run.run()
    assert caught.value.error == "PackageInstallFailed"
    marks = [command.rsplit(" ", 2)[-2:] for command in changing(run) if command.startswith("apt-mark")]
    assert marks == [["unhold", "nvidia-open"], ["hold", "nvidia-open"]]


def test_rhel_asks_dnf(converge):
    rocky = {"id": "rocky", "version": "9.5", "kernel": "5.14.0-503.el9.x86_64"}
    table = "Dependencies resolved.\nInstalling:\n nvidia-open  noarch  3:580.95.05-1.el9  cuda  5 k\n\nTransaction Summary\n"
    run = converge({"--assumeno": (1, table, ""), "versionlock list": (1, "", "No such command: versionlock.")}, os_changes=rocky)
    result = run.run()
    assert result["driver"]["packages"] == {"nvidia-open": "3:580.95.05-1.el9"}
    assert "install kernel-devel-5.14.0-503.el9.x86_64" in result["actions"] and "install python3-dnf-plugin-versionlock" in result["actions"]
    assert not changing(run)


def test_bare_host_without_lists_says_what_it_would_install(converge):
    result = converge({"indextargets": ""}).run()
    assert result["changed"] and result["actions"] == ["install nvidia-open (580.95.05, open module) once the package lists are there"]


@pytest.mark.parametrize("secure_boot", [True, False])
def test_module_that_does_not_load_is_an_error(converge, secure_boot):
    refused = (
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
        if secure_boot
        else "modprobe: ERROR: could not insert 'nvidia': No such device"
    )
    run = converge({"modprobe": (1, "", refused)}, os_changes={"kernel": os.uname().release, "secure_boot": secure_boot})
    with pytest.raises(IronwheelError) as caught:
        run.load("nvidia")
    assert caught.value.error == ("SecureBootKeyNotEnrolled" if secure_boot else "ModuleLoadFailed")


def test_module_that_loads_is_said(converge):
    run = converge({"modprobe": ""})
    run.load("nvidia")
    assert run.actions == ["load nvidia"]
