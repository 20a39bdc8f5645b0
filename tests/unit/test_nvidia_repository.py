# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which repository a host gets, keys, and the entries that stand in the way."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import repository as repo
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

CASES = Path(__file__).parent / "fixtures/cases"
URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
OWN = "/etc/apt/sources.list.d/ironwheel-nvidia.sources"
KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
NVIDIA = "EB693B3035CD5710E231E123A4B469963BF863CC"

# A key made for these tests (Ed25519, version 4), and its fingerprint as gpg tells it.
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEaw5AGBYJKwYBBAHaRw8BAQdA0Mkfp4Cs7tsKhvl3eJigg6kIbgPTsd9NnDcB
9rZI5Ty0F3Rlc3QgPHRlc3RAZXhhbXBsZS5jb20+iJAEExYIADgWIQQFKCgYG9LK
r1qyR6R3PYBtjvWoxQUCaw5AGAIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAK
CRB3PYBtjvWoxYn8AQCjyoZ0BWK9j13y5KPxaL2t2uc1IGC75ja3rP+H8BjBSAEA
/k2hjJGV5/pnJSVEsDFaVzKUVVSgO6LjJ3IJVWcg3Qk=
=8coz
-----END PGP PUBLIC KEY BLOCK-----
"""
FINGERPRINT = "052828181BD2CAAF5AB247A4773D806D8EF5A8C5"


def os_facts(name: str, version: str, arch: str = "x86_64") -> dict:
    return {"id": name, "version": version, "arch": arch}


@pytest.mark.parametrize(
    ("name", "version", "arch", "folder"),
    [
        ("ubuntu", "22.04", "x86_64", "ubuntu2204/x86_64"),
        ("ubuntu", "24.04", "aarch64", "ubuntu2404/sbsa"),
        ("ubuntu", "26.04", "x86_64", "ubuntu2604/x86_64"),
        ("debian", "12", "x86_64", "debian12/x86_64"),
        ("debian", "13.1", "x86_64", "debian13/x86_64"),
        ("rhel", "9.5", "x86_64", "rhel9/x86_64"),
        ("rocky", "9.6", "aarch64", "rhel9/sbsa"),
        ("almalinux", "10.0", "x86_64", "rhel10/x86_64"),
        ("ol", "9.5", "x86_64", "rhel9/x86_64"),
        ("centos", "10", "x86_64", "rhel10/x86_64"),
    ],
)
def test_folder_and_key_by_distribution(name, version, arch, folder):
    found = repo.wanted(os_facts(name, version, arch), {})
    assert found.url == f"https://developer.download.nvidia.com/compute/cuda/repos/{folder}/"
    assert found.key_url.startswith(found.url) and found.manager == ("apt" if name in ("ubuntu", "debian") else "dnf")


@pytest.mark.parametrize("reported", [pytest.param("C03", id="case-C03")])
def test_debian_13_gets_its_own_repository_and_key(reported):
    content = json.loads((CASES / f"{reported}.json").read_text())
    given, expected = content["input"], content["expected"]
    facts = os_facts(given["os_release"]["ID"], given["os_release"]["VERSION_ID"])
    found = repo.wanted(facts, {})
    assert f"/{expected['checks']['repo']}/" in found.url
    assert found.key_url.endswith("8793F200.pub") and found.fingerprints != (NVIDIA,)
    with pytest.raises(IronwheelError) as caught:
        repo.wanted(facts, {"distribution": given["repo"]})
    assert caught.value.error == "WrongRepository"


@pytest.mark.parametrize(
    ("name", "version", "arch", "error"),
    [
        ("debian", "11", "x86_64", "UnsupportedDistribution"),
        ("fedora", "43", "x86_64", "UnsupportedDistribution"),
        ("ubuntu", "24.04", "riscv64", "UnsupportedArchitecture"),
    ],
)
def test_unsupported_hosts_are_refused(name, version, arch, error):
    with pytest.raises(IronwheelError) as caught:
        repo.wanted(os_facts(name, version, arch), {})
    assert caught.value.error == error


def test_mirror_has_a_key_of_its_own():
    mirror = repo.wanted(os_facts("debian", "11"), {"url": "http://mirror.example.com/nvidia", "key_url": "http://mirror.example.com/key.asc"})
    assert (mirror.url, mirror.fingerprints) == ("http://mirror.example.com/nvidia/", ())
    same_layout = repo.wanted(os_facts("debian", "12"), {"base_url": "http://mirror.example.com/repos/"})
    assert same_layout.url == "http://mirror.example.com/repos/debian12/x86_64/" and same_layout.fingerprints == (NVIDIA,)


# --- keys ----------------------------------------------------------------------------------------------------------------------------------------------------


def test_fingerprint_of_a_key_armoured_and_binary():
    assert repo.key_fingerprints(KEY.encode()) == [FINGERPRINT]
    binary = repo.dearmor(KEY.encode())
    assert not binary.startswith(b"-") and repo.key_fingerprints(binary) == [FINGERPRINT]
    assert repo.key_fingerprints(KEY.replace("\n", "\r\n").encode()) == [FINGERPRINT]
    assert repo.dearmor(binary) == binary


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>404</html>", KEY.encode()[:120], KEY.encode().replace(b"\n\n", b"\n\n!", 1), base64.b64decode("mDME"), b"\x99", b"\xff\xff\xff\xff\xff\xff"],
)
def test_what_is_no_key_is_an_error(data):
    with pytest.raises(IronwheelError) as caught:
        repo.key_fingerprints(data)
    assert caught.value.error == "InvalidKey"


@pytest.mark.parametrize(
    ("wanted", "fits"), [((), True), ((FINGERPRINT,), True), ((FINGERPRINT[-8:],), True), ((NVIDIA,), False), ((NVIDIA, FINGERPRINT), True)]
)
def test_key_that_fits(wanted, fits):
    assert repo.key_fits([FINGERPRINT], wanted) is fits


def test_fingerprints_are_read_as_people_write_them():
    assert repo.normal_fingerprint("EB69 3B30 35CD 5710 E231  E123 A4B4 6996 3BF8 63CC") == NVIDIA
    assert repo.normal_fingerprint("0x3bf863cc") == "3BF863CC"
    with pytest.raises(IronwheelError):
        repo.normal_fingerprint("nvidia")


# --- entries -------------------------------------------------------------------------------------------------------------------------------------------------

ONE_LINE = f"""\
# deb {URL} /
deb [arch=amd64 signed-by={KEYRING}] {URL} /
deb-src http://deb.example.com/debian bookworm main
"""
DEB822 = f"""\
# ours is first
Types: deb
URIs: {URL.rstrip("/")}
Suites: /
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb deb-src
URIs: http://deb.example.com/debian
 http://other.example.com/debian
