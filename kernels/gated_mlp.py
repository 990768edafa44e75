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
from phalanx.kernels.operand_checks import bad_operands
from phalanx.kernels.row_linear import linear_reference

EXPECTED = (
    "x_RD float32 with contiguous rows, contiguous gate_up_GD [2F, D] and down_DF [D, F] of one "
    "dtype (float32 or bfloat16)"
)


def gated_mlp_reference(x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor) -> Tensor:
    """Two linear layers around the gate, on any device."""
    gate_RF, up_RF = linear_reference(x_RD, gate_up_GD).chunk(2, dim=-1)
    return linear_reference(functional.silu(gate_RF) * up_RF, down_DF)


def gated_mlp(x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor, *, backend: Backend) -> Tensor:
    """y_RD = down(silu(gate(x)) * up(x)).

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is Backend.NATIVE:
        return gated_mlp_native(x_RD, gate_up_GD, down_DF)
    return gated_mlp_reference(x_RD, gate_up_GD, down_DF)


def gated_mlp_native(x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor) -> Tensor:
    """The call into the library."""
    code = DTYPE_CODES.get(gate_up_GD.dtype)
    rows, width = x_RD.shape
    inner = gate_up_GD.shape[0] // 2
    if (
        code is None
        or x_RD.dtype is not torch.float32
        or down_DF.dtype is not gate_up_GD.dtype
        or not (x_RD.is_cpu and gate_up_GD.is_cpu and down_DF.is_cpu)
        or not (gate_up_GD.is_contiguous() and down_DF.is_contiguous())
        or gate_up_GD.shape != (2 * inner, width)
        or down_DF.shape != (width, inner)
        or x_RD.stride(1) != 1
    ):
        raise bad_operands(
            "gated_mlp", expected=EXPECTED, x_RD=x_RD, gate_up_GD=gate_up_GD, down_DF=down_DF
        )
    y_RD = torch.empty((rows, width))
    library.gated_mlp(
        x_RD.data_ptr(),
        x_RD.stride(0),
        gate_up_GD.data_ptr(),
        down_DF.data_ptr(),
        code,
        y_RD.data_ptr(),
        rows,
        inner,
        width,
    )
    return y_RD
