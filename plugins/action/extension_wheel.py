# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Drives a wheel from store, prebuilt source or build into an environment; the work on the target is done by the module of the same name.

Hosts that want the same fingerprint meet at a lock in the store: the first builds, the others wait and then take the wheel from the store. When the builder
fails for a reason of its own (memory, disk, connection) the next host tries; when the source does not compile, nobody tries again in this run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.module_utils.urls import open_url
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ironwheel.gpu.plugins.module_utils import torch_abi, wheel_store, wheels
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import write_atomically
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.packages import normalize

display = Display()

POLL_S = 10
PROGRESS_S = 20
# A connection may be gone for five minutes, and a module may die twice, before a build that goes on by itself is given up.
LOST_POLLS = 30
CRASHED_POLLS = 3
# How long the others wait for the host whose build did not come to an end in an earlier run.
PRECEDENCE_S = 90
# What another host can do better. Everything else would fail there in the same way.
HOST_ERRORS = (
    *("NotEnoughMemory", "DiskTooSmall", "FileSystem", "ToolMissing", "BuildToolMissing", "ToolkitMissing", "BuildNotStarted", "SourceNotFound"),
    *("BuildOutOfMemory", "BuildOutOfDisk", "BuildKilled", "BuildTimedOut"),
)
HOSTS_THAT_TRY = 2


class StepFailed(Exception):
    """A step on the target failed; ``result`` is what the module returned, ``lost`` the failure of the connection where there was one."""

    def __init__(self, result: dict[str, Any], lost: AnsibleConnectionFailure | None = None) -> None:
        super().__init__(result.get("msg") or "the module failed without a message")
        self.result = result
        self.lost = lost

    @property
    def error(self) -> str:
        """Name of the fault; empty when the module died before it could name one, or the connection broke."""
        return str(self.result.get("error") or "")


