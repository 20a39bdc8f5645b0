# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPU run as a test: `make test-gpu ARGS=...`. The environment with its torch is named by IRONWHEEL_GPU_ENVIRONMENT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
ENVIRONMENT = os.environ.get("IRONWHEEL_GPU_ENVIRONMENT", "")


@pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="no NVIDIA GPU on this machine")
@pytest.mark.skipif(not ENVIRONMENT, reason="IRONWHEEL_GPU_ENVIRONMENT names no environment with a CUDA build of torch")
def test_flash_attn_is_built_and_computes_right(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN), "--work", str(tmp_path), "--environment", ENVIRONMENT, "--ansible-playbook", f"{sys.executable} -m ansible playbook"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    result = json.loads((tmp_path / "result.json").read_text())
    assert done.returncode == 0, json.dumps(result)[-3000:]
    assert result["steps"]["build"]["oom_kills"] == 0
    assert result["steps"]["verify"]["cases"] >= 24
