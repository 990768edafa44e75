"""RankInfo and EPConfig: who I am, who the others are, which deadlines hold.

`RankInfo` is filled once by `launch/ranks.py` (the only place that looks at launcher variables) and
handed down; `EPConfig` is the part of the configuration that the rooms of `ep` read. Both are
frozen: a rank cannot become another rank, and a deadline cannot move while somebody waits on it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

Launcher = Literal["single", "spawn", "torchrun", "slurm", "mpi", "explicit"]
CommandTransport = Literal["local", "gloo", "nccl"]
Backend = Literal["local", "gloo", "nccl", "nccl-direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One process of the job.

    rank and local_rank count from 0; `host` is the name shown in messages, `pid` this process.
    Raises ValueError when the numbers cannot belong to one job.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host: str
    pid: int
    launcher: Launcher = "single"

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank out of range (rank={self.rank}, world_size={self.world_size}) -- every rank "
                "must be in 0..world_size-1 -- check what the launcher was told"
            )
        if not 0 <= self.local_rank < self.local_world_size <= self.world_size:
            raise ValueError(
                f"local rank out of range (local_rank={self.local_rank}, "
                f"local_world_size={self.local_world_size}, world_size={self.world_size}) -- "
                "it picks the device of this process -- check what the launcher was told"
            )
        if self.launcher not in get_args(Launcher):
            raise ValueError(f"unknown launcher (launcher={self.launcher!r})")

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} (host {self.host}, pid {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EPConfig:
    """Deadlines and transports between ranks; all times in seconds."""

    startup_deadline_s: float = 600.0
    """Joining, agreeing, loading and warming up: each until every rank is there."""
    command_deadline_s: float = 30.0
    """The parts of a command after its first word (that one may wait for ever)."""
    collective_deadline_s: float = 30.0
    """One collective of the model."""
    heartbeat_s: float = 1.0
    """How often a rank reports."""
    silence_deadline_s: float = 10.0
    """A rank that has not reported for this long counts as stopped."""
    command_transport: CommandTransport = "gloo"
    """What carries commands."""
    backend: Backend = "gloo"
    """What carries the model's collectives."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not value > 0:
                raise ValueError(
                    f"deadline not positive ({field.name}={value}) -- a wait without a deadline "
                    "cannot name who is late -- give seconds greater than 0"
                )
        if self.silence_deadline_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"silence_deadline_s={self.silence_deadline_s} is under two heartbeats "
                f"(heartbeat_s={self.heartbeat_s}) -- one late heartbeat would end the job -- "
                "raise the one or lower the other"
            )
        for name, value, allowed in (
            ("command_transport", self.command_transport, get_args(CommandTransport)),
            ("backend", self.backend, get_args(Backend)),
        ):
            if value not in allowed:
                raise ValueError(
                    f"unknown {name} ({name}={value!r}) -- supported: {', '.join(allowed)}"
                )
