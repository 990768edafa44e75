"""Scatter new keys and values into the slots of the paged cache.

Shapes: k_RGD and v_RGD float32 on the CPU (any float dtype elsewhere), rows may be slices of a
wider fused projection; pools [num_blocks, block_size, G, D] float32 or bfloat16, contiguous;
slots_R int64, slot = block * block_size + offset. Values are rounded to the pool's dtype (nearest,
ties to even).
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, row_stride

EXPECTED = (
    "k_RGD and v_RGD float32 with adjacent heads, k_pool and v_pool contiguous [blocks, "
    "block_size, G, D] of one dtype (float32 or bfloat16), slots_R contiguous int64 in "
    "0..blocks*block_size-1"
)


def kv_store_reference(
    k_RGD: Tensor, v_RGD: Tensor, k_pool: Tensor, v_pool: Tensor, slots_R: Tensor
) -> None:
    """On any device."""
    k_pool.flatten(0, 1).index_copy_(0, slots_R, k_RGD.to(k_pool.dtype))
    v_pool.flatten(0, 1).index_copy_(0, slots_R, v_RGD.to(v_pool.dtype))


def kv_store(
    k_RGD: Tensor,
    v_RGD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots_R: Tensor,
    *,
    backend: Backend,
) -> None:
    """Write each row's keys and values into its slot.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout, or a slot
            outside the pools (nothing is written then).
    """
    if backend is not Backend.NATIVE:
        kv_store_reference(k_RGD, v_RGD, k_pool, v_pool, slots_R)
        return
    rows, num_kv_heads, head_dim = k_RGD.shape
    num_blocks, block_size = k_pool.shape[:2]
    fits = (
        k_pool.dtype in DTYPE_CODES
        and v_pool.dtype is k_pool.dtype
        and k_RGD.dtype is torch.float32
        and v_RGD.dtype is torch.float32
        and slots_R.dtype is torch.int64
        and k_RGD.is_cpu
        and v_RGD.is_cpu
        and k_pool.is_cpu
        and v_pool.is_cpu
        and k_pool.is_contiguous()
        and v_pool.is_contiguous()
        and slots_R.is_contiguous()
        and k_pool.shape == (num_blocks, block_size, num_kv_heads, head_dim)
        and v_pool.shape == k_pool.shape
        and v_RGD.shape == k_RGD.shape
        and slots_R.shape == (rows,)
        and (k_stride := row_stride(k_RGD)) >= 0
        and (v_stride := row_stride(v_RGD)) >= 0
        and library.kv_store(
            k_RGD.data_ptr(),
            k_stride,
            v_RGD.data_ptr(),
            v_stride,
            k_pool.data_ptr(),
            v_pool.data_ptr(),
            DTYPE_CODES[k_pool.dtype],
            slots_R.data_ptr(),
            rows,
            num_blocks * block_size,
            num_kv_heads * head_dim,
        )
    )
    if not fits:
        named = {"k_pool": k_pool, "v_pool": v_pool, "slots_R": slots_R}
        raise bad_operands("kv_store", expected=EXPECTED, k_RGD=k_RGD, v_RGD=v_RGD, **named)
