# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs and their driver on a host: PCI, nvidia-smi, kernel module, user space, packages, dkms."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import TIMED_OUT, Host
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_system import parse_keyed_kib, parse_list_format
from ansible_collections.ironwheel.gpu.plugins.module_utils.versions import parse as parse_version

_PCI = "/sys/bus/pci/devices"
_PASS_THROUGH = ("vfio-pci", "pci-stub", "pciback", "xen-pciback")
_SMI_PATHS = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi", "/opt/bin/nvidia-smi")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_PACKAGE = re.compile(
    r"(?:lib)?nvidia[-_]|cuda-drivers|libcuda1$|libnvcuvid|linux-(?:modules|objects|signatures)-nvidia|xserver-xorg-video-nvidia"
    r"|nvlink5|nvlsm$|kmod-nvidia|dnf-plugin-nvidia"
)
# Named like the driver, but no part of it.
_OTHER_PACKAGE = re.compile(r"(?:lib)?nvidia-(?:container|cuda-|cudnn|nsight|visual-profiler|profiler|openmpi|nccl|ml-dev|vaapi|mlnx|peer)")
# Packages that bring a kernel module or the user space; the others are settings, helpers and pins, which may be there without a driver.
_CORE_PACKAGE = re.compile(
    r"nvidia-driver(?!-(?:pinning|assistant|local))|nvidia-open|nvidia-(?:\w+-)?kernel-(?!common|support|source)|nvidia-(?:open-)?dkms"
    r"|nvidia-headless|nvidia-compute|libnvidia-(?:compute|ml)|libcuda1$|cuda-drivers|kmod-nvidia|linux-modules-nvidia"
)


@dataclass
class Smi:
    """What nvidia-smi said: ``state`` is not_run, ok, failed or hung."""

    path: str | None = None
    state: str = "not_run"
    rows: list = field(default_factory=list)
    mig: dict = field(default_factory=dict)
    driver_version: str | None = None
    cuda_max: str | None = None
    text: str = ""

    @property
    def fault(self) -> str | None:
        """Name of the fault that its text describes (see ``gpus.smi_fault``)."""
        return gpus.smi_fault(self.text)


def find_smi(host: Host) -> str | None:
    """Path of nvidia-smi: on PATH, else where drivers, WSL and container platforms put it."""
    on_path = [f"{folder}/nvidia-smi" for folder in host.environ.get("PATH", "").split(":") if folder.startswith("/")]
    return next((path for path in (*on_path, *_SMI_PATHS) if host.is_file(path)), None)


