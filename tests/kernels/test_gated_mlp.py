"""gated_mlp: the dense MLP in one call."""

from __future__ import annotations

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near, poisoned


@pytest.mark.parametrize(
    ("rows", "width", "inner"), [(0, 8, 4), (1, 1, 1), (4, 576, 300), (3, 37, 11), (40, 64, 96)]
)
def test_it_equals_the_reference(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype, rows: int, width: int, inner: int
) -> None:
    x = torch.randn(rows, width)
    gate_up = (torch.randn(2 * inner, width) / width**0.5).to(dtype)
    down = (torch.randn(width, inner) / inner**0.5).to(dtype)
    found = native.gated_mlp(x, gate_up, down, out=poisoned(rows, width))
    assert_near(found, reference.gated_mlp(x, gate_up, down), tolerance=4e-6)


def test_it_is_the_one_expert_mixture(native: KernelSet, dtype: torch.dtype) -> None:
    x, gate_up, down = torch.randn(5, 24), torch.randn(20, 24).to(dtype), torch.randn(24, 10)
    down = down.to(dtype)
    ids, ones = torch.zeros(5, 1, dtype=torch.int32), torch.ones(5, 1)
    mixture = native.gated_experts(x, gate_up[None], down[None], ids, ones)
    assert torch.equal(native.gated_mlp(x, gate_up, down), mixture)


def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    native: KernelSet, dtype: torch.dtype
) -> None:
    x, gate_up = torch.randn(40, 100), torch.randn(160, 100).to(dtype)
    down = torch.randn(100, 80).to(dtype)
    whole = make_kernels(Backend.NATIVE, num_threads=4).gated_mlp(x, gate_up, down)
    alone = make_kernels(Backend.NATIVE, num_threads=1)
    rows = [alone.gated_mlp(x[r : r + 1], gate_up, down) for r in range(40)]
    assert torch.equal(torch.cat(rows), whole)


def test_unfit_operands_are_named(native: KernelSet) -> None:
    x, gate_up, down = torch.randn(2, 8), torch.randn(12, 8), torch.randn(8, 6)
    for args in [
        (x.half(), gate_up, down),
        (x, gate_up[:11], down),
        (x, gate_up, down.T),
        (x, gate_up, down.bfloat16()),
    ]:
        with pytest.raises(ValueError, match="gated_mlp: operands do not fit"):
            native.gated_mlp(*args)
