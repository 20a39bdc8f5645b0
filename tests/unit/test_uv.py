# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calling uv, its errors, lock files, and solving with the real uv from small indexes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import uv
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from hypothesis import given, settings
from hypothesis import strategies as st
from package_files import make_index, make_wheel, real_uv, scrub_environment

CASES = Path(__file__).parent / "fixtures" / "cases"
PYTHON = "3.11"


# --- words ---


def test_credentials_are_masked():
    assert uv.mask("see https://bob:s3cret@host/simple and http://t0ken@other") == "see https://***@host/simple and http://***@other"
    assert uv.mask("mail a@b, https://host/@scope") == "mail a@b, https://host/@scope"


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("error: No solution found when resolving dependencies\n  cause: Because a==1 depends on b==2 and you require b==3, x", "UnsatisfiableRequest"),
        (
            "error: Request failed after 3 retries in 7.3s\n  cause: Failed to fetch: http://u:p@127.0.0.1/simple/a/\n  cause: tcp connect error",
            "IndexNotReachable",
        ),
        ("error: Failed to fetch: https://h/simple\n  cause: invalid peer certificate: UnknownIssuer", "CertificateNotTrusted"),
        ("error: Failed to download `torch==1`\n  cause: Hash mismatch for `torch==1`\n\n  Expected:\n    sha256:0", "HashMismatch"),
        ("error: Failed to install\n  cause: No space left on device (os error 28)", "DiskFull"),
        ("thread 'main' panicked", "UvFailed"),
        ("", "UvFailed"),
    ],
)
def test_failures_become_errors_with_uvs_reason_and_a_remedy(stderr, error):
    fault = uv.uv_error(2, stderr, "Solving a==1")
    assert fault.error == error
    assert fault.message.startswith("Solving a==1 failed. uv says: ")
    assert fault.remedy
    assert "u:p@" not in fault.message
    assert "\n" not in fault.message


def test_reason_is_one_line_without_advice_that_does_not_apply():
    advice = "hint: use `--index-strategy unsafe-best-match`"
    stderr = f"Using Python 3.11\nerror: No solution found\n  cause: Because a\n         needs b\n\n{advice}\n\nhint: b was yanked"
    assert uv.condense(stderr) == "No solution found: Because a needs b hint: b was yanked"
    assert len(uv.condense("error: " + "word " * 2000)) <= 1200


@pytest.mark.parametrize(("text", "name"), [("Flash_Attn==2", "flash-attn"), ("torch[opt]>=2", "torch"), ("a", "a"), ("x @ https://h/x.whl", "x")])
def test_requirement_name(text, name):
    assert uv.requirement_name(text) == name


@pytest.mark.parametrize("text", ["", "==1", "-r file"])
def test_no_requirement(text):
    with pytest.raises(IronwheelError, match="is not a requirement"):
        uv.requirement_name(text)


# --- lock files ---


names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,6}", fullmatch=True)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(names, st.just("1.0"), max_size=4), st.lists(names, max_size=2), st.dictionaries(names, st.text(max_size=10), max_size=3))
def test_a_lock_is_read_as_it_was_written(pins, torch_index, inputs):
    body = "".join(f"{name}=={version} \\\n    --hash=sha256:00\n    # via x\n" for name, version in pins.items())
    lock = uv.Lock(body=body, key="k" * 64, python="3.11", machine="x86_64", torch_index=tuple(torch_index), inputs=inputs)
    read = uv.parse_lock(lock.render(), "file")
    assert (read.body, read.key, read.python, read.machine, read.torch_index) == (body, lock.key, "3.11", "x86_64", tuple(torch_index))
    assert read.digest == lock.digest
    assert set(read.packages) == {name.lower() for name in pins}


def test_an_edited_lock_is_refused():
    text = uv.Lock(body="idna==3.4\n", key="k").render()
    for edited in (text.replace("idna==3.4", "idna==3.5"), text + "rich==1\n", text.replace("\n\n", "\n"), text.replace("# body", "# bodies")):
        with pytest.raises(IronwheelError, match="locks/x.txt is not as it was solved") as caught:
            uv.parse_lock(edited, "locks/x.txt")
        assert caught.value.error == "LockEdited"
        assert "remove it" in caught.value.remedy


def test_the_header_shows_inputs_without_passwords():
    text = uv.Lock(body="", inputs={"indexes": {"index_url": "https://bob:s3cret@host/simple"}, "packages": ["vllm==0.33.0"]}).render()
    assert "s3cret" not in text
    assert '# input packages: ["vllm==0.33.0"]' in text


def test_a_requirements_file_is_a_lock():
    lock = uv.parse_lock("# made by hand\nidna[x]==3.4 ; python_version > '3'\n", "tools.txt")
    assert lock.packages == {"idna": "3.4"}
    assert lock.body.startswith("# made by hand")


