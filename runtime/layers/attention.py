"""Grouped-query attention over the paged cache, one fused projection for q, k and v.

Shapes: x_RD normed input; weights in [out, in] order; heads H, KV heads G, head dimension D.
Attention weights are whole on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosine and sine of every position, float32 [P, rotary_dim / 2]; shared by all layers."""

    cos_PD2: Tensor
    sin_PD2: Tensor

    @classmethod
    def of(cls, spec: ModelSpec, device: torch.device) -> RotaryTables:
        exponents = torch.arange(0, spec.rotary_dim, 2, device=device).float() / spec.rotary_dim
        inverse = 1.0 / spec.rope_theta**exponents
        angles = torch.arange(spec.max_position, device=device).float()[:, None] * inverse
        return cls(angles.cos(), angles.sin())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """One layer's tensors; optional ones are None where the family has none."""

    qkv_QD: Tensor
    """Query rows first, then key rows, then value rows."""
    qkv_bias_Q: Tensor | None
    out_DQ: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None


class Attention:
    """Projects, rotates, stores the new keys and values, attends, projects back."""

    def __init__(
        self, spec: ModelSpec, weights: AttentionWeights, rotary: RotaryTables, *, kv_layer: int
    ) -> None:
        self.weights, self.rotary, self.kv_layer = weights, rotary, kv_layer
        self.dim, self.q_width = spec.head_dim, spec.num_heads * spec.head_dim
        self.all_heads = spec.num_heads + 2 * spec.num_kv_heads
        self.head_counts = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        self.rotary_dim, self.eps = spec.rotary_dim, spec.rms_eps
        self.scale = spec.head_dim**-0.5

    def forward(self, x_RD: Tensor, ctx: StepContext) -> Tensor:
        """[R, D] of the rows' attention output, before the residual addition."""
        kernels, weights = ctx.kernels, self.weights
        rows = x_RD.shape[0]
        fused = kernels.linear(x_RD, weights.qkv_QD)
        if weights.qkv_bias_Q is not None:
            fused += weights.qkv_bias_Q
        # One split of heads: views in two calls, where slicing each would take six.
        heads = fused.view(rows, self.all_heads, self.dim)
        q, k, v = heads.split_with_sizes(self.head_counts, 1)
        if weights.q_norm_D is not None and weights.k_norm_D is not None:
            q = kernels.rms_norm(q.reshape(-1, self.dim), weights.q_norm_D, self.eps).view(q.shape)
            k = kernels.rms_norm(k.reshape(-1, self.dim), weights.k_norm_D, self.eps).view(k.shape)
        kernels.rotary(
            q, k, self.rotary.cos_PD2, self.rotary.sin_PD2, ctx.positions_R,
            rotary_dim=self.rotary_dim,
        )  # fmt: skip
        k_pool, v_pool = ctx.kv.layer(self.kv_layer)
        kernels.kv_store(k, v, k_pool, v_pool, ctx.slots_R)
        mixed = kernels.paged_attention(
            q, k_pool, v_pool, ctx.block_tables_SB, ctx.row_seq_R, ctx.row_last_R, self.scale
        )
        return kernels.linear(mixed.view(rows, self.q_width), weights.out_DQ)
