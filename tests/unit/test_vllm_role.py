# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How vLLM is launched: instances, commands, environment, units and secrets, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.ironwheel.gpu.plugins.module_utils import demo_model, server_process, serving
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.modules import system_packages, vllm_demo_model, vllm_launch, vllm_service
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "fixtures" / "cases"
CANARY = 'canary-"s3cr\\et$x%'


def case(name):
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def instance(**keys):
    return serving.read_instance({"model": "demo", **keys})


def gpu(capability="9.0", memory=140000, **keys):
    return {"compute_capability": capability, "memory_mib": memory, "uuid": "GPU-" + keys.get("id", "1"), "unified_memory": False, **keys}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Parameters of vllm_launch for an environment whose Python is this one, as an ordinary user."""
    monkeypatch.setattr(vllm_launch.os, "geteuid", lambda: 1000)
    # The interpreter of these tests may lie where another user could not go; check_access has tests of its own.
    monkeypatch.setattr(vllm_launch.Host, "identity", lambda self: (os.getuid(), [os.getgid()], "tester"))
    environment = tmp_path / "envs" / "d1"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "env").symlink_to("envs/d1")
    os.chmod(tmp_path, 0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "instances": [],
        "defaults": {"name": "default", "model": "demo", "port": port},
        "environment": {"path": str(environment), "link": str(tmp_path / "env")},
        "plan": {"profile": "cpu", "python": {"version": "3.11"}},
        "host": {"os": {"systemd": False, "like": ["debian"]}, "cpu": {"usable": 4}, "memory": {"usable_mib": 20000}, "compilers": {"gcc": "12.2"}, "gpus": []},
        "user": "vllm",
        "state_dir": "",
        "cache_dir": "",
        "api_key": "none",
        "hf_token": "none",
        "allow_unauthenticated": False,
        "offline": False,
        "compile_jobs": 0,
        "usage_stats": False,
        "variables": {},
        "system_packages": True,
        "planned": False,
        "report_only": False,
    }


def as_root(monkeypatch, params):
    """The same host as root with systemd."""
    monkeypatch.setattr(vllm_launch.os, "geteuid", lambda: 0)
    params["host"]["os"]["systemd"] = True
    # The interpreter that runs these tests may lie below a home.
    monkeypatch.setattr(vllm_launch, "check_interpreter", lambda found: True)
    return params


def gpu_host(params, *gpus):
    params["plan"].update(profile="gpu", cuda={"path": "/opt/ironwheel/toolkits/cuda-13.0", "version": "13.0"})
    params["host"]["gpus"] = list(gpus) or [gpu()]
    return params


def refused(call, *words):
    with pytest.raises(IronwheelError) as caught:
        call()
    for word in words:
        assert word in caught.value.message
    assert caught.value.remedy
    return caught.value


def launched(params, check_mode=False):
    return vllm_launch.launch(params, check_mode)["instances"][0]


def render(name, **variables):
    """A template of the role, as Ansible renders it."""
    text = (ROOT / "roles" / "vllm" / "templates" / name).read_text(encoding="utf-8")
    templar = Templar(loader=DataLoader(), variables={"ansible_managed": "Ansible managed", **variables})
    templar.environment.trim_blocks = True
    # The stamp renders the unit; tests of the file alone need no second template.
    return templar.template(
        trust_as_template(text.replace("lookup('ansible.builtin.template', 'vllm.service.j2')", "item.generation")), escape_backslashes=False
    )


def unit(found):
    """The unit's settings: name to the list of its values."""
    settings = {}
    for line in render("vllm.service.j2", item=found).splitlines():
        if line and not line.startswith(("#", "[")):
            name, value = line.split("=", 1)
            settings.setdefault(name, []).append(value)
    return settings


# Instances


