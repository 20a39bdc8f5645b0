# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Environments on a host: where they live, what is in them, how they differ from their lock, and the one link that is switched.

Layout under the prefix (docs/architecture.md)::

    envs/<digest>          one environment a lock, never edited once it is in use
    envs/<digest>-1        the same lock again, made because the first one was changed by hand
    envs/tools-<digest>    the tools environment
    env, env.previous      links to the environment in use and to the one before it
    tools                  link to the tools environment

An environment is complete when it holds a readable ``ironwheel.json``, which is written last. Whatever has none was left by a
killed run and counts as absent.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

SCHEMA = 1
RECORD_FILE = "ironwheel.json"
ROOT_PREFIX = "/opt/ironwheel"
HOME_PREFIX = ".local/share/ironwheel"
_NAMED_FILES = 5


# --- paths --------------------------------------------------------------------------------------------------------------------------------------------------


def resolve_prefix(prefix: str | None, root: bool, home: str) -> str:
    """The directory under which everything of this collection lies on a host.

    Args:
        prefix: ``uv_venv_prefix``; empty for the default.
        root: whether the installing user is root.
        home: home of the installing user.

    Raises:
        IronwheelError: the prefix is no absolute path, or is a directory that must not be filled.
    """
    if not prefix:
        return ROOT_PREFIX if root else os.path.join(home, HOME_PREFIX)
    path = os.path.join(home, prefix[2:]) if prefix.startswith("~/") else prefix
    if not os.path.isabs(path):
        raise IronwheelError(
            f"uv_venv_prefix is '{prefix}': it must be an absolute path on the host, or begin with ~/.",
            "InvalidPrefix",
            f"give a directory of its own, such as {ROOT_PREFIX}.",
        )
    path = os.path.normpath(path)
    if path in ("/", "/usr", "/etc", "/var", "/opt", "/home", "/root", "/tmp"):
        raise IronwheelError(
            f"uv_venv_prefix is '{prefix}': environments are made and removed below it, so it must be a directory of its own.",
            "InvalidPrefix",
            f"give a directory such as {ROOT_PREFIX}.",
        )
    return path


def live_prefix(prefix: str | None) -> str:
    """``resolve_prefix`` for the user that runs this process."""
    return resolve_prefix(prefix, os.geteuid() == 0, os.path.expanduser("~"))


def closed_directory(path: str, stat_path: Any = os.stat) -> str | None:
    """The first directory on the way to ``path`` that other users cannot enter, or ``None``. What does not exist yet is not closed.

    Args:
        path: absolute path.
        stat_path: how to stat a path; tests hand in their own.
    """
    parts = os.path.normpath(path).split(os.sep)
    for end in range(2, len(parts) + 1):
        ancestor = os.sep.join(parts[:end])
        try:
            mode = stat_path(ancestor).st_mode
        except OSError:
            return None
        if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
            return ancestor
    return None


def require_open(path: str, what: str, user: str, remedy: str, stat_path: Any = os.stat) -> None:
    """Raise when other users could not reach ``path``.

    Raises:
        IronwheelError: ``InterpreterNotAccessible`` naming the closed directory.
    """
    closed = closed_directory(path, stat_path)
    if closed is not None:
        raise IronwheelError(
            f"{what} is {path}, but other users cannot enter {closed}, so {user} could not run what is installed there.",
            "InterpreterNotAccessible",
            remedy,
        )


