"""rms_norm and add_rms_norm."""

from __future__ import annotations

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from tests.kernels.nearness import assert_near, poisoned

EPS = 1e-5


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 7), (4, 576), (50, 129)])
def test_they_equal_the_reference(
    native: KernelSet, reference: KernelSet, dtype: torch.dtype, rows: int, width: int
) -> None:
    x, residual = torch.randn(2, rows, width).unbind(0)
    weight = torch.randn(width).to(dtype)
    found = native.rms_norm(x, weight, EPS, out=poisoned(rows, width))
    assert_near(found, reference.rms_norm(x, weight, EPS), tolerance=1e-6)
    fused, expected = (
        kernels.add_rms_norm(x, residual, weight, EPS) for kernels in (native, reference)
    )
    assert torch.equal(fused.residual_RD, x + residual)
    assert_near(fused.normed_RD, expected.normed_RD, tolerance=1e-6)
    assert torch.equal(fused.normed_RD, native.rms_norm(x + residual, weight, EPS))


def test_it_equals_the_formula_in_double(native: KernelSet, reference: KernelSet) -> None:
    x, weight = torch.randn(4, 100) * 30, torch.randn(100)
    wide = x.double()
    expected = weight.double() * wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    for kernels in (native, reference):
        assert_near(kernels.rms_norm(x, weight, EPS), expected, tolerance=1e-6)


def test_rows_do_not_depend_on_batch_or_threads(native: KernelSet) -> None:
    x, weight = torch.randn(100, 600), torch.randn(600)
    whole = make_kernels(Backend.NATIVE, num_threads=3).rms_norm(x, weight, EPS)
    alone = make_kernels(Backend.NATIVE, num_threads=1)
    for row in (0, 41, 99):
        assert torch.equal(alone.rms_norm(x[row : row + 1], weight, EPS), whole[row : row + 1])


def test_slices_of_wider_rows_and_in_place(native: KernelSet) -> None:
    wide, weight = torch.randn(5, 90), torch.randn(30)
    part = wide[:, 40:70]
    expected = native.rms_norm(part.contiguous(), weight, EPS)
    assert torch.equal(native.rms_norm(part, weight, EPS), expected)
    own = part.contiguous()
    native.rms_norm(own, weight, EPS, out=own)
    assert torch.equal(own, expected)


def test_unfit_operands_are_named(native: KernelSet) -> None:
    x, weight = torch.randn(2, 8), torch.randn(8)
    for args in [(x.double(), weight), (x, weight[:4]), (x, weight.half()), (x.T, weight[:2])]:
        with pytest.raises(ValueError, match="rms_norm: operands do not fit"):
            native.rms_norm(*args, EPS)
    with pytest.raises(ValueError, match="add_rms_norm: operands do not fit"):
        native.add_rms_norm(x, x[:1], weight, EPS)