def test_the_default_instance_listens_on_loopback_alone():
    found = serving.read_instance({"model": "demo"})
    assert (found.host, found.port, found.unit, found.served_model_name) == ("127.0.0.1", 8000, "vllm.service", "demo")
    assert serving.read_instance({"model": "org/Big-7B", "name": "chat"}).unit == "vllm-chat.service"


@pytest.mark.parametrize(
    ("keys", "variable"),
    [
        ({"name": "../x"}, "name of a vLLM instance"),
        ({"name": "a b"}, "name of a vLLM instance"),
        ({"model": ""}, "vllm_model"),
        ({"model": "org/../etc"}, "vllm_model"),
        ({"model": "a;rm -rf /"}, "vllm_model"),
        ({"model": "/srv/m\nExecStart=/bin/sh"}, "vllm_model"),
        ({"model": "$(id)"}, "vllm_model"),
        ({"host": "0.0.0.0 --allow"}, "vllm_host"),
        ({"port": 80}, "vllm_port"),
        ({"port": 70000}, "vllm_port"),
        ({"port": "http"}, "vllm_port"),
        ({"gpu_memory_utilization": 1.5}, "vllm_gpu_memory_utilization"),
        ({"tensor_parallel_size": -1}, "vllm_tensor_parallel_size"),
        ({"max_model_len": -5}, "vllm_max_model_len"),
        ({"served_model_name": "a\nb"}, "vllm_served_model_name"),
        ({"extra_args": ["--port", "1"]}, "vllm_port"),
        ({"extra_args": ["--api-key=hunter2hunter2"]}, "vllm_api_key"),
        ({"extra_args": ["--api_key", "x"]}, "vllm_api_key"),
        ({"extra_args": ["--max-num-seqs 8"]}, "vllm_extra_args"),
        ({"extra_args": ["--x=\n[Service]"]}, "vllm_extra_args"),
    ],
)
def test_bad_descriptions_name_the_variable(keys, variable):
    error = refused(lambda: instance(**keys), variable)
    assert "hunter2" not in error.message


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["name", "model", "host", "port", "dtype", "gpus", "extra_args", "max_model_len"]), st.text() | st.integers() | st.lists(st.text())
    )
)
def test_any_description_is_read_or_refused(raw):
    try:
        found = serving.read_instance(raw)
    except IronwheelError:
        return
    assert "\n" not in serving.systemd_argument(found.model) and 1024 <= found.port <= 65535


