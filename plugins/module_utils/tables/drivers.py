# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA driver branches, kernel modules and GPUs.

Source: NVIDIA's data centre driver documentation for R620 (branches and their ends; "Proprietary Kernel Modules Removed"), "Minor Version
Compatibility", compute capability pages. State of 2026-12-01.
"""

from __future__ import annotations

# Oldest first. ``kind``: LTSB long term, PB production, NFB new feature. ``end``: month of the last update, None while open-ended or unknown.
DRIVER_BRANCHES: dict[str, dict] = {
    "535": {"kind": "LTSB", "end": "2026-06", "supported": False},
    "580": {"kind": "LTSB", "end": "2028-06", "supported": True},
    "590": {"kind": "NFB", "end": None, "supported": False},
    "595": {"kind": "PB", "end": "2027-03", "supported": True},
    "610": {"kind": "NFB", "end": "2026-08", "supported": False},
    "615": {"kind": "NFB", "end": None, "supported": True},
    "620": {"kind": "LTSB", "end": "2029-09", "supported": True},
}

# The branch of a new installation, unless something asks for a newer one: long term, last for Maxwell to Volta, and the driver of CUDA 13.0.
DEFAULT_BRANCH = "580"
# The newest Ubuntu's repository was reported without a 580.
DEFAULT_BRANCH_BY_SYSTEM: dict[str, str] = {"ubuntu26.04": "595"}

# Compute capabilities below this one: proprietary module only, and no branch from LAST_BRANCH_FOR_OLD_GPUS's successor on.
FIRST_CAPABILITY_WITH_OPEN_MODULE = "7.5"
LAST_BRANCH_FOR_OLD_GPUS = "580"
FIRST_BRANCH_WITHOUT_OLD_GPUS = "590"
# Compute capabilities from this one on: open module only.
FIRST_CAPABILITY_WITHOUT_PROPRIETARY_MODULE = "10.0"
# Driver branches from this one on have no proprietary module.
FIRST_BRANCH_WITHOUT_PROPRIETARY_MODULE = "620"
# Branches from this one on install the open module by default.
FIRST_BRANCH_WITH_OPEN_DEFAULT = "560"

# Lowest driver that runs programs of a CUDA major (minor version compatibility).
MIN_DRIVER_BY_CUDA_MAJOR: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}

# First toolkit that has machine code for a compute capability; the driver that came with it is the first that knows the GPU. 11.0 was 10.1 before CUDA 13.
FIRST_TOOLKIT: dict[str, str] = {
    "7.0": "9.0",
    "7.5": "10.0",
    "8.0": "11.0",
    "8.6": "11.1",
    "8.7": "11.4",
    "8.9": "11.8",
    "9.0": "11.8",
    "10.0": "12.8",
    "10.3": "12.9",
    "10.7": "13.4",
    "11.0": "13.0",
    "12.0": "12.8",
    "12.1": "12.9",
}

# Name of a distribution in NVIDIA's network repository: compute/cuda/repos/<name>/<x86_64|sbsa>/.
REPOSITORY_NAMES: dict[str, str] = {
    "ubuntu22.04": "ubuntu2204",
    "ubuntu24.04": "ubuntu2404",
    "ubuntu26.04": "ubuntu2604",
    "debian12": "debian12",
    "debian13": "debian13",
    "rhel8": "rhel8",
    "rhel9": "rhel9",
    "rhel10": "rhel10",
    "amzn2023": "amzn2023",
}
