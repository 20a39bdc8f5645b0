# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is and what it has left: operating system, user, processors, memory, disks.

Each reader takes a ``Host`` and returns its part of the host facts; the parsers under them are pure.
"""

from __future__ import annotations

import contextlib
import os
import re

from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import Host, integer, mib

_MIB = 1024 * 1024
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# The inode numbers that the kernel gives the first namespaces (include/linux/proc_ns.h): who has them is in no container.
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "uts": "uts:[4026531838]", "ipc": "ipc:[4026531839]"}
#: Text in the DMI vendor and product -> virtualization, in systemd-detect-virt's words.
_DMI_VIRTUALIZATION = (
    ("VMware", "vmware"),
    ("Amazon EC2", "amazon"),
    ("Google", "google"),
    ("Microsoft Corporation Virtual Machine", "microsoft"),
    ("innotek", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Apple Virtualization", "apple"),
    ("QEMU", "qemu"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Alibaba Cloud", "kvm"),
    ("DigitalOcean", "kvm"),
)


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of /etc/os-release with shell quoting undone."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Z][A-Z0-9_]*)=(.*)$", line)
        if match is None:
            continue
        value = match.group(2).strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1] if value[0] == "'" else re.sub(r'\\([\\"$`])', r"\1", value[1:-1])
        values[match.group(1)] = value
    return values


def parse_list_format(text: str | None) -> set[int] | None:
    """CPU numbers of the kernel's list format ``0-3,8``; None when the text is not one."""
    numbers: set[int] = set()
    for part in (text or "").strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None:
            return None
        numbers.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return numbers or None


