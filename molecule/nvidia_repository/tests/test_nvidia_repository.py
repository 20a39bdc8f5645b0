# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles left behind, and what every step of side_effect.yml came to."""

from __future__ import annotations

import json
import re

import pytest

DRIVER = {
    "firmware-nvidia-gsp",
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver",
    "nvidia-driver-cuda",
    "nvidia-driver-libs",
    "nvidia-modprobe",
    "nvidia-persistenced",
}
OPEN = DRIVER | {"nvidia-open", "nvidia-kernel-open-dkms"}
PROPRIETARY = DRIVER | {"cuda-drivers", "nvidia-kernel-dkms"}
FABRIC = OPEN | {"nvidia-fabricmanager"}


@pytest.fixture
def step(host):
    """A function that reads a step's outcome; ``packages`` becomes ``{name: version}`` of what is installed."""

    def read(name: str) -> dict:
        outcome = json.loads(host.file(f"/var/tmp/steps/{name}.json").content_string)
        lines = [line.split() for line in outcome.get("packages", [])]
        outcome["installed"] = {line[1]: line[2] for line in lines if line[0] in ("ii", "hi")}
        outcome["states"] = {line[1]: line[0] for line in lines}
        return outcome

    return read


def driver_versions(outcome: dict) -> dict[str, str]:
    names = PROPRIETARY | FABRIC
    return {name: version for name, version in outcome["installed"].items() if name in names}


# --- repository ----------------------------------------------------------------------------------------------------------------------------------------------


def test_conflicting_entries_are_switched_off_and_kept_beside(host):
    """``case-C03``: and another distribution's repository is switched off as well."""
    folder = "/etc/apt/sources.list.d"
    guide = host.file(f"{folder}/cuda-ubuntu-guide.list").content_string
    assert re.search(r"^# disabled by ironwheel.gpu, .*: deb \[arch=amd64 signed-by", guide, re.MULTILINE)
    assert "\ndeb [trusted=yes] http://127.0.0.1:8111/unrelated /" in guide, "an unrelated entry of the same file was touched"
    paragraphs = host.file(f"{folder}/nvidia.sources").content_string.split("\n\n")
    assert "Enabled: no" in paragraphs[0] and "neighbour" in paragraphs[1]
    assert host.file(f"{folder}/cuda-debian13-x86_64.list").content_string.startswith("# disabled by ironwheel.gpu, ")
    for name in ("cuda-ubuntu-guide.list", "nvidia.sources", "cuda-debian13-x86_64.list"):
        copies = host.run(f"ls {folder}/{name}.*.bak").stdout.split()
        assert len(copies) == 1, f"{name}: one copy of the original, made by the one run that changed it"
        assert "disabled by" not in host.file(copies[0]).content_string


def test_apt_reads_every_repository_again(host):
    update = host.run("apt-get update -o APT::Update::Error-Mode=any")
    assert update.rc == 0, update.stderr
    # The unrelated repository has no Release file and says so; nothing else may complain.
    assert not [line for line in update.stderr.splitlines() if line.startswith("E:")]


def test_key_that_is_not_the_expected_one_is_refused(step):
    outcome = step("key_mismatch")
    assert outcome["failed"] and outcome["error"] == "RepositoryKeyMismatch"
    assert "EB693B3035CD5710E231E123A4B469963BF863CC" in outcome["msg"]


def test_unreachable_repository_changes_nothing(host, step):
    outcome = step("unreachable")
    assert outcome["failed"] and outcome["error"] == "RepositoryRefreshFailed"
    assert "8112" in outcome["msg"]
    assert "8112" not in host.run("cat /etc/apt/sources.list.d/*").stdout


def test_newer_keyring_package_is_adopted(step):
    outcome = step("keyring_package")
    assert not outcome["failed"]
    assert outcome["repository"]["file"] == "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    again = step("keyring_package_again")
    assert not again["changed"] and again["repository"]["file"] == outcome["repository"]["file"]


# --- driver versions -----------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "packages", "changed"),
    [
        ("up_exact", "580.126.09", OPEN, True),
        ("branch_kept", "580.126.09", OPEN, False),
        ("branch_up", "590.48.01", OPEN, True),
        ("down_exact", "570.211.01", OPEN, True),
        ("floor_kept", "570.211.01", OPEN, False),
        ("floor_raised", "580.126.09", OPEN, True),
        ("proprietary", "580.126.09", PROPRIETARY, True),
        ("open_again", "580.126.09", OPEN, True),
        ("foreign_pin", "590.48.01", OPEN, True),
        ("lock_waited", "580.126.09", OPEN, True),
        ("fabric_manager", "580.126.09", FABRIC, True),
        ("fabric_manager_down", "580.95.05", FABRIC, True),
        ("fabric_manager_gone", "580.126.09", OPEN, True),
        ("build_recovered", "580.126.09", OPEN, True),
    ],
)
def test_every_package_moves_and_is_held(step, name, version, packages, changed):
    outcome = step(name)
    assert not outcome["failed"], outcome.get("msg")
    assert driver_versions(outcome) == dict.fromkeys(packages, f"{version}-1")
    assert set(outcome["holds"]) == packages
    assert outcome["driver"]["version"] == version and outcome["driver"]["built_version"] == version
    assert outcome["changed"] is changed
    assert outcome["driver"]["reboot_required"] is False


