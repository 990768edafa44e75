"""paged_attention: every row attends to its own positions of its own sequence, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near, poisoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A paged cache; every slot that holds no position is NaN."""

    k_pool: Tensor
    v_pool: Tensor
    tables: Tensor
    keys: list[Tensor]
    values: list[Tensor]


def make_cache(
    lengths: tuple[int, ...], kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> Cache:
    """Random keys and values in shuffled blocks; unused table entries are invalid ids."""
    counts = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(counts) + 2).tolist()
    k_pool = torch.full((len(order), block_size, kv_heads, head_dim), torch.nan).to(dtype)
    v_pool = k_pool.clone()
    tables = torch.full((len(lengths), max(counts)), -9, dtype=torch.int32)
    keys, values = [], []
    for seq, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        tables[seq, :count] = torch.tensor(blocks, dtype=torch.int32)
        slots = torch.tensor(
            [blocks[p // block_size] * block_size + p % block_size for p in range(length)]
        )
        keys.append(torch.randn(length, kv_heads, head_dim).to(dtype))
        values.append(torch.randn(length, kv_heads, head_dim).to(dtype))
        k_pool.flatten(0, 1)[slots] = keys[-1]
        v_pool.flatten(0, 1)[slots] = values[-1]
    return Cache(k_pool=k_pool, v_pool=v_pool, tables=tables, keys=keys, values=values)


def attend(
    kernels: KernelSet, q: Tensor, cache: Cache, seqs: list[int], lasts: list[int]
) -> Tensor:
    return kernels.paged_attention(
        q,
        cache.k_pool,
        cache.v_pool,
        cache.tables,
        torch.tensor(seqs, dtype=torch.int32),
        torch.tensor(lasts, dtype=torch.int32),
        q.shape[-1] ** -0.5,
        out=poisoned(*q.shape),
    )


def obvious(q: Tensor, cache: Cache, seqs: list[int], lasts: list[int]) -> Tensor:
    """One row and head after the other, in double."""
    rows, heads, head_dim = q.shape
    out = torch.zeros(rows, heads, head_dim, dtype=torch.float64)
    shared = heads // cache.k_pool.shape[2]
    for row in range(rows):
        for head in range(heads if lasts[row] >= 0 else 0):
            keys = cache.keys[seqs[row]][: lasts[row] + 1, head // shared].double()
            values = cache.values[seqs[row]][: lasts[row] + 1, head // shared].double()
            scores = keys @ q[row, head].double() * head_dim**-0.5
            out[row, head] = scores.softmax(dim=0) @ values
    return out


CASES = [
    ((1,), 1, 1, 1, 1),
    ((5,), 4, 2, 8, 4),
    ((70, 17, 1), 9, 3, 64, 16),
    ((300, 33), 8, 1, 20, 24),
    ((530,), 2, 2, 7, 100),
    ((260,), 6, 1, 16, 300),
]


@pytest.mark.parametrize(("lengths", "heads", "kv_heads", "head_dim", "block_size"), CASES)
def test_it_is_softmax_attention_over_the_visible_positions(
    native: KernelSet,
    reference: KernelSet,
    dtype: torch.dtype,
    lengths: tuple[int, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    cache = make_cache(lengths, kv_heads, head_dim, block_size, dtype)
    seqs, lasts = [], []
    for seq, length in enumerate(lengths):
        tail = min(length, 6)
        seqs += [seq] * tail
        lasts += range(length - tail, length)
    q = torch.randn(len(seqs), heads, head_dim)
    expected = obvious(q, cache, seqs, lasts)
    assert_near(attend(native, q, cache, seqs, lasts), expected, tolerance=3e-6)
    assert_near(attend(reference, q, cache, seqs, lasts), expected, tolerance=3e-6)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_row_has_the_same_bits_alone_in_a_prefill_and_on_any_threads(
    native: KernelSet, dtype: torch.dtype, threads: int
) -> None:
    cache = make_cache((600, 40), 2, 24, 16, dtype)
    seqs, lasts = [0] * 90 + [1] * 40, list(range(510, 600)) + list(range(40))
    q = torch.randn(len(seqs), 6, 24)
    whole = attend(make_kernels(Backend.NATIVE, num_threads=threads), q, cache, seqs, lasts)
    alone = make_kernels(Backend.NATIVE, num_threads=1)
    for row in (0, 1, 7, 50, 89, 90, 91, 129):
        one = attend(alone, q[row : row + 1], cache, seqs[row : row + 1], lasts[row : row + 1])
        assert torch.equal(one[0], whole[row]), row


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_long_cache_split_among_threads_keeps_the_bits(
    native: KernelSet, dtype: torch.dtype, rows: int
) -> None:
    cache = make_cache((1500,), 1, 32, 16, dtype)
    q, seqs, lasts = torch.randn(rows, 3, 32), [0] * rows, list(range(1500 - rows, 1500))
    split = attend(make_kernels(Backend.NATIVE, num_threads=4), q, cache, seqs, lasts)
    whole = attend(make_kernels(Backend.NATIVE, num_threads=1), q, cache, seqs, lasts)
    assert torch.equal(split, whole)


def test_rows_of_one_sequence_in_any_order(native: KernelSet, dtype: torch.dtype) -> None:
    cache = make_cache((300, 20), 2, 16, 8, dtype)
    seqs, lasts = [0, 0, 1, 0, 1, 0], [299, 3, 19, 256, 0, 255]
    q = torch.randn(6, 4, 16)
    found = attend(native, q, cache, seqs, lasts)
    assert_near(found, obvious(q, cache, seqs, lasts), tolerance=3e-6)


def test_padding_rows_give_zeros(native: KernelSet, reference: KernelSet) -> None:
    cache = make_cache((20,), 1, 8, 4, torch.float32)
    q = torch.randn(3, 2, 8)
    for kernels in (native, reference):
        out = attend(kernels, q, cache, [0, 0, 0], [-1, 19, -1])
        assert not out[[0, 2]].any()
        assert out[1].abs().sum() > 0
        assert not attend(kernels, q, cache, [0, 0, 0], [-1, -1, -1]).any()


def test_large_scores_do_not_overflow(native: KernelSet) -> None:
    cache = make_cache((40,), 1, 8, 4, torch.float32)
    q = torch.randn(1, 1, 8) * 200
    assert_near(attend(native, q, cache, [0], [39]), obvious(q, cache, [0], [39]), tolerance=1e-4)


def test_slices_of_a_fused_projection(native: KernelSet) -> None:
    cache = make_cache((30,), 1, 8, 4, torch.float32)
    fused = torch.randn(2, 40)
    q = fused[:, :16].view(2, 2, 8)
    strided = attend(native, q, cache, [0, 0], [28, 29])
    assert torch.equal(strided, attend(native, q.contiguous(), cache, [0, 0], [28, 29]))


def test_no_rows(native: KernelSet) -> None:
    cache = make_cache((5,), 1, 8, 4, torch.float32)
    assert attend(native, torch.empty(0, 2, 8), cache, [], []).shape == (0, 2, 8)


@pytest.mark.parametrize(("seq", "last"), [(1, 0), (-1, 0), (0, 8), (0, -2), (0, 5)])
def test_an_index_out_of_range_is_refused(native: KernelSet, seq: int, last: int) -> None:
    """(0, 5) lies in the table but on an invalid block id."""
    cache = make_cache((4,), 1, 8, 4, torch.float32)
    tables = torch.cat([cache.tables, torch.tensor([[-9]], dtype=torch.int32)], dim=1)
    cache = Cache(k_pool=cache.k_pool, v_pool=cache.v_pool, tables=tables, keys=[], values=[])
    with pytest.raises(ValueError, match="paged_attention: operands do not fit"):
        attend(native, torch.randn(1, 2, 8), cache, [seq], [last])


def test_unfit_operands_are_named(native: KernelSet) -> None:
    cache = make_cache((4,), 2, 8, 4, torch.float32)
    index = torch.zeros(1, dtype=torch.int32)
    q = torch.randn(1, 4, 8)
    for args in [
        (q.double(), cache.k_pool, cache.v_pool, cache.tables, index, index),
        (torch.randn(1, 3, 8), cache.k_pool, cache.v_pool, cache.tables, index, index),
        (q, cache.k_pool.bfloat16(), cache.v_pool, cache.tables, index, index),
        (q, cache.k_pool, cache.v_pool, cache.tables.long(), index, index),
        (q, cache.k_pool, cache.v_pool, cache.tables, index.long(), index),
        (q, cache.k_pool, cache.v_pool, cache.tables, index, index[:0]),
    ]:
        with pytest.raises(ValueError, match="paged_attention: operands do not fit"):
            native.paged_attention(*args, 1.0)
