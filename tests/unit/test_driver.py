# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions about the driver, for hosts that no test here can be: Ubuntu, RHEL, arm64, Secure Boot, NVSwitch, a reboot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import driver
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

CASES = Path(__file__).parent / "fixtures/cases"
SETTINGS = {"source": "nvidia", "compute_only": False, "fabric_manager": "auto", "persistence": True, "hold": True, "upgrade": False, "packages": []}
UBUNTU = {"id": "ubuntu", "version": "24.04", "kernel": "6.8.0-60-generic", "arch": "x86_64"}
ROCKY = {"id": "rocky", "version": "9.5", "kernel": "5.14.0-503.11.1.el9_5.x86_64", "arch": "x86_64"}


def case(name: str) -> tuple[dict, dict]:
    content = json.loads((CASES / f"{name}.json").read_text())
    return content["input"], content["expected"]


def a_host(**changes) -> dict:
    return {"os": dict(UBUNTU), "gpus": [{"index": 0}], "nvswitches": 0, "vgpu": False, "driver": {"state": "absent"}, **changes}


def a_plan(**changes) -> dict:
    return {"managed": True, "wanted": None, "branch": None, "floor": "580", "flavour": "open", "reason": "", **changes}


def a_request(os_facts=None, settings=None, nvswitches=0, **plan) -> driver.Request:
    return driver.request_from(a_host(os=os_facts or dict(UBUNTU), nvswitches=nvswitches), a_plan(**plan), {**SETTINGS, **(settings or {})})


def offer(*versions: str, name: str = "nvidia-open", form: str = "{}-1ubuntu1") -> dict[str, list[str]]:
    return {name: [form.format(version) for version in versions]}


# --- whether there is anything to do --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [pytest.param("E09", id="case-E09")])
def test_host_without_gpu_is_skipped(reported):
    given, expected = case(reported)
    decision = driver.applicability(a_host(gpus=given["pci_nvidia"]), None)
    assert (decision.state == "skipped") is expected["checks"]["skipped"] and not decision.act
    assert "No NVIDIA GPU" in decision.reason


@pytest.mark.parametrize("reported", [pytest.param("E11", id="case-E11")])
def test_wsl_belongs_to_windows(reported):
    given, expected = case(reported)
    decision = driver.applicability(a_host(os={**UBUNTU, "kernel": given["kernel"], "wsl": True}), a_plan(managed=False))
    assert decision.state == expected["checks"]["driver_role"] and "Windows" in decision.reason


@pytest.mark.parametrize("reported", [pytest.param("E12", id="case-E12")])
def test_container_guest(reported):
    given, expected = case(reported)
    decision = driver.applicability(a_host(os={**UBUNTU, "container": given["virtualization_type"]}), a_plan(managed=False))
    assert decision.state in expected["checks"]["driver_role"] and "lxc" in decision.reason
    assert driver.untouched_result(decision, a_host())["reboot_required"] is expected["checks"]["reboot"]


@pytest.mark.parametrize("reported", [pytest.param("E13", id="case-E13")])
def test_vgpu_guest_needs_grid_driver(reported):
    given, expected = case(reported)
    with pytest.raises(IronwheelError) as caught:
        driver.applicability(a_host(vgpu=True), a_plan(wanted=given["driver_wanted"].split("-")[1]))
    assert caught.value.error == expected["error"]
    working = driver.applicability(a_host(vgpu=True, driver={"state": "ok"}), a_plan())
    assert working.state == "skipped" and "GRID" in working.reason


@pytest.mark.parametrize("state", ["ok", "reboot_required"])
def test_runfile_driver_that_serves_is_left_alone(state):
    found = {"state": state, "userspace_version": "580.95.05", "packages": {}}
    assert driver.applicability(a_host(driver=found), a_plan(wanted="580.95.05")).state == "unmanaged"
    assert driver.applicability(a_host(driver=found), a_plan(wanted="580")).state == "unmanaged"
    assert driver.applicability(a_host(driver=found), a_plan(floor="570")).state == "unmanaged"
    with pytest.raises(IronwheelError, match="overwrite its files") as caught:
        driver.applicability(a_host(driver=found), a_plan(wanted="590"))
    assert caught.value.error == "DriverNotFromPackages"


