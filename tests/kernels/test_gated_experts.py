"""gated_experts: the mixture of a rank's experts, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phalanx.kernels import gated_experts as module
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near, poisoned

Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def operands(
    rows: int, width: int, inner: int, experts: int, chosen: int, dtype: torch.dtype
) -> Operands:
    """Random weights, distinct experts per row, about a fifth of them on another rank."""
    gate_up = (torch.randn(experts, 2 * inner, width) / width**0.5).to(dtype)
    down = (torch.randn(experts, width, inner) / inner**0.5).to(dtype)
    ids = torch.rand(rows, experts).argsort(dim=1)[:, :chosen].to(torch.int32)
    ids[torch.rand(rows, chosen) < 0.2] = -1
    return torch.randn(rows, width), gate_up, down, ids, torch.rand(rows, chosen)


SHAPES = [
    (1, 16, 8, 4, 2),
    (4, 576, 192, 8, 8),
    (5, 33, 17, 5, 3),
    (3, 1, 1, 2, 1),
    (70, 64, 48, 4, 2),
    (600, 40, 24, 4, 2),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_equals_the_reference(
    native: KernelSet,
    reference: KernelSet,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int, int],
) -> None:
    args = operands(*shape, dtype)
    assert_near(native.gated_experts(*args), reference.gated_experts(*args), tolerance=4e-6)


def test_it_is_the_written_formula(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype
) -> None:
    x, gate_up, down, ids, weights = operands(7, 20, 12, 5, 3, dtype)
    expected = torch.zeros(7, 20, dtype=torch.float64)
    for row in range(7):
        for choice in range(3):
            expert = int(ids[row, choice])
            if expert >= 0:
                gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
                hidden = gate * torch.sigmoid(gate) * up
                expected[row] += weights[row, choice].double() * (down[expert].double() @ hidden)
    for kernels in (native, reference):
        assert_near(kernels.gated_experts(x, gate_up, down, ids, weights), expected, tolerance=4e-6)


@pytest.mark.parametrize("rows", [1, 2, 4, 17, 50])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    native: KernelSet, dtype: torch.dtype, rows: int
) -> None:
    x, gate_up, down, ids, weights = operands(100, 80, 60, 6, 3, dtype)
    whole = make_kernels(Backend.NATIVE, num_threads=3).gated_experts(
        x, gate_up, down, ids, weights
    )
    some = slice(9, 9 + rows)
    alone = make_kernels(Backend.NATIVE, num_threads=1)
    part = alone.gated_experts(x[some], gate_up, down, ids[some], weights[some])
    assert torch.equal(part, whole[some])


def test_more_rows_than_one_pass_keep_their_bits(native: KernelSet, dtype: torch.dtype) -> None:
    x, gate_up, down, ids, weights = operands(1100, 24, 16, 4, 2, dtype)
    whole = native.gated_experts(x, gate_up, down, ids, weights)
    last = slice(1090, 1100)
    part = native.gated_experts(x[last], gate_up, down, ids[last], weights[last])
    assert torch.equal(part, whole[last])


def test_rows_without_an_expert_here_are_zero(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype
) -> None:
    x, gate_up, down, ids, weights = operands(5, 32, 16, 4, 2, dtype)
    ids[2] = -1
    for kernels in (native, reference):
        out = kernels.gated_experts(x, gate_up, down, ids, weights)
        assert torch.equal(out[2], torch.zeros(32))
        assert out[[0, 1, 3, 4]].abs().sum() > 0
    nowhere = torch.full_like(ids, -1)
    out = native.gated_experts(x, gate_up, down, nowhere, weights, out=poisoned(5, 32))
    assert torch.equal(out, torch.zeros(5, 32))


def test_the_same_expert_twice_in_a_row_counts_twice(native: KernelSet) -> None:
    x, gate_up, down, _, _ = operands(1, 32, 16, 4, 2, torch.float32)
    twice = torch.tensor([[1, 1]], dtype=torch.int32)
    once = torch.tensor([[1]], dtype=torch.int32)
    both = native.gated_experts(x, gate_up, down, twice, torch.tensor([[0.25, 0.5]]))
    one = native.gated_experts(x, gate_up, down, once, torch.tensor([[0.75]]))
    assert_near(both, one)


def test_the_grouped_form_equals_the_loop() -> None:
    """The path for GPUs, run here on the CPU: the operand layouts are the same."""
    x, gate_up, down, ids, _ = operands(9, 32, 16, 5, 3, torch.float32)
    looped = module.expert_outputs_looped(x, gate_up, down, ids)
    grouped = module.expert_outputs_grouped(x, gate_up, down, ids)
    assert_near(grouped, looped)
    nowhere = torch.full_like(ids, -1)
    assert not module.expert_outputs_grouped(x, gate_up, down, nowhere).any()


def test_every_element_of_a_given_output_is_written(native: KernelSet, dtype: torch.dtype) -> None:
    args = operands(6, 50, 20, 4, 2, dtype)
    out = poisoned(6, 50)
    assert native.gated_experts(*args, out=out) is out
    assert torch.equal(out, native.gated_experts(*args))


def test_no_rows(native: KernelSet, dtype: torch.dtype) -> None:
    assert native.gated_experts(*operands(0, 16, 8, 4, 2, dtype)).shape == (0, 16)


@pytest.mark.parametrize("bad_id", [4, -2, 2**31 - 1])
def test_an_expert_index_out_of_range_is_refused(native: KernelSet, bad_id: int) -> None:
    x, gate_up, down, ids, weights = operands(3, 16, 8, 4, 2, torch.float32)
    ids[1, 1] = bad_id
    with pytest.raises(ValueError, match="expert_ids_RA int32 in -1"):
        native.gated_experts(x, gate_up, down, ids, weights)


def test_unfit_operands_are_named(native: KernelSet) -> None:
    x, gate_up, down, ids, weights = operands(3, 16, 8, 4, 2, torch.float32)
    unfit: list[tuple[Tensor, ...]] = [
        (x.double(), gate_up, down, ids, weights),
        (x, gate_up.bfloat16(), down, ids, weights),
        (x, gate_up, down.transpose(1, 2), ids, weights),
        (x, gate_up, down, ids.long(), weights),
        (x, gate_up, down, ids, weights[:2]),
        (x[:, :8], gate_up, down, ids, weights),
    ]
    for args in unfit:
        with pytest.raises(ValueError, match="gated_experts: operands do not fit"):
            native.gated_experts(*args)