Suites: bookworm bookworm-updates
Components: main
Enabled: no
"""
REPO = f"""\
[cuda-rhel9]
name=cuda
baseurl={URL}
enabled=1
gpgkey=file:///etc/pki/rpm-gpg/KEY

[other]
baseurl=http://other.example.com
"""


def test_entries_of_all_three_formats():
    entries = repo.read_entries({"/e/a.list": ONE_LINE, "/e/b.sources": DEB822, "/e/c.repo": REPO, "/e/d.bak": ONE_LINE})
    found = [(entry.style, entry.place, entry.uri, entry.suite, entry.signed_by[:9], entry.enabled) for entry in entries]
    assert found[:3] == [
        ("list", 1, URL, "/", "/usr/shar", True),
        ("list", 2, "http://deb.example.com/debian", "bookworm", "", True),
        ("sources", 0, URL.rstrip("/"), "/", "-----BEGI", True),
    ]
    assert found[3:7] == [
        ("sources", 1, f"http://{host}.example.com/debian", suite, "", False) for host in ("deb", "other") for suite in ("bookworm", "bookworm-updates")
    ]
    assert found[7:] == [("repo", 0, URL, "", "file:///e", True), ("repo", 1, "http://other.example.com", "", "", True)]


@pytest.mark.parametrize(
    ("uri", "relation"),
    [
        (URL, "same"),
        (URL.rstrip("/"), "same"),
        (URL.replace("https", "http") + "./", "same"),
        (URL.replace("debian12", "ubuntu2404"), "foreign"),
        ("http://mirror.example.com/compute/cuda/repos/debian13/x86_64", "foreign"),
        (URL.replace("x86_64", "sbsa"), ""),
        ("https://download.docker.com/linux/debian", ""),
        ("https://nvidia.github.io/libnvidia-container/stable/deb/amd64", ""),
    ],
)
def test_relation_of_an_entry_to_the_wanted_repository(uri, relation):
    assert repo.relation(repo.Entry("/e/a.list", "list", 0, uri, "/", "", True), URL) == relation


def plan(files: dict[str, str], keyrings=None, fingerprints=(FINGERPRINT,)):
    return repo.plan_sources(repo.read_entries(files), OWN, URL, "/", keyrings or {}, fingerprints)


def test_nothing_there_is_written():
    found = plan({})
    assert found.write and not found.disable and not found.adopted


def test_entry_of_the_keyring_package_is_adopted():
    found = plan({"/e/cuda.list": ONE_LINE}, {KEYRING: [NVIDIA, FINGERPRINT]})
    assert (found.write, found.disable, found.adopted) == (False, (), "/e/cuda.list")


@pytest.mark.parametrize("keyrings", [{}, {KEYRING: [NVIDIA]}])
def test_entry_with_the_wrong_key_is_replaced(keyrings):
    found = plan({"/e/cuda.list": ONE_LINE}, keyrings)
    assert found.write and [entry.path for entry in found.disable] == ["/e/cuda.list"] and "Signed-By" in found.reasons[0]


def test_second_entry_beside_ours_goes_even_when_it_is_good():
    ours = repo.render_sources(repo.wanted(os_facts("debian", "12"), {}), "/etc/apt/keyrings/ironwheel-nvidia.gpg")
    found = plan({OWN: ours, "/e/cuda.list": ONE_LINE}, {KEYRING: [FINGERPRINT]})
    assert found.write and [entry.path for entry in found.disable] == ["/e/cuda.list"]


def test_two_entries_of_others_are_both_replaced():
    found = plan({"/e/cuda.list": ONE_LINE, "/e/b.sources": DEB822}, {KEYRING: [FINGERPRINT]})
    assert found.write and {entry.path for entry in found.disable} == {"/e/cuda.list", "/e/b.sources"}


def test_converged_host_has_nothing_to_do():
    repository = repo.wanted(os_facts("debian", "12"), {})
    text = repo.render_sources(repository, "/etc/apt/keyrings/ironwheel-nvidia.gpg")
    entries = repo.read_sources(OWN, text)
    assert [(entry.uri, entry.suite, entry.signed_by) for entry in entries] == [(URL, "/", "/etc/apt/keyrings/ironwheel-nvidia.gpg")]
    assert not plan({OWN: text}).disable


@pytest.mark.parametrize(
    ("style", "text", "reader"), [("list", ONE_LINE, repo.read_list), ("sources", DEB822, repo.read_sources), ("repo", REPO, repo.read_repo)]
)
def test_switched_off_entry_is_off_and_the_rest_as_it_was(style, text, reader):
    entry = next(entry for entry in reader("/e/x", text) if repo.relation(entry, URL) == "same")
    changed = repo.disable(style, text, [entry.place])
    assert not [found for found in reader("/e/x", changed) if found.enabled and repo.relation(found, URL) == "same"]
    others = [(found.uri, found.suite, found.enabled) for found in reader("/e/x", text) if repo.relation(found, URL) != "same"]
    assert [(found.uri, found.suite, found.enabled) for found in reader("/e/x", changed) if repo.relation(found, URL) != "same"] == others
    kept = [line for line in text.splitlines() if not line.startswith("enabled=1")]
    assert all(any(line in new for new in changed.splitlines()) for line in kept), "no line of the original is lost"


def test_dnf_file():
    text = repo.render_repo(repo.wanted(os_facts("rocky", "9.5"), {}), "/etc/pki/rpm-gpg/RPM-GPG-KEY-ironwheel-nvidia")
    entry = repo.read_repo("/e/x.repo", text)[0]
    assert entry.uri.endswith("/rhel9/x86_64/") and repo.local_path(entry.signed_by) == "/etc/pki/rpm-gpg/RPM-GPG-KEY-ironwheel-nvidia"
    assert "gpgcheck=1" in text
