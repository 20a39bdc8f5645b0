# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which toolkits a host lacks, where they come from, by which names, and within which limits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.ironwheel.gpu.plugins.module_utils import toolkit_install
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables.cuda_toolkits import CUDA_TOOLKITS
from ansible_collections.ironwheel.gpu.plugins.module_utils.toolkit_install import Request, Toolkit
from ansible_collections.ironwheel.gpu.plugins.module_utils.toolkit_wheels import MARKER
from host_trees import case

REPOSITORY = json.loads((Path(__file__).parent / "fixtures" / "cuda_toolkit" / "repository.json").read_text())["packages"]
FOLDER = "/opt/ironwheel/toolkits"

DISTRIBUTIONS = [
    ("ubuntu", "22.04", "apt"),
    ("ubuntu", "24.04", "apt"),
    ("ubuntu", "26.04", "apt"),
    ("debian", "12", "apt"),
    ("debian", "13", "apt"),
    ("rhel", "9.6", "dnf"),
    ("rhel", "10.1", "dnf"),
    ("rocky", "9.5", "dnf"),
    ("almalinux", "10.0", "dnf"),
    ("ol", "9.6", "dnf"),
    ("centos", "10", "dnf"),
]
MINIMAL = {
    "apt": [
        *("cuda-nvcc", "cuda-cuobjdump", "cuda-nvdisasm", "cuda-nvtx", "cuda-profiler-api"),
        *("cuda-cudart-dev", "cuda-nvrtc-dev", "cuda-nvml-dev"),
        *("libcublas-dev", "libcufft-dev", "libcurand-dev", "libcusolver-dev", "libcusparse-dev"),
    ],
    "dnf": [
        *("cuda-nvcc", "cuda-cuobjdump", "cuda-nvdisasm", "cuda-nvtx", "cuda-profiler-api"),
        *("cuda-cudart-devel", "cuda-nvrtc-devel", "cuda-nvml-devel"),
        *("libcublas-devel", "libcufft-devel", "libcurand-devel", "libcusolver-devel", "libcusparse-devel"),
    ],
}


def host(os_id="ubuntu", version="24.04", arch="x86_64", glibc="2.36", root=True, gcc="13.3.0", gpus=(), driver=None) -> dict:
    return {
        "os": {"id": os_id, "version": version, "arch": arch, "glibc": glibc},
        "user": {"root": root, "home": "/home/u"},
        "compilers": {"gcc": gcc, "gxx": gcc, "clang": None, "all": []},
        "gpus": [{"compute_capability": capability} for capability in gpus],
        "driver": {"state": "ok", "module_version": driver} if driver else {"state": "absent"},
    }


def whole(path: str, source: str = "repository", version: str = "", packages: str = "minimal") -> Toolkit:
    version = version or path.rsplit("-", 1)[-1]
    return Toolkit(path, version, f"{version}.1", [], source, packages)


def decide(versions, found=(), facts=None, link=None, packaged=None, **more) -> dict:
    request = Request(versions=tuple(versions), folder=FOLDER, **more)
    return toolkit_install.decide(request, list(found), facts or host(), link, packaged or {})


# --- packages by distribution ---


@pytest.mark.parametrize(("os_id", "version", "manager"), DISTRIBUTIONS)
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("toolkit", ["12.8", "13.1"])
def test_packages_of_each_distribution(os_id, version, manager, arch, toolkit):
    plan = decide([toolkit], facts=host(os_id, version, arch))
    assert plan["manager"] == manager
    assert plan["packages"] == [f"{name}-{toolkit.replace('.', '-')}" for name in MINIMAL[manager]]
    assert plan["steps"] == ["repository", "verify"]
    assert plan["toolkits"][0]["path"] == f"/usr/local/cuda-{toolkit}"
    assert toolkit_install.driver_packages(plan["packages"]) == []
    assert decide([toolkit], facts=host(os_id, version, arch), packages="full")["packages"] == [f"cuda-toolkit-{toolkit.replace('.', '-')}"]


