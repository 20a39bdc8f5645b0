# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host has to build and run with: CUDA toolkits, compilers, Pythons, uv, its environment variables, and what earlier builds left running."""

from __future__ import annotations

import contextlib
import json
import os
import re

from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import Host, integer
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_system import parse_status, users
from ansible_collections.ironwheel.gpu.plugins.module_utils.versions import parse as parse_version

MASK = "********"
COMPILE_PROCESSES = ("nvcc", "cicc", "ptxas", "cudafe++", "ninja")
# Programs that start compilers and wait for them: a tree that still has one is alive.
_BUILD_DRIVERS = re.compile(r"(?:ninja|g?make|cmake|ctest|bazel|meson|pip\d*|uv|python[\d.]*)$")
# Programs that collect processes whose parent died, here and as the first process of a container.
_REAPERS = re.compile(r"(?:systemd|init|tini|dumb-init|docker-init|catatonit|s6-svscan|runsvdir|sleep|pause|tail)$")
_SHELLS = ("sh", "bash", "dash", "zsh")
_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")


def parse_nvcc(text: str) -> str | None:
    """Version of ``nvcc --version``: ``12.8.93`` from "release 12.8, V12.8.93", with or without a Build line."""
    match = re.search(r"release \d+\.\d+, V(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else None


def parse_version_json(text: str) -> tuple[str | None, str | None]:
    """``(release, nvcc version)`` of a toolkit's version.json, such as ``("12.8.1", "12.8.93")``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None, None

    def version(key: str) -> str | None:
        entry = content.get(key) if isinstance(content, dict) else None
        value = entry.get("version") if isinstance(entry, dict) else None
        return value if isinstance(value, str) and re.match(r"\d+\.\d+", value) else None

    return version("cuda"), version("cuda_nvcc")


def parse_version_txt(text: str) -> str | None:
    """Release in version.txt, which toolkits up to 10.2 have: ``CUDA Version 10.1.243``."""
    match = re.search(r"CUDA Version (\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else None


def parse_cuda_h(text: str) -> str | None:
    """``13.0`` from ``#define CUDA_VERSION 13000`` in cuda.h or cuda_runtime_api.h."""
    match = re.search(r"^\s*#\s*define\s+(?:CUDA_VERSION|CUDART_VERSION)\s+(\d{4,6})\b", text, re.MULTILINE)
    return f"{int(match.group(1)) // 1000}.{int(match.group(1)) % 1000 // 10}" if match else None


def read_toolkits(host: Host, prefix: str) -> list[dict]:
    """CUDA toolkits by real path: a symbolic link to a toolkit is not a second one, and conda's are not ours to use."""
    candidates = [
        *host.paths("/usr/local", "cuda-*"),
        "/usr/local/cuda",
        *host.paths("/opt", "cuda*"),
        *host.paths(f"{prefix}/toolkits"),
    ]
    homes = dict.fromkeys(host.resolve(path) for path in candidates if host.is_dir(path))
    # A distribution's own toolkit has nvcc in /usr/bin; an alternative that points into a toolkit is that toolkit.
    nvcc = host.resolve("/usr/bin/nvcc")
    if host.is_file(nvcc) and nvcc.startswith(("/usr/bin/", "/usr/lib/nvidia-cuda-toolkit/")):
        homes["/usr"] = None
    toolkits = []
    for home in homes:
        if host.is_dir(f"{home}/conda-meta") or not (host.exists(f"{home}/bin") or host.exists(f"{home}/include")):
            continue
        toolkits.append(_toolkit(host, home, managed=home.startswith(host.resolve(f"{prefix}/toolkits") + "/")))
    return sorted(toolkits, key=lambda toolkit: toolkit["path"])


def _toolkit(host: Host, home: str, managed: bool) -> dict:
    """One toolkit: versions from its files first, nvcc's own word where it can be run."""
    distribution = home == "/usr"
    release, nvcc_version = (None, None) if distribution else parse_version_json(host.text(f"{home}/version.json") or "")
    release = release or (None if distribution else parse_version_txt(host.text(f"{home}/version.txt") or ""))
    includes = [f"{home}/include", *(f"{path}/include" for path in host.paths(f"{home}/targets") if not distribution)]
    libraries = [f"{home}/lib64", f"{home}/lib", *(f"{path}/lib" for path in host.paths(f"{home}/targets") if not distribution)]
    cicc = [f"{home}/nvvm/bin/cicc"]
    if distribution:
        libraries.extend(f"/usr/lib/{arch}-linux-gnu" for arch in ("x86_64", "aarch64"))
        cicc.append("/usr/lib/nvidia-cuda-toolkit/bin/cicc")
    parts = {
        "nvcc": [f"{home}/bin/nvcc"],
        "cicc": cicc,
        "ptxas": [f"{home}/bin/ptxas"],
        "cuda_runtime.h": [f"{path}/cuda_runtime.h" for path in includes],
        "libcudart.so": [f"{path}/libcudart.so" for path in libraries],
    }
    missing = [name for name, places in parts.items() if not any(host.is_file(place) for place in places)]
    header = next((found for path in includes for name in ("cuda.h", "cuda_runtime_api.h") if (found := parse_cuda_h(host.text(f"{path}/{name}") or ""))), None)
    if "nvcc" not in missing:
        status, out, err = host.tool(f"{home}/bin/nvcc", "--version")
        told = parse_nvcc(out) if status == 0 else None
        if told is None and host.run is not None:
            said = " ".join((err or out).split())[:160]
            host.warn("NvccFailed", f"{home}/bin/nvcc --version gave status {status} and no version: {said}", "Install this toolkit again, or remove it.")
        nvcc_version = told or nvcc_version
    full = nvcc_version or release or header
    short = re.match(r"\d+\.\d+", release or header or full or "")
    if short is None:
        host.warn("ToolkitVersionUnknown", f"The CUDA toolkit in {home} does not say its version.", "Remove the folder, or install the toolkit again.")
    return {
        "path": home,
        "version": short.group(0) if short else None,
        "full_version": full,
        "nvcc_version": nvcc_version,
        "complete": not missing,
        "missing": missing,
        "managed": managed,
    }


def parse_compiler_version(text: str) -> str | None:
    """Version in the output of ``gcc -dumpfullversion -dumpversion`` or ``clang --version``."""
    match = re.search(r"clang version (\d+(?:\.\d+)*)", text) or re.match(r"\s*(\d+(?:\.\d+)*)\s*$", text)
    return match.group(1) if match else None


def read_compilers(host: Host) -> dict:
    """Host compilers: the version that plain ``gcc``, ``g++`` and ``clang`` have, and every one that is there."""
    folders = ["/usr/local/bin", "/usr/bin", *(f"{path}/root/usr/bin" for path in host.paths("/opt/rh", "gcc-toolset-*"))]
    versions: dict[str, str | None] = {}
    every, default = [], {"gcc": None, "gxx": None, "clang": None}
    for folder in folders:
        for name in host.names(folder):
            match = re.fullmatch(r"(gcc|g\+\+|clang)(?:-(\d+(?:\.\d+)?))?", name)
            path = f"{folder}/{name}"
            if match is None or not host.is_file(path):
                continue
            real = host.resolve(path)
            if real not in versions:
                argv = [path, "--version"] if match.group(1) == "clang" else [path, "-dumpfullversion", "-dumpversion"]
                status, out, _err = host.tool(*argv)
                named = re.search(r"-(\d+(?:\.\d+)*)$", real)
                versions[real] = (parse_compiler_version(out) if status == 0 else None) or (named.group(1) if named else None)
            kind = {"g++": "gxx"}.get(match.group(1), match.group(1))
            every.append({"path": path, "kind": kind, "version": versions[real]})
            if match.group(2) is None and not folder.startswith("/opt/"):
                default[kind] = default[kind] or versions[real]
    return {**default, "all": every}


def read_pythons(host: Host, prefix: str, home: str | None) -> list[dict]:
    """CPython interpreters by real path: the system's, local ones, pyenv's and the managed ones."""
    roots = dict.fromkeys(path for path in (host.environ.get("PYENV_ROOT"), f"{home}/.pyenv" if home else None, "/opt/pyenv") if path)
    folders = ["/usr/bin", "/usr/local/bin"]
    folders.extend(f"{version}/bin" for root in roots for version in host.paths(f"{root}/versions"))
    folders.extend(f"{version}/bin" for version in host.paths(f"{prefix}/python"))
    seen, pythons = set(), []
    for folder in folders:
        for name in host.names(folder, "python3.*"):
            path = f"{folder}/{name}"
            real = host.resolve(path)
            if not re.fullmatch(r"python3\.\d+", name) or real in seen or not host.is_file(path):
                continue
            seen.add(real)
            pythons.append({"path": path, "version": _python_version(host, path, name), "system": folder == "/usr/bin"})
    return pythons


def _python_version(host: Host, path: str, name: str) -> str | None:
    """Full version from the folder's name (pyenv, uv), else from the interpreter, else the minor in the file's name."""
    minor = name[len("python") :]
    for part in host.resolve(path).split("/"):
        match = re.fullmatch(r"(?:cpython-)?(\d+\.\d+\.\d+\w*)(?:[-+].*)?", part)
        if match and match.group(1).startswith(minor + "."):
            return match.group(1)
    status, out, err = host.tool(path, "-V")
    match = re.search(r"Python (\d+\.\d+\.\d+\w*)", out + err)
    return match.group(1) if status == 0 and match else minor


def read_uv(host: Host, prefix: str, home: str | None) -> dict | None:
    """The newest pinned uv under the prefix, else the one on PATH or in the user's home: ``{path, version}``."""
    pinned = [name for name in host.names(f"{prefix}/uv") if re.fullmatch(r"\d+\.\d+\.\d+", name) and host.is_file(f"{prefix}/uv/{name}/uv")]
    if pinned:
        newest = max(pinned, key=parse_version)
        return {"path": f"{prefix}/uv/{newest}/uv", "version": newest}
    folders = [folder for folder in host.environ.get("PATH", "").split(":") if folder.startswith("/")]
    folders.extend(["/usr/local/bin", "/usr/bin", *([f"{home}/.local/bin", f"{home}/.cargo/bin"] if home else [])])
    for folder in dict.fromkeys(folders):
        path = f"{folder.rstrip('/')}/uv"
        if host.is_file(path):
            match = re.match(r"uv (\d+\.\d+\.\d+\S*)", host.tool(path, "--version")[1])
            return {"path": path, "version": match.group(1) if match else None}
    return None


def mask_urls(text: str) -> str:
    """The text with user and password of every URL, and secrets in query strings, replaced by ``********``."""
    # A password may hold an unescaped @: everything up to the last one before the path is masked. Proxies come without a scheme, too.
    text = re.sub(r"(://|(?:^|(?<=[\s,;=]))(?=[^\s/@,;=:]+:[^\s/]*@))[^\s/]*@", rf"\g<1>{MASK}@", text)
    return re.sub(r"([?&][\w-]*(?:token|key|password|secret|sig)[\w-]*=)[^&\s]+", rf"\g<1>{MASK}", text, flags=re.IGNORECASE)


def read_environment(environ: dict) -> dict[str, str]:
    """Variables that steer uv, pip, proxies and certificates; for reading only, since secrets in them are masked."""
    found = {}
    for name, value in sorted(environ.items()):
        wanted = name.startswith(("UV_", "PIP_")) or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")
        if wanted or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            secret = re.search(r"PASSWORD|TOKEN|SECRET|CREDENTIAL", name)
            found[name] = MASK if secret and value else mask_urls(value)
    return found


def parse_environ(text: str) -> dict[str, str]:
    """/proc/<pid>/environ as a dictionary."""
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def read_ca_bundle(host: Host) -> str | None:
    """The certificate bundle that programs use: what SSL_CERT_FILE names, else the distribution's."""
    named = host.environ.get("SSL_CERT_FILE")
    if named:
        if host.is_file(named):
            return named
        host.warn("CaBundleMissing", f"SSL_CERT_FILE names {named}, which does not exist.", "Correct or unset SSL_CERT_FILE.")
    return next((path for path in _CA_BUNDLES if host.is_file(path)), None)


def read_leftovers(host: Host, prefix: str, uptime_s: float | None = None) -> list[dict]:
    """Compilers and ninjas that run now, whose they are, and whether anything still waits for them."""
    builds = host.resolve(f"{prefix}/builds")
    uptime = uptime_s if uptime_s is not None else _seconds(host.text("/proc/uptime", quiet=True))
    names = None
    found = []
    for pid in sorted(int(name) for name in host.names("/proc", "[0-9]*") if name.isdigit() and len(name) < 10):
        comm = host.word(f"/proc/{pid}/comm")
        # A gate or wrapper script shows its interpreter as comm; the compilers below it are found by their own names.
        if comm not in COMPILE_PROCESSES:
            continue
        status = parse_status(host.text(f"/proc/{pid}/status", quiet=True) or "")
        if status["state"] in (None, "Z", "X"):
            continue
        names = users(host) if names is None else names
        owner = names.get(status["uid"], (None if status["uid"] is None else str(status["uid"]), None))[0]
        folder = _build_folder(host, pid, builds)
        alive = comm == "ninja" or is_alive(host, pid)
        found.append(
            {
                "pid": pid,
                "name": comm,
                "user": owner,
                "age_s": _age(host, pid, uptime),
                "rss_mib": (status["rss_kib"] or 0) // 1024,
                "build": folder,
                "ours": bool(folder) and folder.startswith(builds + "/"),
                "alive": alive,
                "orphan": not alive,
            }
        )
    return found


def _seconds(text: str | None) -> float | None:
    """First number of /proc/uptime."""
    with contextlib.suppress(ValueError, IndexError):
        return float((text or "").split()[0])
    return None


def _age(host: Host, pid: int, uptime: float | None) -> int | None:
    """Age of a process in seconds: field 22 of stat counts clock ticks (100 a second on Linux) since the start of the system."""
    after = (host.text(f"/proc/{pid}/stat", quiet=True) or "").rpartition(")")[2].split()
    ticks = integer(after[19]) if len(after) > 19 else None
    if uptime is None or ticks is None:
        return None
    per_second = os.sysconf("SC_CLK_TCK") if host.live else 100
    return max(0, int(uptime - ticks / per_second))


def _build_folder(host: Host, pid: int, builds: str) -> str | None:
    """The folder of the build that a process belongs to: ours by folder or arguments, else where it works."""
    cwd = (host.link(f"/proc/{pid}/cwd") or "").replace(" (deleted)", "")
    arguments = (host.text(f"/proc/{pid}/cmdline", quiet=True) or "").split("\0")
    for text in (cwd, *arguments):
        position = text.find(builds + "/")
        if position >= 0:
            rest = text[position + len(builds) + 1 :].split("/")[0]
            if rest:
                return f"{builds}/{rest}"
    return cwd or None


def is_alive(host: Host, pid: int) -> bool:
    """False when nothing waits for this process any more: climbing over compilers and what wraps them leads to a collector of orphans.

    Everything else above it (a build driver, a person's shell, a service) is taken for what waits, and so is what cannot be seen: who ends orphans
    must not end somebody's build.
    """
    current, seen = pid, set()
    while current not in seen:
        seen.add(current)
        parent = parse_status(host.text(f"/proc/{current}/status", quiet=True) or "")["ppid"]
        if not parent:
            # Gone meanwhile, or started in this container from outside.
            return True
        comm = host.word(f"/proc/{parent}/comm") or ""
        if _is_wrapper(host, parent, comm):
            current = parent
            continue
        if parent == 1:
            return bool(_BUILD_DRIVERS.match(comm)) or comm in _SHELLS
        return not _REAPERS.match(comm)
    return True


def _is_wrapper(host: Host, pid: int, comm: str) -> bool:
    """True for a process between a build driver and a compiler: another compiler, its gate or cache, a shell with one command."""
    if comm == "ninja":
        return False
    if comm in COMPILE_PROCESSES or comm == "ccache" or comm.startswith("nvcc_gate"):
        return True
    arguments = (host.text(f"/proc/{pid}/cmdline", quiet=True) or "").split("\0")
    if comm in _SHELLS:
        return pid != 1 and arguments[1:2] == ["-c"]
    return comm.startswith("python") and any(os.path.basename(argument).startswith("nvcc_gate") for argument in arguments[1:])
