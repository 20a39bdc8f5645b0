#!/usr/bin/python
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_repository
short_description: NVIDIA's package repository on a host, with the right key and without conflicting entries
version_added: 0.1.0
description:
  - Adds the repository that NVIDIA publishes for exactly this distribution and machine type, or a mirror of it, to apt or dnf.
  - The key is checked against its fingerprint before anything trusts it, and the entry is bound to that key alone.
  - Entries of others for the same repository with another C(Signed-By), which stop apt altogether, and entries for another
    distribution's repository are switched off in the same step. A copy of each changed file is kept beside it.
  - An entry that NVIDIA's keyring package made, of whichever version, is kept when it does the job.
  - When the repository cannot be read after the change, everything is put back.
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
  os:
    description: The C(os) part of the host facts, of which C(id), C(version) and C(arch) are read.
    type: dict
    required: true
  name:
    description: Name of the files that are written, and of the repository for dnf.
    type: str
    default: ironwheel-nvidia
  base_url:
    description: Where the folders of all distributions are. Empty is NVIDIA's public address.
    type: str
    default: ""
  distribution:
    description: Folder of the distribution. Empty is the host's own; another one is refused.
    type: str
    default: ""
  url:
    description: Address of a mirror or a local repository, used as it is instead of O(base_url) and O(distribution).
    type: str
    default: ""
  suite:
    description: Suite of an apt repository; V(/) is a flat one, as NVIDIA's are.
    type: str
    default: /
  components:
    description: Components of an apt repository that is not flat, separated by blanks.
    type: str
    default: ""
  key:
    description: The public key as armoured text, instead of O(key_url).
    type: str
    default: ""
  key_url:
    description:
      - Where the public key is, as http, https or file URL. A Debian package is searched for a keyring. Empty is the key that
        NVIDIA publishes for the distribution.
    type: str
    default: ""
  key_fingerprints:
    description: Fingerprints of which the key must have one. Empty is the published one of NVIDIA's key, or any for a mirror's key.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait for a lock of the package manager that another process holds.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: NVIDIA's network repository for this host
  ironwheel.gpu.nvidia_repository:
    os: "{{ preflight_host.os }}"

- name: A mirror with a key of its own
  ironwheel.gpu.nvidia_repository:
    os: "{{ preflight_host.os }}"
    url: https://mirror.example.com/nvidia/ubuntu2404/x86_64/
    key: "{{ lookup('ansible.builtin.file', 'files/mirror.asc') }}"
"""

RETURN = r"""
url:
  description: Address of the repository.
  returned: success
  type: str
  sample: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/
file:
  description: File that names the repository, ours or one that was kept.
  returned: success
  type: str
keyring:
  description: File that holds the key.
  returned: success
  type: str
fingerprints:
  description: Fingerprints of the key.
  returned: success
  type: list
  elements: str
backups:
  description: Copies of the files in which entries were switched off.
  returned: success
  type: list
  elements: str
refreshed:
  description: Whether the package lists of the repository were read anew.
  returned: success
  type: bool
actions:
  description: What was done, or would be done in check mode, in words.
  returned: success
  type: list
  elements: str
