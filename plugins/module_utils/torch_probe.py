# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an environment's own Python says of its packages, its torch and the modules that shall import.

The text of this file is run by that Python (``python -I -c TEXT``): it imports nothing of the collection, reads one request as JSON from standard
input and writes one JSON object behind the marker on standard output, so that what a library prints while it is imported cannot spoil the answer.

Requests: ``{"task": "packages"}``, ``{"task": "torch"}``, ``{"task": "import", "module": "vllm"}``, the last with ``"after": "torch"`` for modules that need
the libraries of another one in the process.
"""

from __future__ import annotations

import json
import os
import sys

MARKER = "ironwheel-probe:"
# The packages that one index builds together with torch; a member of another build fails at import or computes garbage.
FAMILY = ("torchvision", "torchaudio", "torchcodec", "triton")


def normalize(name):
    """A distribution's name as indexes compare it (PEP 503)."""
    text = name.lower().replace("_", "-").replace(".", "-")
    while "--" in text:
        text = text.replace("--", "-")
    return text


def packages():
    """``{"python", "packages": {name: version}}``: the interpreter's version and everything installed, names normalized."""
    import platform
    from importlib import metadata

    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(normalize(name), distribution.version)
    return {"python": platform.python_version(), "packages": found}


def python_tag():
    """The interpreter's tag as wheels spell it, such as cp312."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"


def torch_identity():
    """What torch says of itself; ``import_error`` instead if it does not import."""
    import platform

    identity = {
        "python": platform.python_version(),
        "python_tag": python_tag(),
        "machine": platform.machine(),
        "family": {},
        "nvidia": sorted(name for name in packages()["packages"] if name.startswith("nvidia-")),
    }
    try:
        import torch
    except BaseException as exc:  # a broken extension may raise anything, SystemExit too
        identity["import_error"] = describe(exc)
        return identity
    version = str(torch.__version__)
    public, _plus, local = version.partition("+")
    identity.update(
        version=public,
        local=local or None,
        full_version=version,
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        git_version=torch.version.git_version,
        debug=bool(torch.version.debug),
        cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        arch_list=[flag for flag in (torch._C._cuda_getArchFlags() or "").split() if flag] if hasattr(torch._C, "_cuda_getArchFlags") else [],
        path=os.path.dirname(torch.__file__),
    )
    identity["family"] = {name: member(name) for name in FAMILY}
    identity["family"] = {name: value for name, value in identity["family"].items() if value is not None}
    return identity


def member(name):
    """Version of a family member and whether it imports, or None when it is not installed."""
    from importlib import metadata

    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    # A wheel may leave its build's name out of its own version and state it in the module's: PyPI allows no local part.
    found = {"version": version, "local": version.partition("+")[2] or None, "error": None, "requires_torch": None}
    for requirement in metadata.requires(name) or []:
        text = requirement.split(";")[0].replace(" ", "").replace("(", "").replace(")", "")
        if text.startswith("torch=="):
            found["requires_torch"] = text[len("torch==") :]
    try:
        module = __import__(name)
    except BaseException as exc:
        found["error"] = describe(exc)
        return found
    stated = str(getattr(module, "__version__", ""))
    found["local"] = found["local"] or stated.partition("+")[2] or None
    return found


def import_module(name, after=None):
    """Import one module, behind another one if it needs that: ``{"module", "version", "file", "error"}``."""
    import importlib

    found = {"module": name, "version": None, "file": None, "error": None}
    try:
        if after:
            importlib.import_module(after)
        module = importlib.import_module(name)
    except BaseException as exc:
        found["error"] = describe(exc)
        return found
    version = getattr(module, "__version__", None)
    found["version"] = version if isinstance(version, str) else None
    found["file"] = getattr(module, "__file__", None)
    if found["file"] is None:
        # Another distribution's folder of that name makes an empty namespace package, which imports and holds nothing.
        found["error"] = f"{name} is a namespace package without code: the package itself is not installed"
    return found


def describe(exc):
    """An exception in one line of at most 500 characters."""
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:500]


def answer(request):
    """Dispatch one request to the function that answers it."""
    task = request["task"]
    if task == "packages":
        return packages()
    if task == "torch":
        return torch_identity()
    if task == "import":
        return import_module(request["module"], request.get("after"))
    raise ValueError(f"unknown task {task}")


def main():
    request = json.loads(sys.stdin.read())
    sys.stdout.write("\n" + MARKER + json.dumps(answer(request)) + "\n")
    sys.stdout.flush()
    # What a half-loaded library does while the interpreter shuts down must not turn an answer into a failure.
    os._exit(0)


if __name__ == "__main__":
    main()
