#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_wheels
short_description: Make CUDA 13 toolkits from the wheels on PyPI, without root
version_added: 0.1.0
description:
  - Resolves NVIDIA's C(cuda-toolkit) meta package for each version, locks it with hashes, downloads the wheels with
    C(uv pip install --require-hashes) and arranges them as an ordinary toolkit folder with C(bin), C(include), C(lib64),
    C(nvvm) and C(version.json), which serves as C(CUDA_HOME).
  - A toolkit is made beside its final place and moved there when it is whole. Toolkits of other versions, C(PATH) and
    C(/usr/local/cuda) are never touched.
  - A toolkit that is there and whole (all files of the wheels with their sizes) is left as it is; a damaged one is made anew.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  versions:
    description: Versions as major.minor, V(13.0) or newer. PyPI has no C(nvcc) for CUDA 12.
    type: list
    elements: str
    required: true
  prefix:
    description: Folder that holds the toolkits; each becomes C(cuda-<version>) in it. It is made where it is missing.
    type: path
    required: true
  uv:
    description: The C(uv) program.
    type: path
    required: true
  packages:
    description:
      - V(minimal) is the compiler with the libraries that the headers of torch include, about 2 GB.
      - V(full) is everything that the meta package names.
    type: str
    choices: [minimal, full]
    default: minimal
  locks:
    description:
      - Requirement files with hashes by version, as text. Left out, the newest patch release of each version is locked on the host.
      - A toolkit made from another lock is made anew.
    type: dict
    default: {}
  index_url:
    description: The package index. Left out, uv's own default and configuration apply.
    type: str
  extra_index_urls:
    description: Further package indexes.
    type: list
    elements: str
    default: []
  find_links:
    description: Folders or pages with wheels.
    type: list
    elements: str
    default: []
  offline:
    description: Use only O(find_links) and what uv's cache holds.
    type: bool
    default: false
  ca_bundle:
    description: Certificates that the index is checked against.
    type: path
  cache_dir:
    description: uv's cache. On the same file system as O(prefix), files are shared with it instead of copied.
    type: path
"""

EXAMPLES = r"""
- name: Two toolkits side by side
  ironwheel.gpu.cuda_toolkit_wheels:
    versions: ["13.0", "13.3"]
    prefix: /opt/ironwheel/toolkits
    uv: /opt/ironwheel/uv/0.13.9/uv
"""

RETURN = r"""
toolkits:
  description: One entry a version, in the order asked for.
  returned: success
  type: list
  elements: dict
  contains:
    version:
      description: As asked for.
      type: str
    path:
      description: The toolkit's folder.
      type: str
    full_version:
      description: Version of its compiler; V(null) in check mode for a toolkit that is not there yet.
      type: str
    parts:
      description: Versions of the wheels in it; empty in check mode for a toolkit that is not there yet.
      type: dict
    changed:
      description: Whether it was made, or would be in check mode.
      type: bool
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
error:
  description: Name of the fault.
  returned: failure
  type: str
remedy:
  description: What to do about it.
  returned: failure
  type: str