def test_instances_collide_by_name_and_port():
    one = instance()
    refused(lambda: serving.check_collisions([one, instance(port=8001)]), "'default'")
    refused(lambda: serving.check_collisions([one, instance(name="two")]), "8000", "'two'")
    serving.check_collisions([one, instance(name="two", port=8001)])


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(address):
    serving.check_bind(instance(host=address), False, False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5", "gpu01.example.com"])
def test_a_public_bind_without_a_key_is_refused_unless_insisted_on(address):
    error = refused(lambda: serving.check_bind(instance(host=address), False, False), address, "vllm_api_key")
    assert error.error == "UnauthenticatedBind"
    serving.check_bind(instance(host=address), True, False)
    serving.check_bind(instance(host=address), False, True)


# GPUs and memory


@pytest.mark.parametrize("name", [pytest.param("D06", id="case-D06")])
def test_one_engine_over_unlike_gpus_is_refused(name):
    given_case = case(name)
    gpus = [gpu(entry["cc"], entry["mem_mib"]) for entry in given_case["input"]["gpus"]]
    wanted = instance(tensor_parallel_size=given_case["input"]["tensor_parallel"], dtype=given_case["input"]["dtype"])
    error = refused(lambda: serving.check_parallel(wanted, gpus), "lowest, 7.5, rules", "no bfloat16")
    assert error.error == given_case["expected"]["error"]


@pytest.mark.parametrize("name", [pytest.param("D11", id="case-D11-serving")])
def test_unified_memory_lowers_the_share(name):
    given_case = case(name)
    wanted = instance(gpu_memory_utilization=given_case["input"]["gpu_memory_utilization"])
    share, warning = serving.memory_share(wanted, [gpu("12.1", None, unified_memory=True)])
    assert share <= given_case["expected"]["checks"]["gpu_memory_utilization_max"]
    assert warning["warning"] == given_case["expected"]["checks"]["warning"]
    assert serving.memory_share(wanted, [gpu()]) == (0.9, None)
    assert serving.memory_share(instance(gpu_memory_utilization=0.5), [gpu(unified_memory=True)]) == (0.5, None)


def test_gpus_are_found_by_uuid_address_or_index():
    gpus = [gpu(id="a", index=0, pci_address="0000:01:00.0"), gpu(id="b", index=1, pci_address="0000:02:00.0")]
    assert serving.instance_gpus(instance(gpus=["GPU-b"]), gpus) == [gpus[1]]
    assert serving.instance_gpus(instance(gpus=["0000:01:00.0", "1"]), gpus) == gpus
    assert refused(lambda: serving.instance_gpus(instance(gpus=["GPU-x"]), gpus), "GPU-x", "GPU-a").error == "GpuNotFound"
    assert refused(lambda: serving.check_parallel(instance(tensor_parallel_size=4), gpus), "4").error == "TooFewGpus"


@pytest.mark.parametrize(("weights", "fits"), [(100_000, True), (130_000, False), (None, True)])
def test_weights_must_fit_the_share_of_the_gpu(weights, fits):
    def call():
        serving.check_model_memory(instance(), weights, [gpu()], 10**6, 0.9)

    if fits:
        call()
    else:
        assert refused(call, "130000", "126000").error == "ModelTooLarge"


def test_weights_must_fit_the_memory_of_a_host_without_gpus():
    assert refused(lambda: serving.check_model_memory(instance(), 30_000, [], 20_000, None), "20000").error == "ModelTooLarge"


# Commands, environment and paths


def test_no_command_line_holds_a_secret_and_each_works_for_both_distributions(host):
    found = launched(host)
    assert found["argv"][1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert found["argv"][0] == os.path.join(os.path.dirname(host["environment"]["link"]), "env", "bin", "python")
    assert "--enforce-eager" in found["argv"] and found["argv"][found["argv"].index("--max-model-len") + 1] == "512"


@pytest.mark.parametrize("name", [pytest.param("D02", id="case-D02")])
def test_every_cache_is_where_the_service_user_may_write(name, host, monkeypatch):
    checks = case(name)["expected"]["checks"]
    result = vllm_launch.launch(as_root(monkeypatch, host), True)
    found = result["instances"][0]
    assert checks["HF_HOME_set"] and found["environment"]["HF_HOME"] == "/var/cache/vllm/huggingface"
    assert checks["VLLM_CACHE_ROOT_set"] and found["environment"]["VLLM_CACHE_ROOT"] == "/var/cache/vllm/vllm"
    assert found["user"] == result["user"] == checks["owner"]
    writable = {entry["path"] for entry in result["directories"] if entry["writable"]}
    places = {name: value for name, value in found["environment"].items() if value.startswith("/")}
    caches = [value for name, value in places.items() if re.search("CACHE|HOME$|CONFIG|WORKSPACE", name)]
    assert len(caches) > 8 and all(any(value.startswith(path) for path in writable) for value in caches)
    assert unit(found)["ReadWritePaths"] == ["/var/lib/vllm /var/cache/vllm"]


def test_the_processes_of_a_server_talk_over_loopback_and_keep_their_byte_code(host, monkeypatch):
    """Seen on a test host: without them the engine listened on 13 ports of the host's outside address."""
    environment = vllm_launch.launch(as_root(monkeypatch, host), True)["instances"][0]["environment"]
    assert (environment["VLLM_HOST_IP"], environment["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    assert environment["PYTHONPYCACHEPREFIX"] == "/var/cache/vllm/pycache"


@pytest.mark.parametrize("name", [pytest.param("D04", id="case-D04")])
def test_runtime_compilation_names_the_packages_that_are_missing(name):
    given_case = case(name)["input"]
    python = given_case["python"].split()[0]

    def missing(like=("debian",), wanted=None, gpu_profile=True, numa=True):
        return serving.missing_packages(wanted or instance(model="org/m"), gpu_profile, python, given_case["dev_headers"], given_case["gcc"], like, numa)

    error = refused(lambda: serving.check_packages(instance(), missing()), *case(name)["expected"]["detail"])
    assert error.error == case(name)["expected"]["error"]
    assert missing(("rhel", "fedora")) == ["python3.12-devel", "gcc"]
    # Nothing is compiled for eager execution on a CPU, whose build loads libnuma.
    assert missing(wanted=instance(), gpu_profile=False) == []
    assert missing(wanted=instance(), gpu_profile=False, numa=False) == ["libnuma1"]
    assert missing(("fedora",), wanted=instance(), gpu_profile=False, numa=False) == ["numactl-libs"]


def test_missing_packages_are_installed_as_root_and_an_error_otherwise(host, monkeypatch):
    monkeypatch.setattr(vllm_launch, "library_loads", lambda name: False)
    assert refused(lambda: launched(host), "libnuma1").error == "BuildDependencyMissing"
    params = as_root(monkeypatch, host)
    assert vllm_launch.launch(params, False)["packages"] == ["libnuma1"]
    params["system_packages"] = False
    refused(lambda: launched(params), "libnuma1")


class Manager:
    """A package manager that needs its lists read first."""

    def __init__(self, works_after=1):
        self.there, self.asked, self.works_after = {"bash": "5"}, [], works_after

    def installed(self):
        return self.there, []

    def update(self):
        self.asked.append("update")

    def transaction(self, install, remove):
        self.asked.append(tuple(install))
        return (0, "", "") if self.asked.count("update") >= self.works_after else (100, "", "E: Unable to locate package libnuma1")


def test_system_packages_reads_the_lists_when_it_must():
    manager = Manager()
    assert system_packages.converge(manager, ["bash"], False) == [] and manager.asked == []
    assert system_packages.converge(manager, ["libnuma1", "bash"], True) == ["libnuma1"] and manager.asked == []
    assert system_packages.converge(manager, ["libnuma1"], False) == ["libnuma1"]
    assert manager.asked == [("libnuma1",), "update", ("libnuma1",)]
    with pytest.raises(IronwheelError, match="Unable to locate package libnuma1"):
        system_packages.converge(Manager(works_after=2), ["libnuma1"], False)


@pytest.mark.parametrize("name", [pytest.param("D03", id="case-D03-serving")])
def test_an_interpreter_below_roots_home_is_refused(name):
    given_case = case(name)
    python = given_case["input"]["venv_python"]

    def lookup(path):
        return SimpleNamespace(st_mode=0o40700 if path == "/root" else 0o100755 if path == python else 0o40755, st_uid=0, st_gid=0)

    error = refused(
        lambda: serving.check_access(python, "The interpreter", 1001, [1001], given_case["input"]["venv_owner"], lookup, execute=True), "/root", "mlops"
    )
    assert error.error == given_case["expected"]["error"] and given_case["expected"]["fix"] in error.remedy
    serving.check_access(python, "The interpreter", 0, [0], "root", lookup, execute=True)


def test_jobs_of_runtime_compilation_are_limited_by_cores_and_memory():
    assert [serving.compile_jobs(0, cores, mib) for cores, mib in ((2, 20000), (64, 20000), (64, 10**6), (64, 3000), (None, None))] == [2, 4, 8, 1, 1]
    assert serving.compile_jobs(3, 64, 10**6) == 3


def test_a_gpu_instance_gets_cuda_and_its_gpus(host):
    gpu_host(host, gpu(id="a", index=0), gpu(id="b", index=1))
    host["instances"] = [{"gpus": ["GPU-b"], "gpu_memory_utilization": 0.5}]
    found = launched(host, check_mode=True)
    assert found["environment"]["CUDA_HOME"] == "/opt/ironwheel/toolkits/cuda-13.0"
    assert found["environment"]["PATH"].split(":")[:2] == [os.path.join(host["environment"]["link"], "bin"), "/opt/ironwheel/toolkits/cuda-13.0/bin"]
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-b" and found["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["argv"][found["argv"].index("--gpu-memory-utilization") + 1] == "0.5"


def test_only_a_hub_name_may_reach_the_hub(host):
    assert launched(host)["environment"]["HF_HUB_OFFLINE"] == "1"
    host["instances"] = [{"model": "org/model", "extra_args": ["--enforce-eager"]}]
    assert "HF_HUB_OFFLINE" not in launched(host)["environment"]
    host["offline"] = True
    assert refused(lambda: launched(host), "org/model", "vllm_hf_offline").error == "ModelNotAvailable"


@pytest.mark.parametrize("variables", [{"A B": "x"}, {"X": "a\nb"}, {"VLLM_API_KEY": "canary"}])
def test_bad_environment_variables_are_refused(host, variables):
    host["variables"] = variables
    assert "canary" not in refused(lambda: launched(host), "vllm_environment").message


# What the host refuses


def test_a_model_path_must_exist_and_hold_a_model(host, tmp_path):
    host["instances"] = [{"model": str(tmp_path / "nothing")}]
    assert refused(lambda: launched(host), "vllm_model", "does not exist").error == "ModelNotFound"
    (tmp_path / "empty").mkdir()
    host["instances"] = [{"model": str(tmp_path / "empty")}]
    assert refused(lambda: launched(host), "config.json").error == "ModelNotFound"


def test_a_model_that_does_not_fit_is_refused(host, tmp_path):
    model = tmp_path / "big"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with open(model / "model.safetensors", "wb") as handle:
        handle.truncate(64 << 30)  # sparse
    host["instances"] = [{"model": str(model), "extra_args": ["--enforce-eager"]}]
    assert refused(lambda: launched(host), "65536", "20000").error == "ModelTooLarge"


def test_a_model_that_changes_changes_its_stamp(host, tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    described = instance(model=str(model))
    before = vllm_launch.model_stamp(described)
    assert vllm_launch.model_stamp(described) == before
    (model / "config.json").write_text("{ }")
    assert vllm_launch.model_stamp(described) != before


def test_a_port_of_another_program_is_refused_and_named(host):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host["defaults"]["port"] = taken.getsockname()[1]
        error = refused(lambda: launched(host), str(taken.getsockname()[1]), str(os.getpid()))
    assert error.error == "PortInUse"


def test_the_port_of_the_instances_own_service_is_no_conflict(host, monkeypatch):
    monkeypatch.setattr(server_process, "listener", lambda port: {"pid": 1, "command": "python", "unit": "vllm.service"})
    launched(as_root(monkeypatch, host))
    host["instances"] = [{"name": "other"}]
    refused(lambda: launched(host), "already taken")


def test_the_environment_must_be_there_except_in_check_mode(host):
    host["environment"] = {"path": "/nonexistent/envs/x", "link": "/nonexistent/env"}
    assert refused(lambda: launched(host), "/nonexistent/envs/x").error == "EnvironmentMissing"
    assert launched(host, check_mode=True)["generation"] == "x"


def test_before_there_is_an_environment_what_can_be_checked_is(host, tmp_path):
    host.update(environment={"path": "", "link": "/nonexistent/env"}, planned=True)
    launched(host)
    host["instances"] = [{"model": str(tmp_path / "nothing")}]
    assert refused(lambda: launched(host), "does not exist").error == "ModelNotFound"
    host["instances"] = [{"host": "0.0.0.0"}]
    assert refused(lambda: launched(host), "0.0.0.0").error == "UnauthenticatedBind"


@pytest.mark.parametrize(
    ("variable", "value"), [("state_dir", "/"), ("state_dir", "relative"), ("cache_dir", "/var"), ("cache_dir", "/data/my cache"), ("state_dir", "/var/lib")]
)
def test_directories_of_the_service_are_its_own(host, variable, value):
    host[variable] = value
    refused(lambda: launched(host), f"vllm_{variable}", value)


def test_the_server_never_runs_as_root(host, monkeypatch):
    refused(lambda: launched({**as_root(monkeypatch, host), "user": "root"}), "vllm_user")


def test_problems_of_secrets_never_show_them(host):
    host["api_key"] = "invalid"
    refused(lambda: launched(host), "vllm_api_key")


# The unit


def test_unit_of_a_cpu_host(host, monkeypatch):
    found = unit(launched(as_root(monkeypatch, host)))
    assert found["User"] == found["Group"] == ["vllm"]
    assert found["ExecStart"][0].startswith(os.path.join(host["environment"]["link"], "bin", "python") + " -m vllm.entrypoints.openai.api_server --model ")
    assert found["EnvironmentFile"] == ["/etc/ironwheel/vllm.env"]
    assert '"IRONWHEEL_ENVIRONMENT=d1"' in found["Environment"]
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "ProtectClock": "yes",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "UMask": "0077",
        "MemoryDenyWriteExecute": "no",
        "Restart": "on-failure",
        "StartLimitBurst": "3",
        "KillMode": "mixed",
        "TimeoutStartSec": "300",
        "WantedBy": "multi-user.target",
    }.items():
        assert found[name] == [value], name
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert "ExecStartPre" not in found


def test_unit_of_a_gpu_host_sees_its_gpus(host, monkeypatch):
    found = unit(launched(gpu_host(as_root(monkeypatch, host))))
    # Both would put a device list in force in which the GPUs are missing.
    assert found["PrivateDevices"] == ["no"] and found["ProtectClock"] == ["no"] and "DeviceAllow" not in found
    assert found["LimitMEMLOCK"] == ["infinity"] and found["ExecStartPre"] == ["+-/usr/bin/nvidia-modprobe -c 0 -u"]
    assert '"CUDA_HOME=/opt/ironwheel/toolkits/cuda-13.0"' in found["Environment"]


def test_another_environment_changes_the_unit(host, monkeypatch):
    params = as_root(monkeypatch, host)
    before = render("vllm.service.j2", item=launched(params))
    other = Path(params["environment"]["path"]).with_name("d2")
    other.mkdir()
    params["environment"]["path"] = str(other)
    assert render("vllm.service.j2", item=launched(params)) != before


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("with_gpu", [False, True])
def test_exposure_of_the_unit_is_at_most_3(host, monkeypatch, tmp_path, with_gpu):
    params = as_root(monkeypatch, host)
    found = launched(gpu_host(params) if with_gpu else params)
    path = tmp_path / "vllm.service"
    path.write_text(render("vllm.service.j2", item=found))
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)], capture_output=True, text=True, check=False)
    level = re.search(r"exposure level for vllm.service: ([0-9.]+)", done.stdout)
    if level is None and "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze has no --offline")
    assert level is not None and float(level.group(1)) <= 3.0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("text", ["plain", "with space", "100%", "a$b", 'quo"te', "back\\slash", "{'json': 1}"])
