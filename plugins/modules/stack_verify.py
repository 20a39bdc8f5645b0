#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_verify
short_description: Verify a host's whole stack, from the driver to a served completion
version_added: 0.1.0
description:
  - Holds what the host really has against its plan and returns one verdict a check and one for the host. A check that cannot
    run is V(not_run) with its reason, never V(ok).
  - Driver, GPUs and toolkits are looked at anew; packages, imports and arithmetic are asked of the environment's own Python, in
    processes that end with the check.
  - An instance that runs as a service is asked for a completion. Where there is no service, the server is started for the check
    with O(launch) and ended after it, which is no change.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
    details: In check mode no server is started, and what earlier tasks would have made is V(not_run).
  diff_mode:
    support: none
options:
  name:
    description: Name of the host in the report.
    type: str
    required: true
  plan:
    description: The plan.
    type: dict
    required: true
  environment:
    description: The environment, with the keys C(path), C(link) and C(created). Without C(path), the one that the link names.
    type: dict
    required: true
  launch:
    description: What M(ironwheel.gpu.vllm_launch) returned, with the keys C(instances) and C(problem).
    type: dict
    default: {}
  imports:
    description: Further modules that must import.
    type: list
    elements: str
    default: []
  serve:
    description: Whether serving is checked.
    type: bool
    default: true
  numerics:
    description: Whether the kernels of flash-attn are held against a float64 reference.
    type: bool
    default: true
  import_timeout:
    description: Seconds that importing one module may take.
    type: int
    default: 300
  startup_timeout:
    description: Seconds until a server that is started for the check must be healthy.
    type: int
    default: 1800
  request_timeout:
    description: Seconds that one request may take. The first one may compile.
    type: int
    default: 300
  gpu_timeout:
    description: Seconds that the arithmetic checks may take.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Verify the host
  ironwheel.gpu.stack_verify:
    name: "{{ inventory_hostname }}"
    plan: "{{ preflight_plan }}"
    environment: "{{ uv_venv_environment }}"
    launch: "{{ vllm_result }}"
  register: verification
"""

RETURN = r"""
report:
  description: The verification report, schema 1.
  returned: success
  type: dict
  contains:
    schema:
      description: V(1).
      type: int
    host:
      description: Name of the host.
      type: str
    verdict:
      description: V(failed) if a check failed, V(not_run) if none was ok, otherwise V(ok).
      type: str
    checks:
      description: One entry a check, with C(name), C(subject), C(verdict), C(reason) and C(value).
      type: list
      elements: dict
    versions:
      description: Versions found, of driver, toolkits, Python, torch and vLLM.
      type: dict
    environment:
      description: Path of the environment.
      type: str
    served:
      description: For each instance the address, the model, and the seconds until healthy and for the completion.
      type: dict
failures:
  description: The failed checks, one line each.
  returned: success
  type: list
  elements: str
