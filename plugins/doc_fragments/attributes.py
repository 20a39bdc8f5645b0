# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attributes that every module of the collection states. A module adds ``support`` for ``check_mode`` and ``diff_mode``."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment ``ironwheel.gpu.attributes``."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and tell what would change without changing the host.
  diff_mode:
    description: Returns the details of what changed, or would change in check mode, when in diff mode.
  facts:
    description: Returns an C(ansible_facts) dictionary that updates the facts of the host.
    support: none
  platform:
    description: Target systems that the action works on.
    support: full
    platforms: posix
  action_group:
    description: Use C(group/ironwheel.gpu.gpu) in C(module_defaults) to set defaults for all actions of this group.
    support: full
    membership:
      - ironwheel.gpu.gpu
"""
