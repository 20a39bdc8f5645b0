# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A gate in front of nvcc: each compilation waits until its memory fits beside what runs.

ninja starts every unit at once and calls this program instead of nvcc (``PYTORCH_NVCC="python -I -S /stable/path/nvcc_gate.pyc"``, see ``install``; the
command line that ninja hashes never changes). Each call registers in a state file, waits until it is admitted, runs the real nvcc in a process group of its
own, watches its memory and leaves. There is no server: whoever changes the state under the lock also admits others and wakes them with SIGUSR1. A call whose
process is gone is removed by the next one that looks, and the compilers it left are ended, so that no reservation outlives its process.

Environment::

    IRONWHEEL_NVCC               the real nvcc (required)
    IRONWHEEL_GATE_DIR           folder of the state, the logs and the status (required)
    IRONWHEEL_GATE_BUDGET_MIB    memory that all compilations together may use (required)
    IRONWHEEL_GATE_CORES         cores that they may use (default: affinity)
    IRONWHEEL_GATE_BUILD         id of this run of the build; another id resets the state
    IRONWHEEL_GATE_COSTS         file of predictions, made by build_memory.gate_costs
    IRONWHEEL_GATE_ARCHS         compute capabilities to keep, as in 9.0;12.0; other -gencode pairs are dropped
    IRONWHEEL_GATE_THREADS       highest number of nvcc threads; --threads beyond it is lowered
    IRONWHEEL_GATE_UNITS         number of units, for the status
    IRONWHEEL_GATE_KEEP_MIB      memory kept back while ninja's host-compiled units run (default 1536)
    IRONWHEEL_GATE_TRIES         how often a unit that the OOM killer took is tried in all (default 3)
    IRONWHEEL_GATE_SETTLE_S      how long the first calls wait for the others to arrive (default 0.5)
    IRONWHEEL_GATE_SAMPLE_S      shortest interval between two looks at the memory of a compilation (default 0.25)

Files in the folder: ``state`` (guarded by ``lock``), ``status.json``, ``costs.jsonl`` (one line a finished unit), ``events.jsonl``.

``python nvcc_gate.py --gate-status FOLDER`` prints the status. One file, standard library only, and few modules of that: a call must cost little, and
``json``, ``re`` or ``subprocess`` would each double its start-up time.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import sys
import time

try:  # The C part alone: the wrapper would import enum, which costs as much as the interpreter's start.
    import _signal as signal
except ImportError:  # pragma: no cover - other interpreters than CPython
    import signal

MIB = 1048576
PAGE = os.sysconf("SC_PAGE_SIZE")
# A waiting head may be overtaken by cheaper units for this share of its own time; then nobody starts before it.
PATIENCE_SHARE = 0.10
PATIENCE_FLOOR_S = 2.0
# A unit has passed its peak when it fell to this share of it ...
PASSED_SHARE = 0.75
# ... after it had come to this share of what was predicted, or to the smaller share late in its life (a unit that was overestimated).
REACHED_SHARE = 0.60
REACHED_LATE_SHARE = 0.25
REACHED_LIFE = 0.50
# Margins on the predicted peak, on the present use of a unit that has passed it, and on what its profile says can still come.
PEAK_MARGIN = 1.02
USE_MARGIN = 1.05
LATER_MARGIN = 1.05
# Largest share of the peak that was measured at and after each tenth of a unit's life, its peak apart (the larger of two measured units).
LATER = (0.56, 0.56, 0.56, 0.54, 0.47, 0.41, 0.35, 0.34, 0.32, 0.22)
# How long a call waits for memory of the host that others than this build use, when nothing of the build runs.
HOST_WAIT_S = 120.0
# What must remain available on the host.
HOST_FLOOR_MIB = 256
# An attempt that was killed for memory is predicted to need this much more.
RAISE = 1.5
KILLED = (
    b"died due to signal 9",
    b"killed",
    b"fatal error: killed signal",
    b"cannot allocate memory",
    b"out of memory",
    b"virtual memory exhausted",
    b"bad_alloc",
)
SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".ptx", ".ii", ".gpu")
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


# Whether the kernel lists the children of a process (CONFIG_PROC_CHILDREN).
CHILDREN_KNOWN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class GateError(Exception):
    """The gate cannot work: a setting is missing or wrong, or its folder cannot be used."""


# --------------------------------------------------------------------------------------------------------------------------------------------------------------
# Decisions: pure functions, used by the gate and by the replay in build_memory.


def patience_s(wall_s):
    """How long cheaper units may overtake a waiting unit that takes ``wall_s``."""
    return max(PATIENCE_FLOOR_S, PATIENCE_SHARE * wall_s)


