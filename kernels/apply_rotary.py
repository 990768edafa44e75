"""Rotary position embedding of queries and keys, in place.

The half-split form: of the first `rotary_dim` values of a head, value i and value i + rotary_dim/2
turn together by the angle of pair i; the rest passes unchanged (partial rotary).

Shapes: q_RHD and k_RGD float32 on the CPU (any float dtype elsewhere); rows may be slices of a
wider fused projection, heads must lie behind each other. cos_PD2 and sin_PD2 are float32 tables
[P, rotary_dim / 2] of the P positions; positions_R int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import library
from phalanx.kernels.operand_checks import bad_operands, row_stride

EXPECTED = (
    "q_RHD and k_RGD float32 with adjacent heads, cos_PD2 and sin_PD2 contiguous float32 "
    "[P, rotary_dim / 2], positions_R contiguous int64 in 0..P-1, rotary_dim even and <= D"
)


def rotate_reference(
    heads_RHD: Tensor, cos_PD2: Tensor, sin_PD2: Tensor, positions_R: Tensor, *, rotary_dim: int
) -> None:
    """Turn one operand in place, in float32, on any device."""
    half = rotary_dim // 2
    cos_R1P = cos_PD2[positions_R, None]
    sin_R1P = sin_PD2[positions_R, None]
    first = heads_RHD[..., :half].float()
    second = heads_RHD[..., half:rotary_dim].float()
    # Both halves before either is written: `first` is a view of the operand when it is float32.
    turned = (first * cos_R1P - second * sin_R1P, second * cos_R1P + first * sin_R1P)
    heads_RHD[..., :half], heads_RHD[..., half:rotary_dim] = turned


def rotary(
    q_RHD: Tensor,
    k_RGD: Tensor,
    cos_PD2: Tensor,
    sin_PD2: Tensor,
    positions_R: Tensor,
    *,
    rotary_dim: int,
    backend: Backend,
) -> None:
    """Turn q and k in place by the angles of their rows' positions.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout, or a position
            outside the tables.
    """
    if backend is Backend.NATIVE:
        _rotary_native(q_RHD, k_RGD, cos_PD2, sin_PD2, positions_R, rotary_dim)
        return
    rotate_reference(q_RHD, cos_PD2, sin_PD2, positions_R, rotary_dim=rotary_dim)
    rotate_reference(k_RGD, cos_PD2, sin_PD2, positions_R, rotary_dim=rotary_dim)


def _rotary_native(
    q_RHD: Tensor,
    k_RGD: Tensor,
    cos_PD2: Tensor,
    sin_PD2: Tensor,
    positions_R: Tensor,
    rotary_dim: int,
) -> None:
    rows, num_heads, head_dim = q_RHD.shape
    num_kv_heads = k_RGD.shape[1]
    num_positions, half = cos_PD2.shape
    fits = (
        q_RHD.dtype is torch.float32
        and k_RGD.dtype is torch.float32
        and cos_PD2.dtype is torch.float32
        and sin_PD2.dtype is torch.float32
        and positions_R.dtype is torch.int64
        and q_RHD.is_cpu
        and k_RGD.is_cpu
        and cos_PD2.is_contiguous()
        and sin_PD2.is_contiguous()
        and positions_R.is_contiguous()
        and sin_PD2.shape == (num_positions, half)
        and positions_R.shape == (rows,)
        and k_RGD.shape == (rows, num_kv_heads, head_dim)
        and rotary_dim == 2 * half
        and rotary_dim <= head_dim
        and (q_stride := row_stride(q_RHD)) >= 0
        and (k_stride := row_stride(k_RGD)) >= 0
        and library.rotary(
            q_RHD.data_ptr(),
            q_stride,
            k_RGD.data_ptr(),
            k_stride,
            cos_PD2.data_ptr(),
            sin_PD2.data_ptr(),
            positions_R.data_ptr(),
            rows,
            num_heads,
            num_kv_heads,
            head_dim,
            half,
            num_positions,
        )
    )
    if not fits:
        raise bad_operands(
            "rotary",
            expected=EXPECTED,
            q_RHD=q_RHD,
            k_RGD=k_RGD,
            cos_PD2=cos_PD2,
            sin_PD2=sin_PD2,
            positions_R=positions_R,
        )
