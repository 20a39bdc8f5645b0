# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Calling uv, and the lock files that it solves.

Works with uv 0.13. What is known of its behaviour and used here: ``pip compile`` and ``pip sync`` honour ``tool.uv.sources`` for the
direct requirements of a ``pyproject.toml`` only; ``pip sync pyproject.toml lock.txt --require-hashes`` takes the hashes from
the second file, so that one package can come from an index of its own and still be verified; ``--only-binary :all:`` has an
exception for each package named by ``--no-binary``; annotations (``# from URL``) come without credentials.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import normalize
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

LOCK_SCHEMA = 1
_MAGIC = "# ironwheel.gpu index lock"

# Packages of which every CUDA variant has a build of its own. triton and the nvidia packages have none: torch pins them.
TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "torchcodec")

# Variables that would change what a lock says, or where its packages go. Everything else of the host's UV_* is honoured.
_REFUSED_ENVIRONMENT = frozenset(
    {
        "CONDA_PREFIX",
        "PYTHONHOME",
        "PYTHONPATH",
        "UV_BREAK_SYSTEM_PACKAGES",
        "UV_BUILD_CONSTRAINT",
        "UV_COMPILE_BYTECODE",
        "UV_CONSTRAINT",
        "UV_CUSTOM_COMPILE_COMMAND",
        "UV_ENV_FILE",
        "UV_EXCLUDE",
        "UV_FORK_STRATEGY",
        "UV_ISOLATED",
        "UV_MANAGED_PYTHON",
        "UV_NO_BINARY",
        "UV_NO_BINARY_PACKAGE",
        "UV_NO_BUILD",
        "UV_NO_BUILD_ISOLATION",
        "UV_NO_BUILD_PACKAGE",
        "UV_NO_CACHE",
        "UV_NO_MANAGED_PYTHON",
        "UV_NO_SOURCES",
        "UV_NO_SOURCES_PACKAGE",
        "UV_NO_VERIFY_HASHES",
        "UV_OVERRIDE",
        "UV_PROJECT",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PYTHON",
        "UV_PYTHON_INSTALL_DIR",
        "UV_PYTHON_PREFERENCE",
        "UV_REQUIRE_HASHES",
        "UV_RESOLUTION",
        "UV_SYSTEM_PYTHON",
        "UV_TORCH_BACKEND",
        "UV_VENV_CLEAR",
        "UV_VENV_RELOCATABLE",
        "UV_VENV_SEED",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
        "VIRTUAL_ENV",
    }
)

_CREDENTIALS = re.compile(r"(://)[^/\s@\"']+@")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")


def mask(text: str) -> str:
    """The text with user names and passwords in URLs replaced, so that it can be shown and stored."""
    return _CREDENTIALS.sub(r"\1***@", text)


def requirement_name(requirement: str) -> str:
    """Normalized distribution name at the start of a requirement string.

    Raises:
        IronwheelError: there is none.
    """
    match = _NAME.match(requirement)
    if match is None:
        raise IronwheelError(
            f"'{requirement}' in uv_venv_packages is not a requirement: it must begin with a package name.",
            "InvalidRequirement",
            "write it like accelerate==1.2.0 or datasets>=4.",
        )
    return normalize(match.group(1))


