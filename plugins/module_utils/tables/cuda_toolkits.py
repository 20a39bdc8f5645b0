# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CUDA toolkits: compilers, architectures, drivers.

Source: gcc and clang limits from ``host_config.h`` and architectures from ``ptxas --help`` of the nvcc wheels on PyPI (12.0 to 13.5); drivers from
NVIDIA's release notes and "Minor Version Compatibility". State of 2026-12-01. The driver of 13.4 is known as a branch only, that of 13.5 is inferred.

``max_gcc``: highest gcc major that nvcc accepts. ``clang_below``: first clang major that it refuses. ``capabilities``: compute capabilities it has
machine code for. ``driver``: the driver that came with it; an older one cannot load its PTX. ``min_driver``: lowest that runs its programs (minor
version compatibility). ``max_glibc``: newest glibc whose headers its own agree with, None where no limit is known. Read in ``crt/math_functions.h``
of the wheels: up to 12.9 sinpi and cospi are declared without the noexcept that glibc 2.41 gives them; 13.0 and 13.1 have it, but not that of rsqrt
in glibc 2.42; 13.2 and newer have both. ``nvcc_wheel``: version of the nvidia-cuda-nvcc wheel on PyPI that holds the whole compiler (CUDA 13 only),
tested with its -crt and nvidia-nvvm.
"""

from __future__ import annotations

_TO_HOPPER = ["5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0"]
_FROM_TURING = ["7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]

# Newest first.
CUDA_TOOLKITS: dict[str, dict] = {
    "13.5": {
        "max_glibc": None,
        "max_gcc": 16,
        "clang_below": 22,
        "driver": "620",
        "min_driver": "580",
        "nvcc_wheel": "13.5.37",
        "runfiles": [],
        "capabilities": [*_FROM_TURING, "10.7"],
    },
    "13.4": {
        "max_glibc": None,
        "max_gcc": 16,
        "clang_below": 22,
        "driver": "615",
        "min_driver": "580",
        "nvcc_wheel": "13.4.92",
        "runfiles": ["cuda_13.4.1_linux.run"],
        "capabilities": [*_FROM_TURING, "10.7"],
    },
    "13.3": {
        "max_glibc": None,
        "max_gcc": 15,
        "clang_below": 22,
        "driver": "610.43.02",
        "min_driver": "580",
        "nvcc_wheel": "13.3.73",
        "runfiles": ["cuda_13.3.0_610.43.02_linux.run", "cuda_13.3.1_610.43.02_linux.run"],
        "capabilities": _FROM_TURING,
    },
    "13.2": {
        "max_glibc": None,
        "max_gcc": 15,
        "clang_below": 22,
        "driver": "595.45.04",
        "min_driver": "580",
        "nvcc_wheel": "13.2.86",
        "runfiles": ["cuda_13.2.0_595.45.04_linux.run", "cuda_13.2.1_595.58.03_linux.run", "cuda_13.2.2_595.71.05_linux.run"],
        "capabilities": _FROM_TURING,
    },
    "13.1": {
        "max_glibc": "2.41",
        "max_gcc": 15,
        "clang_below": 22,
        "driver": "590.44.01",
        "min_driver": "580",
        "nvcc_wheel": "13.1.115",
        "runfiles": ["cuda_13.1.0_590.44.01_linux.run", "cuda_13.1.1_590.48.01_linux.run"],
        "capabilities": _FROM_TURING,
    },
    "13.0": {
        "max_glibc": "2.41",
        "max_gcc": 15,
        "clang_below": 21,
        "driver": "580.65.06",
        "min_driver": "580",
        "nvcc_wheel": "13.0.88",
        "runfiles": ["cuda_13.0.0_580.65.06_linux.run", "cuda_13.0.1_580.82.07_linux.run", "cuda_13.0.2_580.95.05_linux.run"],
        "capabilities": _FROM_TURING,
    },
    "12.9": {
        "max_glibc": "2.40",
        "max_gcc": 14,
        "clang_below": 20,
        "driver": "575.51.03",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.9.0_575.51.03_linux.run", "cuda_12.9.1_575.57.08_linux.run"],
        "capabilities": [*_TO_HOPPER, "10.0", "10.1", "10.3", "12.0", "12.1"],
    },
    "12.8": {
        "max_glibc": "2.40",
        "max_gcc": 14,
        "clang_below": 20,
        "driver": "570.26",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.8.0_570.86.10_linux.run", "cuda_12.8.1_570.124.06_linux.run"],
        "capabilities": [*_TO_HOPPER, "10.0", "10.1", "12.0"],
    },
    "12.6": {
        "max_glibc": "2.40",
        "max_gcc": 13,
        "clang_below": 19,
        "driver": "560.28.03",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": [
            "cuda_12.6.0_560.28.03_linux.run",
            "cuda_12.6.1_560.35.03_linux.run",
            "cuda_12.6.2_560.35.03_linux.run",
            "cuda_12.6.3_560.35.05_linux.run",
        ],
        "capabilities": _TO_HOPPER,
    },
    "12.5": {
        "max_glibc": "2.40",
        "max_gcc": 13,
        "clang_below": 18,
        "driver": "555.42.02",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.5.0_555.42.02_linux.run", "cuda_12.5.1_555.42.06_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "12.4": {
        "max_glibc": "2.40",
        "max_gcc": 13,
        "clang_below": 18,
        "driver": "550.54.14",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.4.0_550.54.14_linux.run", "cuda_12.4.1_550.54.15_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "12.3": {
        "max_glibc": "2.40",
        "max_gcc": 12,
        "clang_below": 17,
        "driver": "545.23.06",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.3.0_545.23.06_linux.run", "cuda_12.3.1_545.23.08_linux.run", "cuda_12.3.2_545.23.08_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "12.2": {
        "max_glibc": "2.40",
        "max_gcc": 12,
        "clang_below": 17,
        "driver": "535.54.03",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.2.0_535.54.03_linux.run", "cuda_12.2.1_535.86.10_linux.run", "cuda_12.2.2_535.104.05_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "12.1": {
        "max_glibc": "2.40",
        "max_gcc": 12,
        "clang_below": 16,
        "driver": "530.30.02",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.1.0_530.30.02_linux.run", "cuda_12.1.1_530.30.02_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "12.0": {
        "max_glibc": "2.40",
        "max_gcc": 12,
        "clang_below": 15,
        "driver": "525.60.13",
        "min_driver": "525.60.13",
        "nvcc_wheel": None,
        "runfiles": ["cuda_12.0.0_525.60.13_linux.run", "cuda_12.0.1_525.85.12_linux.run"],
        "capabilities": _TO_HOPPER,
    },
    "11.8": {
        "max_glibc": "2.40",
        "max_gcc": 11,
        "clang_below": 15,
        "driver": "520.61.05",
        "min_driver": "450.80.02",
        "nvcc_wheel": None,
        "runfiles": [],
        "capabilities": ["3.5", "3.7", "5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0"],
    },
}
