# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What each torch release is built for.

Source: METADATA of each release on PyPI; index variants from the history of pytorch/test-infra ``tools/scripts/generate_binary_build_matrix.py``;
architectures from pytorch's RELEASE.md (PRs 164471, 175253, 182849, 197555) and ``.ci/manywheel/build_cuda.sh``; headers checked by compiling. State
of 2026-12-01.

``pypi`` is the variant of the build on PyPI for x86_64, ``aarch64`` what PyPI has for aarch64 (``cpu`` or ``cuda``), ``variants`` what the PyTorch
index has besides ``cpu``. ``python``: its Requires-Python, with the newest Python that has wheels as upper bound (from memory of the releases).
``cxx_standard`` the lowest that its headers accept. The variants of 2.15.0 come from an RFC and were not read from the index.
"""

from __future__ import annotations

# Newest first.
TORCH_RELEASES: dict[str, dict] = {
    "2.15.0": {"pypi": "cu132", "aarch64": "cuda", "variants": ["cu132", "cu130"], "python": "<3.15,>=3.11", "cxx_standard": 20, "glibc": "2.28"},
    "2.14.1": {"pypi": "cu130", "aarch64": "cuda", "variants": ["cu132", "cu130", "cu126"], "python": "<3.15,>=3.10", "cxx_standard": 20, "glibc": "2.28"},
    "2.14.0": {"pypi": "cu130", "aarch64": "cuda", "variants": ["cu132", "cu130", "cu126"], "python": "<3.15,>=3.10", "cxx_standard": 20, "glibc": "2.28"},
    "2.13.0": {
        "pypi": "cu130",
        "aarch64": "cuda",
        "variants": ["cu132", "cu130", "cu129", "cu126"],
        "python": "<3.15,>=3.10",
        "cxx_standard": 17,
        "glibc": "2.28",
    },
    "2.12.1": {"pypi": "cu130", "aarch64": "cuda", "variants": ["cu132", "cu130", "cu126"], "python": "<3.15,>=3.10", "cxx_standard": 17, "glibc": "2.28"},
    "2.12.0": {"pypi": "cu130", "aarch64": "cuda", "variants": ["cu132", "cu130", "cu126"], "python": "<3.15,>=3.10", "cxx_standard": 17, "glibc": "2.28"},
    "2.11.0": {
        "pypi": "cu130",
        "aarch64": "cuda",
        "variants": ["cu130", "cu129", "cu128", "cu126"],
        "python": "<3.15,>=3.10",
        "cxx_standard": 17,
        "glibc": "2.28",
    },
    "2.10.0": {
        "pypi": "cu128",
        "aarch64": "cpu",
        "variants": ["cu130", "cu129", "cu128", "cu126"],
        "python": "<3.15,>=3.10",
        "cxx_standard": 17,
        "glibc": "2.28",
    },
    "2.9.1": {
        "pypi": "cu128",
        "aarch64": "cpu",
        "variants": ["cu130", "cu129", "cu128", "cu126"],
        "python": "<3.15,>=3.10",
        "cxx_standard": 17,
        "glibc": "2.28",
    },
    "2.9.0": {
        "pypi": "cu128",
        "aarch64": "cpu",
        "variants": ["cu130", "cu129", "cu128", "cu126"],
        "python": "<3.15,>=3.10",
        "cxx_standard": 17,
        "glibc": "2.28",
    },
    "2.8.0": {"pypi": "cu128", "aarch64": "cpu", "variants": ["cu129", "cu128", "cu126"], "python": "<3.14,>=3.9", "cxx_standard": 17, "glibc": "2.28"},
    "2.7.1": {"pypi": "cu126", "aarch64": "cpu", "variants": ["cu128", "cu126", "cu118"], "python": "<3.14,>=3.9", "cxx_standard": 17, "glibc": "2.28"},
    "2.7.0": {"pypi": "cu126", "aarch64": "cpu", "variants": ["cu128", "cu126", "cu118"], "python": "<3.14,>=3.9", "cxx_standard": 17, "glibc": "2.28"},
    "2.6.0": {"pypi": "cu124", "aarch64": "cpu", "variants": ["cu126", "cu124", "cu118"], "python": "<3.14,>=3.9", "cxx_standard": 17, "glibc": "2.17"},
    "2.5.1": {"pypi": "cu124", "aarch64": "cpu", "variants": ["cu124", "cu121", "cu118"], "python": "<3.14,>=3.8", "cxx_standard": 17, "glibc": "2.17"},
    "2.5.0": {"pypi": "cu124", "aarch64": "cpu", "variants": ["cu124", "cu121", "cu118"], "python": "<3.14,>=3.8", "cxx_standard": 17, "glibc": "2.17"},
    "2.4.1": {"pypi": "cu121", "aarch64": "cpu", "variants": ["cu124", "cu121", "cu118"], "python": "<3.13,>=3.8", "cxx_standard": 17, "glibc": "2.17"},
    "2.4.0": {"pypi": "cu121", "aarch64": "cpu", "variants": ["cu124", "cu121", "cu118"], "python": "<3.13,>=3.8", "cxx_standard": 17, "glibc": "2.17"},
}

_CU126 = {"x86_64": ["5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"], "aarch64": ["8.0", "9.0"]}
_CU128 = {"x86_64": ["7.5", "8.0", "8.6", "9.0", "10.0", "12.0"], "aarch64": ["8.0", "9.0", "10.0", "12.0"]}
_CU128_WITH_VOLTA = {"x86_64": ["7.0", *_CU128["x86_64"]], "aarch64": _CU128["aarch64"]}
_CU13 = {"x86_64": [*_CU128["x86_64"], "12.0+PTX"], "aarch64": ["8.0", "9.0", "10.0", "11.0", "12.0", "12.0+PTX"]}
_CU12_BEFORE_BLACKWELL = {"x86_64": _CU126["x86_64"], "aarch64": None}

# torch minor -> variant -> machine -> architectures of the machine code, "+PTX" for PTX of that architecture. None: not known.
# No cu126 build has Blackwell. The lists of 2.4 to 2.7 are from memory of those releases; 2.15 is assumed equal to 2.14.
TORCH_ARCHITECTURES: dict[str, dict] = {
    "2.4": {"cu118": _CU12_BEFORE_BLACKWELL, "cu121": _CU12_BEFORE_BLACKWELL, "cu124": _CU12_BEFORE_BLACKWELL},
    "2.5": {"cu118": _CU12_BEFORE_BLACKWELL, "cu121": _CU12_BEFORE_BLACKWELL, "cu124": _CU12_BEFORE_BLACKWELL},
    "2.6": {"cu118": _CU12_BEFORE_BLACKWELL, "cu124": _CU12_BEFORE_BLACKWELL, "cu126": _CU12_BEFORE_BLACKWELL},
    "2.7": {
        "cu118": _CU12_BEFORE_BLACKWELL,
        "cu126": _CU12_BEFORE_BLACKWELL,
        "cu128": {"x86_64": [*_CU128["x86_64"], "12.0+PTX"], "aarch64": None},
    },
    "2.8": {
        "cu126": _CU12_BEFORE_BLACKWELL,
        "cu128": {"x86_64": _CU128_WITH_VOLTA["x86_64"], "aarch64": None},
        "cu129": {"x86_64": [*_CU128_WITH_VOLTA["x86_64"], "12.0+PTX"], "aarch64": None},
    },
    "2.9": {"cu126": _CU126, "cu128": _CU128_WITH_VOLTA, "cu130": _CU13},
    "2.10": {"cu126": _CU126, "cu128": _CU128_WITH_VOLTA, "cu130": _CU13},
    "2.11": {"cu126": _CU126, "cu128": _CU128, "cu130": _CU13},
    "2.12": {"cu126": _CU126, "cu130": _CU13, "cu132": _CU13},
    "2.13": {"cu126": _CU126, "cu129": {"x86_64": _CU128["x86_64"], "aarch64": None}, "cu130": _CU13, "cu132": _CU13},
    "2.14": {"cu126": _CU126, "cu130": _CU13, "cu132": _CU13},
    "2.15": {"cu130": _CU13, "cu132": _CU13},
}

# Highest gcc that torch.utils.cpp_extension accepts for a CUDA release; outside the bounds it raises. Read from the wheels of 12 releases. Before 2.11 and for
# CUDA 13.1 and newer it lists nothing and only warns.
_GCC_2_11 = {"12.0": 12, "12.1": 12, "12.2": 12, "12.3": 13, "12.4": 13, "12.5": 13, "12.6": 13, "12.7": 13, "12.8": 13, "12.9": 13, "13.0": 15}
_GCC_2_12 = {**_GCC_2_11, "12.8": 14, "12.9": 14}
TORCH_MAX_GCC: dict[str, dict[str, int]] = {"2.11": _GCC_2_11, "2.12": _GCC_2_12, "2.13": _GCC_2_12, "2.14": _GCC_2_12, "2.15": _GCC_2_12}

# Lowest gcc for the C++ standard that torch's headers ask for (vLLM's build documentation for 20).
MIN_GCC_FOR_STANDARD: dict[int, str] = {17: "9", 20: "11.3"}

# The rest of the torch family by torch release, as the vLLM releases that pin this torch pin it.
TORCH_FAMILY: dict[str, dict[str, str]] = {
    "2.4.0": {"torchvision": "0.19.0"},
    "2.5.1": {"torchvision": "0.20.1", "torchaudio": "2.5.1"},
    "2.6.0": {"torchvision": "0.21.0", "torchaudio": "2.6.0"},
    "2.7.0": {"torchvision": "0.22.0", "torchaudio": "2.7.0"},
    "2.7.1": {"torchvision": "0.22.1", "torchaudio": "2.7.1"},
    "2.8.0": {"torchvision": "0.23.0", "torchaudio": "2.8.0"},
    "2.9.0": {"torchvision": "0.24.0", "torchaudio": "2.9.0"},
    "2.9.1": {"torchvision": "0.24.1", "torchaudio": "2.9.1"},
    "2.10.0": {"torchvision": "0.25.0", "torchaudio": "2.10.0"},
    "2.11.0": {"torchvision": "0.26.0", "torchaudio": "2.11.0"},
    "2.13.0": {"torchvision": "0.28.0", "torchaudio": "2.11.0"},
    "2.14.0": {"torchvision": "0.29.0", "torchaudio": "2.11.0"},
}

# Distributions that must come from the same index and variant as torch.
TORCH_FAMILY_NAMES = ("torch", "torchvision", "torchaudio", "torchcodec", "triton", "pytorch-triton")
