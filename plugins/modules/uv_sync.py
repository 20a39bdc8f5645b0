#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: uv_sync
short_description: Make the environment of a lock beside the one in use
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Makes C(<prefix>/envs/<digest>) with uv from a lock with hashes. The digest covers the lock, the extensions to come and the interpreter,
    so that a new request makes a new environment and the one in use is never edited.
  - Compares an environment that is there with its lock. Packages of another version, missing or extra ones, and files that are missing or of another size
    are named in RV(drift), and mended by a fresh environment beside it.
  - An environment counts when C(ironwheel.json) is in it, which is written last. What a killed run left is removed.
  - Does not switch the link to the environment in use; M(ironwheel.gpu.uv_activate) does.
    O(link) is for environments that nothing serves from, such as the tools environment.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  lock_file:
    description: Path of the lock on the controller. Empty or not there in check mode means that the lock is not known yet.
    type: str
    default: ""
  lock:
    description: Text of the lock, instead of O(lock_file).
    type: str
    default: ""
  python:
    description:
      - The plan's C(python), C({version, path}). Without a path uv's managed Python is installed below C(<prefix>/python).
      - Empty for the Python that runs the module.
    type: dict
    default: {}
  extensions:
    description: C({name, version, fingerprint}) of the extensions that will be added to the environment; the plan's C(extensions) fit.
    type: list
    elements: dict
    default: []
  link:
    description:
      - Name of a link below the prefix that is switched to the environment as soon as it is complete, such as V(tools).
      - The environment is then called C(<link>-<digest>).
    type: str
    default: ""
  uv:
    description: Path of uv on the host, as M(ironwheel.gpu.uv_install) returns it.
    type: str
    required: true
  prefix:
    description: The prefix; empty for C(/opt/ironwheel) as root and C(~/.local/share/ironwheel) otherwise.
    type: str
    default: ""
  cache_dir:
    description: uv's cache on the host; empty for C(UV_CACHE_DIR), or else C(<prefix>/cache/uv).
    type: str
    default: ""
  indexes:
    description: The plan's C(indexes).
    type: dict
    default: {}
  build_packages:
    description: Packages that may be built from source. All others come as wheels.
    type: list
    elements: str
    default: []
  read_by:
    description:
      - User (other than the one who installs) that must be able to run what is installed. Empty if there is none.
      - A prefix that this user could not enter is an error.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Make the environment of the lock
  ironwheel.gpu.uv_sync:
    lock_file: "{{ _lock.path }}"
    python: "{{ preflight_plan.python }}"
    extensions: "{{ preflight_plan.extensions }}"
    indexes: "{{ preflight_plan.indexes }}"
    uv: "{{ _uv.path }}"
"""

RETURN = r"""
path:
  description: Path of the environment; empty in check mode while the lock is not known.
  type: str
  returned: success
link:
  description: Path of the link to the environment in use.
  type: str
  returned: success
python:
  description: Path of the environment's Python.
  type: str
  returned: success
digest:
  description: Digest in the environment's name.
  type: str
  returned: success
created:
  description: Whether the environment was made, or would be made in check mode.
  type: bool
  returned: success
active:
  description: Whether the link names this environment.
  type: bool
  returned: success
packages:
  description: Difference to the environment in use.
  type: dict
  returned: success
  contains:
    added:
      description: Version of each package that is new.
      type: dict
    removed:
      description: Version of each package that goes.
      type: dict
    changed:
      description: C({before, after}) of each package that changes.
      type: dict
drift:
  description: How the environment that was there differed from its lock.
  type: list
  elements: dict
  returned: success
  contains:
    package:
      description: Name of the package.
      type: str
    kind:
      description: One of V(version), V(missing), V(extra), V(damaged), V(replaced), V(interpreter).
      type: str
    expected:
      description: Version in the lock.
      type: str
    found:
      description: Version in the environment.
      type: str
    detail:
      description: Files, where it is about files.
      type: str