def test_foreign_pin_is_removed_and_named(step):
    outcome = step("foreign_pin")
    assert "nvidia-driver-pinning-580" not in outcome["installed"]
    assert any("nvidia-driver-pinning-580" in action and "it pins 580" in action for action in outcome["driver"]["actions"])


def test_fabric_manager_equals_the_driver(step):
    """``case-C06``"""
    for name, version in (("fabric_manager", "580.126.09"), ("fabric_manager_down", "580.95.05")):
        verdicts = {check["name"]: check["verdict"] for check in step(name)["driver"]["checks"]}
        assert step(name)["driver"]["fabric_manager"] == version and verdicts["fabric_manager_version"] == "ok"


def test_held_lock_is_named_then_waited_for(step):
    """``case-E05``"""
    short = step("lock_short")
    assert short["failed"] and short["error"] == "PackageManagerLocked"
    assert re.search(r"held by process \d+ \(python3\) for longer than .* \(3 s\)", short["msg"])
    assert driver_versions(short) == dict.fromkeys(OPEN, "590.48.01-1"), "nothing moved while the lock was held"
    assert not step("lock_waited")["failed"]


def test_failed_build_names_the_log_and_the_reason(step):
    """``case-C13``"""
    outcome = step("build_fails")
    assert outcome["failed"] and outcome["error"] == "DkmsBuildFailed"
    assert re.search(r"error: .*__vm_flags.*/var/lib/dkms/nvidia/595\.45\.04/.*make\.log", outcome["msg"])


def test_missing_headers_are_said_before_anything_changes(step):
    """``case-C11``"""
    outcome = step("headers_missing")
    assert outcome["failed"] and outcome["error"] == "KernelHeadersMissing"
    assert "linux-headers-6.1.0-98-amd64" in outcome["msg"] and "Headers on offer: 6.1" in outcome["msg"]
    assert driver_versions(outcome) == dict.fromkeys(OPEN, "580.126.09-1")


def test_version_that_nobody_has_lists_what_there_is(step):
    outcome = step("unavailable")
    assert outcome["failed"] and outcome["error"] == "DriverVersionUnavailable"
    assert "595.45.04, 590.48.01, 580.126.09, 580.95.05, 570.211.01" in outcome["msg"]


def test_host_without_gpu_is_skipped(step):
    """``case-E09``"""
    outcome = step("no_gpu")
    assert not outcome["failed"] and not outcome["changed"]
    assert outcome["driver"]["state"] == "skipped" and "No NVIDIA GPU" in outcome["driver"]["reason"]


def test_half_upgraded_host_waits_for_a_reboot(step):
    """``case-C01``: nothing is installed again."""
    first, again = step("half_upgraded"), step("half_upgraded_again")
    for outcome in (first, again):
        assert not outcome["failed"], outcome.get("msg")
        assert outcome["driver"]["state"] == "reboot_required" and outcome["driver"]["reboot_required"]
        assert "the loaded kernel module is 580.95.05, the installed driver is 580.126.09" in outcome["driver"]["reason"].lower()
        assert driver_versions(outcome) == dict.fromkeys(OPEN, "580.126.09-1")
    assert not any(action.startswith(("install", "move", "remove")) for action in first["driver"]["actions"])
    assert not again["changed"]


def test_no_reboot_over_a_connection_that_is_not_ssh(host, step):
    """``case-E01``"""
    outcome = step("local_reboot")
    assert not outcome["failed"] and outcome["driver"]["reboot_required"] and not outcome["driver"]["rebooted"]
    assert "The connection is 'containers.podman.podman'" in outcome["driver"]["reason"]
    assert host.file("/proc/driver/nvidia/version").exists, "the host was restarted"


def test_check_mode_tells_and_changes_nothing(host, step):
    outcome = step("check_mode")
    assert outcome["changed"] and outcome["driver"]["version"] == "590.48.01"
    assert outcome["driver"]["packages"]["nvidia-open"] == "590.48.01-1"
    assert host.package("nvidia-open").version == "580.126.09-1"


# --- what the host keeps -------------------------------------------------------------------------------------------------------------------------------------


def test_nobody_else_upgrades_the_driver(host):
    for command in ("apt-get -s upgrade", "apt-get -s dist-upgrade --ignore-hold"):
        moved = [line for line in host.run(command).stdout.splitlines() if line.startswith("Inst") and "nvidia" in line]
        assert not moved, f"{command} would move {moved}"


def test_files_and_services(host):
    assert "Pin: version 580.126.09*" in host.file("/etc/apt/preferences.d/ironwheel-nvidia-driver").content_string
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/ironwheel-nouveau.conf").content_string
    assert host.service("nvidia-persistenced").is_enabled
    assert not host.file("/etc/dkms/nvidia.conf").exists


def test_toolkits_side_by_side(host, step):
    """``case-C16``: 12.8 beside 13.1, which stays byte for byte; no driver came along and nothing global was touched."""
    for name in ("toolkit_13", "toolkit_12"):
        assert not step(name)["failed"], step(name).get("msg")
    sums = host.run("cd /usr/local/cuda-13.1 && sha256sum --quiet -c /var/tmp/steps/toolkit_13.sums")
    assert sums.rc == 0, sums.stdout
    for version in ("12.8", "13.1"):
        assert f"release {version}" in host.check_output(f"/usr/local/cuda-{version}/bin/nvcc --version")
    assert not host.file("/usr/local/cuda").exists
    assert driver_versions(step("toolkit_12")) == dict.fromkeys(OPEN, "580.126.09-1")
