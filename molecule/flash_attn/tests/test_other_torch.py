# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheel that was built for torch 2.14.1+cu130, beside a CPU build of torch and beside another CUDA release of it."""

from __future__ import annotations

import json

import pytest

PREFIX = "/opt/ironwheel"
UV = f"{PREFIX}/uv/0.13.9/uv"
MODULE = "causal_conv1d_cuda"
OTHER = "2.13.0"


@pytest.fixture(scope="module")
def built(host) -> dict:
    """The recorded wheel of causal-conv1d and its compiled module, on the first host."""
    if not host.backend.get_hostname().endswith("-one"):
        pytest.skip("one host is enough")
    record = json.loads(host.file(f"{PREFIX}/env/ironwheel.json").content_string)
    (entry,) = [item for item in record["extensions"] if item["name"] == "causal-conv1d"]
    return {**entry, "file": host.check_output(f"ls {PREFIX}/env/lib/python3*/site-packages/{MODULE}*.so")}


def failed(judged: dict) -> dict[str, str]:
    """``{check: error}`` of what failed."""
    assert judged["verdict"] == "failed", judged
    return {finding["check"]: finding["error"] for module in judged["modules"] for finding in module["findings"] if finding["verdict"] == "failed"}


def test_beside_a_cpu_build(host, built):
    python = "/srv/cpu-torch/bin/python"
    if not host.file("/srv/wheelhouse").exists or "+cpu" not in host.check_output("ls /srv/wheelhouse"):
        pytest.skip("the wheelhouse has no CPU build of torch")
    version = host.check_output("ls /srv/wheelhouse | grep -o 'torch-[0-9.]*+cpu' | head -n 1").removeprefix("torch-")
    host.check_output(f"{UV} venv -q --allow-existing /srv/cpu-torch")
    host.check_output(f"{UV} pip install -q --python {python} --no-index --find-links /srv/wheelhouse --find-links /srv/cuda-wheels torch=={version}")
    site = host.check_output("ls -d /srv/cpu-torch/lib/python3*/site-packages")
    torch = {"version": version, "cuda": None, "cxx11_abi": True}
    arguments = {"site_packages": [site], "files": [built["file"]], "torch": torch, "prefix": PREFIX}
    wrong = failed(host.ansible("ironwheel.gpu.abi_check", json.dumps(arguments), check=False))
    assert (wrong["cuda_major"], wrong["libraries"]) == ("TorchWithoutCuda", "LibraryMissing")
    # What the verdict is worth: it really does not load.
    host.check_output(f"cp {built['file']} {site}")
    said = host.run(f"{python} -I -c 'import torch, {MODULE}'")
    assert said.rc != 0 and "libc10_cuda.so" in said.stderr
    arguments = {"state": "accepted", "name": "causal-conv1d", "version": "1.7.0", "environment": "/srv/cpu-torch", "prefix": PREFIX, "architectures": ["9.0"]}
    arguments.update(wheel=built["wheel"], sha256=built["sha256"], fields=built["fields"], fingerprint=built["fingerprint"])
    with pytest.raises(host.ansible.AnsibleException) as refused:
        host.ansible("ironwheel.gpu.extension_wheel", json.dumps(arguments), check=False)
    assert refused.value.result["error"] == "TorchWithoutCuda"


def test_beside_another_release(host, built):
    # Its CUDA libraries are those of the environment, so that torch alone is enough.
    got = host.run(f"{UV} pip install -q --target /srv/other-torch --no-deps torch=={OTHER}")
    if got.rc != 0:
        pytest.skip(f"no torch {OTHER} can be had: {got.stderr.strip().splitlines()[-1]}")
    site = host.check_output(f"ls -d {PREFIX}/env/lib/python3*/site-packages")
    version = host.check_output("sed -n \"s/^__version__ = '\\(.*\\)'/\\1/p\" /srv/other-torch/torch/version.py")
    torch = {"version": version, "cuda": "13.0", "cxx11_abi": True}
    arguments = {"site_packages": ["/srv/other-torch", site], "files": [built["file"]], "torch": torch, "prefix": PREFIX}
    judged = host.ansible("ironwheel.gpu.abi_check", json.dumps(arguments), check=False)
    host.check_output("rm -rf /srv/other-torch")
    assert failed(judged)["symbols"] == "AbiMismatch"
    (reason,) = [finding["reason"] for finding in judged["modules"][0]["findings"] if finding["check"] == "symbols"]
    assert f"built for another torch than {OTHER}" in reason
