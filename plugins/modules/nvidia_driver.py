#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver
short_description: The NVIDIA driver of a host in one version and flavour, built for the running kernel
version_added: 0.1.0
description:
  - Brings the whole set of driver packages to one version, up or down, and keeps it there with an apt pin and holds, or with
    dnf module streams and versionlock. Holds that stand in the way are lifted for the transaction and set again.
  - Installs the headers of the running kernel first and never changes the kernel; a transaction that would is refused after
    simulating it.
  - Checks that dkms built the module for the running kernel, and names the reason from its log when it did not.
  - Reports a Secure Boot key that is not enrolled before nouveau is put aside and before any reboot.
  - Loads the module when no other one is in its way, and otherwise says that a reboot is needed. It never reboots.
  - The Ansible modules for packages cannot move a set of packages down, simulate a transaction, or lift and set holds, which is why this
    module speaks to apt and dnf itself.
author:
  - ironwheel.gpu contributors (@ironwheel)
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  host:
    description: Host facts, of which C(os), C(gpus), C(nvswitches) and C(vgpu) are read.
    type: dict
    required: true
  plan:
    description: The C(driver) part of the plan, with C(wanted), C(branch), C(floor) and C(flavour).
    type: dict
    required: true
  source:
    description: Whose packages are taken. V(local) has NVIDIA's package names and a repository of one's own.
    type: str
    choices: [nvidia, distribution, local]
    default: nvidia
  packages:
    description: Names of the packages to install instead of those that the module would choose. The version of the first is the driver's.
    type: list
    elements: str
    default: []
  compute_only:
    description: Leave out what only displays need.
    type: bool
    default: false
  fabric_manager:
    description: Whether the fabric manager is installed. V(auto) is on hosts with NVSwitches.
    type: str
    choices: [auto, "true", "false"]
    default: auto
  persistence:
    description: Whether the persistence daemon is installed and enabled.
    type: bool
    default: true
  hold:
    description: Keep everybody else from upgrading the driver.
    type: bool
    default: true
  upgrade:
    description: Take the newest version that serves instead of keeping an installed one that does.
    type: bool
    default: false
  repository_pending:
    description: In check mode, whether the repository was not there yet, so that its packages cannot be known.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for a lock of the package manager that another process holds.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: The driver that the plan wants
  ironwheel.gpu.nvidia_driver:
    host: "{{ preflight_host }}"
    plan: "{{ preflight_plan.driver }}"

- name: Exactly one version, from the distribution
  ironwheel.gpu.nvidia_driver:
    host: "{{ preflight_host }}"
    plan:
      wanted: 535.261.03
      flavour: proprietary
    source: distribution
"""

RETURN = r"""
version:
  description: The driver's version after the run, or the one that would be had in check mode.
  returned: success
  type: str
  sample: 580.95.05
driver:
  description: What the host has, with C(version), C(branch), C(flavour), C(packages), C(held), C(kernel), C(module_version) (loaded),
    C(built_version), C(userspace_version), C(fabric_manager), C(reason) of the choice.
  returned: success
  type: dict
reboot_needed:
  description: Why the host must be rebooted, or empty.
  returned: success
  type: str
services:
  description: Services to enable, with C(name), C(enabled) and, when the module is in use, C(state).
  returned: success
  type: list
  elements: dict
checks:
  description: Verification, each with C(name), C(subject), C(verdict) (V(ok), V(failed) or V(not_run)) and C(reason).
  returned: success
  type: list
  elements: dict
trace:
  description: Each version on offer, accepted or rejected with the reason.
  returned: success
  type: list
  elements: dict
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
"""

import contextlib
import glob
import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import driver, gpus, host_gpu
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.host_files import Host, run_command
from ansible_collections.ironwheel.gpu.plugins.module_utils.package_managers import Apt, Dnf, last_lines, write_file

SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
STREAM_MODULE = "nvidia-driver"


def read(path):
    """Text of a file, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return None


