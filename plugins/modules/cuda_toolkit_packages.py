#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_packages
short_description: Install or remove CUDA toolkit packages, and nothing else with them
version_added: 0.1.0
description:
  - Simulates the transaction of apt or dnf first. It is refused when it would install or change a driver package, or remove
    anything that was not named, so that a toolkit never brings, moves or breaks a driver.
  - Recommended packages are left out. A lock that another process holds is waited for.
  - Packages that are installed and whose toolkit is damaged are installed again.
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
  packages:
    description: Package names. With O(state=present), those of toolkits that are missing or damaged.
    type: list
    elements: str
    required: true
  state:
    description: Whether the packages are to be there.
    type: str
    choices: [present, absent]
    default: present
  manager:
    description: The package manager.
    type: str
    choices: [apt, dnf]
    required: true
  repository:
    description: Address of the repository, for messages.
    type: str
    default: NVIDIA's repository
  lock_timeout:
    description: Seconds to wait for the package manager's lock.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: The compiler of CUDA 12.8
  ironwheel.gpu.cuda_toolkit_packages:
    packages: [cuda-nvcc-12-8, cuda-cudart-dev-12-8]
    manager: apt
"""

RETURN = r"""
installed:
  description: Packages that were installed, or would be in check mode, with those that they depend on.
  returned: success
  type: list
  elements: str
removed:
  description: Packages that were removed, or would be in check mode.
  returned: success
  type: list
  elements: str
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
error:
  description: Name of the fault.
  returned: failure
  type: str
remedy:
  description: What to do about it.
  returned: failure
  type: str
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_install
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.package_managers import Apt, Dnf, last_lines


