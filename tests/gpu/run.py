# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What needs a real GPU, as one command with a JSON result.

1. ``build``: an extension through ``playbooks/flash_attn.yml`` into an environment that has its own torch, on this host, offline if asked.
2. ``verify``: the module ``stack_verify``'s GPU checks (matrix products; flash-attn forward and backward) against float64.
3. ``subset``: some units of that build once more under a small memory budget, admitted by the gate and with static jobs, memory sampled in both.

``--detach`` starts all of it in a session of its own; ``--wait SECONDS`` then waits for its end, so that a connection that may not last long can follow it.
Everything lands in ``--work``: ``result.json``, ``progress.log``, the playbook's log, the build report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".collections"))

# The collection is imported from the clone.
from ansible_collections.ironwheel.gpu.plugins.module_utils import build_memory, build_runner
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import build_costs


class Run:
    """The steps, their log and their result."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = Path(options.work)
        self.work.mkdir(parents=True, exist_ok=True)
        self.result: dict = {"schema": 1, "steps": {}}

    def say(self, text: str) -> None:
        with open(self.work / "progress.log", "a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        print(text, flush=True)

    def keep(self, name: str, value: dict) -> None:
        self.result["steps"][name] = value
        build_runner.write_json(str(self.work / "result.json"), self.result)

    def all(self) -> int:
        """Every step that was asked for; a failed one ends the run, its reason kept."""
        for name in self.options.steps.split(","):
            self.say(f"step {name}")
            started = time.time()
            try:
                value = getattr(self, name)()
            except Exception as exc:  # the reason belongs into the result, whatever it is
                value = {"ok": False, "error": f"{type(exc).__name__}: {exc}"}
            value["seconds"] = round(time.time() - started, 1)
            self.keep(name, value)
            self.say(f"step {name}: {'ok' if value['ok'] else 'FAILED'} in {value['seconds']} s")
            if not value["ok"]:
                break
        ok = all(step["ok"] for step in self.result["steps"].values())
        self.result["ok"] = ok
        build_runner.write_json(str(self.work / "result.json"), {**self.result, "ended": True})
        return 0 if ok else 1

    def variables(self) -> dict:
        """Extra variables of the playbook."""
        options = self.options
        return {
            "flash_attn_environment": options.environment,
            "flash_attn_version": options.version,
            "flash_attn_architectures": options.architectures.split(","),
            "flash_attn_source": options.source,
            "flash_attn_source_sha256": options.sha256,
            "flash_attn_store": str(self.work / "wheels"),
            "flash_attn_cost_dir": str(self.work / "costs"),
            "uv_venv_prefix": str(self.work / "prefix"),
            "uv_venv_offline": options.offline,
            "uv_venv_find_links": [options.find_links] if options.find_links else [],
            "torch_enabled": False,
            "vllm_enabled": False,
            "nvidia_driver_managed": False,
            "ansible_python_interpreter": options.python,
            **json.loads(options.extra),
        }

    def build(self) -> dict:
        """The extension through the role."""
        inventory = self.work / "inventory.yml"
        inventory.write_text("gpu_hosts:\n  hosts:\n    localhost:\n      ansible_connection: local\n")
        variables = self.work / "variables.json"
        variables.write_text(json.dumps(self.variables()))
        command = [*shlex.split(self.options.ansible_playbook), "-i", str(inventory), "-e", f"@{variables}", str(ROOT / "playbooks" / "flash_attn.yml")]
        with open(self.work / "playbook.log", "w", encoding="utf-8") as log:
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        entries = sorted((self.work / "wheels").glob("*/*/wheel.json"))
        if code or not entries:
            tail = (self.work / "playbook.log").read_text()[-3000:]
            return {"ok": False, "status": code, "tail": tail}
        entry = json.loads(entries[0].read_text())
        report = entry.get("report", {})
        (self.work / "report.json").write_text(json.dumps(report))
        units = report.get("units", [])
        return {
            "ok": True,
            "fingerprint": entry["fingerprint"],
            "fields": entry["fields"],
            "sha256": entry["sha256"],
            "wheel_mib": round(entry["size"] / 2**20, 1),
            "build_s": report.get("elapsed_s"),
            "peak_mib": report.get("peak_mib"),
            "budget_mib": report.get("budget_mib"),
            "contained": report.get("contained"),
            "oom_kills": report.get("oom_kills"),
            "units": len(units),
            "unit_cpu_s": round(sum(row.get("cpu_s", 0) for row in units)),
            "highest_unit_mib": max((row.get("peak_mib", 0) for row in units), default=None),
            "gate_cpu_s_mean": round(sum(row.get("gate_cpu_s", 0) for row in units) / len(units), 3) if units else None,
        }

    def verify(self) -> dict:
        """The GPU's arithmetic against float64."""
        from ansible_collections.ironwheel.gpu.plugins.module_utils import environment_python

        answers = {task: environment_python.gpu_check(self.options.environment, {"task": task}, 400) for task in ("matmul", "flash_attn")}
        (self.work / "verification.json").write_text(json.dumps(answers, indent=1))
        answer = answers["flash_attn"]
        failed = [case for case in answer["cases"] if not case["ok"]]
        ok = bool(answer["cases"]) and not failed
        return {"ok": ok, "cases": len(answer["cases"]), "failed": failed[:3], "worst": answer["worst"]}

    # --- the subset -----------------------------------------------------------------------------------------------------------------------------------

    def subset(self) -> dict:
        """Units of the finished build again, gate against static jobs, under the same budget."""
        ninja_files = sorted((self.work / "prefix" / "builds").glob("*/source/build/**/build.ninja"))
        if not ninja_files:
            return {"ok": False, "error": "the build left no build.ninja"}
        build_folder = next(path for path in ninja_files[0].parents if path.parent.name == "builds")
        text = ninja_files[0].read_text()
        names = self.options.units.split(",") if self.options.units else default_units(self.options.subset)
        budget = int(self.options.budget * 0.9)
        job = json.loads((build_folder / "job.json").read_text())
        # What these units cost in the build of this run, or in an earlier one on the same machine.
        report = json.loads(Path(self.options.report or self.work / "report.json").read_text())
        known = {row["unit"]: row for row in report["units"]}
        highest = max(known[name]["peak_mib"] for name in names)
        jobs = max(1, int(budget // highest))
        chosen = [build_memory.Unit(name, known[name]["wall_s"], known[name]["peak_mib"], build_memory.shape_of(name)) for name in names]
        cores = job["cores"]
        runs = {"gate": self.compile_subset("gate", text, names, {**job["env"], "IRONWHEEL_GATE_BUDGET_MIB": str(budget)}, len(names))}
        (self.work / "subset.json").write_text(json.dumps(runs))
        runs["static"] = self.compile_subset("static", text, names, job["env"], jobs)
        replayed = {
            "gate": build_memory.replay(chosen, cores=cores, budget_mib=budget),
            "static": build_memory.replay(chosen, cores=cores, jobs=jobs),
        }
        for name, run in runs.items():
            replay = replayed[name]
            run.update(replay_s=round(replay.time_s, 1), replay_peak_mib=round(replay.peak_mib), to_replay=round(run["seconds"] / replay.time_s, 3))
        return {
            "ok": all(run["status"] == 0 for run in runs.values()),
            "units": names,
            "budget_mib": budget,
            "static_jobs": jobs,
            "highest_unit_mib": highest,
            "runs": runs,
            "static_over_gate": round(runs["static"]["seconds"] / runs["gate"]["seconds"], 2),
        }

    def compile_subset(self, kind: str, text: str, names: list[str], env: dict, jobs: int) -> dict:
        """Compile the units with ninja, into a folder of their own."""
        folder = self.work / f"subset-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        env = dict(env)
        if kind == "gate":
            env.update(IRONWHEEL_GATE_DIR=str(folder / "gate"), IRONWHEEL_GATE_BUILD=f"subset-{time.time()}", IRONWHEEL_GATE_UNITS=str(len(names)))
            # No unit of the host compiler runs beside these.
            env["IRONWHEEL_GATE_KEEP_MIB"] = "0"
            (folder / "gate").mkdir()
            nvcc = env["PYTORCH_NVCC"]
        else:
            nvcc = env["IRONWHEEL_NVCC"]
        (folder / "build.ninja").write_text(subset_of(text, names, folder, nvcc))
        log = open(folder / "log", "w", encoding="utf-8")  # noqa: SIM115 - closed with the process
        ninja = shutil.which("ninja", path=env["PATH"]) or "ninja"
        started = time.time()
        process = subprocess.Popen([ninja, "-C", str(folder), "-j", str(jobs)], env=env, stdout=log, stderr=log, start_new_session=True)
        rows: list[tuple[float, int]] = []

        def watch() -> None:
            while process.poll() is None:
                rows.append((round(time.time() - started, 1), build_runner.tree_mib(process.pid)))
                time.sleep(1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        watcher.join()
        log.close()
        seconds = time.time() - started
        peak = max((used for _t, used in rows), default=0)
        return {"status": code, "jobs": jobs, "seconds": round(seconds, 1), "peak_mib": peak, "memory": rows[:: max(1, len(rows) // 100)]}


def default_units(count: int) -> list[str]:
    """The cheapest units of the calibration by time, so that both ways fit into one sitting."""
    rows = sorted(build_costs.FLASH_ATTN_UNITS, key=lambda row: row[1])
    return [row[0] for row in rows[:count]]


def subset_of(text: str, names: list[str], folder: Path, nvcc: str) -> str:
    """A ninja file with the edges of the named units alone, its outputs in ``folder``."""
    kept, outputs = [], []
    for line in text.splitlines():
        edge = re.match(r"build (?P<out>\S+): (?P<rule>\w+) (?P<src>\S+)", line)
        if edge is None:
            if line.startswith("nvcc ="):
                line = f"nvcc = {nvcc}"
            # torch's file may name other outputs here.
            if not line.startswith("default"):
                kept.append(line)
            continue
        source = Path(edge.group("src").replace("$:", ":"))
        if source.name in names:
            target = folder / f"{source.stem}.o"
            outputs.append(str(target))
            kept.append(f"build {target}: {edge.group('rule')} {edge.group('src')}")
    missing = set(names) - {Path(line.split(": ", 1)[1].split()[-1]).name for line in kept if line.startswith("build ")}
    if missing:
        raise ValueError(f"the build has no unit {', '.join(sorted(missing))}")
    return "\n".join([*kept, "default " + " ".join(outputs), ""])


def wait_for_end(work: Path, seconds: int) -> int:
    """Wait for the detached run and print what it said meanwhile. Status 3 while it goes on."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        try:
            result = json.loads((work / "result.json").read_text())
        except (OSError, ValueError):
            result = {}
        if result.get("ended"):
            print(json.dumps(result, indent=1)[:9000])
            return 0 if result["ok"] else 1
        time.sleep(2)
    tail = (work / "progress.log").read_text().splitlines()[-3:] if (work / "progress.log").exists() else []
    log = (work / "playbook.log").read_text().splitlines()[-6:] if (work / "playbook.log").exists() else []
    print("\n".join([*tail, *log]))
    return 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="/tmp/ironwheel-gpu-test", help="folder for everything")
    parser.add_argument("--steps", default="build,verify", help="build, verify, subset")
    parser.add_argument("--environment", default=sys.prefix, help="environment that has the torch")
    parser.add_argument("--python", default=sys.executable, help="Python that runs the modules")
    parser.add_argument("--ansible-playbook", default=f"{sys.executable} -m ansible playbook")
    parser.add_argument("--version", default="2.8.3.post2")
    parser.add_argument("--architectures", default="9.0")
    parser.add_argument("--source", default="", help="source distribution; the index's otherwise")
    parser.add_argument("--sha256", default="")
    parser.add_argument("--find-links", default="")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--extra", default="{}", help="further variables as JSON")
    parser.add_argument("--subset", type=int, default=8, help="how many units both ways")
    parser.add_argument("--report", default="", help="build report with the units' costs, when this run built nothing")
    parser.add_argument("--units", default="", help="or their names")
    parser.add_argument("--budget", type=int, default=32768, help="MiB for the subset")
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--wait", type=int, default=0)
    options = parser.parse_args()
    work = Path(options.work)
    if options.detach:
        # What an earlier run left is kept: a build is costly, and the result is begun anew.
        work.mkdir(parents=True, exist_ok=True)
        (work / "result.json").unlink(missing_ok=True)
        arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
        arguments = [item for index, item in enumerate(arguments) if item != "--wait" and (index == 0 or arguments[index - 1] != "--wait")]
        with open(work / "run.log", "w", encoding="utf-8") as log, open(os.devnull, "rb") as nothing:
            subprocess.Popen([sys.executable, __file__, *arguments], stdin=nothing, stdout=log, stderr=log, start_new_session=True)
        return wait_for_end(work, options.wait) if options.wait else 0
    if options.wait:
        return wait_for_end(work, options.wait)
    return Run(options).all()


if __name__ == "__main__":
    sys.exit(main())
