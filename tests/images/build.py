# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the test hosts' images from the distribution's own packages (mmdebstrap, podman import).

``build.py [NAME...]`` builds those that are missing, all by default. An image is named after the digest of its recipe, so a
changed recipe makes a new one. It also makes the SSH key that the hosts accept, in .cache/ssh.

The package mirror and apt's network settings are the controller's own and are read when the image is built;
IRONWHEEL_TEST_MIRROR names another mirror. On a controller that is not Debian, mmdebstrap's default mirror is used.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import recipe

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def mirror() -> str | None:
    """The controller's first Debian mirror, or None for mmdebstrap's default."""
    named = os.environ.get("IRONWHEEL_TEST_MIRROR")
    if named:
        return named
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if not re.search(r"^ID=debian$", release, re.MULTILINE):
        return None
    for path in sorted(Path("/etc/apt").glob("sources.list.d/*.sources")) + [Path("/etc/apt/sources.list")]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        found = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", text, re.MULTILINE) or re.search(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+/debian/?)\s", text, re.MULTILINE)
        if found:
            return found.group(1)
    return None


def apt_options() -> list[str]:
    """Proxy, certificate and validity settings of the controller's apt, as lines of an apt.conf."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    wanted = re.compile(r"^Acquire::(https?::(Proxy|CAInfo|CAPath|Verify-Peer|Timeout)|Check-Valid-Until|Check-Date|Retries|Max-FutureTime)\b", re.IGNORECASE)
    return [line for line in dump.splitlines() if wanted.match(line) and not line.endswith('"";')]


def exists(image: str) -> bool:
    return subprocess.run(["podman", "image", "exists", image], check=False).returncode == 0


def build(name: str) -> None:
    image = recipe.tag(name)
    if exists(image):
        print(f"image {name}: {image} is there")
        return
    began = time.monotonic()
    print(f"image {name}: building {image}", flush=True)
    with tempfile.TemporaryDirectory(prefix="image-", dir=CACHE) as folder:
        archive = Path(folder) / "root.tar"
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(recipe.PACKAGES)}", f"--keyring={KEYRING}"]
        command += [f"--aptopt={option}" for option in apt_options()]
        command += [f"--customize-hook=chroot \"$1\" sh -c {shlex.quote(step)}" for step in recipe.CUSTOMIZE]
        command += [recipe.SUITES[name], str(archive)]
        source = mirror()
        # The suite's security and update pockets are left to mmdebstrap where it chooses the mirror itself.
        command += [source] if source else []
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        subprocess.run(
            ["podman", "import", "--quiet", "--change", 'CMD ["/lib/systemd/systemd"]', "--change", "STOPSIGNAL SIGRTMIN+3", str(archive), image],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    print(f"image {name}: built in {time.monotonic() - began:.0f} s", flush=True)


def make_key() -> None:
    key = CACHE / "ssh" / "id_ed25519"
    if not key.exists():
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ironwheel-test", "-f", str(key)], check=True)


def main() -> int:
    names = sys.argv[1:] or list(recipe.SUITES)
    unknown = [name for name in names if name not in recipe.SUITES]
    if unknown:
        print(f"build.py: unknown image {', '.join(unknown)}; known: {', '.join(recipe.SUITES)}", file=sys.stderr)
        return 2
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build each image once
        make_key()
        for name in names:
            build(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