# --- names and versions --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.95.05-0ubuntu0.24.04.1", "580.95.05"),
        ("3:590.48.01-1.el9", "590.48.01"),
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("1:610.57.04-1ubuntu1", "610.57.04"),
        ("", ""),
        ("latest", ""),
    ],
)
def test_version_inside_a_package_version(text, version):
    assert driver.upstream(text) == version


@pytest.mark.parametrize(
    ("os_id", "source", "flavour", "compute_only", "branch", "names"),
    [
        ("ubuntu", "nvidia", "open", False, 580, ("nvidia-open",)),
        ("ubuntu", "nvidia", "proprietary", False, 580, ("cuda-drivers",)),
        ("ubuntu", "nvidia", "open", True, 580, ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580")),
        ("ubuntu", "nvidia", "proprietary", True, 580, ("nvidia-dkms-580", "libnvidia-compute-580", "nvidia-utils-580")),
        ("ubuntu", "nvidia", "open", True, 590, ("nvidia-dkms-open", "libnvidia-compute")),
        ("ubuntu", "distribution", "open", False, 580, ("nvidia-driver-580-server-open",)),
        ("ubuntu", "distribution", "proprietary", True, 580, ("nvidia-headless-580-server", "nvidia-utils-580-server")),
        ("debian", "nvidia", "open", True, 590, ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")),
        ("debian", "local", "open", False, 590, ("nvidia-open",)),
        ("debian", "distribution", "open", True, 535, ("nvidia-open-kernel-dkms", "nvidia-smi", "libcuda1")),
        ("debian", "distribution", "proprietary", False, 535, ("nvidia-kernel-dkms", "nvidia-driver", "nvidia-smi", "libcuda1")),
        ("almalinux", "nvidia", "open", False, 580, ("nvidia-open",)),
        ("rhel", "nvidia", "open", True, 580, ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")),
        ("centos", "nvidia", "proprietary", True, 580, ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms")),
    ],
)
def test_package_names_by_distribution(os_id, source, flavour, compute_only, branch, names):
    request = a_request({**UBUNTU, "id": os_id}, {"source": source, "compute_only": compute_only}, flavour=flavour)
    assert driver.names_for(request, branch) == names


def test_arm64_servers_have_the_same_names():
    assert driver.names_for(a_request({**UBUNTU, "arch": "aarch64"}), 590) == ("nvidia-open",)


def test_unknown_distribution_and_source_are_refused():
    with pytest.raises(IronwheelError, match="'gentoo'"):
        a_request({**UBUNTU, "id": "gentoo"})
    with pytest.raises(IronwheelError, match="ship no NVIDIA driver"):
        a_request(ROCKY, {"source": "distribution"})


def test_no_proprietary_module_from_620_on():
    with pytest.raises(IronwheelError) as caught:
        a_request(wanted="620", flavour="proprietary")
    assert caught.value.error == "FlavourUnavailable"


@pytest.mark.parametrize("reported", [pytest.param("C08", id="case-C08")])
def test_blackwell_gets_the_open_packages(reported):
    given, expected = case(reported)
    request = a_request(wanted=given["driver_branch"], flavour=expected["checks"]["module"])
    choice = driver.choose(request, offer("580.95.05"), [], "")
    assert driver.plan_changes(request, choice, {}, offer("580.95.05")).install == {"nvidia-open": "580.95.05-1ubuntu1"}


@pytest.mark.parametrize("reported", [pytest.param("C10", id="case-C10")])
def test_pascal_stays_on_580(reported):
    given, expected = case(reported)
    # The plan gives pre-Turing GPUs the branch 580 and the proprietary module.
    request = a_request(branch=expected["checks"]["driver_branch"], flavour="proprietary")
    available = offer(*[f"{branch}.10.01" for branch in given["available"]], name="cuda-drivers")
    assert driver.branch_of(driver.choose(request, available, [], "").version) == int(expected["checks"]["driver_branch"])


@pytest.mark.parametrize(
    ("plan", "installed", "upgrade", "version"),
    [
        ({"wanted": "590.48.01"}, "", False, "590.48.01"),
        ({"wanted": "570.211.01"}, "590.48.01", False, "570.211.01"),
        ({"wanted": "590.48.01"}, "570.211.01", False, "590.48.01"),
        ({"wanted": "580"}, "", False, "580.126.09"),
        ({"branch": "580"}, "590.48.01", False, "580.126.09"),
        ({"branch": "580"}, "580.95.05", False, "580.95.05"),
        ({"branch": "580"}, "580.95.05", True, "580.126.09"),
        ({"branch": "580", "floor": "580.100"}, "580.95.05", False, "580.126.09"),
        ({"floor": "525.60.13"}, "570.211.01", False, "570.211.01"),
        ({"floor": "580"}, "570.211.01", False, "580.126.09"),
        ({"floor": "580"}, "", False, "580.126.09"),
        ({"floor": "580"}, "580.95.05", True, "590.48.01"),
        ({"wanted": "580.95.05"}, "580.95.05", True, "580.95.05"),
    ],
)
def test_version_moves_up_and_down_and_stays(plan, installed, upgrade, version):
    request = replace(a_request(**{"floor": None, **plan}), upgrade=upgrade)
    choice = driver.choose(request, offer("590.48.01", "580.126.09", "580.95.05", "570.211.01"), [], installed)
    assert choice.version == version
    verdicts = {entry["candidate"]: entry["verdict"] for entry in choice.trace}
    assert verdicts[version] == "accepted" and all(entry["reason"] for entry in choice.trace)


def test_ubuntu_branch_is_in_the_name():
    request = a_request(settings={"source": "distribution"}, branch="570", floor=None)
    available = {"nvidia-driver-580-server-open": ["580.95.05-0ubuntu0.24.04.1"], "nvidia-driver-570-server-open": ["570.195.03-0ubuntu0.24.04.1"]}
    choice = driver.choose(request, available, driver.branches_in(list(available)), "")
    assert (choice.version, choice.names) == ("570.195.03", ("nvidia-driver-570-server-open",))


def test_missing_version_is_an_error_that_lists_what_there_is():
    with pytest.raises(IronwheelError, match="it has 595.71.05, 595.45.04") as caught:
        driver.choose(a_request(wanted="580"), offer("595.45.04", "595.71.05"), [], "")
    assert caught.value.error == "DriverVersionUnavailable"


# --- changes -------------------------------------------------------------------------------------------------------------------------------------------------


def test_move_of_a_whole_set_and_what_stands_in_the_way():
    installed = {
        "nvidia-open": "580.95.05-1ubuntu1",
        "nvidia-dkms-580-open": "580.95.05-1ubuntu1",
        "libnvidia-compute-580": "580.95.05-1ubuntu1",
        "nvidia-driver-pinning-580": "580.95.05-1ubuntu1",
        "nvidia-driver-pinning-590": "590.48.01-1ubuntu1",
        "nvidia-modprobe": "580.95.05-1ubuntu1",
        "nvidia-container-toolkit": "1.17.0-1",
        "nvidia-persistenced": "580.95.05-1ubuntu1",
    }
    available = {name: ["590.48.01-1ubuntu1", "580.95.05-1ubuntu1"] for name in ("nvidia-open", "nvidia-modprobe", "nvidia-persistenced")}
    available["nvidia-container-toolkit"] = ["1.18.0-1"]
    request = a_request(wanted="590.48.01")
    changes = driver.plan_changes(request, driver.choose(request, available, [], "580.95.05"), installed, available)
    assert changes.install == dict.fromkeys(("nvidia-open", "nvidia-modprobe", "nvidia-persistenced"), "590.48.01-1ubuntu1")
    assert changes.remove == ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-driver-pinning-580"]
    assert "move nvidia-open 580.95.05-1ubuntu1 -> 590.48.01-1ubuntu1" in changes.actions


@pytest.mark.parametrize("reported", [pytest.param("C01", id="case-C01")])
def test_half_upgraded_host_changes_no_package(reported):
    given, expected = case(reported)
    version = given["packages"]["nvidia-driver-550"]
    installed = {"nvidia-open": f"{version}-1ubuntu1", "nvidia-persistenced": f"{version}-1ubuntu1"}
    available = {"nvidia-open": ["590.48.01-1ubuntu1", f"{version}-1ubuntu1"], "nvidia-persistenced": [f"{version}-1ubuntu1"]}
    request = a_request(wanted=version, floor=None)
    choice = driver.choose(request, available, [], driver.installed_version(request, installed, []))
    assert not driver.plan_changes(request, choice, installed, available)
    observed = driver.Observed(loaded=given["proc_driver_version"], built=version, userspace=version, pci_gpus=1)
    reason = driver.reboot_needed(observed, version, "open")
    assert version in reason and given["proc_driver_version"] in reason
    done = {"reboot_needed": reason, "version": version, "driver": {"version": version}, "checks": driver.checks(observed, version, False), "changed": False}
    result = driver.outcome(done, False, "ssh", False)["result"]
    assert expected["error"] == "RebootRequired" and result["state"] == "reboot_required" and not result["changed"]


@pytest.mark.parametrize("reported", [pytest.param("C06", id="case-C06")])
def test_fabric_manager_is_exactly_the_drivers_version(reported):
    given, expected = case(reported)
    request = a_request(nvswitches=4, wanted=given["driver"])
    available = {
        "nvidia-open": [f"{given['driver']}-1ubuntu1"],
        **{name: [f"{version}-1ubuntu1" for version in versions] for name, versions in given["candidates"].items()},
    }
    choice = driver.choose(request, available, [], "")
    changes = driver.plan_changes(request, choice, {}, available)
    assert changes.install["nvidia-fabricmanager"] == f"{expected['checks']['fabricmanager']}-1ubuntu1"
    held = driver.hold_names(choice, {name: text or "" for name, text in changes.install.items()})
    assert ("nvidia-fabricmanager" in held) is expected["checks"]["hold"]


def test_fabric_manager_with_the_branch_in_its_name_and_none_at_all():
    request = a_request(nvswitches=4, wanted="570.195.03", floor=None)
    available = {"nvidia-open": ["570.195.03-1"], "nvidia-fabricmanager-570": ["570.195.03-1", "570.172.08-1"], "nvidia-fabricmanager": ["590.48.01-1"]}
    choice = driver.choose(request, available, [570], "")
    assert driver.plan_changes(request, choice, {}, available).install["nvidia-fabricmanager-570"] == "570.195.03-1"
    del available["nvidia-fabricmanager-570"]
    with pytest.raises(IronwheelError, match="on offer: 590.48.01") as caught:
        driver.plan_changes(request, choice, {}, available)
    assert caught.value.error == "FabricManagerVersion"


def test_no_fabric_manager_without_nvswitch():
    available = {"nvidia-open": ["590.48.01-1"], "nvidia-fabricmanager": ["590.48.01-1"]}
    request = a_request(wanted="590.48.01")
    assert "nvidia-fabricmanager" not in driver.plan_changes(request, driver.choose(request, available, [], ""), {}, available).install


def test_missing_package_names_the_component():
    request = a_request({**UBUNTU, "id": "debian"}, {"source": "distribution", "compute_only": True}, wanted="535.261.03", flavour="proprietary", floor=None)
    available = {"nvidia-kernel-dkms": ["535.261.03-1"]}
    with pytest.raises(IronwheelError, match="nvidia-smi") as caught:
        driver.plan_changes(request, driver.choose(request, available, [], ""), {}, available)
    assert caught.value.error == "PackageMissing" and "non-free" in caught.value.remedy


STREAMS = dict.fromkeys(("latest-dkms", "open-dkms", "570-dkms", "570-open", "580-open"), False)


@pytest.mark.parametrize(
    ("flavour", "branch", "streams", "stream"),
    [
        ("open", 580, STREAMS, "580-open"),
        ("open", 590, STREAMS, "open-dkms"),
        ("proprietary", 570, STREAMS, "570-dkms"),
        ("proprietary", 580, STREAMS, "latest-dkms"),
        ("open", 580, {}, ""),
    ],
)
def test_module_streams(flavour, branch, streams, stream):
    assert driver.module_stream(flavour, branch, streams) == stream


@pytest.mark.parametrize("reported", [pytest.param("C17", id="case-C17")])
def test_other_stream_is_reset_first(reported):
    given, expected = case(reported)
    streams = {**STREAMS, given["enabled_stream"]: True}
    step = driver.stream_switch(streams, driver.module_stream(given["module"], int(given["driver_branch"]), streams))
    assert {"stream": step["stream"], "reset_first": step["reset_first"]} == expected["checks"]
    assert driver.stream_switch({"570-open": True}, "570-open") == {"stream": "", "before": "570-open", "reset_first": False}
    assert driver.stream_switch({"570-open": False}, "570-open") == {"stream": "570-open", "before": "", "reset_first": False}
    assert not driver.stream_switch({}, "")["stream"]


def test_locks_of_other_versions_go_and_those_of_other_packages_stay():
    held = {
        "nvidia-open": "nvidia-open-3:570.1-1.*",
        "nvidia-driver": "nvidia-driver-3:580.95.05-1.*",
        "*nvidia*570*": "*nvidia*570*",
        "nvidia-container-toolkit": "nvidia-container-toolkit-0:1.17.0-1.*",
        "*kernel*": "*kernel*",
    }
    assert set(driver.stale_locks(held, ["nvidia-open", "nvidia-driver"], "580.95.05")) == {"nvidia-open", "*nvidia*570*"}


def test_preferences_pin_every_name_at_one_version():
    text = driver.preferences("580.95.05")
    assert "Pin: version 580.95.05*" in text and "Pin-Priority: 1001" in text and "libnvidia-*" in text


# --- kernel --------------------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [pytest.param("C11", id="case-C11")])
def test_headers_of_the_running_kernel(reported):
    given, expected = case(reported)
    fault = driver.headers_missing("rhel", given["uname_r"], given["headers_available"])
    assert fault.error == expected["error"]
    assert given["uname_r"] in fault.message and given["headers_available"][0] in fault.message
    ubuntu = driver.headers_missing("ubuntu", "6.8.0-9-generic", ["6.8.0-71-generic", "6.8.0-100-generic", "6.8.0-71-lowlatency", "6.8.0-71"])
    assert "Headers on offer: 6.8.0-71-generic, 6.8.0-100-generic." in ubuntu.message
    assert "newest kernel" in fault.remedy and "vault repository" in fault.remedy


@pytest.mark.parametrize(
    ("name", "is_kernel"),
    [
        ("linux-image-6.8.0-60-generic", True),
        ("linux-image-generic", True),
        ("linux-modules-6.8.0-60-generic", True),
        ("linux-modules-nvidia-580-server-open-6.8.0-60-generic", False),
        ("linux-headers-6.8.0-60-generic", False),
        ("linux-generic-hwe-24.04", True),
        ("kernel-core", True),
        ("kernel", True),
        ("kernel-devel", False),
        ("kernel-headers", False),
    ],
)
def test_transaction_that_touches_the_kernel(name, is_kernel):
    assert driver.kernel_changes([("install", name, "1"), ("configure", "linux-image-x", "1")]) == ([name] if is_kernel else [])


@pytest.mark.parametrize("reported", [pytest.param("C12", id="case-C12")])
def test_compiler_of_the_kernel(reported):
    given, expected = case(reported)
    found = driver.module_compiler(given["proc_version"], given["gcc_default"], [int(major) for major in given["gcc_installed"]])
    assert found == {"compiler": expected["checks"]["dkms_compiler"], "install": ""}
    assert driver.module_compiler(given["proc_version"], "11.4.0", [11])["install"] == "gcc-12"
    assert "CC=/usr/bin/gcc-12 ${MAKE[0]}" in driver.compiler_conf("gcc-12")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "Linux version 6.8.0-60-generic (buildd@x) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0, GNU ld 2.42) #63",
            "13.3.0",
        ),
        ("Linux version 5.14.0-503.el9 (mockbuild@x) (gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-2), GNU ld version 2.35.2) #1 SMP", "11.5.0"),
        ("Linux version 6.1.0-40-amd64 (x) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1", "12.2.0"),
        ("Linux version 4.18.0 (gcc version 8.5.0 20210514 (Red Hat 8.5.0-22) (GCC)) #1", "8.5.0"),
        ("Linux version 6.6 (clang version 17.0.6, LLD 17.0.6)", ""),
        ("", ""),
    ],
)
def test_compiler_in_proc_version(text, version):
    assert driver.kernel_compiler(text) == version


def test_same_major_needs_no_other_compiler():
    text = "Linux version 6.8 (x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0, GNU ld) #63"
    assert driver.module_compiler(text, "13.2.0", [13]) == {"compiler": "", "install": ""}
    assert driver.module_compiler("", "13.2.0", [13]) == {"compiler": "", "install": ""}


@pytest.mark.parametrize("reported", [pytest.param("C13", id="case-C13")])
def test_failed_build_names_log_and_reason(reported):
    given, expected = case(reported)
    module, _slash, rest = given["dkms_status"].partition("/")
    version = rest.split(":")[0]
    status = [{"module": module, "version": version, "kernel": None, "arch": None, "state": "added"}]
    found = driver.dkms_module(status, version, given["kernel"])
    assert found["state"] == "added"
    log = "/var/lib/dkms/nvidia/580.119.02/build/make.log"
    fault = driver.dkms_failed(
        version, given["kernel"], log, "make -C /lib/modules\n/nv-mm.c:12:5: error: no member named 'x'\nmake: *** [Makefile:9] Error 2\n"
    )
    assert fault.error == expected["error"] and log in fault.message and "no member named 'x'" in fault.message and given["kernel"] in fault.message


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "a\ngcc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'\n",
            "gcc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
        ),
        ("x\nmake[1]: *** No rule to make target 'modules'.  Stop.\n", "make[1]: *** No rule to make target 'modules'.  Stop."),
        ("one\ntwo\n\nthree\nfour", "three | four"),
        ("", "the log is empty"),
    ],
)
def test_reason_in_a_make_log(log, reason):
    assert driver.make_log_reason(log) == reason


