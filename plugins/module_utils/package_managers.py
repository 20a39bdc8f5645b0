# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""apt and dnf, as far as a set of packages that must move together needs them.

The modules of Ansible serve single packages; moving a set down, simulating a transaction, and lifting and setting holds need the tools themselves. Both
classes have the same methods. Commands run through a function with the interface of ``AnsibleModule.run_command``, so that tests can stand in for it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

ENVIRONMENT = {"LC_ALL": "C", "LANGUAGE": "C", "DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_MODE": "l"}

# What apt, dpkg and dnf say when another process is at work.
_LOCKED = re.compile(
    r"Could not get lock|Unable to acquire the dpkg frontend lock|lock was locked by another process|Unable to lock directory|"
    r"is another process using it|Failed to obtain the transaction lock|waiting for process with pid \d+ to finish",
)
_HOLDER = re.compile(r"(?:held by process |process with pid |pid )(\d+)(?: \(([^)]*)\))?")


def write_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a whole file at once: beside its place, then moved over it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".ironwheel-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def process_name(pid: str) -> str:
    """Name of a process, or that it ended already."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return "it ended"


def last_lines(text: str, count: int = 6) -> str:
    """The end of a tool's output on one line, for an error message."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:] if line.strip())


class Manager:
    """What both have in common: waiting for the lock."""

    tool = ""

    def __init__(self, run: Callable, lock_timeout: int, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.lock_timeout = lock_timeout
        self.sleep = sleep
        self.clock = clock
        self.waited_for = ""

    def call(self, arguments: list[str]) -> tuple[int, str, str]:
        """Run a command that needs the lock, again and again until the lock is free.

        Raises:
            IronwheelError: still locked after ``lock_timeout`` seconds.
        """
        end = self.clock() + self.lock_timeout
        while True:
            status, stdout, stderr = self.run(arguments, environ_update=ENVIRONMENT)
            locked = _LOCKED.search(stderr) if status != 0 else None
            if locked is None:
                return status, stdout, stderr
            holder = _HOLDER.search(stderr)
            name = f"process {holder.group(1)} ({holder.group(2) or process_name(holder.group(1))})" if holder else "another process"
            if self.clock() >= end:
                raise IronwheelError(
                    f"The package manager's lock is held by {name} for longer than the limit ({self.lock_timeout} s).",
                    "PackageManagerLocked",
                    "Let that process end, often unattended-upgrades on a fresh host, or raise nvidia_driver_lock_timeout or nvidia_repository_lock_timeout.",
                )
            self.waited_for = name
            self.sleep(2)


class Apt(Manager):
    """Debian and Ubuntu."""

    tool = "apt"
    # Configuration files that the administrator changed stay as they are.
    OPTIONS = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")

    def _get(self, arguments: list[str]) -> tuple[int, str, str]:
        # apt waits for dpkg's lock by itself; the locks that it does not wait for are covered by call().
        return self.call(["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={self.lock_timeout}", *self.OPTIONS, *arguments])

    def has_lists(self, options: list[str]) -> bool:
        """True when every package list that apt would read is on disk."""
        status, stdout, stderr = self.run(["apt-get", "indextargets", "--format", "$(FILENAME)", *options, "Created-By: Packages"], environ_update=ENVIRONMENT)
        files = stdout.split()
        return status == 0 and bool(files) and all(os.path.exists(path) for path in files)

    def update(self, options: list[str] | None = None, what: str = "the package lists") -> None:
        """Read the package lists anew.

        Raises:
            IronwheelError: one of them could not be read, with apt's reason.
        """
        status, stdout, stderr = self._get(["update", "-o", "APT::Update::Error-Mode=any", *(options or [])])
        if status != 0:
            reasons = [line for line in (stderr + stdout).splitlines() if line.startswith(("E:", "W:", "Err:"))]
            raise IronwheelError(
                f"apt cannot read {what}: {last_lines(chr(10).join(reasons) or stderr)}",
                "RepositoryRefreshFailed",
                "Check the address, the key and the proxy of the host; nvidia_repository_url names a mirror.",
            )

    def installed(self) -> tuple[dict[str, str], list[str]]:
        """``(versions of installed packages, names that dpkg has left half configured)``."""
        status, stdout, stderr = self.run(["dpkg-query", "-W", "-f", "${Package}\\t${db:Status-Abbrev}\\t${Version}\\n"], environ_update=ENVIRONMENT)
        versions, broken = {}, []
        for line in stdout.splitlines():
            name, state, version = (line.split("\t") + ["", ""])[:3]
            if len(state) < 2 or state[1] in "nc":
                continue
            versions[name] = version
            if state[1] != "i" or state[2:3] == "R":
                broken.append(name)
        return versions, broken

    def available(self, names: list[str]) -> dict[str, list[str]]:
        """Versions of each package that the sources offer, newest first."""
        found: dict[str, list[str]] = {}
        if not names:
            return found
        status, stdout, stderr = self.run(["apt-cache", "madison", *names], environ_update=ENVIRONMENT)
        for line in stdout.splitlines():
            parts = [part.strip() for part in line.split("|")]
            if len(parts) == 3 and not parts[2].endswith(" Sources") and parts[1] not in found.setdefault(parts[0], []):
                found[parts[0]].append(parts[1])
        return found

    def names(self, prefixes: list[str]) -> list[str]:
        """Names of the packages known to apt that begin with one of the prefixes."""
        found: set[str] = set()
        for prefix in prefixes:
            status, stdout, stderr = self.run(["apt-cache", "pkgnames", prefix], environ_update=ENVIRONMENT)
            found.update(stdout.split())
        return sorted(found)

    def held(self) -> dict[str, str]:
        """Held packages; the value is what lifts the hold."""
        status, stdout, stderr = self.run(["apt-mark", "showhold"], environ_update=ENVIRONMENT)
        return {name.split(":")[0]: name for name in stdout.split()}

    def _mark(self, verb: str, names: list[str]) -> None:
        if not names:
            return
        status, stdout, stderr = self.call(["apt-mark", "-o", f"DPkg::Lock::Timeout={self.lock_timeout}", verb, *names])
        if status != 0:
            raise IronwheelError(f"apt-mark {verb} failed: {last_lines(stderr or stdout)}", "PackageManagerFailed")

    def hold(self, names: list[str], versions: dict[str, str]) -> None:
        """Keep the packages from being upgraded by anybody else."""
        self._mark("hold", sorted(names))

    def unhold(self, held: dict[str, str]) -> None:
        """Lift holds."""
        self._mark("unhold", sorted(held.values()))

    def repair(self) -> tuple[int, str, str]:
        """Configure what an interrupted or failed run left unpacked; returns the command's result, since a failing dkms build ends here too."""
        return self.call(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])

    def transaction_arguments(self, install: dict[str, str | None], remove: list[str]) -> list[str]:
        """Arguments of ``apt-get`` for one transaction; a package with version ``None`` gets what apt chooses."""
        wanted = [name if version is None else f"{name}={version}" for name, version in sorted(install.items())]
        return [
            "install",
            "-y",
            "--no-install-recommends",
            "--allow-downgrades",
            "--allow-change-held-packages",
            *wanted,
            *[f"{name}-" for name in sorted(remove)],
        ]

    def simulate(self, install: dict[str, str | None], remove: list[str], preferences: str | None = None) -> list[tuple[str, str, str]]:
        """What the transaction would do: ``(install | remove | configure, package, version)``.

        Args:
            preferences: folder with the pins to simulate with, instead of the host's own.

        Raises:
            IronwheelError: apt cannot find a solution, with its reason.
        """
        options = ["-o", f"Dir::Etc::PreferencesParts={preferences}"] if preferences else []
        status, stdout, stderr = self.run(
            ["apt-get", "-q", "-s", "-o", "Debug::NoLocking=1", *options, *self.transaction_arguments(install, remove)], environ_update=ENVIRONMENT
        )
        if status != 0:
            raise IronwheelError(
                f"apt finds no way to install {', '.join(sorted(install))}: {unmet(stdout) or last_lines(stderr or stdout)}",
                "PackageConflict",
                "Look for packages of another source or branch that are installed or held.",
            )
        return parse_simulation(stdout)

    def transaction(self, install: dict[str, str | None], remove: list[str]) -> tuple[int, str, str]:
        """Do it; returns the command's result, since a failing dkms build ends here and is judged by the caller.

        What was installed as somebody's dependency stays that: naming a package would otherwise make it a choice of the administrator's.
        """
        automatic = set(self.run(["apt-mark", "showauto"], environ_update=ENVIRONMENT)[1].split()) & set(install)
        result = self._get(self.transaction_arguments(install, remove))
        self._mark("auto", sorted(automatic))
        return result