def test_lock_name():
    assert uv.lock_name("3.11.2", "aarch64", "0123456789abcdef") == "3.11-aarch64-0123456789ab.txt"


def test_the_tools_lock_of_the_role_is_complete():
    role = Path(__file__).parents[2] / "roles" / "uv_venv" / "files"
    wanted = {line for line in (role / "tools.in").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}
    text = (role / "tools.txt").read_text(encoding="utf-8")
    assert set(uv.parse_lock(text, "tools.txt").packages) == wanted
    assert text.count("--hash=sha256:") > len(wanted)


# --- indexes ---


def test_find_links_of_plan_and_host_are_joined(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    environ = {"UV_FIND_LINKS": f"{tmp_path}/b,https://host/wheels", "PIP_FIND_LINKS": f"{tmp_path}/c {tmp_path}/a {tmp_path}/gone"}
    indexes = uv.Indexes.on_host({"find_links": [f"{tmp_path}/a"]}, environ)
    assert indexes.find_links == (f"{tmp_path}/a", f"{tmp_path}/b", "https://host/wheels", f"{tmp_path}/c")


@pytest.mark.parametrize(
    ("plan", "error", "variable"),
    [({"find_links": ["/nowhere"]}, "FindLinksMissing", "uv_venv_find_links"), ({"ca_bundle": "/nowhere.pem"}, "CaBundleMissing", "uv_venv_ca_bundle")],
)
def test_a_path_that_a_variable_names_must_be_there(plan, error, variable):
    with pytest.raises(IronwheelError, match=variable) as caught:
        uv.Indexes.on_host(plan, {})
    assert caught.value.error == error


def test_variables_of_the_host_are_honoured_and_ours_win(tmp_path):
    environ = {
        "UV_DEFAULT_INDEX": "https://host/a",
        "UV_INDEX": "https://host/b",
        "UV_HTTP_TIMEOUT": "9",
        "UV_CONSTRAINT": "x",
        "VIRTUAL_ENV": "/v",
        "HOME": "/h",
    }
    assert uv.Indexes().environment(environ)["UV_DEFAULT_INDEX"] == "https://host/a"
    ours = uv.Indexes(index_url="https://ours/a", extra_index_urls=("https://ours/b", "https://ours/c"), offline=True, ca_bundle="/ca.pem").environment(
        {**environ, "UV_INDEX_URL": "https://host/old", "UV_EXTRA_INDEX_URL": "https://host/old"}
    )
    assert ours["UV_DEFAULT_INDEX"] == "https://ours/a"
    assert ours["UV_INDEX"] == "https://ours/b https://ours/c"
    assert ours["SSL_CERT_FILE"] == "/ca.pem"
    assert ours["UV_OFFLINE"] == "1"
    assert ours["UV_HTTP_TIMEOUT"] == "9"
    assert not {"UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONSTRAINT", "VIRTUAL_ENV"} & set(ours)


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("torch-2.13.0+cpu-py3-none-any.whl", True),
        ("torchvision-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", False),
        ("torch-2.13.0+cpu.tar.gz", False),
    ],
)
def test_a_wheel_in_a_directory_counts_only_if_it_is_exactly_the_wanted_one(tmp_path, file, fits):
    (tmp_path / file).touch()
    indexes = uv.Indexes(find_links=("https://host/wheels", f"file://{tmp_path}"))
    assert (indexes.wheel("torch", "2.13.0+cpu", "3.11.2", "x86_64") is not None) == fits


def test_cache_directory():
    assert uv.cache_directory("/c", "/p", {"UV_CACHE_DIR": "/e"}) == "/c"
    assert uv.cache_directory("", "/p", {"UV_CACHE_DIR": "/e"}) == "/e"
    assert uv.cache_directory("", "/p", {}) == "/p/cache/uv"


# --- torch of the lock and of the plan ---


@pytest.mark.parametrize("case", [pytest.param("B11", id="case-B11")])
def test_another_variant_than_the_wanted_one_is_an_error(case):
    data = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    version, local = data["input"]["want"]["torch"].split("+")
    request = uv.Request.from_plan({"torch": {"version": version, "local": local, "source": "index"}, "python": {"version": "3.12"}}, "x86_64", [])
    with pytest.raises(IronwheelError, match=f"{version}.{local} was wanted") as caught:
        uv.check_torch({"torch": data["input"]["resolved"]}, request)
    assert caught.value.error == data["expected"]["error"]
    assert uv.check_torch({"torch": data["input"]["want"]["torch"]}, request) == ""


def test_where_lock_and_plan_disagree_the_lock_is_right():
    request = uv.Request(packages=("vllm==0.40.0",), python="3.12", machine="x86_64", torch_version="2.14.0", torch_local="cu130")
    assert uv.check_torch({"torch": "2.14.0"}, request) == ""
    assert "The plan expected torch 2.14.0, the lock has 2.16.0" in uv.check_torch({"torch": "2.16.0"}, request)
    assert uv.check_torch({}, request) == ""


