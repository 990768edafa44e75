"""Linear layer without bias: y = x @ w.T, each row's result independent of all other rows.

Shapes: x_RK float32 on the CPU (on other devices the weight's dtype), w_NK float32 or bfloat16,
y_RN in x's dtype. Sums are float32. The native path adds the K products of one output in one fixed
order, so a row's result is the same bits alone, among 4 or among 4096 rows, and for any number of
threads. That is what makes a verify of several rows give exactly the tokens of plain decoding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, out_row_stride, row_stride

EXPECTED = (
    "x_RK float32 with contiguous rows, w_NK contiguous float32 or bfloat16, out float32 [R, N]"
)


def linear_reference(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    """y_RN = x @ w.T; mixed dtypes are computed in float32."""
    if x_RK.dtype == w_NK.dtype:
        return functional.linear(x_RK, w_NK)
    return functional.linear(x_RK.float(), w_NK.float())


def linear(x_RK: Tensor, w_NK: Tensor, *, out: Tensor | None = None, backend: Backend) -> Tensor:
    """y_RN = x @ w.T, written into `out` when given.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is Backend.NATIVE:
        return linear_native(x_RK, w_NK, out)
    y_RN = linear_reference(x_RK, w_NK)
    return y_RN if out is None else out.copy_(y_RN)


def linear_native(x_RK: Tensor, w_NK: Tensor, out: Tensor | None) -> Tensor:
    """The call into the library."""
    code = DTYPE_CODES.get(w_NK.dtype, -1)
    x_shape, w_shape = x_RK.shape, w_NK.shape
    if (
        code < 0
        or x_RK.dtype is not torch.float32
        or not (x_RK.is_cpu and w_NK.is_cpu and w_NK.is_contiguous())
        or not len(x_shape) == len(w_shape) == 2
        or x_shape[1] != w_shape[1]
    ):
        raise bad_operands("linear", expected=EXPECTED, x_RK=x_RK, w_NK=w_NK)
    rows, width = x_shape
    num_out = w_shape[0]
    x_stride = width if x_RK.is_contiguous() else row_stride(x_RK)
    if out is None:
        out = torch.empty(rows, num_out)
        out_stride = num_out
    else:
        out_stride = out_row_stride(out, rows, num_out)
    if x_stride < 0 or out_stride < 0:
        raise bad_operands("linear", expected=EXPECTED, x_RK=x_RK, w_NK=w_NK, out=out)
    library.linear(
        x_RK.data_ptr(),
        x_stride,
        w_NK.data_ptr(),
        code,
        out.data_ptr(),
        out_stride,
        rows,
        num_out,
        width,
    )
    return out
