#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_decision
short_description: Whether the driver of a host is installed, and what is done about a reboot
version_added: 0.1.0
description:
  - Before the work, says from facts and plan whether the driver of the host is the role's business. Hosts without a GPU, WSL, containers
    and vGPU guests are recognised.
  - After it, says whether the host must be rebooted and whether it may be. It never may over a connection that is not SSH.
  - Runs on the controller and contacts no host.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  host:
    description: Host facts.
    type: dict
    required: true
  plan:
    description: The C(driver) part of the plan, or nothing when it plans none.
    type: raw
  done:
    description: Result of M(ironwheel.gpu.nvidia_driver). Left out, the decision is the one before the work.
    type: dict
  reboot_allowed:
    description: Whether the user allows a reboot.
    type: bool
    default: false
  rebooted:
    description: Whether the host was rebooted in this run.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Is there anything to do
  ironwheel.gpu.driver_decision:
    host: "{{ preflight_host }}"
    plan: "{{ preflight_plan.driver }}"
  register: decision
"""

RETURN = r"""
act:
  description: Before the work, whether the role installs.
  returned: without O(done)
  type: bool
reboot:
  description: After the work, whether the host is rebooted now.
  returned: with O(done)
  type: bool
failed_checks:
  description: After the work, what verification found wrong.
  returned: with O(done)
  type: list
  elements: str
result:
  description: Value of C(nvidia_driver_result), with C(state), C(reason), C(reboot_required) and what the work found.
  returned: success
  type: dict
connection:
  description: Name of the connection plugin.
  returned: success
  type: str
"""