# --- indexes --------------------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Indexes:
    """Where packages come from on one host: the plan's ``indexes`` joined with the host's environment.

    ``index_url`` and ``extra_index_urls`` are empty where uv's own choice (its default, its environment, its configuration) holds.
    """

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    torch_index_url: str = ""
    find_links: tuple[str, ...] = ()
    offline: bool = False
    ca_bundle: str = ""

    @classmethod
    def on_host(cls, plan: Mapping[str, Any], environ: Mapping[str, str]) -> Indexes:
        """Join the plan's ``indexes`` with ``UV_FIND_LINKS`` (commas) and ``PIP_FIND_LINKS`` (spaces) of the host.

        Raises:
            IronwheelError: a directory or file that a variable names does not exist on the host.
        """
        links = [str(link) for link in plan.get("find_links") or []]
        for link in links:
            directory = local_directory(link)
            if directory is not None and not os.path.isdir(directory):
                raise IronwheelError(
                    f"uv_venv_find_links names {link}, which is no directory on the host.",
                    "FindLinksMissing",
                    "correct the path, or bring the directory to the host before the role runs.",
                )
        inherited = environ.get("UV_FIND_LINKS", "").split(",") + environ.get("PIP_FIND_LINKS", "").split()
        for link in (entry.strip() for entry in inherited):
            directory = local_directory(link)
            # A directory that a profile names and that is not there is no fault of this request.
            if link and link not in links and (directory is None or os.path.isdir(directory)):
                links.append(link)
        bundle = str(plan.get("ca_bundle") or "")
        if bundle and not os.path.isfile(bundle):
            raise IronwheelError(
                f"uv_venv_ca_bundle is {bundle}, which is no file on the host.",
                "CaBundleMissing",
                "give the path of a PEM file on the host, or leave it empty for the system's certificates.",
            )
        return cls(
            index_url=str(plan.get("index_url") or ""),
            extra_index_urls=tuple(str(url) for url in plan.get("extra_index_urls") or []),
            torch_index_url=str(plan.get("torch_index_url") or ""),
            find_links=tuple(links),
            offline=bool(plan.get("offline")),
            ca_bundle=bundle,
        )

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment for uv. URLs travel here and not on the command line, where every user could read their passwords."""
        env = {name: value for name, value in environ.items() if name not in _REFUSED_ENVIRONMENT}
        env.update({"LC_ALL": "C.UTF-8", "NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"})
        if self.index_url:
            env.pop("UV_INDEX_URL", None)
            env["UV_DEFAULT_INDEX"] = self.index_url
        if self.extra_index_urls:
            env.pop("UV_EXTRA_INDEX_URL", None)
            env["UV_INDEX"] = " ".join(self.extra_index_urls)
        env.pop("UV_FIND_LINKS", None)
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join(self.find_links)
        if self.offline:
            env["UV_OFFLINE"] = "1"
        if self.ca_bundle:
            env["SSL_CERT_FILE"] = self.ca_bundle
        return env

    def arguments(self) -> list[str]:
        """Index options for ``uv pip compile`` and ``uv pip sync``."""
        return ["--no-index"] if self.offline else []

    def wheel(self, name: str, version: str, python: str, machine: str) -> str | None:
        """A wheel of exactly this version in one of the local find-links directories that fits this Python and machine, or ``None``.

        Args:
            name: distribution name.
            version: full version with its local part, ``2.13.0+cpu``.
            python: ``3.11``.
            machine: ``x86_64``.
        """
        tag = "cp" + "".join(python.split(".")[:2])
        for link in self.find_links:
            directory = local_directory(link)
            if directory is None:
                continue
            for entry in sorted(os.listdir(directory)):
                parts = unquote(entry[:-4]).split("-") if entry.endswith(".whl") else []
                if len(parts) not in (5, 6) or normalize(parts[0]) != name or parts[1] != version:
                    continue
                pythons, abis, platforms = (part.split(".") for part in parts[-3:])
                fits_python = (tag in pythons and (tag in abis or "none" in abis)) or "abi3" in abis or "py3" in pythons
                if fits_python and any(platform == "any" or platform.endswith("_" + machine) for platform in platforms):
                    return os.path.join(directory, entry)
        return None


def local_directory(link: str) -> str | None:
    """The directory that a find-links entry names, or ``None`` for a URL elsewhere."""
    if link.startswith("file:"):
        return unquote(urlsplit(link).path)
    return None if "://" in link or not link else link


# --- calling uv -----------------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uv:
    """A uv binary with the environment that it runs in."""

    path: str
    environ: Mapping[str, str]
    cache_dir: str = ""

    def run(self, arguments: Sequence[str], asked: str, cwd: str = "/") -> str:
        """Run uv and return its standard output.

        Args:
            arguments: everything after ``uv``.
            asked: what was asked of it, for the error.
            cwd: directory in which uv looks for a project; one of ours, so that no stranger's ``uv.toml`` above counts.

        Raises:
            IronwheelError: uv failed; its reason stands in the message.
        """
        cache = ["--cache-dir", self.cache_dir] if self.cache_dir else ["--no-cache"]
        try:
            done = subprocess.run(
                [self.path, *cache, *arguments], capture_output=True, text=True, errors="replace", env=dict(self.environ), cwd=cwd, check=False
            )
        except OSError as fault:
            raise IronwheelError(f"uv at {self.path} cannot be run: {fault}.", "UvBroken", "remove it, so that the next run installs it again.") from fault
        if done.returncode != 0:
            raise uv_error(done.returncode, done.stderr, asked)
        return done.stdout


def cache_directory(cache_dir: str, prefix: str, environ: Mapping[str, str]) -> str:
    """uv's cache: ``uv_venv_cache_dir``, or else the host's ``UV_CACHE_DIR``, or else ``<prefix>/cache/uv``."""
    return cache_dir or environ.get("UV_CACHE_DIR") or os.path.join(prefix, "cache", "uv")


def condense(stderr: str, limit: int = 1200) -> str:
    """uv's reason as one line: from ``error:`` on, without advice about options that the user does not have."""
    text = re.sub(r"\n\s*cause:", ":", mask(stderr))
    start = text.find("error:")
    kept = []
    for paragraph in re.split(r"\n\s*\n", text[start + 6 :] if start >= 0 else text):
        if not paragraph.lstrip().startswith("hint:") or "--" not in paragraph:
            kept.append(re.sub(r"\s+", " ", paragraph).strip())
    line = " ".join(part for part in kept if part)
    return line if len(line) <= limit else line[: limit - 2].rsplit(" ", 1)[0] + " …"


