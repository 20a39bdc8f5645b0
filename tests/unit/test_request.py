# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The request: types, choices, rules, names that nobody knows, and that roles say what defaults.py says."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from ansible_collections.ironwheel.gpu.plugins.module_utils import request as request_module
from ansible_collections.ironwheel.gpu.plugins.module_utils.defaults import OPTION_BY_NAME, OPTIONS, PREFIXES
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import REPOSITORY

SPECS = {path.parts[-3]: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml"))}
KNOWN = request_module.known_variables(SPECS.values())


def read(**variables):
    return request_module.read_request(variables)


def fault(**variables):
    found = read(**variables).errors
    assert len(found) == 1, found
    return found[0]


# --- defaults


def test_nothing_set_gives_the_defaults():
    found = read()
    assert found.errors == ()
    assert found.given == frozenset()
    for option in OPTIONS:
        assert found[option.name] == (list(option.default) if option.type == "list" else option.default)


def test_every_option_passes_its_own_rule():
    for option in OPTIONS:
        default = list(option.default) if option.type == "list" else option.default
        found = read(**{option.name: default})
        assert found.errors == (), option.name
        assert found[option.name] == default, option.name
        assert option.rule == "" or option.rule in request_module._RULES
        assert option.name.startswith(PREFIXES), option.name
        assert option.description.endswith("."), option.name


@pytest.mark.parametrize(("role", "entry"), [(role, entry) for role, document in SPECS.items() for entry in document["argument_specs"]])
def test_roles_say_what_defaults_py_says(role, entry):
    """Types, choices and values: in the argument specs and in the defaults of the role."""
    path = REPOSITORY / "roles" / role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
    for name, spec in (SPECS[role]["argument_specs"][entry].get("options") or {}).items():
        if name in defaults:
            assert spec.get("default") == defaults[name], f"{role}: {name} has another default in argument_specs.yml than in defaults/main.yml"
        if name not in OPTION_BY_NAME:
            continue
        option = OPTION_BY_NAME[name]
        default = list(option.default) if option.type == "list" else option.default
        assert spec.get("type", "str") == option.type, name
        assert tuple(spec.get("choices") or ()) == option.choices, name
        assert spec.get("elements", "") == option.elements, name
        assert spec.get("default") == default, name
        assert name not in defaults or defaults[name] == default, name


# --- types


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("flash_attn_enabled", "true", True),
        ("flash_attn_enabled", "No", False),
        ("vllm_enabled", 0, False),
        ("flash_attn_jobs", "8", 8),
        ("vllm_gpu_memory_utilization", "0.85", 0.85),
        ("vllm_gpu_memory_utilization", 1, 1.0),
        ("vllm_port", 8000.0, 8000),
        ("vllm_version", "", "auto"),
        ("vllm_version", None, "auto"),
        ("flash_attn_jobs", " ", 0),
        ("vllm_version", " 0.33.0 ", "0.33.0"),
        ("nvidia_driver_version", 580, "580"),
        ("uv_venv_python", 3.12, "3.12"),
        ("flash_attn_architectures", [9.0, "12.0"], ["9.0", "12.0"]),
        ("flash_attn_architectures", "9.0,12.0", ["9.0", "12.0"]),
        ("cuda_toolkit_versions", [12.8], ["12.8"]),
        ("uv_venv_packages", "transformers\naccelerate>=1,<2\n\n", ["transformers", "accelerate>=1,<2"]),
        ("uv_venv_packages", "accelerate>=1,<2", ["accelerate>=1,<2"]),
        ("uv_venv_packages", "transformers,datasets", ["transformers", "datasets"]),
        ("uv_venv_packages", ("numpy",), ["numpy"]),
        ("nvidia_driver_managed", "False", False),
        ("nvidia_driver_managed", True, True),
        ("nvidia_driver_managed", "AUTO", "auto"),
    ],
)
def test_conversion(name, given_value, expected):
    found = read(**{name: given_value})
    assert found.errors == ()
    assert found[name] == expected
    assert type(found[name]) is type(expected)