def test_module_of_another_kernel_counts_as_added():
    status = [{"module": "nvidia", "version": "580.95.05", "kernel": "6.8.0-50-generic", "arch": "x86_64", "state": "installed"}]
    assert driver.dkms_module(status, "580.95.05", "6.8.0-60-generic")["state"] == "added"
    assert driver.dkms_module(status, "580.95.05", "6.8.0-50-generic")["state"] == "installed"
    assert driver.dkms_module(status, "590.48.01", "6.8.0-50-generic") is None


# --- Secure Boot, reboot, verification -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reported", [pytest.param("C14", id="case-C14")])
def test_secure_boot_key_not_enrolled(reported):
    given, expected = case(reported)
    fault = driver.secure_boot_fault(
        given["secure_boot"], "/var/lib/dkms/mok.pub", given["signer_enrolled"], given["module_signed"], given["modprobe"]["stderr"]
    )
    assert fault.error == expected["error"]
    assert "mokutil --import /var/lib/dkms/mok.pub" in fault.remedy and "Nothing was unloaded" in fault.message
    assert driver.secure_boot_fault(True, "/var/lib/dkms/mok.pub", False, None) is not None, "known before the module is built"
    assert driver.secure_boot_fault(True, "", None, False) is not None, "an unsigned module"
    assert driver.secure_boot_fault(True, "/var/lib/dkms/mok.pub", True, True) is None
    assert driver.secure_boot_fault(False, "/var/lib/dkms/mok.pub", False, True) is None
    assert driver.secure_boot_fault(None, "", None, None) is None


