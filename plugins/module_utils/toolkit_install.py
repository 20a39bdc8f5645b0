# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which CUDA toolkits a host lacks, where each comes from, and by which names. Pure functions but for :func:`examine`, which looks at files.

Package names: NVIDIA's repositories for Ubuntu, Debian and RHEL, CUDA 12.0 to 13.5. The parts that a named package depends on (crt, nvvm, cccl, driver stubs)
change their names between releases and are left to the package manager.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ansible_collections.ironwheel.gpu.plugins.module_utils import cuda, package_managers, repository, toolkit_wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.cuda_toolkits import CUDA_TOOLKITS
from ansible_collections.ironwheel.gpu.plugins.module_utils.versions import at_least, compare

SOURCES = ("repository", "runfile", "wheels")
# Where NVIDIA's packages put toolkits, and the link that names the default one.
SYSTEM_FOLDER = "/usr/local"
DEFAULT_LINK = "/usr/local/cuda"

# Enough to build extensions of torch: what its headers include, and the tools that tell which GPUs a binary is for.
_PROGRAM_PACKAGES = ("cuda-nvcc", "cuda-cuobjdump", "cuda-nvdisasm", "cuda-nvtx", "cuda-profiler-api")
_DEVELOPMENT_PACKAGES = ("cuda-cudart", "cuda-nvrtc", "cuda-nvml", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse")
_DEVELOPMENT_SUFFIX = {"apt": "dev", "dnf": "devel"}

# Whatever brings a kernel module, libcuda or nvidia-smi. ``cuda``, ``cuda-12-8`` and ``cuda-runtime-12-8`` are meta packages that do.
_DRIVER_PACKAGE = re.compile(
    r"cuda(-\d+-\d+)?|cuda-runtime(-\d+-\d+)?|cuda-demo-suite(-\d+-\d+)?|cuda-drivers(-.+)?|cuda-compat(-.+)?"
    r"|nvidia-(driver|open|kernel|dkms|headless|utils|compute|settings|persistenced|fabricmanager|modprobe|firmware|smi|kmod|xconfig|imex)(-.+|\d.*)?"
    r"|libnvidia-.+|libcuda1(-.+)?|kmod-nvidia.*|akmod-nvidia.*|xserver-xorg-video-nvidia.*|linux-(modules|objects|signatures)-nvidia.*"
)

# What an extension build needs of a toolkit. Alternatives are separated by "|": thrust moved below include/cccl in 13.0, lib64 is NVIDIA's name for lib.
PARTS = {
    "nvcc": "bin/nvcc",
    "ptxas": "bin/ptxas",
    "fatbinary": "bin/fatbinary",
    "cudafe++": "bin/cudafe++",
    "nvlink": "bin/nvlink",
    "cicc": "nvvm/bin/cicc",
    "libdevice": "nvvm/libdevice/libdevice.10.bc",
    "cuda.h": "include/cuda.h",
    "cuda_runtime.h": "include/cuda_runtime.h",
    "crt": "include/crt/host_config.h",
    "thrust": "include/thrust/tuple.h|include/cccl/thrust/tuple.h",
    "cublas": "include/cublas_v2.h",
    "cufft": "include/cufft.h",
    "curand": "include/curand_kernel.h",
    "cusolver": "include/cusolverDn.h",
    "cusparse": "include/cusparse.h",
    "nvml": "include/nvml.h",
    "nvrtc": "include/nvrtc.h",
    "nvtx": "include/nvtx3/nvToolsExt.h",
    "profiler": "include/cuda_profiler_api.h",
    "cudart": "lib64/libcudart.so",
    "cudart_static": "lib64/libcudart_static.a",
    "cudadevrt": "lib64/libcudadevrt.a",
    "libcublas": "lib64/libcublas.so",
    "libnvrtc": "lib64/libnvrtc.so",
}

# A package of one toolkit: cuda-nvcc-12-8, libcublas-dev-12-8, cuda-toolkit-12-8-config-common. Forward compatibility is none: it is a driver's part.
_TOOLKIT_PACKAGE = re.compile(r"(?!cuda-compat-)(?:cuda|cccl|lib|gds|nsight)[a-z0-9+.-]*?-(\d+)-(\d+)(?:-config-common)?")


# --- what is there ------------------------------------------------------------------------------------------------------------------------------------------


@dataclass
class Toolkit:
    """A toolkit as found at ``path``. ``missing`` names parts; ``source`` is where it came from, ``unknown`` when neither our marker nor a package says so."""

    path: str
    version: str | None
    nvcc_version: str | None
    missing: list[str] = field(default_factory=list)
    source: str = "unknown"
    packages: str = ""

    @property
    def complete(self) -> bool:
        """True when nothing that an extension build needs is missing and nvcc says its version."""
        return not self.missing and self.nvcc_version is not None

    @property
    def fault(self) -> str:
        """Why it does not serve, or empty."""
        if self.missing:
            return f"{self.path} lacks {', '.join(self.missing)}"
        return "" if self.nvcc_version else f"{self.path}/bin/nvcc does not say its version"

    @property
    def removable(self) -> bool:
        """Made by this collection or by the package manager; everything else is somebody's own."""
        return self.source in SOURCES


def missing_parts(path: str) -> list[str]:
    """Names of :data:`PARTS` that the toolkit at ``path`` lacks."""
    return [name for name, places in PARTS.items() if not any(os.path.exists(os.path.join(path, place)) for place in places.split("|"))]


def packaged_versions(installed: list[str]) -> dict[str, list[str]]:
    """Installed packages by the toolkit that they belong to: ``{"12.8": ["cuda-nvcc-12-8", …]}``."""
    found: dict[str, list[str]] = {}
    for name in sorted(installed):
        match = _TOOLKIT_PACKAGE.fullmatch(name)
        if match is not None:
            found.setdefault(f"{match.group(1)}.{match.group(2)}", []).append(name)
    return found


def examine(fact: dict, packaged: dict[str, list[str]]) -> Toolkit:
    """A toolkit of the host facts, looked at more closely: library headers, damaged wheels, where it came from."""
    path, version = fact["path"], fact["version"]
    marker = toolkit_wheels.read_marker(path) or {}
    toolkit = Toolkit(path, version, fact["nvcc_version"], missing_parts(path), marker.get("source", "unknown"), marker.get("packages", ""))
    if toolkit.source == "wheels":
        toolkit.missing += toolkit_wheels.damaged_files(path)[:5]
    elif toolkit.source == "unknown" and path == f"{SYSTEM_FOLDER}/cuda-{version}" and packaged.get(version):
        toolkit.source = "repository"
        toolkit.packages = "full" if f"cuda-toolkit-{version.replace('.', '-')}" in packaged[version] else "minimal"
    if path != "/usr" and version and toolkit.nvcc_version and not toolkit.nvcc_version.startswith(version + "."):
        toolkit.missing.append(f"nvcc {version} (it is {toolkit.nvcc_version})")
    return toolkit


# --- what it needs of the host ------------------------------------------------------------------------------------------------------------------------------


def limit_faults(version: str, host: dict) -> list[str]:
    """Why a toolkit would not serve on this host, with the numbers; what the facts do not know is not held against it.

    Args:
        version: ``major.minor``.
        host: host facts, of which ``os``, ``compilers``, ``gpus`` and ``driver`` are read.
    """
    faults = []
    glibc = cuda.glibc_fault(version, (host.get("os") or {}).get("glibc"))
    if glibc:
        faults.append(glibc)
    compilers = host.get("compilers") or {}
    chosen, tried = cuda.choose_gcc(compilers, cuda.gcc_limits(version, None))
    if chosen is None and tried:
        faults.append("; ".join(reason for _name, _verdict, reason in tried))
    capabilities = {gpu.get("compute_capability") for gpu in host.get("gpus") or []} - {None}
    for capability in sorted(capabilities, key=cuda.capability_key):
        if not cuda.compiles_for(version, capability):
            known = (cuda.toolkit(version) or {}).get("capabilities") or []
            faults.append(f"CUDA {version} has no code for a GPU of compute capability {capability}; it has {', '.join(known)}")
    driver = host.get("driver") or {}
    loaded = driver.get("module_version") or driver.get("userspace_version")
    if driver.get("state") == "ok" and loaded and compare(loaded, cuda.min_driver(version)) < 0:
        faults.append(f"programs of CUDA {version} need driver {cuda.min_driver(version)} or newer, and {loaded} is loaded")
    return faults


# --- where it comes from ------------------------------------------------------------------------------------------------------------------------------------


def has_repository(host_os: dict, repository_url: str) -> str:
    """Empty when NVIDIA's repository (or the user's mirror) serves this host, otherwise the reason why not."""
    if repository_url:
        return ""
    try:
        repository.distribution(host_os.get("id") or "", host_os.get("version") or "")
        repository.architecture(host_os.get("arch") or "")
    except IronwheelError as error:
        return error.message
    return ""


def package_manager(host_os: dict) -> str:
    """``dnf`` on RHEL and its relatives, ``apt`` elsewhere."""
    return "dnf" if host_os.get("id") in repository.RHEL_RELATIVES else "apt"


def choose_source(version: str, wanted: str, host_os: dict, root: bool, repository_url: str = "") -> str:
    """``repository``, ``runfile`` or ``wheels`` for a toolkit that the host lacks.

    Args:
        version: ``major.minor``.
        wanted: the user's choice or ``auto``: the repository where root and a repository are there, otherwise wheels for CUDA 13.
        host_os: the ``os`` part of the host facts.
        root: whether the run has root.
        repository_url: a mirror that the user named.

    Raises:
        IronwheelError: the source cannot give this version on this host.
    """
    if toolkit_wheels.VERSION.fullmatch(version) is None:
        # Reached by callers other than the plan, which checks the variable before.
        raise IronwheelError(f"cuda_toolkit_versions holds '{version}', which is not major.minor such as 12.8.", "InvalidVersion")
    obstacle = has_repository(host_os, repository_url)
    if wanted == "repository":
        if obstacle:
            raise IronwheelError(
                f"cuda_toolkit_source is repository, but: {obstacle}",
                "UnsupportedDistribution",
                f"set cuda_toolkit_source to {'wheels' if at_least(version, toolkit_wheels.FIRST_VERSION) else 'runfile'}.",
            )
        if not root:
            raise IronwheelError(
                "cuda_toolkit_source is repository, which needs root, and the run is not root.",
                "NeedsRoot",
                "run with become, or set cuda_toolkit_source to wheels (CUDA 13) or runfile.",
            )
        return "repository"
    if wanted == "wheels":
        toolkit_wheels.check_version(version)
        return "wheels"
    if wanted == "runfile":
        return "runfile"
    if root and not obstacle:
        return "repository"
    if at_least(version, toolkit_wheels.FIRST_VERSION):
        return "wheels"
    reason = obstacle or "the run is not root, which NVIDIA's packages need."
    raise IronwheelError(
        f"CUDA {version} is wanted and no source can give it: PyPI's wheels have a compiler from CUDA {toolkit_wheels.FIRST_VERSION} on, and {reason}",
        "NoToolkitSource",
        "set cuda_toolkit_source to runfile (with cuda_toolkit_runfiles), run with become, or plan a torch build for CUDA 13.",
    )


def package_names(version: str, packages: str, manager: str) -> list[str]:
    """Packages of NVIDIA's repository for ``apt`` or ``dnf``; none of them depends on a driver."""
    dashed = version.replace(".", "-")
    if packages == "full":
        return [f"cuda-toolkit-{dashed}"]
    names = [*_PROGRAM_PACKAGES, *(f"{name}-{_DEVELOPMENT_SUFFIX[manager]}" for name in _DEVELOPMENT_PACKAGES)]
    return [f"{name}-{dashed}" for name in names]


def driver_packages(names: list[str]) -> list[str]:
    """Those of the packages that bring a driver or a part of one, sorted."""
    return sorted(name for name in names if _DRIVER_PACKAGE.fullmatch(name))


def removed_packages(text: str) -> list[str]:
    """Packages that a simulated removal names: lines ``Purg`` or ``Remv`` of apt, or dnf's table below "Removing", sorted."""
    names = {match.group(1) for match in re.finditer(r"^(?:Purg|Remv) ([^\s:]+)", text, re.MULTILINE)}
    return sorted(names | {name for kind, name, _version in package_managers.parse_dnf_transaction(text) if kind == "remove"})


def runfile(version: str, machine: str, base_url: str, given: dict) -> dict:
    """``{version, url, sha256, name}`` of NVIDIA's installer for a version.

    Args:
        version: ``major.minor``.
        machine: machine name of the kernel.
        base_url: what the release's folder is appended to.
        given: the user's ``{"sha256": …, "url": …}`` for this version; ``url`` is for mirrors with names of their own.

    Raises:
        IronwheelError: no file known, or no hash: NVIDIA publishes MD5 sums only, so that the user says which file is meant.
    """
    sha256 = str(given.get("sha256") or "").lower()
    if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:
        raise IronwheelError(
            f"cuda_toolkit_runfiles has no sha256 (64 hexadecimal digits) for CUDA {version}, and a runfile is never run unchecked.",
            "RunfileWithoutHash",
            f'set cuda_toolkit_runfiles: {{"{version}": {{sha256: …}}}} with the hash of the file that you trust.',
        )
    url = given.get("url")
    if not url:
        names = CUDA_TOOLKITS.get(version, {}).get("runfiles") or []
        if not names:
            raise IronwheelError(
                f"The name of the runfile of CUDA {version} is not known.",
                "UnknownRunfile",
                f'give its address as cuda_toolkit_runfiles: {{"{version}": {{url: …, sha256: …}}}}.',
            )
        name = names[-1]
        release = name.split("_")[1]
        if repository.architecture(machine) == "sbsa":
            name = name.replace("_linux.run", "_linux_sbsa.run")
        url = f"{base_url.rstrip('/')}/{release}/local_installers/{name}"
    return {"version": version, "url": url, "sha256": sha256, "name": url.rsplit("/", 1)[-1]}


# --- what to do ---------------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What the role is asked for; ``versions`` holds the plan's and the user's, ``default`` the version that ``/usr/local/cuda`` shall name or empty."""

    versions: tuple[str, ...]
    source: str = "auto"
    packages: str = "minimal"
    folder: str = ""
    default: str = ""
    remove_unlisted: bool = False
    repository_url: str = ""
    runfile_url: str = ""
    runfiles: dict = field(default_factory=dict)
    enforce_limits: bool = True


def decide(request: Request, found: list[Toolkit], host: dict, link: str | None, packaged: dict[str, list[str]]) -> dict:
    """What is there and what is to be done.

    Args:
        request: what is asked for.
        found: the toolkits of the host.
        host: host facts (``os``, ``user``, ``compilers``, ``gpus``, ``driver``).
        link: what ``/usr/local/cuda`` resolves to, None when there is no such link.
        packaged: installed packages by toolkit version.

    Returns:
        ``toolkits`` (one entry a version: version, path, source, present, reason, nvcc_version), ``packages`` (names for ``manager``), ``wheels`` (versions),
        ``runfiles``, ``remove_packages`` and ``remove_folders``, ``removed`` (versions), ``link`` (where the default link shall point, or None), ``steps``
        in their order, ``warnings``.

    Raises:
        IronwheelError: a version cannot be had on this host, or would not serve there.
    """
    system = host.get("os") or {}
    root = bool((host.get("user") or {}).get("root"))
    manager = package_manager(system)
    toolkits, packages, wheels, runfiles, faults = [], [], [], [], []
    for version in request.versions:
        candidates = sorted((toolkit for toolkit in found if toolkit.version == version), key=lambda toolkit: not toolkit.path.startswith(request.folder + "/"))
        present = next((toolkit for toolkit in candidates if toolkit.complete and _holds(toolkit, request.packages)), None)
        if present is not None:
            entry = {"version": version, "path": present.path, "source": present.source, "present": True, "reason": "", "nvcc_version": present.nvcc_version}
            toolkits.append(entry)
            continue
        faults += limit_faults(version, host)
        source = choose_source(version, request.source, system, root, request.repository_url)
        folder = SYSTEM_FOLDER if source == "repository" else request.folder
        reason = next((toolkit.fault or f"{toolkit.path} does not hold the {request.packages} set" for toolkit in candidates), "it is not there")
        path = os.path.join(folder, toolkit_wheels.directory_name(version))
        toolkits.append({"version": version, "path": path, "source": source, "present": False, "reason": reason, "nvcc_version": None})
        if source == "repository":
            packages += package_names(version, request.packages, manager)
        elif source == "wheels":
            wheels.append(version)
        else:
            item = runfile(version, system.get("arch") or "", request.runfile_url, request.runfiles.get(version, {}))
            runfiles.append({**item, "path": path})
    if faults and request.enforce_limits:
        raise IronwheelError(
            f"A CUDA toolkit that is wanted would not serve on this host: {'; '.join(faults)}.",
            "ToolkitLimits",
            "plan a torch build for another CUDA, change cuda_toolkit_versions, or set cuda_toolkit_enforce_limits to false to install it all the same.",
        )
    leaving = [toolkit for toolkit in found if request.remove_unlisted and toolkit.removable and toolkit.version not in request.versions]
    if any(toolkit.source == "repository" for toolkit in leaving) and not root:
        raise IronwheelError("cuda_toolkit_remove_unlisted has packages to remove, which needs root, and the run is not root.", "NeedsRoot", "run with become.")
    target = next((entry["path"] for entry in toolkits if entry["version"] == request.default), None) if request.default else None
    # Removal comes last: only when what shall stay is known to be whole.
    work = {
        "repository": packages,
        "wheels": wheels,
        "runfile": runfiles,
        "verify": packages or wheels or runfiles,
        "link": target is not None and link != target,
        "remove": leaving,
    }
    steps = [name for name, needed in work.items() if needed]
    return {
        "toolkits": toolkits,
        "manager": manager,
        "packages": packages,
        "wheels": wheels,
        "runfiles": runfiles,
        "remove_packages": [name for toolkit in leaving if toolkit.source == "repository" for name in packaged.get(toolkit.version, [])],
        "remove_folders": [toolkit.path for toolkit in leaving if toolkit.source != "repository"],
        "removed": [toolkit.version for toolkit in leaving],
        "link": target,
        "steps": steps,
        "warnings": faults,
    }


def _holds(toolkit: Toolkit, packages: str) -> bool:
    """Whether a complete toolkit also holds the full set where that is wanted; what others installed is taken as it is."""
    return packages != "full" or toolkit.packages == "full" or toolkit.source == "unknown"