@pytest.mark.parametrize("toolkit", ["12.8", "13.1"])
def test_apt_names_exist_and_bring_every_part(toolkit):
    """Against the repository's own names and dependencies: what the minimal set pulls in is a whole toolkit without a driver."""
    known = {package["name"]: package for package in REPOSITORY}
    todo, seen = toolkit_install.package_names(toolkit, "minimal", "apt"), set()
    while todo:
        name = todo.pop().split(" ")[0]
        if name not in seen:
            seen.add(name)
            todo += known[name]["depends"]
    assert toolkit_install.driver_packages(sorted(seen)) == []
    files = {re.sub(rf"^/usr/local/cuda-{toolkit}/(targets/x86_64-linux/)?", "", file) for name in seen for file in known[name]["files"]}
    files |= {re.sub(r"^lib/", "lib64/", file) for file in files}
    for places in toolkit_install.PARTS.values():
        assert files & set(places.split("|")), places


@pytest.mark.parametrize(
    "name",
    [
        *("cuda", "cuda-12-8", "cuda-runtime-13-0", "cuda-demo-suite-12-8", "cuda-drivers", "cuda-drivers-580", "cuda-compat-13-0", "libcuda1"),
        *("nvidia-driver-580-open", "nvidia-open", "nvidia-dkms-580", "nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-driver-cuda-libs"),
        *("libnvidia-compute-580", "libnvidia-ml1", "kmod-nvidia-open-dkms", "nvidia-fabricmanager", "nvidia-persistenced", "nvidia-modprobe"),
        *("xserver-xorg-video-nvidia", "linux-modules-nvidia-580-generic", "nvidia-firmware-580-580.95.05", "nvidia-utils-580"),
    ],
)
def test_driver_packages_are_known(name):
    assert toolkit_install.driver_packages([name, "libc6-dev"]) == [name]


@pytest.mark.parametrize("package", [package["name"] for package in REPOSITORY if not re.fullmatch(r"cuda-(runtime-)?\d+-\d+", package["name"])])
def test_toolkit_packages_are_no_driver(package):
    assert toolkit_install.driver_packages([package]) == []


def test_others_of_nvidia_are_no_driver():
    names = ["libnvjitlink-13-0", "libnvvm-13-0", "libnvjpeg-dev-12-8", "gds-tools-12-8", "nvidia-container-toolkit", "nsight-compute-2025.3.1", "cccl-13-4"]
    assert toolkit_install.driver_packages(names) == []


# --- sources ---


@pytest.mark.parametrize(
    ("version", "wanted", "facts", "source"),
    [
        ("13.0", "auto", host(), "repository"),
        ("13.0", "auto", host(root=False), "wheels"),
        ("13.0", "auto", host("fedora", "43"), "wheels"),
        ("13.0", "auto", host("debian", "11"), "wheels"),
        ("13.0", "wheels", host(), "wheels"),
        ("12.8", "auto", host("debian", "12"), "repository"),
        ("12.8", "runfile", host("fedora", "43", root=False), "runfile"),
        ("13.2", "repository", host("rocky", "9.5", "aarch64"), "repository"),
    ],
)
def test_source(version, wanted, facts, source):
    assert toolkit_install.choose_source(version, wanted, facts["os"], facts["user"]["root"]) == source


def test_a_mirror_serves_a_distribution_that_nvidia_does_not():
    facts = host("fedora", "43")
    assert toolkit_install.choose_source("12.8", "auto", facts["os"], True, "https://mirror.example.com/") == "repository"