@pytest.mark.parametrize(
    ("observed", "needed"),
    [
        (driver.Observed(loaded="580.95.05", loaded_flavour="open"), False),
        (driver.Observed(loaded="570.195.03", loaded_flavour="open"), True),
        (driver.Observed(loaded="580.95.05", loaded_flavour="proprietary"), True),
        (driver.Observed(loaded="580.95.05", loaded_flavour=""), False),
        (driver.Observed(nouveau=True), True),
        (driver.Observed(), False),
        (driver.Observed(loaded="570.195.03", loadable=False), False),
    ],
)
def test_reboot_only_when_the_loaded_module_is_not_the_wanted_one(observed, needed):
    assert bool(driver.reboot_needed(observed, "580.95.05", "open")) is needed


@pytest.mark.parametrize("reported", [pytest.param("E01", id="case-E01")])
def test_no_reboot_over_a_local_connection(reported):
    given, expected = case(reported)
    decision = driver.decide_reboot("the loaded kernel module is another", given["reboot_allowed"], given["ansible_connection"])
    assert decision["reboot"] is (expected["checks"]["reboot"] != "not attempted")
    assert decision["reboot_required"] is expected["checks"]["reboot_required_fact"]
    assert "reboot it yourself" in decision["reason"]


@pytest.mark.parametrize(
    ("required", "allowed", "connection", "reboot", "fact"),
    [
        ("", True, "ssh", False, False),
        ("why", True, "ssh", True, True),
        ("why", True, "ansible.builtin.ssh", True, True),
        ("why", True, "ansible.netcommon.libssh", True, True),
        ("why", False, "ssh", False, True),
        ("why", True, "local", False, True),
        ("why", True, "community.general.chroot", False, True),
        ("why", True, "containers.podman.podman", False, True),
    ],
)
def test_reboot_contract(required, allowed, connection, reboot, fact):
    decision = driver.decide_reboot(required, allowed, connection)
    assert (decision["reboot"], decision["reboot_required"]) == (reboot, fact)


