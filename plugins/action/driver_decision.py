# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the driver role acts, and what it does about a reboot; decided on the controller, which knows the connection."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ironwheel.gpu.plugins.module_utils import driver
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


class ActionModule(ActionBase):
    """See the module's documentation for arguments and result."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        """Return the decision; no host is contacted."""
        result = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "host": {"type": "dict", "required": True},
                "plan": {"type": "raw"},
                "done": {"type": "dict"},
                "reboot_allowed": {"type": "bool", "default": False},
                "rebooted": {"type": "bool", "default": False},
            }
        )
        connection = self._connection.transport
        try:
            if arguments["done"] is None:
                decision = driver.applicability(arguments["host"], arguments["plan"] or None)
                result.update(act=decision.act, result=driver.untouched_result(decision, arguments["host"]), connection=connection)
            else:
                result.update(driver.outcome(arguments["done"], arguments["reboot_allowed"], connection, arguments["rebooted"]))
        except IronwheelError as exc:
            result.update(failed=True, **exc.as_result())
        return result
