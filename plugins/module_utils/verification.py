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


def toolkits(plan: dict, host: dict, announced: bool = False) -> list[dict]:
    """Each toolkit that the plan installs is on the host, complete, and its nvcc is of that version.

    ``announced``: check mode, in which a toolkit that would be installed is not there yet.
    """
    cuda = plan.get("cuda") or {}
    wanted = list(dict.fromkeys([*(cuda.get("install") or []), *([cuda["version"]] if cuda.get("version") else [])]))
    if not wanted:
        return [check("toolkit", "CUDA toolkit", NOT_RUN, "the plan has no CUDA toolkit")]
    checks = []
    for version in wanted:
        subject = f"CUDA {version}"
        there = [seen for seen in host.get("toolkits") or [] if seen.get("version") and versions.same_minor(seen["version"], version)]
        # The one that the plan builds with, otherwise one that is complete.
        there.sort(key=lambda seen: (seen.get("path") != cuda.get("path"), not seen.get("complete")))
        if not there and announced and version in (cuda.get("install") or []):
            checks.append(check("toolkit", subject, NOT_RUN, "it would be installed (check mode)"))
            continue
        if not there:
            checks.append(check("toolkit", subject, FAILED, "no toolkit of this version was found on the host"))
            continue
        seen = there[0]
        value = {key: seen.get(key) for key in ("path", "full_version", "nvcc_version", "complete", "missing")}
        nvcc = seen.get("nvcc_version")
        if not seen.get("complete"):
            checks.append(check("toolkit", subject, FAILED, f"{seen['path']} is not complete: {', '.join(seen.get('missing') or ['nvcc'])}", value))
        elif not nvcc or not versions.same_minor(nvcc, version):
            checks.append(check("toolkit", subject, FAILED, f"nvcc in {seen['path']} is {nvcc or 'silent'}, planned is {version}", value))
        else:
            checks.append(check("toolkit", subject, OK, f"nvcc {nvcc} in {seen['path']}", value))
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


def packages(record: dict | None, drift: list[dict], sentences: list[str]) -> dict:
    """The environment holds exactly what its lock names.

    Args:
        record: the environment's own record, None for one that the collection did not make.
        drift: ``environments.find_drift``; ``sentences`` the same in words.
    """
    subject = "installed packages"
    if record is None:
        return check("packages", subject, NOT_RUN, "the environment has no record of its lock: it was not made by the role uv_venv")
    locked = len(record.get("packages") or {})
    if not locked:
        return check("packages", subject, FAILED, "the environment's record names no packages")
    if drift:
        more = f"; and {len(sentences) - 6} more" if len(sentences) > 6 else ""
        return check("packages", subject, FAILED, "; ".join(sentences[:6]) + more, {"locked": locked, "drift": drift})
    return check("packages", subject, OK, f"{locked} packages as locked", {"locked": locked, "lock": record.get("lock")})


def environment(path: str, link: str, resolved: str | None, in_use_expected: bool) -> dict:
    """The link in use names a complete environment, the one that this run made if it made one."""
    if resolved is None:
        return check("environment", link, FAILED, "the link in use names no complete environment")
    if in_use_expected and path and resolved != path:
        return check("environment", link, FAILED, f"in use is {resolved}, this run made {path}")
    return check("environment", link, OK, f"in use is {resolved}", {"path": resolved})


