# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading a host's files and running its tools, in a way that neither garbage nor a hanging tool can break."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Callable

Run = Callable[[list], "tuple[int, str, str]"]

TIMED_OUT = 124
NOT_FOUND = 127
_MIB = 1024 * 1024


def run_command(argv: list[str], timeout_s: float = 20.0) -> tuple[int, str, str]:
    """Run a tool with LC_ALL=C and return ``(status, stdout, stderr)``; 124 after the time-out, 127 when it cannot be started.

    Output goes to files and a process that does not even die from SIGKILL (nvidia-smi waiting in a broken driver) is left behind: waiting for
    it, or for its pipes, would hang the run.
    """
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            # Not a context manager: leaving one waits for the process without limit.
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True)
        except (OSError, ValueError) as exc:
            return NOT_FOUND, "", str(exc)
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read(4 * _MIB).decode("utf-8", "replace"))
    return status, texts[0], texts[1]


@dataclass
class Host:
    """A host under a root directory: its files, its tools (None: none may be run) and the warnings met while reading it.

    Paths are absolute as the host sees them. Absolute symbolic links are followed inside the root.
    """

    root: str = "/"
    run: Run | None = None
    environ: dict = field(default_factory=dict)
    warnings: list = field(default_factory=list)

    @property
    def live(self) -> bool:
        """True for the host that this code runs on."""
        return self.root == "/"

    def warn(self, warning: str, message: str, remedy: str = "") -> None:
        """Note ``{warning, message, remedy}`` once."""
        entry = {"warning": warning, "message": message, "remedy": remedy}
        if entry not in self.warnings:
            self.warnings.append(entry)

    def resolve(self, path: str) -> str:
        """The path with every symbolic link followed inside the root (like realpath after chroot). Loops end where they are."""
        if self.live:
            try:
                return os.path.realpath(path)
            except (OSError, ValueError):
                return path
        done: list[str] = []
        todo = [part for part in path.split("/") if part][::-1]
        hops = 0
        while todo:
            part = todo.pop()
            if part in (".", ".."):
                if part == ".." and done:
                    done.pop()
                continue
            target = None
            if hops < 40:
                with contextlib.suppress(OSError, ValueError):
                    target = os.readlink(self.root + "/" + "/".join([*done, part]))
            if target is None:
                done.append(part)
                continue
            hops += 1
            if target.startswith("/"):
                done = []
            todo.extend([piece for piece in target.split("/") if piece][::-1])
        return "/" + "/".join(done)

    def real(self, path: str) -> str:
        """Where the file lies for this process."""
        return path if self.live else self.root.rstrip("/") + self.resolve(path)

    def data(self, path: str, limit: int = _MIB, quiet: bool = False) -> bytes | None:
        """Up to ``limit`` bytes of a file; None when it is missing or unreadable (the latter with a warning unless ``quiet``)."""
        try:
            with open(self.real(path), "rb") as handle:
                return handle.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as exc:
            if not quiet:
                self.warn("FileUnreadable", f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}.", "Run with privileges that may read it.")
            return None

    def text(self, path: str, limit: int = _MIB, quiet: bool = False) -> str | None:
        """``data`` as text; bytes that are not UTF-8 are replaced."""
        content = self.data(path, limit, quiet)
        return None if content is None else content.decode("utf-8", "replace")

    def word(self, path: str) -> str | None:
        """The content of a one-value file without surrounding blanks, None when missing or empty."""
        return (self.text(path, 4096, quiet=True) or "").strip() or None

    def number(self, path: str) -> int | None:
        """The integer in a one-value file, or None."""
        return integer(self.word(path))

    def link(self, path: str) -> str | None:
        """What a symbolic link says, unresolved, or None. Its folder is resolved inside the root."""
        folder, name = os.path.split(path.rstrip("/"))
        try:
            return os.readlink(os.path.join(self.real(folder or "/"), name))
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """True for anything that is there, links followed."""
        try:
            return os.path.exists(self.real(path))
        except ValueError:
            return False

    def is_dir(self, path: str) -> bool:
        """True for a folder, links followed."""
        try:
            return os.path.isdir(self.real(path))
        except ValueError:
            return False

    def is_file(self, path: str) -> bool:
        """True for a regular file, links followed."""
        try:
            return os.path.isfile(self.real(path))
        except ValueError:
            return False

    def names(self, path: str, pattern: str = "*") -> list[str]:
        """Sorted names in a folder that match a shell pattern; empty when there is no such folder."""
        try:
            return sorted(name for name in os.listdir(self.real(path)) if fnmatch.fnmatchcase(name, pattern))
        except (OSError, ValueError):
            return []

    def paths(self, folder: str, pattern: str = "*") -> list[str]:
        """``names`` with their folder in front."""
        return [f"{folder.rstrip('/')}/{name}" for name in self.names(folder, pattern)]

    def tool(self, *argv: str) -> tuple[int, str, str]:
        """Run a tool; status 127 where tools may not be run."""
        return self.run(list(argv)) if self.run is not None else (NOT_FOUND, "", "")


def integer(text: str | None) -> int | None:
    """The integer that the text is, or None. Numbers beyond 64 bit are garbage."""
    stripped = (text or "").strip()
    digits = stripped[1:] if stripped.startswith("-") else stripped
    return int(stripped) if 0 < len(digits) <= 20 and digits.isascii() and digits.isdigit() else None


def mib(size: int | None) -> int | None:
    """Bytes in whole MiB."""
    return None if size is None else size // _MIB


def printable(value):
    """The same structure with texts that JSON can carry: file names that are not UTF-8 get replacement characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(item) for item in value]
    return value