def parse_keyed_kib(text: str) -> dict[str, int]:
    """``MemTotal:  123 kB`` lines (meminfo, status) as ``{name: number}``; numbers as they stand."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"\s*([\w()]+)\s*:?\s+(\d{1,20})(?:\s+kB)?\s*$", line)
        if match:
            values[match.group(1)] = int(match.group(2))
    return values


def parse_mountinfo(text: str) -> list[dict]:
    """Mounts as ``{root, point, options, kind, super_options}``, in mount order."""

    def unescape(part: str) -> str:
        return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), part)

    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        mounts.append(
            {
                "root": unescape(before[3]),
                "point": unescape(before[4]),
                "options": before[5].split(","),
                "kind": after[0],
                "super_options": after[2].split(","),
            }
        )
    return mounts


def parse_cgroups(text: str) -> dict[str, str]:
    """/proc/self/cgroup as ``{controller: path}``; the unified hierarchy has the key ``""``."""
    paths = {}
    for line in text.splitlines():
        number, _first, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not number.isdigit() or not colon:
            continue
        for controller in controllers.split(","):
            paths.setdefault(controller, path)
    return paths


def cgroup_folders(host: Host, controller: str) -> list[tuple[str, bool]]:
    """The control group of this process and all its ancestors that can be seen, nearest first, as ``[(folder, unified)]``.

    Version 1 has a hierarchy a controller, version 2 one for all; on hybrid hosts both are mounted and both are looked at. The path in
    /proc/self/cgroup counts from the root of the hierarchy, while a container sees only a part of it: the mount's own root is taken off.
    """
    paths = parse_cgroups(host.text("/proc/self/cgroup", quiet=True) or "")
    folders: list[tuple[str, bool]] = []
    for mount in parse_mountinfo(host.text("/proc/self/mountinfo", quiet=True) or ""):
        unified = mount["kind"] == "cgroup2"
        if not unified and not (mount["kind"] == "cgroup" and controller in mount["super_options"]):
            continue
        path = paths.get("" if unified else controller, "/")
        point, root = mount["point"].rstrip("/"), mount["root"].rstrip("/")
        inside = path[len(root) :] if path == root or path.startswith(root + "/") else "/"
        parts = [part for part in inside.split("/") if part]
        if ".." in parts or not host.is_dir("/".join([point, *parts])):
            parts = []
        for depth in range(len(parts), -1, -1):
            folder = "/".join([point, *parts[:depth]])
            if (folder, unified) not in folders:
                folders.append((folder, unified))
    return folders


def read_os(host: Host) -> dict:
    """Operating system, kernel and the kind of machine."""
    release = parse_os_release(host.text("/etc/os-release") or host.text("/usr/lib/os-release") or "")
    if not release:
        host.warn("OsUnknown", "Neither /etc/os-release nor /usr/lib/os-release says which distribution this is.", "Provide os-release.")
    kernel = os.uname().release if host.live else host.word("/proc/sys/kernel/osrelease")
    container = read_container(host)
    wsl = "microsoft" in (kernel or "").lower() or host.exists("/proc/sys/fs/binfmt_misc/WSLInterop")
    return {
        "id": release.get("ID") or None,
        "version": release.get("VERSION_ID") or None,
        "like": (release.get("ID_LIKE") or "").split(),
        "name": release.get("PRETTY_NAME") or release.get("NAME") or None,
        "codename": release.get("VERSION_CODENAME") or None,
        "glibc": read_glibc(host),
        "arch": read_arch(host),
        "kernel": kernel,
        "kernel_headers": bool(kernel) and has_kernel_headers(host, kernel),
        "kernel_compiler": kernel_compiler(host.text("/proc/version", quiet=True) or ""),
        "secure_boot": read_secure_boot(host, container),
        "virtualization": "wsl" if wsl else read_virtualization(host),
        "container": container,
        "wsl": wsl,
        "systemd": host.is_dir("/run/systemd/system"),
    }


def read_arch(host: Host) -> str | None:
    """Machine name as uname gives it, such as ``x86_64`` or ``aarch64``."""
    if host.live:
        return os.uname().machine
    named = host.word("/proc/sys/kernel/arch")
    if named:
        return named
    for loader, machine in (("/lib64/ld-linux-x86-64.so.2", "x86_64"), ("/lib/ld-linux-aarch64.so.1", "aarch64")):
        if host.exists(loader):
            return machine
    return None


def read_glibc(host: Host) -> str | None:
    """Version of the C library, or None (musl, or nothing found)."""
    if host.live:
        with contextlib.suppress(OSError, ValueError):
            match = re.search(r"glibc (\d+\.\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
            if match:
                return match.group(1)
    for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64"):
        content = host.data(f"{folder}/libc.so.6", 8 * _MIB, quiet=True) or b""
        match = re.search(rb"GNU C Library [^\n]*?version (\d+\.\d+)", content)
        if match:
            return match.group(1).decode()
        named = re.search(r"libc-(\d+\.\d+)\.so$", host.resolve(f"{folder}/libc.so.6"))
        if named:
            return named.group(1)
    _status, out, err = host.tool("ldd", "--version")
    match = re.search(r"ldd \(.*\) (\d+\.\d+)", out + err)
    if match:
        return match.group(1)
    host.warn("GlibcUnknown", "No GNU C library was found on this host; wheels for it cannot be judged.", "Use a distribution with glibc.")
    return None


def has_kernel_headers(host: Host, kernel: str) -> bool:
    """True when a module can be built for this kernel: its build folder has a Makefile."""
    folders = (f"/lib/modules/{kernel}/build", f"/usr/lib/modules/{kernel}/build", f"/usr/src/linux-headers-{kernel}", f"/usr/src/kernels/{kernel}")
    return any(host.is_file(f"{folder}/Makefile") for folder in folders)


def kernel_compiler(text: str) -> str | None:
    """Name of the compiler that built the running kernel, such as ``gcc-12`` or ``gcc``, from /proc/version."""
    match = re.search(r"\((?:[\w]+-linux-gnu-)?(gcc|clang)((?:-\d+)?)[ )]", text) or re.search(r"\b(gcc|clang)( )version", text)
    return (match.group(1) + match.group(2)).strip() if match else None


def read_secure_boot(host: Host, container: str | None) -> bool | None:
    """True or False as the firmware says; False without EFI; None when it cannot be seen (in containers, or not readable)."""
    # Four bytes of attributes, then the value.
    value = host.data(_SECURE_BOOT, 16, quiet=True)
    if value is not None:
        return bool(value[4]) if len(value) >= 5 else None
    if container or not host.is_dir("/sys/firmware") or host.is_dir("/sys/firmware/efi"):
        return None
    return False


def read_virtualization(host: Host) -> str | None:
    """``none``, or the hypervisor in systemd-detect-virt's words (``vm-other`` when it has no name); None when nothing tells."""
    dmi = " ".join(host.word(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name", "bios_vendor", "board_vendor")).strip()
    cpuinfo = host.text("/proc/cpuinfo", quiet=True) or ""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    hypervisor = None if flags is None else "hypervisor" in flags.group(1).split()
    if hypervisor is not False and ".metal" not in dmi:
        for text, kind in _DMI_VIRTUALIZATION:
            if text in dmi:
                # QEMU with the hypervisor's bit is KVM in all but museums.
                return "kvm" if kind == "qemu" and hypervisor else kind
        if host.word("/sys/hypervisor/type") == "xen":
            return "xen"
    status, out, _err = host.tool("systemd-detect-virt", "--vm")
    if out.strip() and (status == 0 or out.strip() == "none"):
        return out.strip().splitlines()[0]
    if hypervisor is not None:
        return "vm-other" if hypervisor else "none"
    return None


def read_container(host: Host) -> str | None:
    """Kind of container (``docker``, ``podman``, ``lxc``, ``kubernetes``, …) or None on a host or virtual machine."""
    named = host.word("/run/systemd/container") or host.word("/run/host/container-manager")
    environ = host.text("/proc/1/environ", quiet=True) or ""
    match = re.search(r"(?:^|\0)container=([\w.-]+)", environ)
    if named or match:
        return (named or match.group(1)).split()[0]
    # Images of virtual machines are made from containers too and keep their marker files: the namespaces refute those.
    on_host = all(host.link(f"/proc/self/ns/{name}") == first for name, first in _FIRST_NAMESPACES.items())
    if on_host:
        return None
    if host.exists("/run/.containerenv"):
        return "podman"
    if host.exists("/.dockerenv"):
        return "docker"
    groups = host.text("/proc/1/cgroup", quiet=True) or ""
    for text, kind in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("/lxc", "lxc"), ("garden", "garden")):
        if text in groups:
            return kind
    return "lxc" if host.exists("/dev/lxd/sock") or host.exists("/dev/.lxc") else None


def read_user(host: Host) -> dict:
    """Who runs: effective user, home from the user database."""
    status = parse_status(host.text("/proc/self/status", quiet=True) or "")
    uid = os.geteuid() if host.live else status["uid"]
    name, home = users(host).get(uid, (None, None))
    if host.live and name is None:
        home = os.environ.get("HOME")
    return {"name": name, "uid": uid, "home": home, "root": uid == 0}


def users(host: Host) -> dict[int, tuple[str, str]]:
    """``{uid: (name, home)}`` of /etc/passwd. On the live host the name service is asked for its own user only."""
    found: dict[int, tuple[str, str]] = {}
    for line in (host.text("/etc/passwd", quiet=True) or "").splitlines():
        parts = line.split(":")
        uid = integer(parts[2]) if len(parts) >= 7 else None
        if uid is not None:
            found.setdefault(uid, (parts[0], parts[5]))
    if host.live and os.geteuid() not in found:
        import pwd

        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(os.geteuid())
            found[os.geteuid()] = (entry.pw_name, entry.pw_dir)
    return found


def parse_status(text: str) -> dict:
    """Fields of /proc/<pid>/status: ``{ppid, uid (effective), state, rss_kib, cpus}``, None where missing."""
    fields = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key, value.split())

    def word(key: str, position: int = 0) -> str | None:
        values = fields.get(key) or []
        return values[position] if len(values) > position else None

    return {
        "ppid": integer(word("PPid")),
        "uid": integer(word("Uid", 1)),
        "state": word("State"),
        "rss_kib": integer(word("VmRSS")),
        "cpus": word("Cpus_allowed_list"),
    }


