# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every decision about the NVIDIA driver of a host: whether to act, which packages in which version, which compiler, whether to reboot.

Pure functions over the plan, the host facts and what the package manager offers; nothing here reads the host. A *version* is NVIDIA's (``580.95.05``), a
*package version* has the epoch and revision of the distribution around it (``3:580.95.05-1.el9``), a *branch* is the first number (``580``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ansible_collections.ironwheel.gpu.plugins.module_utils import versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# The first branch whose package names carry no branch suffix in NVIDIA's Ubuntu repository, and the first without proprietary kernel modules.
UNSUFFIXED_BRANCH = 590
OPEN_ONLY_BRANCH = 620

RHEL_RELATIVES = ("rhel", "rocky", "almalinux", "ol", "centos")
PREFERENCES_PATH = "/etc/apt/preferences.d/ironwheel-nvidia-driver"
NOUVEAU_PATH = "/etc/modprobe.d/ironwheel-nouveau.conf"
NOUVEAU_TEXT = "# Managed by ironwheel.gpu.nvidia_driver: nouveau and NVIDIA's driver cannot share a GPU.\nblacklist nouveau\noptions nouveau modeset=0\n"
COMPILER_PATH = "/etc/dkms/nvidia.conf"
COMPILER_MARK = "# Managed by ironwheel.gpu.nvidia_driver"


# --- whether there is anything to do ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Applicability:
    """``act``: the role installs; otherwise ``state`` and ``reason`` say why it leaves the host alone."""

    act: bool
    state: str
    reason: str


def applicability(host: dict, plan: dict | None) -> Applicability:
    """Whether the driver of this host is the role's business.

    Raises:
        IronwheelError: ``VgpuGuestNeedsGridDriver`` for a vGPU guest whose driver does not work and that the plan wants managed.
    """
    os_facts, driver = host.get("os") or {}, host.get("driver") or {}
    managed = bool(plan and plan.get("managed"))
    if os_facts.get("wsl"):
        return Applicability(False, "skipped", "WSL: the driver belongs to Windows, which passes it in; nothing is installed here.")
    if os_facts.get("container"):
        return Applicability(
            False,
            "skipped",
            f"Container ({os_facts['container']}): kernel modules and the driver belong to the host, which passes the devices in; nothing is installed here.",
        )
    if host.get("vgpu"):
        if driver.get("state") == "ok" or not managed:
            return Applicability(False, "skipped", "vGPU guest: its GRID driver must match the hypervisor's and comes from the vGPU bundle; it is left alone.")
        raise IronwheelError(
            f"Host fact vgpu is true and the driver's state is '{driver.get('state', 'absent')}': a vGPU guest needs the GRID driver that matches the "
            "hypervisor's, and the data centre packages do not work there.",
            "VgpuGuestNeedsGridDriver",
            "Install the guest driver of the vGPU bundle that the hypervisor runs, or set nvidia_driver_managed to false.",
        )
    if not host.get("gpus"):
        return Applicability(False, "skipped", "No NVIDIA GPU on the PCI bus: no driver is installed.")
    if driver.get("userspace_version") and driver.get("packages") == {} and managed:
        return _runfile_driver(driver, plan or {})
    if not managed:
        reason = (plan or {}).get("reason") or "nvidia_driver_managed is false"
        return Applicability(False, "unmanaged", f"The driver of this host is not managed by this collection: {reason}")
    return Applicability(True, "", "")


def _runfile_driver(found: dict, plan: dict) -> Applicability:
    """A driver that no package owns (NVIDIA's runfile installer): left alone when it serves.

    Raises:
        IronwheelError: ``DriverNotFromPackages`` when another one is wanted; two drivers would overwrite each other's files.
    """
    have, wanted = found["userspace_version"], str(plan.get("wanted") or plan.get("branch") or "")
    serves = wanted in (have, str(branch_of(have))) if wanted else not plan.get("floor") or versions.at_least(have, plan["floor"])
    if serves and found.get("state") in ("ok", "reboot_required"):
        return Applicability(False, "unmanaged", f"The driver {have} was not installed from packages; it serves and is left alone.")
    raise IronwheelError(
        f"The driver {have} was not installed from packages, and the plan wants {wanted or 'at least ' + str(plan.get('floor'))}: packages would overwrite its "
        "files.",
        "DriverNotFromPackages",
        "Remove it with nvidia-uninstall and run the role again, or set nvidia_driver_managed to false.",
    )


# --- versions and package names ------------------------------------------------------------------------------------------------------------------------------


def upstream(package_version: str) -> str:
    """NVIDIA's version inside a package version: ``580.95.05`` for ``3:580.95.05-1.el9``; empty when there is none."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", package_version or "")
    return match.group(1) if match else ""


def branch_of(version: str) -> int:
    """First number of a version; 0 when there is none."""
    text = upstream(version).split(".")[0]
    return int(text) if text else 0


def family(os_id: str) -> str:
    """``ubuntu``, ``debian`` or ``rhel``.

    Raises:
        IronwheelError: another distribution.
    """
    if os_id in ("ubuntu", "debian"):
        return os_id
    if os_id in RHEL_RELATIVES:
        return "rhel"
    raise IronwheelError(
        f"Host fact os.id is '{os_id}'; the driver role serves ubuntu, debian, {', '.join(RHEL_RELATIVES)}.",
        "UnsupportedDistribution",
        "Install the driver by your own means and set nvidia_driver_managed to false.",
    )


@dataclass(frozen=True)
class Request:
    """What is wanted of one host.

    ``version`` is exact, ``branch`` a number, ``floor`` the lowest version that serves; each may be absent. ``packages`` replaces the names that the role would
    choose.
    """

    family: str
    source: str
    flavour: str
    kernel: str
    version: str = ""
    branch: int = 0
    floor: str = ""
    compute_only: bool = False
    fabric_manager: bool = False
    persistence: bool = True
    hold: bool = True
    upgrade: bool = False
    packages: tuple[str, ...] = ()


def request_from(host: dict, plan: dict, settings: dict) -> Request:
    """The request of a host from its facts, its plan and the role's settings.

    Raises:
        IronwheelError: the source does not exist for the distribution, or flavour and branch exclude each other.
    """
    name = family(host["os"]["id"])
    source = settings["source"]
    if source == "distribution" and name == "rhel":
        raise IronwheelError(
            "nvidia_driver_source is 'distribution', but RHEL and its relatives ship no NVIDIA driver.", "UnsupportedSource", "Use nvidia or local."
        )
    version = str(plan.get("wanted") or "")
    branch = branch_of(str(plan.get("branch") or ""))
    if version and "." not in version:
        branch, version = branch_of(version), ""
    flavour = plan.get("flavour") or "open"
    request = Request(
        family=name,
        source="nvidia" if source == "local" else source,
        flavour=flavour,
        kernel=host["os"]["kernel"],
        version=version,
        branch=0 if version else branch,
        floor=str(plan.get("floor") or ""),
        compute_only=settings["compute_only"],
        fabric_manager=bool(host.get("nvswitches")) if settings["fabric_manager"] == "auto" else settings["fabric_manager"] == "true",
        persistence=settings["persistence"],
        hold=settings["hold"],
        upgrade=settings["upgrade"],
        packages=tuple(settings["packages"]),
    )
    if flavour == "proprietary" and (branch_of(version) or branch) >= OPEN_ONLY_BRANCH:
        raise IronwheelError(
            f"nvidia_driver_version is '{version or branch}' and the kernel module must be proprietary, but branches from {OPEN_ONLY_BRANCH} on have open "
            "modules only.",
            "FlavourUnavailable",
            "Choose an older branch, 580 for Maxwell, Pascal and Volta.",
        )
    return request


def names_for(request: Request, branch: int) -> tuple[str, ...]:
    """The packages that bring the driver; the first one's version is the driver's. A branch of 0 stands for names without a branch in them.

    Sources: NVIDIA's driver installation guide (Ubuntu, Debian, RHEL), Debian's and Ubuntu's own archives.
    """
    if request.packages:
        return request.packages
    is_open = request.flavour == "open"
    if request.source == "distribution":
        if request.family == "debian":
            module = "nvidia-open-kernel-dkms" if is_open else "nvidia-kernel-dkms"
            return (module, "nvidia-smi", "libcuda1") if request.compute_only else (module, "nvidia-driver", "nvidia-smi", "libcuda1")
        suffix = f"{branch}-server" + ("-open" if is_open else "")
        return (f"nvidia-headless-{suffix}", f"nvidia-utils-{branch}-server") if request.compute_only else (f"nvidia-driver-{suffix}",)
    if not request.compute_only:
        return ("nvidia-open",) if is_open else ("cuda-drivers",)
    if request.family == "debian":
        return ("nvidia-driver-cuda", "nvidia-kernel-open-dkms" if is_open else "nvidia-kernel-dkms")
    if request.family == "rhel":
        return ("nvidia-driver-cuda", "kmod-nvidia-open-dkms" if is_open else "kmod-nvidia-latest-dkms")
    if branch and branch < UNSUFFIXED_BRANCH:
        return (f"nvidia-dkms-{branch}" + ("-open" if is_open else ""), f"libnvidia-compute-{branch}", f"nvidia-utils-{branch}")
    return ("nvidia-dkms-open" if is_open else "nvidia-dkms", "libnvidia-compute")


SEARCH_PREFIXES = ("nvidia-", "cuda-drivers-")


def branches_in(names: list[str]) -> list[int]:
    """Branches that occur in package names such as ``nvidia-driver-580-server``."""
    found = {int(match.group(1)) for name in names if (match := re.match(r"(?:nvidia-(?:driver|headless|dkms|open)|cuda-drivers)-(\d{3})(?:-|$)", name))}
    return sorted(found)


def candidate_names(request: Request, branches: list[int]) -> list[str]:
    """Every package whose versions the choice needs to know."""
    names = {name for branch in [0, *branches] for name in names_for(request, branch)}
    if request.persistence:
        names.add("nvidia-persistenced")
    if request.fabric_manager:
        names.update(["nvidia-fabricmanager", *[f"nvidia-fabricmanager-{branch}" for branch in branches]])
    return sorted(names)


@dataclass(frozen=True)
class Choice:
    """The version to have, the package names for it, why, and every candidate with its verdict."""

    version: str
    names: tuple[str, ...]
    reason: str
    trace: tuple[dict, ...] = ()


def choose(request: Request, available: dict[str, list[str]], branches: list[int], installed: str) -> Choice:
    """Choose the driver's version.

    An exact version is taken as it is, up or down. A branch or a floor keeps an installed version that serves (a driver is not upgraded for its own sake, since
    that costs a reboot) unless ``upgrade`` asks for the newest. Without a branch, the lowest branch that reaches the floor is taken.

    Args:
        request: what is wanted.
        available: package versions by name.
        branches: branches that occur in package names.
        installed: version that is installed now, or empty.

    Raises:
        IronwheelError: ``DriverVersionUnavailable``, with what there is.
    """
    options: dict[str, tuple[str, ...]] = {}
    for branch in [0, *branches]:
        names = names_for(request, branch)
        for package_version in available.get(names[0], []):
            version = upstream(package_version)
            if branch and names != names_for(request, 0) and branch_of(version) != branch:
                continue
            options.setdefault(version, names)
    wanted = f"version {request.version}" if request.version else f"branch {request.branch}" if request.branch else f"floor {request.floor or 'any'}"

    def rejected(version: str) -> str:
        if request.version and version != request.version:
            return f"not {request.version}"
        if request.branch and branch_of(version) != request.branch:
            return f"not branch {request.branch}"
        if not request.version and request.floor and not versions.at_least(version, request.floor):
            return f"older than the floor {request.floor}"
        if request.flavour == "proprietary" and branch_of(version) >= OPEN_ONLY_BRANCH:
            return "no proprietary module in this branch"
        return ""

    trace = tuple(
        {
            "subject": "driver",
            "candidate": version,
            "verdict": "rejected" if rejected(version) else "accepted",
            "reason": rejected(version) or f"serves {wanted}",
        }
        for version in options
    )
    if installed and not rejected(installed) and (not request.upgrade or request.version):
        names = options.get(installed) or names_for(request, branch_of(installed))
        return Choice(installed, names, f"{installed}: it is installed and serves {wanted}", trace)
    good = [version for version in options if not rejected(version)]
    if not good:
        offered = ", ".join(sorted(options, key=versions.parse, reverse=True)) or "none"
        raise IronwheelError(
            f"nvidia_driver_version asks for {wanted} with the {request.flavour} module, and the source '{request.source}' does not have it; it has {offered}.",
            "DriverVersionUnavailable",
            "Choose one of these, or another nvidia_driver_source.",
        )
    lowest = min(branch_of(version) for version in good) if not request.upgrade else max(branch_of(version) for version in good)
    best = max((version for version in good if branch_of(version) == lowest), key=versions.parse)
    reason = "nvidia_driver_version names it" if request.version else f"it is the newest in branch {lowest}, which serves {wanted}"
    return Choice(best, options[best], f"{best}: {reason}", trace)


# Packages of the driver, whatever they are called: those of them that have the driver's version move together.
_DRIVER_PACKAGE = re.compile(
    r"(lib)?(nvidia|cuda-drivers|cudadebugger)|libcuda1|libcudadebugger|libnv|firmware-nvidia|xserver-xorg-video-nvidia|xorg-x11-nvidia"
    r"|kmod-nvidia|dkms-nvidia|nvlink5"
)
_OPEN = re.compile(
    r"nvidia-open(-\d+)?|nvidia-dkms(-\d+)?(-server)?-open|nvidia-kernel-open-dkms|nvidia-open-kernel-dkms|nvidia-kernel-source(-\d+)?(-server)?-open|"
    r"kmod-nvidia-open(-dkms)?|nvidia-driver(-\d+)?(-server)?-open|nvidia-headless(-no-dkms)?-\d+(-server)?-open"
)
_PROPRIETARY = re.compile(
    r"cuda-drivers(-\d+)?|nvidia-dkms(-\d+)?(-server)?|nvidia-kernel-dkms|nvidia-kernel-source(-\d+)?(-server)?|kmod-nvidia(-latest)?-dkms|"
    r"nvidia-headless(-no-dkms)?-\d+(-server)?"
)
_SUFFIXED = re.compile(r"(?:lib)?(?:nvidia|cuda-drivers|xserver-xorg-video-nvidia)[a-z0-9-]*?-(\d{3})(?:-server)?(?:-open)?$")
_PINNING = re.compile(r"nvidia-driver-pinning-(\d+(?:\.\d+)*)$")


def is_driver_package(name: str) -> bool:
    """True for a package that may belong to the driver; whether it does, its version tells."""
    return _DRIVER_PACKAGE.match(name) is not None


def installed_version(request: Request, installed: dict[str, str], branches: list[int]) -> str:
    """The driver's version by its packages, of either flavour; empty when no driver package is installed.

    With packages of two versions (an interrupted upgrade) it is the lowest, so that the rest is brought along.
    """
    names = [name for name in installed if _OPEN.fullmatch(name) or _PROPRIETARY.fullmatch(name)]
    names += [name for branch in [0, *branches] for name in names_for(request, branch) if name in installed]
    names += [name for name in installed if re.fullmatch(r"libcuda1|libnvidia-ml1|libnvidia-compute(-\d+(-server)?)?|nvidia-driver-cuda(-libs)?", name)]
    found = {upstream(installed[name]) for name in names}
    found = {version for version in found if branch_of(version) >= 100}
    return min(found, key=versions.parse) if found else ""


@dataclass
class Changes:
    """One transaction: ``install`` maps a package to the package version it gets (None: what the manager chooses)."""

    install: dict[str, str | None] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.install or self.remove)


def plan_changes(request: Request, choice: Choice, installed: dict[str, str], available: dict[str, list[str]]) -> Changes:
    """What must be installed, moved and removed so that the host has exactly the chosen driver.

    Args:
        request: what is wanted.
        choice: the chosen version.
        installed: package versions of the host.
        available: package versions on offer, for the candidates and for every installed driver package.

    Raises:
        IronwheelError: a package is missing in the chosen version.
    """
    changes = Changes()

    def offered(name: str) -> str | None:
        return next((text for text in available.get(name, []) if upstream(text) == choice.version), None)

    def want(name: str, version: str | None) -> None:
        have = installed.get(name)
        if have is not None and (version is None or upstream(have) == upstream(version)):
            return
        changes.install[name] = version
        changes.actions.append(f"{'move' if have else 'install'} {name} {f'{have} -> ' if have else ''}{version or ''}".rstrip())

    for name in choice.names:
        version = offered(name)
        if version is None and upstream(installed.get(name, "")) != choice.version and any(upstream(text) for text in available.get(name, [])):
            # A helper with versions of its own (libcuda1 of another source, persistenced) comes as the manager chooses, the driver itself never.
            if name == choice.names[0]:
                raise IronwheelError(f"{name} is not available in version {choice.version}.", "DriverVersionUnavailable", "Refresh the package lists.")
        elif version is None and name not in installed:
            raise IronwheelError(
                f"Package '{name}' is needed for the driver {choice.version} and no source of the host has it.",
                "PackageMissing",
                "On Debian the components non-free and non-free-firmware hold the driver; or set nvidia_driver_source to nvidia.",
            )
        want(name, version)
    for name, have in sorted(installed.items()):
        if is_driver_package(name) and name not in changes.install and upstream(have) != choice.version and offered(name):
            want(name, offered(name))
    if request.fabric_manager:
        fabric_manager(choice.version, installed, available, want)
    if request.persistence and "nvidia-persistenced" in available and "nvidia-persistenced" not in installed:
        want("nvidia-persistenced", offered("nvidia-persistenced"))

    other = _PROPRIETARY if request.flavour == "open" else _OPEN
    for name, have in sorted(installed.items()):
        if name in choice.names:
            continue
        suffix, pin = _SUFFIXED.match(name), _PINNING.match(name)
        reason = ""
        if pin is not None:
            if not (choice.version + ".").startswith(pin.group(1) + "."):
                reason = f"it pins {pin.group(1)}"
        elif other.fullmatch(name):
            reason = f"the kernel module shall be {request.flavour}"
        elif suffix is not None and int(suffix.group(1)) != branch_of(choice.version) and branch_of(have) == int(suffix.group(1)):
            reason = f"it belongs to branch {suffix.group(1)}"
        elif name.startswith("nvidia-fabricmanager") and not request.fabric_manager and upstream(have) != choice.version:
            reason = "the host has no NVSwitch and its version is not the driver's"
        if reason:
            changes.remove.append(name)
            changes.install.pop(name, None)
            changes.actions = [action for action in changes.actions if f" {name} " not in action + " "]
            changes.actions.append(f"remove {name} {have}: {reason}")
    return changes


def fabric_manager(version: str, installed: dict[str, str], available: dict[str, list[str]], want) -> str:
    """Ask for the fabric manager in exactly the driver's version.

    Raises:
        IronwheelError: there is none; another version would not start.
    """
    names = ["nvidia-fabricmanager", f"nvidia-fabricmanager-{branch_of(version)}"]
    for name in names:
        if upstream(installed.get(name, "")) == version:
            return name
    for name in names:
        for text in available.get(name, []):
            if upstream(text) == version:
                want(name, text)
                return name
    offered = sorted({upstream(text) for name in names for text in available.get(name, [])}) or ["none"]
    raise IronwheelError(
        f"The host has NVSwitches, and the fabric manager must have exactly the driver's version {version}; on offer: {', '.join(offered)}.",
        "FabricManagerVersion",
        "Choose a driver version that has one (nvidia_driver_version), or another nvidia_driver_source.",
    )


def module_stream(flavour: str, branch: int, streams: dict[str, bool]) -> str:
    """dnf module stream of ``nvidia-driver``: the branch's own (``580-open``, ``580-dkms``), else that of all branches (``open-dkms``, ``latest-dkms``).

    Args:
        flavour: of the kernel module.
        branch: of the driver.
        streams: streams that the repositories have; without any (RHEL 10) there is nothing to choose.
    """
    own, general = (f"{branch}-open", "open-dkms") if flavour == "open" else (f"{branch}-dkms", "latest-dkms")
    return next((name for name in (own, general) if name in streams), "")


def stream_switch(streams: dict[str, bool], wanted: str) -> dict:
    """``{stream, before, reset_first}``: the stream to enable (empty when nothing is to be done) and the one that is enabled and must be reset first."""
    enabled = next((name for name, on in streams.items() if on), "")
    stream = wanted if wanted != enabled else ""
    return {"stream": stream, "before": enabled, "reset_first": bool(stream and enabled)}


def hold_names(choice: Choice, installed: dict[str, str]) -> list[str]:
    """Packages to hold: every installed one that has the driver's version."""
    return sorted(name for name, have in installed.items() if is_driver_package(name) and upstream(have) == choice.version)


def stale_locks(held: dict[str, str], wanted: list[str], version: str) -> dict[str, str]:
    """dnf locks that keep the driver at another version than the installed one: of a package of it, or by a pattern such as ``*nvidia*570*``."""
    return {name: entry for name, entry in held.items() if (name in wanted or ("*" in name and "nvidia" in name)) and version not in entry}


def preferences(version: str) -> str:
    """apt preferences that hold every driver package at one version, in whichever name it comes; 1001 allows a downgrade.

    Packages without that version are not touched by the pin, so the patterns may be wide.
    """
    names = "nvidia-* libnvidia-* cuda-drivers* libcuda1* libcudadebugger1* libnv* firmware-nvidia-* xserver-xorg-video-nvidia* nvlink5*"
    return (
        "Explanation: Managed by ironwheel.gpu.nvidia_driver; changes are overwritten. The role moves this pin with nvidia_driver_version.\n"
        f"Package: {names}\nPin: version {version}*\nPin-Priority: 1001\n"
    )


# --- kernel --------------------------------------------------------------------------------------------------------------------------------------------------


def headers_package(name: str, kernel: str) -> str:
    """Package with the headers of a kernel."""
    return f"kernel-devel-{kernel}" if name == "rhel" else f"linux-headers-{kernel}"


def headers_missing(name: str, kernel: str, available: list[str]) -> IronwheelError:
    """The error for a kernel without headers.

    Args:
        name: family of the distribution.
        kernel: the running kernel.
        available: kernels whose headers the sources have.
    """
    # Kernels of the same kind (generic, amd64, cloud-amd64), which differ in their numbers only.
    kind = re.compile(re.sub(r"\d+", r"\\d+", re.escape(kernel)))
    alike = [other for other in available if kind.fullmatch(other)] or available
    offered = ", ".join(sorted(alike, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])[-4:]) or "none"
    if name == "rhel":
        hint = "Boot the newest kernel that the repositories have, or add the vault repository of the release that the running kernel belongs to."
    else:
        hint = "Boot the newest kernel that the sources have, or add the archive (snapshot) that still has this kernel's headers."
    return IronwheelError(
        f"The driver's kernel module cannot be built: the running kernel is {kernel}, and no source has the package {headers_package(name, kernel)}. "
        f"Headers on offer: {offered}.",
        "KernelHeadersMissing",
        hint + " The role never changes the kernel itself.",
    )


