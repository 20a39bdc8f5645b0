# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one exception for faults that a user, a host or an index can cause."""

from __future__ import annotations


class IronwheelError(ValueError):
    """A fault with a name, a message and a remedy.

    Args:
        message: names the variable or fact, its value and the rule that it breaks.
        error: stable CamelCase name of the fault, for machines.
        remedy: what the user can do about it.
    """

    def __init__(self, message: str, error: str = "InvalidInput", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.error = error
        self.remedy = remedy

    def as_dict(self) -> dict[str, str]:
        """The form in which a plan lists its errors: ``{error, message, remedy}``."""
        return {"error": self.error, "message": self.message, "remedy": self.remedy}

    def as_result(self) -> dict[str, str]:
        """The keyword arguments for ``fail_json``: ``{msg, error, remedy}``."""
        msg = self.message if not self.remedy else f"{self.message} Remedy: {self.remedy}"
        return {"msg": msg, "error": self.error, "remedy": self.remedy}