_FAULTS = (
    (
        "CertificateNotTrusted",
        r"invalid peer certificate|UnknownIssuer|certificate verify failed",
        "set uv_venv_ca_bundle to the PEM file of the authority that signed the index's certificate.",
    ),
    (
        "HashMismatch",
        r"Hash mismatch|no hashes were provided",
        "the file that the index serves is not the one that was locked; if the new one is right, remove the lock file, so that it is solved again.",
    ),
    ("DiskFull", r"No space left on device|os error 28", "free space below uv_venv_prefix and uv_venv_cache_dir, or set them to another disk."),
    (
        "UnsatisfiableRequest",
        r"No solution found|unsatisfiable|conflicting",
        "change the versions that the reason names (vllm_version, torch_version, uv_venv_packages, uv_venv_constraints); "
        "without network, put the missing wheels into uv_venv_find_links.",
    ),
    (
        "IndexNotReachable",
        r"Failed to fetch|error sending request|[Cc]onnect|dns error|timed? ?out|Network connectivity is disabled|401|403|50[0-9]",
        "set uv_venv_index_url (or UV_DEFAULT_INDEX on the host) to an index that the host can reach, "
        "or uv_venv_find_links to a directory of wheels with uv_venv_offline.",
    ),
)


def uv_error(status: int, stderr: str, asked: str) -> IronwheelError:
    """The error that a failed uv call becomes."""
    reason = condense(stderr) or f"uv ended with status {status} and said nothing"
    for error, pattern, remedy in _FAULTS:
        if re.search(pattern, stderr):
            return IronwheelError(f"{asked} failed. uv says: {reason}", error, remedy)
    return IronwheelError(f"{asked} failed. uv says: {reason}", "UvFailed", "mend what uv names and run again; nothing was left half done.")


