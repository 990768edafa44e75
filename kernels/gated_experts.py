"""The experts of one rank: y = sum over a row's experts of weight * down(silu(gate) * up).

Shapes: x_RD float32 on the CPU (on other devices the weights' dtype); gate_up_EGD is [E, 2F, D]
with the F gate rows first, then the F up rows; down_EDF is [E, D, F]; expert_ids_RA int32 holds
local expert indices, -1 for an expert of another rank; weights_RA float32. y_RD is float32 on the
CPU, x's dtype elsewhere. E experts, A chosen per row, F intermediate, G = 2F.

One grouped operation per projection: an expert's weights are read once for all its rows. A row's
terms are added in ascending A, so its result does not depend on the other rows.
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
    "x_RD float32 with contiguous rows, contiguous gate_up_EGD [E, 2F, D] and down_EDF [E, D, F] "
    "of one dtype (float32 or bfloat16), contiguous expert_ids_RA int32 in -1..E-1 and "
    "weights_RA float32, out contiguous float32 [R, D]"
)


def gated_experts_reference(
    x_RD: Tensor, gate_up_EGD: Tensor, down_EDF: Tensor, expert_ids_RA: Tensor, weights_RA: Tensor
) -> Tensor:
    """Grouped matrix products where torch has them for these operands, else expert by expert."""
    grouped = x_RD.is_cuda and x_RD.dtype == gate_up_EGD.dtype == torch.bfloat16
    expert_outputs = expert_outputs_grouped if grouped else expert_outputs_looped
    out_PD = expert_outputs(x_RD, gate_up_EGD, down_EDF, expert_ids_RA)
    out_RAD = out_PD.view(*expert_ids_RA.shape, x_RD.shape[1]).float()
    y_RD = torch.zeros_like(x_RD, dtype=torch.float32)
    for choice in range(expert_ids_RA.shape[1]):
        y_RD = y_RD + out_RAD[:, choice] * weights_RA[:, choice, None]
    return y_RD.to(x_RD.dtype)


def expert_outputs_looped(
    x_RD: Tensor, gate_up_EGD: Tensor, down_EDF: Tensor, expert_ids_RA: Tensor
) -> Tensor:
    """Unweighted output of every (row, choice) pair, [R * A, D]; zero for choices of -1."""
    ids_P = expert_ids_RA.reshape(-1)
    out_PD = x_RD.new_zeros(ids_P.shape[0], x_RD.shape[1])
    for expert in range(gate_up_EGD.shape[0]):
        (pairs,) = torch.where(ids_P == expert)
        if pairs.numel() == 0:
            continue
        rows_QD = x_RD[pairs // expert_ids_RA.shape[1]]
        gate_QF, up_QF = linear_reference(rows_QD, gate_up_EGD[expert]).chunk(2, dim=-1)
        out_PD[pairs] = linear_reference(functional.silu(gate_QF) * up_QF, down_EDF[expert])
    return out_PD


def expert_outputs_grouped(
    x_RD: Tensor, gate_up_EGD: Tensor, down_EDF: Tensor, expert_ids_RA: Tensor
) -> Tensor:
    """As `expert_outputs_looped`, by two grouped products over pairs sorted by expert.

    No value leaves the device, so the call can be captured in a graph. Pairs of -1 sort behind the
    last group; the product leaves their rows unwritten, hence the mask.
    """
    num_experts = gate_up_EGD.shape[0]
    ids_P = expert_ids_RA.reshape(-1).long()
    keys_P = torch.where(ids_P < 0, num_experts, ids_P)
    sorted_P, order_P = torch.sort(keys_P, stable=True)
    experts_E = torch.arange(num_experts, device=ids_P.device)
    ends_E = torch.searchsorted(sorted_P, experts_E, right=True).to(torch.int32)
    rows_PD = x_RD[order_P // expert_ids_RA.shape[1]]
    gate_up_PG = functional.grouped_mm(rows_PD, gate_up_EGD.transpose(1, 2), offs=ends_E)
    gate_PF, up_PF = gate_up_PG.chunk(2, dim=-1)
    hidden_PF = functional.silu(gate_PF) * up_PF
    sorted_PD = functional.grouped_mm(hidden_PF, down_EDF.transpose(1, 2), offs=ends_E)
    here_P1 = (sorted_P < num_experts)[:, None]
    out_PD = torch.empty_like(sorted_PD)
    out_PD[order_P] = torch.where(here_P1, sorted_PD, 0)
    return out_PD


def gated_experts(
    x_RD: Tensor,
    gate_up_EGD: Tensor,
    down_EDF: Tensor,
    expert_ids_RA: Tensor,
    weights_RA: Tensor,
    *,
    out: Tensor | None = None,
    backend: Backend,
) -> Tensor:
    """This rank's part of the mixture, y_RD; all-zero for a row with no expert here.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout, or an expert
            index outside -1..E-1.
    """
    operands = (x_RD, gate_up_EGD, down_EDF, expert_ids_RA, weights_RA)
    if backend is Backend.NATIVE:
        return gated_experts_native(*operands, out)
    y_RD = gated_experts_reference(*operands)
    return y_RD if out is None else out.copy_(y_RD)


def gated_experts_native(
    x_RD: Tensor,
    gate_up_EGD: Tensor,
    down_EDF: Tensor,
    expert_ids_RA: Tensor,
    weights_RA: Tensor,
    out: Tensor | None,
) -> Tensor:
    """The call into the library."""
    rows, width = x_RD.shape
    num_experts, twice_inner, _ = gate_up_EGD.shape
    num_chosen = expert_ids_RA.shape[1]
    y_RD = torch.empty(rows, width) if out is None else out
    fits = (
        gate_up_EGD.dtype in DTYPE_CODES
        and down_EDF.dtype is gate_up_EGD.dtype
        and x_RD.dtype is torch.float32
        and expert_ids_RA.dtype is torch.int32
        and weights_RA.dtype is torch.float32
        and x_RD.is_cpu
        and gate_up_EGD.is_cpu
        and down_EDF.is_cpu
        and gate_up_EGD.is_contiguous()
        and down_EDF.is_contiguous()
        and expert_ids_RA.is_contiguous()
        and weights_RA.is_contiguous()
        and gate_up_EGD.shape == (num_experts, twice_inner, width)
        and down_EDF.shape == (num_experts, width, twice_inner // 2)
        and expert_ids_RA.shape == (rows, num_chosen)
        and weights_RA.shape == (rows, num_chosen)
        and (x_stride := width if x_RD.is_contiguous() else row_stride(x_RD)) >= 0
        and (out is None or (out.is_contiguous() and out_row_stride(out, rows, width) >= 0))
        and library.gated_experts(
            x_RD.data_ptr(),
            x_stride,
            gate_up_EGD.data_ptr(),
            down_EDF.data_ptr(),
            DTYPE_CODES[gate_up_EGD.dtype],
            expert_ids_RA.data_ptr(),
            weights_RA.data_ptr(),
            y_RD.data_ptr(),
            rows,
            num_chosen,
            num_experts,
            twice_inner // 2,
            width,
        )
    )
    if not fits:
        raise bad_operands(
            "gated_experts",
            expected=EXPECTED,
            x_RD=x_RD,
            gate_up_EGD=gate_up_EGD,
            down_EDF=down_EDF,
            expert_ids_RA=expert_ids_RA,
            weights_RA=weights_RA,
            out=out,
        )
    return y_RD