"""

import contextlib
import glob
import io
import os
import tarfile
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.ironwheel.gpu.plugins.module_utils import repository as repo
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.package_managers import Apt, write_file


def read_files(patterns):
    """Text of each file that matches, by path."""
    texts = {}
    for pattern in patterns:
        for path in glob.glob(pattern):
            with open(path, encoding="utf-8", errors="surrogateescape") as handle:
                texts[path] = handle.read()
    return texts


def read_key(path):
    """Fingerprints in a keyring file, or an empty list when it is missing or holds none."""
    try:
        with open(path, "rb") as handle:
            return repo.key_fingerprints(handle.read())
    except (OSError, IronwheelError):
        return []


class Converge:
    """One run: reads the host, plans, and acts unless in check mode."""

    def __init__(self, module):
        self.module = module
        self.params = module.params
        self.repository = repo.wanted(self.params["os"], self.params)
        self.apt = self.repository.manager == "apt"
        name = self.repository.name
        if self.apt:
            self.keyring = f"/etc/apt/keyrings/{name}.gpg"
            self.path = f"/etc/apt/sources.list.d/{name}.sources"
            patterns = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"]
        else:
            self.keyring = f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{name}"
            self.path = f"/etc/yum.repos.d/{name}.repo"
            patterns = ["/etc/yum.repos.d/*.repo"]
        self.files = read_files(patterns)
        self.actions = []
        self.backups = []
        self.undo = []
        self.before, self.after = {}, {}

    def get_key(self):
        """The key's bytes, checked: from the argument or its address. Armoured for dnf, binary for apt."""
        if self.params["key"]:
            data, origin = self.params["key"].encode(), "nvidia_repository_key"
        elif self.repository.key_url:
            origin = self.repository.key_url
            try:
                data = open_url(origin, timeout=60).read()
            except Exception as exc:
                raise IronwheelError(
                    f"The repository key cannot be read from {origin}: {exc}.",
                    "RepositoryKeyUnreachable",
                    "Check nvidia_repository_key_url and the host's proxy.",
                ) from exc
            if origin.endswith(".deb"):
                data = self.key_from_package(data, origin)
        else:
            raise IronwheelError(
                f"nvidia_repository_url is '{self.repository.url}', and nothing says which key it is signed with.",
                "RepositoryKeyMissing",
                "Set nvidia_repository_key (armoured text) or nvidia_repository_key_url.",
            )
        present = repo.key_fingerprints(data)
        if not repo.key_fits(present, self.repository.fingerprints):
            raise IronwheelError(
                f"The key from {origin} has the fingerprint {', '.join(present)}, wanted is {', '.join(self.repository.fingerprints)}.",
                "RepositoryKeyMismatch",
                "Nothing was trusted. Check the address; after an announced change of the key set nvidia_repository_key_fingerprints.",
            )
        return repo.dearmor(data) if self.apt else data

    def key_from_package(self, data, origin):
        """The keyring inside a Debian package."""
        with tempfile.NamedTemporaryFile(dir=self.module.tmpdir, suffix=".deb") as handle:
            handle.write(data)
            handle.flush()
            status, stdout, stderr = self.module.run_command(["dpkg-deb", "--fsys-tarfile", handle.name], encoding=None)
        if status == 0:
            with tarfile.open(fileobj=io.BytesIO(stdout)) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(".gpg"):
                        return archive.extractfile(member).read()
        raise IronwheelError(f"{origin} holds no keyring: {stderr.decode(errors='replace').strip() or 'no .gpg file in it'}.", "InvalidKey")

    def put(self, path, data):
        """Write a file (bytes), remembering how to undo that."""
        old = None
        if os.path.exists(path):
            with open(path, "rb") as handle:
                old = handle.read()
        self.undo.append((path, old))
        write_file(path, data)

    def roll_back(self):
        """Put every written file back, last one first, and drop the copies."""
        for path, old in reversed(self.undo):
            if old is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                write_file(path, old)
        for path in self.backups:
            os.unlink(path)

    def run(self):
        """Converge and return the module's result."""
        check = self.module.check_mode
        entries = repo.read_entries(self.files)
        keyrings = {entry.signed_by: read_key(repo.local_path(entry.signed_by)) for entry in entries if repo.local_path(entry.signed_by)}
        plan = repo.plan_sources(entries, self.path, self.repository.url, self.repository.suite if self.apt else "", keyrings, self.repository.fingerprints)
        writes = []
        keyring = self.keyring
        if plan.write:
            present = read_key(self.keyring)
            if self.params["key"] and present and present != repo.key_fingerprints(self.params["key"].encode()):
                present = []
            if not present or not repo.key_fits(present, self.repository.fingerprints):
                writes.append((self.keyring, self.get_key(), "key " + self.keyring))
            text = repo.render_sources(self.repository, self.keyring) if self.apt else repo.render_repo(self.repository, self.keyring)
            if self.files.get(self.path) != text:
                self.before[self.path], self.after[self.path] = self.files.get(self.path, ""), text
                writes.append((self.path, text.encode(), f"repository {self.repository.url} in {self.path}"))
        else:
            keyring = next(entry.signed_by for entry in entries if entry.path == plan.adopted and repo.relation(entry, self.repository.url) == "same")
        for path in sorted({entry.path for entry in plan.disable}):
            places = [entry.place for entry in plan.disable if entry.path == path]
            text = repo.disable(next(entry.style for entry in plan.disable if entry.path == path), self.files[path], places)
            self.before[path], self.after[path] = self.files[path], text
            writes.append((path, text.encode(errors="surrogateescape"), None))
            backup = f"{path}.{time.strftime('%Y%m%dT%H%M%S')}.bak"
            self.actions += [f"switch off: {reason}; copy kept as {backup}" for reason in plan.reasons if reason.startswith(path + " ")]
            if not check:
                write_file(backup, self.files[path].encode(errors="surrogateescape"))
                self.backups.append(backup)
        self.actions = [f"write {what}" for path, data, what in writes if what] + self.actions
        changed = bool(writes)
        refreshed = False
        try:
            if not check:
                for path, data, _what in writes:
                    self.put(path, data)
            if self.apt:
                refreshed = self.refresh(changed, plan.adopted or self.path)
        except BaseException:
            self.roll_back()
            raise
        return {
            "changed": changed or refreshed,
            "url": self.repository.url,
            "file": plan.adopted or self.path,
            "keyring": keyring,
            "fingerprints": [] if check and writes else read_key(repo.local_path(keyring)),
            "backups": self.backups,
            "refreshed": refreshed,
            "actions": self.actions,
            "diff": [{"before_header": path, "after_header": path, "before": self.before[path], "after": self.after[path]} for path in sorted(self.after)],
        }

    def refresh(self, changed, path):
        """Read the lists of this one repository when it changed or they are missing; other repositories of the host do not matter here."""
        apt = Apt(self.module.run_command, self.params["lock_timeout"])
        options = ["-o", f"Dir::Etc::sourcelist={path}", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Get::List-Cleanup=0"]
        if self.module.check_mode:
            if changed:
                self.actions.append("read the package lists")
            return False
        if not changed and apt.has_lists(options):
            return False
        self.actions.append("read the package lists")
        apt.update(options, self.repository.url)
        return True


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "os": {"type": "dict", "required": True},
            "name": {"type": "str", "default": "ironwheel-nvidia"},
            "base_url": {"type": "str", "default": ""},
            "distribution": {"type": "str", "default": ""},
            "url": {"type": "str", "default": ""},
            "suite": {"type": "str", "default": "/"},
            "components": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": False},
            "key_url": {"type": "str", "default": "", "no_log": False},
            "key_fingerprints": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    module.params["fingerprints"] = module.params["key_fingerprints"]
    try:
        result = Converge(module).run()
    except IronwheelError as exc:
        module.fail_json(**exc.as_result())
    except OSError as exc:
        module.fail_json(msg=f"Cannot write the repository's files: {exc}. Remedy: run the role as root (become).", error="NotPermitted", remedy="become")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
