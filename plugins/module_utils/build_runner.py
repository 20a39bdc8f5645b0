# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs one build of an extension to its end, whoever is still connected.

The module ``extension_wheel`` copies this file into the build folder and starts it as a service of its own (or as a session of its own where there is no
systemd): ``python -I -S build_runner.py FOLDER``. It holds ``FOLDER/lock`` while it lives, which is how others see that the build lives, reads
``FOLDER/job.json``, and writes ``status.json`` every few seconds, ``memory.jsonl``, ``build.log`` and, last and atomically, ``result.json``.
One file, standard library only.

``job.json``::

    argv[] cwd env{}         the build command, which leaves a wheel in out_dir
    out_dir                  where the wheel appears
    gate_dir                 state of the nvcc gate ("" when static jobs are used)
    units budget_mib         how many compilations there are, MiB that the build may use
    timeout_s                0: none
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

SAMPLE_S = 2.0
# A log line that says how far ninja is: [12/73] ...
_NINJA = re.compile(rb"\[(\d+)/(\d+)\]")
_KILLED = re.compile(
    rb"\bKilled\b|signal 9|error 137|code=(?:137|-9)\b|exit(?:ed)?(?: with)?(?: status| code)? 137|Cannot allocate memory|out of memory",
    re.IGNORECASE,
)
# A compiler that found something wrong in a source: a.cu(3): error: …, a.cpp:12:3: fatal error: …
_SOURCE_ERROR = re.compile(rb"[):0-9]: (?:fatal |catastrophic )?error\b")
# What the gate says of a unit that it tries again is no reason why the build failed.
_TRIED_AGAIN = re.compile(rb"^nvcc_gate: .* is tried again$", re.MULTILINE)
# Kept free from the start, so that a full disk still takes the result.
RESERVE_BYTES = 65536
_DISK = re.compile(rb"No space left on device|Disk quota exceeded")
_ERROR = re.compile(rb"(?:error:|Error:|FAILED:|fatal:)")