def query_smi(host: Host) -> Smi:
    """Ask nvidia-smi for its GPUs; one time-out ends the asking.

    Without a loaded kernel module it is not run: as root it would load one, and reading facts changes nothing.
    """
    smi = Smi(path=find_smi(host))
    if smi.path is None or host.run is None or not (module_loaded(host) or host.exists("/dev/nvidiactl") or host.exists("/dev/dxg")):
        return smi
    fields = list(gpus.QUERY_FIELDS)
    status, out, err = 0, "", ""
    for _attempt in gpus.QUERY_FIELDS:
        status, out, err = host.tool(smi.path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        unknown = gpus.rejected_field(out + err) if status else None
        if unknown not in fields:
            break
        fields.remove(unknown)
    smi.text = (out + "\n" + err).strip()
    if status == TIMED_OUT:
        smi.state = "hung"
        return smi
    smi.rows = gpus.parse_query(out, tuple(fields))
    smi.state = "ok" if smi.rows else "failed"
    if not smi.rows:
        return smi
    smi.driver_version = next((row["driver_version"] for row in smi.rows if row.get("driver_version")), None)
    if any(str(row.get("mig.mode.current")).lower() == "enabled" for row in smi.rows):
        listed = gpus.parse_list(host.tool(smi.path, "-L")[1])
        smi.mig = {gpu["uuid"] or gpu["index"]: gpu["mig"] for gpu in listed}
    banner_driver, smi.cuda_max = gpus.parse_banner(host.tool(smi.path)[1])
    smi.driver_version = smi.driver_version or banner_driver
    return smi


def module_loaded(host: Host) -> bool:
    """True when the kernel has the NVIDIA module."""
    return host.is_dir("/sys/module/nvidia") or host.exists("/proc/driver/nvidia/version")


def read_pci(host: Host) -> list[dict]:
    """NVIDIA's devices on the PCI bus: ``{address, device_id, class_id, subsystem_id, driver, virtual_function, vgpu}``."""
    devices = []
    for address in host.names(_PCI):
        folder = f"{_PCI}/{address}"
        if gpus.hex_id(host.word(f"{folder}/vendor")) != gpus.NVIDIA:
            continue
        class_id = gpus.hex_id(host.word(f"{folder}/class"))
        link = host.link(f"{folder}/driver")
        devices.append(
            {
                "address": gpus.normal_address(address) or address,
                "vendor_id": gpus.NVIDIA,
                "device_id": gpus.hex_id(host.word(f"{folder}/device")),
                "class_id": class_id,
                "driver": os.path.basename(link) if link else None,
                # Slices that a vGPU host hands to its guests are not GPUs of this host.
                "virtual_function": host.link(f"{folder}/physfn") is not None,
                "vgpu": class_id in gpus.GPU_CLASSES and gpus.has_vgpu_capability(host.data(f"{folder}/config", 4096, quiet=True) or b""),
            }
        )
    return devices


def count_nvswitches(host: Host, devices: list[dict]) -> int:
    """NVSwitches on the PCI bus, else the management ports through which NVLink 5 switches (HGX B200 and newer) are reached.

    Those ports are InfiniBand devices whose product data says ``SW_MNG``: fabric manager looks for the same.
    """
    on_bus = sum(gpus.is_nvswitch(device["vendor_id"], device["class_id"], device["device_id"]) for device in devices)
    if on_bus or not any(gpus.capability(None, device["device_id"]) in ("10.0", "10.3") for device in devices):
        return on_bus
    return sum(b"SW_MNG" in (host.data(f"{path}/device/vpd", 4096, quiet=True) or b"") for path in host.paths("/sys/class/infiniband"))


def read_proc_gpus(host: Host) -> dict[str, dict]:
    """What the loaded kernel module says in /proc, by PCI address, in the words of a row of nvidia-smi: name, uuid, pci.bus_id."""
    found = {}
    for folder in host.names("/proc/driver/nvidia/gpus"):
        address = gpus.normal_address(folder)
        text = host.text(f"/proc/driver/nvidia/gpus/{folder}/information", quiet=True) or ""
        model, uuid = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE), re.search(r"^GPU UUID:\s*(GPU-[\w-]+)", text, re.MULTILINE)
        if address:
            found[address] = {"name": model.group(1) if model else None, "uuid": uuid.group(1) if uuid else None, "pci.bus_id": address}
    return found


def read_gpus(host: Host, devices: list[dict], smi: Smi, container: str | None, total_mib: int | None) -> list[dict]:
    """GPUs on the PCI bus joined with what the driver says about them, by PCI address.

    ``usable`` is False for a GPU that a working driver does not report (lost, or not handed into a container) or that is set aside for a virtual
    machine. On a host without a driver every other GPU is usable: it will be.
    """
    rows = {gpus.normal_address(str(row.get("pci.bus_id"))): row for row in smi.rows if gpus.normal_address(str(row.get("pci.bus_id")))}
    told = read_proc_gpus(host)
    lost = gpus.lost_addresses(smi.text)
    on_bus = [device for device in devices if gpus.is_gpu(device["vendor_id"], device["class_id"]) and not device["virtual_function"]]
    found = []
    for device in on_bus:
        row = rows.pop(device["address"], None)
        set_aside = device["driver"] in _PASS_THROUGH
        usable = not set_aside if smi.state != "ok" else row is not None
        if smi.state == "ok" and row is None and not set_aside and not container:
            said = "nvidia-smi says that it is lost" if device["address"] in lost else "nvidia-smi does not list it"
            host.warn(
                "GpuLost",
                f"The GPU at {device['address']} is on the PCI bus, but {said}: {len(smi.rows)} of {len(on_bus)} GPUs work.",
                "Look for Xid messages in the kernel log; power the host off and on, then check the card's seat and power.",
            )
        found.append(_gpu(host, device, row or told.get(device["address"]), smi, usable, total_mib))
    # WSL and some containers have GPUs without a PCI view.
    unseen = [row for row in smi.rows if not on_bus or gpus.normal_address(str(row.get("pci.bus_id"))) in rows]
    if not on_bus and smi.state != "ok":
        unseen = list(told.values()) or [{} for _node in host.names("/dev", "nvidia[0-9]*")]
    found.extend(_gpu(host, None, row, smi, True, total_mib) for row in unseen)
    for gpu in found:
        if gpus.is_grace(gpu["name"]):
            host.warn(
                "GpuMemoryInHostMemory",
                f"The memory of {gpu['name']} is a NUMA node of this host: it is taken out of the usable memory.",
                "Nothing to do; MemTotal in /proc/meminfo includes GPU memory here.",
            )
        if gpu["unified_memory"]:
            host.warn(
                "UnifiedMemory",
                f"{gpu['name']} shares the host's {total_mib} MiB of memory: what a server takes is missing on the host, and the other way round.",
                "Leave the host room: a GPU memory utilisation of 0.8 at most.",
            )
    return sorted(found, key=lambda gpu: (gpu["index"] is None, gpu["index"] or 0))