@contextlib.contextmanager
def exclusive(prefix: str) -> Iterator[None]:
    """Hold the prefix's lock: two runs never make or remove environments of one host at a time. The lock ends with the process."""
    os.makedirs(prefix, exist_ok=True)
    with open(os.path.join(prefix, ".lock"), "a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomically(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file beside its place and move it there, so that nobody ever reads half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix="." + os.path.basename(path) + ".")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# --- names ----------------------------------------------------------------------------------------------------------------------------------------------------


def normalize(name: str) -> str:
    """The comparable form of a distribution name (PEP 503): lower case, runs of ``-_.`` become one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def environment_digest(lock_digest: str, extensions: Sequence[Mapping[str, Any]], python: Mapping[str, Any]) -> str:
    """Name of the environment: 16 hexadecimal digits over lock, extensions and interpreter.

    Args:
        lock_digest: sha256 of the lock's body.
        extensions: ``{name, version, fingerprint}`` of each extension that will be added; their order does not matter.
        python: ``{version, path}``; path is ``None`` for uv's managed Python.
    """
    chosen = sorted([normalize(str(e["name"])), str(e.get("version") or ""), str(e.get("fingerprint") or "")] for e in extensions)
    # A patch release of the interpreter needs no new environment.
    minor = ".".join(str(python.get("version") or "").split(".")[:2])
    text = json.dumps([lock_digest, chosen, minor, str(python.get("path") or "managed")], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- what is installed ----------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installed:
    """One installed distribution: normalized name, version, and the ``dist-info`` directory that says so."""

    name: str
    version: str
    info: str


def site_packages(environment: str) -> str | None:
    """The ``lib/python3.X/site-packages`` directory of an environment, or ``None``."""
    library = os.path.join(environment, "lib")
    try:
        names = sorted(os.listdir(library))
    except OSError:
        return None
    for name in names:
        path = os.path.join(library, name, "site-packages")
        if name.startswith("python3") and os.path.isdir(path):
            return path
    return None


def _read_metadata(path: str) -> tuple[str, str] | None:
    name = version = ""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if not line.strip():
                    break
                key, colon, value = line.partition(":")
                if colon and key.lower() == "name":
                    name = value.strip()
                elif colon and key.lower() == "version":
                    version = value.strip()
    except OSError:
        return None
    return (name, version) if name and version else None


def scan(environment: str) -> list[Installed]:
    """Every distribution in an environment, read from its metadata. A package left there twice appears twice."""
    folder = site_packages(environment)
    found = []
    if folder is None:
        return found
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if entry.endswith(".dist-info"):
            metadata = _read_metadata(os.path.join(path, "METADATA"))
        elif entry.endswith(".egg-info"):
            metadata = _read_metadata(os.path.join(path, "PKG-INFO") if os.path.isdir(path) else path)
        else:
            continue
        if metadata is None:
            # The folder's own name still tells which package is broken.
            stem = entry.rsplit(".", 1)[0].split("-")
            metadata = (stem[0], stem[1] if len(stem) > 1 else "unknown")
        found.append(Installed(normalize(metadata[0]), metadata[1], path))
    return found


def versions(installed: Iterable[Installed]) -> dict[str, str]:
    """``{name: version}``; two versions of one name are joined with a comma."""
    result: dict[str, str] = {}
    for item in installed:
        result[item.name] = f"{result[item.name]},{item.version}" if item.name in result else item.version
    return dict(sorted(result.items()))


def damaged_files(item: Installed) -> list[str]:
    """Files that a distribution's RECORD lists and that are missing or of another size, relative to site-packages.

    Byte code is left out: Python rewrites it by itself.
    """
    if not item.info.endswith(".dist-info"):
        return []
    folder = os.path.dirname(item.info)
    try:
        with open(os.path.join(item.info, "RECORD"), encoding="utf-8", newline="") as handle:
            rows = list(csv.reader(handle))
    except (OSError, UnicodeDecodeError, csv.Error):
        return [os.path.relpath(os.path.join(item.info, "RECORD"), folder)]
    damaged = []
    for row in rows:
        if len(row) < 3 or not row[2].isdigit() or row[0].endswith(".pyc"):
            continue
        try:
            same = os.stat(os.path.join(folder, row[0])).st_size == int(row[2])
        except OSError:
            same = False
        if not same:
            damaged.append(row[0])
    return damaged


def find_drift(environment: str, wanted: Mapping[str, str], extensions: Iterable[str]) -> list[dict[str, Any]]:
    """What in an environment is not as its lock says.

    Args:
        environment: path of a complete environment.
        wanted: ``{normalized name: version}`` of the lock.
        extensions: names that may be there besides the lock.

    Returns:
        A list of ``{package, kind, expected, found, detail}``; kind is ``version``, ``missing``, ``extra``, ``damaged`` or ``interpreter``.
        ``extension_checks.drift`` adds ``replaced``.
    """
    drift = []
    python = os.path.join(environment, "bin", "python")
    if not os.access(python, os.X_OK):
        drift.append(_difference("python", "interpreter", "", "", f"{python} -> {os.path.realpath(python)} cannot be run"))
    allowed = {normalize(name) for name in extensions}
    installed = scan(environment)
    present = versions(installed)
    for name, version in sorted(wanted.items()):
        if name not in present:
            drift.append(_difference(name, "missing", version, "", ""))
        elif present[name] != version:
            drift.append(_difference(name, "version", version, present[name], ""))
    for name, version in present.items():
        if name not in wanted and name not in allowed:
            drift.append(_difference(name, "extra", "", version, ""))
    changed = {item["package"] for item in drift}
    for item in installed:
        files = damaged_files(item) if item.name not in changed else []
        if files:
            more = f" and {len(files) - _NAMED_FILES} more" if len(files) > _NAMED_FILES else ""
            drift.append(_difference(item.name, "damaged", item.version, item.version, ", ".join(files[:_NAMED_FILES]) + more))
    return drift


def _difference(package: str, kind: str, expected: str, found: str, detail: str) -> dict[str, Any]:
    return {"package": package, "kind": kind, "expected": expected, "found": found, "detail": detail}


def describe_drift(item: Mapping[str, Any]) -> str:
    """One drift entry as a sentence."""
    name = item["package"]
    if item["kind"] == "version":
        return f"{name} is {item['found']}, the lock says {item['expected']}"
    if item["kind"] == "missing":
        return f"{name} {item['expected']} is missing"
    if item["kind"] == "extra":
        return f"{name} {item['found']} is not in the lock"
    if item["kind"] == "damaged":
        return f"{name} {item['found']} has files that are missing or of another size: {item['detail']}"
    return str(item["detail"])


def package_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    """``{added: {name: version}, removed: {name: version}, changed: {name: {before, after}}}``."""
    return {
        "added": {name: after[name] for name in sorted(after) if name not in before},
        "removed": {name: before[name] for name in sorted(before) if name not in after},
        "changed": {name: {"before": before[name], "after": after[name]} for name in sorted(after) if name in before and before[name] != after[name]},
    }


def pin_lines(packages: Mapping[str, str]) -> str:
    """``name==version`` lines, sorted: the two sides of a diff."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))


# --- environments of a host -----------------------------------------------------------------------------------------------------------------------------------


def read_record(environment: str) -> dict[str, Any] | None:
    """``ironwheel.json`` of a complete environment, or ``None`` for anything that is not one."""
    try:
        with open(os.path.join(environment, RECORD_FILE), encoding="utf-8") as handle:
            record = json.load(handle)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None


def generations(prefix: str, digest: str) -> list[tuple[int, str]]:
    """``(number, path)`` of each directory made for a digest, newest first: ``<digest>`` is 0, ``<digest>-2`` is 2. Complete or not."""
    folder = os.path.join(prefix, "envs")
    pattern = re.compile(re.escape(digest) + r"(?:-(\d+))?")
    found = []
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            match = pattern.fullmatch(name)
            if match is not None:
                found.append((int(match.group(1) or 0), os.path.join(folder, name)))
    return sorted(found, reverse=True)


def generation_path(prefix: str, digest: str, number: int) -> str:
    """The directory of one generation of a digest."""
    return os.path.join(prefix, "envs", digest if number == 0 else f"{digest}-{number}")


def linked(prefix: str, link: str) -> str | None:
    """The complete environment that a link names, or ``None``."""
    path = os.path.join(prefix, link)
    if not os.path.islink(path):
        return None
    target = os.path.normpath(os.path.join(prefix, os.readlink(path)))
    return target if read_record(target) is not None else None


def switch_link(prefix: str, link: str, environment: str) -> None:
    """Point a link at an environment in one step; whoever follows it sees the old or the new one, never none.

    Raises:
        IronwheelError: something that is not a link stands in the way.
    """
    path = os.path.join(prefix, link)
    if os.path.lexists(path) and not os.path.islink(path):
        raise IronwheelError(
            f"{path} is not a link, so it cannot be switched to {environment}.",
            "LinkBlocked",
            f"move {path} away; environments live in {os.path.join(prefix, 'envs')}.",
        )
    temporary = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(os.path.relpath(environment, prefix), temporary)
    os.replace(temporary, path)


def prunable(found: Mapping[str, str | None], keep: int, protected: Iterable[str]) -> list[str]:
    """Which environments may go.

    Args:
        found: ``{path: created}`` of every environment; created is an ISO time, ``None`` for one that is not complete.
        keep: how many complete ones stay, the protected ones included.
        protected: paths that stay whatever their age: the one in use and the one before it.

    Returns:
        Paths, oldest first.
    """
    stay = set(protected)
    complete = sorted((path for path, created in found.items() if created is not None), key=lambda path: (found[path], path), reverse=True)
    kept = [path for path in complete if path in stay]
    kept += [path for path in complete if path not in stay][: max(0, keep - len(kept))]
    return sorted((path for path in found if path not in kept and path not in stay), key=lambda path: (found[path] or "", path))


def find_environments(prefix: str, tools: bool = False) -> dict[str, str | None]:
    """``{path: created}`` of all environments of a prefix (or of all its tools environments), for ``prunable``."""
    folder = os.path.join(prefix, "envs")
    result: dict[str, str | None] = {}
    if os.path.isdir(folder):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path) and name.startswith("tools-") == tools:
                record = read_record(path)
                result[path] = str(record.get("created", "")) if record is not None else None
    return result


def remove_environment(path: str) -> None:
    """Remove an environment; its record goes first, so that a killed removal leaves nothing that looks complete."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, RECORD_FILE))
    if os.path.isdir(path):
        shutil.rmtree(path)
