"""Frozen configuration: composed, validated once, and made definite before anything starts.

`Config` is one tree of frozen values; each room gets its own branch and no room writes to it.
`resolve` fills in what the user left open (a new value, never a change in place) and lists every
decision it took, so that what runs is what was printed. `fields` and `digest` are what the ranks
compare at start: rank-local things (threads, device index) are left out.

Settings sit with their owner: `SpecConfig` in proposers, `EPConfig` in ep; this file composes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any

from phalanx.ep.topology import EPConfig
from phalanx.proposers.base import SpecConfig


class ConfigError(ValueError):
    """A setting that cannot be honoured, or two that contradict each other."""


DTYPES = ("float32", "bfloat16")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, in which form."""

    model: str = "demo"
    """Checkpoint folder, or `demo` (a small real model), or `tiny` (a random one for tests)."""
    dtype: str = "bfloat16"
    """Element type of the weights: float32 or bfloat16."""
    device: str = "cpu"
    """Where the ranks compute: cpu, or cuda with one GPU per rank."""
    max_model_len: int = 0
    """Longest prompt plus answer in tokens; 0 takes the model's own limit, at most 4096."""
    threads: int = 0
    """Compute threads of each rank; 0 shares the cores of the host evenly."""

    def __post_init__(self) -> None:
        _choice("dtype", self.dtype, DTYPES)
        _choice("device", self.device, DEVICES)
        _at_least("max_model_len", self.max_model_len, 0)
        _at_least("threads", self.threads, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged key-value cache of one rank."""

    block_size: int = 16
    """Tokens a block holds."""
    num_kv_blocks: int = 0
    """Blocks of the pool; 0 takes what the sequences can use at most, within kv_memory_share."""
    kv_memory_share: float = 0.4
    """Share of the free memory, divided among the ranks of the host, that the pool may take."""

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        _at_least("num_kv_blocks", self.num_kv_blocks, 0)
        if not 0.0 < self.kv_memory_share <= 0.95:
            raise ConfigError(
                f"kv_memory_share out of range (value={self.kv_memory_share}, limit 0..0.95) -- "
                "the rest holds weights and activations -- give a share inside the range"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How much work one round takes."""

    max_num_seqs: int = 8
    """Sequences that run at the same time; the rest wait."""
    max_num_batched_tokens: int = 512
    """Rows of one round; a longer prompt is taken in chunks."""

    def __post_init__(self) -> None:
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens too small (value={self.max_num_batched_tokens}, limit "
                f"max_num_seqs={self.max_num_seqs}) -- every running sequence needs a row each "
                "round -- raise it, or lower --max-num-seqs"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one engine, the same on every rank."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Which model, in which form."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """The paged key-value cache."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How much work one round takes."""
    spec: SpecConfig = field(default_factory=SpecConfig)
    """Speculation: who drafts, and how many."""
    ep: EPConfig = field(default_factory=EPConfig)
    """The ranks: transports and deadlines."""

    def fields(self) -> dict[str, str]:
        """Every setting that the ranks must share, as `branch.field` -> value in words."""
        flat = {
            f"{branch.name}.{name}": _words(value)
            for branch in dataclasses.fields(self)
            for name, value in _flatten(getattr(self, branch.name))
        }
        return {name: value for name, value in flat.items() if name not in RANK_LOCAL}

    def digest(self) -> int:
        """A 64-bit fingerprint of `fields()`, the same in every process and version of Python."""
        text = "\0".join(f"{name}={value}" for name, value in sorted(self.fields().items()))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def as_dict(self) -> dict[str, Any]:
        """The tree as plain dicts, for printing as JSON."""
        return {
            branch.name: dict(_flatten(getattr(self, branch.name)))
            for branch in dataclasses.fields(self)
        }


# Settings that may differ between ranks: nothing that crosses a rank depends on them. Of the
# KV blocks each rank makes its own offer and the agreement takes the least.
RANK_LOCAL = frozenset({"model.threads", "model.model", "cache.num_kv_blocks"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What `resolve` needs to know about this machine, measured by the caller."""

    cores: int
    """Cores this process may use."""
    free_bytes: int
    """Free memory of the device the pool will live on."""
    local_world_size: int = 1
    """Ranks that share the cores (and, on CPU, the memory) of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What `resolve` needs to know about the checkpoint, from its config.json alone."""

    max_position: int
    """Longest context the model was made for, in tokens."""
    bytes_per_kv_block: int
    """Key and value bytes of one block over all layers, the drafter's included."""
    has_mtp: bool
    """The checkpoint carries an MTP module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A definite configuration and how it came about."""

    config: Config
    changes: tuple[str, ...]
    """One line per decision: `cache.num_kv_blocks 0 -> 2048: ...`."""


def resolve(config: Config, *, host: Host, facts: ModelFacts) -> Resolved:
    """Fill in every open setting. Pure; the KV blocks are this rank's own offer, of which the
    start-up agreement takes the least.

    Raises:
        ConfigError: a setting that this model or this machine cannot honour.
    """
    changes: list[str] = []
    model, cache = config.model, config.cache

    limit = model.max_model_len or min(facts.max_position, DEFAULT_MAX_MODEL_LEN)
    if limit > facts.max_position:
        raise ConfigError(
            f"context too long (max_model_len={limit}, model limit {facts.max_position}) -- the "
            "model's positions end there -- lower --max-model-len"
        )
    if limit != model.max_model_len:
        changes.append(f"model.max_model_len {model.max_model_len} -> {limit}: the model's limit")
        model = dataclasses.replace(model, max_model_len=limit)

    threads = model.threads or max(1, host.cores // host.local_world_size)
    if threads != model.threads:
        why = f"{host.cores} cores over {host.local_world_size} ranks"
        changes.append(f"model.threads {model.threads} -> {threads}: {why}")
        model = dataclasses.replace(model, threads=threads)

    ep = config.ep
    if model.device == "cuda" and ep.backend == "gloo":
        changes.append("ep.backend gloo -> nccl: gloo cannot carry tensors on a GPU")
        ep = dataclasses.replace(ep, backend="nccl")

    blocks, why = _kv_blocks(config, limit=limit, host=host, facts=facts)
    if blocks != cache.num_kv_blocks:
        changes.append(f"cache.num_kv_blocks {cache.num_kv_blocks} -> {blocks}: {why}")
        cache = dataclasses.replace(cache, num_kv_blocks=blocks)

    if config.spec.method == "mtp" and not facts.has_mtp:
        raise ConfigError(
            f"no MTP module in the checkpoint (model={model.model}, spec.method=mtp) -- nothing "
            "can draft -- use --spec off, or a checkpoint with an MTP module"
        )
    return Resolved(
        config=dataclasses.replace(config, model=model, cache=cache, ep=ep),
        changes=tuple(changes),
    )


# A default that keeps the pool small; a longer context is an option away.
DEFAULT_MAX_MODEL_LEN = 4096


def _kv_blocks(config: Config, *, limit: int, host: Host, facts: ModelFacts) -> tuple[int, str]:
    """The pool's blocks and, in words, what decided them."""
    size = config.cache.block_size
    per_sequence = -(-(limit + config.spec.num_drafts + 1) // size)
    given = config.cache.num_kv_blocks
    if given:
        if given < per_sequence:
            raise ConfigError(
                f"KV pool smaller than one sequence (num_kv_blocks={given}, limit >= "
                f"{per_sequence} for max_model_len={limit}) -- a full-length request could never "
                "run -- raise --num-kv-blocks, or lower --max-model-len"
            )
        return given, "as given"
    useful = per_sequence * config.schedule.max_num_seqs
    share = host.free_bytes * config.cache.kv_memory_share / host.local_world_size
    affordable = int(share // facts.bytes_per_kv_block)
    if affordable < per_sequence:
        raise ConfigError(
            f"too little memory for one sequence's keys and values (max_model_len={limit} needs "
            f"{per_sequence} blocks of {facts.bytes_per_kv_block} bytes, affordable "
            f"{affordable} of {host.free_bytes} free bytes over {host.local_world_size} ranks) "
            "-- a full-length request could never run -- lower --max-model-len, or raise "
            "--kv-memory-share"
        )
    if affordable < useful:
        return affordable, f"{config.cache.kv_memory_share:.0%} of the free memory"
    return useful, f"{config.schedule.max_num_seqs} sequences of {limit} tokens"


def _flatten(branch: Any) -> list[tuple[str, Any]]:
    return [(item.name, getattr(branch, item.name)) for item in dataclasses.fields(branch)]


def _words(value: Any) -> str:
    return "unset" if value is None else str(value)


def _choice(name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ConfigError(
            f"unknown {name} (value={value!r}, accepted {', '.join(accepted)}) -- nothing here "
            "computes in it -- choose one of the accepted values"
        )


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(
            f"{name} out of range (value={value}, limit >= {low}) -- the engine cannot be sized "
            "by it -- give a value inside the range"
        )
