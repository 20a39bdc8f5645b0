# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judging what was observed on a host against its plan: one verdict a check, one verdict a host.

Every function here takes plain observations and returns checks of the form ``{name, subject, verdict, reason, value}``. A check that could not run
is ``not_run`` with its reason, never ``ok``. Nothing in this file looks at the host.
"""

from __future__ import annotations

import re

from ansible_collections.ironwheel.gpu.plugins.module_utils import versions
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

SCHEMA = 1
OK, FAILED, NOT_RUN = "ok", "failed", "not_run"
NO_GPU = "this host has no NVIDIA GPU"
# What tools put into an environment by themselves and no lock names.
UNLOCKED = ("pip",)


def check(name: str, subject: str, verdict: str, reason: str, value: dict | None = None) -> dict:
    """One check of the report."""
    return {"name": name, "subject": subject, "verdict": verdict, "reason": reason, "value": value or {}}


def host_verdict(checks: list[dict]) -> str:
    """``failed`` if any check failed, ``not_run`` if none was ok, otherwise ``ok``."""
    verdicts = {entry["verdict"] for entry in checks}
    if FAILED in verdicts:
        return FAILED
    return OK if OK in verdicts else NOT_RUN


def report(host: str, checks: list[dict], installed: dict, environment: str | None, served: dict) -> dict:
    """The verification report, schema 1 (docs/architecture.md)."""
    return {
        "schema": SCHEMA,
        "host": host,
        "verdict": host_verdict(checks),
        "checks": checks,
        "versions": installed,
        "environment": environment,
        "served": served,
    }


def failures(checks: list[dict]) -> list[str]:
    """The failed checks, one line each."""
    return [f"{entry['subject']}: {entry['reason']}" for entry in checks if entry["verdict"] == FAILED]


# Driver and GPUs


def driver(host: dict, plan: dict) -> dict:
    """The kernel module and the user space of the NVIDIA driver run, in one version, at or above the plan's floor."""
    state = host.get("driver") or {}
    subject = "NVIDIA driver"
    if not host.get("gpus"):
        return check("driver", subject, NOT_RUN, NO_GPU)
    module, userspace = state.get("module_version"), state.get("userspace_version")
    value = {"state": state.get("state"), "module_version": module, "userspace_version": userspace, "flavour": state.get("module_flavour")}
    if state.get("state") != "ok":
        detail = state.get("detail") or "the driver does not run"
        return check("driver", subject, FAILED, f"state is '{state.get('state')}': {detail}", value)
    if module and userspace and module != userspace:
        return check("driver", subject, FAILED, f"the loaded module is {module}, the user space {userspace}: reboot the host", value)
    floor = (plan.get("driver") or {}).get("floor")
    if floor and module and not versions.at_least(module, floor):
        return check("driver", subject, FAILED, f"{module} is below the floor {floor} of the planned CUDA", value)
    return check("driver", module or subject, OK, f"module and user space are {module}", value)


def gpu_count(host: dict, smi_count: int | None, smi_error: str = "") -> dict:
    """nvidia-smi lists as many GPUs as the PCI bus."""
    pci = [gpu for gpu in host.get("gpus") or [] if gpu.get("usable", True)]
    if not host.get("gpus"):
        return check("gpu_count", "GPUs", NOT_RUN, NO_GPU)
    value = {"pci": len(pci), "nvidia_smi": smi_count}
    if smi_count is None:
        return check("gpu_count", "GPUs", FAILED, f"nvidia-smi did not answer: {smi_error}", value)
    if smi_count != len(pci):
        return check("gpu_count", "GPUs", FAILED, f"the PCI bus has {len(pci)} NVIDIA GPUs, nvidia-smi lists {smi_count}", value)
    return check("gpu_count", "GPUs", OK, f"{smi_count} on the PCI bus and in nvidia-smi", value)


