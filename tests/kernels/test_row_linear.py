"""linear: right values, and the same bits for a row however it is batched or threaded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near, poisoned

SHAPES = [(1, 1, 1), (1, 7, 13), (2, 5, 31), (3, 10, 576), (4, 100, 96), (5, 33, 100)]
LARGE_SHAPES = [(17, 49, 77), (64, 200, 576), (300, 101, 260), (16, 1, 24), (33, 8, 1536)]


@pytest.mark.parametrize(("rows", "num_out", "width"), SHAPES + LARGE_SHAPES)
def test_linear_equals_the_reference(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype, rows: int, num_out: int, width: int
) -> None:
    x, w = torch.randn(rows, width), torch.randn(num_out, width).to(dtype)
    assert_near(native.linear(x, w), reference.linear(x, w))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 40),
    num_out=st.integers(1, 70),
    width=st.integers(1, 90),
    first=st.integers(0, 39),
    count=st.integers(1, 40),
    threads=st.integers(1, 4),
)
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(
    native: KernelSet,
    dtype: torch.dtype,
    rows: int,
    num_out: int,
    width: int,
    first: int,
    count: int,
    threads: int,
) -> None:
    x, w = torch.randn(rows, width), torch.randn(num_out, width).to(dtype)
    whole = make_kernels(Backend.NATIVE, num_threads=threads).linear(x, w)
    part = make_kernels(Backend.NATIVE, num_threads=1).linear(x[first : first + count], w)
    assert torch.equal(part, whole[first : first + count])


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 15, 16, 17, 64, 200])
def test_threaded_and_blocked_calls_keep_the_bits_of_single_rows(
    native: KernelSet, dtype: torch.dtype, rows: int
) -> None:
    # Large enough for the threads to share it, and for the panel path from 16 rows on.
    x, w = torch.randn(rows, 300), torch.randn(500, 300).to(dtype)
    alone = torch.cat([native.linear(x[r : r + 1], w) for r in range(rows)])
    assert torch.equal(native.linear(x, w), alone)


def test_float32_and_bfloat16_weights_of_equal_value_give_equal_bits(native: KernelSet) -> None:
    x, w = torch.randn(5, 200), torch.randn(30, 200).bfloat16()
    assert torch.equal(native.linear(x, w), native.linear(x, w.float()))


def test_every_element_of_a_given_output_is_written(native: KernelSet, dtype: torch.dtype) -> None:
    x, w = torch.randn(6, 50), torch.randn(33, 50).to(dtype)
    out = poisoned(6, 33)
    assert native.linear(x, w, out=out) is out
    assert torch.equal(out, native.linear(x, w))


def test_rows_may_be_slices_of_wider_tensors(native: KernelSet, dtype: torch.dtype) -> None:
    wide, w = torch.randn(6, 100), torch.randn(9, 40).to(dtype)
    out = poisoned(6, 20)
    native.linear(wide[:, 30:70], w, out=out[:, 3:12])
    assert torch.equal(out[:, 3:12], native.linear(wide[:, 30:70].contiguous(), w))
    assert out[:, :3].isnan().all()
    assert out[:, 12:].isnan().all()


def test_a_neighbouring_row_of_nan_does_not_leak(native: KernelSet, dtype: torch.dtype) -> None:
    x, w = torch.randn(8, 77), torch.randn(20, 77).to(dtype)
    clean = native.linear(x, w)
    x[3] = torch.nan
    dirty = native.linear(x, w)
    assert dirty[3].isnan().all()
    others = [r for r in range(8) if r != 3]
    assert torch.equal(dirty[others], clean[others])


@pytest.mark.parametrize(("rows", "num_out"), [(0, 5), (3, 0), (0, 0)])
def test_empty_operands_give_empty_results(native: KernelSet, rows: int, num_out: int) -> None:
    assert native.linear(torch.randn(rows, 8), torch.randn(num_out, 8)).shape == (rows, num_out)


def test_width_zero_gives_zeros(native: KernelSet) -> None:
    out = native.linear(torch.empty(3, 0), torch.empty(4, 0), out=poisoned(3, 4))
    assert torch.equal(out, torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (torch.randn(2, 8).double(), torch.randn(3, 8)),
        (torch.randn(2, 8).bfloat16(), torch.randn(3, 8).bfloat16()),
        (torch.randn(2, 8), torch.randn(3, 8).half()),
        (torch.randn(2, 8), torch.randn(3, 7)),
        (torch.randn(8), torch.randn(3, 8)),
        (torch.randn(2, 8), torch.randn(8, 3).T),
        (torch.randn(8, 2).T, torch.randn(3, 8)),
    ],
    ids=["x double", "x bf16", "w half", "widths differ", "x 1-d", "w transposed", "x transposed"],
)
def test_unfit_operands_are_named(native: KernelSet, x: torch.Tensor, w: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"linear: operands do not fit \(x_RK=.*w_NK=.*expected"):
        native.linear(x, w)


@pytest.mark.parametrize("out", [torch.empty(2, 4), torch.empty(2, 3).half(), torch.empty(3, 2).T])
def test_an_unfit_output_is_named(native: KernelSet, out: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="out="):
        native.linear(torch.randn(2, 8), torch.randn(3, 8), out=out)