def test_local_part_of_the_version_names_the_variant():
    found = read(torch_version="2.9.1+cu126")
    assert (found["torch_version"], found["torch_variant"]) == ("2.9.1", "cu126")
    assert read(torch_version="2.9.1+cu126", torch_variant="cu126").errors == ()
    assert "contradict" in fault(torch_version="2.9.1+cu126", torch_variant="cu130").message
    assert "cu130" in fault(torch_version="2.9.1+rocm6").message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flash_attn_enabled", "perhaps"),
        ("flash_attn_enabled", [True]),
        ("vllm_port", 0),
        ("vllm_port", 65536),
        ("vllm_port", "eighty"),
        ("vllm_port", True),
        ("vllm_port", 80.5),
        ("vllm_port", float("inf")),
        ("flash_attn_jobs", -1),
        ("flash_attn_jobs", "1e400"),
        ("vllm_gpu_memory_utilization", 0),
        ("vllm_gpu_memory_utilization", 1.1),
        ("vllm_gpu_memory_utilization", "nan"),
        ("vllm_version", "v0.33.0"),
        ("vllm_version", "latest"),
        ("vllm_version", "0.33.0; rm -rf /"),
        ("vllm_version", "0.33.0\n"[:-1] + "\nx"),
        ("vllm_version", "../../etc"),
        ("vllm_version", "$(id)"),
        ("vllm_version", True),
        ("vllm_version", {"a": 1}),
        ("torch_version", 2.1),
        ("uv_venv_python", 3.1),
        ("torch_variant", "cuda13"),
        ("torch_variant", "rocm"),
        ("vllm_package", "vllm-gpu"),
        ("vllm_model", "../models/x"),
        ("vllm_model", "/models/../../etc/shadow"),
        ("vllm_model", "org/name/more"),
        ("vllm_model", "org/$(id)"),
        ("vllm_model", "--trust-remote-code"),
        ("vllm_model", "/models/a\nb"),
        ("vllm_model", "/models/`id`"),
        ("vllm_host", "0.0.0.0; id"),
        ("vllm_host", "999.1.1.1"),
        ("vllm_extra_args", ["--a\n--b"]),
        ("uv_venv_packages", ["--index-url=https://example.org"]),
        ("uv_venv_packages", ["-e ."]),
        ("uv_venv_packages", ["git+https://example.org/x"]),
        ("uv_venv_packages", ["name; import os"]),
        ("uv_venv_packages", "a b"),
        ("uv_venv_packages", {"a": 1}),
        ("uv_venv_packages", 5),
        ("uv_venv_prefix", "relative"),
        ("uv_venv_prefix", "/opt/../etc"),
        ("uv_venv_prefix", "/opt/$HOME"),
        ("uv_venv_index_url", "example.org/simple"),
        ("uv_venv_index_url", "ftp://example.org"),
        ("uv_venv_index_url", "https://example.org/a b"),
        ("uv_venv_index_url", "https://[::1"),
        ("uv_venv_extra_index_urls", ["https://ok.example.org", "nonsense"]),
        ("uv_venv_find_links", ["relative/dir"]),
        ("uv_venv_uv_version", "auto"),
        ("flash_attn_architectures", ["sm_90"]),
        ("flash_attn_architectures", ["90"]),
        ("cuda_toolkit_versions", ["13"]),
        ("cuda_toolkit_versions", ["12.8.1"]),
        ("cuda_toolkit_source", "apt"),
        ("flash_attn_prebuilt", [{"url": "https://example.org/x.whl"}]),
        ("flash_attn_prebuilt", [{"url": "https://example.org/x.whl", "path": "/x", "sha256": "0" * 64}]),
        ("flash_attn_prebuilt", [{"url": "nonsense", "sha256": "0" * 64}]),
        ("flash_attn_prebuilt", ["https://example.org/x.whl"]),
        ("flash_attn_prebuilt", "x"),
        ("flash_attn_extensions", [{"name": "causal-conv1d"}]),
        ("flash_attn_extensions", [{"name": "../x", "version": "1"}]),
        ("nvidia_driver_managed", "maybe"),
        ("nvidia_driver_managed", []),
        ("nvidia_driver_flavour", "nouveau"),
        ("flash_attn_store", "a\x00b"),
    ],
)
def test_bad_values_name_variable_value_rule_and_remedy(name, value):
    found = fault(**{name: value})
    assert found.message.startswith(f"{name} is '")
    assert ", but " in found.message
    assert found.error == "InvalidValue"
    assert "\n" not in found.message
    assert read(**{name: value})[name] == read()[name]


