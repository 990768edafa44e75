"""Router, this rank's experts, the sum over ranks, and the shared expert.

Every rank routes every row with the same router weights and computes only the experts it holds;
the partial sums meet in one all-reduce. The shared expert is whole on every rank and is added
once, after the reduce. Shapes: rows R, hidden D, experts E, chosen experts A, intermediate F.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.ep.combine import combine
from phalanx.ep.comm.communicator import Communicator
from phalanx.kernels.kernel_set import KernelSet
from phalanx.runtime.models.spec import ModelSpec


class GatedWeights(NamedTuple):
    """A gated MLP: gate rows first, then up rows."""

    gate_up_GD: Tensor
    down_DF: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeWeights:
    """One MoE layer's tensors on this rank."""

    router_ED: Tensor
    correction_bias_E: Tensor | None
    gate_up_EGD: Tensor
    down_EDF: Tensor
    shared: GatedWeights | None


class DenseMlp:
    """The gated MLP of a dense layer, whole on every rank."""

    def __init__(self, weights: GatedWeights) -> None:
        self.weights = weights

    def forward(self, x_RD: Tensor, kernels: KernelSet, comm: Communicator) -> Tensor:
        return kernels.gated_mlp(x_RD, self.weights.gate_up_GD, self.weights.down_DF)


class MoeMlp:
    """The mixture of experts of one layer."""

    def __init__(self, spec: ModelSpec, weights: MoeWeights, *, experts: range) -> None:
        self.spec, self.weights = spec, weights
        self.holds_all = len(experts) == spec.num_experts
        local = torch.full((spec.num_experts,), -1, dtype=torch.int32)
        local[list(experts)] = torch.arange(len(experts), dtype=torch.int32)
        self.local_index_E = local.to(weights.router_ED.device)

    def route(self, x_RD: Tensor, kernels: KernelSet) -> tuple[Tensor, Tensor]:
        """(local expert ids int32 [R, A], -1 for other ranks' experts; weights float32 [R, A])."""
        spec, weights = self.spec, self.weights
        if weights.correction_bias_E is None:
            logits_RE = kernels.linear(x_RD, weights.router_ED)
            choice = kernels.softmax_topk(logits_RE, spec.top_k, normalize=spec.norm_topk)
        else:
            logits_RE = kernels.linear(x_RD.float(), weights.router_ED)
            choice = kernels.grouped_sigmoid_topk(
                logits_RE,
                weights.correction_bias_E,
                top_k=spec.top_k,
                num_groups=spec.num_groups,
                topk_groups=spec.topk_groups,
                normalize=spec.norm_topk,
                scale=spec.routed_scale,
            )
        if self.holds_all:
            return choice.ids_RA, choice.weights_RA
        return self.local_index_E[choice.ids_RA.long()], choice.weights_RA

    def forward(self, x_RD: Tensor, kernels: KernelSet, comm: Communicator) -> Tensor:
        ids_RA, weights_RA = self.route(x_RD, kernels)
        weights = self.weights
        y_RD = kernels.gated_experts(
            x_RD, weights.gate_up_EGD, weights.down_EDF, ids_RA, weights_RA
        )
        y_RD = combine(y_RD, comm)
        if weights.shared is not None:
            y_RD += kernels.gated_mlp(x_RD, weights.shared.gate_up_GD, weights.shared.down_DF)
        return y_RD
