#!/usr/bin/python

# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_plan
short_description: Make the plan of a host before anything changes
version_added: 0.1.0
author:
  - ironwheel.gpu contributors (@ironwheel)
description:
  - Decides from the host facts (O(host)) and from the variables of the host (C(torch_version), C(vllm_version), C(flash_attn_enabled) and the like)
    what the host gets, namely driver, CUDA toolkits, Python, torch, vLLM, extensions and how they are built, and the inputs of the lock.
  - Every candidate is accepted or rejected with a reason, and all errors are found at once, mistyped variable names among them.
  - Runs on the controller, needs neither the host nor a network, and changes nothing.
extends_documentation_fragment:
  - ironwheel.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  host:
    description: Host facts, as M(ironwheel.gpu.host_facts) returns them. Exactly one of O(host) and O(facts_file) is needed.
    type: dict
  facts_file:
    description:
      - File on the controller, JSON or YAML, with the facts of a host that one does not have.
        A relative path is below the directory in which Ansible was started.
      - Needed are C(os.id), C(os.version), C(cpu.usable) and C(memory.total_mib); GPUs, driver and toolkits where there are any.
        The rest has the defaults of a plain host, which are x86_64, root, systemd, no container, and the C library, Python and compiler of the distribution.
      - The saved result of M(ironwheel.gpu.host_facts) is taken as it is.
    type: str
    default: ""
  fail_on_errors:
    description: Fails with all errors of the plan. Otherwise they are in RV(plan) only.
    type: bool
    default: true
  mask_secrets:
    description: Leaves users and passwords out of the URLs in RV(plan), for a plan that is shown or written down and not acted on.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Gather host facts
  ironwheel.gpu.host_facts:
  register: facts

- name: Make the plan
  ironwheel.gpu.stack_plan:
    host: "{{ facts.host }}"
  register: result

- name: Plan a host that one does not have
  ironwheel.gpu.stack_plan:
    facts_file: facts/dual-blackwell.yml
    fail_on_errors: false
  register: result
"""

RETURN = r"""
plan:
  description: The plan, schema 1.
  returned: always
  type: dict
  contains:
    schema:
      description: Number of the schema.
      type: int
      sample: 1
    host:
      description: Name of the host.
      type: str
    profile:
      description: V(gpu) or V(cpu).
      type: str
    prefix:
      description: Folder for everything on the host.
      type: str
      sample: /opt/ironwheel
    torch:
      description: >-
        The torch of the environment, C({version, local, source, index_url, reason}). C(source) is V(pypi) or V(index).
        Null when there is none, or when only the lock knows.
      type: dict
      sample: {version: 2.9.1, local: cu128, source: pypi, index_url: null, reason: vllm 0.15.1 pins it}
    cuda:
      description: >-
        The toolkit that builds for this torch, and what the host gets, C({version, install, keep, path, source, sources, reason}).
      type: dict
      sample:
        version: "12.8"
        install: ["12.8"]
        keep: ["13.1"]
        path: /usr/local/cuda-12.8
        source: repository
        sources: {"12.8": repository}
        reason: torch is built with CUDA 12.8
    driver:
      description: >-
        State and wanted version of the driver, C({state, wanted, floor, branch, flavour, managed, reboot, fabric_manager, reason}).
        Null without an NVIDIA GPU.
      type: dict
    architectures:
      description: Compute capabilities of the GPUs, or those that extensions are built for.
      type: list
      elements: str
      sample: ["12.0"]
    python:
      description: The interpreter, C({version, path, reason}). C(path) is null for one that uv brings.
      type: dict
    packages:
      description: Requirements of the lock. Extensions are not among them.
      type: list
      elements: str
    constraints:
      description: Constraints of the lock.
      type: list
      elements: str
    excluded:
      description: Names of distributions that are kept out of the environment.
      type: list
      elements: str
    extensions:
      description: >-
        Extensions, each with C(name), C(version), C(module), C(description), C(source_url), C(sha256), C(source) (V(store), V(prebuilt) or V(build)),
        C(fingerprint), C(fingerprint_fields), C(architectures), C(jobs), C(nvcc_threads), C(predicted_peak_mib), C(predicted_s), C(limited_by),
        C(explanation), C(gate) (the same build through the gate, C({predicted_s, predicted_peak_mib, most_running, budget_mib, cpu_bound_s}), or null),
        C(fixes), C(env) and C(wheel).
      type: list
      elements: dict
    vllm:
      description: What is served, C({package, version, module, instances}).
      type: dict
    lock:
      description: Key of the lock and what it is the hash of, C({key, inputs}).
      type: dict
    indexes:
      description: Where packages come from, C({index_url, extra_index_urls, torch_index_url, find_links, offline, ca_bundle}).
      type: dict
    steps:
      description: What would be done, in order, in words.
      type: list
      elements: str
    trace:
      description: Every candidate, C({subject, candidate, verdict, reason}), with C(error) where the rejection has a name.
      type: list
      elements: dict
    errors:
      description: All errors, C({error, message, remedy}). Packages that exclude each other come first.
      type: list
      elements: dict
    warnings:
      description: All warnings, C({warning, message, remedy}).
      type: list
      elements: dict
host:
  description: The host facts that the plan was made from.
  returned: always
  type: dict
table:
  description: The plan as a table, the arguments of M(ironwheel.gpu.show_table).
  returned: always
  type: dict
trace_table:
  description: The trace as a table, the arguments of M(ironwheel.gpu.show_table).
  returned: always
  type: dict
"""
