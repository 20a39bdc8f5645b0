# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading a host into host facts, schema 1 (docs/architecture.md): which sections there are and how they hang together."""

from __future__ import annotations

import os

from ansible_collections.ironwheel.gpu.plugins.module_utils import gpus, host_gpu, host_software, host_system
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import Host, Run, printable, run_command

SCHEMA = 1
#: What ``subset`` can name.
SECTIONS = (
    "os",
    "user",
    "cpu",
    "memory",
    "disk",
    "gpus",
    "driver",
    "toolkits",
    "compilers",
    "pythons",
    "uv",
    "environment",
    "build_leftovers",
)

__all__ = ["SCHEMA", "SECTIONS", "default_paths", "read_host", "run_command"]


def default_paths(is_root: bool, home: str | None) -> dict[str, str]:
    """Where things lie unless told otherwise: under /opt/ironwheel for root, in the user's home otherwise."""
    prefix = "/opt/ironwheel" if is_root or not home else f"{home}/.local/share/ironwheel"
    return {"prefix": prefix, "cache": f"{prefix}/cache", "build": f"{prefix}/builds"}


def complete_paths(given: dict[str, str | None], defaults: dict[str, str]) -> dict[str, str]:
    """``prefix``, ``cache`` and ``build``: what is given, else the default, else (for the latter two) below the prefix that is given."""
    prefix = (given.get("prefix") or defaults["prefix"]).rstrip("/") or "/"
    below = {"prefix": prefix, "cache": f"{prefix.rstrip('/')}/cache", "build": f"{prefix.rstrip('/')}/builds"}
    return {**below, **{name: path for name, path in given.items() if path and name != "prefix"}}


def read_host(
    root: str = "/",
    run: Run | None = None,
    paths: dict[str, str] | None = None,
    subset: set[str] | None = None,
    environ: dict[str, str] | None = None,
) -> dict:
    """Host facts of the host under ``root``.

    Args:
        root: root directory; another one than ``/`` is read from its files alone unless ``run`` is given.
        run: runs a command given as a list and returns ``(status, stdout, stderr)``; None runs nothing. See ``host_files.run_command``.
        paths: ``prefix``, ``cache`` and ``build``; what is missing gets its default.
        subset: names of ``SECTIONS`` to read; all by default. Keys of other sections are left out.
        environ: environment variables; by default those of this process, or of the process in ``root``'s /proc/self.

    Returns:
        The dictionary described in docs/architecture.md. Memory and disk in MiB, ages in seconds. Nothing that the host's files or
        tools contain makes this raise: what cannot be read is None, with an entry in ``warnings``.
    """
    host = Host(root=os.path.abspath(root), run=run)
    if environ is not None:
        host.environ = dict(environ)
    elif host.live:
        host.environ = dict(os.environ)
    else:
        host.environ = host_software.parse_environ(host.text("/proc/self/environ", quiet=True) or "")
    wanted = set(SECTIONS) if subset is None else set(subset)

    facts: dict = {"schema": SCHEMA}

    def section(name: str, read, fallback):
        # The readers are written not to raise; should one meet what nobody foresaw, the other facts must still come.
        try:
            return read()
        except Exception as exc:
            host.warn("SectionUnreadable", f"The facts '{name}' could not be read: {type(exc).__name__}: {exc}.", "Report this with the host's files.")
            return fallback

    # These are cheap and others need them.
    system = section("os", lambda: host_system.read_os(host), {})
    user = section("user", lambda: host_system.read_user(host), {})
    places = complete_paths(paths or {}, default_paths(bool(user.get("root")), user.get("home")))
    prefix = places["prefix"]

    facts["os"], facts["user"] = system or None, user or None
    if "cpu" in wanted:
        facts["cpu"] = section("cpu", lambda: host_system.read_cpu(host), None)
    memory = section("memory", lambda: host_system.read_memory(host, bool(system.get("wsl"))), None) if wanted & {"memory", "gpus"} else None
    if "disk" in wanted:
        facts["disk"] = section("disk", lambda: host_system.read_disk(host, [places["prefix"], places["cache"], places["build"]]), [])
    if wanted & {"gpus", "driver"}:
        devices = section("gpus", lambda: host_gpu.read_pci(host), [])
        smi = section("gpus", lambda: host_gpu.query_smi(host), host_gpu.Smi())
        total = (memory or {}).get("total_mib")
        found = section("gpus", lambda: host_gpu.read_gpus(host, devices, smi, system.get("container"), total), [])
        if "gpus" in wanted:
            facts["gpus"] = found
            facts["nvswitches"] = section("nvswitches", lambda: host_gpu.count_nvswitches(host, devices), 0)
            facts["vgpu"] = any(device["vgpu"] for device in devices) or any(gpus.is_vgpu_name(gpu["name"]) for gpu in found)
            if memory and memory["available_mib"] is not None and any(gpus.is_grace(gpu["name"]) for gpu in found):
                memory["usable_mib"] = max(0, min(memory["usable_mib"], memory["available_mib"] - host_gpu.grace_memory_mib(host)))
        if "driver" in wanted:
            facts["driver"] = section("driver", lambda: host_gpu.read_driver(host, system, devices, smi, len(found)), None)
    if "memory" in wanted:
        facts["memory"] = memory
    if "toolkits" in wanted:
        facts["toolkits"] = section("toolkits", lambda: host_software.read_toolkits(host, prefix), [])
    if "compilers" in wanted:
        facts["compilers"] = section("compilers", lambda: host_software.read_compilers(host), None)
    if "pythons" in wanted:
        facts["pythons"] = section("pythons", lambda: host_software.read_pythons(host, prefix, user.get("home")), [])
    if "uv" in wanted:
        facts["uv"] = section("uv", lambda: host_software.read_uv(host, prefix, user.get("home")), None)
    if "environment" in wanted:
        facts["environment"] = section("environment", lambda: host_software.read_environment(host.environ), {})
        facts["ca_bundle"] = section("ca_bundle", lambda: host_software.read_ca_bundle(host), None)
    if "build_leftovers" in wanted:
        facts["build_leftovers"] = section("build_leftovers", lambda: host_software.read_leftovers(host, prefix), [])
    for name in ("os", "user"):
        if name not in wanted:
            del facts[name]
    facts["warnings"] = host.warnings
    return printable(facts)
