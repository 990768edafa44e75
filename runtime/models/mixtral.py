"""Mixtral: softmax router, every layer a mixture; the demo's MTP module sits under `mtp.`.

The table at the end maps checkpoint names to the tensors of this rank.
"""

from __future__ import annotations

from typing import Final

from phalanx.runtime.models.planning import RankShare, attention, experts, vocabulary
from phalanx.runtime.models.spec import ModelSpec
from phalanx.runtime.weights.fused_experts import ExpertNames
from phalanx.runtime.weights.shards import ShardPlan

EXPERTS: Final = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")


def has_mtp(names: set[str], spec: ModelSpec) -> bool:
    """Whether the checkpoint carries an MTP module."""
    return "mtp.eh_proj.weight" in names


def plan(spec: ModelSpec, share: RankShare) -> ShardPlan:
    """Checkpoint names -> the slices `share` holds."""
    plan = ShardPlan()
    vocabulary(plan, spec, share)
    for i in range(spec.num_layers):
        _layer(plan, spec, share, source=f"model.layers.{i}", target=f"layers.{i}")
    if spec.num_mtp_layers:
        _mtp(plan, spec, share)
    return plan


def _layer(plan: ShardPlan, spec: ModelSpec, share: RankShare, *, source: str, target: str) -> None:
    attention(plan, spec, source=f"{source}.self_attn", target=target)
    for name in ("input_layernorm", "post_attention_layernorm"):
        plan.whole(f"{target}.{name}", f"{source}.{name}.weight", (spec.hidden_size,))
    router = f"{source}.block_sparse_moe.gate.weight"
    plan.whole(f"{target}.router", router, (spec.num_experts, spec.hidden_size))
    experts(plan, spec, share.experts, names=EXPERTS, source=source, target=target)


def _mtp(plan: ShardPlan, spec: ModelSpec, share: RankShare) -> None:
    d = spec.hidden_size
    draft = share.drafter
    if draft is None:
        elsewhere = ShardPlan()
        _mtp(elsewhere, spec, RankShare.whole(spec))
        plan.leave_to_others(elsewhere)
        return
    for name, shape in (("enorm", (d,)), ("hnorm", (d,)), ("norm", (d,)), ("eh_proj", (d, 2 * d))):
        plan.whole(f"mtp.{name}", f"mtp.{name}.weight", shape)
    _layer(plan, spec, draft, source="mtp.block", target="mtp.block")
    if spec.mtp_vocab:
        plan.whole("mtp.draft_ids", "mtp.draft_ids", (spec.mtp_vocab,), type="int64")
