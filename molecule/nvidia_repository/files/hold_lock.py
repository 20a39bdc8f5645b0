# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold dpkg's locks for some seconds, as unattended-upgrades does: ``hold_lock.py SECONDS FILE…``."""

import fcntl
import sys
import time

handles = [open(path, "w") for path in sys.argv[2:]]  # noqa: SIM115 (held until the end)
for handle in handles:
    fcntl.lockf(handle, fcntl.LOCK_EX)
time.sleep(float(sys.argv[1]))
