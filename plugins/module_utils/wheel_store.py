# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The store of built extension wheels: a folder (on the controller or shared), or the same folder behind an HTTPS server.

::

    <store>/<package>/<fingerprint>/<wheel>.whl
                                    wheel.json      schema, package, version, fingerprint, fields, wheel, sha256, size, origin, builder, report
    <store>/index.json                              the wheel.json of every entry, for stores behind a server

An entry appears at once and whole: it is written beside its place and renamed. What an index says is never trusted without the sha256 of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_abi
from ansible_collections.ironwheel.gpu.plugins.module_utils.build_runner import sha256 as file_sha256
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import write_atomically
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

SCHEMA = 1
_REMOVE = "Remove that entry; the wheel is built again."
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_REQUIRED = {"schema": int, "package": str, "version": str, "fingerprint": str, "fields": dict, "wheel": str, "sha256": str}


def check_entry(entry: Any, where: str) -> dict[str, Any]:
    """A ``wheel.json`` as a checked dictionary.

    Raises:
        IronwheelError: something is missing, of the wrong type, or names a path.
    """
    if not isinstance(entry, dict):
        raise IronwheelError(f"{where} is no JSON object.", "StoreDamaged", _REMOVE)
    for name, kind in _REQUIRED.items():
        if not isinstance(entry.get(name), kind):
            raise IronwheelError(f"{where}: '{name}' is missing or not a {kind.__name__}.", "StoreDamaged", _REMOVE)
    for name in ("package", "fingerprint", "wheel"):
        if _SAFE.fullmatch(entry[name]) is None:
            raise IronwheelError(f"{where}: {name} '{entry[name]}' is not a plain name.", "StoreDamaged", _REMOVE)
    if entry["schema"] != SCHEMA:
        raise IronwheelError(f"{where} has schema {entry['schema']}, this release reads {SCHEMA}.", "StoreDamaged", _REMOVE)
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise IronwheelError(f"{where}: sha256 '{entry['sha256']}' is none.", "StoreDamaged", _REMOVE)
    return entry


def entries(store: str) -> tuple[list[dict[str, Any]], list[str]]:
    """All entries of a store folder, and a sentence for each that cannot be used. A store that does not exist is empty."""
    found: list[dict[str, Any]] = []
    faults: list[str] = []
    if not os.path.isdir(store):
        return found, faults
    for package in sorted(os.listdir(store)):
        folder = os.path.join(store, package)
        if package.startswith(".") or not os.path.isdir(folder):
            continue
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name, "wheel.json")
            if name.startswith(".") or not os.path.isfile(path):
                continue
            try:
                with open(path, encoding="utf-8") as stream:
                    entry = check_entry(json.load(stream), path)
            except (OSError, ValueError) as exc:
                faults.append(str(exc) if isinstance(exc, IronwheelError) else f"{path} cannot be read: {exc}.")
                continue
            found.append({**entry, "path": os.path.join(folder, name, entry["wheel"])})
    return found, faults


def is_url(store: str) -> bool:
    """True for a store behind a server."""
    return "://" in store


def check_url(store: str) -> str:
    """The address of a store behind a server, without a slash at its end.

    Raises:
        IronwheelError: neither https nor on this very machine: whoever can alter the index on its way could hand out a wheel of his own.
    """
    parts = urlsplit(store)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")):
        return store.rstrip("/")
    raise IronwheelError(
        f"flash_attn_store is '{store}': a store behind a server is read over https only.", "InvalidStore", "Use an https address or a folder."
    )


def remote_entries(url: str, read: Callable[[str], bytes]) -> tuple[list[dict[str, Any]], list[str]]:
    """All entries of a store behind a server, and a sentence for each that cannot be used; ``path`` is the address of the wheel.

    Args:
        url: address of the store's folder.
        read: content behind an address; raises OSError.
    """
    found: list[dict[str, Any]] = []
    try:
        index = json.loads(read(f"{url}/index.json"))
        listed = index["wheels"] if isinstance(index, dict) and isinstance(index.get("wheels"), list) else None
    except (OSError, ValueError, KeyError) as exc:
        return found, [f"The store {url} cannot be read: {exc}."]
    if listed is None:
        return found, [f"{url}/index.json is not the index of a store."]
    faults = []
    for number, entry in enumerate(listed):
        try:
            checked = check_entry(entry, f"{url}/index.json, entry {number + 1}")
        except IronwheelError as exc:
            faults.append(exc.message)
            continue
        found.append({**checked, "path": "/".join([url, *(quote(checked[name]) for name in ("package", "fingerprint", "wheel"))])})
    return found, faults


