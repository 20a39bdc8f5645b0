# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Arithmetic on each GPU, held against float64: matrix products, and flash-attn forward and backward.

Run by the environment's own Python like ``torch_probe.py``: one JSON request on standard input, one JSON answer behind the marker on standard output.

Requests: ``{"task": "matmul"}``, ``{"task": "flash_attn"}``.
"""

from __future__ import annotations

import json
import math
import os
import sys

MARKER = "ironwheel-probe:"
# Largest error allowed, relative to the largest element of the exact product. float32 may be computed with TF32 (10 bits).
MATMUL_TOLERANCE = {"float32": 2e-3, "float16": 4e-3, "bfloat16": 2e-2}
HEAD_DIMS = (64, 128, 256)
HALF_TYPES = ("float16", "bfloat16")
# Uneven lengths, one of them a single token, none a multiple of a kernel's tile.
LENGTHS = (1, 67, 200, 129)
SEQUENCE = 259
HEADS, KV_HEADS = 4, 2


def describe(exc):
    """An exception in one line of at most 500 characters."""
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:500]


def relative_error(found, exact):
    """Largest absolute difference over the largest absolute exact value; infinite when something is not a number."""
    difference = (found.double().cpu() - exact.double().cpu()).abs().max().item()
    scale = exact.double().abs().max().item()
    error = difference / scale if scale else difference
    return float("inf") if math.isnan(error) else error


def matmul_case(torch, device, name):
    """One product on the device against float64 on the CPU."""
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(1)
    # Rounded to the narrow type first, so that only the product's own error counts.
    left = torch.randn(512, 768, generator=generator).to(dtype)
    right = torch.randn(768, 384, generator=generator).to(dtype)
    exact = left.double() @ right.double()
    found = left.to(device) @ right.to(device)
    error = relative_error(found, exact)
    return {"dtype": name, "error": error, "tolerance": MATMUL_TOLERANCE[name], "ok": error <= MATMUL_TOLERANCE[name]}


def matmul():
    """``{"devices": [{index, name, capability, matmul: [...], error}]}``"""
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        found = {"index": index, "name": "", "capability": None, "matmul": [], "error": None}
        devices.append(found)
        try:
            found["name"] = torch.cuda.get_device_name(index)
            capability = torch.cuda.get_device_capability(index)
            found["capability"] = f"{capability[0]}.{capability[1]}"
            names = [name for name in MATMUL_TOLERANCE if name != "bfloat16" or capability >= (8, 0)]
            found["matmul"] = [matmul_case(torch, f"cuda:{index}", name) for name in names]
            torch.cuda.synchronize(index)
        except Exception as exc:
            found["error"] = describe(exc)
    return {"devices": devices}


def attention(torch, q, k, v, causal):
    """Plain attention in the type of its inputs. q: (length, heads, dim); k, v: (length, kv heads, dim)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        # The last query sees every key, as flash-attn aligns it.
        rows = torch.arange(q.shape[0], device=q.device)[:, None]
        columns = torch.arange(k.shape[0], device=q.device)[None, :]
        scores = scores.masked_fill(columns > rows + k.shape[0] - q.shape[0], float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), v)


def gradients(torch, function, inputs, upstream):
    """Output and input gradients of one call."""
    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in inputs]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream.to(output.dtype))]


def packed(torch, lengths, causal):
    """Plain attention over sequences that lie one behind the other."""

    def function(q, k, v):
        parts = [attention(torch, *(tensor.split(lengths)[index] for tensor in (q, k, v)), causal) for index in range(len(lengths))]
        return torch.cat(parts)

    return function


def attention_case(torch, kernel, device, dim, name, causal, lengths):
    """Forward and backward of one shape: the kernel may err at most twice what plain attention in the same type does, plus a floor.

    ``kernel(q, k, v, lengths, causal)`` takes and returns packed tensors of shape (sum of lengths, heads, dim).
    """
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(7)
    total = sum(lengths)
    q = torch.randn(total, HEADS, dim, generator=generator)
    k = torch.randn(total, KV_HEADS, dim, generator=generator)
    v = torch.randn(total, KV_HEADS, dim, generator=generator)
    upstream = torch.randn(total, HEADS, dim, generator=generator)
    inputs = [tensor.to(device=device, dtype=dtype) for tensor in (q, k, v)]
    upstream = upstream.to(device=device, dtype=dtype)
    plain = packed(torch, list(lengths), causal)
    exact = gradients(torch, plain, [tensor.double() for tensor in inputs], upstream.double())
    same_type = gradients(torch, plain, inputs, upstream)
    found = gradients(torch, lambda a, b, c: kernel(a, b, c, lengths, causal), inputs, upstream)
    floor = 1e-2 if name == "bfloat16" else 2e-3
    worst, worst_of = 0.0, ""
    for label, ours, theirs, true in zip(("out", "dq", "dk", "dv"), found, same_type, exact):
        ratio = relative_error(ours, true) / (2 * relative_error(theirs, true) + floor)
        if ratio > worst:
            worst, worst_of = ratio, label
    kind = "varlen" if len(lengths) > 1 else "dense"
    case = f"{kind} dim {dim} {name}{' causal' if causal else ''}"
    return {"case": case, "ratio": worst, "of": worst_of, "ok": worst <= 1.0}


def flash_attn_kernel(torch, flash_attn):
    """flash-attn's two entry points behind the packed signature of ``attention_case``."""

    def kernel(q, k, v, lengths, causal):
        if len(lengths) == 1:
            return flash_attn.flash_attn_func(q[None], k[None], v[None], causal=causal)[0]
        ends = torch.tensor([0, *lengths], device=q.device).cumsum(0).to(torch.int32)
        longest = max(lengths)
        return flash_attn.flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, causal=causal)

    return kernel


def flash_attn_cases():
    """Every head dimension, type and mask, dense and varlen, on one GPU of each compute capability."""
    import flash_attn
    import flash_attn_2_cuda  # noqa: F401  the compiled module; flash_attn alone may be another package's folder
    import torch

    kernel = flash_attn_kernel(torch, flash_attn)
    seen, cases = set(), []
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if capability in seen or capability < (8, 0):
            continue
        seen.add(capability)
        for dim in HEAD_DIMS:
            for name in HALF_TYPES:
                for causal in (False, True):
                    for lengths in ((SEQUENCE,), LENGTHS):
                        with torch.cuda.device(index):
                            case = attention_case(torch, kernel, f"cuda:{index}", dim, name, causal, lengths)
                        case["device"] = index
                        cases.append(case)
    worst = max((case["ratio"] for case in cases), default=None)
    return {"cases": cases, "worst": worst, "reason": "flash-attn 2 needs a GPU of compute capability 8.0 or higher"}


def main():
    request = json.loads(sys.stdin.read())
    tasks = {"matmul": matmul, "flash_attn": flash_attn_cases}
    try:
        result = tasks[request["task"]]()
    except BaseException as exc:
        result = {"error": describe(exc)}
    sys.stdout.write("\n" + MARKER + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
