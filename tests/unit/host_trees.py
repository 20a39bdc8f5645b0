# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts as small trees: a fixture of a few lines becomes a root directory, and a stand-in for nvidia-smi answers like the real one."""

from __future__ import annotations

import json
from pathlib import Path

HOSTS = Path(__file__).parent / "fixtures" / "hosts"
CASES = Path(__file__).parent / "fixtures" / "cases"


def case(name: str) -> dict:
    """A reported case: ``{id, input, expected}``."""
    return json.loads((CASES / f"{name}.json").read_text())


def load(name: str) -> dict:
    """The fixture of a host."""
    return json.loads((HOSTS / f"{name}.json").read_text())


def grow(root: Path, fixture: dict) -> Path:
    """Make the tree of a fixture under ``root``.

    Keys: ``files`` {path: text or list of lines}, ``hex`` {path: bytes in hexadecimal}, ``links`` {path: target}, ``folders`` [path], ``pci`` [{address,
    vendor, device, class, driver, physfn, config}], ``processes`` [{pid, ppid, comm, argv, cwd, uid, rss_kib, state, start_ticks}].
    """

    def place(path: str) -> Path:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    for path, content in fixture.get("files", {}).items():
        place(path).write_text(content if isinstance(content, str) else "\n".join(content) + "\n")
    for path, content in fixture.get("hex", {}).items():
        place(path).write_bytes(bytes.fromhex(content))
    for path in fixture.get("folders", []):
        place(path).mkdir(parents=True, exist_ok=True)
    for device in fixture.get("pci", []):
        folder = f"/sys/bus/pci/devices/{device['address']}"
        place(f"{folder}/vendor").write_text(f"0x{device.get('vendor', '10de')}\n")
        place(f"{folder}/device").write_text(f"0x{device['device']}\n")
        place(f"{folder}/class").write_text(f"0x{device['class']}00\n")
        if "driver" in device:
            place(f"{folder}/driver").symlink_to(f"../../../bus/pci/drivers/{device['driver']}")
        if "physfn" in device:
            place(f"{folder}/physfn").symlink_to(f"../{device['physfn']}")
        if "config" in device:
            place(f"{folder}/config").write_bytes(bytes.fromhex(device["config"]))
    for process in fixture.get("processes", []):
        folder = f"/proc/{process['pid']}"
        place(f"{folder}/comm").write_text(process["comm"] + "\n")
        place(f"{folder}/cmdline").write_text("\0".join(process.get("argv", [process["comm"]])) + "\0")
        uid, rss = process.get("uid", 0), process.get("rss_kib", 0)
        lines = f"Name:\t{process['comm']}\nState:\t{process.get('state', 'S')} (x)\nPPid:\t{process['ppid']}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        place(f"{folder}/status").write_text(lines + (f"VmRSS:\t{rss} kB\n" if rss else ""))
        place(f"{folder}/stat").write_text(f"{process['pid']} ({process['comm']}) S " + "0 " * 18 + f"{process.get('start_ticks', 0)} 0\n")
        if "cwd" in process:
            place(f"{folder}/cwd").symlink_to(process["cwd"])
    for path, target in fixture.get("links", {}).items():
        place(path).symlink_to(target)
    return root


class Tools:
    """Answers commands as ``run`` of ``read_host``, and remembers them.

    ``smi``: ``{unknown: [fields], rows: [{field: value}], stderr, fail: [status, text], banner, list}``; ``commands``: ``[[part of the command, status,
    stdout]]``.
    """

    def __init__(self, fixture: dict) -> None:
        self.smi = fixture.get("smi")
        self.commands = fixture.get("commands", [])
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[0].endswith("nvidia-smi") and self.smi is not None:
            return self._smi(argv[1:])
        line = " ".join(argv)
        for part, status, out in self.commands:
            if part in line:
                return status, out, ""
        return 127, "", "not found"

    def _smi(self, arguments: list[str]) -> tuple[int, str, str]:
        if "fail" in self.smi:
            return self.smi["fail"][0], self.smi["fail"][1], ""
        if arguments and arguments[0].startswith("--query-gpu="):
            fields = arguments[0].split("=", 1)[1].split(",")
            for field in fields:
                if field in self.smi.get("unknown", []):
                    return 2, f'Field "{field}" is not a valid field to query.\n', ""
            rows = [", ".join(str(row.get(field, "[N/A]")) for field in fields) for row in self.smi["rows"]]
            return 0, "\n".join(rows) + "\n", self.smi.get("stderr", "")
        if arguments == ["-L"]:
            return 0, self.smi.get("list", ""), ""
        return 0, self.smi.get("banner", ""), ""
