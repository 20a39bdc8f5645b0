# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs: PCI identity, compute capability, and the output of every generation of nvidia-smi.

Pure functions over text and bytes. None of them raises on arbitrary text: what cannot be read is None or left out.
"""

from __future__ import annotations

import re

from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.gpu_models import MODELS

NVIDIA = "10de"
#: VGA controller, 3D controller, other display controller. Audio (0403), USB (0c03) and bridges of the same card are not GPUs.
GPU_CLASSES = ("0300", "0302", "0380")

#: What nvidia-smi is asked for. Old drivers do not know every field: ``rejected_field`` names the one to leave out.
QUERY_FIELDS = ("index", "pci.bus_id", "uuid", "name", "memory.total", "compute_cap", "mig.mode.current", "persistence_mode", "driver_version")

#: Highest CUDA that a driver branch runs (its libcuda's version). Source: NVIDIA, CUDA toolkit release notes, table "CUDA Toolkit and Corresponding
#: Driver Versions"; 615 and 620 after CUDA 13.4's and 13.5's guides.
BRANCH_CUDA = {
    450: "11.0", 455: "11.1", 460: "11.2", 465: "11.3", 470: "11.4", 495: "11.5", 510: "11.6", 515: "11.7", 520: "11.8", 525: "12.0", 530: "12.1", 535: "12.2",
    545: "12.3", 550: "12.4", 555: "12.5", 560: "12.6", 565: "12.7", 570: "12.8", 575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2", 610: "13.3", 615: "13.4",
    620: "13.5",
}

#: Names as drivers print them, most particular first, with the compute capability. Used when neither driver nor PCI id tells.
#: Source: https://developer.nvidia.com/cuda-gpus and https://developer.nvidia.com/cuda-legacy-gpus.
NAME_CAPABILITIES = tuple(
    (re.compile(pattern, re.IGNORECASE), capability)
    for pattern, capability in (
        (r"\bG?B300\b", "10.3"),
        (r"\b(?:GB200|B200|B100)\b", "10.0"),
        (r"\bGB10\b|\bRTX Spark\b", "12.1"),
        (r"\bThor\b|\bT5000\b", "11.0"),
        (r"\bOrin\b", "8.7"),
        (r"\bRTX PRO \d+\w*(?: \d+GB)? (?:SFF )?Blackwell\b|\bRTX 6000D\b|\bRTX 50[5-9]0\b", "12.0"),
        (r"\b(?:GH200|H200|H100L?|H800L?|H20B?)\b", "9.0"),
        (r"\b(?:L40S?|L4|L20|L2)\b|\bRTX \d{3,4}(?: SFF)? Ada\b|\bRTX 5880\b|\bRTX 40[5-9]0\b|\bRTX 3050 A\b", "8.9"),
        (r"\b(?:A100X?|A800|A30X?|AX800|CMP 170HX)\b", "8.0"),
        (r"\b(?:A10[GM]?|A16|A2|A40)\b|\bRTX A\d{3,4}\b|\bRTX 30[5-9]0\b|\bRTX 2050\b|\bMX570\b|\bCMP (?:90|70)HX\b", "8.6"),
        (r"\b(?:T4G?|T10|T40)\b|\bRTX 20[6-8]0\b|\bGTX 16[3-6]0\b|\bTITAN RTX\b|\bQuadro RTX\b|\bRTX[68]000\b", "7.5"),
        (r"\bT(?:4|5|6|10|12)00\b|\bMX4[35]0\b|\bMX550\b", "7.5"),
        (r"\bV100[A-Z]?\b|\bGV100\b|\bTITAN V\b", "7.0"),
        (r"\bP100\b|\bGP100\b", "6.0"),
        (r"\b(?:P40|P4|P6)\b|\bGTX 10[5-8]0\b|\bGT 1030\b|\bTITAN Xp\b|\bTITAN X \(Pascal\)|\bQuadro P\d{3,4}\b|\bP10[246]-\d", "6.1"),
        (r"\b(?:M60|M40|M6|M4)\b|\bGTX 9[5-8]0\b|\bGTX TITAN X\b|\bQuadro M(?:4000|5000|5500|6000)\b", "5.2"),
        (r"\bM10\b|\bGTX 750 Ti\b", "5.0"),
    )
)

# GPUs without memory of their own: nvidia-smi says [N/A], and what they use is the host's RAM.
_UNIFIED_NAME = re.compile(r"\bGB10\b|\bRTX Spark\b|\bThor\b|\bOrin\b", re.IGNORECASE)
# Grace hosts: the GPU's own memory shows up as a NUMA node without CPUs and is part of MemTotal.
_GRACE_NAME = re.compile(r"\bG[HB][23]00\b", re.IGNORECASE)
_VGPU_NAME = re.compile(r"^(?:NVIDIA |GRID )*[A-Z]+\w*(?: \w+)*-\d+[ABCQ]$")
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_VERSION = r"(\d+(?:\.\d+)+)"


def normal_address(text: str) -> str | None:
    """The kernel's form of a PCI address: ``00000000:41:00.0`` and ``41:00.0`` become ``0000:41:00.0``; None when there is none in the text."""
    match = _ADDRESS.search(text)
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{slot.lower()}.{function}"


