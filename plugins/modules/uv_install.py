#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: uv_install
short_description: Put a pinned uv below the prefix
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Puts one version of uv at C(<prefix>/uv/<version>/uv). Nothing is piped into a shell, and a file whose sha256 is not known beforehand is not used.
  - The sources are tried in this order, and the reason of each that did not serve is part of the error when none does.
    A wheel in a find-links directory of the host; C(python -m pip download) with hashes; a uv of the same version on C(PATH);
    the release archive with its published sha256.
  - The sha256 of the wheels of uv 0.13.9 are part of the module. Another version needs O(sha256).
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  version:
    description: Version of uv.
    type: str
    default: 0.13.9
  sha256:
    description: The sha256 of the file that is used (the wheel or the release archive) where the module does not know it.
    type: str
    default: ""
  url:
    description:
      - URL of the release archive. C({version}) and C({target}) (such as C(x86_64-unknown-linux-gnu)) are replaced.
      - Its sha256 is read from the same URL with C(.sha256) at its end, unless O(sha256) is given.
    type: str
    default: https://github.com/astral-sh/uv/releases/download/{version}/uv-{target}.tar.gz
  prefix:
    description: The prefix; empty for C(/opt/ironwheel) as root and C(~/.local/share/ironwheel) otherwise.
    type: str
    default: ""
  indexes:
    description: The plan's C(indexes). C(index_url), C(find_links), C(offline) and C(ca_bundle) are used.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Put the pinned uv in place
  ironwheel.gpu.uv_install:
    indexes: "{{ preflight_plan.indexes }}"
"""

RETURN = r"""
path:
  description: Path of the uv binary.
  type: str
  returned: success
  sample: /opt/ironwheel/uv/0.13.9/uv
version:
  description: Its version.
  type: str
  returned: success
source:
  description: Where it came from, V(present) when it was there already.
  type: str
  returned: success
reasons:
  description: Why the sources before that one did not serve.
  type: list
  elements: str
  returned: success
prefix:
  description: The prefix that was used.
  type: str
  returned: success
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: success
"""

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import ConnectionError as UrlError
from ansible.module_utils.urls import open_url
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import live_prefix
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Indexes, local_directory, mask

# sha256 of the wheels on PyPI, read with `pip download` and `pip hash`.
WHEEL_SHA256 = {
    "0.13.9": (
        "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",  # manylinux_2_17 x86_64
        "ecb6028d79dc96fbeafffe5c8af62a7099487ebc05a701e76714eebcffd06375",  # manylinux_2_28 aarch64
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",  # manylinux_2_17 and musllinux_1_1 aarch64
        "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",  # musllinux_1_1 x86_64
    ),
}


class Unusable(Exception):
    """A source does not serve; the text says why."""


def release_target(machine: str, musl: bool) -> str:
    """Name of the release archive's platform: ``x86_64-unknown-linux-gnu``."""
    return f"{machine}-unknown-linux-{'musl' if musl else 'gnu'}"


def is_musl() -> bool:
    """True on a host whose C library is musl."""
    return platform.libc_ver()[0] != "glibc" and any(name.startswith("ld-musl-") for name in os.listdir("/lib"))


def known_hashes(version: str, sha256: str) -> tuple[str, ...]:
    """The sha256 that a wheel may have: the user's, or the known ones of the version."""
    return (sha256.lower(),) if sha256 else WHEEL_SHA256.get(version, ())


def binary_of_wheel(path: str, version: str, hashes: tuple[str, ...]) -> bytes:
    """The uv binary inside a wheel whose sha256 is one of ``hashes``."""
    if not hashes:
        raise Unusable(f"the sha256 of uv {version} is not known; give uv_venv_uv_sha256")
    with open(path, "rb") as handle:
        content = handle.read()
    found = hashlib.sha256(content).hexdigest()
    if found not in hashes:
        raise Unusable(f"{os.path.basename(path)} has the sha256 {found}, expected {' or '.join(hashes)}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(f"uv-{version}.data/scripts/uv")
    except (zipfile.BadZipFile, KeyError) as fault:
        raise Unusable(f"{os.path.basename(path)} holds no uv: {fault}") from fault


def wheel_fits(name: str, version: str, machine: str, musl: bool) -> bool:
    """Whether a file name is a wheel of this uv for this machine and C library."""
    if not name.startswith(f"uv-{version}-") or not name.endswith(f"_{machine}.whl"):
        return False
    return ("musllinux" if musl else "manylinux") in name


def from_find_links(indexes: Indexes, version: str, hashes: tuple[str, ...], machine: str, musl: bool) -> bytes:
    """Source 1: a wheel in a directory on the host."""
    reasons = []
    directories = [path for path in map(local_directory, indexes.find_links) if path is not None]
    for directory in directories:
        for name in sorted(os.listdir(directory)):
            if wheel_fits(name, version, machine, musl):
                try:
                    return binary_of_wheel(os.path.join(directory, name), version, hashes)
                except Unusable as fault:
                    reasons.append(str(fault))
    raise Unusable("; ".join(reasons) or f"no wheel of uv {version} in {', '.join(directories) or 'any directory (none is set)'}")


def from_pip(indexes: Indexes, version: str, hashes: tuple[str, ...]) -> bytes:
    """Source 2: pip of the host's Python; it knows its own index, certificates and configuration."""
    if not hashes:
        raise Unusable(f"the sha256 of uv {version} is not known; give uv_venv_uv_sha256")
    pythons = [path for path in dict.fromkeys([sys.executable, "/usr/bin/python3", shutil.which("python3")]) if path and os.access(path, os.X_OK)]
    environ = indexes.environment(os.environ)
    for python in pythons:
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, env=environ, check=False).returncode != 0:
            continue
        with tempfile.TemporaryDirectory(prefix="ironwheel-uv-") as folder:
            requirement = os.path.join(folder, "uv.txt")
            with open(requirement, "w", encoding="utf-8") as handle:
                handle.write(f"uv=={version} " + " ".join(f"--hash=sha256:{item}" for item in hashes) + "\n")
            command = [
                python,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--require-hashes",
                "--dest",
                folder,
                "-r",
                requirement,
            ]
            if indexes.offline:
                command.append("--no-index")
            # Through the environment, where a password in the URL cannot be read from the list of processes.
            if indexes.index_url:
                environ["PIP_INDEX_URL"] = indexes.index_url
            if indexes.find_links:
                environ["PIP_FIND_LINKS"] = " ".join(indexes.find_links)
            if indexes.ca_bundle:
                environ["PIP_CERT"] = indexes.ca_bundle
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environ, check=False)
            wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
            if done.returncode == 0 and wheels:
                return binary_of_wheel(os.path.join(folder, wheels[0]), version, hashes)
            said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:] or ["nothing"]
            raise Unusable(f"{python} -m pip says: {mask(' '.join(said))}")
    raise Unusable(f"no pip in {' or '.join(pythons)}")