"""

import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# Space for the unpacked wheels with some room: measured 2.0 GB (minimal) and 4.2 GB (full) for CUDA 13.0.
NEEDED_MIB = {"minimal": 3072, "full": 6144}


def uv_environment(params: dict) -> dict[str, str]:
    """Environment that hands the index to uv. URLs may hold credentials, which command lines would show to every user of the host."""
    values = {
        "UV_DEFAULT_INDEX": params["index_url"],
        "UV_INDEX": " ".join(params["extra_index_urls"]),
        "UV_FIND_LINKS": ",".join(params["find_links"]),
        "UV_OFFLINE": "1" if params["offline"] else "",
        "SSL_CERT_FILE": params["ca_bundle"],
        "UV_CACHE_DIR": params["cache_dir"],
        "UV_NO_PROGRESS": "1",
        "LC_ALL": "C",
    }
    return {name: value for name, value in values.items() if value}


def mask(text: str) -> str:
    """Text without the passwords of the URLs in it."""
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)


def run_uv(module: AnsibleModule, arguments: list[str], what: str, data: str | None = None) -> str:
    """Standard output of uv.

    Raises:
        IronwheelError: uv is missing or failed; the message ends with what it said.
    """
    uv = module.params["uv"]
    if not os.access(uv, os.X_OK):
        raise IronwheelError(f"uv '{uv}' is not a program that can be run.", "UvMissing", "install it with ironwheel.gpu.uv_install or set uv to its path.")
    rc, out, err = module.run_command([uv, *arguments], data=data, environ_update=uv_environment(module.params))
    if rc != 0:
        said = " ".join(mask(err or out).split())[-600:]
        raise IronwheelError(
            f"uv could not {what} (exit status {rc}): {said}",
            "WheelsNotAvailable",
            "see that the index (cuda_toolkit_index_url) or the wheels in cuda_toolkit_find_links hold this release for this machine.",
        )
    return out


def make_lock(module: AnsibleModule, version: str) -> str:
    """The locked requirements of a version: given by the user, or resolved now."""
    given = module.params["locks"].get(version)
    if given is None:
        given = run_uv(
            module,
            ["pip", "compile", "-", "--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:", "--python", sys.executable, "--quiet"],
            f"resolve the wheels of CUDA {version}",
            data="\n".join(toolkit_wheels.requirements(version, module.params["packages"])) + "\n",
        )
    toolkit_wheels.check_lock(version, given)
    return given


def check_space(prefix: str, packages: str) -> None:
    """Refuse before the download when the disk cannot hold the toolkit.

    Raises:
        IronwheelError: with both numbers.
    """
    disk = os.statvfs(prefix)
    free = disk.f_bavail * disk.f_frsize // (1024 * 1024)
    if free < NEEDED_MIB[packages]:
        raise IronwheelError(
            f"{prefix} has {free} MiB free and a CUDA toolkit ({packages}) needs {NEEDED_MIB[packages]} MiB.",
            "DiskTooSmall",
            "free space there or set cuda_toolkit_prefix to a larger disk.",
        )


@contextlib.contextmanager
def locked(prefix: str):
    """Only one run at a time makes toolkits in this folder; what a killed run left is cleared."""
    with open(os.path.join(prefix, ".lock"), "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for name in os.listdir(prefix):
            if name.startswith(".cuda-"):
                shutil.rmtree(os.path.join(prefix, name), ignore_errors=True)
        yield


def make(module: AnsibleModule, version: str, path: str) -> None:
    """Download the wheels of a version and put the toolkit made from them at ``path``."""
    prefix, packages = module.params["prefix"], module.params["packages"]
    check_space(prefix, packages)
    lock = make_lock(module, version)
    work = tempfile.mkdtemp(prefix=f".cuda-{version}.", dir=prefix)
    try:
        requirements = os.path.join(work, "requirements.txt")
        with open(requirements, "w", encoding="utf-8") as handle:
            handle.write(lock)
        site = os.path.join(work, "site")
        run_uv(
            module,
            ["pip", "install", "--target", site, "--require-hashes", "--no-deps", "--only-binary", ":all:", "--python", sys.executable, "-r", requirements],
            f"install the wheels of CUDA {version}",
        )
        new = os.path.join(work, "toolkit")
        toolkit_wheels.assemble(site, new, version, packages, lock)
        rc, out, err = module.run_command([os.path.join(new, "bin", "nvcc"), "--version"], environ_update={"LC_ALL": "C"})
        if rc != 0 or f"release {version}," not in out:
            raise IronwheelError(
                f"The nvcc of the wheels of CUDA {version} does not answer as that release (exit status {rc}): {(out or err).strip()[-300:]}",
                "CompilerDoesNotRun",
                "the wheels need glibc 2.17 or newer on x86_64 or aarch64.",
            )
        toolkit_wheels.swap_in(new, path, os.path.join(work, "old"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def converge(module: AnsibleModule) -> dict:
    """Make what is missing; return the result."""
    params = module.params
    for version in params["versions"]:
        toolkit_wheels.check_version(version)
    unknown = sorted(set(params["locks"]) - set(params["versions"]))
    if unknown:
        raise IronwheelError(f"locks has entries for {', '.join(unknown)}, which versions ({', '.join(params['versions'])}) does not name.", "UnknownVersion")
    prefix, packages = params["prefix"], params["packages"]
    wanted = []
    for version in params["versions"]:
        path = os.path.join(prefix, toolkit_wheels.directory_name(version))
        wanted.append((version, path, toolkit_wheels.state(path, packages, params["locks"].get(version))))
    pending = [(version, path) for version, path, reason in wanted if reason]
    actions = [f"make CUDA {version} at {path} from wheels ({packages}): {reason}" for version, path, reason in wanted if reason]
    if pending and not module.check_mode:
        # Toolkits are for all users of the host, whatever umask this run was given.
        os.umask(0o022)
        try:
            os.makedirs(prefix, exist_ok=True)
        except OSError as error:
            raise IronwheelError(f"prefix '{prefix}' cannot be made: {error.strerror}.", "PrefixNotWritable", "set cuda_toolkit_prefix to a folder that this user can write.") from error
        with locked(prefix):
            for version, path in pending:
                # Another run may have made it while this one waited.
                if toolkit_wheels.state(path, packages, params["locks"].get(version)):
                    make(module, version, path)
    toolkits = []
    for version, path, reason in wanted:
        found = toolkit_wheels.read_marker(path) or {}
        toolkits.append(
            {"version": version, "path": path, "full_version": found.get("full_version"), "parts": found.get("parts", {}), "changed": bool(reason)}
        )
    before = [f"{path}\n" for _version, path, reason in wanted if not reason]
    after = [f"{path}\n" for _version, path, _reason in wanted]
    return {
        "changed": bool(pending),
        "toolkits": toolkits,
        "actions": actions,
        "diff": {"before_header": "toolkits from wheels", "after_header": "toolkits from wheels", "before": "".join(before), "after": "".join(after)},
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "versions": {"type": "list", "elements": "str", "required": True},
            "prefix": {"type": "path", "required": True},
            "uv": {"type": "path", "required": True},
            "packages": {"type": "str", "choices": ["minimal", "full"], "default": "minimal"},
            "locks": {"type": "dict", "default": {}},
            "index_url": {"type": "str"},
            "extra_index_urls": {"type": "list", "elements": "str", "default": []},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "offline": {"type": "bool", "default": False},
            "ca_bundle": {"type": "path"},
            "cache_dir": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        result = converge(module)
    except IronwheelError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['prefix']}: {error.strerror}", error="FileSystem", remedy="")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