seconds:
  description: Time that making the environment took, in seconds.
  type: float
  returned: when made
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: success
"""

import contextlib
import datetime
import getpass
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import environments, extension_checks
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import (
    TORCH_FAMILY,
    Indexes,
    Lock,
    Uv,
    build_arguments,
    cache_directory,
    parse_lock,
    project_text,
)


class Sync:
    """One call of the module: what is wanted, what is there, what is made."""

    def __init__(self, params: dict, check_mode: bool) -> None:
        self.params = params
        self.check_mode = check_mode
        self.prefix = environments.live_prefix(params["prefix"])
        self.link = params["link"] or "env"
        self.indexes = Indexes.on_host(params["indexes"], os.environ)
        self.cache = cache_directory(params["cache_dir"], self.prefix, os.environ)
        self.uv = Uv(params["uv"], self.indexes.environment(os.environ), self.cache)
        self.python = params["python"] or {"version": platform.python_version(), "path": os.path.realpath(sys.executable)}
        self.extensions = [str(item["name"]) for item in params["extensions"]]

    def result(self) -> dict:
        """Converge and return the module's result."""
        self._require_readable()
        text = self.params["lock"]
        if not text:
            if not self.check_mode:
                raise IronwheelError("No lock was handed over.", "LockMissing", "run the role uv_venv as a whole: it solves the lock first.")
            return self._unknown()
        lock = parse_lock(text, self.params["lock_file"] or "handed over")
        digest = environments.environment_digest(lock.digest, self.params["extensions"], self.python)
        name = f"{self.params['link']}-{digest}" if self.params["link"] else digest
        wanted = lock.packages
        used = environments.linked(self.prefix, self.link)
        # A generation that was changed by hand stays as it is; its successor is made beside it.
        there = environments.generations(self.prefix, name)
        newest = next((path for _number, path in there if environments.read_record(path) is not None), None)
        drift = extension_checks.drift(newest, wanted, environments.read_record(newest)) if newest else []
        before = environments.versions(environments.scan(used)) if used else {}
        created = newest is None or bool(drift)
        number = next((number for number, path in there if path == newest), -1) + 1 if created else 0
        path = environments.generation_path(self.prefix, name, number) if created else newest
        after = {**wanted, **{key: before[key] for key in map(environments.normalize, self.extensions) if key in before}}
        changes = environments.package_changes(before, after)
        result = {
            "path": path,
            "link": os.path.join(self.prefix, self.link),
            "python": os.path.join(path, "bin", "python"),
            "digest": digest,
            "created": created,
            "active": used == path,
            "packages": changes,
            "drift": drift,
            "changed": created,
            "actions": [],
        }
        if drift:
            result["actions"] += [f"mend {newest}: {environments.describe_drift(item)}" for item in drift]
        if created:
            result["actions"].append(f"make {path} with {len(wanted)} packages")
            if any(changes.values()):
                header = {"before_header": used or "no environment", "after_header": path}
                result["diff"] = {"before": environments.pin_lines(before), "after": environments.pin_lines(after), **header}
            if not self.check_mode:
                started = time.monotonic()
                with environments.exclusive(self.prefix):
                    self._make(path, lock, digest, [item["package"] for item in drift if item["kind"] == "damaged"])
                result["seconds"] = round(time.monotonic() - started, 1)
        if self.params["link"] and used != path:
            result["changed"] = True
            result["actions"].append(f"switch {result['link']} to {path}")
            if not self.check_mode:
                environments.switch_link(self.prefix, self.link, path)
                self._prune_linked(path, used)
                result["active"] = True
        return result

    def _unknown(self) -> dict:
        return {
            "path": "",
            "link": os.path.join(self.prefix, self.link),
            "python": "",
            "digest": "",
            "created": True,
            "active": False,
            "packages": {"added": {}, "removed": {}, "changed": {}},
            "drift": [],
            "changed": True,
            "actions": [f"make an environment below {os.path.join(self.prefix, 'envs')} once the lock is solved"],
            "msg": "The lock is not known yet, so the packages cannot be named; the environment would be made.",
        }

    def _require_readable(self) -> None:
        user = self.params["read_by"]
        if not user or user == getpass.getuser():
            return
        environments.require_open(
            self.prefix, "uv_venv_prefix", user, f"set uv_venv_prefix to a directory that every user can enter, such as {environments.ROOT_PREFIX}."
        )
        if self.python.get("path"):
            environments.require_open(
                os.path.dirname(os.path.realpath(self.python["path"])),
                "The directory of the Python interpreter",
                user,
                "set uv_venv_python to an interpreter that every user can run, or to a version that the system lacks, which uv installs below the prefix.",
            )
        environments.require_open(self.cache, "uv's cache", user, "set uv_venv_cache_dir to a directory that every user can enter.")

    def _make(self, path: str, lock: Lock, digest: str, damaged: list[str]) -> None:
        environments.remove_environment(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix="ironwheel-sync-") as folder:
                self._fill(path, lock, folder, damaged)
            self._verify(path, lock)
        except BaseException:
            with contextlib.suppress(OSError):
                environments.remove_environment(path)
            raise
        record = {
            "schema": environments.SCHEMA,
            "digest": digest,
            "lock": {"digest": lock.digest, "key": lock.key},
            "packages": lock.packages,
            "python": {"version": self._version(path), "path": os.path.realpath(os.path.join(path, "bin", "python")), "managed": not self.python.get("path")},
            "extensions": [],
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        }
        environments.write_atomically(os.path.join(path, environments.RECORD_FILE), json.dumps(record, indent=1, sort_keys=True) + "\n")

    def _fill(self, path: str, lock: Lock, folder: str, damaged: list[str]) -> None:
        if damaged:
            # uv's cache shares its files with environments: who edited a file in place edited the cache as well.
            self.uv.run(["cache", "clean", *damaged], f"Removing {', '.join(damaged)} from uv's cache", folder)
        project, requirements = os.path.join(folder, "pyproject.toml"), os.path.join(folder, "lock.txt")
        packages = lock.packages
        sourced = self._from_torch_index(lock)
        for name, text in (
            (project, project_text([f"{item}=={packages[item]}" for item in sourced], sourced, self.indexes.torch_index_url)),
            (requirements, lock.body),
        ):
            with open(name, "w", encoding="utf-8") as handle:
                handle.write(text)
        self.uv.run(["venv", "--no-project", "--python", self._interpreter(folder), path], f"Making the environment {path}", folder)
        self.uv.run(
            [
                "pip",
                "sync",
                project,
                requirements,
                "--python",
                os.path.join(path, "bin", "python"),
                "--require-hashes",
                "--allow-empty-requirements",
                *build_arguments(self.params["build_packages"]),
                *self.indexes.arguments(),
            ],
            f"Installing {len(packages)} packages into {path}",
            folder,
        )

    def _from_torch_index(self, lock: Lock) -> list[str]:
        """Packages that this host gets from the torch index: locked from it, or of a variant, unless a directory here holds their wheel."""
        if not self.indexes.torch_index_url or self.indexes.offline:
            return []
        machine = platform.machine()
        return [
            name
            for name, version in lock.packages.items()
            if name in TORCH_FAMILY
            and (name in lock.torch_index or "+" in version)
            and self.indexes.wheel(name, version, str(self.python.get("version")), machine) is None
        ]

    def _interpreter(self, folder: str) -> str:
        """The planned interpreter; without a path, uv's managed Python below the prefix, installed if it is not there."""
        path = self.python.get("path")
        if path:
            if not os.access(path, os.X_OK):
                raise IronwheelError(f"The planned interpreter {path} cannot be run.", "InterpreterMissing", "run the preflight again, or set uv_venv_python.")
            return str(path)
        version, directory = str(self.python.get("version")), os.path.join(self.prefix, "python")
        environ = {**self.uv.environ, "UV_PYTHON_INSTALL_DIR": directory, "UV_PYTHON_DOWNLOADS": "automatic"}
        managed = Uv(self.uv.path, environ, self.cache)
        try:
            managed.run(["python", "install", "--no-bin", version], f"Installing Python {version} below {directory}", folder)
        except IronwheelError as fault:
            raise IronwheelError(
                fault.message,
                "PythonNotAvailable",
                f"install Python {version} on the host, set uv_venv_python to a version that it has, "
                "or set UV_PYTHON_INSTALL_MIRROR on the host to a mirror of uv's Pythons.",
            ) from fault
        return managed.run(["python", "find", "--managed-python", "--no-project", version], f"Finding Python {version} below {directory}", folder).strip()

    def _version(self, path: str) -> str:
        python = os.path.join(path, "bin", "python")
        done = subprocess.run(
            [python, "-I", "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise IronwheelError(f"{python} does not run: {done.stderr.strip()[-300:]}", "InterpreterBroken", "set uv_venv_python to another interpreter.")
        return done.stdout.strip()

    def _verify(self, path: str, lock: Lock) -> None:
        differences = environments.find_drift(path, lock.packages, [])
        if differences:
            said = "; ".join(environments.describe_drift(item) for item in differences[:5])
            raise IronwheelError(
                f"The new environment {path} is not as its lock says: {said}.",
                "EnvironmentIncomplete",
                f"remove uv's cache {self.cache}, which hands out damaged files, and run again.",
            )

    def _prune_linked(self, path: str, used: str | None) -> None:
        """Remove older environments of this link, but not the one that was in use: something may still run from it."""
        found = environments.find_environments(self.prefix, tools=True)
        for old in environments.prunable(found, 2, [item for item in (path, used) if item]):
            environments.remove_environment(old)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "lock_file": {"type": "str", "default": ""},
            "lock": {"type": "str", "default": ""},
            "python": {"type": "dict", "default": {}},
            "extensions": {"type": "list", "elements": "dict", "default": []},
            "link": {"type": "str", "default": ""},
            "uv": {"type": "str", "required": True},
            "prefix": {"type": "str", "default": ""},
            "cache_dir": {"type": "str", "default": ""},
            "indexes": {"type": "dict", "default": {}},
            "build_packages": {"type": "list", "elements": "str", "default": []},
            "read_by": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    # What is installed here is read by other users, whatever the umask of the login is.
    os.umask(0o022)
    try:
        result = Sync(module.params, module.check_mode).result()
    except IronwheelError as fault:
        module.fail_json(**fault.as_result())
    except OSError as fault:
        module.fail_json(msg=f"The environment could not be made: {fault}.", error="EnvironmentFailed", remedy="")
    for item in result["drift"]:
        # Named even where nobody reads the result: somebody's change is about to be undone.
        module.warn(f"{environments.describe_drift(item)}. A fresh environment is made beside it.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
