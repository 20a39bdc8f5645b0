# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ``ansible-test sanity`` on a copy of the working tree.

ansible-test wants its collection under ``ansible_collections/<namespace>/<name>`` and refuses a symbolic link, so the tracked
and new files are copied into a temporary tree. It also fetches a pip bootstrap from a server that a closed network does not
reach: a home of its own under .cache holds a stand-in that runs the same pip from a wheel of the package index, the
controller's pip settings, and the virtual environments that ansible-test keeps for its tests.

Arguments are handed to ansible-test: ``run_sanity.py --test validate-modules plugins/modules/host_facts.py``.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "ansible-test"
BIN = Path(sys.executable).parent
# Not part of the collection, or a link that ansible-test refuses.
LEFT_OUT = (".collections", ".ci", ".config", "examples")

BOOTSTRAP = '''\
"""Stand-in for get-pip.py: runs pip from its wheel."""
import sys

sys.path.insert(0, {wheel!r})
from pip._internal.cli.main import main

arguments = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(main(["install", *arguments]))
'''


def wanted_pip() -> str:
    """The pip version that the installed ansible-test bootstraps its environments with."""
    import ansible_test

    # The name is a private one of ansible-test; a changed layout must be seen at once and not as a failed download.
    source = Path(ansible_test.__path__[0]) / "_internal" / "python_requirements.py"
    found = re.search(r"pip=['\"]([0-9.]+)['\"]|['\"]pip['\"]: ['\"]([0-9.]+)['\"]", source.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"run_sanity.py: no pip version in {source}; this ansible-core bootstraps pip in another way")
    return found.group(1) or found.group(2)


def pip_settings() -> str:
    """The controller's pip settings as a pip.conf: ansible-test hands no PIP_* variable on."""
    shown = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    values = {}
    for line in shown.splitlines():
        name, _equals, value = line.partition("=")
        if not value:
            continue
        key = name.rsplit(".", 1)[-1]
        # Variables of the environment are listed with a leading ":env:" and win over files.
        if key not in values or name.startswith(":env:"):
            values[key] = str(ast.literal_eval(value)).replace("\n", " ")
    values["quiet"] = "1"
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(values.items()))


def prepare_home() -> None:
    version = wanted_pip()
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    script = cache / f"get_pip_{version.replace('.', '_')}.py"
    wheel = cache / f"pip-{version}-py3-none-any.whl"
    if not wheel.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), f"pip=={version}"], check=True)
    script.write_text(BOOTSTRAP.format(wheel=str(wheel)), encoding="utf-8")
    settings = HOME / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(pip_settings(), encoding="utf-8")
    settings.chmod(0o600)


def search_path() -> str:
    """PATH for ansible-test, which takes every ``python3.N`` on it for an interpreter that starts.

    A version manager's shim that belongs to no active version exists and fails: folders with such a file are left out, and the
    interpreters that do start come first by links of our own.
    """
    links = HOME / "bin"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir(parents=True)
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    names = [f"python3.{minor}" for minor in range(8, 16)]
    extra = [str(path) for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin"))]
    for name in names:
        for folder in [str(BIN), *folders, *extra]:
            path = Path(folder) / name
            if not path.exists() or starts_not(path):
                continue
            real = subprocess.run([str(path), "-c", "import sys; print(sys._base_executable)"], check=True, capture_output=True, text=True)
            (links / name).symlink_to(real.stdout.strip())
            break
    kept = [folder for folder in folders if not any((Path(folder) / name).exists() and starts_not(Path(folder) / name) for name in names)]
    return os.pathsep.join([str(BIN), str(links), *kept])


def starts_not(path: Path) -> bool:
    return subprocess.run([str(path), "-c", ""], check=False, capture_output=True).returncode != 0


def copy_tree(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if name.split("/")[0] in LEFT_OUT or not source.is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name)


def main() -> int:
    prepare_home()
    with tempfile.TemporaryDirectory(prefix="ironwheel-sanity-") as folder:
        tree = Path(folder) / "ansible_collections" / "ironwheel" / "gpu"
        copy_tree(tree)
        environment = {**os.environ, "HOME": str(HOME), "PATH": search_path()}
        environment.pop("ANSIBLE_CONFIG", None)
        command = [str(BIN / "ansible-test"), "sanity", "--local", "--color", "no", *sys.argv[1:]]
        return subprocess.run(command, cwd=tree, env=environment, check=False, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