def parse_simulation(text: str) -> list[tuple[str, str, str]]:
    """Lines of ``apt-get -s`` as ``(install | remove | configure, package, new version)``; the version is empty for a removal."""
    kinds = {"Inst": "install", "Remv": "remove", "Conf": "configure"}
    found = []
    for line in text.splitlines():
        match = re.match(r"(Inst|Remv|Conf) (\S+)(?: \[[^\]]*\])?(?: \((\S+))?", line)
        if match is not None:
            kind = kinds[match.group(1)]
            found.append((kind, match.group(2).split(":")[0], "" if kind == "remove" else match.group(3) or ""))
    return found


def unmet(text: str) -> str:
    """apt's explanation of unmet dependencies, on one line."""
    _head, separator, tail = text.partition("The following packages have unmet dependencies:")
    return " ".join(tail.split()) if separator else ""


class Dnf(Manager):
    """RHEL and its relatives, dnf 4."""

    tool = "dnf"

    def _dnf(self, arguments: list[str]) -> tuple[int, str, str]:
        return self.call(["dnf", "-y", *arguments])

    def has_lists(self, options: list[str]) -> bool:
        """dnf reads its metadata when it needs to."""
        return True

    def update(self, options: list[str] | None = None, what: str = "the package lists") -> None:
        """Read the metadata anew.

        Raises:
            IronwheelError: a repository could not be read.
        """
        status, stdout, stderr = self._dnf(["makecache"])
        if status != 0:
            raise IronwheelError(
                f"dnf cannot read {what}: {last_lines(stderr or stdout)}", "RepositoryRefreshFailed", "Check the address, the key and the proxy."
            )

    def installed(self) -> tuple[dict[str, str], list[str]]:
        """``(versions of installed packages, [])``; rpm has no half configured state."""
        status, stdout, stderr = self.run(["rpm", "-qa", "--qf", "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\n"], environ_update=ENVIRONMENT)
        return dict(line.split("\t", 1) for line in stdout.splitlines() if "\t" in line), []

    def _query(self, arguments: list[str]) -> str:
        # Locked versions and packages of streams that are not enabled must be seen: the role moves both.
        status, stdout, stderr = self.call(
            ["dnf", "-q", "--disableplugin=versionlock", "repoquery", "--disable-modular-filtering", "--showduplicates", *arguments]
        )
        if status != 0:
            raise IronwheelError(f"dnf repoquery failed: {last_lines(stderr)}", "PackageManagerFailed", "Check the repositories of the host.")
        return stdout

    def available(self, names: list[str]) -> dict[str, list[str]]:
        """Versions of each package that the repositories offer, with their epoch unless it is 0."""
        found: dict[str, list[str]] = {}
        if not names:
            return found
        for line in self._query(["--qf", "%{name}\\t%{epoch}:%{version}-%{release}", *names]).splitlines():
            name, separator, version = line.strip().partition("\t")
            version = version.removeprefix("0:")
            if separator and version not in found.setdefault(name, []):
                found[name].append(version)
        return found

    def names(self, prefixes: list[str]) -> list[str]:
        """Names of the packages that begin with one of the prefixes."""
        return sorted(set(self._query(["--qf", "%{name}", *[prefix + "*" for prefix in prefixes]]).split()))

    def held(self) -> dict[str, str]:
        """Locked packages; the value is the entry that locks them."""
        status, stdout, stderr = self.run(["dnf", "-q", "versionlock", "list"], environ_update=ENVIRONMENT)
        return parse_versionlock(stdout) if status == 0 else {}

    def can_lock(self) -> bool:
        """True when dnf has the plugin versionlock."""
        return self.run(["dnf", "-q", "versionlock", "list"], environ_update=ENVIRONMENT)[0] == 0

    def hold(self, names: list[str], versions: dict[str, str]) -> None:
        """Lock the packages at the versions that are installed."""
        entries = [f"{name}-{versions[name]}.*" for name in sorted(names)]
        if entries:
            self._versionlock("add", entries)

    def unhold(self, held: dict[str, str]) -> None:
        """Lift locks."""
        if held:
            self._versionlock("delete", sorted(held.values()))

    def _versionlock(self, verb: str, entries: list[str]) -> None:
        status, stdout, stderr = self._dnf(["versionlock", verb, *(["--raw"] if verb == "add" else []), *entries])
        if status != 0:
            raise IronwheelError(
                f"dnf versionlock {verb} failed: {last_lines(stderr or stdout)}", "PackageManagerFailed", "Install python3-dnf-plugin-versionlock."
            )

    def repair(self) -> tuple[int, str, str]:
        """Nothing to repair."""
        return 0, "", ""

    def transaction_arguments(self, install: dict[str, str | None], remove: list[str]) -> list[str]:
        """Arguments of ``dnf`` for one transaction."""
        wanted = [name if version is None else f"{name}-{version}" for name, version in sorted(install.items())]
        return ["--disableplugin=versionlock", "--allowerasing", "--setopt=install_weak_deps=False", "install", *wanted]

    def simulate(
        self, install: dict[str, str | None], remove: list[str], preferences: str | None = None, any_stream: bool = True
    ) -> list[tuple[str, str, str]]:
        """What the transaction would do.

        Args:
            install: package versions by name.
            remove: packages to remove.
            preferences: not used by dnf.
            any_stream: also look into module streams that are not enabled, for a transaction that will enable one of them first.

        Raises:
            IronwheelError: dnf cannot find a solution, with its reason.
        """
        # Repositories of hotfixes are not filtered by streams.
        options = ["--setopt=*.module_hotfixes=1"] if any_stream else []
        status, stdout, stderr = self.call(["dnf", "--assumeno", *options, *self.transaction_arguments(install, remove)])
        if "Nothing to do" not in stdout and "Transaction Summary" not in stdout:
            raise IronwheelError(
                f"dnf finds no way to install {', '.join(sorted(install))}: {last_lines(stderr or stdout)}",
                "PackageConflict",
                "Look for packages of another source or module stream that are installed or locked.",
            )
        return parse_dnf_transaction(stdout)

    def transaction(self, install: dict[str, str | None], remove: list[str]) -> tuple[int, str, str]:
        """Do it: what conflicts goes in the same transaction, and what else shall go only after that succeeded."""
        result = self._dnf(self.transaction_arguments(install, remove)) if install else (0, "", "")
        if result[0] != 0 or not remove:
            return result
        present = self.installed()[0]
        left = [name for name in sorted(remove) if name in present]
        if not left:
            return result
        return self._dnf(["remove", "--noautoremove", *left])

    def streams(self, module: str) -> dict[str, bool]:
        """Streams of a module and whether each is enabled; empty where the repositories have no such module."""
        status, stdout, stderr = self.run(["dnf", "-q", "module", "list", module], environ_update=ENVIRONMENT)
        return parse_streams(stdout, module) if status == 0 else {}

    def switch_stream(self, module: str, stream: str) -> None:
        """Enable a stream in place of the one that is enabled; an empty one leaves none enabled.

        Raises:
            IronwheelError: dnf refuses.
        """
        # dnf refuses to enable a stream while another one is.
        for step in [["reset", module], *([["enable", f"{module}:{stream}"]] if stream else [])]:
            status, stdout, stderr = self._dnf(["module", *step])
            if status != 0:
                raise IronwheelError(
                    f"dnf module {' '.join(step)} failed: {last_lines(stderr or stdout)}", "ModuleStreamUnavailable", "Look at dnf module list."
                )


