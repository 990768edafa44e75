"""Comparison of a native result with its reference."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_near(found: Tensor, expected: Tensor, *, tolerance: float = 2e-6) -> None:
    """Equal to `tolerance` of the largest expected value (sums of float32 in another order)."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if expected.numel() == 0:
        return
    limit = tolerance * max(float(expected.abs().max()), 1e-30)
    worst = float((found.double() - expected.double()).abs().nan_to_num(nan=torch.inf).max())
    assert worst <= limit, (worst, limit)


def poisoned(*shape: int) -> Tensor:
    """An output that shows every element the operation failed to write."""
    return torch.full(shape, torch.nan)