def read_cpu(host: Host) -> dict:
    """Processors of the host and how many of them this process may use (at least 1)."""
    cpuinfo = host.text("/proc/cpuinfo", quiet=True) or ""
    online_list = parse_list_format(host.text("/sys/devices/system/cpu/online", quiet=True))
    online = len(online_list) if online_list else (len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None)
    allowed = parse_list_format(parse_status(host.text("/proc/self/status", quiet=True) or "")["cpus"])
    affinity = len(os.sched_getaffinity(0)) if host.live else (len(allowed) if allowed else None)
    sets = [
        parse_list_format(host.text(f"{folder}/{name}", quiet=True))
        for folder, unified in cgroup_folders(host, "cpuset")
        for name in (("cpuset.cpus.effective",) if unified else ("cpuset.effective_cpus", "cpuset.cpus"))
    ]
    quota = read_quota(host)
    limits = [online, affinity, *(len(group) for group in sets if group), None if quota is None else int(quota)]
    known = [limit for limit in limits if limit is not None]
    if not known:
        host.warn("CpuUnknown", "The number of processors cannot be read from /sys or /proc.", "Check that /proc and /sys are mounted.")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+?)\s*$", cpuinfo, re.MULTILINE)
    return {
        "online": online,
        "affinity": affinity,
        "quota": quota,
        "usable": max(1, min(known)) if known else None,
        "model": model.group(1) if model else None,
    }


def read_quota(host: Host) -> float | None:
    """The smallest CPU quota over all ancestor control groups, in processors; None without one."""
    quotas = []
    for folder, unified in cgroup_folders(host, "cpu"):
        if unified:
            words = (host.word(f"{folder}/cpu.max") or "").split()
            quota, period = (integer(words[0]), integer(words[1])) if len(words) == 2 else (None, None)
        else:
            quota, period = host.number(f"{folder}/cpu.cfs_quota_us"), host.number(f"{folder}/cpu.cfs_period_us")
        # -1 and "max" mean no limit.
        if quota and period and quota > 0 and period > 0:
            quotas.append(round(quota / period, 3))
    return min(quotas) if quotas else None