def test_reboot_is_not_done_twice():
    done = {"reboot_needed": "the module is still another", "version": "580.95.05", "driver": {"version": "580.95.05"}, "checks": [], "changed": False}
    first = driver.outcome(done, True, "ssh", False)
    second = driver.outcome(done, True, "ssh", True)
    assert first["reboot"] and not second["reboot"]
    assert second["result"]["reboot_required"] and "not done twice" in second["result"]["reason"]


def verdicts(observed, fabric=False):
    return {check["name"]: check["verdict"] for check in driver.checks(observed, "580.95.05", fabric)}


@pytest.mark.parametrize("reported", [pytest.param("F06", id="case-F06")])
def test_verification(reported):
    given, expected = case(reported)
    good = driver.Observed(
        loaded="580.95.05", built="580.95.05", userspace="580.95.05", pci_gpus=given["pci_gpus"], smi_gpus=given["pci_gpus"], fabric_manager="580.95.05"
    )
    assert set(verdicts(good, fabric=True).values()) == {"ok"}
    lost = replace(good, smi_gpus=len(given["smi_rows"]), smi_detail=given["smi_stderr"])
    found = next(check for check in driver.checks(lost, "580.95.05", False) if check["name"] == "driver_gpu_count")
    assert found["verdict"] == "failed" and f"sees {expected['checks']['gpu_count_usable']} GPUs" in found["reason"] and "41:00.0" in found["reason"]


