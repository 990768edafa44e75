"""What was asked for, made definite for this checkpoint and this machine. Loads no weights.

Order of authority: option, then flag, then what the checkpoint says, then the default. Every rank
does this for itself from its own command line; the start-up agreement compares the results.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from phalanx.launch.args import speculation_given, take_config
from phalanx.launch.memory_plan import measure_host, memory_of_ranks, model_facts
from phalanx.launch.model_source import Progress, checkpoint_folder
from phalanx.runtime.config import Config, resolve
from phalanx.runtime.flags import Flags, read_environment
from phalanx.runtime.models.architectures import open_checkpoint
from phalanx.runtime.models.planning import Drafting
from phalanx.runtime.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command line with its flags, before anything is known about the checkpoint."""

    config: Config
    flags: Flags
    method_given: bool
    """Who drafts was said; otherwise MTP when the checkpoint has a module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definite:
    """Everything a rank needs to start."""

    folder: Path
    spec: ModelSpec
    config: Config
    """Resolved."""
    changes: tuple[str, ...]
    """What resolving decided, one line each."""
    flags: Flags
    drafting: Drafting
    kernels_native: bool
    """Native kernels are allowed."""

    def agreement(self) -> dict[str, str]:
        """What every rank must have alike besides the flags: settings and the model's shape."""
        shape = {f"model shape: {name}": str(value) for name, value in _fields(self.spec)}
        return self.config.fields() | shape


def _fields(spec: ModelSpec) -> list[tuple[str, object]]:
    return [(item.name, getattr(spec, item.name)) for item in dataclasses.fields(spec)]


def asked_for(options: argparse.Namespace) -> Asked:
    """Read a parsed command line and the environment's flags.

    Raises:
        ConfigError and its like: a value out of range.
    """
    flags, values = read_environment(), vars(options)
    config = take_config(values)
    tau = flags.value("PHALANX_MTP_DRAFT_CONF")
    if values.get("draft_conf_tau") is None and isinstance(tau, float) and tau > 0.0:
        spec = dataclasses.replace(config.spec, draft_conf_tau=tau)
        config = dataclasses.replace(config, spec=spec)
    return Asked(config=config, flags=flags, method_given=speculation_given(values))


def make_definite(
    asked: Asked,
    *,
    local_rank: int = 0,
    local_world_size: int = 1,
    world_size: int = 1,
    progress: Progress | None = None,
) -> Definite:
    """Find (or prepare) the checkpoint, read its headers, resolve the configuration, and check
    that every rank could load its part.

    Raises:
        ValueError: something the user must mend; each message is one line.
    """
    folder = checkpoint_folder(asked.config.model.model, flags=asked.flags, progress=progress)
    spec, _ = open_checkpoint(folder)
    config, changes = asked.config, []
    if not asked.method_given and spec.num_mtp_layers:
        config = dataclasses.replace(config, spec=dataclasses.replace(config.spec, method="mtp"))
        changes.append("spec.method off -> mtp: the checkpoint has an MTP module")
    host = measure_host(config, local_rank=local_rank, local_world_size=local_world_size)
    resolved = resolve(config, host=host, facts=model_facts(spec, config))
    definite = Definite(
        folder=folder,
        spec=spec,
        config=resolved.config,
        changes=(*changes, *resolved.changes),
        flags=asked.flags,
        drafting=drafting_of(resolved.config, asked.flags),
        kernels_native=not asked.flags.is_on("PHALANX_NO_NATIVE_KERNELS"),
    )
    memory_of_ranks(folder, definite.config, ranks=world_size, drafting=definite.drafting)
    return definite


def drafting_of(config: Config, flags: Flags) -> Drafting:
    """Who runs the drafter's network."""
    if config.spec.method == "off":
        return Drafting.OFF
    alone = flags.is_on("PHALANX_NO_MTP_EP_PROPOSE")
    return Drafting.RANK_0_ONLY if alone else Drafting.LOCKSTEP
