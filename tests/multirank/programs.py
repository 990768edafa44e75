"""What the ranks of these tests do; each is `function(start, *args)` of tests/support/ranks.py."""

from __future__ import annotations

import time
from typing import Any

import torch

from phalanx.ep.commands import Command, Forward, Message, Noop
from phalanx.ep.topology import EPConfig
from phalanx.launch.rank_main import Rank, RankJob, make_sheet, open_rank, run_rank
from tests.support.ranks import RankStart


def quick_config(**changes: Any) -> EPConfig:
    """Deadlines short enough for a test and long enough for a busy machine."""
    values: dict[str, Any] = {
        "startup_deadline_s": 60,
        "command_deadline_s": 20,
        "collective_deadline_s": 20,
        "heartbeat_s": 0.2,
        "silence_deadline_s": 20,
    }
    return EPConfig(**(values | changes))


def joined(start: RankStart, config: EPConfig | None = None, **sheet: Any) -> Rank:
    """A rank that has joined."""
    return open_rank(
        config or quick_config(),
        start.info,
        meeting=start.meeting,
        sheet=make_sheet(**({"flags": {}, "settings": {}} | sheet)),
    )


def forward(step: int, *, rows: int = 1, width: int = 1) -> Forward:
    """A FORWARD whose tokens count up from `step`."""
    return Forward(
        slots=list(range(width)),
        rows=[rows] * width,
        kinds=[1] * width,
        starts=[step] * width,
        new_blocks=[[] for _ in range(width)],
        tokens=[(step + row) % 1000 for row in range(rows * width)],
        wants=[1] * width,
        owners=[-1] * width,
    )


def collectives(start: RankStart) -> dict[str, Any]:
    """Every collective once, on two types."""
    rank = joined(start)
    me, comm = start.info.rank, rank.comm
    summed = comm.all_reduce(torch.full((3, 2), float(me + 1)))
    summed_bf16 = comm.all_reduce(torch.full((4,), 0.5, dtype=torch.bfloat16))
    gathered = comm.all_gather(torch.tensor([[me, 10 + me]]))
    scalar = comm.all_gather(torch.tensor(me))
    strided = comm.all_gather(torch.arange(8).reshape(2, 4).t()[me])
    rooted = comm.gather(torch.tensor([me, me]), root=start.info.world_size - 1)
    sent = comm.broadcast(torch.tensor([me, 5]), root=start.info.world_size - 1)
    comm.barrier()
    counts = dict(comm.counts)
    rank.ready("end")
    rank.close()
    return {
        "sum": summed.tolist(),
        "bf16": summed_bf16.tolist(),
        "all_gather": gathered.tolist(),
        "scalar": scalar.tolist(),
        "strided": strided.tolist(),
        "gather": None if rooted is None else rooted.tolist(),
        "broadcast": sent.tolist(),
        "counts": counts,
    }


def commands(start: RankStart, sizes: list[int], idle_s: float) -> dict[str, Any]:
    """A job whose commands have payloads of many sizes, with an idle pause in the middle.

    The command and collective deadlines are shorter than the pause.
    """
    config = quick_config(command_deadline_s=1, collective_deadline_s=1)
    heard: list[int] = []
    stats: dict[str, dict[str, int]] = {}

    def load(rank: Rank) -> StateFollower:
        stats["mine"] = rank.channel.stats
        return StateFollower(rank)

    def coordinate(rank: Rank, follower: StateFollower) -> int:
        for step, width in enumerate(sizes):
            if step == len(sizes) // 2:
                time.sleep(idle_s)
            message = forward(step, width=width)
            rank.channel.send(message, digest=rank.digest.value, placement=0)
            follower.execute(message)
            heard.append(len(message.tokens))
        rank.channel.send(Noop(), digest=rank.digest.value, placement=0)
        return 0

    def handlers(rank: Rank, follower: StateFollower) -> dict[Command, Any]:
        def execute(message: Message) -> None:
            follower.execute(message)
            if isinstance(message, Forward):
                heard.append(len(message.tokens))

        return {Command.FORWARD: execute}

    code = run_job(start, RankJob(load=load, coordinate=coordinate, handlers=handlers), config)
    return {"code": code, "heard": heard, "stats": stats["mine"]}


def run_job(start: RankStart, job: RankJob[Any], config: EPConfig) -> int:
    """`run_rank` with what a test's start says."""
    return run_rank(
        job,
        config,
        start.info,
        meeting=start.meeting,
        sheet=make_sheet(flags={}, settings={}),
    )


class StateFollower:
    """The smallest executor: one exchange per FORWARD, and the digest of every slot."""

    def __init__(self, rank: Rank, *, skew_at: int = -1) -> None:
        self.rank = rank
        self._skew_at = skew_at
        self._steps = 0

    def execute(self, message: Message) -> None:
        """Exchange the picks as the vocabulary-split head does, then commit."""
        if not isinstance(message, Forward):
            return
        self.rank.liveness.phase("forward")
        picks = self.rank.comm.all_gather(torch.tensor(message.tokens))[0].tolist()
        if self._steps == self._skew_at:
            picks[0] += 1  # as if this rank had taken the other side of a near tie
        self._steps += 1
        self.rank.digest.fold_exchange(picks)
        for index, slot in enumerate(message.slots):
            self.rank.digest.set_slot(
                slot,
                length=message.starts[index] + message.rows[index],
                last_token=picks[index],
                drafter_rows=0,
                num_blocks=1,
            )