def normalize(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(name: str, answer: dict | None, error: str = "", subject: str | None = None) -> dict:
    """One module imports in the environment's Python."""
    if answer is None:
        return check("import", subject or name, FAILED, error)
    if answer.get("error"):
        return check("import", subject or name, FAILED, answer["error"])
    value = {"version": answer.get("version"), "file": answer["file"]}
    return check("import", subject or name, OK, f"{answer.get('version') or 'imports'} from {answer['file']}", value)


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
            reason = f"torch {identity['full_version']} has code for {', '.join(arch_list) or 'no GPU'} only"
            checks.append(check("torch_architectures", subject, FAILED, reason))
        else:
            checks.append(check("torch_architectures", subject, OK, f"served by {entry}"))
    return checks


def provenance(extension: dict, recorded: dict | None, faults: list[str] | None, adopted: bool) -> dict:
    """A planned extension is the wheel that the environment's record names, made for the torch that is there now.

    Args:
        extension: the plan's entry.
        recorded: what the environment's record says of it, None for nothing.
        faults: ``extension_checks.provenance_faults`` and ``plan_faults``, None when the extension is not installed.
        adopted: somebody else made the environment.
    """
    name = extension["name"]
    if faults is None:
        return check("provenance", name, FAILED, f"it is not installed; planned is {extension.get('version')}")
    if recorded is None and adopted:
        return check("provenance", name, NOT_RUN, "somebody else made this environment, and nobody recorded where the extension came from")
    if faults:
        return check("provenance", name, FAILED, "; ".join(faults), recorded)
    return check("provenance", name, OK, f"built for torch {recorded.get('torch')}, fingerprint {recorded.get('fingerprint')}", recorded)


def symbols(name: str, findings: list[dict] | None, error: str = "") -> dict:
    """The compiled modules of an extension can work beside this torch, by what their ELF files say (``extension_checks.judge_files``)."""
    if findings is None:
        return check("symbols", name, NOT_RUN, error)
    wrong = [f"{item['module']}: {item['reason']}" for item in findings if item["verdict"] == FAILED]
    value = {"findings": findings}
    if wrong:
        return check("symbols", name, FAILED, "; ".join(wrong), value)
    if not findings:
        return check("symbols", name, FAILED, "it has no compiled module", value)
    count = len({item["module"] for item in findings})
    return check("symbols", name, OK, f"{count} compiled module{'s' if count != 1 else ''}: CUDA, C++ ABI, libraries, symbols and GPU code fit", value)


def extension_imported(name: str, module: str, answer: dict | None, error: str, has_driver: bool) -> dict:
    """The compiled module of an extension imports behind torch. Without a driver there is no libcuda.so.1, which says nothing about the extension."""
    found = imported(module, answer, error, f"{name} ({module})")
    if found["verdict"] == FAILED and "libcuda.so.1" in found["reason"] and not has_driver:
        return check("import", found["subject"], NOT_RUN, "importing it needs the driver's libcuda.so.1, and this host has no driver")
    return found


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


# Serving


def service(unit: str, seen: dict[str, str] | None, reason: str = "") -> dict:
    """A unit is active and enabled."""
    if seen is None:
        return check("service", unit, NOT_RUN, reason)
    value = {key: seen.get(key) for key in ("ActiveState", "SubState", "UnitFileState", "NRestarts")}
    if seen.get("ActiveState") != "active":
        return check("service", unit, FAILED, f"is {seen.get('ActiveState')}/{seen.get('SubState')} (result {seen.get('Result')})", value)
    if seen.get("UnitFileState") != "enabled":
        return check("service", unit, FAILED, f"runs, but is {seen.get('UnitFileState') or 'not enabled'}: it will not start with the host", value)
    return check("service", unit, OK, "active and enabled", value)


def configuration(unit: str, on_disk: str | None, running: str | None) -> dict:
    """The running process was started with the environment, model and files that are on disk (by their stamp)."""
    if running is None:
        return check("configuration", unit, NOT_RUN, "the environment of the running process cannot be read")
    if on_disk != running:
        return check("configuration", unit, FAILED, "the service runs with another configuration than the one on disk: restart it, or run the role vllm")
    return check("configuration", unit, OK, "runs with the configuration on disk")


def models(subject: str, wanted: str, status: int, answer) -> dict:
    """``/v1/models`` lists the served model."""
    listed = [entry.get("id") for entry in answer.get("data") or []] if isinstance(answer, dict) else []
    if status != 200:
        return check("models", subject, FAILED, f"/v1/models answers {status}: {brief(answer)}")
    if wanted not in listed:
        return check("models", subject, FAILED, f"serves {', '.join(map(str, listed)) or 'nothing'}, planned is {wanted}", {"models": listed})
    return check("models", subject, OK, f"lists {wanted}", {"models": listed})


def completion(subject: str, status: int, answer) -> dict:
    """``/v1/completions`` answers with text and counts its tokens."""
    if status != 200 or not isinstance(answer, dict):
        return check("completion", subject, FAILED, f"/v1/completions answers {status}: {brief(answer)}")
    choices = answer.get("choices") or [{}]
    text = choices[0].get("text") if isinstance(choices[0], dict) else None
    tokens = (answer.get("usage") or {}).get("completion_tokens")
    value = {"completion_tokens": tokens, "characters": len(text) if isinstance(text, str) else 0}
    if not isinstance(text, str) or not text:
        return check("completion", subject, FAILED, f"the answer has no text: {brief(answer)}", value)
    if not isinstance(tokens, int) or tokens < 1:
        return check("completion", subject, FAILED, "the answer counts no completion tokens", value)
    return check("completion", subject, OK, f"{tokens} tokens answered", value)


def authentication(subject: str, key_set: bool, status: int | None, loopback: bool) -> dict:
    """A request without the key is refused, where there is a key."""
    if not key_set:
        where = "listens on loopback only" if loopback else "listens beyond loopback, as vllm_allow_unauthenticated allows"
        return check("authentication", subject, NOT_RUN, f"no API key is set; the server {where}")
    if status != 401:
        return check("authentication", subject, FAILED, f"a request without the API key is answered with {status} instead of 401")
    return check("authentication", subject, OK, "a request without the API key is refused")


def brief(answer) -> str:
    """An HTTP answer in one short line."""
    return " ".join(str(answer).split())[:300]


# All hosts of a run

COLUMNS = ["host", "GPUs", "driver", "torch", "vllm", "verdict", "report"]


def missing_report(host: str) -> dict:
    """The report of a host that gave none."""
    reason = "the host failed before it was verified, or was not reached"
    return report(host, [check("host", host, NOT_RUN, reason)], {}, None, {})


def run_verdict(reports: dict[str, dict]) -> str:
    """``ok`` if every host's is, ``failed`` if one failed, otherwise ``not_run``."""
    verdicts = {entry["verdict"] for entry in reports.values()}
    if FAILED in verdicts:
        return FAILED
    return OK if verdicts == {OK} else NOT_RUN


def summary(reports: dict[str, dict], directory: str) -> dict:
    """Verdict, table and reasons of a run, as ``verification_report`` returns them. The table fits 100 columns for hosts with names of up to 24."""
    rows = []
    reasons = {}
    for host, entry in reports.items():
        installed = entry.get("versions") or {}
        gpus = installed.get("gpus") or []
        rows.append(
            [
                host,
                gpu_names(gpus),
                installed.get("driver") or "-",
                installed.get("torch") or "-",
                installed.get("vllm") or "-",
                entry["verdict"],
                f"{directory}/{host}.json",
            ]
        )
        if entry["verdict"] != OK:
            reasons[host] = failures(entry["checks"]) or [f"{item['subject']}: {item['reason']}" for item in entry["checks"]]
    return {"verdict": run_verdict(reports), "columns": COLUMNS, "rows": rows, "failures": reasons}


def gpu_names(names: list[str]) -> str:
    """``2x H200`` for two of a kind, ``3`` for several kinds, ``none``."""
    if not names:
        return "none"
    kinds = {str(name or "unknown") for name in names}
    if len(kinds) > 1:
        return str(len(names))
    kind = re.sub(r"^NVIDIA (GeForce )?", "", kinds.pop())
    return f"{len(names)}x {kind}"[:24]
