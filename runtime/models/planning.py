"""Pieces of a shard plan that every family shares: attention, experts, MLPs, vocabulary."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from phalanx.ep.placement import ExpertPlacement, split_vocabulary
from phalanx.runtime.models.spec import ModelSpec
from phalanx.runtime.weights.fused_experts import ExpertNames
from phalanx.runtime.weights.shards import Expected, Piece, ShardPlan, Target


class Drafting(enum.Enum):
    """Who runs the model's own drafter."""

    OFF = "off"
    LOCKSTEP = "lockstep"
    """Every rank, its experts sharded like the target's."""
    RANK_0_ONLY = "rank 0 only"
    """Rank 0 alone, holding every expert of the drafter (PHALANX_NO_MTP_EP_PROPOSE=1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """What one rank holds: its experts, its rows of the head, and its share of the drafter."""

    experts: range
    vocabulary: range
    drafter: RankShare | None
    """Share of the drafter's experts; None = this rank does not run the drafter."""

    @classmethod
    def whole(cls, spec: ModelSpec) -> RankShare:
        """Everything, as on a single rank."""
        placement = ExpertPlacement(num_experts=spec.num_experts, world_size=1)
        return cls.of(spec, placement, rank=0, drafting=Drafting.LOCKSTEP)

    @classmethod
    def of(
        cls, spec: ModelSpec, placement: ExpertPlacement, *, rank: int, drafting: Drafting
    ) -> RankShare:
        """The share of `rank`; in lockstep the drafter is sharded like the target."""
        experts = placement.experts_of(rank)
        vocabulary = split_vocabulary(spec.vocab_size, placement.world_size, rank)
        draft: RankShare | None = None
        if drafting is Drafting.LOCKSTEP:
            draft = cls(experts=experts, vocabulary=vocabulary, drafter=None)
        elif drafting is Drafting.RANK_0_ONLY and rank == 0:
            everything = range(spec.num_experts), range(spec.vocab_size)
            draft = cls(experts=everything[0], vocabulary=everything[1], drafter=None)
        return cls(experts=experts, vocabulary=vocabulary, drafter=draft)


def vocabulary(plan: ShardPlan, spec: ModelSpec, share: RankShare) -> None:
    """Embedding, final norm, and this rank's rows of an untied head.

    A tied head is a slice of the embedding, which is whole anyway. A drafter whose rows are not
    this rank's share (its own vocabulary, or drafting on one rank only) needs every row.
    """
    table = (spec.vocab_size, spec.hidden_size)
    plan.whole("embedding", "model.embed_tokens.weight", table)
    plan.whole("final_norm", "model.norm.weight", (spec.hidden_size,))
    if spec.tie_embeddings:
        plan.unused.add("lm_head.weight")
        return
    rows, draft = share.vocabulary, share.drafter if spec.num_mtp_layers else None
    if draft is not None and (spec.mtp_vocab or draft.vocabulary != rows):
        rows = range(spec.vocab_size)
    plan.rows("head", "lm_head.weight", table, rows)


def attention(plan: ShardPlan, spec: ModelSpec, *, source: str, target: str) -> None:
    """q, k and v under each other in one matrix, with biases and head norms where there are any."""
    d = spec.hidden_size
    sizes = (
        ("q_proj", spec.num_heads * spec.head_dim),
        ("k_proj", spec.num_kv_heads * spec.head_dim),
        ("v_proj", spec.num_kv_heads * spec.head_dim),
    )
    plan.stack(f"{target}.qkv", [(f"{source}.{name}.weight", (n, d)) for name, n in sizes])
    if spec.attention_bias:
        plan.stack(f"{target}.qkv_bias", [(f"{source}.{name}.bias", (n,)) for name, n in sizes])
    plan.whole(f"{target}.out", f"{source}.o_proj.weight", (d, spec.num_heads * spec.head_dim))
    if spec.qk_norm:
        for name in ("q_norm", "k_norm"):
            plan.whole(f"{target}.{name}", f"{source}.{name}.weight", (spec.head_dim,))


def gated_mlp(
    plan: ShardPlan, spec: ModelSpec, intermediate: int, *, source: str, target: str
) -> None:
    """Gate rows, then up rows, in one matrix."""
    wide = (intermediate, spec.hidden_size)
    parts = [(f"{source}.{name}.weight", wide) for name in ("gate_proj", "up_proj")]
    plan.stack(f"{target}.gate_up", parts)
    plan.whole(f"{target}.down", f"{source}.down_proj.weight", (spec.hidden_size, intermediate))


def experts(
    plan: ShardPlan, spec: ModelSpec, held: range, *, names: ExpertNames, source: str, target: str
) -> None:
    """The held experts' matrices, stacked; the other experts are other ranks'."""
    d, f = spec.hidden_size, spec.expert_intermediate
    gate_up, down = [], []
    for expert in range(spec.num_experts):
        gate, up, out = names.of(source, expert)
        if expert not in held:
            plan.others |= {gate: Expected((f, d), "weight"), up: Expected((f, d), "weight")}
            plan.others[out] = Expected((d, f), "weight")
            continue
        slot = expert - held.start
        gate_up.append(Piece(source=gate, source_shape=(f, d), expert=slot))
        gate_up.append(Piece(source=up, source_shape=(f, d), expert=slot, at=f))
        down.append(Piece(source=out, source_shape=(d, f), expert=slot))
    plan.targets[f"{target}.gate_up"] = Target(shape=(len(held), 2 * f, d), pieces=tuple(gate_up))
    plan.targets[f"{target}.down"] = Target(shape=(len(held), d, f), pieces=tuple(down))
