# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold dpkg's locks, as unattended-upgrades does: ``hold_lock.py SECONDS``, counted from when somebody wants them, at most ten minutes in all."""

import fcntl
import sys
import time
from pathlib import Path

LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")


def somebody_waits() -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"apt-mark") or words[0].endswith(b"apt-get") and b"install" in words and b"-s" not in words:
            return True
    return False


handles = [open(path, "w") for path in LOCKS]  # noqa: SIM115 (held until the end)
for handle in handles:
    fcntl.lockf(handle, fcntl.LOCK_EX)
end = time.monotonic() + 600
while time.monotonic() < end and not somebody_waits():
    time.sleep(0.05)
time.sleep(float(sys.argv[1]))
