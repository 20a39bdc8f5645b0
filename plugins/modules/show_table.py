#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: show_table
short_description: Show a table of plain text that fits 100 columns
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Prints a title, a table with wrapped cells and lines of text below it, as one piece of output.
  - Runs on the controller and changes nothing.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  title:
    description: Stands above the table.
    type: str
    default: ""
  columns:
    description: Headings of the columns. Empty for a table without a heading.
    type: list
    elements: str
    default: []
  rows:
    description: Rows, each a list of cells.
    type: list
    elements: list
    default: []
  lines:
    description: Lines of text below the table.
    type: list
    elements: str
    default: []
  width:
    description: Longest line, at least 40.
    type: int
    default: 100
  verbosity:
    description: Shows the table only when Ansible runs with at least so many C(-v).
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Show what was decided
  ironwheel.gpu.show_table:
    title: Decisions
    columns: [what, value]
    rows:
      - [torch, 2.14.0]
      - [CUDA, "13.0"]
"""

RETURN = r"""
shown:
  description: Whether the table was shown.
  returned: always
  type: bool
"""
