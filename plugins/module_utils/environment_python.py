# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asking an environment's own Python, in a process of its own that is always ended."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess

from ansible_collections.ironwheel.gpu.plugins.module_utils import gpu_checks, torch_probe
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

PYTHON = os.path.join("bin", "python")


def probe(environment: str, request: dict, timeout: float) -> dict:
    """Answer of ``torch_probe.py`` to one request, given by the Python of the environment at this path."""
    return ask(os.path.join(environment, PYTHON), inspect.getsource(torch_probe), request, timeout)


def gpu_check(environment: str, request: dict, timeout: float) -> dict:
    """Answer of ``gpu_checks.py`` to one request."""
    return ask(os.path.join(environment, PYTHON), inspect.getsource(gpu_checks), request, timeout)


def ask(python: str, source: str, request: dict, timeout: float) -> dict:
    """Run a probe's source with a Python in isolated mode and return its JSON answer.

    Raises:
        IronwheelError: the interpreter does not start, takes too long, dies or gives no answer.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_PRELOAD"))}
    # A probe never reaches for a hub, and leaves no byte code behind in an environment that is not its own.
    environment.update(
        LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    # With -I the interpreter ignores PYTHONDONTWRITEBYTECODE; -B says the same.
    code, output, errors = run([python, "-I", "-B", "-c", source], timeout, json.dumps(request), environment)
    for line in reversed(output.splitlines()):
        if line.startswith(torch_probe.MARKER):
            return json.loads(line[len(torch_probe.MARKER) :])
    how = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
    detail = " ".join((errors.strip().splitlines() or ["no message"])[-1].split())[:400]
    raise IronwheelError(f"{python} {how} while answering '{request.get('task')}': {detail}", "ProbeFailed")


def run(argv: list[str], timeout: float, stdin: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command in its own process group; on time-out the whole group is ended.

    Returns:
        Exit status (negative: the signal), standard output, standard error.

    Raises:
        IronwheelError: the command does not start or takes longer than ``timeout`` seconds.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as exc:
        raise IronwheelError(f"{argv[0]} does not start: {exc.strerror or exc}.", "CommandNotStarted") from exc
    try:
        output, errors = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired as exc:
        raise IronwheelError(
            f"{argv[0]} took longer than {timeout:g} s and was ended.", "CommandTimeout", "Give it more time, or find out what it waits for."
        ) from exc
    finally:
        # Also what the command left running in the background holds our pipes: end the group in every case.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    return process.returncode, output, errors