class Converge:
    """One run."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.packages = sorted(set(module.params["packages"]))
        self.manager = {"apt": Apt, "dnf": Dnf}[module.params["manager"]](module.run_command, module.params["lock_timeout"])
        self.apt = module.params["manager"] == "apt"

    def run(self) -> dict:
        """Converge and return the module's result."""
        installed, broken = self.manager.installed()
        if broken and not self.module.check_mode:
            # A run that was killed leaves packages unpacked; every later transaction would fail.
            self.manager.repair()
            installed, broken = self.manager.installed()
        return self.remove(installed) if self.module.params["state"] == "absent" else self.install(installed)

    def install(self, installed: dict) -> dict:
        """Install what is missing; what is there is installed again, because its toolkit is damaged."""
        missing = [name for name in self.packages if name not in installed]
        if not missing:
            # The packages that these depend on hold most of the files.
            versions = {self.version_of(name) for name in self.packages}
            damaged = [name for version in sorted(versions) for name in toolkit_install.packaged_versions(list(installed)).get(version, [])]
            if not self.module.check_mode:
                self.finish(self.again(damaged), f"install {', '.join(damaged)} again")
            return self.result(damaged, [], [f"install {', '.join(damaged)} again, because files are missing"])
        self.require_available(missing)
        coming, going = self.simulate(dict.fromkeys(missing), [])
        drivers = toolkit_install.driver_packages(coming)
        if drivers:
            raise IronwheelError(
                f"Installing {', '.join(missing)} would also install or change {', '.join(drivers)}; a toolkit never brings a driver, so nothing was done.",
                "DriverWouldChange",
                "let the role nvidia_driver manage the driver, or use cuda_toolkit_source wheels or runfile.",
            )
        if going:
            raise IronwheelError(
                f"Installing {', '.join(missing)} would remove {', '.join(going)}, so nothing was done.",
                "PackagesWouldBeRemoved",
                "see why they contradict each other, or use cuda_toolkit_source wheels or runfile.",
            )
        if not self.module.check_mode:
            answer = self.manager.transaction(dict.fromkeys(missing), [])
            if answer[0] != 0:
                # Lists that are older than the repository name files that are gone.
                self.manager.update()
                answer = self.manager.transaction(dict.fromkeys(missing), [])
            self.finish(answer, f"install {', '.join(missing)}")
        return self.result(coming, [], [f"install {', '.join(coming)}"])

    def remove(self, installed: dict) -> dict:
        """Remove what is there, if nothing else goes with it."""
        present = [name for name in self.packages if name in installed]
        if not present:
            return self.result([], [], [])
        _coming, going = self.simulate({}, present)
        others = sorted(set(going) - set(present))
        if others:
            raise IronwheelError(
                f"Removing {', '.join(present)} would also remove {', '.join(others)}, so nothing was done.",
                "PackagesWouldBeRemoved",
                "remove these first, or list the toolkit in cuda_toolkit_versions.",
            )
        if not self.module.check_mode:
            self.finish(self.erase(present, simulate=False), f"remove {', '.join(present)}")
        return self.result([], present, [f"remove {', '.join(present)}"])

    def simulate(self, install: dict, remove: list) -> tuple[list[str], list[str]]:
        """Names that a transaction would install or change, and those that it would remove."""
        if remove:
            _status, out, _err = self.erase(remove, simulate=True)
            return [], toolkit_install.removed_packages(out)
        steps = self.manager.simulate(install, [])
        return sorted({name for kind, name, _version in steps if kind == "install"}), sorted({name for kind, name, _version in steps if kind == "remove"})

    def erase(self, names: list[str], simulate: bool) -> tuple[int, str, str]:
        """Remove packages with their configuration and without what they depended on."""
        if self.apt:
            return self.manager.call(["apt-get", "-q", "-y", *(["-s", "-o", "Debug::NoLocking=1"] if simulate else []), "purge", *names])
        return self.manager.call(["dnf", "--assumeno" if simulate else "-y", "remove", "--noautoremove", *names])

    def again(self, names: list[str]) -> tuple[int, str, str]:
        """Install packages again."""
        if self.apt:
            return self.manager.call(["apt-get", "-q", "-y", "install", "--reinstall", "--no-install-recommends", *names])
        return self.manager.call(["dnf", "-y", "reinstall", *names])

    def require_available(self, names: list[str]) -> None:
        """Check that the repository has the packages, reading its lists anew once.

        Raises:
            IronwheelError: it has not; the message names the toolkits that it has.
        """
        lacking = [name for name, versions in self.offers(names).items() if not versions]
        if lacking and not self.module.check_mode:
            self.manager.update()
            lacking = [name for name, versions in self.offers(names).items() if not versions]
        if lacking:
            has = toolkit_install.packaged_versions(self.manager.names(["cuda-nvcc-"]))
            raise IronwheelError(
                f"{self.module.params['repository']} has no {', '.join(lacking)} for this host; it has CUDA {', '.join(sorted(has)) or 'in no version'}.",
                "ToolkitNotInRepository",
                "set cuda_toolkit_source to wheels (CUDA 13) or runfile for this version.",
            )

    def offers(self, names: list[str]) -> dict[str, list[str]]:
        """Versions on offer of each package."""
        found = self.manager.available(names)
        return {name: found.get(name, []) for name in names}

    @staticmethod
    def version_of(name: str) -> str:
        """``12.8`` for ``cuda-nvcc-12-8``."""
        match = re.search(r"-(\d+)-(\d+)$", name)
        if match is None:
            raise IronwheelError(f"packages holds '{name}', which is not the package of a toolkit: its name must end like -12-8.", "InvalidPackage")
        return f"{match.group(1)}.{match.group(2)}"

    @staticmethod
    def finish(answer: tuple[int, str, str], what: str) -> None:
        """Raise what a failed transaction said."""
        status, out, err = answer
        if status != 0:
            message = f"The package manager could not {what} (exit status {status}): {last_lines(err or out)}"
            raise IronwheelError(message, "PackageManagerFailed", "mend what it names and run again.")

    def result(self, installed: list[str], removed: list[str], actions: list[str]) -> dict:
        """The module's result."""
        diff = {"before": "".join(f"{name}\n" for name in removed), "after": "".join(f"{name}\n" for name in installed)}
        return {"changed": bool(actions), "installed": installed, "removed": removed, "actions": actions, "diff": diff}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "repository": {"type": "str", "default": "NVIDIA's repository"},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    try:
        result = Converge(module).run()
    except IronwheelError as error:
        # The package manager's class is shared with the driver's role.
        error.message = error.message.replace("nvidia_driver_lock_timeout", "cuda_toolkit_lock_timeout")
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
