"""Causal grouped-query attention over the paged cache, without gathering the cache.

Shapes: q_RHD float32 on the CPU (any float dtype elsewhere), rows may be slices of a wider fused
projection; pools [num_blocks, block_size, G, D] float32 or bfloat16; H is a multiple of G, and
query heads g*H/G .. (g+1)*H/G-1 share KV head g. block_tables_SB int32 holds the block of each
block_size positions of sequence s. Row r attends to positions 0..row_last_R[r] (inclusive) of
sequence row_seq_R[r], both int32; row_last -1 means "nothing" and gives zeros (a padding row).

The native path cuts the positions into fixed spans, and merges the spans of a row in ascending
order, so a row's result does not depend on the other rows or on the number of threads. Consecutive
rows of one sequence share the reading of its keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, row_stride

EXPECTED = (
    "q_RHD float32 with adjacent heads, k_pool and v_pool contiguous [blocks, block_size, G, D] of "
    "one dtype (float32 or bfloat16) with H a multiple of G, contiguous int32 block_tables_SB "
    "(ids < blocks), row_seq_R (in 0..S-1) and row_last_R (in -1..B*block_size-1), out contiguous "
    "float32 [R, H, D]"
)
# Rows of one sequence that the reference scores at once; bounds its score matrix.
REFERENCE_ROWS = 256


def paged_attention_reference(
    q_RHD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables_SB: Tensor,
    row_seq_R: Tensor,
    row_last_R: Tensor,
    scale: float,
) -> Tensor:
    """Sequence by sequence, with its blocks gathered, on any device."""
    out_RHD = torch.zeros_like(q_RHD)
    for seq in torch.unique(row_seq_R).tolist():
        (rows,) = torch.where((row_seq_R == seq) & (row_last_R >= 0))
        if rows.numel() == 0:
            continue
        num_positions = int(row_last_R[rows].max()) + 1
        num_blocks = -(-num_positions // k_pool.shape[1])
        blocks = block_tables_SB[seq, :num_blocks].long()
        k_1GTD = gather_positions(k_pool, blocks, num_positions).to(q_RHD.dtype)
        v_1GTD = gather_positions(v_pool, blocks, num_positions).to(q_RHD.dtype)
        positions_T = torch.arange(num_positions, device=q_RHD.device)
        for part in torch.split(rows, REFERENCE_ROWS):
            visible_RT = positions_T <= row_last_R[part, None]
            part_1HRD = functional.scaled_dot_product_attention(
                q_RHD[part].transpose(0, 1)[None],
                k_1GTD,
                v_1GTD,
                attn_mask=visible_RT,
                scale=scale,
                enable_gqa=True,
            )
            out_RHD[part] = part_1HRD[0].transpose(0, 1)
    return out_RHD


def gather_positions(pool: Tensor, blocks: Tensor, num_positions: int) -> Tensor:
    """The first positions of a block list as [1, G, T, D]."""
    return pool[blocks].flatten(0, 1)[:num_positions].transpose(0, 1)[None]


def paged_attention(
    q_RHD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables_SB: Tensor,
    row_seq_R: Tensor,
    row_last_R: Tensor,
    scale: float,
    *,
    out: Tensor | None = None,
    backend: Backend,
) -> Tensor:
    """softmax(scale * q . k) v of every row and head, [R, H, D], into `out` when given.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout, or a sequence,
            position or block outside its table.
    """
    operands = (q_RHD, k_pool, v_pool, block_tables_SB, row_seq_R, row_last_R)
    if backend is Backend.NATIVE:
        return paged_attention_native(*operands, scale, out)
    y_RHD = paged_attention_reference(*operands, scale)
    return y_RHD if out is None else out.copy_(y_RHD)


def paged_attention_native(
    q_RHD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    block_tables_SB: Tensor,
    row_seq_R: Tensor,
    row_last_R: Tensor,
    scale: float,
    out: Tensor | None,
) -> Tensor:
    """The call into the library."""
    rows, num_heads, head_dim = q_RHD.shape
    num_blocks, block_size, num_kv_heads, _ = k_pool.shape
    num_seqs, table_width = block_tables_SB.shape
    y_RHD = torch.empty(rows, num_heads, head_dim) if out is None else out
    fits = (
        k_pool.dtype in DTYPE_CODES
        and v_pool.dtype is k_pool.dtype
        and q_RHD.dtype is torch.float32
        and block_tables_SB.dtype is torch.int32
        and row_seq_R.dtype is torch.int32
        and row_last_R.dtype is torch.int32
        and q_RHD.is_cpu
        and k_pool.is_cpu
        and v_pool.is_cpu
        and k_pool.is_contiguous()
        and v_pool.is_contiguous()
        and block_tables_SB.is_contiguous()
        and row_seq_R.is_contiguous()
        and row_last_R.is_contiguous()
        and k_pool.shape == (num_blocks, block_size, num_kv_heads, head_dim)
        and v_pool.shape == k_pool.shape
        and row_seq_R.shape == (rows,)
        and row_last_R.shape == (rows,)
        and (q_stride := row_stride(q_RHD)) >= 0
        and y_RHD.dtype is torch.float32
        and y_RHD.shape == (rows, num_heads, head_dim)
        and y_RHD.is_contiguous()
        and library.paged_attention(
            q_RHD.data_ptr(), q_stride, k_pool.data_ptr(), v_pool.data_ptr(),
            DTYPE_CODES[k_pool.dtype], block_tables_SB.data_ptr(), row_seq_R.data_ptr(),
            row_last_R.data_ptr(), scale, y_RHD.data_ptr(), rows, num_heads, num_kv_heads,
            head_dim, num_blocks, block_size, num_seqs, table_width,
        )
    )  # fmt: skip
    if not fits:
        raise bad_operands(
            "paged_attention",
            expected=EXPECTED,
            q_RHD=q_RHD,
            k_pool=k_pool,
            v_pool=v_pool,
            block_tables_SB=block_tables_SB,
            row_seq_R=row_seq_R,
            row_last_R=row_last_R,
            out=out,
        )
    return y_RHD
