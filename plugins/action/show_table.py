# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows a table of plain text that fits 100 columns. Runs on the controller and changes nothing."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ironwheel.gpu.plugins.module_utils.plan_table import WIDTH, render

_ARGUMENTS = {
    "title": {"type": "str", "default": ""},
    "columns": {"type": "list", "elements": "str", "default": []},
    "rows": {"type": "list", "elements": "list", "default": []},
    "lines": {"type": "list", "elements": "str", "default": []},
    "width": {"type": "int", "default": WIDTH},
    "verbosity": {"type": "int", "default": 0},
}
_NARROWEST = 40


class ActionModule(ActionBase):
    """``ironwheel.gpu.show_table``."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        _validation, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        display = Display()
        shown = display.verbosity >= arguments["verbosity"]
        if shown:
            width = max(_NARROWEST, arguments["width"])
            # One call for the whole table, so that tables of hosts that run at the same time do not mix.
            display.display("\n" + render(arguments["title"], arguments["columns"], arguments["rows"], arguments["lines"], width) + "\n")
        result.update(changed=False, shown=shown)
        return result