def hex_id(text: str | None, digits: int = 4) -> str | None:
    """A sysfs id (``0x10de``, ``0x030200``) as its first ``digits`` hexadecimal digits in lower case, or None."""
    match = re.fullmatch(r"\s*(?:0x)?([0-9a-fA-F]{4,6})\s*", text or "")
    return match.group(1).lower()[:digits] if match else None


def is_gpu(vendor_id: str | None, class_id: str | None) -> bool:
    """True for an NVIDIA display controller, by ids and never by the text of a class."""
    return vendor_id == NVIDIA and class_id in GPU_CLASSES


def is_nvswitch(vendor_id: str | None, class_id: str | None, device_id: str | None) -> bool:
    """True for an NVSwitch: NVIDIA "other bridge" (0680) with an id of the three generations; old chipsets have that class too."""
    if vendor_id != NVIDIA or class_id != "0680" or not device_id:
        return False
    number = int(device_id, 16)
    return 0x1AC0 <= number <= 0x1ACF or 0x1AE0 <= number <= 0x1AFF or 0x22A0 <= number <= 0x22A7


def has_vgpu_capability(config: bytes) -> bool:
    """True when PCI configuration space has the vendor capability with the signature ``VF`` that marks a vGPU in a guest.

    Walks the capability list: status bit 4 at 0x06, first pointer at 0x34, id 0x09, signature at bytes 3 and 4. Without root only 64 bytes
    can be read, and the answer is False.
    """
    if len(config) < 0x40 or not config[0x06] & 0x10:
        return False
    position, seen = config[0x34] & 0xFC, set()
    while 0x40 <= position < len(config) - 4 and position not in seen:
        seen.add(position)
        if config[position] == 0x09 and config[position + 3 : position + 5] == b"VF":
            return True
        position = config[position + 1] & 0xFC
    return False


def is_vgpu_name(name: str | None) -> bool:
    """True for the name of a vGPU profile such as ``GRID T4-16Q`` or ``NVIDIA L40S-48C``."""
    return bool(name and _VGPU_NAME.match(name))


def model_name(device_id: str | None) -> str | None:
    """Name of the model with this PCI device id, or None."""
    return MODELS[device_id][0] if device_id in MODELS else None


def capability(name: str | None, device_id: str | None = None) -> str | None:
    """Compute capability such as ``9.0`` from the PCI device id, else from the name; None when neither is known."""
    if device_id in MODELS:
        return MODELS[device_id][1]
    for pattern, value in NAME_CAPABILITIES:
        if name and pattern.search(name):
            return value
    return None


def is_unified(name: str | None, compute_capability: str | None) -> bool:
    """True for a GPU that has no memory of its own and works in the host's (GB10, Jetson)."""
    return bool(name and _UNIFIED_NAME.search(name)) or compute_capability in ("8.7", "11.0", "12.1")


def is_grace(name: str | None) -> bool:
    """True for GH200, GB200, GB300: their GPU memory is counted in the host's MemTotal."""
    return bool(name and _GRACE_NAME.search(name))


def cuda_of_driver(version: str | None) -> str | None:
    """Highest CUDA of a driver version by its branch, or None for a branch that is not known."""
    match = re.match(r"(\d+)\.", version or "")
    if match is None or len(match.group(1)) > 4:
        return None
    number = int(match.group(1))
    # 418 to 620: numbers between two branches belong to the lower one (575 and 576).
    known = [branch for branch in BRANCH_CUDA if branch <= number < branch + 5]
    return BRANCH_CUDA[max(known)] if known else None


def parse_module_version(text: str) -> tuple[str | None, str | None]:
    """``(version, flavour)`` of /proc/driver/nvidia/version; flavour is ``open``, ``proprietary`` or None."""
    match = re.search(r"^NVRM version:\s*(.*?)\s+" + _VERSION + r"\b", text, re.MULTILINE)
    if match is None:
        return None, None
    return match.group(2), "open" if "open" in match.group(1).lower() else "proprietary"


