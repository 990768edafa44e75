"""kv_store: keys and values land in their slots, rounded to the pool's dtype."""

from __future__ import annotations

import pytest
import torch

from phalanx.kernels.kernel_set import KernelSet


@pytest.mark.parametrize(("rows", "kv_heads", "head_dim"), [(0, 2, 8), (1, 3, 64), (30, 2, 5)])
def test_it_equals_the_reference_to_the_bit(
    native: KernelSet,
    reference: KernelSet,
    dtype: torch.dtype,
    rows: int,
    kv_heads: int,
    head_dim: int,
) -> None:
    k, v = torch.randn(2, rows, kv_heads, head_dim).unbind(0)
    slots = torch.randperm(10 * 4)[:rows]
    pools = []
    for kernels in (native, reference):
        k_pool = torch.full((10, 4, kv_heads, head_dim), torch.nan).to(dtype)
        v_pool = k_pool.clone()
        kernels.kv_store(k, v, k_pool, v_pool, slots)
        pools.append((k_pool, v_pool))
    for found, expected in zip(*pools, strict=True):
        assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


def test_rounding_is_to_nearest_even_and_keeps_nan_and_inf(native: KernelSet) -> None:
    special = torch.tensor(
        [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40]
    )
    k = special[None, None]
    k_pool = torch.zeros(1, 1, 1, 9, dtype=torch.bfloat16)
    v_pool = k_pool.clone()
    native.kv_store(k, -k, k_pool, v_pool, torch.tensor([0]))
    for found, expected in ((k_pool, k.bfloat16()), (v_pool, (-k).bfloat16())):
        assert torch.equal(found.flatten().isnan(), expected.flatten().isnan())
        assert torch.equal(
            found.flatten()[1:].view(torch.int16), expected.flatten()[1:].view(torch.int16)
        )


def test_rows_may_be_slices_of_a_fused_projection(native: KernelSet, dtype: torch.dtype) -> None:
    fused = torch.randn(4, 48)
    k, v = fused[:, 16:32].view(4, 2, 8), fused[:, 32:].view(4, 2, 8)
    k_pool = torch.zeros(2, 3, 2, 8, dtype=dtype)
    v_pool = torch.zeros_like(k_pool)
    native.kv_store(k, v, k_pool, v_pool, torch.tensor([5, 0, 2, 1]))
    flat_k, flat_v = k_pool.flatten(0, 1), v_pool.flatten(0, 1)
    assert torch.equal(flat_k[[5, 0, 2, 1]], k.to(dtype))
    assert torch.equal(flat_v[[5, 0, 2, 1]], v.to(dtype))
    assert not flat_k[[3, 4]].any()


@pytest.mark.parametrize("slot", [-1, 6, 2**40])
def test_a_slot_outside_the_pool_is_refused_before_anything_is_written(
    native: KernelSet, slot: int
) -> None:
    k = torch.randn(2, 1, 4)
    k_pool, v_pool = torch.zeros(3, 2, 1, 4), torch.zeros(3, 2, 1, 4)
    with pytest.raises(ValueError, match="kv_store: operands do not fit"):
        native.kv_store(k, k, k_pool, v_pool, torch.tensor([0, slot]))
    assert not k_pool.any()


def test_unfit_operands_are_named(native: KernelSet) -> None:
    k, pool, slots = torch.randn(2, 1, 4), torch.zeros(3, 2, 1, 4), torch.tensor([0, 1])
    for args in [
        (k.bfloat16(), k, pool, pool, slots),
        (k, k[:1], pool, pool, slots),
        (k, k, pool.half(), pool.half(), slots),
        (k, k, pool, pool.bfloat16(), slots),
        (k, k, pool, pool, slots.int()),
        (k, k, pool.transpose(0, 1), pool.transpose(0, 1), slots),
    ]:
        with pytest.raises(ValueError, match="kv_store: operands do not fit"):
            native.kv_store(*args)