def parse_versionlock(text: str) -> dict[str, str]:
    """Lines of ``dnf versionlock list`` as ``{name: entry}``; an entry that is no full name, such as ``*nvidia*580*``, stands under itself."""
    found = {}
    for line in text.split("\n"):
        entry = line.strip()
        match = re.match(r"!?([^\s*]+?)-(?:\d+:)?\d[^-\s]*-[^-\s]+$", entry)
        if entry and " " not in entry:
            found[match.group(1) if match else entry] = entry
    return found


def parse_dnf_transaction(text: str) -> list[tuple[str, str, str]]:
    """The table that ``dnf --assumeno`` prints, as ``(install | remove, package, version)``."""
    kind, found = "", []
    for line in text.splitlines():
        head = re.match(r"(Installing|Upgrading|Downgrading|Reinstalling|Removing)[^:]*:\s*$", line)
        if head is not None:
            kind = "remove" if head.group(1) == "Removing" else "install"
        elif line.startswith("Transaction Summary"):
            break
        elif kind:
            row = re.match(r" (\S+) +(\S+) +(\S+) +\S+ +", line)
            if row is not None:
                found.append((kind, row.group(1), "" if kind == "remove" else row.group(3)))
    return found


def parse_streams(text: str, module: str) -> dict[str, bool]:
    """Table of ``dnf module list`` as ``{stream: enabled}``; ``[e]`` marks the enabled stream, ``[d]`` a default."""
    found: dict[str, bool] = {}
    for line in text.splitlines():
        match = re.match(rf"{re.escape(module)}\s+(\S+)((?:\s*\[\w\])*)", line)
        if match is not None:
            found[match.group(1)] = found.get(match.group(1), False) or "[e]" in match.group(2)
    return found
