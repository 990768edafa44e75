"""Architecture name to model: plan the shards, load them, wire the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import ExpertPlacement, split_vocabulary
from phalanx.kernels.kernel_set import KernelSet
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.layers.attention import Attention, AttentionWeights, RotaryTables
from phalanx.runtime.layers.decoder import DecoderLayer
from phalanx.runtime.layers.moe import DenseMlp, GatedWeights, MoeMlp, MoeWeights
from phalanx.runtime.layers.vocab import TokenEmbedding, VocabHead
from phalanx.runtime.models import glm4_moe, mixtral
from phalanx.runtime.models.decoder_model import DecoderModel
from phalanx.runtime.models.heads import MtpHead
from phalanx.runtime.models.planning import Drafting, RankShare
from phalanx.runtime.models.spec import ModelSpec, load_spec
from phalanx.runtime.weights.fused_experts import split_fused
from phalanx.runtime.weights.index import CheckpointError, TensorEntry, read_index
from phalanx.runtime.weights.load import Progress, WeightsReport, load_targets
from phalanx.runtime.weights.shards import ShardPlan

FAMILIES: Final[Mapping[str, ModuleType]] = {
    "MixtralForCausalLM": mixtral,
    "Glm4MoeForCausalLM": glm4_moe,
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the wiring of every layer needs."""

    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    rotary: RotaryTables
    kernels: KernelSet


def open_checkpoint(folder: Path) -> tuple[ModelSpec, dict[str, TensorEntry]]:
    """The spec, corrected by what the checkpoint really carries, and its tensors.

    A config.json may promise an MTP layer whose weights were not shipped; then there is none.
    """
    spec = load_spec(folder)
    family = FAMILIES[spec.architecture]
    entries = split_fused(read_index(folder), family.EXPERTS)
    if spec.num_mtp_layers and not family.has_mtp(set(entries), spec):
        spec = replace(spec, num_mtp_layers=0, mtp_vocab=0)
    return spec, entries


def plan_shards(spec: ModelSpec, share: RankShare) -> ShardPlan:
    """The slices that one rank holds."""
    plan: ShardPlan = FAMILIES[spec.architecture].plan(spec, share)
    return plan


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype,
    comm: Communicator,
    kernels: KernelSet,
    placement: ExpertPlacement,
    drafting: Drafting = Drafting.LOCKSTEP,
    progress: Progress | None = None,
) -> tuple[DecoderModel, WeightsReport]:
    """Read this rank's slices of the checkpoint in `folder` and wire the model.

    Raises ModelSpecError, CheckpointError; PlacementError when `placement` describes other experts
    or ranks than the checkpoint and `comm` have.
    """
    spec, entries = open_checkpoint(folder)
    placement.check(num_experts=spec.num_experts, world_size=comm.world_size)
    share = RankShare.of(spec, placement, rank=comm.rank, drafting=drafting)
    plan = plan_shards(spec, share)
    tensors, report = load_targets(
        plan, entries, dtype=dtype, device=comm.device, progress=progress
    )
    return build_model(spec, tensors, share=share, comm=comm, kernels=kernels), report


def build_model(
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    *,
    share: RankShare,
    comm: Communicator,
    kernels: KernelSet,
) -> DecoderModel:
    """Wire loaded tensors; nothing is copied."""
    rotary = RotaryTables.of(spec, comm.device)
    parts = _Parts(spec, tensors, rotary, kernels)
    layers = [
        _layer(parts, f"layers.{i}", kv_layer=i, experts=share.experts)
        for i in range(spec.num_layers)
    ]
    embedding = TokenEmbedding(tensors["embedding"])
    head = VocabHead(
        _head_rows(parts, share.vocabulary),
        vocab_size=spec.vocab_size,
        comm=comm,
        kernels=kernels,
    )
    return DecoderModel(
        spec,
        embedding=embedding,
        layers=layers,
        final_norm_D=tensors["final_norm"],
        head=head,
        mtp=_mtp(parts, share, embedding, comm),
        comm=comm,
        kernels=kernels,
    )


def _head_rows(parts: _Parts, rows: range) -> Tensor:
    """The head's rows as a view: of the tied embedding, of a whole head, or the share itself."""
    head = parts.tensors["embedding" if parts.spec.tie_embeddings else "head"]
    return head[rows.start : rows.stop] if head.shape[0] == parts.spec.vocab_size else head


