"""Kernel operations against torch and the memory floor, in one run: one JSON line.

    python benchmarks/bench_kernels.py [--threads 2] [--repeats 7] [--ops linear,head]

For each operation and number of rows: the native call and torch's own way of doing it on the same
operands, alternating; medians. Weights are bfloat16 and cycle through more memory than the caches
hold, as in decoding. `read_gb_s` is what plain reading (a torch sum) reaches in the same run, and
`floor_ratio` an operation's share of it. `rows_cost` is the time relative to one row: what a verify
of that many rows costs. `call_us` is the cost of one native call on tiny operands. torch's way is
bfloat16 activations and weights, which rounds more than the native float32 activations do.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from phalanx.kernels.backend import Backend
from phalanx.kernels.gated_experts import expert_outputs_looped
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from phalanx.kernels.native_library import library

ROWS = (1, 2, 4, 8, 64)
HIDDEN, INNER, EXPERTS, VOCAB = 576, 192, 8, 49152
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, CONTEXT = 9, 3, 64, 16, 1024
MANY_ROWS = 32
COLD_BYTES = 72 << 20  # more than the last-level cache of most machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation at one row count; a call of `native` or `torch` does `calls` operations."""

    name: str
    rows: int
    calls: int
    bytes_per_call: int
    flops_per_call: int
    native: Callable[[], object]
    torch: Callable[[], object]


