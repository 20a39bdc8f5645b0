# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Comparing release numbers with the standard library alone.

Bare hosts have no ``packaging``; drivers, toolkits, compilers, kernels, glibc and torch releases need only their numbers compared. Python requirement
specifiers are another matter: those are read on the controller, with ``packaging``.
"""

from __future__ import annotations

import re

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)(.*)", re.DOTALL)
_POST = re.compile(r"[.\-_]?post(\d+)")
_PRE = re.compile(r"[.\-_]?(?:a|b|rc|dev|alpha|beta|pre)\d*", re.IGNORECASE)


def parse(text: str) -> tuple[tuple[int, ...], int]:
    """Return ``(release numbers, order)``: order is -1 for a pre-release, 0 for a release, n + 1 for post-release n.

    The local part (``+cu130``) and anything after it do not count. Trailing zeros are dropped, so that 13 equals 13.0.

    Raises:
        IronwheelError: the text does not start with a number.
    """
    match = _RELEASE.match(str(text))
    if match is None:
        raise IronwheelError(f"'{text}' is not a version: it must start with a number such as 2.9.1.", "InvalidVersion")
    numbers = [int(part) for part in match.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    rest = match.group(2).split("+", 1)[0]
    post = _POST.match(rest)
    if post is not None:
        return tuple(numbers), int(post.group(1)) + 1
    return tuple(numbers), -1 if _PRE.match(rest) else 0


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1 as left is older than, equal to or newer than right."""
    a, b = parse(left), parse(right)
    return (a > b) - (a < b)


def at_least(version: str, floor: str) -> bool:
    """True when version is not older than floor."""
    return compare(version, floor) >= 0


def minor(version: str) -> str:
    """``major.minor`` of a version: 13.0 for 13.0.88, 13.0 for 13."""
    numbers = parse(version)[0]
    return f"{numbers[0]}.{numbers[1] if len(numbers) > 1 else 0}"


def major(version: str) -> int:
    """The first number of a version."""
    return parse(version)[0][0]


def same_minor(left: str, right: str) -> bool:
    """True when both share major and minor."""
    return minor(left) == minor(right)