_KERNEL_PACKAGE = re.compile(
    r"linux-image-(?!.*-dbg$).+|linux-modules-(?!nvidia).+|linux-generic.*|kernel|kernel-core|kernel-modules(-core|-extra)?|kernel-rt.*|kernel-64k(-core)?"
)


def is_kernel_package(name: str) -> bool:
    """True for a package that holds a kernel, or draws the newest one in."""
    return _KERNEL_PACKAGE.fullmatch(name) is not None


def kernel_changes(operations: list[tuple[str, str, str]]) -> list[str]:
    """Kernel packages that a simulated transaction would install, change or remove."""
    return sorted({name for kind, name, version in operations if kind in ("install", "remove") and is_kernel_package(name)})


def kernel_would_change(names: list[str], kernel: str) -> IronwheelError:
    """The error for a transaction that touches the kernel."""
    return IronwheelError(
        f"Installing the driver would change kernel packages ({', '.join(names)}) beside the running kernel {kernel}; the role never changes the kernel.",
        "KernelWouldChange",
        "Upgrade and boot the kernel first by your own means, then run the role again.",
    )


def kernel_compiler(proc_version: str) -> str:
    """Version of the gcc that built the running kernel, from ``/proc/version``: ``12.3.0``; empty for another compiler."""
    match = re.search(r"gcc(?:-[\d.]+)? \((?:[^()]|\([^()]*\))*\) (\d+(?:\.\d+)*)|gcc version (\d+(?:\.\d+)*)", proc_version)
    if match is None:
        match = re.search(r"gcc-(\d+)", proc_version)
    return next((group for group in match.groups() if group), "") if match else ""