def copies(num_bytes: int, rows: int) -> int:
    """How many sets of weights make the working set cold; fewer where arithmetic is the limit."""
    return max(1, -(-COLD_BYTES // num_bytes) // (1 if rows < MANY_ROWS else 8))


def linear_case(kernels: KernelSet, rows: int, num_out: int, name: str) -> Case:
    """A projection of the demo model's width."""
    size = num_out * HIDDEN * 2
    weights = [torch.randn(num_out, HIDDEN).bfloat16() for _ in range(copies(size, rows))]
    x = torch.randn(rows, HIDDEN)
    half = x.bfloat16()
    out = torch.empty(rows, num_out)
    return Case(
        name=name,
        rows=rows,
        calls=len(weights),
        bytes_per_call=size,
        flops_per_call=rows * size,
        native=lambda: [kernels.linear(x, w, out=out) for w in weights],
        torch=lambda: [functional.linear(half, w) for w in weights],
    )


def head_case(kernels: KernelSet, rows: int) -> Case:
    """The greedy head."""
    columns = VOCAB if rows < MANY_ROWS else VOCAB // 8
    w = torch.randn(columns, HIDDEN).bfloat16()
    x = torch.randn(rows, HIDDEN)
    half = x.bfloat16()
    size = columns * HIDDEN * 2
    return Case(
        name="linear_argmax",
        rows=rows,
        calls=1,
        bytes_per_call=size,
        flops_per_call=rows * size,
        native=lambda: kernels.linear_argmax(x, w),
        torch=lambda: functional.linear(half, w).max(dim=-1),
    )


def experts_case(kernels: KernelSet, rows: int) -> Case:
    """A layer of the demo model: every row goes to all eight experts."""
    size = EXPERTS * 3 * INNER * HIDDEN * 2
    layers = [
        (
            torch.randn(EXPERTS, 2 * INNER, HIDDEN).bfloat16(),
            torch.randn(EXPERTS, HIDDEN, INNER).bfloat16(),
        )
        for _ in range(copies(size, rows))
    ]
    x = torch.randn(rows, HIDDEN)
    half = x.bfloat16()
    ids = torch.arange(EXPERTS, dtype=torch.int32).repeat(rows, 1)
    weights = torch.full((rows, EXPERTS), 1 / EXPERTS)
    return Case(
        name="gated_experts",
        rows=rows,
        calls=len(layers),
        bytes_per_call=size,
        flops_per_call=rows * size,
        native=lambda: [kernels.gated_experts(x, up, down, ids, weights) for up, down in layers],
        torch=lambda: [expert_outputs_looped(half, up, down, ids) for up, down in layers],
    )


def attention_case(kernels: KernelSet, rows: int) -> Case:
    """One sequence at a context of 1024, the last `rows` positions asking."""
    num_blocks = CONTEXT // BLOCK_SIZE
    size = 2 * CONTEXT * KV_HEADS * HEAD_DIM * 2
    shape = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    pools = [
        (torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16())
        for _ in range(copies(size, rows))
    ]
    table = torch.randperm(num_blocks).to(torch.int32)[None]
    seqs = torch.zeros(rows, dtype=torch.int32)
    lasts = torch.arange(CONTEXT - rows, CONTEXT, dtype=torch.int32)
    q = torch.randn(rows, HEADS, HEAD_DIM)
    half = q.bfloat16().transpose(0, 1)[None]
    visible = torch.arange(CONTEXT) <= lasts[:, None]

    def contiguous_attention(k_pool: Tensor, v_pool: Tensor) -> Tensor:
        """torch on an unpaged cache: no gathering, which flatters it."""
        k, v = (pool.flatten(0, 1).transpose(0, 1)[None] for pool in (k_pool, v_pool))
        return functional.scaled_dot_product_attention(
            half, k, v, attn_mask=visible, enable_gqa=True
        )

    scale = HEAD_DIM**-0.5
    return Case(
        name="paged_attention",
        rows=rows,
        calls=len(pools),
        bytes_per_call=size,
        flops_per_call=4 * rows * CONTEXT * HEADS * HEAD_DIM,
        native=lambda: [
            kernels.paged_attention(q, k, v, table, seqs, lasts, scale) for k, v in pools
        ],
        torch=lambda: [contiguous_attention(k, v) for k, v in pools],
    )


def norm_case(kernels: KernelSet, rows: int) -> Case:
    """Residual addition and norm: all overhead at few rows."""
    x, residual, weight = torch.randn(rows, HIDDEN), torch.randn(rows, HIDDEN), torch.ones(HIDDEN)

    def torch_way() -> Tensor:
        return functional.rms_norm(x + residual, (HIDDEN,), weight, 1e-5)

    return Case(
        name="add_rms_norm",
        rows=rows,
        calls=200,
        bytes_per_call=rows * HIDDEN * 16,
        flops_per_call=rows * HIDDEN * 5,
        native=lambda: [kernels.add_rms_norm(x, residual, weight, 1e-5) for _ in range(200)],
        torch=lambda: [torch_way() for _ in range(200)],
    )


CASES: dict[str, Callable[[KernelSet, int], Case]] = {
    "linear": lambda kernels, rows: linear_case(kernels, rows, 960, "linear"),
    "linear_argmax": head_case,
    "gated_experts": experts_case,
    "paged_attention": attention_case,
    "add_rms_norm": norm_case,
}


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(case: Case, buffer: Tensor, repeats: int) -> dict[str, float]:
    """Medians of native, torch and plain reading, taken in turn."""
    case.native(), case.torch()
    native, peer, read = [], [], []
    for _ in range(repeats):
        native.append(seconds(case.native) / case.calls)
        peer.append(seconds(case.torch) / case.calls)
        read.append(buffer.nbytes / seconds(buffer.sum))
    ours, theirs = statistics.median(native), statistics.median(peer)
    read_rate, rate = statistics.median(read), case.bytes_per_call / ours
    return {
        "rows": case.rows,
        "us": round(ours * 1e6, 2),
        "us_best": round(min(native) * 1e6, 2),
        "torch_us": round(theirs * 1e6, 2),
        "speedup": round(theirs / ours, 2),
        "gb_s": round(rate / 1e9, 2),
        "gflop_s": round(case.flops_per_call / ours / 1e9, 2),
        "read_gb_s": round(read_rate / 1e9, 2),
        "floor_ratio": round(rate / read_rate, 3),
    }


def call_overhead(kernels: KernelSet) -> dict[str, float]:
    """Microseconds of one call whose work is nothing: checks, conversion, the call itself."""
    x, w, weight = torch.randn(1, 8), torch.randn(8, 8), torch.ones(8)
    out = torch.empty(1, 8)
    calls: dict[str, Callable[[], object]] = {
        "linear": lambda: kernels.linear(x, w, out=out),
        "linear_fresh_output": lambda: kernels.linear(x, w),
        "rms_norm": lambda: kernels.rms_norm(x, weight, 1e-5, out=out),
    }
    found = {}
    for name, call in calls.items():
        best = min(seconds(lambda call=call: [call() for _ in range(500)]) for _ in range(20))
        found[name] = round(best / 500 * 1e6, 2)
    return found


def main() -> None:
    """Parse, measure, print one line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ops", default=",".join(CASES), help="comma-separated operations")
    args = parser.parse_args()
    torch.manual_seed(0)
    kernels = make_kernels(Backend.NATIVE, num_threads=args.threads)
    torch.set_num_threads(args.threads)
    buffer = torch.ones(COLD_BYTES // 4)
    results: dict[str, list[dict[str, float]]] = {}
    for name in args.ops.split(","):
        lines = [measure(CASES[name](kernels, rows), buffer, args.repeats) for rows in ROWS]
        for line in lines:
            if line["rows"] < MANY_ROWS:
                line["rows_cost"] = round(line["us"] / lines[0]["us"], 3)
        results[name] = lines
    record = {
        "benchmark": "kernels",
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.processor() or platform.machine(),
        "instruction_set": library.instruction_set(),
        "torch": torch.__version__,
        "threads": args.threads,
        "repeats": args.repeats,
        "dtype": "bfloat16",
        "call_us": call_overhead(kernels),
        "results": results,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