def skewed(start: RankStart, bad_rank: int, bad_step: int) -> int:
    """One rank picks differently in one step; the job must end before the next collective."""

    def load(rank: Rank) -> StateFollower:
        skew_at = bad_step if rank.info.rank == bad_rank else -1
        return StateFollower(rank, skew_at=skew_at)

    def coordinate(rank: Rank, follower: StateFollower) -> int:
        for step in range(50):
            message = forward(step)
            rank.channel.send(message, digest=rank.digest.value, placement=0)
            follower.execute(message)
        return 0

    def handlers(rank: Rank, follower: StateFollower) -> dict[Command, Any]:
        return {Command.FORWARD: follower.execute}

    job = RankJob(load=load, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, quick_config())


def held(start: RankStart, place: str, silence_deadline_s: float) -> int:
    """Every rank comes to `place`, says so, and stays there until the test has done its worst."""
    config = quick_config(silence_deadline_s=silence_deadline_s)

    def stay() -> None:
        start.mark(place)
        time.sleep(120)

    def load(rank: Rank) -> StateFollower:
        if place == "load":
            stay()
        return StateFollower(rank)

    def execute(rank: Rank, message: Message) -> None:
        rank.liveness.phase(place)
        if place == "collective":
            start.mark(place)
            if start.info.rank == 0:
                time.sleep(120)  # the others sit inside the collective
            rank.comm.all_reduce(torch.ones(1))
        else:
            stay()

    def coordinate(rank: Rank, follower: StateFollower) -> int:
        if place == "idle":
            rank.channel.send(Noop(), digest=rank.digest.value, placement=0)
            rank.liveness.phase("idle")
            stay()
        message = forward(1)
        rank.channel.send(message, digest=rank.digest.value, placement=0)
        execute(rank, message)
        return 0

    def handlers(rank: Rank, follower: StateFollower) -> dict[Command, Any]:
        return {
            Command.FORWARD: lambda message: execute(rank, message),
            Command.NOOP: lambda message: start.mark(place),
        }

    job = RankJob(load=load, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, config)


def stuck(start: RankStart, kind: str) -> int:
    """One collective that cannot finish: a rank that stays away, or brings another size."""
    config = quick_config(collective_deadline_s=2)

    def execute(rank: Rank) -> None:
        rank.liveness.phase("forward")
        last = start.info.world_size - 1
        if start.info.rank == last and kind == "absent":
            start.mark("absent")
            time.sleep(120)
        size = 8 if start.info.rank == last and kind == "mismatch" else 4
        rank.comm.all_reduce(torch.ones(size))
        rank.comm.all_reduce(torch.ones(4))

    def coordinate(rank: Rank, loaded: None) -> int:
        rank.channel.send(forward(1), digest=rank.digest.value, placement=0)
        execute(rank)
        return 0

    def handlers(rank: Rank, loaded: None) -> dict[Command, Any]:
        return {Command.FORWARD: lambda message: execute(rank)}

    job = RankJob(load=lambda rank: None, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, config)


def slow_load(start: RankStart, seconds: float, deadline_s: float) -> int:
    """Rank 1 loads for longer than any collective may take."""
    config = quick_config(
        startup_deadline_s=deadline_s, collective_deadline_s=1, command_deadline_s=1
    )

    def load(rank: Rank) -> int:
        if start.info.rank == 1:
            start.mark("slow")
            time.sleep(seconds)
        return rank.agree_min("kv_blocks", 100 - start.info.rank)

    def coordinate(rank: Rank, blocks: int) -> int:
        rank.channel.send(forward(1), digest=rank.digest.value, placement=0)
        rank.comm.barrier()
        return blocks

    def handlers(rank: Rank, blocks: int) -> dict[Command, Any]:
        return {Command.FORWARD: lambda message: rank.comm.barrier()}

    job = RankJob(load=load, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, config)


def raising(start: RankStart, where: str, bad_rank: int) -> int:
    """One rank raises an ordinary exception."""

    def load(rank: Rank) -> None:
        if where == "load" and start.info.rank == bad_rank:
            raise ValueError("config.json not found (path=/no/such) -- nothing to load -- mend it")

    def execute(rank: Rank) -> None:
        if where == "execute" and start.info.rank == bad_rank:
            raise ZeroDivisionError("a bug")
        rank.comm.barrier()

    def coordinate(rank: Rank, loaded: None) -> int:
        rank.channel.send(forward(1), digest=rank.digest.value, placement=0)
        execute(rank)
        rank.channel.send(forward(2), digest=rank.digest.value, placement=0)
        execute(rank)
        return 0

    def handlers(rank: Rank, loaded: None) -> dict[Command, Any]:
        return {Command.FORWARD: lambda message: execute(rank)}

    job = RankJob(load=load, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, quick_config())


def interrupted(start: RankStart) -> int:
    """Rank 0 waits for work until it is interrupted; the workers ignore the same signal."""

    def coordinate(rank: Rank, loaded: None) -> int:
        rank.channel.send(Noop(), digest=rank.digest.value, placement=0)
        start.mark("up")
        time.sleep(120)
        return 0

    def handlers(rank: Rank, loaded: None) -> dict[Command, Any]:
        return {Command.NOOP: lambda message: start.mark("up")}

    job = RankJob(load=lambda rank: None, coordinate=coordinate, handlers=handlers)
    return run_job(start, job, quick_config())
