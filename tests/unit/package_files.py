# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small wheels, folders of them that uv takes as indexes, and environments: real files, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path


def real_uv() -> str:
    """The uv of the controller's tools."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is not installed beside the Python of the tests: run `make venv`")
    return found


def make_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any", files: dict[str, bytes] | None = None) -> Path:
    """Write one wheel whose package is ``name`` with a ``__version__``."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content = {
        f"{module}/__init__.py": f'__version__ = "{version}"\n'.encode(),
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires), ""]
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        **(files or {}),
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n" for path, data in content.items()
    )
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**content, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            # The same date always, so that a wheel that is made twice has the same hash.
            archive.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0)), data)
    return path


def make_index(folder: Path, *wheels: tuple[str, str, tuple[str, ...]]) -> str:
    """A package index in a folder; returns its ``file:`` URL. Each wheel is ``(name, version, requires)``."""
    for name, version, requires in wheels:
        make_wheel(folder / name, name, version, requires)
    for package in folder.iterdir():
        links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in sorted(package.glob("*.whl")))
        (package / "index.html").write_text(f"<html><body>{links}</body></html>", encoding="utf-8")
    return f"file://{folder}"


def scrub_environment(monkeypatch) -> None:
    """Remove what this machine says about indexes, so that a test sees only what it sets."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")) or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "VIRTUAL_ENV"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_NO_CONFIG", "1")


def make_environment(path: Path, packages: dict[str, str], created: str | None = "2026-01-01T00:00:00") -> Path:
    """An environment without uv: packages of one module each; ``created`` is ``None`` for one that was never completed."""
    site = path / "lib" / "python3.11" / "site-packages"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    site.mkdir(parents=True)
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (site / f"{name}.py").write_text("x = 1\n", encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not-this\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{name}.py,sha256=x,6\n{info.name}/RECORD,,\n__pycache__/{name}.pyc,,9\n", encoding="utf-8")
    if created is not None:
        (path / "ironwheel.json").write_text(json.dumps({"schema": 1, "created": created}), encoding="utf-8")
    return path