def test_what_cannot_run_is_not_run_and_never_ok():
    host = driver.Observed(built="580.95.05", userspace="580.95.05", loadable=False, not_loadable_reason="another kernel runs", pci_gpus=1)
    assert verdicts(host) == {"driver_userspace": "ok", "driver_module_built": "ok", "driver_module_loaded": "not_run", "driver_gpu_count": "not_run"}
    waiting = replace(host, loadable=True, loaded="570.195.03")
    assert verdicts(waiting)["driver_module_loaded"] == "not_run"
    assert verdicts(replace(waiting, loaded=""))["driver_module_loaded"] == "failed"
    assert verdicts(replace(host, built="", fabric_manager="570.1"), fabric=True) == {
        "driver_userspace": "ok",
        "driver_module_built": "failed",
        "driver_module_loaded": "not_run",
        "driver_gpu_count": "not_run",
        "fabric_manager_version": "failed",
    }


def test_services_start_only_with_a_usable_module():
    request = a_request(nvswitches=4)
    units = ["nvidia-persistenced", "nvidia-fabricmanager"]
    assert driver.services(request, {}, False, units) == [{"name": name, "enabled": True} for name in units]
    assert all(entry["state"] == "started" for entry in driver.services(request, {}, True, units))
    assert driver.services(replace(request, fabric_manager=False), {}, True, units) == [{"name": "nvidia-persistenced", "enabled": True, "state": "started"}]
    assert driver.services(request, {}, True, []) == []
