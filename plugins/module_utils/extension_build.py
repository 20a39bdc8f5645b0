# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Building one extension on a target: its source, its folder, its environment, its start as a service of its own, and what became of it.

A build folder is named after the fingerprint, so that a retry finds the objects of the last try::

    builds/<fingerprint>/source/        the unpacked, mended source (ninja resumes here)
                         tmp/ out/      TMPDIR, the finished wheel
                         gate/          state and cost log of the nvcc gate
                         nvcc_gate.pyc  what PYTORCH_NVCC runs: the gate, at a path that never changes (ninja hashes the command line)
                         runner.py job.json lock start.lock status.json memory.jsonl build.log result.json
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from ansible_collections.ironwheel.gpu.plugins.module_utils import build_runner, nvcc_gate
from ansible_collections.ironwheel.gpu.plugins.module_utils.build_runner import sha256 as file_sha256
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import write_atomically
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Indexes, Uv

# Every process of a build carries this in its environment, which is how leftovers of a dead build are known as ours.
MARKER = "IRONWHEEL_BUILD"
_SDIST = re.compile(r"sdist\s*=\s*\{(?P<body>[^\n]*)\}")
_URL = re.compile(r'\b(?P<kind>url|path)\s*=\s*"(?P<value>[^"]+)"')
_HASH = re.compile(r'sha256\s*=\s*"([0-9a-f]{64})"')
_OWN_RELEASE = "Use the source of the package's own release."
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# A build needs its objects (about 60 MiB a unit of flash-attn), its temporary files and the wheel.
DISK_MIB_FOR_ONE_UNIT = 100
DISK_MIB_BASE = 1024


@dataclass(frozen=True)
class Source:
    """A source distribution: where it is, and its sha256 (None only for a file that the user named without one)."""

    location: str
    sha256: str | None

    @property
    def filename(self) -> str:
        """Its file name."""
        return os.path.basename(unquote(urlsplit(self.location).path))


