# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments: where they live, what is in them, which may go, and the link."""

from __future__ import annotations

import json
import os
import stat
import types
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import environments
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from hypothesis import given, settings
from hypothesis import strategies as st
from package_files import make_environment

CASES = Path(__file__).parent / "fixtures" / "cases"


@pytest.mark.parametrize(
    ("prefix", "root", "expected"),
    [
        ("", True, "/opt/ironwheel"),
        (None, False, "/home/ada/.local/share/ironwheel"),
        ("~/llm", False, "/home/ada/llm"),
        ("/srv/llm/", True, "/srv/llm"),
    ],
)
def test_prefix(prefix, root, expected):
    assert environments.resolve_prefix(prefix, root, "/home/ada") == expected


@pytest.mark.parametrize("prefix", ["llm", "./llm", "/", "/opt/", "/usr", "/srv/..", "~"])
def test_prefix_that_would_endanger_the_host_is_refused(prefix):
    with pytest.raises(IronwheelError, match="uv_venv_prefix is '") as caught:
        environments.resolve_prefix(prefix, True, "/root")
    assert caught.value.error == "InvalidPrefix"
    assert caught.value.remedy


@pytest.mark.parametrize("case", [pytest.param("D03", id="case-D03")])
def test_interpreter_that_the_service_user_cannot_reach(case):
    data = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    modes = {"/root": 0o700}

    def stat_path(path):
        return types.SimpleNamespace(st_mode=stat.S_IFDIR | modes.get(path, 0o755))

    with pytest.raises(IronwheelError, match="cannot enter /root") as caught:
        environments.require_open(
            os.path.dirname(data["input"]["venv_python"]), "The directory of the Python interpreter", data["input"]["venv_owner"], "remedy", stat_path
        )
    assert caught.value.error == data["expected"]["error"]
    modes.clear()
    environments.require_open(data["input"]["venv_python"], "x", data["input"]["venv_owner"], "remedy", stat_path)


def test_closed_directory_on_a_real_tree(tmp_path):
    tmp_path.chmod(0o711)
    closed = tmp_path / "closed"
    (closed / "deep").mkdir(parents=True)
    closed.chmod(0o700)
    below = environments.closed_directory(str(closed / "deep"))
    # Whatever lies above the test's own folder may be closed too; the innermost closed one is never passed over.
    assert below is not None and str(closed).startswith(below)


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
extension = st.fixed_dictionaries({"name": st.sampled_from(["flash-attn", "causal-conv1d", "x"]), "version": text, "fingerprint": text})


@settings(max_examples=25, deadline=None)
@given(st.lists(extension, max_size=3), st.randoms())
def test_digest_does_not_depend_on_the_order_of_extensions(extensions, random):
    python = {"version": "3.11.2", "path": "/usr/bin/python3"}
    shuffled = list(extensions)
    random.shuffle(shuffled)
    assert environments.environment_digest("a", extensions, python) == environments.environment_digest("a", shuffled, python)


def test_digest_changes_exactly_with_its_fields():
    python = {"version": "3.11.2", "path": "/usr/bin/python3"}
    flash = {"name": "flash_attn", "version": "2.8.3", "fingerprint": "f1"}
    base = environments.environment_digest("a", [flash], python)
    assert base == environments.environment_digest("a", [{**flash, "name": "Flash-Attn", "jobs": 4}], {**python, "version": "3.11.9", "reason": "x"})
    others = {
        environments.environment_digest("b", [flash], python),
        environments.environment_digest("a", [], python),
        environments.environment_digest("a", [{**flash, "fingerprint": "f2"}], python),
        environments.environment_digest("a", [{**flash, "version": "2.8.4"}], python),
        environments.environment_digest("a", [flash], {**python, "version": "3.12.1"}),
        environments.environment_digest("a", [flash], {**python, "path": None}),
    }
    assert len(others) == 6 and base not in others


def test_drift_names_every_kind(tmp_path):
    path = make_environment(tmp_path / "e", {"Right_Name": "1", "wrong": "2", "extra": "3", "flash_attn": "4", "broken": "5", "gone": "6"})
    site = path / "lib" / "python3.11" / "site-packages"
    (site / "gone.py").unlink()
    (site / "broken.py").write_text("longer than it was\n", encoding="utf-8")
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to("/nowhere/python3")
    wanted = {"right-name": "1", "wrong": "1", "missing": "9", "broken": "5", "gone": "6"}
    drift = environments.find_drift(str(path), wanted, ["flash-attn"])
    assert {(item["package"], item["kind"]) for item in drift} == {
        ("python", "interpreter"),
        ("wrong", "version"),
        ("missing", "missing"),
        ("extra", "extra"),
        ("broken", "damaged"),
        ("gone", "damaged"),
    }
    sentences = [environments.describe_drift(item) for item in drift]
    assert "wrong is 2, the lock says 1" in sentences
    assert any("/nowhere/python3" in sentence for sentence in sentences)
    assert any("gone.py" in sentence for sentence in sentences)


