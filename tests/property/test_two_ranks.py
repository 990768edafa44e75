"""Any sequence of commands leaves every rank with the same state, after the same collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.commands import Forward, MtpPropose, MtpProposeBatch, RowKind
from phalanx.ep.faults import RankDesync
from phalanx.proposers.base import DraftProposer
from phalanx.proposers.scripted import ScriptedProposer
from tests.support.fake_model import FakeModel
from tests.support.fake_serve import ScriptedDepth, Serve, Shape, mtp, serve
from tests.support.thread_ranks import differences

SHAPE = Shape(
    vocab_size=30, num_blocks=20, max_num_seqs=3, max_num_batched_tokens=12, levels=6, eos=(3,)
)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(1, 30),
            st.integers(1, 20),
            st.sampled_from([0.0, 0.0, 1.0]),
        ),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("heartbeat")),
    ),
    max_size=14,
)


def same_everywhere(engine: Serve) -> None:
    """Compare what every rank holds; waits for the workers first."""
    for worker in engine.workers:
        worker.settle()
    first, *others = engine.ranks
    for other in others:
        assert not differences(first.digest, other.digest)
        assert first.digest.value == other.digest.value
        mine, theirs = first.executor.slots, other.executor.slots
        assert set(mine) == set(theirs)
        for slot in mine:
            assert mine[slot].tokens == theirs[slot].tokens
            assert mine[slot].num_blocks == theirs[slot].num_blocks
            assert mine[slot].due_rows == theirs[slot].due_rows
        assert first.comm.calls == other.comm.calls


def act(engine: Serve, actions: list[Any]) -> None:
    next_id = 0
    for action in actions:
        if action[0] == "add":
            _, length, max_tokens, temperature = action
            prompt = [(next_id * 7 + i * i) % 30 for i in range(length)]
            engine.add(next_id, prompt, max_tokens=max_tokens, temperature=temperature, seed=1)
            next_id += 1
        elif action[0] == "abort":
            engine.engine.abort(action[1])
        elif action[0] == "heartbeat":
            engine.engine.heartbeat()
        else:
            for _ in range(action[1]):
                engine.step()
        same_everywhere(engine)


@given(
    actions=ACTIONS,
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    noise=st.sampled_from([0.0, 1e-3]),
    world_size=st.sampled_from([2, 2, 3]),
)
@settings(max_examples=12, deadline=None)
def test_ranks_stay_equal(
    actions: list[Any], counts: list[int], noise: float, world_size: int
) -> None:
    engine = serve(
        SHAPE,
        make=mtp(lambda state: state % 3 == 0),
        depth=ScriptedDepth(lambda call, seq: counts[(call + seq) % len(counts)]),
        world_size=world_size,
        noise=lambda call: torch.tensor(noise * (call % 2)),
    )
    try:
        act(engine, actions)
        engine.drain()
        same_everywhere(engine)
    finally:
        engine.close()
    assert not list(engine.ranks[0].executor.slots)
    assert all(worker.inbox.empty() for worker in engine.workers)
    verifies = verdicts = 0
    for message in engine.channel.sent:
        verdicts += len(getattr(message, "verdicts", []))
        if isinstance(message, Forward):
            verifies += message.kinds.count(RowKind.VERIFY)
    assert verifies == verdicts, "each verify gets exactly one verdict"


def test_a_near_tie_decided_otherwise_on_one_rank_changes_nothing() -> None:
    """Ties abound (6 levels of logits) and rank 1 always finds its own a little larger."""

    def run(depth: int, world_size: int) -> Serve:
        engine = serve(
            Shape(levels=6),
            make=mtp(lambda state: state % 5 == 0),
            depth=depth,
            world_size=world_size,
            noise=lambda call: torch.tensor(1e-3),
        )
        for request_id in range(4):
            engine.add(request_id, range(request_id, 9), max_tokens=14)
        engine.drain()
        same_everywhere(engine)
        engine.close()
        return engine

    plain, drafted = run(0, 2), run(3, 2)
    assert plain.outputs == drafted.outputs
    # The injection is real: without a rank that leans over, other tokens win the ties.
    assert run(0, 1).outputs != plain.outputs


def test_proposals_carry_all_that_shapes_them() -> None:
    """One sequence travels in the single form, several in the batch form; counts may differ."""
    engine = serve(make=mtp(), depth=ScriptedDepth(lambda call, seq: seq), world_size=2)
    for request_id in range(3):
        engine.add(request_id, (1, 2, 3), max_tokens=9 + 15 * request_id)
    engine.drain()
    engine.close()
    batches = [m for m in engine.channel.sent if isinstance(m, MtpProposeBatch)]
    singles = [m for m in engine.channel.sent if isinstance(m, MtpPropose)]
    assert batches and singles
    assert batches[0].num_drafts == [0, 1, 2]
    assert {single.num_drafts for single in singles} >= {2}
    for batch in batches:
        assert len(batch.slots) > 1


def test_a_drafter_that_differs_on_one_rank_is_named_before_the_next_collective() -> None:
    """Drafts of a lockstep drafter are folded into the digest: junk on rank 1 cannot go on."""

    class Lockstep(ScriptedProposer):
        def needs_comm(self) -> bool:
            return True

    def good(model: FakeModel, comm: Any) -> DraftProposer:
        return Lockstep(lambda history, count: [1] * count)

    def bad(model: FakeModel, comm: Any) -> DraftProposer:
        return Lockstep(lambda history, count: [2] * count)

    engine = serve(make=good, worker_make=bad, depth=2, world_size=2)
    engine.add(1, (1, 2), max_tokens=20)
    engine.step()
    with pytest.raises(RankDesync, match="last exchange"):
        engine.engine.heartbeat()
        engine.workers[0].settle()


def test_a_worker_that_missed_a_rewind_is_named() -> None:
    engine = serve(make=mtp(lambda state: True), depth=3, world_size=2)
    engine.add(1, (1, 2), max_tokens=20)
    engine.step()
    for worker in engine.workers:
        worker.settle()
    engine.ranks[1].executor.slots[0].tokens.append(5)
    engine.ranks[1].executor.slots.touch(0)
    engine.ranks[1].executor.slots.report()
    with pytest.raises(RankDesync, match="slot 0 length: rank 0 has 2, this rank has 3"):
        engine.engine.heartbeat()
        engine.workers[0].settle()