def _gpu(host: Host, device: dict | None, row: dict | None, smi: Smi, usable: bool, total_mib: int | None) -> dict:
    """One entry of ``gpus`` from a PCI device, a row of nvidia-smi, or both."""
    device, row = device or {}, row or {}
    device_id = device.get("device_id")
    name = row.get("name") or gpus.model_name(device_id)
    told, from_table = row.get("compute_cap"), gpus.capability(name, device_id)
    value = told or from_table
    memory = row.get("memory.total")
    unified = memory is None and gpus.is_unified(name, value)
    if value is None:
        host.warn(
            "CapabilityUnknown",
            f"The compute capability of GPU {name or device_id} is not known: neither its driver nor the table of models tells.",
            "Update the driver, or name the architectures yourself.",
        )
    return {
        "index": row.get("index"),
        "pci_address": device.get("address") or gpus.normal_address(str(row.get("pci.bus_id"))),
        "vendor_id": device.get("vendor_id", gpus.NVIDIA),
        "device_id": device_id,
        "class_id": device.get("class_id"),
        "name": name,
        "uuid": row.get("uuid"),
        "compute_capability": value,
        "capability_source": "driver" if told else ("table" if value else None),
        "memory_mib": total_mib if unified else memory,
        "unified_memory": unified,
        "mig": {
            "enabled": str(row.get("mig.mode.current")).lower() == "enabled",
            "devices": smi.mig.get(row.get("uuid")) or smi.mig.get(row.get("index")) or [],
        },
        "usable": usable,
    }


def grace_memory_mib(host: Host) -> int:
    """Free memory in MiB of the NUMA nodes without CPUs: on Grace hosts that is GPU memory."""
    free = 0
    for node in host.paths("/sys/devices/system/node", "node[0-9]*"):
        if parse_list_format(host.text(f"{node}/cpulist", quiet=True)) is None:
            text = re.sub(r"^Node \d+ ", "", host.text(f"{node}/meminfo", quiet=True) or "", flags=re.MULTILINE)
            free += parse_keyed_kib(text).get("MemFree", 0)
    return free // 1024


def parse_dpkg_status(text: str) -> dict[str, str]:
    """The driver's packages in a dpkg status file, ``{name: version}``; only what is really installed."""
    packages: dict[str, str] = {}
    for stanza in re.split(r"\n\s*\n", text):
        if "nvidia" not in stanza and "cuda" not in stanza and "nvl" not in stanza:
            continue
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line.startswith(" "))
        name, status = fields.get("Package", ""), fields.get("Status", "").split()
        if is_driver_package(name) and status[-1:] == ["installed"] and (name not in packages or fields.get("Architecture") != "i386"):
            packages[name] = fields.get("Version", "")
    return packages


def is_driver_package(name: str) -> bool:
    """True for a package of the driver (kernel module, user space, fabric manager), not of the toolkit or the container toolkit."""
    return bool(_PACKAGE.match(name)) and not _OTHER_PACKAGE.match(name)


