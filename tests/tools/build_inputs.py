# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill .cache/build-inputs with what the scenarios that compile extensions need.

``probe/`` gets the source distribution of the small extension in tests/extension with its sha256; it is made without torch and is the same each time.
``wheels/`` gets a CUDA build of torch with all that it needs, about 3 GiB, so that each host does not fetch it; where it cannot be had, hosts ask their index.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "build-inputs"
SOURCE = ROOT / "tests" / "extension"
TORCH = "torch==2.14.1"
HOST_PYTHON = "3.11"  # Debian 12
PKG_INFO = "Metadata-Version: 2.1\nName: ironwheel-probe\nVersion: 1.0.0\n"


def make_sdist(folder: Path) -> Path:
    """The source distribution as ``setup.py sdist`` would make it, with no times in it."""
    files = {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    files["PKG-INFO"] = PKG_INFO.encode()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"ironwheel_probe-1.0.0/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ironwheel_probe-1.0.0.tar.gz"
    path.write_bytes(gzip.compress(data.getvalue(), mtime=0))
    (folder / "sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n", encoding="utf-8")
    return path


def fetch_torch(folder: Path) -> bool:
    """Whether the wheels are there now."""
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / ".complete"
    if complete.exists() and complete.read_text(encoding="utf-8") == TORCH:
        return True
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", HOST_PYTHON, "--implementation", "cp"]
    if subprocess.run([*command, "--dest", str(folder), TORCH], check=False, stdin=subprocess.DEVNULL).returncode != 0:
        return False
    complete.write_text(TORCH, encoding="utf-8")
    return True


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(f"build inputs: {make_sdist(FOLDER / 'probe').name}")
        if not fetch_torch(FOLDER / "wheels"):
            print(f"build inputs: {TORCH} cannot be fetched with pip: the hosts ask their own index")
    return 0


if __name__ == "__main__":
    sys.exit(main())
