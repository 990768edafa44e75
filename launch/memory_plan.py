"""Memory of each rank by arithmetic: weights it will hold and its KV pool. Nothing is loaded.

The shard plan that loading follows says what a rank holds, so this is exact for weights; the
rest (activations, libraries) is a fixed allowance. The facts that `resolve` asks for are measured
here too.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from phalanx.ep.placement import ExpertPlacement
from phalanx.runtime.cache.kv_pool import bytes_per_block
from phalanx.runtime.config import Config, Host, ModelFacts
from phalanx.runtime.models.architectures import open_checkpoint, plan_shards
from phalanx.runtime.models.planning import Drafting, RankShare
from phalanx.runtime.models.spec import ModelSpec
from phalanx.runtime.weights.shards import ShardPlan

# Interpreter, torch and activations of one rank, measured on the demo model: about 450 MB.
PROCESS_BYTES = 500 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank's memory in bytes."""

    rank: int
    weights: int
    kv_pool: int

    @property
    def total(self) -> int:
        """Everything, the allowance for the process included."""
        return self.weights + self.kv_pool + PROCESS_BYTES


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a `--dtype`."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def memory_of_ranks(
    folder: Path, config: Config, *, ranks: int, drafting: Drafting
) -> list[RankMemory]:
    """What each rank of `ranks` will hold; `config` is resolved.

    Raises:
        ModelSpecError, CheckpointError: the checkpoint cannot be loaded at all.
        PlacementError: more ranks than experts.
    """
    spec, entries = open_checkpoint(folder)
    placement = ExpertPlacement(num_experts=spec.num_experts, world_size=ranks)
    pool = config.cache.num_kv_blocks * kv_block_bytes(spec, config)
    memory = []
    for rank in range(ranks):
        plan = plan_shards(spec, RankShare.of(spec, placement, rank=rank, drafting=drafting))
        plan.check(entries)
        weights = held_bytes(plan, dtype=torch_dtype(config.model.dtype))
        memory.append(RankMemory(rank=rank, weights=weights, kv_pool=pool))
    return memory


def kv_block_bytes(spec: ModelSpec, config: Config) -> int:
    """Bytes of one KV block of this configuration."""
    return bytes_per_block(spec, block_size=config.cache.block_size, dtype=kv_dtype(config))


def kv_dtype(config: Config) -> torch.dtype:
    """Element type of keys and values: float32 on the CPU, the weights' type on a GPU."""
    return torch.float32 if config.model.device == "cpu" else torch_dtype(config.model.dtype)


def held_bytes(plan: ShardPlan, *, dtype: torch.dtype) -> int:
    """Bytes of the tensors that a shard plan fills."""
    sizes = {"weight": dtype.itemsize, "float32": 4, "int64": 8}
    return sum(math.prod(target.shape) * sizes[target.type] for target in plan.targets.values())


def model_facts(spec: ModelSpec, config: Config) -> ModelFacts:
    """What `resolve` needs to know about a checkpoint."""
    return ModelFacts(
        max_position=spec.max_position,
        bytes_per_kv_block=kv_block_bytes(spec, config),
        has_mtp=spec.num_mtp_layers > 0,
    )


def measure_host(config: Config, *, local_rank: int, local_world_size: int) -> Host:
    """What `resolve` needs to know about this machine, now."""
    if config.model.device == "cuda" and torch.cuda.is_available():
        # One GPU a rank: its memory is shared with nobody.
        free = torch.cuda.mem_get_info(local_rank)[0] * local_world_size
    else:
        free = free_host_bytes()
    return Host(cores=usable_cores(), free_bytes=free, local_world_size=local_world_size)


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_host_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be taken: of the machine, or of the container when that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(0, int(limit) - used)) if limit.isdigit() else free