def module_compiler(proc_version: str, default_gcc: str, installed_majors: list[int]) -> dict:
    """``{compiler, install}``: the gcc that must build the module, ``compiler`` empty when the default one does, ``install`` the package if it is missing.

    A kernel built by a newer gcc hands its flags to the module's build, and an older gcc does not know them.
    """
    wanted = kernel_compiler(proc_version)
    if not wanted:
        return {"compiler": "", "install": ""}
    number = versions.major(wanted)
    if default_gcc and versions.major(default_gcc) == number:
        return {"compiler": "", "install": ""}
    name = f"gcc-{number}"
    return {"compiler": name, "install": "" if number in installed_majors else name}


def compiler_conf(compiler: str) -> str:
    """Override for dkms that builds NVIDIA's module with this compiler; dkms reads it after the module's own ``dkms.conf``."""
    return f'{COMPILER_MARK}: the running kernel was built with {compiler}.\nMAKE[0]="env CC=/usr/bin/{compiler} ${{MAKE[0]}}"\n'


# --- dkms ----------------------------------------------------------------------------------------------------------------------------------------------------


def dkms_module(status: list[dict], version: str, kernel: str) -> dict | None:
    """The NVIDIA module in the chosen version, from the host facts' ``dkms`` list; None when dkms does not know it.

    The result's ``state`` is that for this kernel: ``installed``, ``built``, or ``added`` when it was not built for it.
    """
    mine = [item for item in status if upstream(item["version"]) == version]
    for item in mine:
        if item["kernel"] == kernel:
            return item
    return {**mine[0], "kernel": None, "state": "added"} if mine else None