def parse_banner(text: str) -> tuple[str | None, str | None]:
    """``(driver version, highest CUDA)`` of nvidia-smi's banner.

    Up to 605 the labels are "Driver Version" and "CUDA Version", from 610 on "KMD Version" and "CUDA UMD Version".
    """
    driver = re.search(r"\b(?:Driver|KMD) Version\s*:\s*" + _VERSION, text)
    cuda = re.search(r"\bCUDA (?:UMD )?Version\s*:\s*" + _VERSION, text)
    return (driver.group(1) if driver else None), (cuda.group(1) if cuda else None)


def parse_value(text: str) -> int | str | None:
    """One CSV value: an int, text, or None for ``[N/A]``, ``N/A``, ``[Not Supported]``, ``[Insufficient Permissions]``, ``ERR!`` and the like."""
    value = text.strip()
    if not value or re.fullmatch(r"\[.*\]|N/A|ERR!|Unknown Error|None", value, re.IGNORECASE):
        return None
    number = re.fullmatch(r"([0-9]{1,18})(?: MiB)?", value)
    return int(number.group(1)) if number else value


def parse_csv_line(line: str) -> list[int | str | None]:
    """The values of one line of ``--format=csv,noheader``."""
    return [parse_value(part) for part in line.split(",")]


def parse_query(text: str, fields: tuple[str, ...] = QUERY_FIELDS) -> list[dict[str, int | str | None]]:
    """Rows of ``--query-gpu``, one dict a GPU. Lines with another number of values (messages, half lines) are not rows.

    A value is text where the field is text: a name or capability is never turned into a number.
    """
    rows = []
    for line in text.splitlines():
        values = parse_csv_line(line)
        if len(values) != len(fields) or values[0] is None:
            continue
        row = dict(zip(fields, values))
        for field in ("name", "uuid", "compute_cap", "driver_version", "pci.bus_id"):
            if isinstance(row.get(field), int):
                row[field] = str(row[field])
        if "index" in row and not isinstance(row["index"], int):
            continue
        if not isinstance(row.get("memory.total"), int):
            row["memory.total"] = None
        if not re.fullmatch(r"\d{1,2}\.\d", str(row.get("compute_cap"))):
            row["compute_cap"] = None
        rows.append(row)
    return rows


def rejected_field(text: str) -> str | None:
    """The field that this nvidia-smi does not know, from ``Field "compute_cap" is not a valid field to query.``"""
    match = re.search(r'Field "([\w.]+)" is not a valid field', text)
    return match.group(1) if match else None


def parse_list(text: str) -> list[dict]:
    """``nvidia-smi -L``: one dict a GPU, ``{index, name, uuid, mig: [{index, profile, uuid}]}``; MIG lines belong to the GPU above them."""
    found: list[dict] = []
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d{1,4}): (.*?)(?: \(UUID: ([^)]*)\))?\s*$", line)
        if gpu:
            found.append({"index": int(gpu.group(1)), "name": gpu.group(2), "uuid": gpu.group(3), "mig": []})
            continue
        mig = re.match(r"\s+MIG (\S+)\s+Device\s+(\d{1,4}):\s*\(UUID: ([^)]*)\)", line)
        if mig and found:
            found[-1]["mig"].append({"index": int(mig.group(2)), "profile": mig.group(1), "uuid": mig.group(3)})
    return found


def lost_addresses(text: str) -> list[str]:
    """PCI addresses that nvidia-smi names as lost: ``Unable to determine the device handle for GPU0000:41:00.0: Unknown Error``."""
    found = []
    for line in text.splitlines():
        if re.search(r"Unable to determine the device handle|GPU is lost|fallen off the bus", line, re.IGNORECASE):
            # Old drivers write "GPU0000:41:00.0" without a space, which would hide the domain's first digits.
            address = normal_address(re.sub(r"GPU\s*", " ", line))
            if address and address not in found:
                found.append(address)
    return found


def smi_fault(text: str) -> str | None:
    """What a failing nvidia-smi means: ``mismatch``, ``no_module``, ``no_devices``, ``no_permission``, ``blocked``; None when the text names no known fault."""
    for fault, pattern in (
        ("mismatch", r"version mismatch"),
        ("no_module", r"couldn't communicate with the NVIDIA driver|Driver Not Loaded"),
        ("no_devices", r"No devices were found"),
        ("no_permission", r"Insufficient Permissions"),
        ("blocked", r"GPU access blocked by the operating system"),
    ):
        if re.search(pattern, text, re.IGNORECASE):
            return fault
    return None
