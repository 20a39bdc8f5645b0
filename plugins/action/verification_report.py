# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``ironwheel.gpu.verification_report``: the reports of all hosts of the play, as files and as a table."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.ironwheel.gpu.plugins.module_utils import verification
from ansible_collections.ironwheel.gpu.plugins.module_utils.environments import write_atomically
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

_ARGUMENTS = {"directory": {"type": "str", "default": "reports"}}


class ActionModule(ActionBase):
    """Collects ``stack_verify_report`` of every host of the play."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        del tmp
        _validation, arguments = self.validate_argument_spec(argument_spec=_ARGUMENTS)
        task_vars = task_vars or {}
        hosts = list(task_vars.get("ansible_play_hosts_all") or [task_vars["inventory_hostname"]])
        hostvars = task_vars["hostvars"]
        reports = {}
        for host in hosts:
            found = hostvars[host].get("stack_verify_report")
            # Through JSON, so that no template or tagged string of the run ends up in a file.
            reports[host] = json.loads(json.dumps(found)) if found else verification.missing_report(host)
        try:
            file = write_reports(reports, arguments["directory"])
        except OSError as exc:
            error = IronwheelError(
                f"report_dir is '{arguments['directory']}', where the reports cannot be written: {exc}.",
                "ReportNotWritable",
                "Set report_dir to a directory that the user who runs Ansible may write.",
            )
            return {**result, "failed": True, **error.as_result()}
        summary = verification.summary(reports, shown_folder(os.path.dirname(file)))
        return {**result, "changed": False, "file": file, **summary}


def shown_folder(path: str) -> str:
    """A folder as one would type it: relative when it lies below the working directory."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def file_name(host: str) -> str:
    """A host's name as a file name: nothing in it can lead out of the folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", host).lstrip(".") + ".json"


def write_reports(reports: dict[str, dict], directory: str) -> str:
    """Write one file a host and the combined one; returns the path of the latter.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder = os.path.abspath(os.path.expanduser(directory))
    os.makedirs(folder, exist_ok=True)
    for host, report in reports.items():
        write_atomically(os.path.join(folder, file_name(host)), json.dumps(report, indent=2, sort_keys=True) + "\n")
    combined = os.path.join(folder, "verification.json")
    whole = {"schema": verification.SCHEMA, "verdict": verification.run_verdict(reports), "hosts": reports}
    write_atomically(combined, json.dumps(whole, indent=2, sort_keys=True) + "\n")
    return combined
