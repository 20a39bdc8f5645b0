#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: extension_wheel
short_description: A compiled extension that fits an environment's torch, from the store, from a prebuilt wheel, or built
version_added: 0.1.0
description:
  - Reads the identity of torch from the environment that will use the wheel, looks for a wheel built against exactly that torch, and builds one
    if there is none. Every wheel is judged by its symbols and imported before it is used.
  - The action of the same name drives the whole sequence from the controller (O(state=present)); the module does one step of it on the target.
  - A build runs as a service of its own, survives a dropped connection, and is attached to by a second run instead of being started twice.
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
  state:
    description:
      - V(present) has the wheel on the target and in the environment, and is what a playbook uses.
      - V(probed), V(fetched), V(started), V(polled), V(accepted), V(installed) and V(stopped) are the steps that the action
        takes on the target.
    type: str
    default: present
    choices: [present, probed, fetched, started, polled, accepted, installed, stopped]
  name:
    description: Name of the distribution, such as V(flash-attn).
    type: str
    required: true
  version:
    description: Its release.
    type: str
    required: true
  description:
    description: Description of an extension that the collection does not know, as documented in the role flash_attn.
    type: dict
  environment:
    description: Path of the environment that will use the wheel.
    type: path
    required: true
  prefix:
    description: Where builds, sources, costs and wheels live on the target. Left out, V(/opt/ironwheel) for root and V(~/.local/share/ironwheel) for others.
    type: path
  uv:
    description: Path of uv.
    type: path
  cuda_home:
    description: The toolkit that builds. Left out, the one on the host whose release is that of torch's CUDA.
    type: path
  architectures:
    description: Compute capabilities, such as V(["12.0"]).
    type: list
    elements: str
    default: []
  source:
    description: A source distribution on the target or behind a URL, instead of the index's.
    type: str
  source_sha256:
    description: Its sha256; required for a URL.
    type: str
  indexes:
    description: Where packages come from, as in the plan.
    type: dict
    default: {}
  jobs:
    description: Highest number of compile jobs; V(0) leaves it to the memory model.
    type: int
    default: 0
  nvcc_threads:
    description: Number of nvcc threads a job; V(0) leaves it to the memory model.
    type: int
    default: 0
  gate:
    description: Whether the gate admits compilations by memory. Without it a fixed number of jobs runs.
    type: bool
    default: true
  memory_mib:
    description: Memory that the build may count on; V(0) for what the host can spare.
    type: int
    default: 0
  cores:
    description: Cores that the build may use; V(0) for all that it can.
    type: int
    default: 0
  env:
    description: Further environment of the build, such as C(CC) and C(CXX).
    type: dict
    default: {}
  build_user:
    description: User that builds. Left out, the user who runs the module. Needs systemd.
    type: str
  timeout:
    description: Seconds that a build may take; V(0) for no limit.
    type: int
    default: 0
  clear_orphans:
    description: Whether orphaned compilers of other people's dead builds are ended before the build.
    type: bool
    default: false
  fingerprint:
    description: For the steps after the first, the fingerprint that they are about.
    type: str
  fields:
    description: For O(state=accepted), the fingerprint fields of the wheel.
    type: dict
  wheel:
    description: For O(state=accepted), the wheel on the target.
    type: path
  sha256:
    description: For O(state=accepted), its sha256.
    type: str
  origin:
    description: For O(state=accepted), where the wheel came from.
    type: dict
    default: {}
  wait:
    description: For O(state=polled), seconds to wait for the end before the status is returned.
    type: int
    default: 0
  store:
    description: For O(state=present), the wheel store, a folder on the controller or the https address of one, which is only read.
    type: str
  prebuilt:
    description: For O(state=present), prebuilt wheels as V({url, sha256}), tried in this order.
    type: list
    elements: dict
    default: []
  build_allowed:
    description: For O(state=present), whether a wheel may be built on this host when no other source has one.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Have the flash-attn wheel for the torch of this environment
  ironwheel.gpu.extension_wheel:
    name: flash-attn
    version: 2.8.3.post2
    environment: /opt/ironwheel/envs/0123456789ab
    uv: /opt/ironwheel/uv/0.13.9/uv
    cuda_home: /usr/local/cuda-13.0
    architectures: ["12.0"]
    store: wheels
  register: wheel
