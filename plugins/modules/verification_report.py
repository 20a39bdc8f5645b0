#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verification_report
short_description: Write the verification reports of all hosts on the controller
version_added: 0.1.0
description:
  - Writes C(<host>.json) for each host of the play and C(verification.json) with all of them into a folder on the controller, and
    returns the rows of a summary table. A host without a report, because it failed before or was not reached, is V(not_run).
  - A report is no state of a host, so writing it is no change; it is written in check mode too.
  - Runs on the controller alone. Use it with C(run_once).
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
  directory:
    description: Folder on the controller, relative to the working directory of the run.
    type: str
    default: reports
"""

EXAMPLES = r"""
- name: Write the reports
  ironwheel.gpu.verification_report:
    directory: reports
  run_once: true
"""

RETURN = r"""
verdict:
  description: V(ok) if every host's is.
  returned: success
  type: str
columns:
  description: Headings of the summary.
  returned: success
  type: list
  elements: str
rows:
  description: One row a host.
  returned: success
  type: list
  elements: list
file:
  description: The file with all reports.
  returned: success
  type: str
failures:
  description: For each host that is not V(ok), why.
  returned: success
  type: dict
"""
# The work is done on the controller by the action plugin of the same name.