def _mtp(
    parts: _Parts, share: RankShare, embedding: TokenEmbedding, comm: Communicator
) -> Callable[[KVPool], MtpHead] | None:
    """A maker of the MTP head; None when this rank does not draft."""
    spec, tensors, draft = parts.spec, parts.tensors, share.drafter
    if not spec.num_mtp_layers or draft is None:
        return None
    alone = draft.experts == range(spec.num_experts) and comm.world_size > 1
    comm = LocalCommunicator(comm.device) if alone else comm
    layer = _layer(parts, "mtp.block", kv_layer=spec.num_layers, experts=draft.experts)
    head = _draft_vocabulary(parts, draft, comm)

    def make(kv: KVPool) -> MtpHead:
        return MtpHead(
            embedding=embedding,
            enorm_D=tensors["mtp.enorm"],
            hnorm_D=tensors["mtp.hnorm"],
            eh_proj_D2D=tensors["mtp.eh_proj"],
            layer=layer,
            norm_D=tensors["mtp.norm"],
            head=head,
            kv=kv,
            kernels=parts.kernels,
            comm=comm,
            eps=spec.rms_eps,
        )

    return make


def _draft_vocabulary(parts: _Parts, draft: RankShare, comm: Communicator) -> VocabHead:
    """The drafter's head: the target's own rows, or a copy of the rows of its vocabulary."""
    spec = parts.spec
    ids = parts.tensors.get("mtp.draft_ids")
    if ids is None:
        rows, size = _head_rows(parts, draft.vocabulary), spec.vocab_size
    else:
        _check_draft_ids(ids, spec.vocab_size)
        share = split_vocabulary(spec.mtp_vocab, comm.world_size, comm.rank)
        whole = _head_rows(parts, range(spec.vocab_size))
        rows, size = whole[ids[share.start : share.stop]].contiguous(), spec.mtp_vocab
    return VocabHead(rows, vocab_size=size, comm=comm, kernels=parts.kernels, token_ids_V=ids)


def _check_draft_ids(ids: Tensor, vocab_size: int) -> None:
    """Ascending ids of the target's vocabulary: the order decides ties between drafts."""
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise CheckpointError(
            f"bad draft vocabulary (mtp.draft_ids {int(ids.min())} to {int(ids.max())}, limit: "
            f"strictly ascending, 0..{vocab_size - 1}) -- drafts would be other tokens -- use the "
            "mtp.safetensors made for this model"
        )


def _layer(parts: _Parts, prefix: str, *, kv_layer: int, experts: range) -> DecoderLayer:
    spec, tensors = parts.spec, parts.tensors
    weights = AttentionWeights(
        qkv_QD=tensors[f"{prefix}.qkv"],
        qkv_bias_Q=tensors.get(f"{prefix}.qkv_bias"),
        out_DQ=tensors[f"{prefix}.out"],
        q_norm_D=tensors.get(f"{prefix}.q_norm"),
        k_norm_D=tensors.get(f"{prefix}.k_norm"),
    )
    return DecoderLayer(
        input_norm_D=tensors[f"{prefix}.input_layernorm"],
        post_norm_D=tensors[f"{prefix}.post_attention_layernorm"],
        attention=Attention(spec, weights, parts.rotary, kv_layer=kv_layer),
        mlp=_mlp(parts, prefix, experts),
        eps=spec.rms_eps,
    )


def _mlp(parts: _Parts, prefix: str, experts: range) -> DenseMlp | MoeMlp:
    tensors = parts.tensors
    dense = _gated(tensors, f"{prefix}.dense")
    if dense is not None:
        return DenseMlp(dense)
    weights = MoeWeights(
        router_ED=tensors[f"{prefix}.router"],
        correction_bias_E=tensors.get(f"{prefix}.correction_bias"),
        gate_up_EGD=tensors[f"{prefix}.gate_up"],
        down_EDF=tensors[f"{prefix}.down"],
        shared=_gated(tensors, f"{prefix}.shared"),
    )
    return MoeMlp(parts.spec, weights, experts=experts)


def _gated(tensors: Mapping[str, Tensor], prefix: str) -> GatedWeights | None:
    gate_up = tensors.get(f"{prefix}.gate_up")
    return None if gate_up is None else GatedWeights(gate_up, tensors[f"{prefix}.down"])
