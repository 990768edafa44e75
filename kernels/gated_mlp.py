"""The dense MLP: y = down(silu(gate) * up) in one call.

Shapes: x_RD float32 on the CPU (on other devices the weights' dtype), gate_up_GD [2F, D] with the
F gate rows first, down_DF [D, F]. The native path is the one-expert case of `gated_experts`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, out_row_stride, row_stride
from phalanx.kernels.row_linear import linear_reference

EXPECTED = (
    "x_RD float32 with contiguous rows, contiguous gate_up_GD [2F, D] and down_DF [D, F] of one "
    "dtype (float32 or bfloat16), out contiguous float32 [R, D]"
)


def gated_mlp_reference(x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor) -> Tensor:
    """Two linear layers around the gate, on any device."""
    gate_RF, up_RF = linear_reference(x_RD, gate_up_GD).chunk(2, dim=-1)
    return linear_reference(functional.silu(gate_RF) * up_RF, down_DF)


def gated_mlp(
    x_RD: Tensor,
    gate_up_GD: Tensor,
    down_DF: Tensor,
    *,
    out: Tensor | None = None,
    backend: Backend,
) -> Tensor:
    """y_RD = down(silu(gate(x)) * up(x)), into `out` when given.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is Backend.NATIVE:
        return gated_mlp_native(x_RD, gate_up_GD, down_DF, out)
    y_RD = gated_mlp_reference(x_RD, gate_up_GD, down_DF)
    return y_RD if out is None else out.copy_(y_RD)


def gated_mlp_native(
    x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor, out: Tensor | None
) -> Tensor:
    """The call into the library."""
    code = DTYPE_CODES.get(gate_up_GD.dtype, -1)
    rows, width = x_RD.shape
    twice_inner = gate_up_GD.shape[0]
    if (
        code < 0
        or x_RD.dtype is not torch.float32
        or down_DF.dtype is not gate_up_GD.dtype
        or not (x_RD.is_cpu and gate_up_GD.is_cpu and down_DF.is_cpu)
        or not (gate_up_GD.is_contiguous() and down_DF.is_contiguous())
        or gate_up_GD.shape != (twice_inner, width)
        or twice_inner % 2
        or down_DF.shape != (width, twice_inner // 2)
        or (x_stride := width if x_RD.is_contiguous() else row_stride(x_RD)) < 0
        or not (out is None or (out.is_contiguous() and out_row_stride(out, rows, width) >= 0))
    ):
        raise bad_operands(
            "gated_mlp",
            expected=EXPECTED,
            x_RD=x_RD,
            gate_up_GD=gate_up_GD,
            down_DF=down_DF,
            out=out,
        )
    y_RD = torch.empty(rows, width) if out is None else out
    library.gated_mlp(
        x_RD.data_ptr(),
        x_stride,
        gate_up_GD.data_ptr(),
        down_DF.data_ptr(),
        code,
        y_RD.data_ptr(),
        rows,
        twice_inner // 2,
        width,
    )
    return y_RD
