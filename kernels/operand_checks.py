"""The error for operands that a native operation cannot take.

Native code reads raw memory, so a wrong dtype, shape or stride must never reach it. Operations test
their operands in one cheap condition and build this error only when it fails.
"""

from __future__ import annotations

import torch
from torch import Tensor


class BadOperands(ValueError):
    """An operand's dtype, shape, layout, device or content does not fit the operation."""


def bad_operands(operation: str, *, expected: str, **operands: Tensor | None) -> BadOperands:
    """The error naming every operand as it is, and what was expected."""
    found = ", ".join(
        f"{name}={describe(tensor)}" for name, tensor in operands.items() if tensor is not None
    )
    return BadOperands(
        f"{operation}: operands do not fit ({found}; expected {expected}) -- the native kernel "
        "reads raw memory -- cast, reshape or make the operand contiguous before the call"
    )


def row_stride(tensor: Tensor) -> int:
    """Elements from one row to the next; -1 when the elements of a row do not lie side by side.

    Rows may be slices of a wider tensor. For [R, D] and [R, H, D].
    """
    strides = tensor.stride()
    inner = (tensor.shape[-1], 1)
    return strides[0] if strides[1:] == inner[-(tensor.dim() - 1) :] else -1


def out_row_stride(out: Tensor, rows: int, width: int) -> int:
    """The row stride of a given output, -1 when it is not a float32 CPU tensor [rows, width]."""
    if out.dtype is not torch.float32 or out.shape != (rows, width) or not out.is_cpu:
        return -1
    return width if out.is_contiguous() else row_stride(out)


def describe(tensor: Tensor) -> str:
    """One operand in words: dtype, shape, strides when unusual, device when not the CPU."""
    words = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not tensor.is_contiguous():
        words += f" strides {list(tensor.stride())}"
    return words if tensor.is_cpu else f"{words} on {tensor.device}"