# --- lock files -----------------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lock:
    """A lock: its body is what uv wrote; ``torch_index`` names the packages that came from the torch index."""

    body: str
    key: str = ""
    python: str = ""
    machine: str = ""
    torch_index: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of the body."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    @property
    def packages(self) -> dict[str, str]:
        """``{normalized name: version}``."""
        return locked_packages(self.body)

    def render(self) -> str:
        """The file's text: a header of comments, an empty line, the body."""
        header = [
            _MAGIC,
            f"# schema: {LOCK_SCHEMA}",
            f"# key: {self.key}",
            f"# python: {self.python}",
            f"# machine: {self.machine}",
            f"# torch_index: {' '.join(self.torch_index)}".rstrip(),
            f"# body: sha256:{self.digest}",
            "# Solved again when an input changes. To take newer versions, remove the file. Do not edit it.",
        ]
        header += [f"# input {name}: {mask(json.dumps(value, sort_keys=True))}" for name, value in sorted(self.inputs.items())]
        return "\n".join(header) + "\n\n" + self.body


def locked_packages(body: str) -> dict[str, str]:
    """``{normalized name: version}`` of the pins in a requirements text."""
    pins = (_PIN.match(line) for line in body.splitlines())
    return {normalize(pin.group(1)): pin.group(2) for pin in pins if pin is not None}


def parse_lock(text: str, where: str) -> Lock:
    """Read a lock file; a requirements file without our header is a lock with that body.

    Args:
        text: the file.
        where: its path, for errors.

    Raises:
        IronwheelError: the body is not the one that was solved.
    """
    if not text.startswith(_MAGIC):
        return Lock(body=text)
    header, separator, body = text.partition("\n\n")
    fields = dict(line[2:].split(": ", 1) for line in header.splitlines() if ": " in line)
    lock = Lock(
        body=body,
        key=fields.get("key", ""),
        python=fields.get("python", ""),
        machine=fields.get("machine", ""),
        torch_index=tuple(fields.get("torch_index", "").split()),
    )
    if not separator or fields.get("body") != f"sha256:{lock.digest}":
        raise IronwheelError(
            f"The lock file {where} is not as it was solved: its body has the sha256 {lock.digest}, its header says {fields.get('body', 'nothing')}.",
            "LockEdited",
            "restore the file, or remove it, so that it is solved again; to pin a version, use uv_venv_constraints.",
        )
    return lock


def lock_name(python: str, machine: str, key: str) -> str:
    """File name of a lock: ``3.11-x86_64-<12 digits of the key>.txt``."""
    return f"{'.'.join(python.split('.')[:2])}-{machine}-{key[:12]}.txt"


# --- solving --------------------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What is to be solved; the fields are those of the plan."""

    packages: tuple[str, ...]
    python: str
    machine: str
    constraints: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    torch_version: str = ""
    torch_local: str = ""
    torch_source: str = "pypi"
    build_packages: tuple[str, ...] = ()

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any], machine: str, build_packages: Sequence[str]) -> Request:
        """The request of a plan (docs/architecture.md)."""
        torch = plan.get("torch") or {}
        return cls(
            packages=tuple(str(item) for item in plan.get("packages") or []),
            python=str((plan.get("python") or {}).get("version") or ""),
            machine=machine,
            constraints=tuple(str(item) for item in plan.get("constraints") or []),
            excluded=tuple(normalize(str(item)) for item in plan.get("excluded") or []),
            torch_version=str(torch.get("version") or ""),
            torch_local=str(torch.get("local") or ""),
            torch_source=str(torch.get("source") or "pypi"),
            build_packages=tuple(normalize(item) for item in build_packages),
        )

    @property
    def torch_pin(self) -> str:
        """``torch==2.13.0+cpu`` where one variant of torch is wanted, otherwise empty."""
        if self.torch_source == "pypi" or not self.torch_version or not self.torch_local:
            return ""
        return f"torch=={self.torch_version}+{self.torch_local}"

    def asked(self) -> str:
        """The request in words."""
        return f"Solving {', '.join(self.packages) or 'an empty list of packages'} for Python {self.python} on {self.machine}"


