"""The scheduler on its own: budgets, order, blocks, preemption, verdicts. No tensors anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.commands import Admit, Release, RowKind, Want
from phalanx.runtime.errors import EngineError, OverloadError, RequestError, SamplingError
from phalanx.runtime.request import Request, SamplingParams
from phalanx.runtime.round_plan import DraftMode, RoundPlan, TokenEvent, propose_command
from phalanx.runtime.sampling.rejection import Acceptance, accept_picks
from phalanx.runtime.scheduler import Scheduler
from phalanx.runtime.sequence import Phase
from tests.support.fake_serve import Shape

LOCKSTEP = DraftMode(by_command=True, feeds_hidden=True)


def scheduler(eos: Iterable[int] = (), **shape: Any) -> Scheduler:
    return Scheduler(Shape(**shape).limits(), eos_token_ids=eos)


def add(target: Scheduler, request_id: int, prompt: Iterable[int], **params: Any) -> None:
    target.add(
        Request(id=request_id, prompt_token_ids=tuple(prompt), params=SamplingParams(**params)),
        seed=0,
    )


def commit(target: Scheduler, plan: RoundPlan, token: int = 1) -> list[TokenEvent]:
    """Every wanted row picks `token`."""
    return target.commit(
        plan,
        [
            None if item.want == Want.NONE else accept_picks(item.drafts, [token] * item.num_rows)
            for item in plan.items
        ],
    )


def rows(plan: RoundPlan) -> list[tuple[int, str, int, int]]:
    return [(item.sequence.id, item.kind.name, item.start, item.num_rows) for item in plan.items]


def test_a_long_prompt_is_taken_in_chunks_beside_decoding_rows() -> None:
    target = scheduler(max_num_batched_tokens=8)
    add(target, 1, range(3))
    add(target, 2, range(17))
    plan = target.plan()
    assert rows(plan) == [(1, "PREFILL", 0, 3), (2, "PREFILL", 0, 5)]
    assert [type(message) for message in plan.before] == [Admit, Admit]
    assert plan.forward is not None and plan.forward.wants == [Want.ARGMAX, Want.NONE]
    commit(target, plan)
    for start, count in ((5, 7), (12, 5)):
        plan = target.plan()
        assert rows(plan)[0][1] == "DECODE" and rows(plan)[1] == (2, "PREFILL", start, count)
        commit(target, plan)
    assert [row[1] for row in rows(target.plan())] == ["DECODE", "DECODE"]


def test_drafts_leave_prompts_half_of_the_budget() -> None:
    target = scheduler(max_num_batched_tokens=12, max_num_seqs=3)
    add(target, 1, (1,), max_tokens=40)
    add(target, 2, (1,), max_tokens=40)
    plan = target.plan()
    commit(target, plan)
    add(target, 3, range(30))
    proposed = target.plan_propose(plan, [7, 2], mode=LOCKSTEP)
    assert [item.num_drafts for item in proposed] == [7, 2]
    for item in proposed:
        target.install_drafts(item.slot, [5] * item.num_drafts)
    plan = target.plan()
    # 12 rows: 2 plain, 10 left; drafts may take 5, cut deepest first (3 + 2), the rest is prompt.
    assert rows(plan) == [(1, "VERIFY", 1, 4), (2, "VERIFY", 1, 3), (3, "PREFILL", 0, 5)]


def test_everybody_waits_in_order_of_arrival() -> None:
    """The head of the line is not overtaken by a shorter request that would fit."""
    target = scheduler(num_blocks=16, max_num_seqs=4, max_num_batched_tokens=64)
    add(target, 1, range(31), max_tokens=30)
    add(target, 2, range(31), max_tokens=30)
    add(target, 3, (1,))
    plan = target.plan()
    assert [item.sequence.id for item in plan.items] == [1]
    assert [sequence.id for sequence in target.waiting] == [2, 3]


def test_the_youngest_is_preempted_and_keeps_its_tokens() -> None:
    target = scheduler(num_blocks=4, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=16)
    add(target, 1, range(3), max_tokens=13)
    add(target, 2, range(2), max_tokens=14)
    preempted = None
    for number in range(20):
        plan = target.plan()
        commit(target, plan, token=number)
        if target.num_preemptions:
            preempted = plan
            break
    assert preempted is not None
    assert [item.sequence.id for item in preempted.items] == [1]
    (release,) = preempted.before
    assert isinstance(release, Release)
    (waiting,) = target.waiting
    assert (waiting.id, waiting.phase, waiting.num_committed) == (2, Phase.WAITING, 0)
    kept = list(waiting.tokens)
    assert len(kept) > 2
    again = None
    while again is None:
        plan = target.plan()
        again = next((item for item in plan.items if item.sequence is waiting), None)
        commit(target, plan)
    assert plan.forward is not None
    assert plan.forward.tokens[again.first_row : again.first_row + again.num_rows] == kept
    admit = next(message for message in plan.before if isinstance(message, Admit))
    assert admit.prompt_tokens + admit.max_tokens == 16


def test_each_verify_has_one_verdict_and_it_rides_in_the_next_command() -> None:
    target = scheduler(eos=(30,))
    add(target, 1, (1, 2), max_tokens=9)
    plan = target.plan()
    commit(target, plan)
    (item,) = target.plan_propose(plan, [3], mode=LOCKSTEP)
    assert (item.position, item.last_token, item.hidden_row, item.feed_rows) == (2, 1, 1, 2)
    target.install_drafts(item.slot, [30, 5, 5])
    plan = target.plan()
    assert plan.forward is not None and plan.forward.tokens == [1, 30, 5, 5]
    # The end-of-text token is accepted, and so are drafts behind it: the text ends, the verdict
    # says what the rows were.
    (event,) = target.commit(plan, [Acceptance(num_accepted=2, token_ids=(30, 5, 7))])
    assert (event.token_ids, event.finish_reason) == ((30,), "stop")
    assert target.has_work
    after = target.plan()
    (release,) = after.before
    assert isinstance(release, Release) and after.forward is None
    (verdict,) = release.verdicts
    assert (verdict.slot, verdict.num_rows, verdict.num_accepted) == (item.slot, 4, 2)
    assert not target.has_work


def test_a_sequence_that_ends_by_error_still_gets_its_verdict() -> None:
    target = scheduler()
    add(target, 1, (1, 2), max_tokens=9)
    plan = target.plan()
    commit(target, plan)
    (item,) = target.plan_propose(plan, [3], mode=LOCKSTEP)
    target.install_drafts(item.slot, [5, 5])
    (event,) = target.commit(target.plan(), [SamplingError("broken row")])
    assert (event.finish_reason, event.error) == ("error", "broken row")
    (verdict,) = target.pending_verdicts
    assert (verdict.num_rows, verdict.num_accepted) == (3, 0)


def test_drafts_are_cut_to_what_can_still_be_emitted() -> None:
    target = scheduler(max_model_len=10)
    add(target, 1, (1, 2), max_tokens=3)
    add(target, 2, (1, 2, 3, 4, 5), max_tokens=30)
    add(target, 3, (1, 2), max_tokens=2)
    plan = target.plan()
    commit(target, plan)
    proposed = target.plan_propose(plan, [7, 7, 7], mode=LOCKSTEP)
    # 1: two more tokens, so one draft. 2: four more to the context's end. 3: one more, none.
    assert [(item.slot, item.num_drafts) for item in proposed] == [(0, 1), (1, 3)]


def test_drafts_take_no_block_from_nobody() -> None:
    target = scheduler(num_blocks=4, max_model_len=16, max_num_seqs=2)
    add(target, 1, range(6), max_tokens=10)
    add(target, 2, range(3), max_tokens=10)
    plan = target.plan()
    assert [item.sequence.id for item in plan.items] == [1, 2]
    commit(target, plan)
    proposed = target.plan_propose(plan, [7, 7], mode=LOCKSTEP)
    assert [item.num_drafts for item in proposed] == [5, 0]
    assert target.allocator.num_free == 0
    assert [item.new_blocks for item in proposed] != [[], []]
    assert target.num_preemptions == 0


def test_a_drafter_without_hidden_is_asked_only_for_drafts() -> None:
    target = scheduler(max_num_batched_tokens=4)
    add(target, 1, range(9))
    mode = DraftMode(by_command=False, feeds_hidden=False)
    plan = target.plan()
    commit(target, plan)
    assert target.plan_propose(plan, [3], mode=mode) == []
    assert len(target.plan_propose(plan, [3], mode=LOCKSTEP)) == 1


def test_blocks_lent_to_rank_0s_own_drafter_travel_with_the_forward() -> None:
    target = scheduler()
    add(target, 1, range(4), max_tokens=20)
    mode = DraftMode(by_command=False, feeds_hidden=True)
    plan = target.plan()
    commit(target, plan)
    (item,) = target.plan_propose(plan, [6], mode=mode)
    assert len(item.new_blocks) == 1
    target.install_drafts(item.slot, [1] * 6)
    plan = target.plan()
    assert plan.forward is not None and plan.forward.new_blocks == [item.new_blocks]


def test_abort_in_every_phase() -> None:
    target = scheduler(max_num_seqs=2, max_num_batched_tokens=8)
    for request_id in (1, 2, 3):
        add(target, request_id, range(6), max_tokens=9)
    assert not target.abort(77)
    commit(target, target.plan())
    phases = {s.id: s.phase for s in [*target.running, *target.waiting]}
    assert phases == {1: Phase.DECODE, 2: Phase.PREFILL, 3: Phase.WAITING}
    assert all(target.abort(request_id) for request_id in (1, 2, 3))
    assert not target.abort(1)
    events = target.take_events()
    assert [(e.request_id, e.finish_reason) for e in events] == [(i, "abort") for i in (1, 2, 3)]
    plan = target.plan()
    assert plan.before == [Release(slots=[0, 1])] and plan.forward is None
    assert target.allocator.num_free == 64 and not target.has_work


def test_refusals_touch_nobody_else() -> None:
    target = scheduler(max_waiting=2)
    add(target, 1, (1,))
    add(target, 2, (1,))
    with pytest.raises(OverloadError, match="waiting=2, limit 2"):
        add(target, 3, (1,))
    with pytest.raises(RequestError, match="prompt too long"):
        add(target, 4, [1] * 64)
    with pytest.raises(EngineError, match="used twice"):
        add(target, 1, (1,))
    assert [sequence.id for sequence in target.waiting] == [1, 2]


def test_sizes_that_could_deadlock_are_refused() -> None:
    with pytest.raises(EngineError, match="max_num_batched_tokens=3, limit 4"):
        scheduler(max_num_batched_tokens=3)
    with pytest.raises(EngineError, match="max_model_len=64"):
        scheduler(num_blocks=15)


def test_the_scheduler_needs_no_tensor_library() -> None:
    code = "import sys, phalanx.runtime.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(
    prompts=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=8),
    num_blocks=st.integers(8, 14),
    budget=st.integers(3, 20),
    depths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    accepts=st.lists(st.integers(0, 5), min_size=1, max_size=7),
)
@settings(max_examples=60, deadline=None)
def test_every_round_keeps_the_books(
    prompts: list[tuple[int, int]],
    num_blocks: int,
    budget: int,
    depths: list[int],
    accepts: list[int],
) -> None:
    """Blocks are never shared or exceeded, rows keep the budget and continue each sequence, every
    round makes progress, and every request ends with exactly what it asked for."""
    target = scheduler(
        num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=3, max_model_len=32
    )
    for request_id, (length, max_tokens) in enumerate(prompts):
        add(target, request_id, [1] * length, max_tokens=max_tokens)
    got: dict[int, int] = dict.fromkeys(range(len(prompts)), 0)
    ended: set[int] = set()
    for number in range(500):
        if not target.has_work:
            break
        plan = target.plan()
        held = [block for sequence in target.running for block in sequence.blocks]
        assert len(set(held)) == len(held) == num_blocks - target.allocator.num_free
        assert sum(item.num_rows for item in plan.items) <= budget
        assert plan.items or plan.before
        for item in plan.items:
            assert item.start == item.sequence.num_committed
            end = item.start + item.num_rows
            assert end <= 4 * item.sequence.num_sent_blocks
        outcomes = []
        for item in plan.items:
            accepted = min(accepts[(number + item.sequence.id) % len(accepts)], len(item.drafts))
            outcome = Acceptance(num_accepted=accepted, token_ids=(1,) * (accepted + 1))
            outcomes.append(None if item.want == Want.NONE else outcome)
        for event in target.commit(plan, outcomes):
            got[event.request_id] += len(event.token_ids)
            if event.finish_reason:
                assert event.finish_reason == "length"
                ended.add(event.request_id)
        going_on = target.draftable(plan)
        wanted = [depths[(number + sequence.id) % len(depths)] for sequence in going_on]
        proposed = target.plan_propose(plan, wanted, mode=LOCKSTEP)
        for entry in proposed:
            target.install_drafts(entry.slot, [1] * entry.num_drafts)
        if proposed:
            propose_command(proposed, target.take_verdicts())
    assert not target.has_work
    assert ended == set(got)
    for request_id, (length, max_tokens) in enumerate(prompts):
        assert got[request_id] == min(max_tokens, 32 - length)
    assert target.allocator.num_free == num_blocks


def test_row_kinds_follow_the_drafts() -> None:
    target = scheduler()
    add(target, 1, (1, 2), temperature=1.0)
    plan = target.plan()
    assert [item.want for item in plan.items] == [Want.LOGITS]
    commit(target, plan)
    assert target.plan().items[0].kind is RowKind.DECODE