"""

RETURN = r"""
wheel:
  description: Path of the accepted wheel on the target.
  returned: O(state=present) and O(state=accepted)
  type: str
sha256:
  description: Its sha256.
  returned: O(state=present) and O(state=accepted)
  type: str
fingerprint:
  description: Fingerprint of what it was built against.
  returned: success
  type: str
fields:
  description: The fields of the fingerprint.
  returned: success
  type: dict
source:
  description: Where it came from, V(target), V(store), V(prebuilt) or V(build).
  returned: O(state=present)
  type: str
trace:
  description: Every candidate with C(subject), C(candidate), C(verdict) and C(reason).
  returned: O(state=present)
  type: list
  elements: dict
status:
  description: Where a build stands. Units done and of all, memory in MiB, seconds left.
  returned: O(state=polled)
  type: dict
result:
  description: What became of the build, once it ended.
  returned: O(state=polled)
  type: dict
report:
  description: The build report.
  returned: when a build ended
  type: dict
identity:
  description: Identity of torch in the environment.
  returned: O(state=probed)
  type: dict
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
"""

import contextlib
import glob
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.ironwheel.gpu.plugins.module_utils import (
    abi,
    build_memory,
    elf_modules,
    environment_python,
    environments,
    extension_build,
    extension_checks,
    host,
    packages,
    torch_abi,
    versions,
    wheels,
)
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.uv import Indexes, Uv

STATES = ("present", "probed", "fetched", "started", "polled", "accepted", "installed", "stopped")
PROBE_TIMEOUT_S = 180
IMPORT_TIMEOUT_S = 300


class Extension:
    """One extension on one target, step by step."""

    def __init__(self, params: dict) -> None:
        self.params = params
        self.package = packages.from_user(params["description"]) if params["description"] else packages.describe(params["name"])
        self.prefix = environments.live_prefix(params["prefix"])
        self.environment = params["environment"]
        self.python = os.path.join(self.environment, "bin", "python")
        self.label = f"{self.package.name} {params['version']}"

    # --- what is there ------------------------------------------------------------------------------------------------------------------------------

    def identity(self) -> dict:
        """torch as the environment's own Python says it, never guessed."""
        if not os.path.exists(self.python):
            raise IronwheelError(
                f"environment '{self.environment}' has no bin/python.", "EnvironmentMissing", "Run the role uv_venv first, or correct the path."
            )
        identity = environment_python.probe(self.environment, {"task": "torch"}, PROBE_TIMEOUT_S)
        if identity.get("import_error"):
            raise IronwheelError(
                f"torch in {self.environment} does not import: {identity['import_error']}",
                "TorchBroken",
                "Run the role uv_venv, which makes a sound environment beside it.",
            )
        if identity.get("cuda") is None:
            raise IronwheelError(
                f"torch {identity['full_version']} in {self.environment} is a build without CUDA; {self.package.name} needs one with CUDA.",
                "TorchWithoutCuda",
                "Choose a CUDA variant with torch_variant, or leave the extension out on this host.",
            )
        return identity

    def fields(self, identity: dict, source_sha256: str | None) -> dict:
        """Fingerprint fields for this environment and host."""
        facts = host.read_host(subset={"os"})
        version = self.params["version"]
        fixes = [fix.name for fix in self.package.fixes_for(version, identity["full_version"])]
        return torch_abi.fingerprint_fields(
            self.package.name,
            version,
            source_sha256,
            fixes,
            identity["full_version"],
            identity.get("git_version"),
            identity["cuda"],
            identity["cxx11_abi"],
            identity["python"],
            identity["machine"],
            facts["os"]["glibc"],
            self.package.compiled(self.params["architectures"], version),
        )

    def uv(self) -> tuple[Uv, Indexes]:
        """uv and the indexes that it may ask."""
        if not self.params["uv"] or not os.path.exists(self.params["uv"]):
            raise IronwheelError(f"uv '{self.params['uv']}' does not exist.", "ToolMissing", "Run the role uv_venv first.")
        indexes = Indexes.on_host(self.params["indexes"], os.environ)
        return Uv(self.params["uv"], indexes.environment(os.environ), os.path.join(self.prefix, "cache", "uv")), indexes

    def folder(self, fingerprint: str) -> str:
        return os.path.join(self.prefix, "builds", fingerprint)

    def wheel_folder(self, fingerprint: str) -> str:
        return os.path.join(self.prefix, "wheels", self.package.name, fingerprint)

    # --- steps --------------------------------------------------------------------------------------------------------------------------------------

    def probed(self) -> dict:
        """Identity, wanted fields, and the wheel that the target already has for them."""
        identity = self.identity()
        fields = self.fields(identity, self.params["source_sha256"])
        return {
            "changed": False,
            "identity": identity,
            "fields": fields,
            "units": self.package.units(self.params["version"]),
            "present": self.present_wheel(fields),
            "installed": self.installed_state(identity["full_version"]),
            "glibc": fields["glibc"],
            "actions": [],
        }

    def present_wheel(self, wanted: dict) -> dict | None:
        """A wheel on the target that serves, with its provenance, its sha256 compared."""
        for path in sorted(glob.glob(os.path.join(self.prefix, "wheels", self.package.name, "*", "wheel.json"))):
            entry = extension_build.read_json(path)
            if entry is None or not isinstance(entry.get("fields"), dict):
                continue
            fields = {**wanted, "source_sha256": wanted["source_sha256"] or entry["fields"].get("source_sha256")}
            wheel = os.path.join(os.path.dirname(path), str(entry.get("wheel")))
            if not torch_abi.serves(entry["fields"], fields) and os.path.isfile(wheel) and extension_build.file_sha256(wheel) == entry.get("sha256"):
                return {**entry, "path": wheel}
        return None

    def started(self) -> dict:
        """Everything up to a running build: source, refusals, jobs, start. A build that runs already is attached to, one that ended well meanwhile is taken."""
        identity = self.identity()
        source, digest = self.source(identity)
        fields = self.fields(identity, digest)
        fingerprint = torch_abi.fingerprint(fields)
        folder = self.folder(fingerprint)
        answer = {"fingerprint": fingerprint, "fields": fields, "folder": folder, "changed": True}
        os.makedirs(folder, exist_ok=True)
        # Of two runs that come at the same moment one starts the build and the other finds it running.
        with extension_build.starting(folder):
            if extension_build.alive(folder):
                return {**answer, "attached": True, "actions": [f"Attached to the build of {self.label} that runs in {folder}"]}
            if extension_build.finished(folder):
                return {**answer, "attached": True, "actions": [f"Took the build of {self.label} that ended in {folder} while nobody was connected"]}
            return {**answer, **self.start(identity, source, digest, fields, fingerprint)}

    def start(self, identity: dict, source: str, digest: str, fields: dict, fingerprint: str) -> dict:
        """Refuse early, prepare the folder, start the runner."""
        folder = self.folder(fingerprint)
        version = self.params["version"]
        actions = []
        ended = extension_build.end_leftovers(folder)
        if ended:
            actions.append(f"Ended {len(ended)} processes that an earlier build of ours left")
        actions += self.orphans()
        cuda_home = self.cuda_home(identity)
        choice, usable, cores = self.choose()
        extension_build.require_disk(folder, self.package.units(version))
        self.require_tools()
        systemd = os.path.isdir("/run/systemd/system") and os.geteuid() == 0
        if self.params["build_user"] and not systemd:
            raise IronwheelError(
                f"build_user is '{self.params['build_user']}', which needs systemd and root on the host.",
                "BuildUserNeedsSystemd",
                "Leave it out, or become that user.",
            )
        extension_build.unpack(source, os.path.join(folder, "source"), digest + json.dumps(fields["fixes"]))
        fixes = self.package.fixes_for(version, identity["full_version"])
        extension_build.apply_fixes(os.path.join(folder, "source"), [fix.as_dict() for fix in fixes])
        job = self.job(folder, choice, usable - choice.reserve_mib, cores, cuda_home)
        extension_build.write_job(job, os.environ, sys.executable)
        self.write_costs(folder, choice.nvcc_threads)
        if self.params["build_user"]:
            self.give_to(folder, self.params["build_user"])
        extension_build.start(folder, fingerprint, usable, systemd, self.params["build_user"])
        actions.append(f"Started the build of {self.label} in {folder}: {choice.explanation}")
        return {"attached": False, "jobs": choice.as_dict(), "gated": job.gated, "actions": actions}

    def source(self, identity: dict) -> tuple[str, str]:
        """The source distribution on the target and its sha256."""
        params = self.params
        folder = os.path.join(self.prefix, "sources")
        if params["source"]:
            if "://" in params["source"] and not params["source_sha256"]:
                raise IronwheelError(f"source is {params['source']} without a sha256.", "HashMissing", "Give source_sha256 beside a URL.")
            found = extension_build.Source(params["source"], params["source_sha256"])
        else:
            uv, indexes = self.uv()
            found = extension_build.locate_source(uv, indexes, self.package.name, params["version"], identity["python"])
        bundle = params["indexes"].get("ca_bundle") or None
        return extension_build.fetch(found, folder, lambda url: open_url(url, timeout=60, ca_path=bundle))

    def orphans(self) -> list[str]:
        """Name orphaned compilers of other builds, and end them when asked to. Those of live builds are never touched."""
        found = [item for item in host.read_host(subset={"build_leftovers"})["build_leftovers"] if item["orphan"] and not item["ours"]]
        if not found:
            return []
        total = sum(item["rss_mib"] or 0 for item in found)
        named = ", ".join(f"{item['name']} {item['pid']} of {item['user']}" for item in found[:5])
        if not self.params["clear_orphans"]:
            return [f"{len(found)} orphaned compilers of other builds hold {total} MiB ({named}); flash_attn_clear_orphans ends them"]
        ended = extension_build.end_orphans(found)
        return [f"Ended {len(ended)} orphaned compilers of other builds that held {total} MiB ({named})"]

    def choose(self) -> tuple[build_memory.JobChoice, int, int]:
        """Jobs by the memory that is there now, with this host's own costs. Returns the choice, usable MiB and cores."""
        params = self.params
        facts = host.read_host(subset={"memory", "cpu"})
        usable = params["memory_mib"] or facts["memory"]["usable_mib"]
        cores = params["cores"] or facts["cpu"]["usable"]
        version = params["version"]
        planned = self.package.planned_architectures(params["architectures"], version, gated=params["gate"])
        # Without the gate nothing changes the number of threads that a package hard-codes.
        fixed = None if params["gate"] or self.package.thread_variable else self.package.fixed_threads
        choice = build_memory.choose_jobs(
            memory_class=self.package.memory_class,
            units=self.package.units(version),
            architectures=len(planned),
            usable_mib=usable,
            usable_cores=cores,
            nvcc_threads=params["nvcc_threads"] or None,
            hard_coded_threads=fixed,
            max_jobs=params["jobs"] or None,
            history=self.history(),
        )
        return choice, usable, cores

    def cost_file(self) -> str:
        return os.path.join(self.prefix, "costs", f"{self.package.name}.jsonl")

    def history(self) -> list[dict]:
        """Rows of this host's own earlier builds."""
        rows = []
        with contextlib.suppress(OSError), open(self.cost_file(), encoding="utf-8") as stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    if isinstance(row, dict) and "unit" in row and "peak_mib" in row:
                        rows.append(row)
        return rows

    def write_costs(self, folder: str, nvcc_threads: int) -> None:
        """Predictions for the gate: calibration, then this host's own builds."""
        params = self.params
        text = build_memory.gate_costs(
            self.package.memory_class,
            self.package.units(params["version"]),
            self.history(),
            architectures=len(self.package.planned_architectures(params["architectures"], params["version"], gated=params["gate"])),
            nvcc_threads=nvcc_threads,
        )
        environments.write_atomically(os.path.join(folder, "gate", "predictions"), text)

    def cuda_home(self, identity: dict) -> str:
        """The toolkit that builds: the one that was named, otherwise the one whose release is that of torch's CUDA."""
        named = self.params["cuda_home"]
        if named:
            if not os.access(os.path.join(named, "bin", "nvcc"), os.X_OK):
                raise IronwheelError(f"cuda_home is '{named}', which has no bin/nvcc.", "ToolkitMissing", "Run the role cuda_toolkit, or correct the path.")
            return named
        toolkits = host.read_host(paths={"prefix": self.prefix}, run=host.run_command, subset={"toolkits"})["toolkits"]
        wanted = versions.minor(identity["cuda"])
        for toolkit in toolkits:
            if toolkit["complete"] and toolkit["version"] == wanted:
                return toolkit["path"]
        there = ", ".join(str(toolkit["version"]) for toolkit in toolkits) or "none"
        raise IronwheelError(
            f"torch {identity['full_version']} needs CUDA toolkit {wanted} for a build; the host has {there}.", "ToolkitMissing", "Run the role cuda_toolkit."
        )

    def require_tools(self) -> None:
        """Refuse before the compile what would make it fail or crawl."""
        params = self.params
        bin_dir = os.path.dirname(self.python)
        if not os.access(os.path.join(bin_dir, "ninja"), os.X_OK) and shutil.which("ninja", path="/usr/local/bin:/usr/bin:/bin") is None:
            raise IronwheelError(
                f"ninja is neither in {bin_dir} nor on the host: torch would compile one file at a time and ignore the gate.",
                "BuildToolMissing",
                "Add ninja to uv_venv_packages.",
            )
        compiler = params["env"].get("CXX") or "g++"
        if shutil.which(compiler) is None:
            raise IronwheelError(f"the host compiler '{compiler}' is not there.", "BuildToolMissing", "Install a C++ compiler (g++).")
        code, headers, _errors = environment_python.run([self.python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"], PROBE_TIMEOUT_S)
        header = os.path.join(headers.strip(), "Python.h")
        if code == 0 and not os.path.exists(header):
            raise IronwheelError(
                f"{header} is not there: no extension compiles for {self.python} without Python's headers.",
                "BuildToolMissing",
                "Install them (python3-dev on Debian and Ubuntu, python3-devel on RHEL), or let uv bring the Python with uv_venv_python.",
            )

    def job(self, folder: str, choice: build_memory.JobChoice, budget: int, cores: int, cuda_home: str) -> extension_build.Job:
        """The job that the runner gets."""
        params = self.params
        version = params["version"]
        env = {
            **self.package.force_build,
            **self.package.arch_env(params["architectures"], version),
            # Read only where a package falls back to torch's own rule; the same list either way.
            "TORCH_CUDA_ARCH_LIST": ";".join(self.package.compiled(params["architectures"], version)),
            **self.package.jobs_env(choice.jobs, choice.nvcc_threads),
            **{name: str(value) for name, value in params["env"].items()},
            "IRONWHEEL_GATE_BUILD": f"{int(time.time())}.{os.getpid()}",
            "IRONWHEEL_GATE_COSTS": os.path.join(folder, "gate", "predictions"),
            "IRONWHEEL_GATE_THREADS": str(choice.nvcc_threads),
            "IRONWHEEL_GATE_UNITS": str(self.package.units(version) or 0),
        }
        return extension_build.Job(
            folder=folder,
            environment_python=self.python,
            cuda_home=cuda_home,
            env=env,
            uv=params["uv"],
            units=self.package.units(version),
            budget_mib=budget,
            cores=cores,
            architectures=tuple(self.package.compiled(params["architectures"], version)),
            gated=params["gate"],
            timeout_s=params["timeout"],
        )

    @staticmethod
    def give_to(folder: str, user: str) -> None:
        """Hand the build folder to the user that builds."""
        for directory, folders, files in os.walk(folder):
            for name in [".", *folders, *files]:
                shutil.chown(os.path.join(directory, name), user)

    def polled(self) -> dict:
        """Where the build stands; waits up to ``wait`` seconds for its end."""
        folder = self.folder(self.params["fingerprint"])
        deadline = time.monotonic() + self.params["wait"]
        while True:
            running = extension_build.alive(folder)
            result = None if running else extension_build.read_json(os.path.join(folder, "result.json"))
            if result is not None or not running or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        answer = {"changed": False, "status": extension_build.read_json(os.path.join(folder, "status.json")) or {}, "result": result, "actions": []}
        if running:
            return answer
        if result is None:
            answer["result"] = {"outcome": "killed", "reason": f"the build in {folder} ended without a word: its runner was killed", "wheel": None}
            return answer
        job = extension_build.read_json(os.path.join(folder, "job.json")) or {}
        answer["report"] = extension_build.build_report(folder, result, job)
        self.keep_costs(answer["report"])
        answer["costs"] = self.history()[-2000:]
        return answer

    def keep_costs(self, report: dict) -> None:
        """Add the measured costs of a build to this host's history, once."""
        rows = [row for row in report["units"] if row.get("peak_mib")]
        known = {json.dumps(row, sort_keys=True) for row in self.history()}
        fresh = [row for row in rows if json.dumps(row, sort_keys=True) not in known]
        if fresh:
            os.makedirs(os.path.dirname(self.cost_file()), exist_ok=True)
            with open(self.cost_file(), "a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(row, sort_keys=True) + "\n" for row in fresh)

    def accepted(self, check_mode: bool) -> dict:
        """Judge a wheel on the target and, if it holds, put it where environments are made from."""
        params = self.params
        wheel = params["wheel"]
        digest = extension_build.file_sha256(wheel)
        if params["sha256"] and digest != params["sha256"]:
            raise IronwheelError(
                f"{wheel} has sha256 {digest}, expected {params['sha256']}.",
                "HashMismatch",
                "The wheel was altered or cut short on its way: run again, and find out where.",
            )
        identity = self.identity()
        fingerprint = params["fingerprint"] or torch_abi.fingerprint(params["fields"])
        findings = self.judge(wheel, identity)
        failed = [finding for finding in findings if finding["verdict"] == "failed"]
        if failed:
            raise IronwheelError(
                f"{os.path.basename(wheel)} does not fit torch {identity['full_version']} in {self.environment}: {failed[0]['reason']}.",
                failed[0]["error"] or "AbiMismatch",
                "It is not used; another source is tried, or it is built.",
            )
        target = os.path.join(self.wheel_folder(fingerprint), os.path.basename(wheel))
        entry = {
            "schema": 1,
            "package": self.package.name,
            "version": params["version"],
            "fingerprint": fingerprint,
            "fields": params["fields"],
            "wheel": os.path.basename(wheel),
            "sha256": digest,
            "size": os.path.getsize(wheel),
            "module": self.package.module,
            **params["origin"],
        }
        present = extension_build.read_json(os.path.join(os.path.dirname(target), "wheel.json"))
        changed = not os.path.isfile(target) or present is None or present.get("sha256") != digest or extension_build.file_sha256(target) != digest
        if changed and not check_mode:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.abspath(wheel) != os.path.abspath(target):
                temporary = f"{target}.{os.getpid()}.tmp"
                shutil.copyfile(wheel, temporary)
                os.chmod(temporary, 0o644)
                os.replace(temporary, target)
            record = os.path.join(os.path.dirname(target), "wheel.json")
            environments.write_atomically(record, json.dumps(entry, indent=1, sort_keys=True) + "\n")
        if not check_mode:
            extension_build.clear_objects(self.folder(fingerprint))
        return {
            "changed": changed,
            "wheel": target,
            "sha256": digest,
            "fingerprint": fingerprint,
            "fields": params["fields"],
            "findings": findings,
            "entry": entry,
            "actions": [f"Accepted {entry['wheel']}"] if changed else [],
        }

    def judge(self, wheel: str, identity: dict) -> list[dict]:
        """Findings over a wheel: its name, its symbols, and an import with immediate binding."""
        facts = host.read_host(run=host.run_command, subset={"os", "gpus", "driver"})
        findings = []
        with tempfile.TemporaryDirectory(dir=os.path.join(self.prefix), prefix=".judge-") as folder:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(folder)
            except (OSError, zipfile.BadZipFile) as exc:
                raise IronwheelError(
                    f"{wheel} is no wheel that can be unpacked: {exc}.", "WheelDamaged", "Remove it, so that it is fetched or built again."
                ) from exc
            modules = elf_modules.extension_modules(folder)
            if not modules:
                return [abi.Finding("module", "failed", "it holds no compiled module", "WheelWithoutExtension").as_dict()]
            sites = glob.glob(os.path.join(self.environment, "lib", "python*", "site-packages"))
            findings = extension_checks.judge_files(modules, sites, identity, facts, wheels.parse(wheel).cxx11_abi)
            if not any(finding["verdict"] == "failed" for finding in findings):
                findings.append(self.try_import(folder, facts["driver"]["userspace_version"] is not None))
        return findings

    def try_import(self, folder: str, has_driver: bool) -> dict:
        """Import the module from the unpacked wheel, every symbol bound at once."""
        source = (
            "import importlib, sys\n"
            f"sys.path.insert(0, {folder!r})\n"
            # torch brings the libraries that its extensions need.
            "import torch\n"
            f"importlib.import_module({self.package.module!r})\n"
        )
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env["LD_BIND_NOW"] = "1"
        code, _output, errors = environment_python.run([self.python, "-I", "-B", "-c", source], IMPORT_TIMEOUT_S, environment=env)
        if code == 0:
            return abi.Finding("import", "ok", f"{self.package.module} imports with every symbol bound").as_dict()
        last = " ".join((errors.strip().splitlines() or [f"status {code}"])[-1].split())[:400]
        if "libcuda.so.1" in last and not has_driver:
            return abi.Finding("import", "not_run", "importing it needs the driver's libcuda.so.1, and this host has no driver").as_dict()
        return abi.Finding("import", "failed", f"importing {self.package.module} says: {last}", "ImportFailed").as_dict()

    def fetched(self, check_mode: bool) -> dict:
        """Bring a prebuilt wheel to the target, its sha256 compared; its name was judged before."""
        params = self.params
        bundle = params["indexes"].get("ca_bundle") or None
        source = extension_build.Source(params["wheel"], params["sha256"])
        if check_mode:
            return {"changed": True, "wheel": "", "actions": [f"Would fetch {source.filename}"]}
        folder = os.path.join(self.prefix, "sources")
        path, digest = extension_build.fetch(source, folder, lambda url: open_url(url, timeout=60, ca_path=bundle))
        return {"changed": True, "wheel": path, "sha256": digest, "actions": [f"Fetched {source.filename}"]}

    def recorded(self) -> dict | None:
        """What the environment's record says of this extension."""
        record = environments.read_record(self.environment) or {}
        return next((item for item in record.get("extensions") or [] if item.get("name") == self.package.name), None)

    def installed_state(self, torch: str) -> dict | None:
        """Version of the extension in the environment and why it is not what was recorded; None when it is not there."""
        there = extension_checks.find(self.environment, self.package.name)
        if there is None:
            return None
        return {"version": there.version, "faults": extension_checks.provenance_faults(self.recorded(), there, torch)}

    def installed(self, check_mode: bool) -> dict:
        """Put the accepted wheel into the environment and write down where it came from."""
        params = self.params
        wheel = params["wheel"]
        torch = self.identity()["full_version"]
        now = self.installed_state(torch)
        recorded = self.recorded() or {}
        if now and not now["faults"] and recorded.get("sha256") == params["sha256"]:
            return {"changed": False, "actions": []}
        before = f"{self.package.name}=={now['version']}" if now else ""
        why = "; ".join(now["faults"] if now else ["it was not there"]) or "another wheel was there"
        answer = {
            "changed": True,
            "actions": [f"Installed {os.path.basename(wheel)}: {why}"],
            "diff": {"before": before + "\n" if before else "", "after": f"{self.label.replace(' ', '==')}\n"},
        }
        if now and now["faults"]:
            answer["replaced"] = f"{self.package.name} {now['version']} in {self.environment}: {why}"
        if check_mode:
            return answer
        uv, _indexes = self.uv()
        # Neither index nor cache: both may hold a wheel of the same name that was built for another torch.
        uv.run(
            ["pip", "install", "--python", self.python, "--no-deps", "--no-index", "--offline", "--reinstall", "--no-cache", wheel],
            f"Installing {os.path.basename(wheel)}",
            cwd=self.prefix,
        )
        self.write_record(torch)
        return answer

    def write_record(self, torch: str) -> None:
        """Write the provenance of what was just installed into the environment's record, and the host-local lock of its extensions beside it."""
        params = self.params
        there = extension_checks.find(self.environment, self.package.name)
        if there is None:
            raise IronwheelError(f"{params['wheel']} was installed and is not in {self.environment}.", "EnvironmentIncomplete", "Run again.")
        entry = extension_build.read_json(os.path.join(os.path.dirname(params["wheel"]), "wheel.json")) or {}
        # An environment that somebody else made has no record of ours until now.
        record = environments.read_record(self.environment) or {"schema": environments.SCHEMA, "adopted": True}
        others = [item for item in record.get("extensions") or [] if item.get("name") != self.package.name]
        mine = {
            "name": self.package.name,
            "version": there.version,
            "module": self.package.module,
            "fingerprint": entry.get("fingerprint"),
            "fields": entry.get("fields"),
            "sha256": params["sha256"],
            "wheel": params["wheel"],
            "torch": torch,
            "record_sha256": extension_checks.record_sha256(there),
        }
        record["extensions"] = sorted([*others, mine], key=lambda item: item["name"])
        environments.write_atomically(os.path.join(self.environment, environments.RECORD_FILE), json.dumps(record, indent=1, sort_keys=True) + "\n")
        lines = [f"{item['name']} @ file://{item['wheel']} --hash=sha256:{item['sha256']}" for item in record["extensions"]]
        environments.write_atomically(os.path.join(self.environment, "extensions.txt"), "\n".join(lines) + "\n")

    def stopped(self) -> dict:
        """End a running build."""
        was = extension_build.stop(self.folder(self.params["fingerprint"]))
        return {"changed": was, "actions": ["Stopped the build"] if was else []}


def run_state(extension: Extension, state: str, check_mode: bool) -> dict:
    """The result of one step."""
    if state == "probed":
        return extension.probed()
    if state == "polled":
        return extension.polled()
    if state == "fetched":
        return extension.fetched(check_mode)
    if state == "accepted":
        return extension.accepted(check_mode)
    if state == "installed":
        return extension.installed(check_mode)
    if state == "started":
        return {"changed": True, "actions": [f"Would build {extension.label}"]} if check_mode else extension.started()
    if state == "stopped":
        return {"changed": True, "actions": ["Would stop the build"]} if check_mode else extension.stopped()
    raise IronwheelError("state 'present' is the action's, and the module was called without it.", "InternalError", "Use ironwheel.gpu.extension_wheel.")


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    # pyelftools is pure Python and lives in the tools environment.
    elf_modules.use_tools(environments.live_prefix(module.params["prefix"]))
    try:
        extension = Extension(module.params)
        state = module.params["state"]
        result = run_state(extension, state, module.check_mode)
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    except OSError as exc:
        where = exc.filename or module.params["environment"]
        module.fail_json(msg=f"{where}: {exc.strerror or exc}.", error="FileSystem", remedy="Check free space and permissions.")
    else:
        module.exit_json(**result)


ARGUMENTS = {
    "state": {"type": "str", "default": "present", "choices": list(STATES)},
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "description": {"type": "dict"},
    "environment": {"type": "path", "required": True},
    "prefix": {"type": "path"},
    "uv": {"type": "path"},
    "cuda_home": {"type": "path"},
    "architectures": {"type": "list", "elements": "str", "default": []},
    "source": {"type": "str"},
    "source_sha256": {"type": "str"},
    "indexes": {"type": "dict", "default": {}},
    "jobs": {"type": "int", "default": 0},
    "nvcc_threads": {"type": "int", "default": 0},
    "gate": {"type": "bool", "default": True},
    "memory_mib": {"type": "int", "default": 0},
    "cores": {"type": "int", "default": 0},
    "env": {"type": "dict", "default": {}},
    "build_user": {"type": "str"},
    "timeout": {"type": "int", "default": 0},
    "clear_orphans": {"type": "bool", "default": False},
    "fingerprint": {"type": "str"},
    "fields": {"type": "dict"},
    "wheel": {"type": "path"},
    "sha256": {"type": "str"},
    "origin": {"type": "dict", "default": {}},
    "wait": {"type": "int", "default": 0},
    "store": {"type": "str"},
    "prebuilt": {"type": "list", "elements": "dict", "default": []},
    "build_allowed": {"type": "bool", "default": True},
}


if __name__ == "__main__":
    main()
