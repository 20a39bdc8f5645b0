# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a signed apt repository with the names, versions and dependencies of NVIDIA's, on the host that runs this.

``make_repository.py FOLDER KERNEL`` writes ``FOLDER/compute/cuda/repos/debian12/x86_64`` with its key beside it, the same for debian13 (signed by another
key), ``FOLDER/fingerprint``, and what dkms needs of the kernel's headers; ``make_repository.py --headers KERNEL`` makes those of one more kernel. The packages
are small stand-ins, but what the roles look at is real: libraries by their names, a dkms source tree that dkms builds into an ELF object with module
information, nvcc's version, services, pins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

LIB = "usr/lib/x86_64-linux-gnu"
DRIVERS = ("570.211.01", "580.95.05", "580.126.09", "590.48.01", "595.45.04")
# Its module does not compile, as that of a driver that is too old or too new for the kernel.
BROKEN = "595.45.04"
TOOLKITS = {"12.8": "12.8.93", "13.1": "13.1.115"}

MODULE_SOURCE = """\
{fault}
#define SECTION __attribute__((section(".modinfo"), used))
static const char version[] SECTION = "version={version}";
static const char license[] SECTION = "license={license}";
static const char name[] SECTION = "name=nvidia";
static const char vermagic[] SECTION = "vermagic={kernel} SMP";
int compiler = __GNUC__;
"""

DKMS_CONF = """\
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make KERNEL_UNAME=${{kernelver}} modules"
CLEAN="make clean"
AUTOINSTALL="yes"
"""

MAKEFILE = """\
CC ?= gcc
modules:
\t$(CC) -c -o nvidia.ko nvidia.c
clean:
\trm -f nvidia.ko
"""

POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
/usr/lib/dkms/common.postinst nvidia {version} "" amd64 "$2"
"""

PRERM = """\
#!/bin/sh
set -e
dkms remove -m nvidia -v {version} --all || true
"""


def build(folder: Path, name: str, version: str, depends: str = "", files: dict[str, str] | None = None, arch: str = "amd64", **fields: str) -> None:
    """One package: ``files`` maps a path to its text; a path that starts with DEBIAN/ is a control file, and an ``->`` text is a link."""
    root = Path(tempfile.mkdtemp())
    control = {
        "Package": name,
        "Version": version,
        "Architecture": arch,
        "Maintainer": "Stand-in <nobody@example.com>",
        "Depends": depends,
        "Section": "non-free/libs",
    }
    control.update({key.replace("_", "-"): value for key, value in fields.items()})
    control["Description"] = f"stand-in for {name}"
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items() if value))
    for path, text in (files or {}).items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            target.symlink_to(text[2:])
            continue
        target.write_text(text)
        target.chmod(0o755 if path.startswith("DEBIAN/p") or "/bin/" in path else 0o644)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder / f"{name}_{version}_{arch}.deb"], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(root)


def library(name: str, version: str) -> dict[str, str]:
    return {f"{LIB}/{name}.so.{version}": f"{name} {version}\n", f"{LIB}/{name}.so.1": f"->{name}.so.{version}"}


def service(name: str, command: str) -> dict[str, str]:
    text = f"[Unit]\nDescription={name}\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={command}\n[Install]\nWantedBy=multi-user.target\n"
    return {f"lib/systemd/system/{name}.service": text}


def kernel_module(folder: Path, version: str, flavour: str, kernel: str) -> None:
    name = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    other = "nvidia-kernel-dkms" if flavour == "open" else "nvidia-kernel-open-dkms"
    source = f"usr/src/nvidia-{version}"
    fault = '#error "struct vm_area_struct has no member named __vm_flags"' if version == BROKEN else ""
    files = {
        f"{source}/dkms.conf": DKMS_CONF.format(version=version),
        f"{source}/Makefile": MAKEFILE,
        f"{source}/nvidia.c": MODULE_SOURCE.format(version=version, kernel=kernel, fault=fault, license="Dual MIT/GPL" if flavour == "open" else "NVIDIA"),
        "DEBIAN/postinst": POSTINST.format(version=version),
        "DEBIAN/prerm": PRERM.format(version=version),
    }
    build(folder, name, f"{version}-1", "dkms, gcc, make", files, Conflicts=other, Replaces=other, Provides=f"nvidia-kernel-{version}")


def driver(folder: Path, version: str, kernel: str) -> None:
    full = f"{version}-1"

    def same(*names: str) -> str:
        return ", ".join(f"{name} (= {full})" for name in names)

    kernel_module(folder, version, "open", kernel)
    kernel_module(folder, version, "proprietary", kernel)
    build(folder, "libcuda1", full, "", library("libcuda", version))
    build(folder, "libnvidia-ml1", full, "", library("libnvidia-ml", version))
    build(folder, "firmware-nvidia-gsp", full, "", {f"lib/firmware/nvidia/{version}/gsp.txt": "firmware\n"})
    build(folder, "nvidia-modprobe", full, "", {"usr/bin/nvidia-modprobe": "#!/bin/sh\n"})
    build(
        folder,
        "nvidia-persistenced",
        full,
        "",
        {"usr/bin/nvidia-persistenced": "#!/bin/sh\n", **service("nvidia-persistenced", "/usr/bin/nvidia-persistenced")},
    )
    smi = '#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."\nexit 9\n'
    needs = same("libcuda1", "libnvidia-ml1", "firmware-nvidia-gsp", "nvidia-modprobe", "nvidia-persistenced")
    build(folder, "nvidia-driver-cuda", full, f"{needs}, nvidia-kernel-{version}", {"usr/bin/nvidia-smi": smi})
    build(folder, "nvidia-driver-libs", full, "", library("libGLX_nvidia", version))
    build(folder, "nvidia-driver", full, same("nvidia-driver-libs", "nvidia-driver-cuda"))
    build(folder, "nvidia-open", full, same("nvidia-driver", "nvidia-kernel-open-dkms"))
    build(folder, "cuda-drivers", full, same("nvidia-driver", "nvidia-kernel-dkms"))
    build(folder, "nvidia-fabricmanager", full, "", {"usr/bin/nv-fabricmanager": "#!/bin/sh\n", **service("nvidia-fabricmanager", "/usr/bin/nv-fabricmanager")})
    for pinned in (version, version.split(".")[0]):
        pin = f"Package: nvidia-* libnvidia-* libcuda1 cuda-drivers\nPin: version {pinned}.*\nPin-Priority: 1000\n"
        name = f"nvidia-driver-pinning-{pinned}"
        build(folder, name, full, "", {f"etc/apt/preferences.d/{name}": pin}, arch="all", Conflicts="nvidia-driver-pinning", Provides="nvidia-driver-pinning")


# What each package of a toolkit holds, below the toolkit's folder; include and lib64 are links into targets, as in NVIDIA's packages.
TOOLKIT_FILES = {
    "cuda-nvcc": ("bin/ptxas", "bin/fatbinary", "bin/cudafe++", "bin/nvlink", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc", "include/crt/host_config.h"),
    "cuda-cuobjdump": ("bin/cuobjdump",),
    "cuda-nvdisasm": ("bin/nvdisasm",),
    "cuda-nvtx": ("include/nvtx3/nvToolsExt.h",),
    "cuda-profiler-api": ("include/cuda_profiler_api.h",),
    "cuda-cudart-dev": (
        "include/cuda.h",
        "include/cuda_runtime.h",
        "include/thrust/tuple.h",
        "lib/libcudart.so",
        "lib/libcudart_static.a",
        "lib/libcudadevrt.a",
    ),
    "cuda-nvrtc-dev": ("include/nvrtc.h", "lib/libnvrtc.so"),
    "cuda-nvml-dev": ("include/nvml.h",),
    "libcublas-dev": ("include/cublas_v2.h", "lib/libcublas.so"),
    "libcufft-dev": ("include/cufft.h",),
    "libcurand-dev": ("include/curand_kernel.h",),
    "libcusolver-dev": ("include/cusolverDn.h",),
    "libcusparse-dev": ("include/cusparse.h",),
}


def toolkit(folder: Path, version: str, nvcc: str) -> None:
    suffix, prefix = version.replace(".", "-"), f"usr/local/cuda-{version}"
    targets = f"{prefix}/targets/x86_64-linux"
    banner = (
        '#!/bin/sh\necho "nvcc: NVIDIA (R) Cuda compiler driver"\necho "Copyright (c) 2005-2026 NVIDIA Corporation"\n'
        f'echo "Cuda compilation tools, release {version}, V{nvcc}"\necho "Build cuda_{version}.r{version}/compiler.1_0"\n'
    )
    names = [f"{name}-{suffix}" for name in TOOLKIT_FILES]
    for name, paths in TOOLKIT_FILES.items():
        files = {(f"{targets}/{path}" if path.startswith(("include/", "lib/")) else f"{prefix}/{path}"): f"{name} {version}\n" for path in paths}
        if name == "cuda-nvcc":
            files[f"{prefix}/bin/nvcc"] = banner
        if name == "cuda-cudart-dev":
            files.update({f"{prefix}/include": "->targets/x86_64-linux/include", f"{prefix}/lib64": "->targets/x86_64-linux/lib"})
        build(folder, f"{name}-{suffix}", f"{nvcc}-1", f"cuda-toolkit-{suffix}-config-common", files)
    config = f"cuda-toolkit-{suffix}-config-common"
    build(folder, config, f"{version}.1-1", "", {f"{prefix}/version.json": f'{{"cuda": {{"name": "CUDA SDK", "version": "{version}.1"}}}}\n'}, arch="all")
    build(folder, f"cuda-toolkit-{suffix}", f"{version}.1-1", ", ".join(names))
    # The package that everybody installs and should not: it brings the driver along.
    if version == max(TOOLKITS):
        build(folder, "cuda", f"{version}.1-1", f"cuda-toolkit-{suffix}, cuda-drivers", arch="all")


def sign(folder: Path, home: Path, user: str, key_file: str) -> str:
    """Make a key, index and sign the folder; returns the key's fingerprint."""
    environment = {**os.environ, "GNUPGHOME": str(home)}
    subprocess.run(
        ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", user, "rsa3072", "sign", "never"],
        check=True,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    armoured = subprocess.run(["gpg", "--armor", "--export", user], check=True, env=environment, capture_output=True).stdout
    (folder / key_file).write_bytes(armoured)
    index(folder, environment, user)
    listing = subprocess.run(["gpg", "--with-colons", "--fingerprint", user], check=True, env=environment, capture_output=True, text=True).stdout
    return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


def index(folder: Path, environment: dict[str, str], user: str) -> None:
    """Write Packages, Release and InRelease as a flat repository has them."""
    packages = subprocess.run(["apt-ftparchive", "packages", "."], check=True, cwd=folder, capture_output=True).stdout
    (folder / "Packages").write_bytes(packages)
    release = subprocess.run(
        ["apt-ftparchive", "-o", "APT::FTPArchive::Release::Label=NVIDIA CUDA", "release", "."], check=True, cwd=folder, capture_output=True
    ).stdout
    (folder / "Release").write_bytes(release)
    subprocess.run(["gpg", "--batch", "--yes", "-u", user, "--clearsign", "-o", "InRelease", "Release"], check=True, cwd=folder, env=environment)


def kernel_headers(kernel: str) -> None:
    """What dkms needs of a kernel's headers to build a module for it."""
    base = Path("/lib/modules") / kernel / "build"
    (base / "include").mkdir(parents=True, exist_ok=True)
    (base / "Makefile").write_text("# stand-in\n")
    (base / ".config").write_text("CONFIG_MODULES=y\n")
    for name in ("modules.order", "modules.builtin"):
        (base.parent / name).write_text("")


def main() -> None:
    if sys.argv[1] == "--headers":
        kernel_headers(sys.argv[2])
        return
    root, kernel = Path(sys.argv[1]), sys.argv[2]
    repos = root / "compute/cuda/repos"
    homes = Path(tempfile.mkdtemp())
    ours, foreign = repos / "debian12/x86_64", repos / "debian13/x86_64"
    for folder in (ours, foreign):
        folder.mkdir(parents=True)
    for version in DRIVERS:
        driver(ours, version, kernel)
    for version, nvcc in TOOLKITS.items():
        toolkit(ours, version, nvcc)
    build(foreign, "nvidia-open", "620.10.01-1", arch="all")
    fingerprints = []
    for folder, user, key in ((ours, "cudatools <cudatools@example.com>", "3bf863cc.pub"), (foreign, "other <other@example.com>", "8793F200.pub")):
        home = homes / user.split()[0]
        home.mkdir(mode=0o700)
        fingerprints.append(sign(folder, home, user, key))
    # NVIDIA's keyring package holds the key in binary form and names the repository in a one-line file.
    binary = subprocess.run(
        ["gpg", "--dearmor"], input=(ours / "3bf863cc.pub").read_bytes(), check=True, capture_output=True, env={**os.environ, "GNUPGHOME": str(homes)}
    ).stdout
    (root / "cuda-archive-keyring.gpg").write_bytes(binary)
    keyring_package(ours, root, binary)
    environment = {**os.environ, "GNUPGHOME": str(homes / "cudatools")}
    index(ours, environment, "cudatools <cudatools@example.com>")
    (root / "fingerprint").write_text(fingerprints[0] + "\n")
    kernel_headers(kernel)
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False, env=environment)
    print(textwrap.shorten(f"{len(list(ours.glob('*.deb')))} packages, key {fingerprints[0]}", 200))


def keyring_package(folder: Path, root: Path, binary: bytes) -> None:
    stage = Path(tempfile.mkdtemp())
    (stage / "DEBIAN").mkdir()
    control = "Package: cuda-keyring\nVersion: 1.2-1\nArchitecture: all\nMaintainer: Stand-in <nobody@example.com>\nDescription: stand-in\n"
    (stage / "DEBIAN/control").write_text(control)
    (stage / "usr/share/keyrings").mkdir(parents=True)
    (stage / "usr/share/keyrings/cuda-archive-keyring.gpg").write_bytes(binary)
    (stage / "etc/apt/sources.list.d").mkdir(parents=True)
    line = "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] http://127.0.0.1:8111/compute/cuda/repos/debian12/x86_64/ /\n"
    (stage / "etc/apt/sources.list.d/cuda-debian12-x86_64.list").write_text(line)
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", stage, folder / "cuda-keyring_1.2-1_all.deb"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(stage)


if __name__ == "__main__":
    main()
