"""config.json to a checked ModelSpec: what every layer and every byte count is derived from.

Two families: Mixtral (softmax router) and GLM-4-MoE (grouped sigmoid router with a correction
bias, shared expert, leading dense layers, partial rotary, optional QK norm, MTP layer).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SUPPORTED = ("Glm4MoeForCausalLM", "MixtralForCausalLM")


class ModelSpecError(ValueError):
    """config.json is missing, damaged, or describes a model that cannot run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of one model. Sizes are element counts; `0` means "has none"."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rotary_dim: int
    rms_eps: float
    tie_embeddings: bool
    num_experts: int
    top_k: int
    expert_intermediate: int
    shared_intermediate: int
    dense_intermediate: int
    first_k_dense: int
    qk_norm: bool
    attention_bias: bool
    router: Literal["softmax", "grouped_sigmoid"]
    num_groups: int
    topk_groups: int
    routed_scale: float
    norm_topk: bool
    num_mtp_layers: int
    mtp_vocab: int
    """Rows of the drafter's own reduced vocabulary; 0 = it uses the whole one."""
    mtp_reads_normed: bool
    """The MTP layer was trained on the target's hidden after its final norm."""
    max_position: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def qkv_rows(self) -> int:
        """Output rows of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def load_spec(folder: Path) -> ModelSpec:
    """Read `folder`/config.json.

    Raises ModelSpecError naming the file, the field and what is accepted.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise ModelSpecError(
            f"no config.json (folder={folder}) -- a checkpoint folder holds config.json beside its "
            "safetensors -- check --model"
        ) from missing
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as damaged:
        raise ModelSpecError(
            f"config.json cannot be read (file={path}: {damaged}) -- the checkpoint may be "
            "half-written -- copy it again"
        ) from damaged
    return parse_spec(raw, source=str(path))


def parse_spec(raw: Any, *, source: str) -> ModelSpec:
    """A checked ModelSpec from the parsed config.json; `source` names it in errors.

    Raises ModelSpecError.
    """
    if not isinstance(raw, dict):
        raise ModelSpecError(
            f"config.json is not an object (type={type(raw).__name__} in {source}) -- it names the "
            "model's sizes -- copy the checkpoint again"
        )
    names = raw.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else names
    if architecture not in SUPPORTED:
        raise ModelSpecError(
            f"unknown architecture (architectures={names} in {source}, supported: "
            f"{', '.join(SUPPORTED)}) -- its layers are not known here -- choose a checkpoint of a "
            "supported family"
        )
    reader = _Fields(raw, source)
    build = _mixtral if architecture == "MixtralForCausalLM" else _glm4_moe
    spec = build(reader, _common(reader, architecture))
    _check(spec, source)
    return spec


class _Fields:
    """Typed access to the config with errors that name the field."""

    def __init__(self, raw: dict[str, Any], source: str) -> None:
        self.raw, self.source = raw, source

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.raw.get(name, default)
        if value is None and default is not None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ModelSpecError(
                f"bad field ({name}={value!r} in {self.source}, limit: integer >= {least}) -- the "
                "layers are sized by it -- repair config.json"
            )
        return value

    def real(self, name: str, default: float, *, nested: dict[str, Any] | None = None) -> float:
        value = self.raw.get(name, (nested or {}).get(name))
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
            raise ModelSpecError(
                f"bad field ({name}={value!r} in {self.source}, limit: number > 0) -- every layer "
                "computes with it -- repair config.json"
            )
        return float(value)

    def switch(self, name: str, *, default: bool) -> bool:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelSpecError(
                f"bad field ({name}={value!r} in {self.source}, limit: true or false) -- it "
                "decides which tensors a layer has -- repair config.json"
            )
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id, a list of ids, or none; each inside the vocabulary."""
        value, size = self.raw.get(name), self.count("vocab_size")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
                raise ModelSpecError(
                    f"bad field ({name}={value!r} in {self.source}, limit: token ids "
                    f"0..{size - 1}) -- the text would never end, or end at once -- repair "
                    "config.json"
                )
        return tuple(ids)

    def rope(self, name: str, default: float) -> float:
        """Rotary settings live at the top level or under rope_parameters (transformers 5)."""
        nested = self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {}
        kind: Any = "unreadable"
        if isinstance(nested, dict):
            kind = nested.get("rope_type", nested.get("type", "default"))
        if kind != "default":
            raise ModelSpecError(
                f"rotary scaling is not supported (rope_type={kind!r} in {self.source}, supported: "
                "'default') -- positions would be wrong -- use a checkpoint without it"
            )
        return self.real(name, default, nested=nested)


def _common(fields: _Fields, architecture: str) -> dict[str, Any]:
    raw = fields.raw
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    bos = fields.token_ids("bos_token_id")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelSpecError(
            f"unsupported activation (hidden_act={activation!r} in {fields.source}, supported: "
            "'silu') -- the experts compute silu(gate) * up -- use another checkpoint"
        )
    return {
        "architecture": architecture,
        "vocab_size": fields.count("vocab_size"),
        "hidden_size": hidden,
        "num_layers": fields.count("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": fields.count("head_dim", max(1, hidden // heads)),
        "rms_eps": fields.real("rms_norm_eps", 1e-5),
        "tie_embeddings": fields.switch("tie_word_embeddings", default=False),
        "max_position": fields.count("max_position_embeddings", 4096),
        "eos_token_ids": fields.token_ids("eos_token_id"),
        "bos_token_id": bos[0] if bos else None,
    }


def _mixtral(fields: _Fields, common: dict[str, Any]) -> ModelSpec:
    if fields.raw.get("sliding_window") is not None:
        raise ModelSpecError(
            f"sliding window attention is not supported (sliding_window="
            f"{fields.raw['sliding_window']!r} in {fields.source}) -- old positions would be seen "
            "-- use a checkpoint with sliding_window null"
        )
    return ModelSpec(
        **common,
        rope_theta=fields.rope("rope_theta", 1e6),
        rotary_dim=common["head_dim"],
        num_experts=fields.count("num_local_experts", 8),
        top_k=fields.count("num_experts_per_tok", 2),
        expert_intermediate=fields.count("intermediate_size"),
        shared_intermediate=0,
        dense_intermediate=0,
        first_k_dense=0,
        qk_norm=False,
        attention_bias=False,
        router="softmax",
        num_groups=1,
        topk_groups=1,
        routed_scale=1.0,
        norm_topk=True,
        num_mtp_layers=fields.count("num_nextn_predict_layers", 0, least=0),
        mtp_vocab=_draft_vocabulary(fields, common["vocab_size"]),
        mtp_reads_normed=False,
    )


def _draft_vocabulary(fields: _Fields, vocab_size: int) -> int:
    """Size of the reduced vocabulary that the demo's kind of MTP module drafts from; 0 = whole."""
    about = fields.raw.get("phalanx_mtp") or {}
    size = about.get("vocab", 0) if isinstance(about, dict) else about
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= vocab_size:
        raise ModelSpecError(
            f"bad field (phalanx_mtp.vocab={size!r} in {fields.source}, limit: 0..{vocab_size}) -- "
            "the drafter picks from that many token ids -- repair config.json"
        )
    return size


