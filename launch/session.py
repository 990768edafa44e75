"""The one place that builds a running engine: model, cache, executor, and on rank 0 the engine.

`run_on_ranks` starts the ranks when nobody has (or joins those that a launcher started) and runs
`work` on rank 0 with a `Session`; the other ranks serve commands until it returns.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from phalanx.ep.commands import Command
from phalanx.ep.placement import ExpertPlacement
from phalanx.ep.worker import Handler
from phalanx.kernels.backend import choose_backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.launch.asked import Asked, Definite, asked_for, make_definite
from phalanx.launch.memory_plan import kv_dtype, torch_dtype
from phalanx.launch.progress import bar
from phalanx.launch.rank_main import Rank, RankJob, make_sheet, run_rank
from phalanx.launch.ranks import Identity, LaunchError, Options, who_am_i
from phalanx.launch.spawn import spawn_ranks
from phalanx.proposers.base import DraftProposer, SpecConfig
from phalanx.proposers.catalog import make_proposer
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.depth import FixedDepth
from phalanx.runtime.engine import Engine
from phalanx.runtime.executor import Executor
from phalanx.runtime.models.architectures import load_model
from phalanx.runtime.models.planning import Drafting
from phalanx.runtime.request import Request, SamplingParams
from phalanx.runtime.round_plan import SchedulerLimits, TokenEvent
from phalanx.runtime.scheduler import Scheduler
from phalanx.runtime.stats import RunStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a rank holds once its part of the model is in memory."""

    executor: Executor
    proposer: DraftProposer | None
    weights_bytes: tuple[int, ...]
    """Bytes of weights of each rank, by rank."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Rank 0 with every rank ready: makes engines and drives them. One engine works at a time."""

    rank: Rank
    definite: Definite
    loaded: Loaded
    _next_id: int = field(default=0)

    def engine(self, *, speculate: bool = True, num_drafts: int | None = None) -> Engine:
        """A fresh engine over the loaded ranks; the one before it must be idle.

        `speculate` = False decodes plainly with the same weights; `num_drafts` overrides the
        configured draft count.
        """
        config, spec = self.definite.config, self.definite.config.spec
        proposer = self.loaded.proposer if speculate else None
        depth = spec.num_drafts if num_drafts is None else num_drafts
        limits = SchedulerLimits(
            max_num_seqs=config.schedule.max_num_seqs,
            max_num_batched_tokens=config.schedule.max_num_batched_tokens,
            max_model_len=config.model.max_model_len,
            block_size=config.cache.block_size,
            num_blocks=self.rank.kv_blocks,
            vocab_size=self.definite.spec.vocab_size,
        )
        return Engine(
            scheduler=Scheduler(limits, eos_token_ids=self.definite.spec.eos_token_ids),
            executor=self.loaded.executor,
            channel=self.rank.channel,
            digest=self.rank.digest,
            proposer=proposer,
            depth=FixedDepth(depth if proposer is not None else 0),
            draft_conf_tau=spec.draft_conf_tau,
            stats=RunStats(num_drafts_limit=depth if proposer is not None else 0),
        )

    def request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Request:
        """A request with an id that this session never used."""
        self._next_id += 1
        return Request(id=self._next_id, prompt_token_ids=tuple(prompt_token_ids), params=params)


def generate(engine: Engine) -> Iterator[TokenEvent]:
    """Every event until the engine has no work left. Closing the iterator aborts what runs."""
    running = True
    try:
        while engine.has_work:
            yield from engine.step()
        running = False
    finally:
        if running:
            drain(engine)


def drain(engine: Engine) -> None:
    """End what an engine still runs, so that another one may use its ranks."""
    for sequence in [*engine.scheduler.running, *engine.scheduler.waiting]:
        engine.abort(sequence.id)
    while engine.has_work:
        engine.step()


Work = Callable[[Session], int]


def run_on_ranks(options: argparse.Namespace, work: Work, *, quiet: bool = False) -> int:
    """Run `work` on rank 0 of `options.ranks` ranks; the exit status of this process.

    Started by a launcher, this process joins as the rank it is. Otherwise it is the parent: it
    checks everything that can be checked without weights, then starts the ranks and watches them,
    or for one rank does the work itself.

    Raises:
        ValueError: something the user must mend.
    """
    identity = who_am_i(rank_options(options))
    info = identity.info
    asked = asked_for(options)
    ranks = options.ranks if options.ranks is not None else info.world_size
    if ranks < 1:
        raise LaunchError(f"no ranks (--ranks {ranks}, limit >= 1) -- nobody would compute")
    launched = info.launcher != "single"
    if launched and ranks != info.world_size:
        raise LaunchError(
            f"--ranks {ranks} inside a launch of {info.world_size} ranks ({info.launcher}) -- the "
            "launcher decides how many there are -- leave --ranks away, or give it the same number"
        )
    definite = make_definite(
        asked,
        local_rank=info.local_rank,
        local_world_size=info.local_world_size if launched else ranks,
        world_size=ranks,
        progress=bar("preparing the model", quiet=quiet or info.local_rank > 0),
    )
    if info.rank == 0 and info.launcher != "spawn" and not quiet:
        explain(asked, definite, ranks=ranks)
    if not launched and ranks > 1:
        return spawn_ranks(options.argv, ranks)
    return join_as_rank(identity, definite, work, quiet=quiet)


