# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the planner notes while it decides: each candidate with its verdict, all errors, all warnings."""

from __future__ import annotations

from dataclasses import dataclass, field

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# Packages that contradict each other make everything else moot, so that they are said first.
FIRST_ERRORS = ("UnsatisfiableStack",)


@dataclass
class Notes:
    """``trace`` entries are ``{subject, candidate, verdict, reason}`` (with ``error`` where the rejection has a name), the rest as in the plan's schema."""

    trace: list[dict[str, str]] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)

    def accept(self, subject: str, candidate: str, reason: str) -> None:
        """Note a candidate that was chosen."""
        self.trace.append({"subject": subject, "candidate": candidate, "verdict": "accepted", "reason": reason})

    def reject(self, subject: str, candidate: str, reason: str, error: str = "") -> None:
        """Note a candidate that was not chosen; ``error`` names the kind of obstacle."""
        entry = {"subject": subject, "candidate": candidate, "verdict": "rejected", "reason": reason}
        if error:
            entry["error"] = error
        # One torch stands behind several releases of vLLM: its obstacle is said once.
        if entry not in self.trace:
            self.trace.append(entry)

    def extend(self, subject: str, entries: list[tuple[str, str, str]]) -> None:
        """Note ``(candidate, verdict, reason)`` entries of a decision made elsewhere."""
        for candidate, verdict, reason in entries:
            self.trace.append({"subject": subject, "candidate": candidate, "verdict": verdict, "reason": reason})

    def fail(self, error: IronwheelError) -> None:
        """Note an error, once."""
        entry = error.as_dict()
        if entry not in self.errors:
            self.errors.append(entry)

    def error(self, error: str, message: str, remedy: str) -> None:
        """Note an error by its parts."""
        self.fail(IronwheelError(message, error, remedy))

    def warn(self, warning: str, message: str, remedy: str = "") -> None:
        """Note a warning, once."""
        entry = {"warning": warning, "message": message, "remedy": remedy}
        if entry not in self.warnings:
            self.warnings.append(entry)

    def sorted_errors(self) -> list[dict[str, str]]:
        """The errors in the order in which a user should read them."""
        return sorted(self.errors, key=lambda entry: entry["error"] not in FIRST_ERRORS)