def _glm4_moe(fields: _Fields, common: dict[str, Any]) -> ModelSpec:
    expert = fields.count("moe_intermediate_size")
    return ModelSpec(
        **common,
        rope_theta=fields.rope("rope_theta", 10000.0),
        rotary_dim=int(common["head_dim"] * fields.rope("partial_rotary_factor", 0.5)),
        num_experts=fields.count("n_routed_experts"),
        top_k=fields.count("num_experts_per_tok"),
        expert_intermediate=expert,
        shared_intermediate=expert * fields.count("n_shared_experts", 1, least=0),
        dense_intermediate=fields.count("intermediate_size"),
        first_k_dense=fields.count("first_k_dense_replace", 1, least=0),
        qk_norm=fields.switch("use_qk_norm", default=False),
        attention_bias=fields.switch("attention_bias", default=False),
        router="grouped_sigmoid",
        num_groups=fields.count("n_group", 1),
        topk_groups=fields.count("topk_group", 1),
        routed_scale=fields.real("routed_scaling_factor", 1.0),
        norm_topk=fields.switch("norm_topk_prob", default=True),
        # The family's own default; a checkpoint that ships none is found out when it is opened.
        num_mtp_layers=fields.count("num_nextn_predict_layers", 1, least=0),
        mtp_vocab=0,
        mtp_reads_normed=True,
    )


def _check(spec: ModelSpec, source: str) -> None:
    """Fields that contradict each other."""
    rules = (
        (spec.num_heads % spec.num_kv_heads == 0, "num_attention_heads", spec.num_heads,
         f"a multiple of num_key_value_heads={spec.num_kv_heads}"),
        (spec.rotary_dim % 2 == 0 and 0 < spec.rotary_dim <= spec.head_dim, "rotary dimension",
         spec.rotary_dim, f"even, 2 to head_dim={spec.head_dim}"),
        (spec.top_k <= spec.num_experts, "num_experts_per_tok", spec.top_k,
         f"at most the number of experts={spec.num_experts}"),
        (spec.num_experts % spec.num_groups == 0, "n_group", spec.num_groups,
         f"a divisor of the number of experts={spec.num_experts}"),
        (spec.router == "softmax" or spec.num_experts // spec.num_groups >= 2, "n_group",
         spec.num_groups, f"at least 2 of the {spec.num_experts} experts in each group"),
        (spec.topk_groups <= spec.num_groups, "topk_group", spec.topk_groups,
         f"at most n_group={spec.num_groups}"),
        (spec.router == "softmax"
         or spec.top_k <= spec.topk_groups * (spec.num_experts // spec.num_groups),
         "num_experts_per_tok", spec.top_k,
         f"at most the experts of topk_group={spec.topk_groups} groups"),
        (spec.first_k_dense <= spec.num_layers, "first_k_dense_replace", spec.first_k_dense,
         f"at most num_hidden_layers={spec.num_layers}"),
        (spec.num_mtp_layers <= 1, "num_nextn_predict_layers", spec.num_mtp_layers,
         "0 or 1 (one MTP layer is reused for every draft)"),
    )  # fmt: skip
    for holds, name, value, limit in rules:
        if not holds:
            raise ModelSpecError(
                f"incoherent field ({name}={value} in {source}, limit: {limit}) -- the layers "
                "cannot be built -- repair config.json"
            )