def rank_options(options: argparse.Namespace) -> Options:
    """What the command line said about ranks, for those that no launcher started."""
    return Options(
        **{item.name: getattr(options, item.name, None) for item in dataclasses.fields(Options)}
    )


def explain(asked: Asked, definite: Definite, *, ranks: int) -> None:
    """Say on stderr what will run: warnings about flags, decisions, and one summary line."""
    config = definite.config
    lines = [f"warning: {warning}" for warning in asked.flags.warnings]
    lines += [f"  {change}" for change in definite.changes]
    spec = config.spec.method
    drafts = f", {config.spec.num_drafts} drafts" if spec != "off" else ""
    lines.append(
        f"phalanx: {config.model.model} on {counted(ranks, 'rank')} x "
        f"{counted(config.model.threads, 'thread')} "
        f"({config.model.device}, {config.model.dtype}), speculation {spec}{drafts}"
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def counted(number: int, thing: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def join_as_rank(identity: Identity, definite: Definite, work: Work, *, quiet: bool) -> int:
    """One rank's whole life; the exit status. A fault ends the process instead of returning."""
    info, config = identity.info, definite.config
    device = torch.device("cpu")
    if config.model.device == "cuda":
        device = torch.device("cuda", info.local_rank)
        torch.cuda.set_device(device)
    sheet = make_sheet(
        flags=definite.flags.agreement(),
        settings=definite.agreement(),
        max_kv_blocks=config.cache.num_kv_blocks,
        device=device,
        parity="warn" if definite.flags.value("PHALANX_STARTUP_PARITY") == "warn" else "fail",
    )

    def load(rank: Rank) -> Loaded:
        return load_rank(rank, definite, quiet=quiet)

    def coordinate(rank: Rank, loaded: Loaded) -> int:
        return work(Session(rank=rank, definite=definite, loaded=loaded))

    def handlers(rank: Rank, loaded: Loaded) -> Mapping[Command, Handler]:
        return loaded.executor.handlers()

    return run_rank(
        RankJob(load=load, coordinate=coordinate, handlers=handlers),
        config.ep,
        info,
        meeting=identity.meeting,
        sheet=sheet,
        device=device,
        threads=config.model.threads,
    )


def load_rank(rank: Rank, definite: Definite, *, quiet: bool) -> Loaded:
    """Read this rank's weights and build its executor. Every rank calls it."""
    config, spec = definite.config, definite.spec
    kernels = make_kernels(
        choose_backend(rank.comm.device, native_allowed=definite.kernels_native),
        num_threads=config.model.threads,
    )
    model, report = load_model(
        definite.folder,
        dtype=torch_dtype(config.model.dtype),
        comm=rank.comm,
        kernels=kernels,
        placement=ExpertPlacement(num_experts=spec.num_experts, world_size=rank.info.world_size),
        drafting=definite.drafting,
        progress=bar("loading weights", quiet=quiet or rank.info.rank > 0),
    )
    pool = KVPool(
        spec,
        num_blocks=rank.kv_blocks,
        block_size=config.cache.block_size,
        dtype=kv_dtype(config),
        device=rank.comm.device,
    )
    drafts_here = definite.drafting is Drafting.LOCKSTEP or (
        definite.drafting is Drafting.RANK_0_ONLY and rank.info.rank == 0
    )
    proposer = make_proposer(
        config.spec if drafts_here else SpecConfig(method="off"),
        head=model.draft_head(pool) if drafts_here else None,
        lockstep=definite.drafting is Drafting.LOCKSTEP,
    )
    longest = config.model.max_model_len + config.spec.num_drafts + 1
    executor = Executor(
        model=model,
        kv=pool,
        kernels=kernels,
        comm=rank.comm,
        digest=rank.digest,
        num_slots=config.schedule.max_num_seqs,
        max_blocks=-(-longest // config.cache.block_size),
        proposer=proposer,
        report_phase=rank.liveness.phase,
    )
    # Loading takes as long as it takes; a collective may not: so the ranks meet first.
    rank.ready("weights")
    held = torch.tensor([report.bytes_held], dtype=torch.int64, device=rank.comm.device)
    everyone = rank.comm.all_gather(held).flatten().tolist()
    return Loaded(executor=executor, proposer=proposer, weights_bytes=tuple(everyone))