def make_log_reason(text: str) -> str:
    """The lines of a ``make.log`` that say why the build failed, at most three."""
    lines = [line.strip() for line in text.splitlines()]
    for pattern in (r"(fatal )?error: |No rule to make target|unrecognized command|[Cc]ompiler (version check failed|differs)", r"ERROR|Error \d+|\*\*\*"):
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            return " | ".join(dict.fromkeys(found[:3]))
    return " | ".join(line for line in lines[-3:] if line) or "the log is empty"


def dkms_failed(version: str, kernel: str, log_path: str, log: str | None) -> IronwheelError:
    """The error for a module that was not built for the kernel."""
    reason = f"{make_log_reason(log)} (whole log: {log_path})" if log is not None else "dkms left no make.log"
    return IronwheelError(
        f"dkms did not build NVIDIA's kernel module {version} for the kernel {kernel}: {reason}.",
        "DkmsBuildFailed",
        "Often the kernel is too new for this driver: choose a newer branch (nvidia_driver_version), or boot an older kernel. A missing header or compiler is "
        "named in the log.",
    )


# --- Secure Boot ---------------------------------------------------------------------------------------------------------------------------------------------


def secure_boot_fault(secure_boot: bool | None, key: str, enrolled: bool | None, signed: bool | None, load_error: str = "") -> IronwheelError | None:
    """Why the kernel would refuse the module under Secure Boot, or None.

    Args:
        secure_boot: whether it is on.
        key: certificate that dkms signs with; empty when it has none yet.
        enrolled: whether the firmware knows it; None: not known.
        signed: whether the module for the running kernel is signed; None: not built yet.
        load_error: what ``modprobe`` said.
    """
    rejected = "Key was rejected" in load_error or "Required key not available" in load_error
    if not rejected and not secure_boot:
        return None
    if rejected or (key and enrolled is False) or signed is False:
        detail = "the kernel refused it" if rejected else "the module is not signed" if signed is False and not key else f"its key {key} is not enrolled"
        return IronwheelError(
            f"Secure Boot is on, and the kernel would not load NVIDIA's module: {detail}. Nothing was unloaded and the host was not rebooted.",
            "SecureBootKeyNotEnrolled",
            f"Run 'mokutil --import {key or '/var/lib/dkms/mok.pub'}' on the host, reboot, and confirm the key at the console (MOK manager); or switch Secure "
            "Boot off. Then run the role again.",
        )
    return None


