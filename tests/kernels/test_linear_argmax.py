"""linear_argmax: the maximum, the lowest index of it, and the log-sum-exp of every row."""

from __future__ import annotations

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near


@pytest.mark.parametrize(
    ("rows", "num_out", "width"),
    [(1, 1, 5), (1, 300, 64), (4, 1000, 40), (3, 256, 16), (70, 777, 24), (2, 513, 9)],
)
def test_it_equals_the_reference(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype, rows: int, num_out: int, width: int
) -> None:
    x, w = torch.randn(rows, width), torch.randn(num_out, width).to(dtype)
    found, expected = native.linear_argmax(x, w), reference.linear_argmax(x, w)
    assert torch.equal(found.index_R, expected.index_R)
    assert found.index_R.dtype == torch.int64
    assert_near(found.value_R, expected.value_R)
    assert_near(found.log_sum_exp_R, expected.log_sum_exp_R)


def test_it_is_the_maximum_of_linear_to_the_bit(native: KernelSet, dtype: torch.dtype) -> None:
    x, w = torch.randn(5, 60), torch.randn(900, 60).to(dtype)
    logits = native.linear(x, w)
    found = native.linear_argmax(x, w)
    assert torch.equal(found.value_R, logits.amax(dim=-1))
    assert torch.equal(logits.gather(1, found.index_R[:, None])[:, 0], found.value_R)


@pytest.mark.parametrize("equal_columns", [(3, 700), (255, 256), (0, 899), (10, 11, 600)])
def test_equal_maxima_go_to_the_lowest_column(
    native: KernelSet, reference: KernelSet, equal_columns: tuple[int, ...]
) -> None:
    x, w = torch.rand(3, 20) + 0.1, torch.rand(900, 20)
    w[list(equal_columns)] = 5.0
    for kernels in (native, reference):
        assert kernels.linear_argmax(x, w).index_R.tolist() == [equal_columns[0]] * 3


def test_all_equal_logits_choose_column_zero(native: KernelSet, reference: KernelSet) -> None:
    x, w = torch.zeros(2, 8), torch.randn(600, 8)
    for kernels in (native, reference):
        assert kernels.linear_argmax(x, w).index_R.tolist() == [0, 0]


@pytest.mark.parametrize("rows", [1, 4, 33])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    native: KernelSet, dtype: torch.dtype, rows: int
) -> None:
    x, w = torch.randn(40, 64), torch.randn(2000, 64).to(dtype)
    whole = make_kernels(Backend.NATIVE, num_threads=3).linear_argmax(x, w)
    part = make_kernels(Backend.NATIVE, num_threads=1).linear_argmax(x[5 : 5 + rows], w)
    for found, expected in zip(part, whole, strict=True):
        assert torch.equal(found, expected[5 : 5 + rows])


def test_large_logits_do_not_overflow(native: KernelSet) -> None:
    x, w = torch.full((1, 8), 50.0), torch.ones(300, 8)
    found = native.linear_argmax(x, w)
    assert_near(found.log_sum_exp_R, torch.tensor([400 + torch.tensor(300.0).log()]))


def test_a_row_of_nan_is_visible_and_its_index_valid(native: KernelSet) -> None:
    x, w = torch.randn(3, 8), torch.randn(600, 8)
    x[1, 2] = torch.nan
    found = native.linear_argmax(x, w)
    assert found.log_sum_exp_R.isnan().tolist() == [False, True, False]
    assert all(0 <= index < 600 for index in found.index_R.tolist())


def test_no_rows_and_no_columns(native: KernelSet) -> None:
    assert native.linear_argmax(torch.empty(0, 8), torch.randn(5, 8)).index_R.shape == (0,)
    with pytest.raises(ValueError, match="N >= 1"):
        native.linear_argmax(torch.randn(2, 8), torch.empty(0, 8))