@pytest.mark.parametrize(
    ("version", "wanted", "facts", "error", "words"),
    [
        ("12.8", "wheels", host(), "ToolkitNotInWheels", ["12.8", "no nvcc", "runfile"]),
        ("12.8", "auto", host(root=False), "NoToolkitSource", ["12.8", "not root", "runfile"]),
        ("12.8", "auto", host("fedora", "43"), "NoToolkitSource", ["fedora 43", "13.0"]),
        ("13.0", "repository", host("opensuse-leap", "15.6"), "UnsupportedDistribution", ["opensuse-leap 15.6", "wheels"]),
        ("12.8", "repository", host(arch="riscv64"), "UnsupportedDistribution", ["riscv64", "runfile"]),
        ("13.0", "repository", host(root=False), "NeedsRoot", ["become"]),
        ("13", "auto", host(), "InvalidVersion", ["13"]),
    ],
)
def test_a_source_that_cannot_give_it(version, wanted, facts, error, words):
    with pytest.raises(IronwheelError) as caught:
        toolkit_install.choose_source(version, wanted, facts["os"], facts["user"]["root"])
    assert caught.value.error == error
    said = caught.value.as_result()["msg"]
    assert all(word in said for word in words), said


# --- runfiles ---

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("version", "machine", "url"),
    [
        ("12.8", "x86_64", "https://x/12.8.1/local_installers/cuda_12.8.1_570.124.06_linux.run"),
        ("12.8", "aarch64", "https://x/12.8.1/local_installers/cuda_12.8.1_570.124.06_linux_sbsa.run"),
        ("13.0", "x86_64", "https://x/13.0.2/local_installers/cuda_13.0.2_580.95.05_linux.run"),
        ("13.4", "x86_64", "https://x/13.4.1/local_installers/cuda_13.4.1_linux.run"),
    ],
)
def test_runfile_names(version, machine, url):
    assert toolkit_install.runfile(version, machine, "https://x/", {"sha256": SHA.upper()}) == {
        "version": version,
        "url": url,
        "sha256": SHA,
        "name": url.rsplit("/", 1)[1],
    }


def test_runfile_of_a_mirror():
    assert toolkit_install.runfile("13.5", "x86_64", "https://x", {"sha256": SHA, "url": "file:///srv/c.run"})["url"] == "file:///srv/c.run"


@pytest.mark.parametrize(
    ("version", "given", "error"),
    [("12.8", {}, "RunfileWithoutHash"), ("12.8", {"sha256": "12"}, "RunfileWithoutHash"), ("13.5", {"sha256": SHA}, "UnknownRunfile")],
)
def test_a_runfile_that_cannot_be_had(version, given, error):
    with pytest.raises(IronwheelError) as caught:
        toolkit_install.runfile(version, "x86_64", "https://x", given)
    assert caught.value.error == error


# --- limits ---


@pytest.mark.parametrize(
    ("version", "facts", "words"),
    [
        ("12.8", host(glibc="2.41"), ["12.8", "2.41"]),
        ("12.8", host(gcc="15.2.0"), ["15.2.0", "14"]),
        ("13.0", host(gcc="16.1.0"), ["16.1.0", "15"]),
        ("13.0", host(gpus=["7.0"]), ["13.0", "7.0", "7.5"]),
        ("12.6", host(gpus=["9.0", "12.0"]), ["12.6", "12.0"]),
        ("13.0", host(driver="570.124.06"), ["580", "570.124.06"]),
    ],
)
def test_limits_name_the_numbers(version, facts, words):
    with pytest.raises(IronwheelError) as caught:
        decide([version], facts=facts)
    assert caught.value.error == "ToolkitLimits"
    assert all(word in caught.value.message for word in words), caught.value.message
    plan = decide([version], facts=facts, enforce_limits=False)
    assert plan["warnings"] and plan["steps"] == ["repository", "verify"]


def test_what_is_not_known_is_no_limit():
    facts = host(glibc=None, gcc=None)
    facts["gpus"] = [{"compute_capability": None}]
    assert toolkit_install.limit_faults("12.8", facts) == []
    assert toolkit_install.limit_faults("12.8", {}) == []


def test_limits_do_not_touch_a_toolkit_that_is_there():
    assert decide(["12.8"], [whole("/usr/local/cuda-12.8")], host(glibc="2.41"))["steps"] == []


