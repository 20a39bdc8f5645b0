# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian's driver on the host: 535.261.03, built by dkms for the kernel whose headers the role installed; and what a move to 535.309.01 would do."""

from __future__ import annotations

import json

import pytest

OLD, NEW = "535.261.03", "535.309.01"
# What the role names, and what comes along in the driver's version.
NAMED = {"nvidia-kernel-dkms", "nvidia-smi", "libcuda1"}


@pytest.fixture
def kernel(host) -> str:
    return host.file("/srv/kernel").content_string.strip()


@pytest.fixture
def result(host) -> dict:
    return json.loads(host.file("/srv/result.json").content_string)


def test_headers_of_the_kernel_and_no_kernel(host, kernel):
    assert host.package(f"linux-headers-{kernel}").is_installed
    images = host.check_output("dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' 'linux-image*' || true")
    assert not [line for line in images.splitlines() if line.startswith("ii")], "a kernel came along"


def test_result_tells_what_ran_and_what_did_not(result, kernel):
    verdicts = {check["name"]: check["verdict"] for check in result["checks"]}
    assert verdicts == {"driver_userspace": "ok", "driver_module_built": "ok", "driver_module_loaded": "not_run", "driver_gpu_count": "not_run"}
    reasons = [check["reason"] for check in result["checks"] if check["verdict"] == "not_run"]
    assert all(kernel in reason for reason in reasons)
    assert (result["version"], result["built_version"], result["userspace_version"]) == (OLD, OLD, OLD)
    assert result["state"] == "ok" and not result["reboot_required"]
    assert {name for name in NAMED if result["packages"][name].startswith(OLD)} == NAMED


def test_move_in_check_mode_names_every_package_and_does_nothing(host):
    moved = json.loads(host.file("/srv/result-moved.json").content_string)
    assert moved["changed"] and moved["version"] == NEW
    assert any(action.startswith(f"move nvidia-kernel-dkms {OLD}") and NEW in action for action in moved["actions"])
    assert {name for name in NAMED if moved["packages"][name].startswith(NEW)} == NAMED
    assert host.package("nvidia-kernel-dkms").version.startswith(OLD)


def test_module_is_built_for_the_kernel(host, kernel):
    status = host.check_output("dkms status").splitlines()
    mine = [line for line in status if kernel in line and OLD in line]
    assert mine and "installed" in mine[0], status
    for name in ("nvidia-current", "nvidia-current-uvm"):
        assert host.check_output(f"modinfo -k {kernel} -F version {name}") == OLD
        assert kernel in host.check_output(f"modinfo -k {kernel} -F vermagic {name}")


def test_user_space_is_complete(host):
    library = host.check_output("readlink -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    assert library.endswith(f"libnvidia-ml.so.{OLD}")
    said = host.run("nvidia-smi")
    assert said.rc != 0 and "couldn't communicate with the NVIDIA driver" in said.stdout


def test_driver_is_held_and_pinned(host, result):
    held = set(host.check_output("apt-mark showhold").split())
    assert held == set(result["held"]) and held >= NAMED
    assert f"Pin: version {OLD}*" in host.file("/etc/apt/preferences.d/ironwheel-nvidia-driver").content_string
    moved = [line for line in host.check_output("apt-get -s dist-upgrade --ignore-hold").splitlines() if line.startswith("Inst") and "nvidia" in line]
    # The persistence daemon has versions of its own and is not pinned.
    assert not [line for line in moved if "persistenced" not in line]


def test_nouveau_is_kept_out_and_the_daemon_is_enabled(host):
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/ironwheel-nouveau.conf").content_string
    assert host.service("nvidia-persistenced").is_enabled
