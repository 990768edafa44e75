"""Speculation never changes greedy text: any drafter, any draft counts, any batch, any chunking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.proposers.mtp import MtpProposer
from phalanx.proposers.scripted import junk_drafter, replay_drafter
from tests.support.fake_model import FakeDraftHead, FakeModel
from tests.support.fake_serve import ScriptedDepth, Serve, Shape, mtp, serve

PROMPTS: tuple[tuple[int, ...], ...] = (
    (1, 2, 3, 4, 5, 6, 7),
    (9,),
    tuple(range(30)),
    (3, 3),
    (4,) * 18,
    (31, 0, 31, 0, 8),
)
LENGTHS = (20, 11, 25, 5, 30, 1)


def one_in(count: int) -> Callable[[int], bool]:
    """A flaw of the draft head at every count-th state."""
    return lambda state: state % count == 0


def ask(engine: Serve) -> dict[int, list[int]]:
    for request_id, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        engine.add(request_id, prompt, max_tokens=length)
    outputs = engine.drain()
    engine.close()
    return outputs


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    """Each request alone, one token at a time, the prompt in one chunk."""
    outputs: dict[int, list[int]] = {}
    for request_id, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        engine = serve(Shape(max_num_seqs=1, max_num_batched_tokens=64))
        engine.add(request_id, prompt, max_tokens=length)
        outputs |= engine.drain()
    assert [len(outputs[index]) for index in range(len(LENGTHS))] == list(LENGTHS)
    return outputs


def test_batches_and_chunks_do_not_change_the_text(plain: dict[int, list[int]]) -> None:
    for budget in (4, 5, 16, 100):
        assert ask(serve(Shape(max_num_batched_tokens=budget))) == plain


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("world_size", [1, 2])
def test_mtp_equals_plain_decoding(
    plain: dict[int, list[int]], num_drafts: int, world_size: int
) -> None:
    shape = Shape(max_num_batched_tokens=40)
    engine = serve(shape, make=mtp(one_in(3)), depth=num_drafts, world_size=world_size)
    assert ask(engine) == plain
    spec = engine.engine.stats.as_dict()["spec"]
    assert 0 < spec["num_accepted_tokens"] < spec["num_draft_tokens"]


def test_a_perfect_drafter_is_always_accepted(plain: dict[int, list[int]]) -> None:
    """Every draft accepted means that every pair the drafter read was right, chunks included."""
    engine = serve(Shape(max_num_batched_tokens=9), make=mtp(), depth=3)
    assert ask(engine) == plain
    spec = engine.engine.stats.as_dict()["spec"]
    assert spec["num_accepted_tokens"] == spec["num_draft_tokens"] > 0


@pytest.mark.parametrize("world_size", [1, 2])
def test_rank_0_only_drafter_is_as_good_and_sends_no_propose(
    plain: dict[int, list[int]], world_size: int
) -> None:
    """Rank 0 holds the whole drafter and meets nobody; the workers have none, only verdicts."""

    def whole(model: FakeModel, comm: Any) -> MtpProposer:
        head = FakeDraftHead(model, comm=LocalCommunicator(), flaw=one_in(5))
        return MtpProposer(head, lockstep=False)

    alone = serve(make=whole, worker_make=lambda model, comm: None, depth=3, world_size=world_size)
    assert ask(alone) == plain
    together = serve(make=mtp(one_in(5)), depth=3, world_size=world_size)
    assert ask(together) == plain
    without, with_command = alone.engine.stats.as_dict(), together.engine.stats.as_dict()
    assert without["spec"] == with_command["spec"]
    assert not {"MTP_PROPOSE", "MTP_PROPOSE_BATCH"} & set(without["commands"])
    assert {"MTP_PROPOSE", "MTP_PROPOSE_BATCH"} <= set(with_command["commands"])


def test_junk_changes_nothing_and_is_rejected(plain: dict[int, list[int]]) -> None:
    engine = serve(make=lambda model, comm: junk_drafter(vocab_size=32, seed=5), depth=4)
    assert ask(engine) == plain
    assert engine.engine.stats.as_dict()["spec"]["acceptance_length"] < 1.3


def test_drafts_outside_the_vocabulary_never_reach_the_model(plain: dict[int, list[int]]) -> None:
    engine = serve(make=lambda model, comm: junk_drafter(vocab_size=10**6), depth=4)
    assert ask(engine) == plain


def test_the_target_as_its_own_drafter_is_accepted_whole(plain: dict[int, list[int]]) -> None:
    transcripts = [[*prompt, *plain[index]] for index, prompt in enumerate(PROMPTS)]
    engine = serve(make=lambda model, comm: replay_drafter(transcripts), depth=5)
    assert ask(engine) == plain
    spec = engine.engine.stats.as_dict()["spec"]
    assert spec["num_accepted_tokens"] == spec["num_draft_tokens"] > 0
    flawed = serve(make=lambda model, comm: replay_drafter(transcripts, flaw_every=4), depth=5)
    assert ask(flawed) == plain
    flawed_spec = flawed.engine.stats.as_dict()["spec"]
    assert 0 < flawed_spec["num_accepted_tokens"] < flawed_spec["num_draft_tokens"]


MAKERS: dict[str, Any] = {
    "mtp": mtp(one_in(3)),
    "mtp batches of two": mtp(one_in(3), batch_max=2),
    "mtp alone": mtp(one_in(3), lockstep=False),
    "junk": lambda model, comm: junk_drafter(vocab_size=32),
}


@given(
    maker=st.sampled_from(sorted(MAKERS)),
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    budget=st.integers(4, 24),
    num_blocks=st.integers(16, 40),
)
@settings(max_examples=12, deadline=None)
def test_draft_counts_may_change_every_round_and_by_sequence(
    plain: dict[int, list[int]], maker: str, counts: Sequence[int], budget: int, num_blocks: int
) -> None:
    """Also with so few blocks that sequences are preempted in the middle of it."""
    depth = ScriptedDepth(lambda call, seq: counts[(3 * call + seq) % len(counts)])
    shape = Shape(max_num_batched_tokens=budget, num_blocks=num_blocks)
    assert ask(serve(shape, make=MAKERS[maker], depth=depth)) == plain


def test_preemption_loses_no_token(plain: dict[int, list[int]]) -> None:
    engine = serve(Shape(num_blocks=16, max_num_batched_tokens=24), make=mtp(one_in(4)), depth=3)
    assert ask(engine) == plain
    assert engine.engine.scheduler.num_preemptions > 0


def test_a_stop_token_inside_an_accepted_run_ends_the_text_there(
    plain: dict[int, list[int]],
) -> None:
    stop = plain[2][13]
    first = plain[2].index(stop)
    for depth in (0, 3, 7):
        engine = serve(make=mtp(), depth=depth)
        engine.add(2, PROMPTS[2], max_tokens=25, stop_token_ids=(stop,))
        assert engine.drain()[2] == plain[2][: first + 1]
        assert engine.finished[2].finish_reason == "stop"


def test_a_confidence_floor_only_drops_drafts(plain: dict[int, list[int]]) -> None:
    free = serve(make=mtp(one_in(3), measure_confidence=True), depth=3)
    assert ask(free) == plain
    floored = serve(make=mtp(one_in(3), measure_confidence=True), depth=3, tau=0.08)
    assert ask(floored) == plain
    all_of_them = free.engine.stats.as_dict()["spec"]["num_draft_tokens"]
    assert floored.engine.stats.as_dict()["spec"]["num_draft_tokens"] < all_of_them
