"""RMSNorm, alone and fused with the residual addition before it.

Shapes: x_RD float32 on the CPU (on other devices the model's dtype), weight_D float32 or bfloat16,
eps > 0. The mean of squares is float32. Rows are independent of each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, out_row_stride, row_stride

EXPECTED = (
    "x_RD (and residual_RD) float32 with contiguous rows, weight_D contiguous float32 or bfloat16, "
    "out contiguous float32 [R, D]"
)


class NormedResidual(NamedTuple):
    """What a layer needs after adding to the residual stream."""

    normed_RD: Tensor
    residual_RD: Tensor


def rms_norm_reference(x_RD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps), in x's dtype, on any device."""
    x32_RD = x_RD.float()
    scale_R1 = torch.rsqrt(x32_RD.pow(2).mean(dim=-1, keepdim=True) + eps)
    return weight_D.to(x_RD.dtype) * (x32_RD * scale_R1).to(x_RD.dtype)


def rms_norm(
    x_RD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor | None = None, backend: Backend
) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) per row, into `out` when given (may be x itself).

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is not Backend.NATIVE:
        y_RD = rms_norm_reference(x_RD, weight_D, eps)
        return y_RD if out is None else out.copy_(y_RD)
    code = DTYPE_CODES.get(weight_D.dtype, -1)
    rows, width = x_RD.shape
    if (
        code < 0
        or x_RD.dtype is not torch.float32
        or not (x_RD.is_cpu and weight_D.is_cpu and weight_D.is_contiguous())
        or weight_D.shape != (width,)
        or (x_stride := width if x_RD.is_contiguous() else row_stride(x_RD)) < 0
        or not (out is None or (out.is_contiguous() and out_row_stride(out, rows, width) >= 0))
    ):
        raise bad_operands("rms_norm", expected=EXPECTED, x_RD=x_RD, weight_D=weight_D, out=out)
    y_RD = torch.empty(rows, width) if out is None else out
    library.rms_norm(
        x_RD.data_ptr(), x_stride, weight_D.data_ptr(), code, eps, y_RD.data_ptr(), rows, width
    )
    return y_RD


def add_rms_norm(
    x_RD: Tensor, residual_RD: Tensor, weight_D: Tensor, eps: float, *, backend: Backend
) -> NormedResidual:
    """The new residual x + residual, and its RMSNorm; both are fresh tensors.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is not Backend.NATIVE:
        sum_RD = x_RD + residual_RD
        return NormedResidual(rms_norm_reference(sum_RD, weight_D, eps), sum_RD)
    code = DTYPE_CODES.get(weight_D.dtype, -1)
    rows, width = x_RD.shape
    if (
        code < 0
        or x_RD.dtype is not torch.float32
        or residual_RD.dtype is not torch.float32
        or not (x_RD.is_cpu and residual_RD.is_cpu and weight_D.is_cpu)
        or residual_RD.shape != (rows, width)
        or weight_D.shape != (width,)
        or not weight_D.is_contiguous()
        or (x_stride := width if x_RD.is_contiguous() else row_stride(x_RD)) < 0
        or (skip_stride := width if residual_RD.is_contiguous() else row_stride(residual_RD)) < 0
    ):
        raise bad_operands(
            "add_rms_norm", expected=EXPECTED, x_RD=x_RD, residual_RD=residual_RD, weight_D=weight_D
        )
    normed_RD, sum_RD = torch.empty(rows, width), torch.empty(rows, width)
    library.add_rms_norm(
        x_RD.data_ptr(),
        x_stride,
        residual_RD.data_ptr(),
        skip_stride,
        weight_D.data_ptr(),
        code,
        eps,
        normed_RD.data_ptr(),
        sum_RD.data_ptr(),
        rows,
        width,
    )
    return NormedResidual(normed_RD, sum_RD)