# --- reboot and verification --------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """What a host shows after (or before) the work.

    ``loaded`` and ``loaded_flavour`` are of the module in the kernel, ``built`` is the module that the wanted kernel would load, ``loadable`` tells whether a
    module for that kernel could be loaded on this host at all.
    """

    loaded: str = ""
    loaded_flavour: str = ""
    built: str = ""
    userspace: str = ""
    nouveau: bool = False
    loadable: bool = True
    not_loadable_reason: str = ""
    pci_gpus: int = 0
    smi_gpus: int | None = None
    smi_detail: str = ""
    fabric_manager: str = ""


def reboot_needed(observed: Observed, version: str, flavour: str) -> str:
    """Why the host must be rebooted, or an empty string: only when the loaded module is not the wanted one."""
    if not observed.loadable:
        return ""
    if observed.loaded and observed.loaded != version:
        return f"the loaded kernel module is {observed.loaded}, the installed driver is {version}"
    if observed.loaded and observed.loaded_flavour and observed.loaded_flavour != flavour:
        return f"the loaded kernel module is the {observed.loaded_flavour} one, wanted is the {flavour} one"
    if not observed.loaded and observed.nouveau:
        return "nouveau holds the GPU, and it is released by a reboot only"
    return ""


# Connections that end, or never come back, when their host goes down.
_REBOOTABLE = ("ssh", "paramiko", "paramiko_ssh", "libssh")


def decide_reboot(required: str, allowed: bool, connection: str) -> dict:
    """``{reboot, reboot_required, reason}``: what is done about a needed reboot.

    Args:
        required: why it is needed, or empty.
        allowed: ``nvidia_driver_reboot``.
        connection: name of Ansible's connection plugin.
    """
    if not required:
        return {"reboot": False, "reboot_required": False, "reason": "No reboot is needed."}
    text = required[0].upper() + required[1:]
    if connection.rsplit(".", 1)[-1] not in _REBOOTABLE:
        return {
            "reboot": False,
            "reboot_required": True,
            "reason": f"{text}. The connection is '{connection}', over which no host is rebooted: reboot it yourself.",
        }
    if not allowed:
        return {"reboot": False, "reboot_required": True, "reason": f"{text}. nvidia_driver_reboot is false: reboot the host, then run the role again."}
    return {"reboot": True, "reboot_required": True, "reason": f"{text}. The host is rebooted."}


def checks(observed: Observed, version: str, fabric_manager_wanted: bool) -> list[dict]:
    """Verification: ``{name, subject, verdict: ok | failed | not_run, reason}``; a check that could not run is ``not_run``, never ``ok``."""
    found = []

    def add(name: str, verdict: str, reason: str) -> None:
        found.append({"name": name, "subject": "driver", "verdict": verdict, "reason": reason})

    if observed.userspace != version:
        add("driver_userspace", "failed", f"the user space is {observed.userspace or 'missing'}, the packages are {version}")
    else:
        add("driver_userspace", "ok", f"user space and packages are {version}")
    if observed.built != version:
        add("driver_module_built", "failed", f"the module for the kernel is {observed.built or 'missing'}, wanted is {version}")
    else:
        add("driver_module_built", "ok", f"the module {version} is there for the kernel")
    if not observed.loadable:
        add("driver_module_loaded", "not_run", observed.not_loadable_reason)
        add("driver_gpu_count", "not_run", observed.not_loadable_reason)
    elif observed.loaded != version:
        add(
            "driver_module_loaded",
            "not_run" if observed.loaded or observed.nouveau else "failed",
            f"the loaded module is {observed.loaded or 'none'}, wanted is {version}",
        )
        add("driver_gpu_count", "not_run", "the wanted module is not loaded")
    else:
        add("driver_module_loaded", "ok", f"the loaded module and the user space are {version}")
        if observed.smi_gpus is None:
            add("driver_gpu_count", "failed", f"nvidia-smi does not answer: {observed.smi_detail}")
        elif observed.smi_gpus != observed.pci_gpus:
            add(
                "driver_gpu_count",
                "failed",
                f"nvidia-smi sees {observed.smi_gpus} GPUs, the PCI bus has {observed.pci_gpus}: {observed.smi_detail or 'one is lost'}",
            )
        else:
            add("driver_gpu_count", "ok", f"nvidia-smi and the PCI bus both have {observed.pci_gpus} GPUs")
    if fabric_manager_wanted:
        good = observed.fabric_manager == version
        add("fabric_manager_version", "ok" if good else "failed", f"fabric manager {observed.fabric_manager or 'missing'}, driver {version}")
    return found


def services(request: Request, installed: dict[str, str], usable: bool, units: list[str]) -> list[dict]:
    """Services to enable, and to start when the module is usable: ``{name, enabled, state}`` (``state`` is omitted when nothing is to be started)."""
    wanted = ["nvidia-persistenced"] if request.persistence and "nvidia-persistenced" in units else []
    if request.fabric_manager and "nvidia-fabricmanager" in units:
        wanted.append("nvidia-fabricmanager")
    return [{"name": name, "enabled": True, **({"state": "started"} if usable else {})} for name in wanted]


# --- the role's result ---------------------------------------------------------------------------------------------------------------------------------------

_EMPTY_RESULT = {
    "schema": 1,
    "state": "",
    "reason": "",
    "version": "",
    "branch": "",
    "flavour": "",
    "source": "",
    "packages": {},
    "held": [],
    "kernel": "",
    "compiler": "",
    "module_version": "",
    "built_version": "",
    "userspace_version": "",
    "fabric_manager": "",
    "reboot_required": False,
    "rebooted": False,
    "changed": False,
    "actions": [],
    "checks": [],
    "trace": [],
}


def untouched_result(decision: Applicability, host: dict) -> dict:
    """``nvidia_driver_result`` of a host that the role leaves alone: what the facts say of its driver, every check ``not_run``."""
    found = host.get("driver") or {}
    return {
        **_EMPTY_RESULT,
        "state": decision.state,
        "reason": decision.reason,
        "version": found.get("userspace_version") or "",
        "userspace_version": found.get("userspace_version") or "",
        "module_version": found.get("module_version") or "",
        "flavour": found.get("module_flavour") or "",
        "packages": found.get("packages") or {},
        "reboot_required": found.get("state") == "reboot_required",
        "checks": [{"name": "driver", "subject": "driver", "verdict": "not_run", "reason": decision.reason}],
    }


def outcome(done: dict, allowed: bool, connection: str, rebooted: bool) -> dict:
    """``{reboot, failed_checks, result, connection}`` after the work.

    Args:
        done: result of the module ``nvidia_driver``.
        allowed: whether the user allows a reboot.
        connection: name of the connection plugin.
        rebooted: whether this run rebooted the host already; it is not done twice.
    """
    decision = decide_reboot(done.get("reboot_needed", ""), allowed, connection)
    if rebooted and decision["reboot"]:
        decision = {**decision, "reboot": False, "reason": f"After a reboot {done['reboot_needed']}; it is not done twice. See the kernel log."}
    failed = [f"{check['name']}: {check['reason']}" for check in done.get("checks", []) if check["verdict"] == "failed"]
    state = "planned" if not done.get("driver") else "reboot_required" if decision["reboot_required"] else "failed" if failed else "ok"
    return {
        "reboot": decision["reboot"],
        "failed_checks": failed,
        "connection": connection,
        "result": {
            **_EMPTY_RESULT,
            **{key: value for key, value in done.get("driver", {}).items() if key in _EMPTY_RESULT},
            "version": done.get("version", ""),
            "state": state,
            "reason": f"{decision['reason']} {done['driver'].get('reason', '')}".strip() if done.get("driver") else "Known once the repository is there.",
            "reboot_required": decision["reboot_required"],
            "rebooted": rebooted,
            "changed": bool(done.get("changed")) or rebooted,
            "actions": list(done.get("actions", [])),
            "checks": list(done.get("checks", [])),
            "trace": list(done.get("trace", [])),
        },
    }