# --- what is there ---


def plant(path: Path, version: str, marker: dict | None = None, without: tuple[str, ...] = ()) -> dict:
    """A toolkit's files and its host fact."""
    for name, places in toolkit_install.PARTS.items():
        if name not in without:
            file = path / places.split("|")[0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")
    if marker is not None:
        (path / MARKER).write_text(json.dumps({"schema": 1, "kind": "cuda_toolkit", **marker}))
    return {"path": str(path), "version": version, "nvcc_version": f"{version}.88"}


def test_examine_a_whole_toolkit(tmp_path):
    toolkit = toolkit_install.examine(plant(tmp_path / "cuda-12.8", "12.8", {"source": "runfile", "packages": "full"}), {})
    assert toolkit.complete and not toolkit.fault
    assert (toolkit.source, toolkit.packages, toolkit.removable) == ("runfile", "full", True)


@pytest.mark.parametrize("part", sorted(toolkit_install.PARTS))
def test_each_part_is_missed(tmp_path, part):
    toolkit = toolkit_install.examine(plant(tmp_path / "t", "12.8", without=(part,)), {})
    assert not toolkit.complete
    assert toolkit.missing == [part]
    assert part in toolkit.fault


def test_thrust_below_cccl_is_found(tmp_path):
    fact = plant(tmp_path / "t", "13.0", without=("thrust",))
    file = tmp_path / "t/include/cccl/thrust/tuple.h"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    assert toolkit_install.examine(fact, {}).complete


def test_an_nvcc_of_another_release_does_not_count(tmp_path):
    fact = plant(tmp_path / "t", "12.8")
    fact["nvcc_version"] = "12.6.85"
    assert "12.6.85" in toolkit_install.examine(fact, {}).fault
    fact["nvcc_version"] = None
    assert "does not say its version" in toolkit_install.examine(fact, {}).fault


def test_a_toolkit_of_nobody_is_never_removed(tmp_path):
    toolkit = toolkit_install.examine(plant(tmp_path / "cuda-12.8", "12.8"), {"12.8": ["cuda-nvcc-12-8"]})
    assert (toolkit.source, toolkit.removable) == ("unknown", False)
    assert decide([], [toolkit], remove_unlisted=True)["steps"] == []


def test_packaged_versions():
    installed = [package["name"] for package in REPOSITORY]
    found = toolkit_install.packaged_versions([*installed, "cuda-compat-12-8", "libc6", "cuda-keyring", "libcudnn9-dev-cuda-12", "libstdc++-12-dev"])
    assert set(found) == {"12.8", "13.1"}
    assert found["12.8"] == sorted(name for name in installed if re.search(r"-12-8\b", name))


# --- what to do ---


@pytest.mark.parametrize("name", [pytest.param("C16", id="case-C16")])
def test_torch_gets_its_toolkit_whatever_the_link_says(name):
    values = case(name)
    found = [whole(path) for path in values["input"]["toolkits"]]
    plan = decide([values["input"]["torch_cuda"]], found, link=values["input"]["cuda_symlink"])
    assert plan["toolkits"][0]["path"] == values["expected"]["checks"]["CUDA_HOME"]
    assert (plan["link"] is not None) == values["expected"]["checks"]["symlink_changed"]
    assert plan["steps"] == []


def test_a_version_beside_another_installs_that_one_alone():
    plan = decide(["12.8", "13.1"], [whole("/usr/local/cuda-13.1")])
    assert [entry["present"] for entry in plan["toolkits"]] == [False, True]
    assert all(name.endswith("-12-8") for name in plan["packages"])


def test_a_damaged_toolkit_is_made_again():
    damaged = Toolkit(f"{FOLDER}/cuda-13.0", "13.0", "13.0.88", ["ptxas"], "wheels", "minimal")
    plan = decide(["13.0"], [damaged], source="wheels")
    assert plan["wheels"] == ["13.0"]
    assert plan["toolkits"][0]["reason"] == f"{FOLDER}/cuda-13.0 lacks ptxas"


def test_a_whole_one_serves_beside_a_damaged_one():
    damaged = Toolkit("/usr/local/cuda-13.0", "13.0", None, ["nvcc"], "repository", "minimal")
    plan = decide(["13.0"], [damaged, whole(f"{FOLDER}/cuda-13.0", "wheels")])
    assert plan["steps"] == [] and plan["toolkits"][0]["path"] == f"{FOLDER}/cuda-13.0"


def test_the_full_set_is_installed_over_the_minimal_one():
    found = [whole("/usr/local/cuda-12.8"), whole(f"{FOLDER}/cuda-13.0", "wheels"), whole("/opt/cuda-13.2", "unknown")]
    plan = decide(["12.8", "13.0", "13.2"], found, packages="full", source="auto")
    assert plan["packages"] == ["cuda-toolkit-12-8", "cuda-toolkit-13-0"]
    assert [entry["present"] for entry in plan["toolkits"]] == [False, False, True]
    assert decide(["12.8"], [whole("/usr/local/cuda-12.8", packages="full")], packages="full")["steps"] == []


def test_removal_only_on_request_and_after_everything_else():
    found = [whole("/usr/local/cuda-12.8"), whole(f"{FOLDER}/cuda-13.0", "wheels"), whole("/opt/cuda-11.8", "unknown", "11.8")]
    packaged = {"12.8": ["cuda-nvcc-12-8"]}
    assert decide(["13.2"], found, packaged=packaged)["steps"] == ["repository", "verify"]
    plan = decide(["13.2"], found, packaged=packaged, remove_unlisted=True, default="13.2")
    assert plan["steps"] == ["repository", "verify", "link", "remove"]
    assert plan["remove_packages"] == ["cuda-nvcc-12-8"]
    assert plan["remove_folders"] == [f"{FOLDER}/cuda-13.0"]
    assert plan["removed"] == ["12.8", "13.0"]


def test_removing_packages_needs_root():
    with pytest.raises(IronwheelError) as caught:
        decide([], [whole("/usr/local/cuda-12.8")], host(root=False), remove_unlisted=True)
    assert caught.value.error == "NeedsRoot"


def test_the_default_link_only_on_request():
    found = [whole("/usr/local/cuda-12.8")]
    assert decide(["12.8"], found, link=None)["steps"] == []
    assert decide(["12.8"], found, link=None, default="12.8")["steps"] == ["link"]
    assert decide(["12.8"], found, link="/usr/local/cuda-12.8", default="12.8")["steps"] == []
    assert decide(["12.8"], found, link="/usr/local/cuda-13.0", default="12.8")["link"] == "/usr/local/cuda-12.8"


def test_every_known_toolkit_has_a_source_on_every_distribution():
    for version in CUDA_TOOLKITS:
        for os_id, release, _manager in DISTRIBUTIONS:
            assert decide([version], facts=host(os_id, release), enforce_limits=False)["packages"]


def test_removed_packages_of_both_managers():
    apt = "Reading state information...\nPurg cuda-nvcc-12-8 [12.8.93-1]\nRemv libx:amd64 [1]\nPurg cuda-crt-12-8* [12.8.93-1]\n".replace("*", "")
    assert toolkit_install.removed_packages(apt) == ["cuda-crt-12-8", "cuda-nvcc-12-8", "libx"]
    dnf = (
        "Dependencies resolved.\n Package          Arch    Version      Repository  Size\nRemoving:\n"
        " cuda-nvcc-12-8   x86_64  12.8.93-1    @nvidia     199 M\nRemoving dependent packages:\n other   x86_64  1-1    @x     1 M\n\nTransaction Summary\n"
    )
    assert toolkit_install.removed_packages(dnf) == ["cuda-nvcc-12-8", "other"]
