"""GLM-4-MoE: grouped sigmoid router, shared expert, leading dense layers, MTP as one more layer.

The MTP layer has index `num_hidden_layers` in the checkpoint, with its own norms and projection;
copies of the embedding and head that some checkpoints carry there are not read.
"""

from __future__ import annotations

from typing import Final

from phalanx.runtime.models.planning import (
    RankShare,
    attention,
    experts,
    gated_mlp,
    vocabulary,
)
from phalanx.runtime.models.spec import ModelSpec
from phalanx.runtime.weights.fused_experts import ExpertNames
from phalanx.runtime.weights.shards import ShardPlan

EXPERTS: Final = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")
MTP_COPIES: Final = ("embed_tokens.weight", "shared_head.head.weight")


def has_mtp(names: set[str], spec: ModelSpec) -> bool:
    """Whether the checkpoint carries the MTP layer (config.json may promise one that is absent)."""
    return f"model.layers.{spec.num_layers}.eh_proj.weight" in names


def plan(spec: ModelSpec, share: RankShare) -> ShardPlan:
    """Checkpoint names -> the slices `share` holds."""
    plan = ShardPlan()
    vocabulary(plan, spec, share)
    for i in range(spec.num_layers):
        dense = i < spec.first_k_dense
        _layer(plan, spec, share, source=f"model.layers.{i}", target=f"layers.{i}", dense=dense)
    if spec.num_mtp_layers:
        _mtp(plan, spec, share)
    return plan


def _layer(
    plan: ShardPlan, spec: ModelSpec, share: RankShare, *, source: str, target: str, dense: bool
) -> None:
    attention(plan, spec, source=f"{source}.self_attn", target=target)
    for name in ("input_layernorm", "post_attention_layernorm"):
        plan.whole(f"{target}.{name}", f"{source}.{name}.weight", (spec.hidden_size,))
    if dense:
        gated_mlp(
            plan, spec, spec.dense_intermediate, source=f"{source}.mlp", target=f"{target}.dense"
        )
        return
    gate = f"{source}.mlp.gate"
    # This family scores in float32 whatever the model's type; near ties would choose otherwise.
    plan.whole(
        f"{target}.router",
        f"{gate}.weight",
        (spec.num_experts, spec.hidden_size),
        type="float32",
    )
    plan.whole(
        f"{target}.correction_bias",
        f"{gate}.e_score_correction_bias",
        (spec.num_experts,),
        type="float32",
    )
    experts(plan, spec, share.experts, names=EXPERTS, source=source, target=target)
    if spec.shared_intermediate:
        gated_mlp(
            plan,
            spec,
            spec.shared_intermediate,
            source=f"{source}.mlp.shared_experts",
            target=f"{target}.shared",
        )


def _mtp(plan: ShardPlan, spec: ModelSpec, share: RankShare) -> None:
    d, source = spec.hidden_size, f"model.layers.{spec.num_layers}"
    plan.unused |= {f"{source}.{name}" for name in MTP_COPIES}
    draft = share.drafter
    if draft is None:
        elsewhere = ShardPlan()
        _mtp(elsewhere, spec, RankShare.whole(spec))
        plan.leave_to_others(elsewhere)
        return
    plan.whole("mtp.enorm", f"{source}.enorm.weight", (d,))
    plan.whole("mtp.hnorm", f"{source}.hnorm.weight", (d,))
    plan.whole("mtp.eh_proj", f"{source}.eh_proj.weight", (d, 2 * d))
    plan.whole("mtp.norm", f"{source}.shared_head.norm.weight", (d,))
    _layer(plan, spec, draft, source=source, target="mtp.block", dense=False)
