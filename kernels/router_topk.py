"""Router scores to the chosen experts: softmax, and grouped sigmoid with a correction bias.

Shapes: logits_RE float32, one column per logical expert; ids_RA int32, weights_RA float32, best
expert first. Equal scores go to the lower expert id, so that every rank chooses alike.

`softmax_topk` is the rule of Mixtral and Qwen3-MoE: softmax over all experts, keep the top-k,
optionally rescale them to sum to one. `grouped_sigmoid_topk` is the rule of DeepSeek-V3
(arXiv:2412.19437, section 2.1.2) and GLM-4-MoE: the biased score only selects, first whole groups
by the sum of their two best, then experts inside them; the weight is the unbiased sigmoid.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import library
from phalanx.kernels.operand_checks import BadOperands, bad_operands

# Keeps a sum of vanishing weights from dividing by zero; the value DeepSeek-V3 uses.
WEIGHT_SUM_FLOOR = 1e-20


class ExpertChoice(NamedTuple):
    """The experts of each row and how much each counts."""

    ids_RA: Tensor
    """int32, best first."""
    weights_RA: Tensor
    """float32."""


def highest_first(scores_RE: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest of each row; equal ones in ascending order."""
    return torch.sort(scores_RE, dim=-1, descending=True, stable=True).indices[:, :count]


def softmax_topk_reference(logits_RE: Tensor, top_k: int, *, normalize: bool) -> ExpertChoice:
    """On any device."""
    logits_RE = logits_RE.float()
    ids_RA = highest_first(logits_RE, top_k)
    weights_RA = torch.softmax(logits_RE, dim=-1).gather(1, ids_RA)
    if normalize:
        weights_RA = weights_RA / weights_RA.sum(dim=-1, keepdim=True)
    return ExpertChoice(ids_RA.to(torch.int32), weights_RA)


def softmax_topk(
    logits_RE: Tensor, top_k: int, *, normalize: bool, backend: Backend
) -> ExpertChoice:
    """The top-k of the softmax over experts.

    Raises:
        BadOperands: logits of another dtype or layout (native), or top_k not in 1..E.
    """
    rows, num_experts = logits_RE.shape
    if not 1 <= top_k <= num_experts:
        raise BadOperands(
            f"softmax_topk: bad top_k (top_k={top_k}, experts={num_experts}) -- a row needs that "
            "many distinct experts -- use a top_k between 1 and the number of experts"
        )
    if backend is not Backend.NATIVE:
        return softmax_topk_reference(logits_RE, top_k, normalize=normalize)
    _check_logits("softmax_topk", logits_RE)
    ids_RA = torch.empty(rows, top_k, dtype=torch.int32)
    weights_RA = torch.empty(rows, top_k)
    library.softmax_topk(
        logits_RE.data_ptr(),
        ids_RA.data_ptr(),
        weights_RA.data_ptr(),
        rows,
        num_experts,
        top_k,
        int(normalize),
    )
    return ExpertChoice(ids_RA, weights_RA)


def grouped_sigmoid_topk_reference(
    logits_RE: Tensor,
    correction_bias_E: Tensor,
    *,
    top_k: int,
    num_groups: int,
    topk_groups: int,
    normalize: bool,
    scale: float,
) -> ExpertChoice:
    """On any device."""
    scores_RE = logits_RE.float().sigmoid()
    biased_RE = scores_RE + correction_bias_E
    biased_RGM = biased_RE.view(-1, num_groups, biased_RE.shape[1] // num_groups)
    group_scores_RG = biased_RGM.topk(2, dim=-1).values.sum(dim=-1)
    kept_RG = torch.zeros_like(group_scores_RG, dtype=torch.bool)
    kept_RG.scatter_(1, highest_first(group_scores_RG, topk_groups), True)
    allowed_RE = torch.where(kept_RG[..., None], biased_RGM, -torch.inf).flatten(1)
    ids_RA = highest_first(allowed_RE, top_k)
    weights_RA = scores_RE.gather(1, ids_RA)
    if normalize:
        weights_RA = weights_RA / (weights_RA.sum(dim=-1, keepdim=True) + WEIGHT_SUM_FLOOR)
    return ExpertChoice(ids_RA.to(torch.int32), weights_RA * scale)


def grouped_sigmoid_topk(
    logits_RE: Tensor,
    correction_bias_E: Tensor,
    *,
    top_k: int,
    num_groups: int,
    topk_groups: int,
    normalize: bool,
    scale: float,
    backend: Backend,
) -> ExpertChoice:
    """Sigmoid scores, selected by biased score inside the best groups.

    Raises:
        BadOperands: logits or bias of another dtype or layout (native), groups that do not divide
            the experts or hold fewer than two, or more experts asked for than the groups hold.
    """
    rows, num_experts = logits_RE.shape
    group_size = num_experts // max(num_groups, 1)
    if (
        num_groups < 1
        or group_size * num_groups != num_experts
        or group_size < 2
        or not 1 <= topk_groups <= num_groups
        or not 1 <= top_k <= topk_groups * group_size
    ):
        raise BadOperands(
            f"grouped_sigmoid_topk: bad groups (experts={num_experts}, num_groups={num_groups}, "
            f"topk_groups={topk_groups}, top_k={top_k}) -- every group needs the same number of "
            "experts, at least two, and the chosen groups at least top_k -- check the model config"
        )
    if backend is not Backend.NATIVE:
        return grouped_sigmoid_topk_reference(
            logits_RE,
            correction_bias_E,
            top_k=top_k,
            num_groups=num_groups,
            topk_groups=topk_groups,
            normalize=normalize,
            scale=scale,
        )
    _check_logits("grouped_sigmoid_topk", logits_RE, correction_bias_E)
    ids_RA = torch.empty(rows, top_k, dtype=torch.int32)
    weights_RA = torch.empty(rows, top_k)
    library.grouped_sigmoid_topk(
        logits_RE.data_ptr(),
        correction_bias_E.data_ptr(),
        ids_RA.data_ptr(),
        weights_RA.data_ptr(),
        rows,
        num_experts,
        top_k,
        num_groups,
        topk_groups,
        int(normalize),
        scale,
    )
    return ExpertChoice(ids_RA, weights_RA)


def _check_logits(operation: str, logits_RE: Tensor, bias_E: Tensor | None = None) -> None:
    fits = logits_RE.dtype is torch.float32 and logits_RE.is_contiguous() and logits_RE.is_cpu
    if bias_E is not None:
        fits = fits and (
            bias_E.dtype is torch.float32
            and bias_E.is_contiguous()
            and bias_E.shape == logits_RE.shape[1:]
        )
    if not fits:
        raise bad_operands(
            operation,
            expected="logits_RE contiguous float32, correction_bias_E contiguous float32 [E]",
            logits_RE=logits_RE,
            correction_bias_E=bias_E,
        )
