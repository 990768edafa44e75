"""empty_weights: an ordinary tensor, whatever pages it lies on."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from phalanx.kernels.weight_memory import SMALLEST_BYTES, empty_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 3, 4096])
def test_it_has_the_shape_and_keeps_what_is_written(dtype: torch.dtype, rows: int) -> None:
    weights = empty_weights((rows, 1024), dtype)
    assert weights.shape == (rows, 1024)
    assert weights.dtype == dtype
    assert weights.is_contiguous()
    values = torch.randn(rows, 1024).to(dtype)
    weights.copy_(values)
    part = weights[rows // 2 :]
    del weights
    gc.collect()
    assert torch.equal(part, values[rows // 2 :])


def test_a_system_without_huge_pages_gives_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert (
        empty_weights((SMALLEST_BYTES // 4 + 1,), torch.float32).numel() == SMALLEST_BYTES // 4 + 1
    )


def test_a_kernel_that_refuses_the_advice_gives_ordinary_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)
    assert empty_weights((SMALLEST_BYTES,), torch.float32).shape == (SMALLEST_BYTES,)
