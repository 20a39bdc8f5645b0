# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Releases of flash-attn: source hashes and the wheels its makers published.

Source: hashes of the source distributions from PyPI's index; wheels from ``.github/workflows/publish.yml`` at each tag and public reports. PyPI has
no flash-attn wheel for any version. State of 2026-12-01.
"""

from __future__ import annotations

# Newest first. ``sha256``: of the source distribution. ``wheel_torch``: torch minors that the makers built wheels for (CUDA 12, x86_64); () means source only.
FLASH_ATTN_RELEASES: dict[str, dict] = {
    "2.8.3.post2": {"sha256": "d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b", "wheel_torch": ()},
    "2.8.3.post1": {"sha256": "55d5103ed846da8b56e0797acf4bde07dee4b1c7e8907fcfc6699c203030c348", "wheel_torch": ("2.4", "2.5", "2.6", "2.7", "2.8")},
    "2.8.3": {"sha256": "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d", "wheel_torch": ("2.4", "2.5", "2.6", "2.7", "2.8")},
    "2.8.2": {"sha256": "740a5370f406cbe16155cc6d078ec543a97a137501f32cba89198295e6b80e54", "wheel_torch": ("2.4", "2.5", "2.6", "2.7")},
    "2.8.1": {"sha256": "0ff003899fcb244f357905b04f622d5c9736887126dd6675f8f4bc52954e3923", "wheel_torch": ("2.4", "2.5", "2.6", "2.7")},
    "2.8.0.post2": {"sha256": "b51d7015eb78f7ab2c332ec7c36681d7e97834f010b52eb4db1f118351982f58", "wheel_torch": ("2.4", "2.5", "2.6", "2.7")},
    "2.7.4.post1": {"sha256": "f03485c9a49a4d68d0733acdcad80ab0e72afa025a777fdc2966ceccf9d51765", "wheel_torch": ("2.2", "2.3", "2.4", "2.5", "2.6")},
}