def test_arguments_reach_the_program_as_they_are(text):
    quoted = serving.systemd_argument(text).replace("%%", "%").replace("$$", "$")
    assert shlex.split(quoted) == [text]


# Secrets


def test_secrets_are_in_the_environment_file_and_nowhere_else(host, monkeypatch):
    params = as_root(monkeypatch, host)
    params["api_key"] = "set"
    found = launched(params)
    text = render("vllm.env.j2", item=found, vllm_api_key=CANARY, vllm_hf_token="hf_canary")
    parsed = serving.parse_environment_file(text)
    assert parsed["VLLM_API_KEY"] == CANARY and parsed["HF_TOKEN"] == "hf_canary" and len(parsed[serving.STAMP]) == 64
    for place in (json.dumps(found), render("vllm.service.j2", item=found)):
        assert "canary" not in place
    without = render("vllm.env.j2", item=found, vllm_api_key="", vllm_hf_token="")
    assert set(serving.parse_environment_file(without)) == {serving.STAMP}
    assert serving.parse_environment_file(without)[serving.STAMP] != parsed[serving.STAMP]


def test_the_role_hands_no_secret_to_a_module_and_logs_none():
    for name in ("main", "launch"):
        tasks = (ROOT / "roles" / "vllm" / "tasks" / f"{name}.yml").read_text(encoding="utf-8")
        for line in tasks.splitlines():
            if "vllm_api_key" in line or "vllm_hf_token" in line:
                assert "'none' if" in line, line
    block = yaml.safe_load((ROOT / "roles" / "vllm" / "tasks" / "main.yml").read_text(encoding="utf-8"))[-1]["block"]
    writer = next(task for task in block if task.get("ansible.builtin.template", {}).get("src") == "vllm.env.j2")
    assert writer["no_log"] is True and writer["ansible.builtin.template"]["mode"] == "0600"


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40))
def test_any_secret_survives_the_environment_file(secret):
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    assert serving.parse_environment_file(f'VLLM_API_KEY="{escaped}"\n') == {"VLLM_API_KEY": secret}
    assert secret not in serving.redact(f"key is {secret}.", {"VLLM_API_KEY": secret}) or secret in "key is ********."


