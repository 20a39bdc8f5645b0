# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters that read the simulated transaction of a package manager."""

from __future__ import annotations

from ansible_collections.ironwheel.gpu.plugins.module_utils.toolkit_install import driver_packages, removed_packages


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict:
        """Names and functions."""
        return {"driver_packages": driver_packages, "removed_packages": removed_packages}
