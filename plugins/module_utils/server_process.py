# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A server on this host: asking it over HTTP, finding who listens on a port, and running one for the time of a check.

A server that is started here always ends: its whole process group is ended when the block is left, and the kernel ends it when this process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import pwd
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.ironwheel.gpu.plugins.module_utils import serving
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

STOP_GRACE_S = 20
LOG_LINES = 25
POLL_S = 1.0
_PR_SET_PDEATHSIG = 1
_LISTEN = "0A"


def request(host: str, port: int, method: str, path: str, timeout: float, key: str = "", body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """One HTTP request, past any proxy: status and the parsed JSON (the text if it is none).

    Raises:
        OSError: nobody answers; ``http.client.HTTPException`` is turned into one.
    """
    connection = http.client.HTTPConnection(serving.client_address(host), port, timeout=timeout)
    headers = {"Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    content = None
    if body is not None:
        content = json.dumps(body)
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        text = response.read(1 << 20).decode("utf-8", "replace")
    except http.client.HTTPException as exc:
        raise OSError(f"{type(exc).__name__}: {exc}") from exc
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


def healthy(host: str, port: int) -> bool:
    """True when ``/health`` says 200."""
    try:
        return request(host, port, "GET", "/health", 5)[0] == 200
    except OSError:
        return False


def read_secrets(path: str) -> dict[str, str]:
    """The environment file of an instance, empty when it is not there.

    Raises:
        IronwheelError: it may not be read.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            return serving.parse_environment_file(handle.read())
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise IronwheelError(
            f"environment file {path} cannot be read: {exc.strerror}.", "EnvironmentFileUnreadable", "Run as the user who installed it."
        ) from exc


def listener(port: int) -> dict[str, Any] | None:
    """Who listens on a TCP port: ``{pid, command, unit}``, each None where this user may not see it; None when nobody does."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as handle:
                rows = [line.split() for line in handle.readlines()[1:]]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rsplit(":", 1)[1], 16) == port}
    if not inodes:
        return None
    for pid in (entry for entry in os.listdir("/proc") if entry.isdigit()):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        return {"pid": int(pid), "command": _command(pid), "unit": _unit(pid)}
    return {"pid": None, "command": None, "unit": None}


def _command(pid: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as handle:
        # The program alone: arguments may hold other people's secrets.
        return handle.read().split("\0")[0]
    return "unknown"


def _unit(pid: str) -> str | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8") as handle:
        found = re.findall(r"/([^/\n]+\.service)(?:/|$)", handle.read(), re.MULTILINE)
        return found[-1] if found else None
    return None


def process_environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with, empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as handle:
            entries = handle.read().split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """Turn the signals that end a program into an exception, so that cleaning up happens for them too."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def running(argv: Sequence[str], environment: Mapping[str, str], directory: str, user: str | None = None) -> Iterator[Server]:
    """Start a server in a session of its own and end it when the block is left, however it is left.

    Args:
        argv: the command line.
        environment: its whole environment; nothing is inherited.
        directory: working directory.
        user: the user to run as, when this process is root.
    """
    identity: dict[str, Any] = {}
    if user and os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}
    with tempfile.TemporaryFile() as log, ended_by_signal():
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **identity,
            )
        except (OSError, subprocess.SubprocessError) as exc:
            raise IronwheelError(f"{argv[0]} does not start: {exc}.", "ServerNotStarted") from exc
        try:
            yield Server(process, log)
        finally:
            end_session(process)


class Server:
    """A running server and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Any) -> None:
        self.process = process
        self._log = log

    def tail(self, lines: int = LOG_LINES) -> str:
        """The last lines that it wrote."""
        # pread leaves the position alone, which the child shares and writes at.
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - 65536)
        text = os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_healthy(self, host: str, port: int, timeout: float) -> float:
        """Wait until it answers ``/health``; returns the seconds that took.

        Raises:
            IronwheelError: it ended, or did not become healthy in time; with its last lines.
        """
        begin = time.monotonic()
        while time.monotonic() - begin < timeout:
            status = self.process.poll()
            if status is not None:
                raise IronwheelError(f"the server ended with status {status} before it was healthy. Its last lines:\n{self.tail()}", "ServerEnded")
            if healthy(host, port):
                return time.monotonic() - begin
            time.sleep(POLL_S)
        message = f"the server was not healthy after {timeout:g} s. Its last lines:\n{self.tail()}"
        raise IronwheelError(message, "ServerNotHealthy", "Raise vllm_startup_timeout.")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything in its session, gently first, and reap it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE_S)
    for _attempt in range(50):
        members = session_members(process.pid)
        if not members:
            break
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.1)
    process.wait()


def session_members(session: int) -> list[int]:
    """Processes of a session that still live (zombies left out)."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as handle:
            # The name in parentheses may hold anything; the fields behind it are state, ppid, pgrp, session.
            fields = handle.read().rpartition(")")[2].split()
            if len(fields) > 3 and int(fields[3]) == session and fields[0] != "Z":
                members.append(int(entry))
    return members
