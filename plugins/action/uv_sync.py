# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``ironwheel.gpu.uv_sync``: reads the lock file on the controller and hands its text to the module."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError


class ActionModule(ActionBase):
    """Puts the text of ``lock_file`` into ``lock`` and runs the module."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        arguments = dict(self._task.args)
        try:
            if arguments.get("lock_file"):
                arguments["lock"] = self._text(str(arguments["lock_file"]))
        except IronwheelError as fault:
            return dict(result, failed=True, **fault.as_result())
        result.update(self._execute_module(module_name="ironwheel.gpu.uv_sync", module_args=arguments, task_vars=task_vars, wrap_async=False))
        # The lock is some hundred kilobytes of hashes that nobody wants in a log.
        result.get("invocation", {}).get("module_args", {}).pop("lock", None)
        return result

    def _text(self, path: str) -> str:
        try:
            with open(os.path.abspath(os.path.expanduser(path)), encoding="utf-8") as handle:
                return handle.read()
        except FileNotFoundError:
            if self._task.check_mode:
                return ""
            raise IronwheelError(
                f"The lock file {path} is not on the controller.", "LockMissing", "run the role uv_venv as a whole: it solves the lock first."
            ) from None
        except (OSError, UnicodeDecodeError) as fault:
            raise IronwheelError(f"The lock file {path} cannot be read: {fault}.", "LockNotReadable", "correct its permissions, or remove it.") from fault
