"""One decoder layer: attention and MLP around a residual stream carried with one addition late.

A layer returns (its MLP output, the residual before that output is added); the next layer's first
norm adds and normalises in one operation.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from phalanx.runtime.layers.attention import Attention
from phalanx.runtime.layers.moe import DenseMlp, MoeMlp
from phalanx.runtime.layers.step_context import StepContext


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Norm, attention, norm, MLP."""

    input_norm_D: Tensor
    post_norm_D: Tensor
    attention: Attention
    mlp: DenseMlp | MoeMlp
    eps: float

    def forward(
        self, x_RD: Tensor, residual_RD: Tensor | None, ctx: StepContext
    ) -> tuple[Tensor, Tensor]:
        """(MLP output, residual), both [R, D]; `residual_RD` None: x is the whole stream."""
        kernels = ctx.kernels
        if residual_RD is None:
            residual_RD = x_RD
            normed_RD = kernels.rms_norm(x_RD, self.input_norm_D, self.eps)
        else:
            normed_RD, residual_RD = kernels.add_rms_norm(
                x_RD, residual_RD, self.input_norm_D, self.eps
            )
        mixed_RD = self.attention.forward(normed_RD, ctx)
        normed_RD, residual_RD = kernels.add_rms_norm(
            mixed_RD, residual_RD, self.post_norm_D, self.eps
        )
        return self.mlp.forward(normed_RD, kernels, ctx.comm), residual_RD
