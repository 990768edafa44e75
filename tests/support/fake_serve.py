"""An engine over the fake model, on one rank or on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.lockstep import StateDigest
from phalanx.proposers.base import DraftProposer
from phalanx.proposers.mtp import MtpProposer
from phalanx.runtime.depth import DepthChooser, FixedDepth
from phalanx.runtime.engine import Engine
from phalanx.runtime.executor import Executor
from phalanx.runtime.request import Request, SamplingParams
from phalanx.runtime.round_plan import SchedulerLimits, TokenEvent
from phalanx.runtime.scheduler import Scheduler
from phalanx.runtime.stats import RunStats
from tests.support.fake_model import FakeDraftHead, FakeModel, FakePool
from tests.support.thread_ranks import DEADLINE_S, QueueChannel, ThreadComm, ThreadGroup, Worker

MakeProposer = Callable[[FakeModel, Any], DraftProposer | None]


def mtp(flaw: Callable[[int], bool] | None = None, **options: Any) -> MakeProposer:
    """The MTP proposer over the fake draft head; perfect unless flawed."""

    def make(model: FakeModel, comm: Any) -> DraftProposer:
        return MtpProposer(FakeDraftHead(model, comm=comm, flaw=flaw), **options)

    return make


@dataclass(kw_only=True)
class Shape:
    """Sizes of the fake serve."""

    vocab_size: int = 32
    block_size: int = 4
    num_blocks: int = 64
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 64
    max_waiting: int = 4096
    eos: tuple[int, ...] = ()
    sharpness: float = 2.0
    levels: int = 0

    def limits(self) -> SchedulerLimits:
        return SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            vocab_size=self.vocab_size,
            max_waiting=self.max_waiting,
        )


class ScriptedDepth:
    """Draft counts from a function of (call, sequence id)."""

    learns = False

    def __init__(self, script: Callable[[int, int], int]) -> None:
        self._script, self._calls = script, 0

    def depths(self, sequences: Sequence[Any], *, now_s: float) -> list[int]:
        self._calls += 1
        return [self._script(self._calls, sequence.id) for sequence in sequences]

    def observe(self, outcome: Any) -> None:
        raise AssertionError("asked not to be told")


@dataclass(kw_only=True)
class Rank:
    """What one rank is made of."""

    model: FakeModel
    executor: Executor
    digest: StateDigest
    proposer: DraftProposer | None
    comm: Any


def make_rank(shape: Shape, comm: Any, make: MakeProposer | None, **model: Any) -> Rank:
    """One rank."""
    pool = FakePool(num_blocks=shape.num_blocks, block_size=shape.block_size)
    fake = FakeModel(
        vocab_size=shape.vocab_size,
        pool=pool,
        comm=comm,
        sharpness=shape.sharpness,
        levels=shape.levels,
        **model,
    )
    proposer = None if make is None else make(fake, comm)
    digest = StateDigest()
    executor = Executor(
        model=cast(Any, fake),
        kv=cast(Any, pool),
        kernels=cast(Any, None),
        comm=comm,
        digest=digest,
        num_slots=shape.max_num_seqs,
        max_blocks=shape.limits().blocks_for(shape.max_model_len + 16),
        proposer=proposer,
    )
    return Rank(model=fake, executor=executor, digest=digest, proposer=proposer, comm=comm)


@dataclass
class Serve:
    """An engine, and what came out of it."""

    engine: Engine
    ranks: list[Rank]
    channel: QueueChannel
    workers: list[Worker] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, TokenEvent] = field(default_factory=dict)

    def add(self, request_id: int, prompt: Iterable[int], **params: Any) -> None:
        self.engine.add_request(
            Request(
                id=request_id,
                prompt_token_ids=tuple(prompt),
                params=SamplingParams(**params),
            )
        )

    def step(self) -> list[TokenEvent]:
        events = self.engine.step()
        for event in events:
            assert event.request_id not in self.finished, f"event after the last one: {event}"
            self.outputs.setdefault(event.request_id, []).extend(event.token_ids)
            if event.finish_reason is not None:
                self.finished[event.request_id] = event
        return events

    def drain(self, *, limit: int = 2000) -> dict[int, list[int]]:
        for _ in range(limit):
            if not self.engine.has_work:
                return self.outputs
            self.step()
        raise AssertionError(f"work left after {limit} rounds")

    def close(self) -> None:
        """Shut the workers down; re-raise what stopped one."""
        self.engine.shutdown("end of test")
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a worker did not leave its loop"
        for worker in self.workers:
            if worker.error is not None:
                raise worker.error


def serve(
    shape: Shape | None = None,
    *,
    make: MakeProposer | None = None,
    depth: DepthChooser | int = 0,
    world_size: int = 1,
    noise: Callable[[int], Any] | None = None,
    worker_make: MakeProposer | None = None,
    tau: float = 0.0,
) -> Serve:
    """An engine of `world_size` ranks. `noise` perturbs rank 1's own logits; `worker_make`, when
    given, makes the workers' drafter (default: as rank 0)."""
    shape = shape or Shape()
    assert shape.vocab_size % world_size == 0, "the fake head splits evenly"
    group = ThreadGroup(world_size)
    ranks: list[Rank] = []
    for rank in range(world_size):
        comm: Any = LocalCommunicator() if world_size == 1 else ThreadComm(group, rank)
        maker = make if rank == 0 or worker_make is None else worker_make
        ranks.append(make_rank(shape, comm, maker, noise=noise if rank == 1 else None))
    workers = [
        Worker(
            rank=at + 1,
            digest=rank.digest,
            execute=rank.executor.execute,
            head=ranks[0].digest,
            on_error=group.barrier.abort,
        )
        for at, rank in enumerate(ranks[1:])
    ]
    channel = QueueChannel(ranks[0].digest, workers)
    engine = Engine(
        scheduler=Scheduler(shape.limits(), eos_token_ids=shape.eos),
        executor=ranks[0].executor,
        channel=cast(Any, channel),
        digest=ranks[0].digest,
        proposer=ranks[0].proposer,
        depth=FixedDepth(depth) if isinstance(depth, int) else depth,
        draft_conf_tau=tau,
        stats=RunStats(num_drafts_limit=depth if isinstance(depth, int) else 0),
        new_seed=lambda: 99,
    )
    threads = [threading.Thread(target=worker.loop, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    return Serve(engine=engine, ranks=ranks, channel=channel, workers=workers, threads=threads)