class ActionModule(ActionBase):
    """``ironwheel.gpu.extension_wheel`` with ``state: present``."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        self.vars = task_vars or {}
        self.args = dict(self._task.args)
        self.host = self.vars.get("inventory_hostname", "")
        self.trace: list[dict[str, str]] = []
        self.actions: list[str] = []
        self.server = ""
        if self.args.get("state", "present") != "present":
            return self._execute_module(module_args=self.args, task_vars=self.vars)
        try:
            return self.present()
        except IronwheelError as exc:
            return {"failed": True, "trace": self.trace, "actions": self.actions, **exc.as_result()}
        except StepFailed as exc:
            if exc.lost is not None:
                # The executor knows best how to say that a host is unreachable.
                raise exc.lost from exc
            return {**exc.result, "failed": True, "trace": self.trace, "actions": self.actions}
        finally:
            with contextlib.suppress(AnsibleConnectionFailure):
                self._remove_tmp_path(self._connection._shell.tmpdir)

    # --- the sequence ---------------------------------------------------------------------------------------------------------------------------------

    def step(self, state: str, **more: Any) -> dict[str, Any]:
        """One step on the target.

        Raises:
            StepFailed: the module says so, or the connection broke.
        """
        arguments = {name: value for name, value in self.args.items() if name not in ("store", "prebuilt", "build_allowed", "cost_dir")}
        module_args = {**arguments, "state": state, **more}
        try:
            result = self._execute_module(module_name="ironwheel.gpu.extension_wheel", module_args=module_args, task_vars=self.vars)
        except AnsibleConnectionFailure as exc:
            raise StepFailed({"msg": str(exc)}, exc) from exc
        if result.get("failed"):
            raise StepFailed(result)
        self.actions += result.get("actions") or []
        return result

    def note(self, candidate: str, verdict: str, reason: str) -> None:
        self.trace.append({"subject": f"{self.args['name']} wheel", "candidate": candidate, "verdict": verdict, "reason": reason})

    def present(self) -> dict[str, Any]:
        store = self.store()
        try:
            probe = self.step("probed")
        except StepFailed as exc:
            # In check mode on a new host the environment is only announced, so nothing more can be known.
            if self._task.check_mode and exc.error == "EnvironmentMissing":
                return self.predicted("unknown", {}, f"Would have {self.args['name']} {self.args['version']} for the new environment")
            raise
        wanted = probe["fields"]
        if probe.get("present"):
            entry = probe["present"]
            self.note(entry["wheel"], "accepted", "the target has it already, its sha256 is right")
            return self.install({**entry, "wheel": entry["path"]}, "target", False)
        accepted = self.from_store(store, wanted) or self.from_prebuilt(probe, wanted)
        if accepted is not None:
            return accepted
        if not self.flag("build_allowed", True):
            raise IronwheelError(
                f"No wheel for {self.args['name']} {self.args['version']} serves torch {wanted['torch']} on this host, and it may not build one.",
                "NoWheel",
                "Allow a build with flash_attn_build, or put a wheel into the store or the prebuilt list.",
            )
        if self._task.check_mode:
            self.note("build", "accepted", "no store entry and no prebuilt wheel serves")
            return self.predicted("build", wanted, f"Would build {self.args['name']} {self.args['version']}")
        return self.build_or_wait(store, wanted)

    def from_store(self, store: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """The best entry of the store that holds on this target."""
        found, faults = wheel_store.entries(store)
        if self.server:
            there = {entry["fingerprint"] for entry in found}
            served, more = wheel_store.remote_entries(self.server, read_url)
            found += [entry for entry in served if entry["fingerprint"] not in there]
            faults += more
        for fault in faults:
            display.warning(f"[{self.host}] {fault}")
        for candidate in wheel_store.candidates(found, wanted):
            entry = candidate["entry"]
            if candidate["verdict"] == "rejected":
                self.note(f"store {entry['fingerprint']}", "rejected", "; ".join(candidate["reasons"]))
                continue
            try:
                if wheel_store.is_url(entry["path"]) and not self._task.check_mode:
                    entry = wheel_store.bring(store, entry, read_url)
                path = entry["path"] if wheel_store.is_url(entry["path"]) else wheel_store.verified(entry)
                if self._task.check_mode:
                    self.note(f"store {entry['fingerprint']}", "accepted", "built against the same torch, CUDA, ABI and Python")
                    return self.answer({"changed": True, **entry}, "store", [f"Would take {entry['wheel']} from the store"])
                accepted = self.hand_over(path, entry)
            except IronwheelError as exc:
                self.note(f"store {entry['fingerprint']}", "rejected", exc.message)
                display.warning(f"[{self.host}] {exc.message}")
                continue
            except StepFailed as exc:
                # What is wrong with the host or the connection says nothing about the wheel.
                if not exc.error or exc.error in HOST_ERRORS:
                    raise
                self.note(f"store {entry['fingerprint']}", "rejected", str(exc))
                continue
            self.note(f"store {entry['fingerprint']}", "accepted", "built against the same torch, CUDA, ABI and Python; symbols and import hold")
            return self.install(accepted, "store", True)
        return None

    def hand_over(self, path: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Copy a wheel of the store to the target, where its sha256 is compared and it is judged."""
        remote = self.upload(path)
        origin = {name: entry[name] for name in ("origin", "builder", "built", "url") if name in entry}
        return self.step("accepted", wheel=remote, sha256=entry["sha256"], fingerprint=entry["fingerprint"], fields=entry["fields"], origin=origin)

    def from_prebuilt(self, probe: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any] | None:
        """The first listed prebuilt wheel that fits by its name, its sha256, its symbols and an import."""
        for item in self.args.get("prebuilt") or []:
            url, digest = str(item.get("url") or item.get("path") or ""), str(item.get("sha256") or "")
            if not url or len(digest) != 64:
                raise IronwheelError(
                    f"flash_attn_prebuilt names '{url}' with sha256 '{digest}': each entry needs a url or a path, and its sha256.",
                    "InvalidInput",
                    "Complete or remove the entry.",
                )
            identity = probe["identity"]
            target = wheels.Target(
                normalize(self.args["name"]),
                self.args["version"],
                identity["full_version"],
                identity["cuda"],
                identity["cxx11_abi"],
                identity["python"],
                identity["machine"],
                probe["glibc"],
            )
            wheel = wheels.parse(url)
            if wheel.name != target.name:
                continue
            reasons = wheels.judge(wheel, target)
            if reasons:
                self.note(wheel.filename, "rejected", "; ".join(reasons))
                continue
            if self._task.check_mode:
                self.note(wheel.filename, "accepted", "its name fits; symbols are judged when it is there")
                return self.predicted("prebuilt", wanted, f"Would fetch {wheel.filename}")
            try:
                fetched = self.step("fetched", wheel=url, sha256=digest)
                fields = {**wanted, "source_sha256": f"prebuilt:{digest}"}
                origin = {"origin": "prebuilt", "url": url}
                key = torch_abi.fingerprint(fields)
                accepted = self.step("accepted", wheel=fetched["wheel"], sha256=digest, fingerprint=key, fields=fields, origin=origin)
            except StepFailed as exc:
                # An address that does not answer is a reason to try the next one.
                if not exc.error or (exc.error in HOST_ERRORS and exc.error != "SourceNotFound"):
                    raise
                self.note(wheel.filename, "rejected", str(exc))
                continue
            self.note(wheel.filename, "accepted", "name, sha256, symbols and import fit")
            return self.install(accepted, "prebuilt", True)
        return None

    # --- building -------------------------------------------------------------------------------------------------------------------------------------

    def build_or_wait(self, store: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Build, or wait for the host that builds the same; take its wheel, or its place when it failed for a reason of its own."""
        key = torch_abi.fingerprint(wanted)
        # Ansible numbers the tasks of one run behind a random part, which tells this run from all others.
        run_id = str(self._task._uuid).rpartition("-")[0]
        with wheel_store.building(store, key) as right:
            self.take_turn(right, store, key, run_id)
            # Whoever held the right before may have left a wheel, or the reason why there will be none.
            ready = self.from_store(store, wanted)
            if ready is not None:
                return ready
            failures = self.failures(store, key, run_id)
            final = next((item for item in failures if not item["of_the_host"]), None)
            if final is not None or len(failures) >= HOSTS_THAT_TRY:
                last = final or failures[-1]
                raise IronwheelError(f"{last['host']} built for this group and failed: {last['message']}", last["error"], last["remedy"])
            right.set_builder(self.host)
            try:
                built = self.build(store)
            except (StepFailed, IronwheelError) as exc:
                self.remember_failure(store, key, run_id, exc)
                if getattr(exc, "lost", None) is None:
                    right.set_builder("")
                raise
            right.set_builder("")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.failure_file(store, key))
            return built

    def take_turn(self, right: wheel_store.BuildRight, store: str, key: str, run_id: str) -> None:
        """Wait for the right to build. A host whose build did not come to an end in an earlier run comes first: it may run on, and what compiled is there."""
        said = 0.0
        deadline = time.monotonic() + PRECEDENCE_S
        while True:
            if right.take():
                first = right.builder()
                elsewhere = first and first != self.host and first in (self.vars.get("ansible_play_hosts") or [])
                if not elsewhere or time.monotonic() > deadline or first in [item["host"] for item in self.failures(store, key, run_id)]:
                    return
                right.give_back()
            if time.monotonic() - said > PROGRESS_S:
                display.display(f"[{self.host}] waiting for the host that builds {self.args['name']} {self.args['version']}")
                said = time.monotonic()
            time.sleep(1)

    def failure_file(self, store: str, key: str) -> str:
        return os.path.join(store, f".failed-{key}.json")

    def failures(self, store: str, key: str, run_id: str) -> list[dict[str, Any]]:
        """What went wrong for this fingerprint in this very run."""
        try:
            with open(self.failure_file(store, key), encoding="utf-8") as stream:
                kept = json.load(stream)
        except (OSError, ValueError):
            return []
        return kept["failures"] if isinstance(kept, dict) and kept.get("run") == run_id else []

    def remember_failure(self, store: str, key: str, run_id: str, exc: Exception) -> None:
        entry = {
            "host": self.host,
            "message": exc.message if isinstance(exc, IronwheelError) else str(exc),
            "error": exc.error,
            "remedy": exc.remedy if isinstance(exc, IronwheelError) else exc.result.get("remedy", ""),
            # Without a name it is a connection that broke or a module that was killed.
            "of_the_host": exc.error in HOST_ERRORS or not exc.error,
        }
        write_atomically(self.failure_file(store, key), json.dumps({"run": run_id, "failures": [*self.failures(store, key, run_id), entry]}))

    def build(self, store: str) -> dict[str, Any]:
        """Build on this host, follow it to its end, put the wheel into the store."""
        started = self.step("started")
        fingerprint, fields = started["fingerprint"], started["fields"]
        ended = self.follow(fingerprint)
        result = ended["result"]
        self.keep_costs(ended.get("costs") or [])
        if result["outcome"] != "ok":
            raise self.build_error(result)
        report = ended.get("report") or {}
        origin = {"origin": "build", "builder": self.host, "built": int(time.time()), "report": report}
        accepted = self.step("accepted", wheel=result["wheel"], sha256=result["sha256"], fingerprint=fingerprint, fields=fields, origin=origin)
        self.note("build", "accepted", f"built on {self.host} in {result['elapsed_s']:.0f} s, peak {result['peak_mib']} MiB")
        local = self.download(accepted["wheel"])
        wheel_store.put(store, local, accepted["entry"])
        os.unlink(local)
        self.actions.append(f"Stored the wheel under {fingerprint}")
        return {**self.install(accepted, "build", True), "report": report}

    def follow(self, fingerprint: str) -> dict[str, Any]:
        """Poll with short calls until the build ended. The connection may break in between: the build goes on, and so does this."""
        said = 0.0
        lost = crashed = 0
        while True:
            try:
                polled = self.step("polled", fingerprint=fingerprint, wait=POLL_S)
                lost = crashed = 0
            except StepFailed as exc:
                lost, crashed = (lost, crashed + 1) if exc.lost is None else (lost + 1, crashed)
                if exc.error or lost >= LOST_POLLS or crashed >= CRASHED_POLLS:
                    raise
                display.display(f"[{self.host}] {self.args['name']}: no answer from the host ({exc}); the build goes on there")
                with contextlib.suppress(AnsibleConnectionFailure):
                    self._connection.reset()
                time.sleep(POLL_S)
                continue
            if polled.get("result"):
                return polled
            if time.monotonic() - said > PROGRESS_S:
                display.display(f"[{self.host}] {progress_line(self.args['name'], polled['status'])}")
                said = time.monotonic()

    def build_error(self, result: dict[str, Any]) -> IronwheelError:
        """The error that a build without a wheel becomes."""
        label = f"{self.args['name']} {self.args['version']}"
        numbers = f"peak {result.get('peak_mib')} MiB of {result.get('budget_mib')} MiB, {result.get('elapsed_s')} s"
        remedies = {
            "out_of_memory": ("BuildOutOfMemory", "Free memory or raise the host's limit; what compiled is kept, so that the next run goes on from there."),
            "out_of_disk": ("BuildOutOfDisk", "Free space below uv_venv_prefix; what compiled is kept, so that the next run goes on from there."),
            "killed": ("BuildKilled", "Run again: what compiled is kept."),
            "timed_out": ("BuildTimedOut", "Raise flash_attn_timeout; what compiled is kept."),
            "no_wheel": ("BuildFailed", f"Read {result.get('log')} on the host."),
            "compile_error": ("BuildFailed", f"Read {result.get('log')} on the host."),
        }
        error, remedy = remedies.get(result["outcome"], ("BuildFailed", f"Read {result.get('log')} on the host."))
        return IronwheelError(f"The build of {label} failed ({numbers}): {result['reason']}.", error, remedy)

    # --- pieces ---------------------------------------------------------------------------------------------------------------------------------------

    def install(self, accepted: dict[str, Any], source: str, changed: bool) -> dict[str, Any]:
        """Put the accepted wheel into the environment."""
        done = self.step("installed", wheel=accepted["wheel"], sha256=accepted["sha256"])
        answer = self.answer({**accepted, "changed": changed or done["changed"]}, source, [])
        if done.get("diff"):
            answer["diff"] = done["diff"]
        if done.get("replaced"):
            # Somebody's own work is undone, so that nobody must look for it in the details.
            display.warning(f"[{self.host}] {done['replaced']}")
        return answer

    def answer(self, values: dict[str, Any], source: str, actions: list[str]) -> dict[str, Any]:
        keep = ("changed", "wheel", "sha256", "fingerprint", "fields")
        return {**{name: values.get(name) for name in keep}, "source": source, "trace": self.trace, "actions": [*self.actions, *actions]}

    def predicted(self, source: str, wanted: dict[str, Any], action: str) -> dict[str, Any]:
        """The answer in check mode, where nothing is there yet."""
        return self.answer({"changed": True, "fields": wanted, "fingerprint": "", "wheel": "", "sha256": ""}, source, [action])

    def flag(self, name: str, default: bool) -> bool:
        value = self.args.get(name, default)
        return value if isinstance(value, bool) else str(value).lower() in ("1", "true", "yes", "on")

    def store(self) -> str:
        """The store's folder on the controller; a relative one lies where locks and reports do, in the folder that Ansible was started in.

        A store behind a server is only read; what is taken from it, and what is built, goes into a folder of its own in the user's cache.
        """
        store = str(self.args.get("store") or "wheels")
        if wheel_store.is_url(store):
            self.server = wheel_store.check_url(store)
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            return os.path.join(cache, "ironwheel", "stores", hashlib.sha256(self.server.encode()).hexdigest()[:16])
        return os.path.abspath(os.path.expanduser(store))

    def upload(self, path: str) -> str:
        remote = self._connection._shell.join_path(self._connection._shell.tmpdir or self._make_tmp_path(), os.path.basename(path))
        self._transfer_file(path, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote

    def download(self, remote: str) -> str:
        local = os.path.join(self.store(), f".fetch-{self.host}-{os.path.basename(remote)}")
        self._connection.fetch_file(remote, local)
        if not os.path.isfile(local):
            raise AnsibleActionFail(f"{remote} did not arrive from {self.host}")
        return local

    def keep_costs(self, rows: list[dict[str, Any]]) -> None:
        """Keep a host's measured costs on the controller, from which the next plan predicts."""
        folder = self.args.get("cost_dir")
        if rows and folder:
            path = os.path.join(os.path.abspath(os.path.expanduser(str(folder))), self.host)
            os.makedirs(path, exist_ok=True)
            write_atomically(os.path.join(path, f"{normalize(self.args['name'])}.jsonl"), "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def read_url(url: str) -> bytes:
    """Content behind an address, read with the controller's own proxies and certificates."""
    with open_url(url, timeout=60) as stream:
        return stream.read()


def progress_line(name: str, status: dict[str, Any]) -> str:
    """One line about a running build: units done of all, running, memory of budget, time left."""
    if not status:
        return f"{name}: starting"
    if status.get("state") == "ended":
        return f"{name}: ended"
    left = status.get("left_s")
    parts = [
        f"{status.get('units_done') or 0}/{status.get('units') or '?'} units",
        f"{status['running']} running" if status.get("running") is not None else "",
        f"{(status.get('used_mib') or 0) / 1024:.1f} of {(status.get('budget_mib') or 0) / 1024:.1f} GiB",
        f"{(status.get('elapsed_s') or 0) // 60} min",
        f"about {max(1, round(left / 60))} min left" if left else "",
    ]
    return f"{name}: " + ", ".join(part for part in parts if part)