def write_json(path: str, value: object) -> None:
    """Write atomically, so that a reader never sees half of it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def read_text(path: str) -> str:
    """Content of a file, empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def sha256(path: str) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def available_mib() -> int:
    """MemAvailable of the host in MiB, 0 when it cannot be read."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) // 1024 if match else 0


def cgroup_directories() -> dict[str, str]:
    """This process's memory cgroup: ``{"v2": path}`` or ``{"v1": path}`` or both on hybrid hosts, only those that exist."""
    found = {}
    for line in read_text("/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        controllers, path = parts[1], parts[2].lstrip("/")
        if controllers == "":
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                directory = os.path.join(root, path)
                if os.path.exists(os.path.join(directory, "memory.max")):
                    found["v2"] = directory
                    break
        elif "memory" in controllers.split(","):
            directory = os.path.join("/sys/fs/cgroup/memory", path)
            if os.path.exists(os.path.join(directory, "memory.limit_in_bytes")):
                found["v1"] = directory
    return found


def memory_limit_mib(directories: dict[str, str]) -> int | None:
    """The limit that the kernel really enforces on this very cgroup, in MiB; None for none."""
    limits = []
    for kind, name in (("v2", "memory.max"), ("v1", "memory.limit_in_bytes")):
        if kind in directories:
            text = read_text(os.path.join(directories[kind], name)).strip()
            # cgroup v1 says "no limit" with a number near 2^63.
            if text.isdigit() and int(text) < 1 << 60:
                limits.append(int(text) >> 20)
    return min(limits, default=None)


def oom_kills(directories: dict[str, str]) -> int:
    """How often the kernel killed for memory: in this cgroup, and on the whole host where the kernel counts that."""
    count = 0
    for kind, name in (("v2", "memory.events"), ("v1", "memory.oom_control")):
        if kind in directories:
            match = re.search(r"^oom_kill (\d+)", read_text(os.path.join(directories[kind], name)), re.MULTILINE)
            count += int(match.group(1)) if match else 0
    match = re.search(r"^oom_kill (\d+)", read_text("/proc/vmstat"), re.MULTILINE)
    return count + (int(match.group(1)) if match else 0)


def descendants(root: int) -> list[int]:
    """Process ids below a process, itself first. Children of children that lost their parent are found through the session."""
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_text(f"/proc/{name}/stat")
            fields = stat[stat.rfind(")") + 2 :].split()
            if len(fields) > 4:
                parents[int(name)] = int(fields[1])
                sessions[int(name)] = int(fields[3])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found + [pid for pid, session in sessions.items() if session == root and pid not in found]


def tree_mib(root: int) -> int:
    """Resident memory of a process and all below it, in MiB."""
    total = 0
    for pid in descendants(root):
        fields = read_text(f"/proc/{pid}/statm").split()
        if len(fields) > 1:
            total += int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return total >> 20


def end_tree(root: int) -> None:
    """End a process and all below it: politely, then for sure."""
    pids = descendants(root)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") and pid != root for pid in pids):
            time.sleep(0.1)


def tail(path: str, size: int = 200_000) -> bytes:
    """The last bytes of a file."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - size))
            return stream.read()
    except OSError:
        return b""


def classify(code: int, log: bytes, oom_delta: int, wheel: str | None, free_mib: int) -> tuple[str, str]:
    """What became of the build: ``(outcome, sentence)`` with outcome ok, out_of_memory, out_of_disk, compile_error, killed or no_wheel.

    A killed compiler shows in many ways: status 137 or -9 of ninja, a line of the shell or of gcc's driver, a counter of the kernel.
    """
    if code == 0:
        return ("ok", "built") if wheel else ("no_wheel", "the build ended well and left no wheel")
    if _DISK.search(log) or free_mib < 16:
        return "out_of_disk", f"the disk of the build folder is full ({free_mib} MiB free)"
    killed = _KILLED.search(_TRIED_AGAIN.sub(b"", log))
    if killed or (oom_delta > 0 and not _SOURCE_ERROR.search(log)):
        word = f"a compiler said '{killed.group(0).decode(errors='replace')}'" if killed else f"the build ended with status {code}"
        # Programs such as earlyoom and systemd-oomd kill for memory too, and nobody counts that.
        counted = f"the kernel counted {oom_delta} out-of-memory kills" if oom_delta > 0 else "the kernel counted none: another program or person ended it"
        return "out_of_memory", f"compilers were killed, most likely for lack of memory: {word}, {counted}"
    if code < 0:
        return "killed", f"the build was ended by signal {-code}"
    lines = [line.strip().decode(errors="replace")[:300] for line in log.splitlines() if _ERROR.search(line)]
    return "compile_error", lines[0] if lines else f"the build command ended with status {code}"


def progress(log: bytes) -> tuple[int, int]:
    """``(done, all)`` of ninja's last line, zeros before there is one."""
    found = _NINJA.findall(log)
    return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)