def test_all_faults_are_found_at_once():
    found = read(vllm_port="x", vllm_model="../x", torch_variant="y", flash_attn_jobs=-3)
    assert {error.message.split()[0] for error in found.errors} == {"vllm_port", "vllm_model", "torch_variant", "flash_attn_jobs"}


def test_a_long_value_is_cut_in_the_message():
    assert len(fault(vllm_version="9" * 5000 + "x").message) < 400


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30)),
    lambda children: st.one_of(st.lists(children, max_size=3), st.dictionaries(st.text(max_size=5), children, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS]), ANYTHING, max_size=6))
def test_no_value_raises(variables):
    found = request_module.read_request(variables)
    assert len(found.errors) <= len(variables) + 1
    for option in OPTIONS:
        if option.choices:
            assert found[option.name] in option.choices


# --- requirements


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch==2.9.1", "torch"),
        ("Flash_Attn", "flash-attn"),
        ("a.b[c,d]>=1,<2", "a-b"),
        ('numpy ; python_version > "3.9"', "numpy"),
        ("x @ https://example.org/x.whl", "x"),
        ("x@file:///srv/x.whl", "x"),
        ("torch==2.9.1+cu128", "torch"),
        ("x~=1.4.*", "x"),
    ],
)
def test_requirement_name(text, name):
    assert request_module.requirement_name(text) == name


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_requirement_name_raises_nothing_but_its_own(text):
    with contextlib.suppress(IronwheelError):
        assert request_module.requirement_name(text)


# --- names


def test_known_names_come_from_roles_defaults_and_facts():
    assert {"vllm_version", "preflight_plan", "uv_venv_environment", "plan_output", "plan_hosts"} <= KNOWN
    for document in SPECS.values():
        for entry in document["argument_specs"].values():
            assert set(entry.get("options") or {}) <= KNOWN


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vllm_vresion", "vllm_version"),
        ("flash_attention_enabled", "flash_attn_enabled"),
        ("torch_cuda_variant", "torch_variant"),
        ("nvidia_driver_flavor", "nvidia_driver_flavour"),
        ("uv_venv_package", "uv_venv_packages"),
    ],
)
def test_mistyped_name_is_an_error_with_the_nearest_one(name, near):
    found = request_module.unknown_variables([name, "vllm_version", "my_own", "ansible_user", "_vllm_private"], KNOWN)
    if not name.startswith(PREFIXES):
        assert found == []
        return
    assert [error.error for error in found] == ["UnknownVariable"]
    assert name in found[0].message
    assert near in found[0].remedy


def test_own_variables_can_be_ignored():
    names = ["torch_home", "vllm_oops"]
    assert [error.message.split()[1] for error in request_module.unknown_variables(names, KNOWN, ["torch_home"])] == ["vllm_oops"]


def names_that_tasks_set(value):
    """Names of set_fact and register anywhere in a list of tasks."""
    if isinstance(value, list):
        return {name for item in value for name in names_that_tasks_set(item)}
    if not isinstance(value, dict):
        return set()
    found = {value["register"]} if isinstance(value.get("register"), str) else set()
    for action in ("ansible.builtin.set_fact", "set_fact"):
        if isinstance(value.get(action), dict):
            found |= set(value[action]) - {"cacheable"}
    return found.union(*(names_that_tasks_set(item) for key, item in value.items() if key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")))


def test_what_roles_and_playbooks_set_is_known():
    """A fact of our own that nobody knows would stop the next role of the same run."""
    files = [*REPOSITORY.glob("roles/*/tasks/*.yml"), *REPOSITORY.glob("roles/*/handlers/*.yml"), *REPOSITORY.glob("playbooks/*.yml")]
    names = {name for path in files for name in names_that_tasks_set(yaml.safe_load(path.read_text(encoding="utf-8")))}
    assert "preflight_plan" in names
    assert request_module.unknown_variables(names, KNOWN) == []


def test_what_roles_keep_in_vars_is_known():
    names = {name for path in REPOSITORY.glob("roles/*/vars/*.yml") for name in yaml.safe_load(path.read_text(encoding="utf-8")) or {}}
    assert request_module.unknown_variables(names, KNOWN) == []
