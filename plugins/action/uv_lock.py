# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``ironwheel.gpu.uv_lock``: one lock a platform group.

Hosts that share a key meet at a file lock in the run's own temporary directory. The first one solves while the others wait; they then find the
lock stored. When the first one fails, its file lock is released and the next one solves, so that there is never a host to wait for that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import pin_lines, write_atomically
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Lock, Request, check_torch, lock_name, parse_lock

_ARGUMENTS = {
    "plan": {"type": "dict", "required": True},
    "machine": {"type": "str", "required": True},
    "lock_dir": {"type": "str", "default": "locks"},
    "prefix": {"type": "str", "default": ""},
    "cache_dir": {"type": "str", "default": ""},
    "uv": {"type": "str", "required": True},
    "build_packages": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    """Finds, or has solved, the lock of the host's plan."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        _validation, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        try:
            result.update(self._lock(arguments, task_vars or {}))
        except IronwheelError as fault:
            result.update(failed=True, **fault.as_result())
        except OSError as fault:
            result.update(
                failed=True,
                error="LockNotWritable",
                msg=f"The lock cannot be read or stored in uv_venv_lock_dir '{arguments['lock_dir']}' on the controller: {fault}."
                " Remedy: set uv_venv_lock_dir to a directory that the user who runs Ansible may write.",
            )
        return result

    def _lock(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        plan = arguments["plan"]
        key, inputs = _key(plan, arguments["build_packages"])
        python = str((plan.get("python") or {}).get("version") or "")
        if not key or not python:
            raise IronwheelError("The plan names no lock key or no Python version.", "InvalidPlan", "make the plan with the role preflight of this collection.")
        name = lock_name(python, arguments["machine"], key)
        path = os.path.join(os.path.abspath(os.path.expanduser(arguments["lock_dir"])), name)
        # Check mode stores its solution here instead, for the other hosts of the group and for uv_sync.
        run_dir = str(constants.DEFAULT_LOCAL_TMP)
        temporary = os.path.join(run_dir, f"ironwheel-{name}")
        checking = bool(self._task.check_mode)
        with _one_at_a_time(temporary + ".lock"):
            for place in (path, temporary) if checking else (path,):
                lock = _read(place, key)
                if lock is not None:
                    return self._result(lock, place, plan, arguments, source="stored", changed=False, actions=[])
            _raise_if_known_unsolvable(temporary + ".failed")
            answer = self._execute_module(
                module_name="ironwheel.gpu.uv_lock", module_args=dict(arguments, lock_dir=str(arguments["lock_dir"])), task_vars=task_vars, wrap_async=False
            )
            answer.pop("invocation", None)
            if answer.get("failed"):
                if answer.get("error") == "UnsatisfiableRequest":
                    write_atomically(temporary + ".failed", json.dumps({"host": task_vars.get("inventory_hostname", ""), **_fault(answer)}))
                return answer
            if not answer.get("solved"):
                actions = [f"solve {path} once uv is installed"]
                return {
                    "changed": True,
                    "path": "",
                    "key": key,
                    "source": "would_solve",
                    "actions": actions,
                    "msg": "The lock would be solved once uv is installed.",
                }
            lock = Lock(
                body=answer["body"],
                key=key,
                python=python,
                machine=arguments["machine"],
                torch_index=tuple(answer["torch_index"]),
                inputs=inputs,
            )
            place = temporary if checking else path
            result = self._result(lock, place, plan, arguments, source="solved", changed=True, actions=[f"solve {len(lock.packages)} packages into {path}"])
            os.makedirs(os.path.dirname(place), exist_ok=True)
            write_atomically(place, lock.render())
            result.update(seconds=answer["seconds"], diff={"before": "", "after": pin_lines(lock.packages), "before_header": path, "after_header": path})
            return result

    def _result(self, lock: Lock, path: str, plan: dict[str, Any], arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        packages = lock.packages
        warning = check_torch(packages, Request.from_plan(plan, arguments["machine"], arguments["build_packages"]))
        result = {"path": path, "key": lock.key, "digest": lock.digest, "packages": packages, **more}
        if warning:
            result["warnings"] = [warning]
        return result


def _key(plan: dict[str, Any], build_packages: list[str]) -> tuple[str, dict[str, Any]]:
    """Key and inputs of the lock: the plan's, and with them the packages that may be built from source, if there are any."""
    lock = plan.get("lock") or {}
    key, inputs = str(lock.get("key") or ""), dict(lock.get("inputs") or {})
    if key and build_packages:
        inputs["build_packages"] = sorted(build_packages)
        key = hashlib.sha256(json.dumps([key, inputs["build_packages"]]).encode()).hexdigest()
    return key, inputs


@contextlib.contextmanager
def _one_at_a_time(path: str) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read(path: str, key: str) -> Lock | None:
    """The stored lock, or ``None`` if there is none for this key."""
    try:
        with open(path, encoding="utf-8") as handle:
            lock = parse_lock(handle.read(), path)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as fault:
        raise IronwheelError(
            f"The lock file {path} is no text: {fault}.", "LockEdited", "restore the file, or remove it, so that it is solved again."
        ) from fault
    return lock if lock.key == key else None


def _fault(answer: dict[str, Any]) -> dict[str, str]:
    remedy = str(answer.get("remedy") or "")
    return {"message": str(answer.get("msg") or "").removesuffix(f" Remedy: {remedy}"), "error": str(answer["error"]), "remedy": remedy}


def _raise_if_known_unsolvable(path: str) -> None:
    """A request that one host could not solve is not tried on each of its twenty equals."""
    try:
        with open(path, encoding="utf-8") as handle:
            fault = json.load(handle)
    except FileNotFoundError:
        return
    raise IronwheelError(f"{fault['message']} ({fault['host']}, which shares the lock, tried.)", fault["error"], fault["remedy"])