def choose(waiting, running, budget_mib, cores, blocked_s=0.0):
    """Which waiting units start now, in order, and which one is the first that had to stay.

    The most expensive unit goes first. While it does not fit, cheaper ones may overtake it for a tenth of its own time; after that nobody starts before it, so
    running units end, their memory comes together, and it starts: its wait is bounded by its patience and the longest running unit, and since only finitely
    many units are more expensive, each unit becomes the head. A unit that needs more than the whole budget runs alone.

    Args:
        waiting: ``(key, predicted_mib, wall_s, cores, arrival)`` for each.
        running: ``(reserved_mib, cores)`` for each.
        budget_mib, cores: what all together may use.
        blocked_s: how long the head (the most expensive one) has been waiting for memory.

    Returns:
        ``(keys to start, key of the head that did not fit or None)``.
    """
    free_mib = budget_mib - sum(item[0] for item in running)
    free_cores = cores - sum(item[1] for item in running)
    busy = len(running)
    start = []
    head = None
    for key, predicted, wall, wanted, _arrival in sorted(waiting, key=lambda item: (-item[2], -item[1], item[4])):
        if busy and free_cores < wanted:
            break
        if not busy or predicted <= free_mib:
            start.append(key)
            free_mib -= predicted
            free_cores -= wanted
            busy += 1
        elif head is None:
            head = key
            if blocked_s >= patience_s(wall):
                break
    return start, head


def later_share(later, progress):
    """Largest share of its peak that a unit can still need after ``progress`` (0 to 1) of its life, one tenth of doubt about the progress included."""
    return later[min(len(later) - 1, max(0, int((progress - 0.1) * len(later))))]


def has_passed(predicted_mib, peak_mib, current_mib, age_s, wall_s, peaks_left):
    """True when a unit has its peak behind it.

    ``peaks_left`` is the number of architectures whose compiler has not been seen yet: with one thread each of them peaks in its turn.
    """
    if peaks_left > 0 or current_mib > PASSED_SHARE * peak_mib:
        return False
    return peak_mib >= (REACHED_LATE_SHARE if age_s >= REACHED_LIFE * wall_s else REACHED_SHARE) * predicted_mib


def reservation(predicted_mib, peak_mib, current_mib, age_s, wall_s, passed, later=LATER):
    """Memory reserved for a running unit: its predicted peak until it has passed it, then what it uses and what its profile says can still come."""
    if not passed:
        return max(predicted_mib, current_mib) * PEAK_MARGIN
    still = later_share(later, age_s / wall_s if wall_s > 0 else 0.0) * peak_mib
    return max(current_mib * USE_MARGIN, still * LATER_MARGIN)


def _pair_numbers(pair):
    """``(virtual architecture, [code names])`` of ``arch=compute_90,code=[sm_90,compute_90]``; None when it is not such a pair."""
    text = pair.replace('"', "").replace("'", "").replace("[", "").replace("]", "").replace("\\", "")
    arch = None
    codes = []
    part = None
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        if equals:
            part = name.strip()
        else:
            value = name
        if part == "arch":
            arch = value.strip()
        elif part == "code":
            codes.append(value.strip())
    if arch is None or not arch.startswith("compute_"):
        return None
    return arch[8:], codes


def _number(name):
    """(major, minor, suffix) of an architecture's number such as 90, 90a or 120; None when it is none."""
    digits = name.rstrip("af")
    if not digits.isdigit() or len(digits) < 2:
        return None
    return int(digits[:-1]), int(digits[-1]), name[len(digits) :]


# Embedded GPUs: their code is not the one to fall back to for another GPU of the same major.
_EMBEDDED = {(5, 3), (6, 2), (7, 2), (8, 7)}


def _serving(wanted, pairs):
    """Indices of the pairs to keep for one wanted (major, minor): its own, else the nearest that runs on it, else the newest PTX that it can compile."""
    exact = [index for index, number, _codes in pairs if number is not None and number[:2] == wanted]
    if exact:
        return exact
    near = [
        (number[:2] not in _EMBEDDED, number[:2], index)
        for index, number, codes in pairs
        if number is not None and number[0] == wanted[0] and number[1] < wanted[1] and number[2] != "a" and any(code.startswith("sm_") for code in codes)
    ]
    if near:
        best = max(near)[:2]
        return [index for plain, number, index in near if (plain, number) == best]
    ptx = [
        (number[:2], index)
        for index, number, codes in pairs
        if number is not None and not number[2] and number[:2] <= wanted and any(code.startswith("compute_") for code in codes)
    ]
    return [max(ptx)[1]] if ptx else []


def filter_arguments(arguments, capabilities, threads=0):
    """nvcc's arguments without the ``-gencode`` pairs that no wanted capability needs and with at most ``threads`` nvcc threads.

    A capability without a pair of its own keeps the pair that serves it (8.9 by 8.6 or 8.0, 12.1 by 12.0). When nothing would remain, everything stays.

    Returns:
        ``(arguments, architectures that will be compiled, nvcc threads)``.
    """
    wanted = [number[:2] for number in (_number(item.strip().replace(".", "")) for item in capabilities) if number]
    groups = []  # (first index, last index, pair)
    found_threads = 1
    result = list(arguments)
    index = 0
    while index < len(result):
        word = result[index]
        if word in ("-gencode", "--generate-code") and index + 1 < len(result):
            groups.append((index, index + 1, result[index + 1]))
            index += 1
        elif word.startswith(("-gencode=", "--generate-code=")):
            groups.append((index, index, word.split("=", 1)[1]))
        elif word in ("--threads", "-t") and index + 1 < len(result) and result[index + 1].isdigit():
            found_threads = int(result[index + 1])
            if threads and found_threads > threads:
                found_threads = threads
                result[index + 1] = str(threads)
            index += 1
        elif word.startswith(("--threads=", "-t=")) and word.split("=", 1)[1].isdigit():
            found_threads = int(word.split("=", 1)[1])
            if threads and found_threads > threads:
                found_threads = threads
                result[index] = word.split("=", 1)[0] + "=" + str(threads)
        index += 1
    parsed = []
    for position, (_first, _last, pair) in enumerate(groups):
        read = _pair_numbers(pair)
        parsed.append((position, _number(read[0]) if read else None, read[1] if read else []))
    keep = set()
    for item in wanted:
        keep.update(_serving(item, parsed))
    if not keep:
        keep = set(range(len(groups)))
    drop = set()
    for position, (first, last, _pair) in enumerate(groups):
        if position not in keep:
            drop.update(range(first, last + 1))
    architectures = []
    for position, number, _codes in parsed:
        if position in keep and number is not None:
            name = f"{number[0]}{number[1]}{number[2]}"
            if name not in architectures:
                architectures.append(name)
    return [word for index, word in enumerate(result) if index not in drop], architectures, max(1, found_threads or 1)