def read_memory(host: Host, wsl: bool = False) -> dict:
    """Memory that new processes can really use, in MiB: what the host has available, or what the tightest ancestor control group leaves.

    Swap never counts as memory, hugepages are reserved for others (MemAvailable leaves them out), and page cache that can be
    reclaimed is not "used" in a control group either.
    """
    info = parse_keyed_kib(host.text("/proc/meminfo") or "")
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    if total is None:
        host.warn("MemoryUnknown", "/proc/meminfo does not say how much memory the host has.", "Check that /proc is mounted.")
    # Kernels before 3.14 do not tell: what is free is a bound that is always true.
    room_kib = available if available is not None else info.get("MemFree")
    hugepages = info.get("Hugetlb") or info.get("HugePages_Total", 0) * info.get("Hugepagesize", 0)
    tightest = tightest_group(host)
    rooms = [room_kib // 1024 if room_kib is not None else None, tightest["headroom"]]
    known = [room for room in rooms if room is not None]
    if wsl:
        host.warn(
            "WslMemory",
            f"WSL sees {None if total is None else total // 1024} MiB: by default half of the memory that Windows has.",
            "Raise `memory=` in %UserProfile%\\.wslconfig on Windows and restart WSL.",
        )
    return {
        "total_mib": None if total is None else total // 1024,
        "available_mib": None if available is None else available // 1024,
        "cgroup_limit_mib": tightest["limit"],
        "cgroup_headroom_mib": tightest["headroom"],
        "limited_by": tightest["path"],
        "usable_mib": max(0, min(known)) if known else None,
        "swap_total_mib": info["SwapTotal"] // 1024 if "SwapTotal" in info else None,
        "swap_free_mib": info["SwapFree"] // 1024 if "SwapFree" in info else None,
        "hugepages_mib": hugepages // 1024 if info else None,
    }


def tightest_group(host: Host) -> dict:
    """The ancestor control group with the least memory left: ``{limit, headroom, path}`` in MiB, all None without a limit.

    A limit at or above what any machine has is version 1's way to say "none".
    """
    found = {"limit": None, "headroom": None, "path": None}
    folders = cgroup_folders(host, "memory")
    own = next((folder for folder, unified in folders if not unified), None)
    for folder, unified in folders:
        # Version 1 without use_hierarchy: an ancestor is not charged for this process.
        if not unified and folder != own and host.word(f"{folder}/memory.use_hierarchy") == "0":
            continue
        if unified:
            # Above memory.high the kernel slows the group down until it stands: for a build that is the limit.
            limits = [host.number(f"{folder}/memory.max"), host.number(f"{folder}/memory.high")]
            usage, cache_key = host.number(f"{folder}/memory.current"), "inactive_file"
        else:
            limits = [host.number(f"{folder}/memory.limit_in_bytes")]
            usage, cache_key = host.number(f"{folder}/memory.usage_in_bytes"), "total_inactive_file"
        limits = [limit for limit in limits if limit is not None and 0 <= limit < 1 << 60]
        if not limits:
            continue
        cache = parse_keyed_kib(host.text(f"{folder}/memory.stat", quiet=True) or "").get(cache_key, 0)
        headroom = max(0, min(limits) - max(0, (usage or 0) - cache))
        if found["headroom"] is None or mib(headroom) < found["headroom"]:
            found = {"limit": mib(min(limits)), "headroom": mib(headroom), "path": folder}
    return found


def read_disk(host: Host, paths: list[str]) -> list[dict]:
    """Room on the file systems that hold these paths (or will: the nearest existing parent is looked at), in MiB."""
    mounts = parse_mountinfo(host.text("/proc/self/mountinfo", quiet=True) or "")
    disks = []
    for path in dict.fromkeys(paths):
        existing = path
        while existing not in ("/", "") and not host.exists(existing):
            existing = os.path.dirname(existing)
        real = host.resolve(existing or "/")
        point, options = None, []
        for mount in mounts:
            inside = real == mount["point"] or real.startswith(mount["point"].rstrip("/") + "/")
            # Among equals the later mount lies on top.
            if inside and (point is None or len(mount["point"]) >= len(point)):
                point, options = mount["point"], mount["options"] + mount["super_options"]
        free = total = None
        try:
            room = os.statvfs(host.real(real))
            free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        except (OSError, ValueError) as exc:
            host.warn("DiskUnreadable", f"The file system of {path} cannot be examined: {exc}.", "Choose another path, or mend the mount.")
        disks.append(
            {"path": path, "mount": point, "free_mib": mib(free), "total_mib": mib(total), "noexec": "noexec" in options, "read_only": "ro" in options}
        )
    return disks