def toolkits(plan: dict, found: dict[str, dict]) -> list[dict]:
    """Each toolkit that the plan installs is there and its nvcc is of that version.

    Args:
        plan: the plan; ``cuda.install`` names the toolkits, ``cuda.path`` the one that builds.
        found: by version ``{"path", "nvcc_version", "error"}`` as observed.
    """
    cuda = plan.get("cuda") or {}
    wanted = list(dict.fromkeys([*(cuda.get("install") or []), *([cuda["version"]] if cuda.get("version") else [])]))
    if not wanted:
        return [check("toolkit", "CUDA toolkit", NOT_RUN, "the plan has no CUDA toolkit")]
    checks = []
    for version in wanted:
        seen = found.get(version)
        subject = f"CUDA {version}"
        if seen is None:
            checks.append(check("toolkit", subject, FAILED, "no toolkit of this version was found on the host"))
        elif seen.get("error"):
            checks.append(check("toolkit", subject, FAILED, f"{seen['path']}: {seen['error']}", seen))
        elif not versions.same_minor(seen["nvcc_version"], version):
            checks.append(check("toolkit", subject, FAILED, f"nvcc in {seen['path']} is {seen['nvcc_version']}, planned is {version}", seen))
        else:
            checks.append(check("toolkit", subject, OK, f"nvcc {seen['nvcc_version']} in {seen['path']}", seen))
    return checks


def gpu_compute(host: dict, answer: dict | None, error: str = "") -> list[dict]:
    """torch sees each GPU and multiplies matrices rightly on it."""
    if not host.get("gpus"):
        return [check("gpu_matmul", "GPUs", NOT_RUN, NO_GPU)]
    if answer is None or answer.get("error"):
        return [check("gpu_matmul", "GPUs", FAILED, error or (answer or {}).get("error", "no answer"))]
    devices = answer.get("devices") or []
    usable = [gpu for gpu in host["gpus"] if gpu.get("usable", True)]
    checks = []
    if not usable or (len(devices) != len(usable) and not any((gpu.get("mig") or {}).get("enabled") for gpu in usable)):
        checks.append(check("gpu_matmul", "GPUs", FAILED, f"torch sees {len(devices)} GPUs, the host has {len(usable)}", {"devices": len(devices)}))
    for device in devices:
        subject = f"cuda:{device['index']} {device['name']}"
        worst = [f"{entry['dtype']} {entry['error']:.2e} > {entry['tolerance']:.0e}" for entry in device["matmul"] if not entry["ok"]]
        if device.get("error"):
            checks.append(check("gpu_matmul", subject, FAILED, device["error"], device))
        elif worst:
            checks.append(check("gpu_matmul", subject, FAILED, "wrong result: " + ", ".join(worst), device))
        else:
            checks.append(check("gpu_matmul", subject, OK, "matrix products agree with float64", device))
    return checks or [check("gpu_matmul", "GPUs", FAILED, "torch sees no GPU")]


def numerics(name: str, subject: str, host: dict, answer: dict | None, error: str = "") -> dict:
    """The result of comparing an extension's kernels with a float64 reference (gpu_checks.py)."""
    if not host.get("gpus"):
        return check(name, subject, NOT_RUN, NO_GPU)
    if answer is None or answer.get("error"):
        return check(name, subject, FAILED, error or (answer or {}).get("error", "no answer"))
    cases = answer.get("cases") or []
    wrong = [case for case in cases if not case["ok"]]
    value = {"cases": len(cases), "wrong": wrong[:8], "worst": answer.get("worst")}
    if not cases:
        return check(name, subject, NOT_RUN, answer.get("reason", "no case applies to this GPU"), value)
    if wrong:
        return check(name, subject, FAILED, f"{len(wrong)} of {len(cases)} cases differ from the float64 reference; first: {wrong[0]['case']}", value)
    return check(name, subject, OK, f"{len(cases)} cases agree with the float64 reference", value)


# The environment


def interpreter(plan: dict, identity: dict | None, error: str = "") -> dict:
    """The environment's interpreter runs and is of the planned version."""
    wanted = (plan.get("python") or {}).get("version")
    if identity is None or not identity.get("python"):
        return check("interpreter", "Python", FAILED, error or "the interpreter of the environment does not run")
    found = identity["python"]
    if wanted and not versions.same_minor(found, wanted):
        return check("interpreter", f"Python {found}", FAILED, f"planned is Python {wanted}")
    return check("interpreter", f"Python {found}", OK, "runs, as planned" if wanted else "runs", {"version": found})


def packages(installed: dict[str, str] | None, locked: dict[str, str] | None, reason: str = "") -> dict:
    """The environment holds exactly what its lock names."""
    if installed is None:
        return check("packages", "installed packages", FAILED, reason or "the packages of the environment could not be listed")
    if locked is None:
        return check("packages", "installed packages", NOT_RUN, reason or "the environment has no record of its lock")
    missing = sorted(f"{name} {version}" for name, version in locked.items() if name not in installed)
    changed = sorted(f"{name} {installed[name]} (lock: {version})" for name, version in locked.items() if name in installed and not same_version(installed[name], version))
    extra = sorted(f"{name} {version}" for name, version in installed.items() if name not in locked and name not in UNLOCKED)
    value = {"installed": len(installed), "locked": len(locked), "missing": missing, "changed": changed, "extra": extra}
    parts = [f"{label}: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}" for label, names in (("missing", missing), ("changed", changed), ("not in the lock", extra)) if names]
    if parts:
        return check("packages", "installed packages", FAILED, "; ".join(parts), value)
    return check("packages", "installed packages", OK, f"{len(locked)} packages as locked", value)