def find_source(arguments):
    """The source file of a compilation, or None when the call compiles nothing (--version, device link)."""
    for option in ("-dlink", "--device-link", "--version", "-V", "--help", "-h", "--dryrun", "-dryrun"):
        if option in arguments:
            return None
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("-o", "--output-file", "-MF", "--dependency-output", "-ccbin", "--compiler-bindir", "-include", "-I", "-D", "-Xcompiler"):
            skip = True
        elif not word.startswith("-") and word.endswith(SOURCES):
            return word
    return None


# --------------------------------------------------------------------------------------------------------------------------------------------------------------
# State: the build as a whole and one record a call. It is written with marshal, which costs a tenth of anything that people can read (they have status.json)
# and no start-up time; all calls of a build run in the same interpreter, and another one's state only means a fresh start.


class Record:
    """Fields as attributes."""

    def __init__(self, fields):
        self.__dict__ = fields


def fresh(build):
    """The state of a build without calls.

    ``keep`` says whether memory is kept back for host-compiled units, ``scale`` how far the worst unit was above its prediction, ``real_s`` and ``planned_s``
    add up the finished units, ``head`` is the call that did not fit and ``head_since`` when that began.
    """
    return Record(
        {
            "build": build,
            "failed": "",
            "seq": 0,
            "first": 0.0,
            "last": 0.0,
            "done": 0,
            "retries": 0,
            "real_s": 0.0,
            "planned_s": 0.0,
            "checked": 0.0,
            "head": 0,
            "head_since": 0.0,
            "scale": 1.0,
            "idle_since": 0.0,
            "keep": 1,
            "written": 0.0,
            "high_mib": 0.0,
        }
    )


def plain(text):
    """Text without the characters that separate fields."""
    return "".join(" " if character < " " else character for character in text)


