# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the integration tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The clone that is tested."""
    return ROOT


@pytest.fixture(scope="session")
def run_tool():
    """Run a tool of the virtual environment outside the clone's configuration and return what it came to."""

    def run(name: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment.update({"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1"}, **variables)
        return subprocess.run(
            [str(BIN / name), *arguments], cwd=cwd, env=environment, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
        )

    return run