class Converge:
    """One run on a host: reads it, plans, and acts unless in check mode."""

    def __init__(self, module):
        self.module = module
        self.params = module.params
        self.facts = self.params["host"]
        self.request = driver.request_from(self.facts, self.params["plan"], self.params)
        manager = Dnf if self.request.family == "rhel" else Apt
        self.manager = manager(module.run_command, self.params["lock_timeout"])
        self.host = Host(run=run_command, environ=dict(os.environ))
        self.actions = []
        self.branches = []
        self.refreshed = False
        self.file_before = {}

    def tool(self, *arguments):
        """Run a tool that a bare host may lack: ``(status, stdout, stderr)``, status 127 when it does."""
        if shutil.which(arguments[0]) is None:
            return 127, "", f"{arguments[0]} is not installed"
        return self.module.run_command(list(arguments), environ_update={"LC_ALL": "C"})

    # --- reading -------------------------------------------------------------------------------------------------------------------------------------

    def read_packages(self):
        """Installed packages and what is on offer for the candidates and for every driver package that is installed."""
        self.installed, self.broken = self.manager.installed()
        self.branches = driver.branches_in([*self.manager.names(list(driver.SEARCH_PREFIXES)), *self.installed])
        names = set(driver.candidate_names(self.request, self.branches))
        names.update(name for name in self.installed if driver.is_driver_package(name))
        self.available = self.manager.available(sorted(names))

    def choose(self):
        """The choice of the version, after one refresh of the package lists when they do not have it."""
        self.read_packages()
        have = driver.installed_version(self.request, self.installed, self.branches)
        try:
            return driver.choose(self.request, self.available, self.branches, have)
        except IronwheelError as exc:
            if self.module.check_mode or exc.error != "DriverVersionUnavailable" or not self.refresh():
                raise
        self.read_packages()
        return driver.choose(self.request, self.available, self.branches, have)

    def refresh(self):
        """Read the package lists anew, once a run; False when that was done before."""
        if self.refreshed:
            return False
        self.manager.update()
        self.refreshed = True
        self.actions.append("read the package lists")
        return True

    def headers_present(self):
        """True when a module can be built for the kernel."""
        return os.path.exists(f"/lib/modules/{self.request.kernel}/build/Makefile")

    def prerequisites(self, builds):
        """Packages that must be there before the driver: headers of the running kernel, its compiler, the tools for Secure Boot and locks.

        Args:
            builds: whether a module will be built; a host whose module is built needs no headers.

        Raises:
            IronwheelError: no source has the headers of the running kernel.
        """
        wanted, kernel, family = {}, self.request.kernel, self.request.family
        if builds and not self.headers_present():
            name = driver.headers_package(family, kernel)
            found = self.manager.available([name])
            if not found and not self.module.check_mode and self.refresh():
                found = self.manager.available([name])
            if not found:
                raise driver.headers_missing(family, kernel, self.kernels_on_offer(family))
            wanted[name] = None
        self.compiler = {"compiler": "", "install": ""}
        if family != "rhel" and kernel == os.uname().release:
            default = self.default_gcc()
            majors = [int(match.group(1)) for path in glob.glob("/usr/bin/gcc-*") if (match := re.fullmatch(r"/usr/bin/gcc-(\d+)", path))]
            # Without any gcc, the package dkms brings the distribution's default one, which is what the compilers of its own kernels are.
            if default:
                self.compiler = driver.module_compiler(read("/proc/version") or "", default, majors)
                if self.compiler["install"] and not self.manager.available([self.compiler["install"]]):
                    # No source has it: the default compiler is tried, and the log says so if it does not do.
                    self.compiler = {"compiler": "", "install": ""}
                elif self.compiler["install"]:
                    wanted[self.compiler["install"]] = None
        if self.facts["os"].get("secure_boot") and shutil.which("mokutil") is None:
            wanted["mokutil"] = None
        if family == "rhel" and self.request.hold and not self.manager.can_lock():
            wanted["python3-dnf-plugin-versionlock"] = None
        return wanted

    def kernels_on_offer(self, family):
        """Kernels whose headers the sources have."""
        if family == "rhel":
            return [version for versions in self.manager.available(["kernel-devel"]).values() for version in versions]
        return [name[len("linux-headers-") :] for name in self.manager.names(["linux-headers-"]) if re.match(r"linux-headers-\d", name)]

    def default_gcc(self):
        """Version of the default gcc, or empty."""
        status, stdout, stderr = self.tool("gcc", "-dumpfullversion")
        return stdout.strip() if status == 0 else ""

    def signing_key(self):
        """``(certificate that dkms signs with, whether the firmware knows it)``."""
        key = next((path for path in SIGNING_KEYS if os.path.exists(path)), "")
        if not key or shutil.which("mokutil") is None:
            return key, None
        status, stdout, stderr = self.tool("mokutil", "--test-key", key)
        return key, "is already enrolled" in stdout + stderr

    def check_secure_boot(self, module_name, load_error=""):
        """Raise when the kernel would refuse the module."""
        key, enrolled = self.signing_key()
        signed = None
        if module_name and self.facts["os"].get("secure_boot"):
            signed = bool(self.module_info(module_name, "signer"))
        fault = driver.secure_boot_fault(self.facts["os"].get("secure_boot"), key, enrolled, signed, load_error)
        if fault is not None:
            raise fault

    def module_info(self, name, field):
        """A field of the module that the kernel would load, or empty."""
        status, stdout, stderr = self.tool("modinfo", "-k", self.request.kernel, "-F", field, name)
        return stdout.strip() if status == 0 else ""

    def observe(self, version):
        """What the host shows now, as :class:`driver.Observed`."""
        loaded, flavour = gpus.parse_module_version(read("/proc/driver/nvidia/version") or "")
        running = os.uname().release
        known = driver.dkms_module(host_gpu.read_dkms(self.host), version, self.request.kernel)
        built = ""
        for name in ([known["module"]] if known else []) + ["nvidia", "nvidia-current"]:
            built = built or self.module_info(name, "version")
        reason = ""
        if running != self.request.kernel:
            reason = f"the module is for the kernel {self.request.kernel}, and {running} runs here"
        elif self.facts["os"].get("container"):
            reason = "a container cannot load kernel modules"
        smi = host_gpu.query_smi(self.host)
        fabric = next((driver.upstream(self.installed[name]) for name in sorted(self.installed) if re.fullmatch(r"nvidia-fabricmanager(-\d+)?", name)), "")
        return driver.Observed(
            loaded=loaded or "",
            loaded_flavour=flavour or "",
            built=driver.upstream(built),
            userspace=host_gpu.read_userspace(self.host) or "",
            nouveau=os.path.isdir("/sys/module/nouveau"),
            loadable=not reason,
            not_loadable_reason=reason,
            pci_gpus=len(self.facts["gpus"]),
            smi_gpus=len(smi.rows) if smi.state == "ok" else None,
            smi_detail=(smi.text.splitlines() or ["no output"])[0],
            fabric_manager=fabric,
        )

    # --- acting --------------------------------------------------------------------------------------------------------------------------------------

    def install(self, prerequisites, changes, pin):
        """The transaction, with the holds lifted before and set after it, whatever happens."""
        kernels = {name: text for name, text in self.installed.items() if driver.is_kernel_package(name)}
        if self.broken:
            # A module that did not build leaves its package half configured; the transaction below tries again.
            self.manager.repair()
        if prerequisites:
            self.checked(self.manager.transaction(prerequisites, []), "the prerequisites")
        if self.request.family == "rhel":
            self.switch_stream(changes)
        lifted = {name: entry for name, entry in self.manager.held().items() if name in changes.install or name in changes.remove}
        if lifted:
            self.actions.append(f"lift the hold of {', '.join(sorted(lifted))} for the transaction")
        if pin is not None:
            self.put(driver.PREFERENCES_PATH, pin)
        try:
            self.manager.unhold(lifted)
            if changes or self.broken:
                self.checked(self.manager.transaction(changes.install, changes.remove) if changes else self.manager.repair(), "the driver")
        finally:
            self.installed, self.broken = self.manager.installed()
            self.manager.hold([name for name in lifted if name in self.installed], self.installed)
        after = {name: text for name, text in self.installed.items() if driver.is_kernel_package(name)}
        if after != kernels:
            names = sorted(set(after.items()) ^ set(kernels.items()))
            raise driver.kernel_would_change(sorted({name for name, text in names}), self.request.kernel)

    def switch_stream(self, changes):
        """Enable the module stream of flavour and branch where the repositories have streams (RHEL 9)."""
        if not changes:
            return
        streams = self.manager.streams(STREAM_MODULE)
        step = driver.stream_switch(streams, driver.module_stream(self.request.flavour, driver.branch_of(self.choice.version), streams))
        if not step["stream"]:
            return
        self.manager.switch_stream(STREAM_MODULE, step["stream"])
        try:
            # Now with the packages of this stream alone, before anything is taken away.
            self.manager.simulate(changes.install, changes.remove, any_stream=False)
        except IronwheelError:
            self.manager.switch_stream(STREAM_MODULE, step["before"])
            raise
        self.actions.append(f"enable module stream {STREAM_MODULE}:{step['stream']}")

    def checked(self, result, what):
        """Raise when a transaction failed: with the dkms log's reason when that is where it failed."""
        status, stdout, stderr = result
        if status == 0:
            return
        text = stdout + stderr
        if "dkms" in text and re.search(r"Bad return status|Error!|nvidia.*dkms.*(error|subprocess)", text, re.DOTALL):
            self.check_module(self.choice.version, build=False)
        raise IronwheelError(f"Installing {what} failed: {last_lines(stderr or stdout)}", "PackageInstallFailed", "Read the package manager's reason above.")

    def check_module(self, version, build=True):
        """Make sure that the module is built for the kernel; returns its name.

        Raises:
            IronwheelError: it is not, with the reason from dkms's log.
        """
        kernel = self.request.kernel
        known = driver.dkms_module(host_gpu.read_dkms(self.host), version, kernel)
        if known is None:
            # Not dkms's: a module that came ready-made, or none.
            for name in ("nvidia", "nvidia-current"):
                if driver.upstream(self.module_info(name, "version")) == version:
                    return name
            raise driver.dkms_failed(version, kernel, "", None)
        if known["state"] == "installed":
            return known["module"]
        if build:
            self.actions.append(f"build {known['module']} {known['version']} for {kernel}")
            self.tool("dkms", "install", "-m", known["module"], "-v", known["version"], "-k", kernel)
            built = driver.dkms_module(host_gpu.read_dkms(self.host), version, kernel)
            if built and built["state"] == "installed":
                return built["module"]
        logs = glob.glob(f"/var/lib/dkms/{known['module']}/{known['version']}/**/make.log", recursive=True)
        newest = max(logs, key=os.path.getmtime) if logs else ""
        raise driver.dkms_failed(version, kernel, newest, read(newest) if newest else None)

    def needs_build(self, version):
        """True when dkms has the module and it is not built for the kernel."""
        known = driver.dkms_module(host_gpu.read_dkms(self.host), version, self.request.kernel)
        return known is not None and known["state"] != "installed"

    def files(self, version):
        """Files to write, ``{path: text}``, an empty text removes; only those that differ from what is there."""
        wanted = {driver.NOUVEAU_PATH: driver.NOUVEAU_TEXT}
        if self.manager.tool == "apt":
            wanted[driver.PREFERENCES_PATH] = driver.preferences(version) if self.request.hold else ""
        present = read(driver.COMPILER_PATH)
        # A file that somebody else wrote there stays.
        if self.manager.tool == "apt" and (present is None or present.startswith(driver.COMPILER_MARK)):
            wanted[driver.COMPILER_PATH] = driver.compiler_conf(self.compiler["compiler"]) if self.compiler["compiler"] else ""
        self.file_before = {path: read(path) or "" for path in wanted}
        return {path: text for path, text in wanted.items() if self.file_before[path] != text}

    def put(self, path, text):
        """Write a file, or remove it for an empty text."""
        if text:
            write_file(path, text.encode())
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def rebuild_initramfs(self):
        """Keep nouveau out of the next boot when it is in use now."""
        kernel = self.request.kernel
        command = ["dracut", "-f", "--kver", kernel] if self.request.family == "rhel" else ["update-initramfs", "-u", "-k", kernel]
        status, stdout, stderr = self.tool(*command)
        if status == 127:
            return
        if status != 0:
            raise IronwheelError(f"{' '.join(command)} failed: {last_lines(stderr or stdout)}", "InitramfsFailed", "nouveau would hold the GPU after a reboot.")
        self.actions.append("rebuild the initramfs without nouveau")

    def load(self, name):
        """Load the module when nothing is in its way."""
        status, stdout, stderr = self.tool("modprobe", name)
        if status == 0:
            self.actions.append(f"load {name}")
            return
        self.check_secure_boot(name, stderr)
        raise IronwheelError(
            f"The kernel module {name} is built for the running kernel and does not load: {last_lines(stderr)}",
            "ModuleLoadFailed",
            "'No such device' with a GPU present means the wrong module flavour, or Above 4G Decoding and Resizable BAR off in the firmware; see dmesg.",
        )

    # --- the run ---------------------------------------------------------------------------------------------------------------------------------------

    def pending(self):
        """The result of check mode on a host that lacks the repository: what is known without it."""
        names = driver.names_for(self.request, self.request.branch or driver.branch_of(self.request.version or self.request.floor))
        wanted = self.request.version or (f"branch {self.request.branch}" if self.request.branch else f"at least {self.request.floor or 'any version'}")
        return {
            "changed": True,
            "version": self.request.version,
            "driver": {},
            "reboot_needed": "",
            "services": [],
            "checks": [],
            "trace": [],
            "actions": [f"install {', '.join(names)} ({wanted}, {self.request.flavour} module) once the package lists are there"],
        }

    def run(self):
        """Converge and return the module's result."""
        check = self.module.check_mode
        if check and (self.params["repository_pending"] or not self.manager.has_lists([])):
            return self.pending()
        self.choice = choice = self.choose()
        # A key that is there and not enrolled is reported before anything changes.
        self.check_secure_boot("")
        changes = driver.plan_changes(self.request, choice, self.installed, self.available)
        build = self.needs_build(choice.version)
        prerequisites = self.prerequisites(bool(changes or build or self.broken))
        files = self.files(choice.version)
        held = self.manager.held()
        before = {name: text for name, text in self.installed.items() if driver.is_driver_package(name)}

        operations = []
        if changes or prerequisites:
            operations = self.simulate({**prerequisites, **changes.install}, changes.remove, choice.version)
            touched = driver.kernel_changes(operations)
            if touched:
                raise driver.kernel_would_change(touched, self.request.kernel)
        self.actions += [f"install {name}" for name in sorted(prerequisites)] + changes.actions
        work = bool(changes or prerequisites or build or self.broken)

        if check:
            after = dict(before)
            for kind, name, text in operations:
                if driver.is_driver_package(name):
                    after.pop(name, None)
                    if kind != "remove":
                        after[name] = text
            if build:
                self.actions.append(f"build the kernel module for {self.request.kernel}")
        elif work:
            if driver.COMPILER_PATH in files:
                self.put(driver.COMPILER_PATH, files[driver.COMPILER_PATH])
            self.install(prerequisites, changes, files.get(driver.PREFERENCES_PATH))
            after = {name: text for name, text in self.installed.items() if driver.is_driver_package(name)}
        else:
            after = before

        name = ""
        if not check:
            name = self.check_module(choice.version)
            self.check_secure_boot(name)
        self.actions += [f"{'write' if text else 'remove'} {path}" for path, text in sorted(files.items())]
        changed = work or bool(files)
        if not check:
            for path, text in files.items():
                self.put(path, text)
            if driver.NOUVEAU_PATH in files and os.path.isdir("/sys/module/nouveau"):
                self.rebuild_initramfs()
        changed |= self.set_holds(choice, after, self.manager.held() if work and not check else held)

        observed = self.observe(choice.version)
        if not check and observed.loadable and not observed.loaded and not observed.nouveau:
            self.load(name)
            changed = True
            observed = self.observe(choice.version)
        return self.result(choice, before, after, files, observed, changed)

    def simulate(self, install, remove, version):
        """The simulated transaction, with the pin that the real one will have."""
        if self.manager.tool != "apt":
            return self.manager.simulate(install, remove)
        with tempfile.TemporaryDirectory(dir=self.module.tmpdir) as folder:
            for path in glob.glob("/etc/apt/preferences.d/*"):
                if path != driver.PREFERENCES_PATH:
                    shutil.copy(path, folder)
            if self.request.hold:
                write_file(os.path.join(folder, "ironwheel-nvidia-driver"), driver.preferences(version).encode())
            os.chmod(folder, 0o755)
            return self.manager.simulate(install, remove, folder)

    def set_holds(self, choice, after, held):
        """Hold every package of the driver, or lift what the role held; True when something changed."""
        wanted = driver.hold_names(choice, after) if self.request.hold else []
        stale = {}
        if not self.request.hold and self.file_before.get(driver.PREFERENCES_PATH):
            # Our pin is there, so the holds are ours as well.
            stale = {name: entry for name, entry in held.items() if name in driver.hold_names(choice, after)}
        elif self.manager.tool == "dnf":
            stale = driver.stale_locks(held, wanted, choice.version)
        missing = [name for name in wanted if name not in held or name in stale]
        if missing:
            self.actions.append(f"hold {', '.join(missing)}")
        if stale:
            self.actions.append(f"lift the hold of {', '.join(sorted(stale))}")
        if not self.module.check_mode:
            self.manager.unhold(stale)
            self.manager.hold(missing, after)
        return bool(missing or stale)

    def result(self, choice, before, after, files, observed, changed):
        """The module's result."""
        check = self.module.check_mode
        current = not check or not changed
        facts = {
            "version": choice.version,
            "branch": str(driver.branch_of(choice.version)),
            "flavour": self.request.flavour,
            "source": self.params["source"],
            "reason": choice.reason,
            "packages": after,
            "held": driver.hold_names(choice, after) if self.request.hold else [],
            "kernel": self.request.kernel,
            "compiler": self.compiler["compiler"],
            "module_version": observed.loaded,
            "built_version": observed.built,
            "userspace_version": observed.userspace,
            "fabric_manager": observed.fabric_manager,
        }
        units = [unit for unit in ("nvidia-persistenced", "nvidia-fabricmanager") if self.has_unit(unit)]
        usable = observed.loadable and observed.loaded == choice.version
        return {
            "changed": changed,
            "version": choice.version,
            "driver": facts,
            "reboot_needed": driver.reboot_needed(observed, choice.version, self.request.flavour) if current else "",
            "services": driver.services(self.request, after, usable, units) if current else [],
            "checks": driver.checks(observed, choice.version, self.request.fabric_manager) if current else [],
            "trace": list(choice.trace),
            "actions": self.actions,
            "diff": [
                {"before_header": "driver packages", "after_header": "driver packages", "before": listing(before), "after": listing(after)},
                *[{"before_header": path, "after_header": path, "before": self.file_before[path], "after": text} for path, text in sorted(files.items())],
            ]
            if changed
            else [],
        }

    def has_unit(self, name):
        """True when systemd knows the service."""
        return any(os.path.exists(f"{folder}/{name}.service") for folder in ("/lib/systemd/system", "/usr/lib/systemd/system", "/etc/systemd/system"))


def listing(packages):
    """Packages as text, one a line."""
    return "".join(f"{name} {version}\n" for name, version in sorted(packages.items()))


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "dict", "required": True},
            "plan": {"type": "dict", "required": True},
            "source": {"type": "str", "choices": ["nvidia", "distribution", "local"], "default": "nvidia"},
            "packages": {"type": "list", "elements": "str", "default": []},
            "compute_only": {"type": "bool", "default": False},
            "fabric_manager": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
            "persistence": {"type": "bool", "default": True},
            "hold": {"type": "bool", "default": True},
            "upgrade": {"type": "bool", "default": False},
            "repository_pending": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    # A login shell of an ordinary user may lack these, and sudo may keep that.
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    try:
        result = Converge(module).run()
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    except PermissionError as exc:
        module.fail_json(msg=f"Not permitted: {exc}. Remedy: run the role as root (become).", error="NotPermitted", remedy="become")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