def to_json(value):
    """JSON of dictionaries, lists, text, numbers and None; numbers with three digits after the point at most."""
    if isinstance(value, dict):
        return "{" + ", ".join([to_json(name) + ": " + to_json(item) for name, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([to_json(item) for item in value]) + "]"
    if isinstance(value, str):
        return '"' + plain(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(round(value, 3))


def read_bytes(path):
    """Content of a small file, empty when it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while True:
            block = os.read(handle, 65536)
            if not block:
                return b"".join(parts)
            parts.append(block)
    except OSError:
        return b""
    finally:
        os.close(handle)


def read_proc(path):
    """Content of a small file under /proc in one read, empty when it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""
    finally:
        os.close(handle)


def load(folder, build):
    """``(header, entries)``; a fresh header when there is none or it cannot be read."""
    try:
        header, entries = marshal.loads(read_bytes(os.path.join(folder, "state")))
        return Record(header), [Record(entry) for entry in entries]
    except (EOFError, ValueError, TypeError):
        return fresh(build), []


def save(folder, header, entries):
    """Replace the state in one step: whoever is killed here leaves the old one."""
    replace(os.path.join(folder, "state"), marshal.dumps((header.__dict__, [entry.__dict__ for entry in entries])))


def replace(path, data):
    """Put data in the place of a file, in one step."""
    temporary = path + ".new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
    os.rename(temporary, path)


def append(folder, name, line):
    """One line to a log, in one write."""
    handle = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


class Locked:
    """The lock of the folder, held for the length of a ``with``. The kernel frees it when its holder dies."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "lock")
        self.handle = -1

    def __enter__(self):
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.handle, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_error):
        os.close(self.handle)


# --------------------------------------------------------------------------------------------------------------------------------------------------------------
# Processes


def born(pid):
    """Start time of a live process in clock ticks, 0 when it is gone (or only its exit status is left)."""
    text = read_proc(f"/proc/{pid}/stat")
    fields = text[text.rfind(b")") + 2 :].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else 0


def find_ninja():
    """``(ninja's process, its child that this call is or belongs to)``: ninja runs its commands through a shell, which may stay in between."""
    parent = os.getppid()
    text = read_proc(f"/proc/{parent}/stat")
    if text[text.find(b"(") + 1 : text.rfind(b")")] in (b"sh", b"dash", b"bash"):
        above = int(text[text.rfind(b")") + 2 :].split()[1])
        if above > 1:
            return above, parent
    return parent, os.getpid()


def children(pid, threaded=True):
    """Children of a process: those of all its threads, or of its first one only. None where the kernel does not say.

    nvcc starts compilers from several threads only with ``--threads``.
    """
    if not CHILDREN_KNOWN:
        return None
    threads = (str(pid),)
    if threaded:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []
    return [int(item) for thread in threads for item in read_proc(f"/proc/{pid}/task/{thread}/children").split()]


def group_members(group):
    """Processes of a process group, by looking at every process: the slow way."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            text = read_proc(f"/proc/{name}/stat")
            fields = text[text.rfind(b")") + 2 :].split()
            if len(fields) > 2 and int(fields[2]) == group:
                found.append(int(name))
    return found


class Tree:
    """Memory of a compilation's process tree."""

    def __init__(self, root, threaded):
        self.root = root
        self.threaded = threaded
        self.compilers = set()
        self.named = {}

    def members(self):
        if not CHILDREN_KNOWN:
            return group_members(self.root)
        found = [self.root]
        for pid in found:  # grows while it is walked
            found.extend(children(pid, self.threaded))
        return found

    def used_mib(self):
        """Resident memory of all of them in MiB; device compilers are counted as they appear."""
        pages = 0
        for pid in self.members():
            text = read_proc(f"/proc/{pid}/statm").split()
            if len(text) > 1:
                pages += int(text[1])
            # A process is looked at until it is seen as something else than the shell or the copy of nvcc that it begins as.
            if self.named.get(pid, b"sh") in (b"sh", b"nvcc") and pid != self.root:
                self.named[pid] = read_proc(f"/proc/{pid}/comm").strip()
                if self.named[pid] == b"cicc":
                    self.compilers.add(pid)
        return pages * PAGE / MIB


def send(how, target, number):
    """Send a signal to a process or a group that may be gone; True when it was there."""
    try:
        how(target, number)
    except OSError:
        return False
    return True


def end_leftovers(token):
    """Kill what a dead call left: its compilers carry its token in their environment."""
    wanted = b"IRONWHEEL_GATE_TOKEN=" + token.encode() + b"\0"
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and wanted in read_bytes(f"/proc/{name}/environ"):
            count += send(os.kill, int(name), signal.SIGKILL)
    return count


def available_mib():
    """MemAvailable of the host in MiB, None when unknown."""
    text = read_proc("/proc/meminfo")
    start = text.find(b"MemAvailable:")
    return int(text[start + 13 : text.find(b"kB", start)]) / 1024 if start >= 0 else None


def oom_kills():
    """How many processes the OOM killer has taken in this process's own memory cgroup (v1 or v2), 0 when unknown."""
    total = 0
    for line in read_proc("/proc/self/cgroup").decode("utf-8", "replace").split("\n"):
        number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        if number == "0" and not controllers:
            files = ("/sys/fs/cgroup" + path + "/memory.events", "/sys/fs/cgroup/unified" + path + "/memory.events", "/sys/fs/cgroup/memory.events")
        elif "memory" in controllers.split(","):
            files = ("/sys/fs/cgroup/memory" + path + "/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control")
        else:
            continue
        for name in files:
            text = read_bytes(name)
            if text:
                for row in text.split(b"\n"):
                    if row.startswith(b"oom_kill "):
                        total += int(row.split()[1])
                break
    return total


# --------------------------------------------------------------------------------------------------------------------------------------------------------------
# The gate


def setting(name, default=None, least=0.0):
    """A number from the environment."""
    text = os.environ.get(name, "")
    if not text:
        if default is None:
            raise GateError(f"{name} is not set")
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e12:
        raise GateError(f"{name} is '{text}'; it must be a number of at least {least:g}")
    return value


def prediction(path, source):
    """``(peak_mib, wall_s, later, from this host's own builds, streams, passes)`` from the file of predictions.

    Its lines are ``unit, peak_mib, wall_s, later shares with commas, history|calibration|class``; unit ``*`` is for all others and ``#`` carries the streams at
    once and the passes one after another that the figures are for.
    """
    name = os.path.basename(source)
    streams = passes = 1
    best = None
    for line in read_bytes(path).decode("utf-8", "replace").split("\n") if path else ():
        fields = line.split("\t")
        try:
            if fields[0] == "#":
                streams, passes = max(1, int(fields[1])), max(1, int(fields[2]))
            elif fields[0] == name or (fields[0] == "*" and best is None):
                later = tuple(float(item) for item in fields[3].split(",")) if fields[3] else LATER
                best = (float(fields[1]), float(fields[2]), later, fields[4] == "history")
        except (IndexError, ValueError):
            raise GateError(f"IRONWHEEL_GATE_COSTS: line '{plain(line)}' of {path} is not a prediction") from None
    peak, wall, later, own = best or (4096.0, 180.0, LATER, False)
    return peak, wall, later, own, streams, passes


class Gate:
    """One call."""

    def __init__(self, source, architectures, threads):
        self.folder = os.environ["IRONWHEEL_GATE_DIR"]
        self.build = plain(os.environ.get("IRONWHEEL_GATE_BUILD", ""))
        self.budget = setting("IRONWHEEL_GATE_BUDGET_MIB", least=1)
        self.cores = max(1, int(setting("IRONWHEEL_GATE_CORES", float(len(os.sched_getaffinity(0))), 1)))
        self.keep = setting("IRONWHEEL_GATE_KEEP_MIB", 1536.0)
        self.tries = max(1, int(setting("IRONWHEEL_GATE_TRIES", 3.0, 1)))
        self.settle = setting("IRONWHEEL_GATE_SETTLE_S", 0.5)
        self.sample = max(0.01, setting("IRONWHEEL_GATE_SAMPLE_S", 0.25))
        self.units = int(setting("IRONWHEEL_GATE_UNITS", 0.0))
        self.source = source
        self.unit = plain(os.path.basename(source))
        self.architectures = architectures
        self.threads = threads
        streams = max(1, min(threads, len(architectures)))
        self.peak, self.wall, self.later, self.own, planned, passes = prediction(os.environ.get("IRONWHEEL_GATE_COSTS", ""), source)
        if streams > planned:
            self.peak *= streams / planned
        if architectures and -(-len(architectures) // streams) != passes:
            self.later = (max(self.later),)  # another sequence of peaks than the one that was planned: no trust in the progress
        self.streams = streams
        self.pid = os.getpid()
        self.born = born(self.pid)
        self.parent = os.getppid()
        self.ninja, self.child_of_ninja = find_ninja()
        self.ninja_born = born(self.ninja)
        self.admitted = 0.0
        self.waited = 0.0
        self.stopped = 0
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def orphaned(self):
        """True when ninja is gone: nobody would use what this call compiles."""
        return os.getppid() != self.parent or (self.ninja != self.parent and born(self.ninja) != self.ninja_born)

    # Under the lock

    def event(self, what, entries, **more):
        """A line of events.jsonl: what happened, to whom, and what was reserved and used at that moment."""
        running = [entry for entry in entries if entry.state == "R"]
        row = {
            "t": time.time(),
            "event": what,
            "unit": self.unit,
            "running": len(running),
            "waiting": len(entries) - len(running),
            "reserved_mib": round(sum(entry.reserved for entry in running)),
            "used_mib": round(sum(entry.used for entry in running)),
        }
        row.update(more)
        append(self.folder, "events.jsonl", to_json(row))

    def find(self, entries):
        for entry in entries:
            if entry.pid == self.pid and entry.born == self.born:
                return entry
        return None

    def clean(self, header, entries, now):
        """Entries of live calls only. The careful look reads a file of each running one, so it is taken every two seconds at most."""
        careful = now - header.checked >= 8 * self.sample
        if careful:
            header.checked = now
        kept = []
        for entry in entries:
            try:
                os.kill(entry.pid, 0)
                gone = careful and entry.state == "R" and born(entry.pid) != entry.born
            except OSError:
                gone = True
            if gone:
                left = end_leftovers(f"{entry.pid}.{entry.born}") if entry.state == "R" else 0
                self.event("lost", kept, lost=entry.unit, ended=left)
            else:
                kept.append(entry)
        if careful:
            # ninja's other children are units that it compiles with the host compiler, or calls that have not registered yet.
            others = children(self.ninja)
            known = {entry.top for entry in kept}
            known.add(self.child_of_ninja)
            header.keep = 1 if others is None or any(pid not in known for pid in others) else 0
        return kept

    def admit(self, header, entries, now):
        """Start who may start; returns their entries."""
        waiting = [entry for entry in entries if entry.state == "W"]
        if not waiting:
            return []
        if header.first and now - header.last < self.settle and now - header.first < 10 * self.settle and not (self.units and header.seq >= self.units):
            return []
        running = [entry for entry in entries if entry.state == "R"]
        budget = self.budget - (self.keep if header.keep else 0)
        known = {entry.pid: entry for entry in waiting}
        blocked = now - header.head_since if header.head in known else 0.0
        keys, head = choose(
            [(e.pid, self.expected(header, e) * PEAK_MARGIN, e.wall, e.cores, e.seq) for e in waiting],
            [(e.reserved, e.cores) for e in running],
            budget,
            self.cores,
            blocked,
        )
        if head is None:
            header.head, header.head_since = 0, 0.0
        elif head != header.head:
            header.head, header.head_since = head, now
        if keys:
            free = available_mib()
            started = []
            growth = sum(max(0.0, entry.reserved - entry.used) for entry in running)
            for key in keys:
                entry = known[key]
                if entry.pid != self.pid and born(entry.pid) != entry.born:
                    entries.remove(entry)  # its number belongs to another process by now
                    continue
                need = self.expected(header, entry)
                if free is not None and free - growth - need < HOST_FLOOR_MIB:
                    # Somebody else uses the host's memory. With something of ours running, wait for that; otherwise for a while.
                    if running or started:
                        break
                    if not header.idle_since:
                        header.idle_since = now
                    if now - header.idle_since < HOST_WAIT_S:
                        break
                header.idle_since = 0.0
                entry.state = "R"
                entry.since = now
                entry.predicted = need
                entry.reserved = need * PEAK_MARGIN
                entry.used = 0.0
                growth += need
                started.append(entry)
            return started
        return []

    @staticmethod
    def expected(header, entry):
        """Predicted peak of a waiting unit: where it is not this host's own figure, raised as much as the worst unit so far was above its prediction."""
        return entry.predicted if entry.fixed else entry.predicted * header.scale

    def finish_turn(self, header, entries, now, started):
        """Write state and status, then wake who was admitted."""
        running = [entry for entry in entries if entry.state == "R"]
        header.high_mib = max(header.high_mib, sum(entry.used for entry in running))
        if now - header.written >= 4 * self.sample or not running:
            header.written = now
            self.write_status(header, entries, now)
        save(self.folder, header, entries)
        for entry in started:
            if entry.pid != self.pid:
                self.wake(entry)

    @staticmethod
    def wake(entry):
        send(os.kill, entry.pid, signal.SIGUSR1)

    def write_status(self, header, entries, now):
        running = [entry for entry in entries if entry.state == "R"]
        waiting = [entry for entry in entries if entry.state == "W"]
        pace = header.real_s / header.planned_s if header.planned_s else 1.0
        parts = [max(0.0, entry.wall * pace - (now - entry.since)) for entry in running]
        work = sum(parts) + sum(entry.wall for entry in waiting) * pace
        left = max(parts + [work / max(1, len(running))])
        text = to_json(
            {
                "schema": 1,
                "build": header.build,
                "units": max(self.units, header.done + len(entries)),
                "done": header.done,
                "running": len(running),
                "waiting": len(waiting),
                "reserved_mib": round(sum(entry.reserved for entry in running)),
                "used_mib": round(sum(entry.used for entry in running)),
                "peak_mib": round(header.high_mib),
                "budget_mib": round(self.budget),
                "left_s": round(left),
                "retries": header.retries,
                "failed": header.failed or None,
                "units_running": [entry.unit for entry in running],
            }
        )
        replace(os.path.join(self.folder, "status.json"), text.encode() + b"\n")

    # A call's life

    def enter(self):
        """Register; False when a unit of this build has failed already."""
        now = time.monotonic()
        with Locked(self.folder):
            header, entries = load(self.folder, self.build)
            if header.build != self.build:
                # Another run of the build. What still runs of an older one keeps its reservation; what waits sees that its place is gone.
                entries = [entry for entry in entries if entry.state == "R"]
                header = fresh(self.build)
            entries = self.clean(header, entries, now)
            if header.failed and not self.build and not entries:
                header = fresh(self.build)
            if header.failed:
                return self.refuse(header)
            header.seq += 1
            header.first = header.first or now
            header.last = now
            entries.append(
                Record(
                    {
                        "pid": self.pid,
                        "born": self.born,
                        "top": self.child_of_ninja,
                        "state": "W",
                        "seq": header.seq,
                        "since": now,
                        "predicted": self.peak,
                        "reserved": 0.0,
                        "used": 0.0,
                        "wall": self.wall,
                        "cores": self.streams,
                        "tries": 0,
                        "fixed": self.own,
                        "unit": self.unit,
                    }
                )
            )
            self.finish_turn(header, entries, now, self.admit(header, entries, now))
        return True

    def refuse(self, header):
        sys.stderr.write(f"nvcc_gate: {self.unit} was not compiled, because {header.failed}\n")
        return False

    def wait(self):
        """Until admitted: True. False: a unit failed, ninja is gone, or a signal says stop (which is then in ``self.stopped``)."""
        signals = {signal.SIGUSR1, *STOPPING}
        begin = time.monotonic()
        pause = self.settle
        while True:
            now = time.monotonic()
            with Locked(self.folder):
                header, entries = load(self.folder, self.build)
                entry = self.find(entries)
                if entry is None or header.build != self.build:
                    sys.stderr.write(f"nvcc_gate: {self.unit} was not compiled, because another run of the build took over\n")
                    return False
                if entry.state == "W":
                    if self.stopped or header.failed or self.orphaned():
                        entries.remove(entry)
                        self.event("gave_up", entries)
                        self.finish_turn(header, entries, now, [])
                        if header.failed:
                            self.refuse(header)
                        return False
                    found = (len(entries), header.head, header.idle_since, header.keep)
                    entries = self.clean(header, entries, now)
                    started = self.admit(header, entries, now)
                    if started or header.checked == now or found != (len(entries), header.head, header.idle_since, header.keep):
                        self.finish_turn(header, entries, now, started)
                if entry.state == "R":
                    self.admitted = now
                    self.waited += now - begin
                    self.expect = entry.predicted
                    self.event("admitted", entries, predicted_mib=round(entry.predicted), attempt=entry.tries + 1)
                    return True
                waiting = sum(1 for item in entries if item.state == "W")
            # The kernel wakes us; looking ourselves only covers those who died without telling, and is the rarer the more of us look.
            settling = now - header.last < self.settle
            pause = self.settle if settling else min(30.0, max(4 * self.sample, 2 * self.sample * waiting, (now - begin) / 8))
            info = signal.sigtimedwait(signals, pause)
            if info is not None and info.si_signo != signal.SIGUSR1:
                self.stopped = info.si_signo

    def spawn(self, nvcc, arguments, errors, mask):
        environment = dict(os.environ)
        environment["IRONWHEEL_GATE_TOKEN"] = f"{self.pid}.{self.born}"
        return os.posix_spawn(
            nvcc,
            [nvcc, *arguments],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, errors, 2)],
            setpgroup=0,
            setsigmask=mask,
        )

    def update(self, used, reserved, passed):
        """Tell the others what this unit uses and holds, and let them start if that made room."""
        now = time.monotonic()
        with Locked(self.folder):
            header, entries = load(self.folder, self.build)
            entry = self.find(entries)
            if entry is None:
                return
            entry.used = used
            entry.reserved = reserved
            if passed:
                self.event("passed", entries)
            if not entry.fixed and used > entry.predicted * header.scale * 1.02:
                header.scale = used / entry.predicted
            if header.build != self.build or header.failed:
                self.finish_turn(header, entries, now, [])
                return
            entries = self.clean(header, entries, now)
            self.finish_turn(header, entries, now, self.admit(header, entries, now))

    def supervise(self, child):
        """Watch the compilation to its end; returns ``(wait status, resource usage)``."""
        tree = Tree(child, self.threads > 1)
        signals = {signal.SIGCHLD, signal.SIGUSR1, *STOPPING}
        told_used = 0.0
        told_reserved = self.expect * PEAK_MARGIN
        self.profile = []
        self.seen_mib = 0.0
        passed = False
        kill_at = 0.0
        while True:
            age = time.monotonic() - self.admitted
            # A unit changes the slower the longer it takes: looks are a tenth of its age apart.
            info = signal.sigtimedwait(signals, 0.5 if self.stopped else min(10.0, max(self.sample, 0.1 * age)))
            if info is not None and info.si_signo in STOPPING:
                self.stopped = info.si_signo
                send(os.killpg, child, info.si_signo)
                kill_at = kill_at or time.monotonic() + 5.0
            if not self.stopped and self.orphaned():
                self.stopped = signal.SIGTERM
                send(os.killpg, child, signal.SIGKILL)
            if kill_at and time.monotonic() > kill_at:
                send(os.killpg, child, signal.SIGKILL)
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid == child:
                return status, usage
            age = time.monotonic() - self.admitted
            used = tree.used_mib()
            if used == 0.0:
                continue
            # More than ever before: what looked like the peak was not it.
            passed = passed and used <= 1.02 * self.seen_mib
            self.seen_mib = max(self.seen_mib, used)
            self.profile.append((age, used))
            left = len(self.architectures) - max(1, len(tree.compilers)) if self.architectures else 0
            now_passed = passed or has_passed(self.expect, self.seen_mib, used, age, self.wall, left)
            hold = reservation(self.expect, self.seen_mib, used, age, self.wall, now_passed, self.later)
            if now_passed != passed or abs(hold - told_reserved) > 0.04 * self.expect or abs(used - told_used) > 0.15 * self.expect:
                told_used, told_reserved = used, hold
                self.update(used, hold, now_passed and not passed)
                passed = now_passed

    def log_cost(self, wall, cpu, peak, tries):
        """A line of costs.jsonl, the history that the next predictions are made from."""
        steps = [0.0] * 20
        for age, used in self.profile:
            place = min(19, int(20 * age / wall)) if wall > 0 else 0
            steps[place] = max(steps[place], used)
        last = 0.0
        shares = []
        for used in steps:
            last = used or last
            shares.append(round(min(1.0, last / peak), 2) if peak else 0.0)
        row = {
            "unit": self.unit,
            "source": self.source,
            "wall_s": wall,
            "cpu_s": cpu,
            "peak_mib": round(peak),
            "predicted_mib": round(self.expect),
            "wait_s": self.waited,
            "retries": tries,
            "admitted_at": time.time() - wall,
            "archs": self.architectures,
            "threads": self.threads,
            "profile": shares,
            "gate_cpu_s": time.process_time(),
            "build": self.build,
        }
        append(self.folder, "costs.jsonl", to_json(row))

    def leave(self, code, wall, cpu, peak, killed):
        """Hand the reservation back. Returns True when the unit is to be tried again."""
        now = time.monotonic()
        with Locked(self.folder):
            header, entries = load(self.folder, self.build)
            entry = self.find(entries)
            if entry is None or header.build != self.build:
                return False
            alone = sum(1 for item in entries if item.state == "R") == 1 and entry.predicted >= self.budget
            again = False
            if code == 0:
                header.done += 1
                header.real_s += wall
                header.planned_s += self.wall
                self.log_cost(wall, cpu, peak, entry.tries)
                self.event("done", entries, wall_s=wall, peak_mib=round(peak))
                entries.remove(entry)
            else:
                again = killed and not self.stopped and not header.failed and entry.tries + 1 < self.tries and not alone
                if again:
                    entry.tries += 1
                    header.retries += 1
                    entry.state = "W"
                    entry.since = now
                    # The last try has all the memory there is.
                    raised = self.budget if entry.tries + 1 == self.tries else RAISE * max(entry.predicted, peak)
                    entry.predicted = min(raised, max(self.budget, entry.predicted))
                    entry.fixed = True
                    entry.reserved = entry.used = 0.0
                    self.event("retry", entries, peak_mib=round(peak), predicted_mib=round(entry.predicted))
                else:
                    entries.remove(entry)
                    if not header.failed:
                        if self.stopped:
                            reason = f"was stopped by signal {self.stopped}"
                        elif killed:
                            reason = f"ran out of memory {entry.tries + 1} times (it needs more than {peak:.0f} MiB; the budget is {self.budget:.0f} MiB)"
                        else:
                            reason = f"failed with exit status {code}"
                        header.failed = f"{self.unit} {reason}"
                    self.event("failed", entries, status=code, oom=killed)
            entries = self.clean(header, entries, now)
            started = [] if header.failed else self.admit(header, entries, now)
            self.finish_turn(header, entries, now, started)
            if header.failed:
                for item in entries:
                    if item.state == "W":
                        self.wake(item)
        return again

    def compile(self, nvcc, arguments, mask):
        """One attempt; returns the exit status and whether to try again."""
        path = os.path.join(self.folder, f"stderr.{self.pid}")
        errors = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        kills = oom_kills()
        try:
            try:
                child = self.spawn(nvcc, arguments, errors, mask)
            except OSError as error:
                self.leave(127, 0.0, 0.0, 0.0, False)
                raise GateError(f"cannot run {nvcc}: {error.strerror}") from None
            begin = time.monotonic()
            status, usage = self.supervise(child)
            wall = time.monotonic() - begin
            send(os.killpg, child, signal.SIGKILL)  # a compiler whose nvcc died must not live on beside the next try
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            peak = max(self.seen_mib, usage.ru_maxrss / 1024)
            killed = code != 0 and not self.stopped and self.out_of_memory(code, errors, kills)
            again = self.leave(code, wall, usage.ru_utime + usage.ru_stime, peak, killed)
            if again:
                sys.stderr.write(f"nvcc_gate: {self.unit} ran out of memory at {peak:.0f} MiB and is tried again\n")
            else:
                os.lseek(errors, 0, os.SEEK_SET)
                while True:
                    block = os.read(errors, 65536)
                    if not block:
                        break
                    while block:
                        block = block[os.write(2, block) :]
            return code, again
        finally:
            os.close(errors)

    @staticmethod
    def out_of_memory(code, errors, kills):
        """True when a failed attempt was ended for want of memory: by the signal, by the compiler's own words, or by the cgroup's count of kills."""
        if code in (137, 9):
            return True
        size = os.lseek(errors, 0, os.SEEK_END)
        tail = os.pread(errors, 16384, max(0, size - 16384)).lower()
        return any(word in tail for word in KILLED) or oom_kills() > kills


def status(folder):
    """The last status of a build as a dictionary, empty before its first call: units, done, running, waiting, reserved, used and budget in MiB, left_s …"""
    import json  # not at the top: a call of the gate has no use for it

    text = read_bytes(os.path.join(folder, "status.json"))
    return json.loads(text) if text else {}


def source_text():
    """The text of this file, also where it was imported from an archive."""
    data = __loader__.get_data(__file__)  # pylint: disable=undefined-variable
    return data.decode("utf-8")


def install(folder, python):
    """Put the gate into a folder and return the value for PYTORCH_NVCC.

    It is compiled once by the interpreter that will run it, because reading the source costs as much as the interpreter's own start. The value is the same
    each time for the same folder and interpreter, since ninja compares command lines.
    """
    import subprocess

    os.makedirs(folder, mode=0o755, exist_ok=True)
    path = os.path.join(folder, "nvcc_gate.py")
    text = source_text().encode()
    if read_bytes(path) != text:
        with open(path + ".new", "wb") as stream:
            stream.write(text)
        os.replace(path + ".new", path)
    compiled = path + "c"
    program = "import py_compile, sys; py_compile.compile(sys.argv[1], cfile=sys.argv[2], doraise=True)"
    done = subprocess.run([python, "-I", "-S", "-c", program, path, compiled], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GateError(f"{python} cannot compile the gate: {done.stderr.strip()[-500:]}")
    return f"{python} -I -S {compiled}"


def main(arguments):
    """The exit status of the call."""
    if arguments[:1] == ["--gate-status"]:
        sys.stdout.write(read_bytes(os.path.join(arguments[1] if len(arguments) > 1 else os.environ.get("IRONWHEEL_GATE_DIR", "."), "status.json")).decode())
        return 0
    nvcc = os.environ.get("IRONWHEEL_NVCC", "")
    if not nvcc:
        raise GateError("IRONWHEEL_NVCC is not set")
    capabilities = [item for item in os.environ.get("IRONWHEEL_GATE_ARCHS", "").replace(",", ";").split(";") if item.strip()]
    passed_on, architectures, threads = filter_arguments(arguments, capabilities, int(setting("IRONWHEEL_GATE_THREADS", 0.0)))
    source = find_source(arguments)
    if source is None or not os.environ.get("IRONWHEEL_GATE_DIR"):
        try:
            os.execv(nvcc, [nvcc, *passed_on])
        except OSError as error:
            raise GateError(f"cannot run {nvcc}: {error.strerror}") from None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1, *STOPPING})
    gate = Gate(source, architectures, threads)
    if not gate.enter():
        return 1
    while True:
        if not gate.wait():
            return 128 + gate.stopped if gate.stopped else 1
        code, again = gate.compile(nvcc, passed_on, mask)
        if not again:
            return code


if __name__ == "__main__":
    try:
        sys.stdout.flush()
        EXIT = main(sys.argv[1:])
    except GateError as fault:
        sys.stderr.write(f"nvcc_gate: {fault}\n")
        EXIT = 2
    except OSError as fault:
        sys.stderr.write(f"nvcc_gate: {os.environ.get('IRONWHEEL_GATE_DIR', '')}: {fault}\n")
        EXIT = 2
    sys.stderr.flush()
    # Nothing is left to tidy up, and skipping the interpreter's own tidying saves milliseconds.
    os._exit(EXIT)
