#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_service
short_description: Run a vLLM unit with the configuration that is on disk, and wait until it serves
version_added: 0.1.0
description:
  - Enables the unit, starts it, or restarts it if the running process was started with another configuration than the one on
    disk, and waits until its health end point answers.
  - The environment file carries a stamp over everything that the server uses, and the running process has it in its
    environment. So a restart that an earlier, interrupted run left out is made up for, which a handler could not do.
  - A unit that fails or restarts by itself while it is waited for ends the wait with the last lines of its journal.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  unit:
    description: Name of the unit.
    type: str
    required: true
  environment_file:
    description: The unit's environment file, with the stamp.
    type: path
    required: true
  host:
    description: Address that the server listens on.
    type: str
    required: true
  port:
    description: Port that the server listens on.
    type: int
    required: true
  pending:
    description: Whether files of the unit would change; only in check mode, where they have not been written.
    type: bool
    default: false
  timeout:
    description: Seconds until the server must be healthy.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Serve
  ironwheel.gpu.vllm_service:
    unit: vllm.service
    environment_file: /etc/ironwheel/vllm.env
    host: 127.0.0.1
    port: 8000
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode, of C(daemon-reload), C(enable), C(start) and C(restart).
  returned: success
  type: list
  elements: str
waited_s:
  description: Seconds until the server was healthy.
  returned: success
  type: float
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import environment_python, server_process, serving
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts", "NeedDaemonReload", "Result")
COMMAND_TIMEOUT_S = 120


def systemctl(*arguments: str) -> str:
    """Run systemctl.

    Raises:
        IronwheelError: with what it said.
    """
    status, output, errors = environment_python.run(["systemctl", *arguments], COMMAND_TIMEOUT_S)
    if status != 0:
        raise IronwheelError(f"systemctl {' '.join(arguments)} failed: {(errors or output).strip()}", "SystemdFailed", "Look at systemctl status of the unit.")
    return output


def state(unit: str) -> dict[str, str]:
    """The unit's properties."""
    output = systemctl("show", unit, f"--property={','.join(PROPERTIES)}")
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def needed(seen: dict[str, str], running_stamp: str | None, wanted_stamp: str | None, pending: bool) -> list[str]:
    """What must be done so that the unit runs, enabled, with the configuration on disk."""
    actions = []
    if seen.get("NeedDaemonReload") == "yes" or seen.get("LoadState") != "loaded":
        actions.append("daemon-reload")
    if seen.get("UnitFileState") != "enabled":
        actions.append("enable")
    if seen.get("ActiveState") not in ("active", "activating", "reloading"):
        actions.append("start")
    elif pending or running_stamp != wanted_stamp:
        actions.append("restart")
    return actions


def journal(unit: str, secrets: dict[str, str]) -> str:
    """The last lines of the unit's journal, without secrets."""
    try:
        _status, output, _errors = environment_python.run(["journalctl", "-u", unit, "-n", str(server_process.LOG_LINES), "-o", "cat", "--no-pager"], 30)
    except IronwheelError as exc:
        return str(exc)
    return serving.redact(output.strip(), secrets)


def wait(unit: str, host: str, port: int, timeout: float, secrets: dict[str, str]) -> float:
    """Wait for health; stop as soon as the unit has failed or restarted by itself.

    Raises:
        IronwheelError: with the last lines of the journal.
    """
    begin = time.monotonic()
    restarts = state(unit).get("NRestarts")
    while True:
        if server_process.healthy(host, port):
            return round(time.monotonic() - begin, 1)
        seen = state(unit)
        if seen.get("ActiveState") in ("failed", "inactive") or seen.get("NRestarts") != restarts:
            how = f"state {seen.get('ActiveState')}/{seen.get('SubState')}, result {seen.get('Result')}"
            raise IronwheelError(
                f"{unit} does not stay up ({how}). Its last lines:\n{journal(unit, secrets)}",
                "ServiceFailed",
                f"Read journalctl -u {unit}; the environment before this one is brought back by the rollback of the role uv_venv.",
            )
        if time.monotonic() - begin > timeout:
            raise IronwheelError(
                f"{unit} was not healthy after {timeout:g} s (vllm_startup_timeout). Its last lines:\n{journal(unit, secrets)}",
                "ServiceNotHealthy",
                "Raise vllm_startup_timeout if it is still loading.",
            )
        time.sleep(1)


def converge(params: dict, check_mode: bool) -> dict:
    """Bring the unit to its configuration and wait for it."""
    unit = params["unit"]
    secrets = server_process.read_secrets(params["environment_file"])
    seen = state(unit)
    pid = int(seen.get("MainPID") or 0)
    running = server_process.process_environment(pid).get(serving.STAMP) if pid else None
    actions = needed(seen, running, secrets.get(serving.STAMP), params["pending"] and check_mode)
    # Reloading systemd's own view changes no service by itself.
    changed = bool(set(actions) - {"daemon-reload"})
    if check_mode:
        return {"changed": changed, "actions": actions, "waited_s": 0.0}
    if "daemon-reload" in actions:
        systemctl("daemon-reload")
        actions = ["daemon-reload", *(action for action in needed(state(unit), running, secrets.get(serving.STAMP), False) if action != "daemon-reload")]
        changed = len(actions) > 1
    if "enable" in actions:
        systemctl("enable", unit)
    if seen.get("ActiveState") == "failed":
        # A unit that hit its start limit would refuse to start.
        systemctl("reset-failed", unit)
    for action in ("start", "restart"):
        if action in actions:
            systemctl(action, unit)
    return {"changed": changed, "actions": actions, "waited_s": wait(unit, params["host"], params["port"], params["timeout"], secrets)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "environment_file": {"type": "path", "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "pending": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 1800},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**converge(module.params, module.check_mode))
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())


if __name__ == "__main__":
    main()