def locate_source(uv: Uv, indexes: Indexes, name: str, version: str, python: str) -> Source:
    """Ask the index for the source distribution of a release. Nothing is downloaded.

    Raises:
        IronwheelError: the index does not have it, or cannot be reached.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = os.path.join(folder, "request.in")
        write_atomically(request, f"{name}=={version}\n")
        text = uv.run(
            [
                *("pip", "compile", request, "--no-deps", "--no-binary", name, "--python-version", python),
                *("--format", "pylock.toml", "--no-header", "-q", *indexes.arguments()),
            ],
            f"Looking up the source of {name} {version}",
            cwd=folder,
        )
    found = _SDIST.search(text)
    where = _URL.search(found.group("body")) if found else None
    digest = _HASH.search(found.group("body")) if found else None
    if where is None or digest is None:
        raise IronwheelError(
            f"The index has no source distribution with a sha256 for {name} {version}.",
            "SourceNotFound",
            "Choose a release that has one, or name a file with flash_attn_source.",
        )
    return Source(where.group("value"), digest.group(1))


def fetch(source: Source, folder: str, open_url: Callable[[str], Any]) -> tuple[str, str]:
    """Bring a source distribution into a folder: ``(path, sha256)``. A file that is there with the right sha256 is kept.

    Raises:
        IronwheelError: it cannot be had, or its sha256 is not the expected one.
    """
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, source.filename)
    if os.path.isfile(target) and source.sha256 is not None and file_sha256(target) == source.sha256:
        return target, source.sha256
    scheme = urlsplit(source.location).scheme
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        if scheme in ("", "file"):
            shutil.copyfile(unquote(urlsplit(source.location).path) if scheme else source.location, temporary)
        else:
            with open(temporary, "wb") as stream:
                shutil.copyfileobj(open_url(source.location), stream)
        digest = file_sha256(temporary)
        if source.sha256 is not None and digest != source.sha256:
            raise IronwheelError(
                f"{source.filename} has sha256 {digest}, expected {source.sha256}.",
                "HashMismatch",
                "The file was altered on its way: find out where, then run again.",
            )
        os.replace(temporary, target)
    except OSError as exc:
        raise IronwheelError(
            f"{source.location} cannot be brought to {folder}: {exc}.", "SourceNotFound", "Check the path, the network and the free space."
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return target, digest


def unpack(archive: str, folder: str, stamp: str) -> bool:
    """Unpack a source distribution to ``folder`` unless the unpacked one carries the same stamp. Returns True when it was unpacked anew.

    Raises:
        IronwheelError: the archive is damaged or names paths outside itself.
    """
    stamp_file = f"{folder}.stamp"
    with contextlib.suppress(OSError), open(stamp_file, encoding="utf-8") as stream:
        if stream.read() == stamp and os.path.isdir(folder):
            return False
    shutil.rmtree(folder, ignore_errors=True)
    staging = tempfile.mkdtemp(dir=os.path.dirname(folder), prefix=".unpack-")
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            root = os.path.realpath(staging)
            for member in members:
                path = os.path.realpath(os.path.join(staging, member.name))
                inside = path == root or path.startswith(root + os.sep)
                if not inside or not (member.isfile() or member.isdir() or member.issym()):
                    raise IronwheelError(f"{archive} holds '{member.name}', which leads outside of it.", "ArchiveRefused", _OWN_RELEASE)
                if member.issym():
                    link = os.path.realpath(os.path.join(os.path.dirname(path), member.linkname))
                    if not link.startswith(root + os.sep):
                        raise IronwheelError(f"{archive} links '{member.name}' outside of it.", "ArchiveRefused", _OWN_RELEASE)
            for member in members:
                tar.extract(member, staging, set_attrs=True)
        tops = os.listdir(staging)
        if len(tops) != 1:
            raise IronwheelError(f"{archive} has {len(tops)} folders at its top, a source distribution has one.", "ArchiveRefused")
        os.rename(os.path.join(staging, tops[0]), folder)
    except (tarfile.TarError, EOFError, OSError) as exc:
        raise IronwheelError(
            f"{archive} cannot be unpacked: {exc}.", "ArchiveDamaged", "Remove it, so that it is fetched again, and check the free space."
        ) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    write_atomically(stamp_file, stamp)
    return True


def apply_fixes(folder: str, fixes: Iterable[Mapping[str, Any]]) -> None:
    """Mend the unpacked source. Each fix is ``{name, file, replace: [[old, new], …]}``; one that is in already is left alone.

    Raises:
        IronwheelError: the source is not the one that the fix was made for.
    """
    for fix in fixes:
        path = os.path.join(folder, fix["file"])
        try:
            with open(path, encoding="utf-8") as stream:
                before = text = stream.read()
        except OSError as exc:
            raise IronwheelError(f"fix '{fix['name']}' does not apply: {fix['file']} cannot be read ({exc.strerror}).", "FixDoesNotApply") from exc
        for old, new in fix["replace"]:
            if old not in text and new not in text:
                raise IronwheelError(
                    f"fix '{fix['name']}' does not apply: '{old}' is not in {fix['file']}.",
                    "FixDoesNotApply",
                    "The source differs from the releases that the fix was made for: choose another release.",
                )
            text = text.replace(old, new)
        if text != before:
            write_atomically(path, text)


def install_program(path: str, program: ModuleType, python: str) -> None:
    """Put one of our single-file programs to a stable path, executable by itself."""
    text = f"#!{python} -IS\n" + inspect.getsource(program)
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
        if stream.read() == text:
            return
    write_atomically(path, text, 0o755)


def alive(folder: str) -> bool:
    """True while a runner holds the lock of the folder."""
    try:
        handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def starting(folder: str) -> Iterator[None]:
    """Hold the right to look at a build folder and start a build in it. It ends with the process."""
    handle = os.open(os.path.join(folder, "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def finished(folder: str) -> bool:
    """True when a build ended well and its wheel still lies there, whole: its controller was gone before the end."""
    result = read_json(os.path.join(folder, "result.json"))
    wheel = result.get("wheel") if result and result.get("outcome") == "ok" else None
    return bool(wheel) and os.path.isfile(wheel) and file_sha256(wheel) == result.get("sha256")


def clear_objects(folder: str) -> None:
    """Remove source, objects and the wheel of a build whose wheel was accepted: gigabytes that nothing needs. Logs, costs and the result stay."""
    for name in ("source", "tmp", "out"):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, "source.stamp"))


def read_json(path: str) -> dict[str, Any] | None:
    """A JSON object from a file, None when there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def marked_processes(folder: str) -> list[int]:
    """Processes that a build in this folder started, whoever is their parent now."""
    wanted = f"{MARKER}={folder}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
                if wanted in stream.read().split(b"\0"):
                    found.append(int(name))
    return found


def end_leftovers(folder: str) -> list[int]:
    """End what an earlier build of this folder left running. Only call it when no runner is alive. Returns the process ids."""
    pids = marked_processes(folder)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids):
            time.sleep(0.1)
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            break
    return pids


