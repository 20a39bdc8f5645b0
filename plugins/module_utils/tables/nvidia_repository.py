# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's network repositories: one folder a distribution, each with its own signing key.

Sources: NVIDIA's installation guides (layout, key of ubuntu2204, ubuntu2404, debian12 and rhel9); NVIDIA/cuda-repo-management issues 30, 34, 39 and 44 for
debian13, whose apt refuses the older key's SHA-1 binding signature. Where no full fingerprint was found in public, the value is what is known of it
(rhel10: the short id) or empty (ubuntu2604: the key is taken from NVIDIA's keyring package, trusted through TLS alone).
"""

from __future__ import annotations

BASE_URL = "https://developer.download.nvidia.com/compute/cuda/repos"

# distribution: (file with the key beside the packages, fingerprint)
KEYS: dict[str, tuple[str, str]] = {
    "ubuntu2204": ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "ubuntu2404": ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "ubuntu2604": ("cuda-keyring_1.1-1_all.deb", ""),
    "debian12": ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "debian13": ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
    "rhel9": ("D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685"),
    "rhel10": ("CDF6BA43.pub", "CDF6BA43"),
}

# machine name of the kernel: folder of the repository (aarch64 servers are "sbsa" there)
ARCHITECTURES: dict[str, str] = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "sbsa", "arm64": "sbsa"}