class Runner:
    """One build: start, watch, judge."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.job = json.loads(read_text(os.path.join(folder, "job.json")))
        self.log = os.path.join(folder, "build.log")
        self.started = time.time()
        self.peak_mib = 0
        self.stopped = False
        self.child: subprocess.Popen | None = None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def stop(self, _number: int, _frame: object) -> None:
        """A request to end: the loop sees it within one sample."""
        self.stopped = True

    def free_mib(self) -> int:
        try:
            return shutil.disk_usage(self.folder).free >> 20
        except OSError:
            return 0

    def gate_status(self) -> dict:
        """What the gate says of its units, empty without a gate."""
        if not self.job.get("gate_dir"):
            return {}
        try:
            return json.loads(read_text(os.path.join(self.job["gate_dir"], "status.json")) or "{}")
        except ValueError:
            return {}

    def sample(self, directories: dict[str, str], contained: bool) -> None:
        """One row of memory over time, and the status that the controller polls."""
        used = tree_mib(self.child.pid)
        self.peak_mib = max(self.peak_mib, used)
        done, total = progress(tail(self.log))
        gate = self.gate_status()
        elapsed = time.time() - self.started
        row = {"t_s": round(elapsed, 1), "used_mib": used, "available_mib": available_mib()}
        row.update(running=gate.get("running"), reserved_mib=gate.get("reserved_mib"))
        status = {
            "state": "running",
            "pid": os.getpid(),
            "elapsed_s": round(elapsed),
            "units_done": gate.get("done", done),
            "units": gate.get("units") or self.job.get("units") or total,
            "running": gate.get("running"),
            "waiting": gate.get("waiting"),
            "used_mib": used,
            "peak_mib": self.peak_mib,
            "budget_mib": self.job.get("budget_mib"),
            "left_s": gate.get("left_s", round(elapsed / done * (total - done)) if done else None),
            "contained": contained,
        }
        # A full disk must not end the watching: the compilers find out by themselves, and what became of them is still to be told.
        with contextlib.suppress(OSError):
            with open(self.path("memory.jsonl"), "a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            write_json(self.path("status.json"), status)

    def reserve(self) -> None:
        """Take the room of the result now."""
        with contextlib.suppress(OSError), open(self.path(".reserve"), "wb") as stream:
            stream.write(bytes(RESERVE_BYTES))

    def tell(self, result: dict) -> None:
        """Write the result, in the room that was kept for it if need be."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(".reserve"))
        write_json(self.path("result.json"), result)
        ended = {"state": "ended", "outcome": result["outcome"], "elapsed_s": round(result["elapsed_s"]), "peak_mib": self.peak_mib}
        with contextlib.suppress(OSError):
            write_json(self.path("status.json"), ended)

    def wheel(self) -> str | None:
        """The wheel that the build left, or None."""
        try:
            names = [name for name in sorted(os.listdir(self.job["out_dir"])) if name.endswith(".whl")]
        except OSError:
            return None
        return os.path.join(self.job["out_dir"], names[-1]) if names else None

    def run(self) -> int:
        """Build to the end. Returns the exit status for the service: 0 when there is a wheel."""
        directories = cgroup_directories()
        limit = memory_limit_mib(directories)
        budget = self.job.get("budget_mib") or 0
        contained = limit is not None and limit <= budget * 1.25 + 1024 if budget else limit is not None
        kills_before = oom_kills(directories)
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        self.reserve()
        deadline = self.started + self.job["timeout_s"] if self.job.get("timeout_s") else None
        timed_out = False
        with open(self.log, "ab", buffering=0) as log, open(os.devnull, "rb") as nothing:
            with contextlib.suppress(OSError):
                log.write(f"\n--- build started {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n".encode())
            start_of_log = log.tell()
            streams = {"stdin": nothing, "stdout": log, "stderr": log}
            self.child = subprocess.Popen(self.job["argv"], cwd=self.job["cwd"], env=self.job["env"], start_new_session=True, **streams)
            while self.child.poll() is None:
                self.sample(directories, contained)
                timed_out = deadline is not None and time.time() > deadline
                if self.stopped or timed_out:
                    end_tree(self.child.pid)
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.child.wait(SAMPLE_S)
            code = self.child.wait()
        # A compiler that outlived its ninja would eat memory for nothing.
        end_tree(self.child.pid)
        wheel = self.wheel() if code == 0 else None
        with open(self.log, "rb") as stream:
            stream.seek(start_of_log)
            text = stream.read()[-400_000:]
        outcome, reason = classify(code, text, oom_kills(directories) - kills_before, wheel, self.free_mib())
        if self.stopped:
            outcome, reason = "killed", "the build was asked to stop"
        if timed_out:
            outcome, reason = "timed_out", f"the build took longer than {self.job['timeout_s']} s"
        result = {
            "schema": 1,
            "outcome": outcome,
            "reason": reason,
            "status": code,
            "wheel": wheel,
            "sha256": sha256(wheel) if wheel else None,
            "started": self.started,
            "elapsed_s": round(time.time() - self.started, 1),
            "peak_mib": self.peak_mib,
            "contained": contained,
            "memory_limit_mib": limit,
            "budget_mib": budget or None,
            "oom_kills": oom_kills(directories) - kills_before,
            "log": self.log,
        }
        self.tell(result)
        return 0 if outcome == "ok" else 1


def main(arguments: list[str]) -> int:
    """Hold the folder's lock, run, release. Status 75 when another runner holds the lock."""
    folder = arguments[1]
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EACCES):
            return 75
        raise
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "result.json"))
    return Runner(folder).run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
