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
from phalanx.kernels.operand_checks import BadOperands, bad_operands

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
    heads_RHD[..., :half] = first * cos_R1P - second * sin_R1P
    heads_RHD[..., half:rotary_dim] = second * cos_R1P + first * sin_R1P


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
    k_rows, num_kv_heads, k_head_dim = k_RGD.shape
    num_positions, half = cos_PD2.shape
    if (
        q_RHD.dtype is not torch.float32
        or k_RGD.dtype is not torch.float32
        or cos_PD2.dtype is not torch.float32
        or sin_PD2.dtype is not torch.float32
        or positions_R.dtype is not torch.int64
        or not (q_RHD.is_cpu and k_RGD.is_cpu and cos_PD2.is_cpu and positions_R.is_cpu)
        or not (cos_PD2.is_contiguous() and sin_PD2.is_contiguous())
        or sin_PD2.shape != cos_PD2.shape
        or positions_R.shape != (rows,)
        or not positions_R.is_contiguous()
        or k_rows != rows
        or k_head_dim != head_dim
        or rotary_dim != 2 * half
        or rotary_dim > head_dim
        or q_RHD.stride()[1:] != (head_dim, 1)
        or k_RGD.stride()[1:] != (head_dim, 1)
    ):
        raise _bad(q_RHD, k_RGD, cos_PD2, sin_PD2, positions_R)
    in_range = library.rotary(
        q_RHD.data_ptr(),
        q_RHD.stride(0),
        k_RGD.data_ptr(),
        k_RGD.stride(0),
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
    if not in_range:
        raise _bad(q_RHD, k_RGD, cos_PD2, sin_PD2, positions_R)


def _bad(
    q_RHD: Tensor, k_RGD: Tensor, cos_PD2: Tensor, sin_PD2: Tensor, positions_R: Tensor
) -> BadOperands:
    return bad_operands(
        "rotary",
        expected=EXPECTED,
        q_RHD=q_RHD,
        k_RGD=k_RGD,
        cos_PD2=cos_PD2,
        sin_PD2=sin_PD2,
        positions_R=positions_R,
    )
