# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a test host's image is made of.

A bare host: systemd, SSH, the distribution's Python and what every server install has. No pip, no venv, no compiler, so
that a role that forgets to bring something fails here.
"""

from __future__ import annotations

import hashlib
import json

PACKAGES = [
    "ca-certificates",
    "dbus",
    "iproute2",
    "openssh-server",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
]

SUITES = {"debian12": "bookworm", "debian13": "trixie"}

# Run in the new root after the packages are installed. Units that make no sense in a container are masked, so that
# "systemctl is-system-running" tells about the host's services.
CUSTOMIZE = [
    "rm -f /etc/ssh/ssh_host_*",
    "mkdir -p /root/.ssh && chmod 0700 /root/.ssh",
    "systemctl mask systemd-modules-load.service systemd-firstboot.service getty.target console-getty.service systemd-udevd.service",
    "systemctl enable ssh.service",
    "printf '[Unit]\\nBefore=ssh.service\\n[Service]\\nType=oneshot\\nExecStart=/usr/bin/ssh-keygen -A\\n[Install]\\nWantedBy=multi-user.target\\n'"
    " > /etc/systemd/system/ssh-host-keys.service && systemctl enable ssh-host-keys.service",
    "rm -f /etc/machine-id && touch /etc/machine-id",
]


def digest(name: str) -> str:
    """Digest of the recipe; an image whose label differs is built anew."""
    recipe = {"suite": SUITES[name], "packages": PACKAGES, "customize": CUSTOMIZE}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def tag(name: str) -> str:
    return f"localhost/ironwheel-test-{name}:{digest(name)}"