# --- solving, with the real uv ---


@pytest.fixture
def solve(tmp_path, tmp_path_factory, monkeypatch):
    """Solve a request against a main index and a torch index; returns packages, names from the torch index, and the body."""
    scrub_environment(monkeypatch)
    main = make_index(
        tmp_path / "main",
        ("vllm", "0.32.0", ("torch==2.13.0", "torchvision==0.28.0", "numpy")),
        ("torch", "2.13.0", ("filelock",)),
        ("torchvision", "0.28.0", ("torch==2.13.0",)),
        ("numpy", "2.0", ()),
        ("filelock", "3.0", ()),
    )
    torch = make_index(
        tmp_path / "torch",
        ("torch", "2.13.0+cu130", ("filelock",)),
        ("torchvision", "0.28.0+cu130", ("torch==2.13.0",)),
        ("numpy", "9.0", ()),
        ("filelock", "1.0", ()),
    )

    def call(request, **indexes):
        where = uv.Indexes(**{"index_url": main, "torch_index_url": torch, **indexes})
        tool = uv.Uv(real_uv(), where.environment(os.environ), str(tmp_path_factory.getbasetemp() / "uv-cache"))
        body, sourced = uv.solve(tool, uv.Request(python=PYTHON, machine="x86_64", **request), where, sys.executable)
        return uv.locked_packages(body), sourced, body

    return call


def test_everything_from_the_default_index(solve):
    packages, sourced, body = solve({"packages": ("vllm==0.32.0",), "torch_version": "2.13.0", "torch_local": "cu130"})
    assert packages == {"vllm": "0.32.0", "torch": "2.13.0", "torchvision": "0.28.0", "numpy": "2.0", "filelock": "3.0"}
    assert sourced == ()
    assert body.count("--hash=sha256:") == 5


def test_the_torch_family_comes_from_the_torch_index_and_nothing_else_does(solve):
    packages, sourced, _body = solve({"packages": ("vllm==0.32.0",), "torch_version": "2.13.0", "torch_local": "cu130", "torch_source": "index"})
    assert packages == {"vllm": "0.32.0", "torch": "2.13.0+cu130", "torchvision": "0.28.0+cu130", "numpy": "2.0", "filelock": "3.0"}
    assert sourced == ("torch", "torchvision")


def test_excluded_packages_are_left_out(solve):
    packages, sourced, _body = solve(
        {"packages": ("vllm==0.32.0",), "excluded": ("torchvision",), "torch_version": "2.13.0", "torch_local": "cu130", "torch_source": "index"}
    )
    assert "torchvision" not in packages
    assert sourced == ("torch",)


def test_constraints_hold(solve):
    with pytest.raises(IronwheelError, match="numpy<2") as caught:
        solve({"packages": ("numpy==2.0",), "constraints": ("numpy<2",)})
    assert caught.value.error == "UnsatisfiableRequest"


def test_the_torch_index_is_not_asked_when_a_directory_has_the_wheel(solve, tmp_path):
    make_wheel(tmp_path / "links", "torch", "2.13.0+cu130", ("filelock",))
    request = {"packages": ("torch==2.13.0", "numpy"), "torch_version": "2.13.0", "torch_local": "cu130", "torch_source": "index"}
    unreachable = {"torch_index_url": "http://127.0.0.1:9/simple"}
    packages, sourced, _body = solve(request, find_links=(str(tmp_path / "links"),), **unreachable)
    assert packages["torch"] == "2.13.0+cu130"
    assert sourced == ()


def test_an_index_that_does_not_answer(solve, monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(IronwheelError, match="Solving numpy for Python 3.11") as caught:
        solve({"packages": ("numpy",)}, index_url="http://bob:s3cret@127.0.0.1:9/simple")
    assert caught.value.error == "IndexNotReachable"
    assert "s3cret" not in caught.value.message


def test_offline_from_a_directory(solve, tmp_path):
    make_wheel(tmp_path / "links", "only-here", "1.0")
    packages, _sourced, _body = solve({"packages": ("only-here",)}, offline=True, find_links=(str(tmp_path / "links"),))
    assert packages == {"only-here": "1.0"}
    with pytest.raises(IronwheelError, match="numpy"):
        solve({"packages": ("numpy",)}, offline=True, find_links=(str(tmp_path / "links"),))


def test_an_empty_request_is_an_empty_lock(solve):
    assert solve({"packages": ()})[0] == {}


def test_a_uv_that_cannot_run():
    with pytest.raises(IronwheelError, match="/nowhere/uv cannot be run") as caught:
        uv.Uv("/nowhere/uv", {}).run(["--version"], "Asking")
    assert caught.value.error == "UvBroken"