def end_orphans(orphans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """End orphaned compilers of other builds that the host facts named. Each is looked at again, so that a reused process id is never ended."""
    ended = []
    for orphan in orphans:
        with contextlib.suppress(OSError), open(f"/proc/{int(orphan['pid'])}/comm", encoding="utf-8") as stream:
            if stream.read().strip() == str(orphan["name"])[:15]:
                os.kill(int(orphan["pid"]), signal.SIGKILL)
                ended.append(dict(orphan))
    return ended


def disk_needed_mib(units: int | None) -> int:
    """MiB that a build folder needs for so many units."""
    return DISK_MIB_BASE + DISK_MIB_FOR_ONE_UNIT * (units or 8)


def require_disk(folder: str, units: int | None) -> None:
    """Refuse early when the disk cannot hold the build.

    Raises:
        IronwheelError: with both numbers.
    """
    free = shutil.disk_usage(folder).free >> 20
    needed = disk_needed_mib(units)
    if free < needed:
        raise IronwheelError(
            f"{folder} has {free} MiB free, the build needs about {needed} MiB.", "DiskTooSmall", "Free space there, or move uv_venv_prefix to another disk."
        )


@dataclass(frozen=True)
class Job:
    """Everything that a build is told. Paths are absolute; ``cuda_home`` is the toolkit, ``environment`` the environment that will use the wheel."""

    folder: str
    environment_python: str
    cuda_home: str
    env: Mapping[str, str]
    uv: str
    units: int | None
    budget_mib: int
    cores: int
    architectures: tuple[str, ...]
    gated: bool
    timeout_s: int = 0

    def environ(self, base: Mapping[str, str], gate: str = "") -> dict[str, str]:
        """The environment of the build: the host's, cleaned of what would change the result, and ours on top. ``gate`` is the command that runs the gate."""
        folder = self.folder
        kept = {name: base[name] for name in ("LANG", "TZ", "SSL_CERT_FILE", "USER", "LOGNAME") if name in base}
        bin_dir = os.path.dirname(self.environment_python)
        kept.update(
            HOME=os.path.join(folder, "tmp"),
            TMPDIR=os.path.join(folder, "tmp"),
            LC_ALL="C.UTF-8",
            PATH=os.pathsep.join([os.path.join(self.cuda_home, "bin"), bin_dir, *_SYSTEM_PATH]),
            CUDA_HOME=self.cuda_home,
            CUDA_PATH=self.cuda_home,
            # The same source gives the same wheel: setuptools puts times into the archive.
            SOURCE_DATE_EPOCH="1700000000",
            PYTHONNOUSERSITE="1",
            UV_NO_CONFIG="1",
        )
        kept.update(self.env)
        kept[MARKER] = folder
        if self.gated:
            kept.update(
                PYTORCH_NVCC=gate,
                # The gate admits; ninja may start all.
                MAX_JOBS=str(self.units or 4 * self.cores),
                IRONWHEEL_NVCC=os.path.join(self.cuda_home, "bin", "nvcc"),
                IRONWHEEL_GATE_DIR=os.path.join(folder, "gate"),
                IRONWHEEL_GATE_BUDGET_MIB=str(self.budget_mib),
                IRONWHEEL_GATE_CORES=str(self.cores),
                IRONWHEEL_GATE_ARCHS=";".join(self.architectures),
            )
        return kept

    def argv(self) -> list[str]:
        """The command that makes the wheel: no isolation (torch is the environment's own), no cache (stale wheels), no network."""
        return [
            self.uv,
            "build",
            "--wheel",
            "--no-build-isolation",
            "--no-cache",
            "--offline",
            "--python",
            self.environment_python,
            "--out-dir",
            os.path.join(self.folder, "out"),
            os.path.join(self.folder, "source"),
        ]


def write_job(job: Job, base: Mapping[str, str], python: str) -> None:
    """Write all that the runner reads, and the programs themselves."""
    for name in ("tmp", "gate"):
        os.makedirs(os.path.join(job.folder, name), exist_ok=True)
    shutil.rmtree(os.path.join(job.folder, "out"), ignore_errors=True)
    os.makedirs(os.path.join(job.folder, "out"))
    for name in ("result.json", "status.json", "memory.jsonl", os.path.join("gate", "status.json")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(job.folder, name))
    install_program(os.path.join(job.folder, "runner.py"), build_runner, python)
    try:
        gate = nvcc_gate.install(job.folder, python) if job.gated else ""
    except nvcc_gate.GateError as exc:
        raise IronwheelError(f"The gate of the build cannot be put into {job.folder}: {exc}.", "BuildNotStarted", "Build with flash_attn_gate: false.") from exc
    write_atomically(
        os.path.join(job.folder, "job.json"),
        json.dumps(
            {
                "argv": job.argv(),
                "cwd": job.folder,
                "env": job.environ(base, gate),
                "out_dir": os.path.join(job.folder, "out"),
                "gate_dir": os.path.join(job.folder, "gate") if job.gated else "",
                "units": job.units,
                "budget_mib": job.budget_mib,
                "timeout_s": job.timeout_s,
                "cores": job.cores,
                "architectures": list(job.architectures),
                "told": sorted(job.env),
            }
        ),
        0o600,
    )


def unit_name(fingerprint: str) -> str:
    """Name of the transient service of a build."""
    return f"ironwheel-build-{fingerprint[:12]}"


def service_arguments(folder: str, fingerprint: str, budget_mib: int, user: str | None) -> list[str]:
    """The ``systemd-run`` command of a build: it survives the connection, outlives an OOM kill of one compiler, and has a memory limit of its own."""
    properties = {
        "Type": "exec",
        "OOMPolicy": "continue",
        "MemoryMax": f"{budget_mib}M",
        "MemorySwapMax": "0",
        "KillMode": "control-group",
        "TimeoutStopSec": "30",
        "Nice": "5",
        "UMask": "0022",
    }
    if user:
        properties["User"] = user
    arguments = ["systemd-run", "--quiet", "--collect", f"--unit={unit_name(fingerprint)}"]
    arguments += [f"--property={name}={value}" for name, value in properties.items()]
    return [*arguments, os.path.join(folder, "runner.py"), folder]


def start(folder: str, fingerprint: str, budget_mib: int, systemd: bool, user: str | None = None) -> None:
    """Start the runner, detached, and wait until it holds its lock.

    Raises:
        IronwheelError: it did not come up.
    """
    if systemd:
        done = subprocess.run(service_arguments(folder, fingerprint, budget_mib, user), capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise IronwheelError(f"The build service does not start: {done.stderr.strip()}.", "BuildNotStarted", "Look at the journal of the host.")
    else:
        with open(os.path.join(folder, "runner.log"), "ab") as log, open(os.devnull, "rb") as nothing:
            # Descriptors closed and a session of its own: the connection that started it can go away.
            subprocess.Popen([os.path.join(folder, "runner.py"), folder], stdin=nothing, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if alive(folder) or os.path.exists(os.path.join(folder, "result.json")):
            return
        time.sleep(0.1)
    raise IronwheelError(f"The build in {folder} did not start within 20 s.", "BuildNotStarted", f"Look at {folder}/runner.log and the journal of the host.")


def stop(folder: str) -> bool:
    """Ask a running build to end and wait for it. Returns True when one was running."""
    if not alive(folder):
        return False
    with open(os.path.join(folder, "lock"), encoding="utf-8") as stream:
        text = stream.read().strip()
    if text.isdigit():
        with contextlib.suppress(OSError):
            os.kill(int(text), signal.SIGTERM)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and alive(folder):
        time.sleep(0.2)
    return True


def build_report(folder: str, result: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """The build report: what was compiled, at which cost, how memory went, and whether the limit was really in force."""

    def lines(path: str) -> list[dict[str, Any]]:
        rows = []
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

    memory = lines(os.path.join(folder, "memory.jsonl"))
    step = max(1, len(memory) // 500)
    return {
        "schema": 1,
        "outcome": result["outcome"],
        "reason": result["reason"],
        "elapsed_s": result["elapsed_s"],
        "peak_mib": result["peak_mib"],
        "budget_mib": job.get("budget_mib"),
        "cores": job.get("cores"),
        "contained": result["contained"],
        "oom_kills": result["oom_kills"],
        "gated": bool(job.get("gate_dir")),
        "architectures": job.get("architectures"),
        "units": lines(os.path.join(folder, "gate", "costs.jsonl")),
        "events": lines(os.path.join(folder, "gate", "events.jsonl"))[-2000:],
        "memory": memory[::step],
        "cuda_home": job.get("env", {}).get("CUDA_HOME"),
        # What of the environment decided the result; the rest is the host's business.
        "env": {name: value for name, value in job.get("env", {}).items() if name in job.get("told", [])},
    }