def project_text(packages: Sequence[str], sourced: Sequence[str], torch_index_url: str) -> str:
    """A ``pyproject.toml`` with these requirements, of which ``sourced`` come from the torch index and from nowhere else.

    The empty ``[tool.uv]`` table ends uv's search for configuration above the directory.
    """
    lines = ["[project]", 'name = "ironwheel-request"', 'version = "0"', f"dependencies = {json.dumps(list(packages))}", "[tool.uv]", "package = false"]
    if sourced:
        lines += ["[[tool.uv.index]]", 'name = "torch"', f"url = {json.dumps(torch_index_url)}", "explicit = true", "[tool.uv.sources]"]
        lines += [f'{name} = {{ index = "torch" }}' for name in sourced]
    return "\n".join(lines) + "\n"


def build_arguments(build_packages: Sequence[str]) -> list[str]:
    """Wheels only, but for the packages that the user named."""
    return ["--only-binary", ":all:", *(part for name in build_packages for part in ("--no-binary", name))]


def solve(uv: Uv, request: Request, indexes: Indexes, interpreter: str) -> tuple[str, tuple[str, ...]]:
    """Solve a request.

    The torch family is pinned to the torch index where the plan says so, unless a local directory holds exactly the wanted wheel: then the
    index is not asked, because it may not be reachable. Members of the family that only others require are found by a first solution and
    pinned in a second one.

    Returns:
        The lock's body, and the names of the packages that come from the torch index.
    """
    packages = list(request.packages)
    direct = {requirement_name(item) for item in packages}
    pin = request.torch_pin
    constraints = [*request.constraints, *([pin] if pin else [])]
    if pin and "torch" not in direct:
        packages.append(pin)
        direct.add("torch")
    ask_index = bool(
        request.torch_source == "index"
        and indexes.torch_index_url
        and not indexes.offline
        and not (pin and indexes.wheel("torch", pin.partition("==")[2], request.python, request.machine))
    )
    family = [name for name in TORCH_FAMILY if name not in request.excluded]
    sourced = [name for name in family if name in direct] if ask_index else []
    body = _compile(uv, request, indexes, interpreter, packages, constraints, sourced)
    if ask_index:
        strays = [name for name in family if name in locked_packages(body) and name not in sourced]
        if strays:
            sourced += strays
            body = _compile(uv, request, indexes, interpreter, [*packages, *strays], constraints, sourced)
    return body, tuple(sorted(sourced))


def _compile(uv: Uv, request: Request, indexes: Indexes, interpreter: str, packages: list[str], constraints: list[str], sourced: list[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="ironwheel-lock-") as folder:
        for name, text in (
            ("pyproject.toml", project_text(packages, sourced, indexes.torch_index_url)),
            ("constraints.txt", "\n".join(constraints) + "\n"),
            ("excludes.txt", "\n".join(request.excluded) + "\n"),
        ):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as handle:
                handle.write(text)
        return uv.run(
            [
                "pip",
                "compile",
                "pyproject.toml",
                "--constraints",
                "constraints.txt",
                "--excludes",
                "excludes.txt",
                "--python-version",
                request.python,
                "--python",
                interpreter,
                "--generate-hashes",
                "--no-header",
                "--emit-index-annotation",
                *build_arguments(request.build_packages),
                *indexes.arguments(),
            ],
            request.asked(),
            folder,
        )


def check_torch(packages: Mapping[str, str], request: Request) -> str:
    """Compare the lock's torch with the plan's; the lock is right, so a difference is a warning, returned as text (empty when equal).

    Raises:
        IronwheelError: one variant was wanted and another one was locked.
    """
    found = packages.get("torch", "")
    if not request.torch_version or not found:
        return ""
    version, plus, local = found.partition("+")
    if request.torch_pin and local != request.torch_local:
        raise IronwheelError(
            f"torch {request.torch_version}+{request.torch_local} was wanted, but the lock has torch {found}"
            + ("." if plus else ", the default variant of the index."),
            "TorchVariantMismatch",
            "set torch_index_url to the index of the wanted variant, or put its wheel into uv_venv_find_links.",
        )
    if version != request.torch_version:
        return f"The plan expected torch {request.torch_version}, the lock has {version}. The lock is right: {shlex.join(request.packages)} needs it."
    return ""