"""

import contextlib
import os
import time
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import (
    elf_modules,
    environment_python,
    environments,
    extension_checks,
    packages,
    server_process,
    serving,
    verification,
)
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host import read_host, run_command

UNIT_PROPERTIES = "ActiveState,SubState,UnitFileState,NRestarts,Result,MainPID"
TOOL_TIMEOUT_S = 60
PROMPT = "The quick brown fox"


class Verifier:
    """Collects the checks of one host. Every observation that can fail becomes a check, none an exception."""

    def __init__(self, params: dict, check_mode: bool) -> None:
        self.params = params
        self.check_mode = check_mode
        self.plan = params["plan"]
        self.link = params["environment"].get("link") or ""
        self.path = params["environment"].get("path") or ""
        self.checks: list[dict] = []
        self.versions: dict = {}
        self.torch: dict | None = None
        self.served: dict = {}
        prefix = os.path.dirname(self.link) if self.link else None
        facts_of = {"os", "user", "memory", "gpus", "driver", "toolkits"}
        self.host = read_host(run=partial(run_command, timeout_s=TOOL_TIMEOUT_S), paths={"prefix": prefix}, subset=facts_of)

    def verify(self) -> dict:
        """All checks; the report."""
        self.hardware()
        if self.find_environment():
            self.python()
            self.extensions()
        if self.params["serve"]:
            self.serving()
        return verification.report(self.params["name"], self.checks, self.versions, self.path or None, self.served)

    def hardware(self) -> None:
        """Driver, GPUs and toolkits."""
        self.checks.append(verification.driver(self.host, self.plan))
        count, error = None, ""
        if self.host.get("gpus"):
            try:
                status, output, errors = environment_python.run(["nvidia-smi", "-L"], TOOL_TIMEOUT_S)
                count = sum(line.startswith("GPU ") for line in output.splitlines()) if status == 0 else None
                error = (errors or output).strip()[:300]
            except IronwheelError as exc:
                error = exc.message
            self.versions["driver"] = (self.host.get("driver") or {}).get("module_version")
            self.versions["gpus"] = [gpu.get("name") for gpu in self.host["gpus"]]
        self.checks.append(verification.gpu_count(self.host, count, error))
        self.checks += verification.toolkits(self.plan, self.host, self.check_mode)
        self.versions["toolkits"] = [seen["nvcc_version"] for seen in self.host.get("toolkits") or [] if seen.get("nvcc_version")]

    def find_environment(self) -> bool:
        """The environment in use; False when there is none to ask."""
        prefix, name = os.path.split(self.link)
        resolved = environments.linked(prefix, name) if self.link else None
        if resolved is None and self.link and os.path.exists(os.path.join(self.link, environment_python.PYTHON)):
            # An environment that somebody else made is verified too; its record is missing and said to be.
            resolved = os.path.realpath(self.link)
        expected = bool(self.path)
        if resolved is None and self.check_mode:
            self.checks.append(verification.check("environment", self.link or "environment", verification.NOT_RUN, "there is none yet (check mode)"))
            return False
        wanted = self.path
        self.path = resolved or ""
        self.checks.append(verification.environment(wanted, self.link, resolved, expected and not self.check_mode))
        return resolved is not None

    def ask(self, request: dict, timeout: float) -> tuple[dict | None, str]:
        """An answer of the environment's Python, or None and why there is none."""
        try:
            return environment_python.probe(self.path, request, timeout), ""
        except IronwheelError as exc:
            return None, exc.message

    def python(self) -> None:
        """Interpreter, packages, imports, torch and what it computes."""
        timeout = self.params["import_timeout"]
        record = environments.read_record(self.path)
        # Extensions may be in an environment of somebody else's, whose other packages are not ours to judge.
        locked = None if (record or {}).get("adopted") else record
        drift = extension_checks.drift(self.path, locked.get("packages") or {}, locked) if locked else []
        self.checks.append(verification.packages(locked, drift, [environments.describe_drift(item) for item in drift]))
        wants_torch = self.plan.get("torch") is not None
        identity, error = self.ask({"task": "torch"}, timeout) if wants_torch else self.ask({"task": "packages"}, timeout)
        self.checks.append(verification.interpreter(self.plan, identity, error))
        self.versions["python"] = (identity or {}).get("python")
        if wants_torch:
            self.torch = identity if (identity or {}).get("full_version") else None
            self.versions["torch"] = (identity or {}).get("full_version")
            self.checks.append(verification.torch_identity(self.plan, identity, error))
            self.checks += verification.torch_family(identity)
            self.checks += verification.torch_architectures(self.plan, self.host, identity)
            self.compute()
        vllm = self.plan.get("vllm")
        if vllm:
            answer, error = self.ask({"task": "import", "module": "vllm"}, timeout)
            self.checks.append(verification.imported("vllm", answer, error))
            self.versions["vllm"] = (record or {}).get("packages", {}).get(vllm.get("package")) or (answer or {}).get("version")
        for module in self.params["imports"]:
            self.checks.append(verification.imported(module, *self.ask({"task": "import", "module": module}, timeout)))

    def compute(self) -> None:
        """Matrix products on each GPU."""
        answer, error = None, ""
        if self.host.get("gpus"):
            try:
                answer = environment_python.gpu_check(self.path, {"task": "matmul"}, self.params["gpu_timeout"])
            except IronwheelError as exc:
                error = exc.message
        self.checks += verification.gpu_compute(self.host, answer, error)

    def extensions(self) -> None:
        """Each planned extension is the recorded wheel, fits torch by its symbols, and loads; flash-attn computes rightly."""
        record = environments.read_record(self.path) or {}
        by_name = {packages.normalize(str(item.get("name"))): item for item in record.get("extensions") or [] if isinstance(item, dict)}
        adopted = not record or bool(record.get("adopted"))
        for extension in self.plan.get("extensions") or []:
            name = extension["name"]
            recorded = by_name.get(packages.normalize(name))
            installed = extension_checks.find(self.path, name)
            torch = self.torch["full_version"] if self.torch else None
            faults = extension_checks.provenance_faults(recorded, installed, torch) if installed else None
            if faults is not None and recorded is not None and not adopted:
                faults += extension_checks.plan_faults(recorded, extension.get("fingerprint_fields"))
            self.checks.append(verification.provenance(extension, recorded, faults, adopted))
            if installed is None:
                continue
            self.checks.append(verification.symbols(name, *self.symbols(installed)))
            self.load(extension)
            if packages.normalize(name) == "flash-attn" and self.params["numerics"]:
                answer, error = None, ""
                if self.host.get("gpus"):
                    try:
                        answer = environment_python.gpu_check(self.path, {"task": "flash_attn"}, self.params["gpu_timeout"])
                    except IronwheelError as exc:
                        error = exc.message
                self.checks.append(verification.numerics("numerics", name, self.host, answer, error))

    def symbols(self, installed: environments.Installed) -> tuple[list[dict] | None, str]:
        """Findings over the compiled modules of an extension, or None and why there are none."""
        if self.torch is None:
            return None, "torch does not import"
        site = environments.site_packages(self.path)
        try:
            return extension_checks.judge_files(extension_checks.compiled_modules(installed), [site] if site else [], self.torch, self.host), ""
        except IronwheelError as exc:
            if exc.error == "ToolMissing":
                return None, f"{exc.message} {exc.remedy}"
            return [{"module": installed.name, "verdict": verification.FAILED, "reason": exc.message}], ""

    def load(self, extension: dict) -> None:
        """Import the compiled module of an extension; torch first, which brings the libraries that it needs."""
        name = extension["name"]
        try:
            module = extension.get("module") or packages.describe(name).module
        except IronwheelError:
            module = packages.normalize(name).replace("-", "_")
        answer, error = self.ask({"task": "import", "module": module, "after": "torch"}, self.params["import_timeout"])
        has_driver = (self.host.get("driver") or {}).get("userspace_version") is not None
        self.checks.append(verification.extension_imported(name, module, answer, error, has_driver))

    def serving(self) -> None:
        """Each instance answers; one that is no service is started for it."""
        instances = self.params["launch"].get("instances") or []
        if self.plan.get("vllm") is None:
            return
        problem = self.params["launch"].get("problem")
        if problem:
            self.checks.append(verification.check("launch", "vLLM", verification.FAILED, problem))
        elif not instances:
            self.checks.append(verification.check("service", "vLLM", verification.NOT_RUN, "no instance is described"))
        for instance in instances:
            try:
                secrets = server_process.read_secrets(instance["environment_file"])
                if instance.get("service"):
                    self.ask_service(instance, secrets)
                else:
                    self.ask_temporary(instance, secrets)
            except IronwheelError as exc:
                self.checks.append(verification.check("health", instance["name"], verification.FAILED, exc.message))

    def ask_service(self, instance: dict, secrets: dict) -> None:
        """A unit, and the server behind it."""
        status, output, errors = environment_python.run(["systemctl", "show", instance["unit"], f"--property={UNIT_PROPERTIES}"], TOOL_TIMEOUT_S)
        if status != 0:
            raise IronwheelError(f"systemctl show {instance['unit']} failed: {errors.strip()}", "SystemdFailed")
        seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        if self.check_mode and seen.get("ActiveState") != "active":
            self.checks.append(verification.service(instance["unit"], None, "the service does not run yet (check mode)"))
            return
        self.checks.append(verification.service(instance["unit"], seen))
        running = server_process.process_environment(int(seen.get("MainPID") or 0))
        self.checks.append(verification.configuration(instance["unit"], secrets.get(serving.STAMP), running.get(serving.STAMP)))
        begin = time.monotonic()
        while not server_process.healthy(instance["host"], instance["port"]):
            # A service that was started a moment ago, by the host or by hand, gets its time; one that is down does not.
            if seen.get("ActiveState") != "active" or time.monotonic() - begin > self.params["startup_timeout"]:
                self.checks.append(verification.check("health", instance["name"], verification.FAILED, f"/health on port {instance['port']} does not answer"))
                return
            time.sleep(1)
        self.ask_server(instance, secrets, None)

    def ask_temporary(self, instance: dict, secrets: dict) -> None:
        """A server for the time of the check."""
        reason = "no systemd or no root on this host: the server runs only while it is verified"
        self.checks.append(verification.service(instance["unit"], None, reason))
        if self.check_mode or not self.path:
            self.checks.append(
                verification.check("health", instance["name"], verification.NOT_RUN, "in check mode and without an environment no server is started")
            )
            return
        owner = server_process.listener(instance["port"])
        if owner is not None:
            raise IronwheelError(f"port {instance['port']} (vllm_port) is already taken by {owner['command']} (process {owner['pid']}).", "PortInUse")
        variables = {**instance["environment"], **{name: value for name, value in secrets.items() if name in serving.SECRETS}}
        try:
            with server_process.running(instance["argv"], variables, instance["working_directory"], instance.get("user")) as server:
                waited = server.wait_healthy(instance["host"], instance["port"], self.params["startup_timeout"])
                self.ask_server(instance, secrets, waited)
        except IronwheelError as exc:
            raise IronwheelError(serving.redact(exc.message, secrets), exc.error, exc.remedy) from exc

    def ask_server(self, instance: dict, secrets: dict, waited: float | None) -> None:
        """Health, list of models, a completion, and that the key is asked for."""
        name, host, port = instance["name"], instance["host"], instance["port"]
        key = secrets.get("VLLM_API_KEY", "")
        timeout = self.params["request_timeout"]
        reason = "answers" if waited is None else f"answers, {waited:.0f} s after the start"
        self.checks.append(verification.check("health", name, verification.OK, reason))
        model = instance["served_model_name"]
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        try:
            self.checks.append(verification.models(name, model, *server_process.request(host, port, "GET", "/v1/models", timeout, key)))
            begin = time.monotonic()
            status, answer = server_process.request(host, port, "POST", "/v1/completions", timeout, key, body)
            took = time.monotonic() - begin
            self.checks.append(verification.completion(name, status, answer))
            refused = server_process.request(host, port, "GET", "/v1/models", timeout)[0] if key else None
            self.checks.append(verification.authentication(name, bool(key), refused, serving.is_loopback(host)))
        except OSError as exc:
            self.checks.append(verification.check("completion", name, verification.FAILED, f"the request failed: {exc}"))
            return
        times = {"completion_s": round(took, 2), **({} if waited is None else {"startup_s": round(waited, 1)})}
        self.served[name] = {"host": host, "port": port, "model": model, **times}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "environment": {"type": "dict", "required": True},
            "launch": {"type": "dict", "default": {}},
            "imports": {"type": "list", "elements": "str", "default": []},
            "serve": {"type": "bool", "default": True},
            "numerics": {"type": "bool", "default": True},
            "import_timeout": {"type": "int", "default": 300},
            "startup_timeout": {"type": "int", "default": 1800},
            "request_timeout": {"type": "int", "default": 300},
            "gpu_timeout": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    try:
        # A request must never go to a proxy, nor a probe inherit a preloaded library.
        with contextlib.suppress(KeyError):
            del os.environ["LD_PRELOAD"]
        # pyelftools is pure Python and lives in the tools environment.
        elf_modules.use_tools(os.path.dirname(module.params["environment"].get("link") or ""))
        report = Verifier(module.params, module.check_mode).verify()
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    module.exit_json(changed=False, report=report, failures=verification.failures(report["checks"]))


if __name__ == "__main__":
    main()