def upstream_version(package_version: str | None) -> str | None:
    """The driver version in a package version: ``1:580.126.09-1ubuntu1`` is 580.126.09."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)+)", package_version or "")
    return match.group(1) if match else None


def read_packages(host: Host) -> dict[str, str]:
    """The driver's packages from dpkg's status file, else from rpm."""
    status = host.text("/var/lib/dpkg/status", 64 * 1024 * 1024)
    if status is not None:
        return parse_dpkg_status(status)
    if not (host.is_dir("/var/lib/rpm") or host.is_dir("/usr/lib/sysimage/rpm")):
        return {}
    code, out, _err = host.tool("rpm", "-qa", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n")
    pairs = [line.split(" ", 1) for line in out.splitlines() if " " in line] if code == 0 else []
    return {name: version.strip() for name, version in pairs if is_driver_package(name)}


def read_userspace(host: Host) -> str | None:
    """Version of the user space driver: of the library that programs load, else the newest one that lies there."""
    found = []
    for folder in _LIBRARY_FOLDERS:
        for library in ("libnvidia-ml.so", "libcuda.so"):
            for path in (f"{folder}/{library}.1", *host.paths(folder, f"{library}.*")):
                match = re.search(r"\.so\.(\d{2,4}\.\d+(?:\.\d+)*)$", host.resolve(path))
                if match and host.is_file(path):
                    if path.endswith(".so.1"):
                        return match.group(1)
                    found.append(match.group(1))
    return max(found, key=parse_version) if found else None


def read_dkms(host: Host) -> list[dict]:
    """dkms's tree of NVIDIA modules: ``{module, version, kernel, arch, state}``, state added, built or installed.

    A version that was never built has no kernel; ``make_log`` names the log of a build that failed, or is None.
    """
    entries = []
    for folder in host.paths("/var/lib/dkms", "nvidia*"):
        module = os.path.basename(folder)
        links = {host.resolve(path): path for path in host.paths(folder, "kernel-*")}
        for version in host.names(folder):
            base = f"{folder}/{version}"
            if version.startswith("kernel-") or not host.is_dir(base):
                continue
            built = [
                (system, arch)
                for system in host.names(base)
                if system not in ("source", "build") and host.is_dir(f"{base}/{system}")
                for arch in host.names(f"{base}/{system}")
                if host.names(f"{base}/{system}/{arch}/module", "nvidia*.ko*")
            ]
            log = f"{base}/build/make.log"
            log = log if host.is_file(log) else None
            for system, arch in built:
                installed = host.resolve(f"{base}/{system}/{arch}") in links or bool(host.names(f"/lib/modules/{system}/updates/dkms", "nvidia*.ko*"))
                entries.append(
                    {"module": module, "version": version, "kernel": system, "arch": arch, "state": "installed" if installed else "built", "make_log": log}
                )
            if not built:
                entries.append({"module": module, "version": version, "kernel": None, "arch": None, "state": "added", "make_log": log})
    return entries


def has_module_file(host: Host, kernel: str | None) -> bool:
    """True when there is an NVIDIA module for this kernel, however it came there."""
    folders = ("updates/dkms", "updates", "extra", "extra/nvidia", "kernel/drivers/video", "kernel/nvidia-*", "weak-updates/nvidia")
    for folder in folders if kernel else ():
        base = f"/lib/modules/{kernel}/{folder}"
        bases = host.paths(os.path.dirname(base), os.path.basename(base)) if "*" in base else [base]
        if any(host.names(path, "nvidia.ko*") or host.names(path, "nvidia-current.ko*") for path in bases):
            return True
    return False


def judge_driver(
    gpu_count: int,
    module: str | None,
    userspace: str | None,
    smi: Smi,
    nouveau: bool = False,
    module_file: bool = False,
    kernel: str | None = None,
    headers: bool = True,
    container: str | None = None,
    wsl: bool = False,
    make_log: str | None = None,
    installed: bool = False,
) -> tuple[str, str]:
    """``(state, detail)`` of the driver: ok, absent, reboot_required or broken, with the reason in words.

    ``installed`` says whether any package or library of a driver is there.
    """
    if wsl:
        if smi.state == "ok":
            return "ok", f"The driver belongs to Windows (version {smi.driver_version}); nothing is installed inside WSL."
        return ("broken" if installed else "absent"), "The driver belongs to Windows: install or mend it there, not inside WSL."
    if module and ((userspace and module != userspace) or smi.fault == "mismatch"):
        other = f"the user space is {userspace}" if userspace and userspace != module else "nvidia-smi reports another version in the user space"
        return "reboot_required", f"The loaded kernel module is {module} and {other}: reboot; installing again changes nothing."
    if not module:
        if not installed:
            return "absent", "No NVIDIA driver is installed." if gpu_count else "This host has no NVIDIA GPU and no driver."
        if container:
            return "broken", f"This {container} container has a user space driver, but the kernel under it has no NVIDIA module: load it on the host."
        if not gpu_count:
            return "absent", f"This host has no NVIDIA GPU; driver {userspace or 'packages'} is installed and has nothing to run."
        if module_file and nouveau:
            return "reboot_required", "The module nouveau holds the GPU and the NVIDIA module for this kernel is installed: reboot."
        if module_file:
            return "broken", f"The NVIDIA module for kernel {kernel} is installed but not loaded: see what `modprobe nvidia` and the kernel log say."
        reason = "its headers are missing" if not headers else (f"see {make_log}" if make_log else "it was not built")
        return "broken", f"A driver is installed, but there is no NVIDIA module for the running kernel {kernel}: {reason}."
    if smi.state == "ok":
        return "ok", f"Module and user space are {module}."
    if not userspace:
        return "broken", f"Module {module} is loaded, but there is no user space driver" + (
            f" in this {container} container: start it with GPU support." if container else "."
        )
    if smi.state == "not_run":
        return "ok", f"Module and user space are {module}; nvidia-smi was not asked."
    if smi.state == "hung":
        return "broken", f"Module {module} is loaded and nvidia-smi does not answer: look for Xid messages in the kernel log."
    said = " ".join(smi.text.split())[:200] or "nothing"
    return "broken", f"Module and user space are {module}, but nvidia-smi finds no GPU; it says: {said}"


def read_driver(host: Host, system: dict, devices: list[dict], smi: Smi, gpu_count: int) -> dict:
    """The driver as loaded, as installed and as it answers. ``system`` is the ``os`` part of the facts."""
    module, flavour = gpus.parse_module_version(host.text("/proc/driver/nvidia/version", quiet=True) or "")
    module = module or host.word("/sys/module/nvidia/version")
    userspace = read_userspace(host) or smi.driver_version
    packages = read_packages(host)
    kernel = system.get("kernel")
    dkms = read_dkms(host)
    nouveau = host.is_dir("/sys/module/nouveau")
    fabric = next((upstream_version(version) for name, version in packages.items() if re.fullmatch(r"nvidia-fabric-?manager(-\d+)?", name)), None)
    state, detail = judge_driver(
        gpu_count,
        module,
        userspace,
        smi,
        nouveau=nouveau,
        module_file=has_module_file(host, kernel),
        kernel=kernel,
        headers=bool(system.get("kernel_headers")),
        container=system.get("container"),
        wsl=bool(system.get("wsl")),
        make_log=next((entry["make_log"] for entry in dkms if entry["make_log"]), None),
        installed=bool(userspace or dkms or any(_CORE_PACKAGE.match(name) for name in packages)),
    )
    if smi.state == "hung":
        host.warn("NvidiaSmiTimeout", f"{smi.path} did not answer in time and was given up.", "Look for Xid messages in the kernel log; reboot the host.")
    switches = count_nvswitches(host, devices)
    if switches and state == "ok" and fabric != userspace:
        host.warn(
            "FabricManagerMismatch",
            f"This host has NVSwitches and driver {userspace}, but fabric manager is {fabric or 'not installed'}: CUDA does not start.",
            f"Install fabric manager in exactly version {userspace}.",
        )
    persistence = [row.get("persistence_mode") for row in smi.rows if row.get("persistence_mode")]
    return {
        "state": state,
        "detail": detail,
        "module_version": module,
        "module_flavour": flavour,
        "userspace_version": userspace,
        "cuda_max": smi.cuda_max or gpus.cuda_of_driver(userspace or module),
        "nvidia_smi": smi.path,
        "packages": packages,
        "fabric_manager": fabric,
        "persistence": all(mode == "Enabled" for mode in persistence) if persistence else None,
        "nouveau": nouveau,
        "dkms": dkms,
    }