def from_path(version: str) -> bytes:
    """Source 3: the same version on the host's PATH."""
    path = shutil.which("uv")
    if path is None:
        raise Unusable("no uv on PATH")
    found = version_of(path)
    if found != version:
        raise Unusable(f"{path} is version {found or 'unknown'}")
    with open(os.path.realpath(path), "rb") as handle:
        return handle.read()


def from_release(indexes: Indexes, url: str, version: str, sha256: str, target: str) -> bytes:
    """Source 4: the release archive."""
    if indexes.offline:
        raise Unusable("uv_venv_offline is set")
    if not url:
        raise Unusable("uv_venv_uv_url is empty")
    address = url.replace("{version}", version).replace("{target}", target)
    options = {"timeout": 60, "ca_path": indexes.ca_bundle or None, "http_agent": "ironwheel.gpu"}
    try:
        expected = sha256.lower() or open_url(address + ".sha256", **options).read().decode("ascii", "replace").split()[0]
        content = open_url(address, **options).read()
    except (OSError, UrlError, ValueError, IndexError) as fault:
        raise Unusable(f"{mask(address)}: {fault}") from fault
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise Unusable(f"{mask(address)} has the sha256 {found}, expected {expected}")
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                if member.isfile() and os.path.basename(member.name) == "uv":
                    return archive.extractfile(member).read()
    except tarfile.TarError as fault:
        raise Unusable(f"{mask(address)} is no archive: {fault}") from fault
    raise Unusable(f"{mask(address)} holds no uv")


def version_of(path: str) -> str | None:
    """The version that a uv binary reports, or ``None`` if it does not run."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return words[1] if done.returncode == 0 and len(words) > 1 and words[0] == "uv" else None


def put_in_place(content: bytes, path: str, version: str) -> None:
    """Write the binary beside its place, see that it runs and is the version, and only then move it there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".uv.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        os.chmod(temporary, 0o755)
        found = version_of(temporary)
        if found != version:
            raise Unusable(f"its binary does not run here as uv {version} (it says {found or 'nothing'})")
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def ensure(params: dict, check_mode: bool) -> dict:
    """Make sure that the pinned uv is there and return the module's result."""
    version, sha256 = params["version"], params["sha256"].removeprefix("sha256:")
    prefix = live_prefix(params["prefix"])
    path = os.path.join(prefix, "uv", version, "uv")
    result = {"path": path, "version": version, "prefix": prefix, "changed": False, "source": "present", "reasons": [], "actions": []}
    if version_of(path) == version:
        return result
    result.update(changed=True, source="", actions=[f"install uv {version} as {path}"])
    if check_mode:
        return result
    indexes = Indexes.on_host(params["indexes"], os.environ)
    machine, musl = platform.machine(), is_musl()
    hashes = known_hashes(version, sha256)
    sources = (
        ("find-links", lambda: from_find_links(indexes, version, hashes, machine, musl)),
        ("pip", lambda: from_pip(indexes, version, hashes)),
        ("path", lambda: from_path(version)),
        ("release", lambda: from_release(indexes, params["url"], version, sha256, release_target(machine, musl))),
    )
    for name, fetch in sources:
        try:
            put_in_place(fetch(), path, version)
        except Unusable as fault:
            result["reasons"].append(f"{name}: {fault}")
        else:
            result["source"] = name
            return result
    raise IronwheelError(
        f"uv {version} could not be installed as {path}. Tried: {'. '.join(result['reasons'])}.",
        "UvNotAvailable",
        "install pip for the host's Python, put the uv wheel into a directory named by uv_venv_find_links, "
        "or set uv_venv_uv_url to a mirror (and uv_venv_uv_sha256).",
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "default": "0.13.9"},
            "sha256": {"type": "str", "default": ""},
            "url": {"type": "str", "default": "https://github.com/astral-sh/uv/releases/download/{version}/uv-{target}.tar.gz"},
            "prefix": {"type": "str", "default": ""},
            "indexes": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    # What is installed here is read by other users, whatever the umask of the login is.
    os.umask(0o022)
    try:
        result = ensure(module.params, module.check_mode)
    except IronwheelError as fault:
        module.fail_json(**fault.as_result())
    except OSError as fault:
        module.fail_json(msg=f"uv could not be installed: {fault}.", error="UvNotAvailable", remedy="")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