def test_an_environment_as_its_lock_says_has_no_drift(tmp_path):
    path = make_environment(tmp_path / "e", {"one": "1", "two": "2"})
    assert environments.find_drift(str(path), {"one": "1", "two": "2"}, []) == []


def test_two_versions_of_a_package_are_drift(tmp_path):
    path = make_environment(tmp_path / "e", {"one": "1"})
    other = path / "lib" / "python3.11" / "site-packages" / "one-2.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: one\nVersion: 2\n", encoding="utf-8")
    assert environments.find_drift(str(path), {"one": "1"}, [])[0]["found"] == "1,2"


def test_dist_info_without_metadata_or_record_is_named(tmp_path):
    path = make_environment(tmp_path / "e", {"one": "1", "two": "2"})
    site = path / "lib" / "python3.11" / "site-packages"
    (site / "one-1.dist-info" / "METADATA").unlink()
    (site / "two-2.dist-info" / "RECORD").unlink()
    drift = environments.find_drift(str(path), {"one": "1", "two": "2"}, [])
    assert [(item["package"], item["detail"]) for item in drift] == [("two", "two-2.dist-info/RECORD")]


def test_changes():
    changes = environments.package_changes({"a": "1", "b": "1"}, {"b": "2", "c": "1"})
    assert changes == {"added": {"c": "1"}, "removed": {"a": "1"}, "changed": {"b": {"before": "1", "after": "2"}}}


def test_generations_newest_first(tmp_path):
    for name in ("abc", "abc-2", "abc-10", "abcd", "tools-abc", "abc-x"):
        (tmp_path / "envs" / name).mkdir(parents=True)
    assert [number for number, _path in environments.generations(str(tmp_path), "abc")] == [10, 2, 0]
    assert environments.generation_path("/p", "abc", 0) == "/p/envs/abc"
    assert environments.generation_path("/p", "abc", 3) == "/p/envs/abc-3"
    assert environments.generations(str(tmp_path / "nothing"), "abc") == []


@pytest.mark.parametrize("record", ["", "{", "[]", '{"schema": 99}', None])
def test_what_has_no_readable_record_is_no_environment(tmp_path, record):
    path = make_environment(tmp_path / "envs" / "e", {}, created=None)
    if record is not None:
        (path / environments.RECORD_FILE).write_text(record, encoding="utf-8")
    (tmp_path / "env").symlink_to("envs/e")
    assert environments.read_record(str(path)) is None
    assert environments.linked(str(tmp_path), "env") is None


def test_link_is_switched_and_never_missing(tmp_path):
    old, new = (make_environment(tmp_path / "envs" / name, {}) for name in ("old", "new"))
    assert environments.linked(str(tmp_path), "env") is None
    environments.switch_link(str(tmp_path), "env", str(old))
    environments.switch_link(str(tmp_path), "env", str(new))
    assert environments.linked(str(tmp_path), "env") == str(new)
    # Relative, so that the prefix can be mounted elsewhere.
    assert os.readlink(tmp_path / "env") == "envs/new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["env", "envs"]


def test_a_directory_in_the_place_of_the_link_is_left_alone(tmp_path):
    (tmp_path / "env").mkdir()
    with pytest.raises(IronwheelError, match="is not a link") as caught:
        environments.switch_link(str(tmp_path), "env", str(tmp_path / "envs" / "e"))
    assert caught.value.error == "LinkBlocked"
    assert (tmp_path / "env").is_dir()


paths = st.sampled_from([f"/p/envs/{letter}" for letter in "abcdefg"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(paths, st.one_of(st.none(), st.sampled_from(["2026-01-01", "2026-01-02", "2026-01-03"]))), st.integers(1, 5), st.sets(paths, max_size=2))
def test_pruning_keeps_what_is_protected_and_the_newest(found, keep, protected):
    gone = environments.prunable(found, keep, protected)
    stay = set(found) - set(gone)
    complete = {path for path, created in found.items() if created is not None}
    assert not set(gone) & protected
    assert all(path in protected for path in stay - complete), "what is incomplete goes"
    assert len(stay & complete) == min(len(complete), max(keep, len(protected & complete)))
    free = [found[path] for path in stay & complete - protected]
    assert not free or all(found[path] <= min(free) for path in gone if found[path] is not None)


def test_tools_environments_are_counted_apart(tmp_path):
    make_environment(tmp_path / "envs" / "abc", {}, "2026-01-02")
    make_environment(tmp_path / "envs" / "half", {}, None)
    make_environment(tmp_path / "envs" / "tools-abc", {}, "2026-01-01")
    assert environments.find_environments(str(tmp_path)) == {str(tmp_path / "envs" / "abc"): "2026-01-02", str(tmp_path / "envs" / "half"): None}
    assert environments.find_environments(str(tmp_path), tools=True) == {str(tmp_path / "envs" / "tools-abc"): "2026-01-01"}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    environments.write_atomically(str(path), "old")
    with pytest.raises(UnicodeEncodeError):
        environments.write_atomically(str(path), "new \udc80")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