def same_version(installed: str, locked: str) -> bool:
    """Equal versions; a lock without a local part is content with any."""
    if "+" not in locked:
        installed = installed.partition("+")[0]
    return installed.lower() == locked.lower()


_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_WHEEL = re.compile(r"^(?:([A-Za-z0-9][A-Za-z0-9._-]*)\s*@\s*)?(?:file:)?[^\s#]*?([A-Za-z0-9_.]+)-([^-/\s]+)(?:-\d[^-/\s]*)?-[^-/\s]+-[^-/\s]+-[^-/\s]+\.whl")


def locked_packages(text: str) -> dict[str, str]:
    """``{normalized name: version}`` of a lock in requirements format, wheels by path included; lines of another form are passed over."""
    found = {}
    for line in text.splitlines():
        pinned = _PINNED.match(line)
        if pinned:
            found[normalize(pinned.group(1))] = pinned.group(2)
            continue
        wheel = _WHEEL.match(line)
        if wheel:
            found[normalize(wheel.group(1) or wheel.group(2))] = wheel.group(3).replace("%2B", "+")
    return found


def normalize(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(name: str, answer: dict | None, error: str = "", subject: str | None = None) -> dict:
    """One module imports in the environment's Python."""
    if answer is None:
        return check("import", subject or name, FAILED, error)
    if answer.get("error"):
        return check("import", subject or name, FAILED, answer["error"])
    return check("import", subject or name, OK, f"{answer.get('version') or 'imports'} from {answer['file']}", {"version": answer.get("version"), "file": answer["file"]})


def cuda_variant(cuda: str | None) -> str:
    """The local version of a torch built with that CUDA: cu130 for 13.0, cpu for none."""
    return "cpu" if not cuda else "cu" + cuda.replace(".", "")


def torch_identity(plan: dict, identity: dict | None, error: str = "") -> dict:
    """torch imports and is the planned release in the planned variant."""
    wanted = plan.get("torch") or {}
    if identity is None or identity.get("import_error") or not identity.get("version"):
        reason = error or (identity or {}).get("import_error") or "torch did not say what it is"
        return check("torch", "torch", FAILED, f"torch does not import: {reason}")
    found = identity["full_version"]
    variant = cuda_variant(identity.get("cuda"))
    value = {key: identity.get(key) for key in ("version", "local", "cuda", "cxx11_abi", "git_version", "python_tag", "debug")}
    if identity.get("hip"):
        return check("torch", f"torch {found}", FAILED, "this is a ROCm build, the collection serves NVIDIA GPUs and CPUs", value)
    if wanted.get("version") and identity["version"] != wanted["version"].partition("+")[0]:
        return check("torch", f"torch {found}", FAILED, f"installed is torch {found}, planned is {wanted['version']}", value)
    if wanted.get("local") and variant != wanted["local"]:
        return check("torch", f"torch {found}", FAILED, f"installed is the {variant} build, planned is {wanted['local']}", value)
    if identity.get("debug"):
        return check("torch", f"torch {found}", FAILED, "this is a debug build: no published wheel works beside it", value)
    reason = f"the planned release, {variant} build" if wanted.get("version") else f"{variant} build"
    return check("torch", f"torch {found}", OK, reason, value)


def torch_family(identity: dict | None) -> list[dict]:
    """torchvision, torchaudio, torchcodec, triton and the nvidia wheels belong to torch's own build and import."""
    if identity is None or not identity.get("version"):
        return [check("torch_family", "torch family", NOT_RUN, "torch does not import")]
    variant = cuda_variant(identity.get("cuda"))
    checks = []
    for name, seen in sorted((identity.get("family") or {}).items()):
        subject = f"{name} {seen['version']}"
        pinned = seen.get("requires_torch")
        # triton names no build and serves every one; on a CPU build nothing uses it.
        built_for = None if name == "triton" else seen.get("local")
        if built_for and built_for != variant:
            reason = f"is the {built_for} build, torch {identity['full_version']} the {variant} build"
            checks.append(check("torch_family", subject, FAILED, reason))
        elif pinned and pinned.partition("+")[0] != identity["version"]:
            checks.append(check("torch_family", subject, FAILED, f"needs torch {pinned}, installed is {identity['full_version']}"))
        elif seen.get("error"):
            checks.append(check("torch_family", subject, FAILED, f"does not import beside torch {identity['full_version']}: {seen['error']}"))
        else:
            checks.append(check("torch_family", subject, OK, "imports, same build as torch"))
    major = (identity.get("cuda") or "").partition(".")[0]
    other = [name for name in identity.get("nvidia") or [] if (match := re.search(r"-cu(\d+)$", name)) and match.group(1) != major]
    if major and other:
        checks.append(check("torch_family", "nvidia packages", FAILED, f"built for another CUDA than torch's {identity['cuda']}: {', '.join(other)}"))
    return checks or [check("torch_family", "torch family", OK, "no other member is installed")]


def architecture_covered(capability: str, arch_list: list[str]) -> str | None:
    """Which entry of a build's arch list serves a GPU, or None.

    Machine code runs on the same major with an equal or higher minor; code with the suffix a on exactly its own, with f on its family; PTX
    (``compute_``) on anything not older.
    """
    major, minor = (int(part) for part in capability.split("."))
    forward = None
    for entry in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", entry)
        if match is None:
            continue
        kind, their_major, their_minor, suffix = match.group(1), int(match.group(2)), int(match.group(3)), match.group(4)
        same = their_major == major and (their_minor == minor or (their_minor < minor and suffix != "a"))
        if kind == "sm" and same:
            return entry
        if kind == "compute" and (their_major, their_minor) <= (major, minor) and suffix != "a":
            forward = entry
    return forward


def torch_architectures(plan: dict, host: dict, identity: dict | None) -> list[dict]:
    """torch has code for every GPU of the host."""
    if not host.get("gpus"):
        return [check("torch_architectures", "GPUs", NOT_RUN, NO_GPU)]
    if identity is None or not identity.get("version"):
        return [check("torch_architectures", "GPUs", NOT_RUN, "torch does not import")]
    capabilities = sorted({gpu["compute_capability"] for gpu in host["gpus"] if gpu.get("compute_capability") and gpu.get("usable", True)})
    capabilities = capabilities or list(plan.get("architectures") or [])
    if not capabilities:
        return [check("torch_architectures", "GPUs", NOT_RUN, "the compute capability of the GPUs is not known")]
    arch_list = identity.get("arch_list") or []
    checks = []
    for capability in capabilities:
        entry = architecture_covered(capability, arch_list)
        subject = f"compute capability {capability}"
        if entry is None:
            checks.append(check("torch_architectures", subject, FAILED, f"torch {identity['full_version']} has code for {', '.join(arch_list) or 'no GPU'} only"))
        else:
            checks.append(check("torch_architectures", subject, OK, f"served by {entry}"))
    return checks


def provenance(extensions: list[dict], record: dict | None) -> list[dict]:
    """Each extension of the plan was installed from a wheel whose fingerprint the environment's record states."""
    if not extensions:
        return []
    recorded = {normalize(entry.get("name", "")): entry for entry in (record or {}).get("extensions") or []}
    checks = []
    for extension in extensions:
        name, wanted = extension["name"], extension.get("fingerprint")
        entry = recorded.get(normalize(name))
        if entry is None:
            checks.append(check("provenance", name, FAILED, "the environment does not record where this extension came from"))
        elif wanted and entry.get("fingerprint") != wanted:
            checks.append(check("provenance", name, FAILED, f"fingerprint is {entry.get('fingerprint')}, planned is {wanted}", entry))
        else:
            checks.append(check("provenance", name, OK, f"fingerprint {entry.get('fingerprint')}", entry))
    return checks


# Remedies that the torch role prints beside what differs.
TORCH_REMEDY = (
    "let the role uv_venv make the environment again from the lock (run playbooks/python.yml or site.yml); if a requested version differs on purpose, "
    "set torch_version, so that the plan and the lock follow it"
)


def torch_error(checks: list[dict]) -> IronwheelError | None:
    """One error that names everything wrong with torch and its family, or None."""
    wrong = failures(checks)
    if not wrong:
        return None
    names = {entry["name"] for entry in checks if entry["verdict"] == FAILED}
    error = "TorchMismatch" if "torch" in names else "TorchArchitectureMissing" if "torch_architectures" in names else "TorchFamilyMismatch"
    return IronwheelError("; ".join(wrong) + ".", error, TORCH_REMEDY)
