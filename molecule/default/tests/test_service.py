# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The served model on the host with the whole stack: it answers those who may ask, and the service can do nothing else."""

from __future__ import annotations

import json
import os
import re

import pytest

# Where no CPU build of torch could be had, no host serves, and the run has said so.
testinfra_hosts = ["ansible://ironwheel-default-debian12"] if os.environ.get("IRONWHEEL_TORCH", "true") == "true" else []

PREFIX = "/opt/ironwheel"
API_KEY = "molecule-secret-5f2c1e"
ENV_FILE = "/etc/ironwheel/vllm.env"

ASK = """
import json, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Content-Type": "application/json"})
if sys.argv[2]:
    request.add_header("Authorization", "Bearer " + sys.argv[2])
if sys.argv[3]:
    request.data = sys.argv[3].encode()
try:
    with urllib.request.urlopen(request, timeout=120) as answer:
        print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, None]))
"""


@pytest.fixture(scope="module")
def ask(host):
    """Ask the server on the host; returns (status, document)."""

    def send(path: str, key: str = API_KEY, body: dict | None = None, address: str = "127.0.0.1"):
        said = host.check_output("python3 -c %s %s %s %s", ASK, f"http://{address}:8000{path}", key, json.dumps(body) if body else "")
        return json.loads(said)

    return send


@pytest.fixture(scope="module")
def properties(host) -> dict[str, str]:
    shown = host.check_output("systemctl show --all vllm.service")
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


@pytest.fixture(scope="module")
def process(host, properties) -> dict[str, str]:
    """/proc/<main process>/status of the running server."""
    text = host.file(f"/proc/{properties['MainPID']}/status").content_string
    return {key: value.strip() for key, value in (line.split(":", 1) for line in text.splitlines() if ":" in line)}


def test_service_runs_and_starts_at_boot(host, properties):
    assert host.service("vllm").is_running
    assert host.service("vllm").is_enabled
    assert properties["NRestarts"] == "0"


def test_server_answers_a_completion(ask):
    status, models = ask("/v1/models")
    assert status == 200
    (model,) = models["data"]
    status, answer = ask("/v1/completions", body={"model": model["id"], "prompt": "one two three", "max_tokens": 5, "temperature": 0, "ignore_eos": True})
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("key", ["", "wrong"])
def test_server_refuses_who_has_no_key(ask, key):
    assert ask("/v1/models", key=key)[0] == 401


def test_server_listens_on_loopback_alone(host):
    sockets = host.check_output("ss -Hltn").splitlines()
    local = [line.split()[3] for line in sockets]
    assert "127.0.0.1:8000" in local
    assert [address for address in local if not address.endswith(":22") and not address.startswith(("127.", "[::1]"))] == []


def test_server_runs_as_a_user_without_rights(process, host):
    uid = host.user("vllm").uid
    assert set(process["Uid"].split()) == {str(uid)}
    assert int(process["CapEff"], 16) == int(process["CapBnd"], 16) == 0
    assert process["NoNewPrivs"] == "1"
    assert process["Seccomp"] == "2"


def test_service_user_cannot_log_in(host):
    user = host.user("vllm")
    assert user.shell == "/usr/sbin/nologin"
    assert host.check_output("passwd --status vllm").split()[1] == "L"
    assert host.run("su - vllm -c true").rc != 0


def test_service_user_can_read_its_environment_and_not_change_it(host):
    assert host.run(f"runuser -u vllm -- {PREFIX}/env/bin/python -c 'import torch'").rc == 0
    for path in (f"{PREFIX}/env/bin", f"{PREFIX}/envs", f"{PREFIX}/uv", "/etc/ironwheel"):
        assert host.run(f"runuser -u vllm -- test -w {path}").rc != 0, path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("User", "vllm"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectControlGroups", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("CapabilityBoundingSet", ""),
        ("UMask", "0077"),
        ("Restart", "on-failure"),
    ],
)
def test_service_is_hardened(properties, name, value):
    assert properties[name] == value


def test_systemd_counts_the_service_as_well_protected(host):
    last = host.check_output("systemd-analyze security --no-pager vllm.service").splitlines()[-1]
    # "→ Overall exposure level for vllm.service: 1.9 OK"; 10 is the worst.
    assert float(re.search(r"vllm\.service: ([0-9.]+)", last).group(1)) < 3.0, last


def test_secret_is_in_a_file_of_root_alone(host):
    secrets = host.file(ENV_FILE)
    assert (secrets.user, secrets.group, secrets.mode) == ("root", "root", 0o600)
    assert API_KEY in secrets.content_string


def test_secret_is_in_nothing_that_others_can_read(host, properties):
    searched = "/etc /opt/ironwheel /usr/local /var/lib /var/log /run /tmp /var/tmp /root"
    found = host.run(f"find {searched} -xdev -type f -size -20M -exec grep -lF {API_KEY} {{}} + 2>/dev/null").stdout.split()
    assert found == [ENV_FILE]
    assert API_KEY not in host.check_output("ps -eo args | grep -v grep")
    assert API_KEY not in host.check_output("journalctl --no-pager -o cat")
    assert API_KEY not in json.dumps(properties)


def test_torch_is_the_cpu_build_without_cuda_relatives(host):
    listed = host.check_output(f"{PREFIX}/uv/0.13.9/uv pip list --python {PREFIX}/env/bin/python --format json")
    packages = {entry["name"]: entry["version"] for entry in json.loads(listed)}
    assert packages["torch"].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(packages)
    assert [name for name in packages if name.startswith("nvidia-")] == []