@given(st.text())
def test_an_environment_file_of_any_text_is_read(text):
    assert isinstance(serving.parse_environment_file(text), dict)


# The service and the demo model


@pytest.mark.parametrize(
    ("seen", "running", "wanted", "actions"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive"}, None, "s", ["daemon-reload", "enable", "start"]),
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, "s", "s", []),
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, "old", "s", ["restart"]),
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "disabled"}, "s", "s", ["enable"]),
        ({"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "enabled"}, None, "s", ["start"]),
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled", "NeedDaemonReload": "yes"}, "s", "s", ["daemon-reload"]),
    ],
)
def test_a_service_is_restarted_only_when_it_runs_with_something_else(seen, running, wanted, actions):
    assert vllm_service.needed(seen, running, wanted, False) == actions


def test_check_mode_announces_the_restart_of_a_change_that_is_not_written_yet():
    seen = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
    assert vllm_service.needed(seen, "s", "s", True) == ["restart"]


def test_the_demo_model_is_the_same_everywhere_and_made_once(tmp_path):
    wanted = demo_model.files()
    assert wanted == demo_model.files()
    hashes = json.loads(wanted["ironwheel.json"])["sha256"]
    assert hashes["model.safetensors"] == "824fa7c930b49a7a568ab11d021bdd790d5e28dfcb256316bd9dc17839d5b305"
    path = str(tmp_path / "models" / "demo")
    assert set(vllm_demo_model.differing(path, wanted)) == set(wanted)
    vllm_demo_model.make(path, wanted)
    assert vllm_demo_model.differing(path, wanted) == []
    (tmp_path / "models" / "demo" / "config.json").write_text("{}")
    assert vllm_demo_model.differing(path, wanted) == ["config.json"]
    vllm_demo_model.make(path, wanted)
    assert vllm_demo_model.differing(path, wanted) == [] and os.listdir(tmp_path / "models") == ["demo"]


def test_the_demo_models_weights_fit_its_configuration():
    data = demo_model.weights()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert max(ends) == len(data) - 8 - size
    assert header["lm_head.weight"]["shape"] == [demo_model.config()["vocab_size"], demo_model.config()["hidden_size"]]
