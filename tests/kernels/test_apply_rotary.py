"""rotary: queries and keys turn by the angles of their positions, in place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phalanx.kernels.kernel_set import KernelSet
from tests.kernels.nearness import assert_near


def tables(num_positions: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines with the usual inverse frequencies."""
    inverse = 10000.0 ** (-torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    angles = torch.arange(num_positions).float()[:, None] * inverse
    return angles.cos(), angles.sin()


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [(0, 2, 1, 8, 8), (1, 9, 3, 64, 64), (5, 4, 2, 16, 8), (40, 3, 3, 10, 6), (2, 1, 1, 2, 2)],
)
def test_it_equals_the_reference(
    native: KernelSet,
    reference: KernelSet,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
) -> None:
    cos, sin = tables(50, rotary_dim)
    positions = torch.randint(0, 50, (rows,))
    q, k = torch.randn(rows, heads, head_dim), torch.randn(rows, kv_heads, head_dim)
    results = []
    for kernels in (native, reference):
        turned = (q.clone(), k.clone())
        kernels.rotary(*turned, cos, sin, positions, rotary_dim=rotary_dim)
        results.append(turned)
    for found, expected, before in zip(*results, (q, k), strict=True):
        assert_near(found, expected, tolerance=1e-6)
        assert torch.equal(found[..., rotary_dim:], before[..., rotary_dim:])


def test_it_is_the_rotation_of_complex_pairs(native: KernelSet, reference: KernelSet) -> None:
    cos, sin = tables(50, 16)
    positions = torch.tensor([0, 7, 49])
    q = torch.randn(3, 2, 16)
    pairs = torch.complex(q[..., :8], q[..., 8:]) * torch.complex(cos, sin)[positions, None]
    expected = torch.cat([pairs.real, pairs.imag], dim=-1)
    for kernels in (native, reference):
        found = q.clone()
        kernels.rotary(found, q[:, :1].clone(), cos, sin, positions, rotary_dim=16)
        assert_near(found, expected, tolerance=1e-6)


def test_slices_of_a_fused_projection_turn_in_place(native: KernelSet) -> None:
    cos, sin = tables(20, 8)
    positions = torch.arange(3, 7)
    fused = torch.randn(4, 6 * 8)
    q, k = fused[:, :32].view(4, 4, 8), fused[:, 32:40].view(4, 1, 8)
    values = fused[:, 40:].clone()
    expected_q, expected_k = q.contiguous(), k.contiguous()
    native.rotary(expected_q, expected_k, cos, sin, positions, rotary_dim=8)
    native.rotary(q, k, cos, sin, positions, rotary_dim=8)
    assert torch.equal(q, expected_q)
    assert torch.equal(k, expected_k)
    assert torch.equal(fused[:, 40:], values)


@pytest.mark.parametrize("position", [-1, 20, 2**40])
def test_a_position_outside_the_table_is_refused_before_anything_turns(
    native: KernelSet, position: int
) -> None:
    cos, sin = tables(20, 8)
    q, k = torch.randn(2, 2, 8), torch.randn(2, 1, 8)
    before = q.clone()
    with pytest.raises(ValueError, match=r"positions_R contiguous int64 in 0\.\.P-1"):
        native.rotary(q, k, cos, sin, torch.tensor([0, position]), rotary_dim=8)
    assert torch.equal(q, before)


def test_unfit_operands_are_named(native: KernelSet) -> None:
    cos, sin = tables(20, 8)
    q, k, positions = torch.randn(2, 2, 8), torch.randn(2, 1, 8), torch.arange(2)
    unfit: list[tuple[Tensor, ...]] = [
        (q.double(), k, cos, sin, positions),
        (q, k[:1], cos, sin, positions),
        (q, k, cos, sin[:10], positions),
        (q, k, cos, sin, positions.int()),
        (q.transpose(1, 2).contiguous().transpose(1, 2), k, cos, sin, positions),
    ]
    for args in unfit:
        with pytest.raises(ValueError, match="rotary: operands do not fit"):
            native.rotary(*args, rotary_dim=8)
    with pytest.raises(ValueError, match="rotary: operands do not fit"):
        native.rotary(q, k, cos, sin, positions, rotary_dim=6)
