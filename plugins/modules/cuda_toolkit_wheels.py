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
  indexes:
    description:
      - Where the wheels come from, as the C(indexes) of the plan, with C(index_url), C(extra_index_urls), C(find_links), C(offline) and
        C(ca_bundle). What is left out is uv's own default, environment and configuration on the host.
    type: dict
    default: {}
  cache_dir:
    description:
      - uv's cache. On the same file system as O(prefix), files are shared with it instead of copied.
      - Left out, none is used.
    type: path
"""

EXAMPLES = r"""
- name: Two toolkits side by side
  ironwheel.gpu.cuda_toolkit_wheels:
    versions: ["13.0", "13.3"]
    prefix: /opt/ironwheel/toolkits
    uv: /opt/ironwheel/uv/0.13.9/uv
    cache_dir: /opt/ironwheel/cache/uv
    indexes: "{{ preflight_plan.indexes }}"
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
import shutil
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_install, toolkit_wheels, uv
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# Space for the unpacked wheels with some room: measured 2.0 GB (minimal) and 4.2 GB (full) for CUDA 13.0.
NEEDED_MIB = {"minimal": 3072, "full": 6144}


def make_lock(module: AnsibleModule, tool: uv.Uv, options: list[str], version: str, work: str) -> str:
    """The locked requirements of a version: given by the user, or solved now."""
    lock = module.params["locks"].get(version)
    if lock is None:
        asked = os.path.join(work, "requirements.in")
        with open(asked, "w", encoding="utf-8") as handle:
            handle.write("\n".join(toolkit_wheels.requirements(version, module.params["packages"])) + "\n")
        lock = tool.run(
            ["pip", "compile", asked, "--generate-hashes", "--no-header", "--no-annotate", "--no-build", "--python", sys.executable, *options],
            f"Solving the wheels of CUDA {version}",
        )
    toolkit_wheels.check_lock(version, lock)
    return lock


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
    indexes = uv.Indexes.on_host(module.params["indexes"], os.environ)
    tool = uv.Uv(module.params["uv"], indexes.environment(os.environ), module.params["cache_dir"] or "")
    work = tempfile.mkdtemp(prefix=f".cuda-{version}.", dir=prefix)
    try:
        lock = make_lock(module, tool, indexes.arguments(), version, work)
        locked_file, site, new = (os.path.join(work, name) for name in ("requirements.txt", "site", "toolkit"))
        with open(locked_file, "w", encoding="utf-8") as handle:
            handle.write(lock)
        tool.run(
            [
                *("pip", "install", "-r", locked_file, "--target", site, "--require-hashes", "--no-deps", "--no-build"),
                *("--python", sys.executable),
                *indexes.arguments(),
            ],
            f"Installing the wheels of CUDA {version}",
        )
        toolkit_wheels.assemble(site, new, version, packages, lock)
        missing = [*toolkit_install.missing_parts(new), *toolkit_wheels.damaged_files(new)]
        if missing:
            raise IronwheelError(
                f"The toolkit made from the wheels of CUDA {version} lacks {', '.join(missing[:10])}.",
                "IncompleteToolkit",
                "use cuda_toolkit_source repository or runfile for this version, or give a whole lock in cuda_toolkit_locks.",
            )
        rc, out, err = module.run_command([os.path.join(new, "bin", "nvcc"), "--version"], environ_update={"LC_ALL": "C"})
        if rc != 0 or f"release {version}," not in out:
            raise IronwheelError(
                f"The nvcc of the wheels of CUDA {version} does not answer as that release (exit status {rc}): {(out or err).strip()[-300:]}",
                "CompilerDoesNotRun",
                "the wheels are for x86_64 and aarch64 with glibc 2.17 or newer; on other hosts use cuda_toolkit_source repository or runfile.",
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
            message = f"prefix '{prefix}' cannot be made: {error.strerror}."
            raise IronwheelError(message, "PrefixNotWritable", "set cuda_toolkit_prefix to a folder that this user can write.") from error
        with locked(prefix):
            for version, path in pending:
                # Another run may have made it while this one waited.
                if toolkit_wheels.state(path, packages, params["locks"].get(version)):
                    make(module, version, path)
    toolkits = []
    for version, path, reason in wanted:
        found = toolkit_wheels.read_marker(path) or {}
        toolkits.append({"version": version, "path": path, "full_version": found.get("full_version"), "parts": found.get("parts", {}), "changed": bool(reason)})
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
            "indexes": {"type": "dict", "default": {}},
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