def bring(store: str, entry: Mapping[str, Any], read: Callable[[str], bytes]) -> dict[str, Any]:
    """Copy an entry of a store behind a server into a folder, its sha256 compared. Returns the entry there.

    Raises:
        IronwheelError: the wheel cannot be had or is another one.
    """
    os.makedirs(store, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=store, prefix=".bring-") as stream:
        try:
            stream.write(read(str(entry["path"])))
        except OSError as exc:
            raise IronwheelError(f"{entry['path']} cannot be fetched: {exc}.", "StoreDamaged", "See that the server hands out what its index names.") from exc
        stream.flush()
        return put(store, stream.name, {name: value for name, value in entry.items() if name != "path"})


def candidates(found: list[dict[str, Any]], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every entry of the wanted package with a verdict and the reasons against it; accepted ones first, the fewest architectures first among them.

    ``wanted`` are fingerprint fields; an unknown ``source_sha256`` (None) accepts whatever source the entry was built from, which its wheel.json names.
    """
    judged = []
    for entry in found:
        if entry["package"] != wanted["package"]:
            continue
        fields = dict(wanted)
        if fields.get("source_sha256") is None:
            fields["source_sha256"] = entry["fields"].get("source_sha256")
        reasons = torch_abi.serves(entry["fields"], fields)
        judged.append({"entry": entry, "verdict": "rejected" if reasons else "accepted", "reasons": reasons})

    def order(item: Mapping[str, Any]) -> tuple[bool, int, str]:
        entry = item["entry"]
        return item["verdict"] != "accepted", len(entry["fields"].get("architectures") or []), entry["fingerprint"]

    return sorted(judged, key=order)


def verified(entry: Mapping[str, Any]) -> str:
    """Path of an entry's wheel after its sha256 was compared.

    Raises:
        IronwheelError: the file is gone or is another one.
    """
    path = str(entry["path"])
    try:
        digest = file_sha256(path)
    except OSError as exc:
        raise IronwheelError(f"The store names {path}, which cannot be read: {exc.strerror}.", "StoreDamaged", _REMOVE) from exc
    if digest != entry["sha256"]:
        raise IronwheelError(
            f"{path} has sha256 {digest}, its wheel.json says {entry['sha256']}.",
            "HashMismatch",
            "The wheel was altered or cut short in the store: remove that entry, so that it is built again, and find out who wrote there.",
        )
    return path


def put(store: str, wheel: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Add a wheel. An entry under the same fingerprint is replaced as a whole. Returns the entry with its path."""
    checked = check_entry(dict(entry), "the new entry")
    if file_sha256(wheel) != checked["sha256"]:
        raise IronwheelError(
            f"{checked['wheel']} is not the file whose sha256 {checked['sha256']} was told: it changed on its way into the store.", "HashMismatch", "Run again."
        )
    parent = os.path.join(store, checked["package"])
    os.makedirs(parent, exist_ok=True)
    staging = tempfile.mkdtemp(dir=parent, prefix=".new-")
    final = os.path.join(parent, checked["fingerprint"])
    try:
        os.chmod(staging, 0o755)
        shutil.copyfile(wheel, os.path.join(staging, checked["wheel"]))
        write_atomically(os.path.join(staging, "wheel.json"), json.dumps(checked, indent=1, sort_keys=True) + "\n")
        old = f"{staging}.old"
        with contextlib.suppress(FileNotFoundError):
            os.rename(final, old)
        os.rename(staging, final)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    write_index(store)
    return {**checked, "path": os.path.join(final, checked["wheel"])}


def write_index(store: str) -> None:
    """Write ``index.json``, which a store behind a server is read by."""
    found, _faults = entries(store)
    listed = [{name: value for name, value in entry.items() if name not in ("path", "report")} for entry in found]
    write_atomically(os.path.join(store, "index.json"), json.dumps({"schema": SCHEMA, "wheels": listed}, indent=1, sort_keys=True) + "\n")


class BuildRight:
    """The right to build one fingerprint, over all hosts of a run and all runs that share the store. It dies with its process.

    The file behind it keeps the name of the host that builds until the build came to an end: what a controller that was killed left running, or half done,
    is there.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def take(self) -> bool:
        """Try to take the right without waiting; True when it is ours."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def give_back(self) -> None:
        """Let another one have it."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def builder(self) -> str:
        """Name of the host whose build did not come to an end, empty for none."""
        return os.pread(self._handle, 1024, 0).decode("utf-8", "replace").strip()

    def set_builder(self, host: str) -> None:
        """Note that this host builds; empty when its build came to an end. Only while the right is ours."""
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, host.encode(), 0)


@contextlib.contextmanager
def building(store: str, fingerprint: str) -> Iterator[BuildRight]:
    """The right to build one fingerprint; it is not taken yet, and given back at the end."""
    os.makedirs(store, exist_ok=True)
    handle = os.open(os.path.join(store, f".building-{fingerprint}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield BuildRight(handle)
    finally:
        os.close(handle)
