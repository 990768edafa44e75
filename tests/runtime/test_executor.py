"""The executor obeys commands, refuses what does not fit its state, and reports every change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.commands import (
    Admit,
    Checkpoint,
    Command,
    Forward,
    MtpPropose,
    MtpProposeBatch,
    Noop,
    Placement,
    Release,
    RowKind,
    Shutdown,
    Verdict,
    Want,
)
from phalanx.runtime.errors import EngineError
from phalanx.runtime.executor import ForwardResult, ProposeResult
from tests.support.fake_model import mix
from tests.support.fake_serve import Rank, Shape, make_rank, mtp


def rank(make: Any = None, **shape: Any) -> Rank:
    return make_rank(Shape(**shape), LocalCommunicator(), make)


def forward(slot: int, tokens: list[int], start: int, **changes: Any) -> Forward:
    fields: dict[str, Any] = dict(
        slots=[slot], rows=[len(tokens)], kinds=[RowKind.PREFILL], starts=[start],
        new_blocks=[[]], tokens=tokens, wants=[Want.ARGMAX], owners=[-1],
    )  # fmt: skip
    return Forward(**(fields | changes))


def admitted(make: Any = None, **shape: Any) -> Rank:
    """A rank with request 1 in slot 0, prompt (1, 2, 3) computed, blocks 5 and 2."""
    one = rank(make, **shape)
    one.executor.execute(Admit(slot=0, request_id=1, prompt_tokens=3, max_tokens=9))
    one.executor.execute(forward(0, [1, 2, 3], 0, new_blocks=[[5, 2]]))
    return one


def target_pick(one: Rank, tokens: list[int]) -> int:
    state = 7
    for token in tokens:
        state = mix(state, token)
    return int(one.model.clean_logits(state).argmax())


def verify(one: Rank, tokens: list[int]) -> ForwardResult:
    result = one.executor.execute(forward(0, tokens, 3, kinds=[RowKind.VERIFY]))
    assert isinstance(result, ForwardResult)
    return result


def test_verify_rows_each_give_the_pick_after_their_prefix() -> None:
    one = admitted()
    result = verify(one, [9, 8, 7])
    expected = [target_pick(one, [1, 2, 3, *([9, 8, 7][: n + 1])]) for n in range(3)]
    assert result.picks == [expected] and result.logits == [None]
    assert one.executor.slots[0].tokens == [1, 2, 3, 9, 8, 7]


def test_a_verdict_rewinds_and_the_rows_are_overwritten() -> None:
    """Afterwards the sequence is what it would be had the rejected rows never been."""
    one = admitted()
    verify(one, [9, 8, 7])
    for start, token, verdicts in ((5, 4, [Verdict(0, 3, 1)]), (6, 6, [])):
        result = one.executor.execute(
            forward(0, [token], start, kinds=[RowKind.DECODE], verdicts=verdicts)
        )
    assert isinstance(result, ForwardResult)
    assert result.picks == [[target_pick(one, [1, 2, 3, 9, 8, 4, 6])]]
    assert one.executor.slots[0].tokens == [1, 2, 3, 9, 8, 4, 6]
    assert one.digest.fields()["slot 0 length"] == 7


def test_only_wanted_rows_are_read_and_each_head_runs_once() -> None:
    one = rank()
    for slot in range(4):
        one.executor.execute(Admit(slot=slot, request_id=slot, prompt_tokens=3, max_tokens=9))
    result = one.executor.execute(
        Forward(
            slots=[0, 1, 2, 3],
            rows=[2, 3, 1, 2],
            kinds=[RowKind.PREFILL, RowKind.PREFILL, RowKind.DECODE, RowKind.VERIFY],
            starts=[0, 0, 0, 0],
            new_blocks=[[0], [1], [2], [3]],
            tokens=[1, 2, 3, 4, 5, 6, 7, 8],
            wants=[Want.NONE, Want.LOGITS, Want.ARGMAX, Want.LOGITS],
            owners=[-1] * 4,
        )
    )
    assert isinstance(result, ForwardResult)
    assert result.picks == [[], [], [target_pick(one, [6])], []]
    assert [None if rows is None else len(rows) for rows in result.logits] == [None, 1, None, 2]
    assert one.comm.counts == {"all_reduce": 1, "all_gather": 1, "gather": 1}
    last = result.logits[3]
    assert last is not None and int(np.argmax(last[1])) == target_pick(one, [7, 8])


def test_a_chunk_that_nobody_reads_runs_no_head() -> None:
    one = rank()
    one.executor.execute(Admit(slot=0, request_id=1, prompt_tokens=3, max_tokens=9))
    one.executor.execute(forward(0, [1, 2], 0, new_blocks=[[0]], wants=[Want.NONE]))
    assert one.comm.counts == {"all_reduce": 1}


def test_single_and_batch_form_propose_the_same() -> None:
    drafts = []
    for batch in (False, True):
        one = admitted(mtp())
        pick = target_pick(one, [1, 2, 3])
        message: Any = MtpPropose(
            slot=0, last_token=pick, position=3, num_drafts=3, hidden_row=2, feed_rows=3
        )
        if batch:
            message = MtpProposeBatch(
                slots=[0], last_tokens=[pick], positions=[3], hidden_rows=[2], feed_rows=[3],
                num_drafts=[3], new_blocks=[[]],
            )  # fmt: skip
        result = one.executor.execute(message)
        assert isinstance(result, ProposeResult)
        drafts.append(result.drafts[0].token_ids)
        text = [1, 2, 3, pick]
        for draft in drafts[-1]:
            assert draft == target_pick(one, text)
            text.append(draft)
        assert one.digest.fields()["slot 0 drafter_rows"] == 5
    assert drafts[0] == drafts[1]


BAD_FORWARDS: list[tuple[Forward, str]] = [
    (forward(1, [1], 0), "slot=1, empty"),
    (forward(0, [1], 2), "start=2, committed 3"),
    (forward(0, [1] * 6, 3), "rows end at 9, blocks=2 of 4"),
    (forward(0, [1], 3, key=[1]), "form this build has not"),
    (forward(0, [1], 3, owners=[1]), "form this build has not"),
]


@pytest.mark.parametrize(("message", "says"), BAD_FORWARDS)
def test_rows_that_do_not_fit_are_refused(message: Forward, says: str) -> None:
    one = admitted()
    before = one.digest.value
    with pytest.raises(EngineError, match=says):
        one.executor.execute(message)
    assert one.digest.value == before


def test_a_slot_whose_verdict_is_due_cannot_be_used() -> None:
    for message in (
        forward(0, [4], 6, kinds=[RowKind.DECODE]),
        Release(slots=[0]),
        MtpPropose(slot=0, last_token=1, position=6, num_drafts=1, hidden_row=0, feed_rows=1),
    ):
        one = admitted(mtp())
        verify(one, [9, 8, 7])
        with pytest.raises(EngineError, match="3 rows await a verdict"):
            one.executor.execute(message)


@pytest.mark.parametrize("verdict", [Verdict(1, 3, 0), Verdict(0, 2, 0), Verdict(0, 4, 3)])
def test_a_verdict_about_no_such_verify_is_refused(verdict: Verdict) -> None:
    one = admitted()
    verify(one, [9, 8, 7])
    with pytest.raises(EngineError, match="no such verify"):
        one.executor.execute(Release(slots=[0], verdicts=[verdict]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position": 4}, "position=4"),
        ({"hidden_row": 1}, "hidden_row=1"),
        ({"feed_rows": 4, "hidden_row": 3}, "feed_rows=4"),
        ({"num_drafts": 9}, "rows without blocks"),
        ({"slot": 2}, "slot=2, empty"),
    ],
)
def test_a_propose_must_follow_the_forward(changes: dict[str, int], says: str) -> None:
    one = admitted(mtp())
    fields = dict(slot=0, last_token=1, position=3, num_drafts=2, hidden_row=2, feed_rows=3)
    with pytest.raises(EngineError, match=says):
        one.executor.execute(MtpPropose(**(fields | changes)))


def test_rows_of_the_forward_before_the_last_cannot_be_fed() -> None:
    one = admitted(mtp())
    one.executor.execute(Admit(slot=1, request_id=2, prompt_tokens=3, max_tokens=9))
    one.executor.execute(forward(1, [4, 4, 4], 0, new_blocks=[[7]]))
    with pytest.raises(EngineError, match="does not follow the last forward"):
        one.executor.execute(
            MtpPropose(slot=0, last_token=1, position=3, num_drafts=1, hidden_row=2, feed_rows=3)
        )


def test_a_propose_without_a_drafter_is_refused_before_a_collective() -> None:
    message = MtpPropose(slot=0, last_token=1, position=3, num_drafts=1, hidden_row=2, feed_rows=3)
    for make in (None, mtp(lockstep=False)):
        with pytest.raises(EngineError, match="without its share of the drafter"):
            admitted(make).executor.execute(message)
    with pytest.raises(EngineError, match="runs on every rank"):
        admitted(mtp()).executor.draft_alone(message)


def test_drafting_alone_leaves_the_digest_alone() -> None:
    one = admitted(mtp(lockstep=False))
    before = one.digest.value
    result = one.executor.draft_alone(
        MtpPropose(
            slot=0, last_token=1, position=3, num_drafts=7, hidden_row=2, feed_rows=3,
            new_blocks=[9],
        )
    )  # fmt: skip
    assert len(result.drafts[0].token_ids) == 7
    assert one.digest.value == before
    assert one.executor.slots[0].num_blocks == 2


def test_slots_are_taken_once_and_released_clean() -> None:
    one = admitted(mtp())
    with pytest.raises(EngineError, match=r"slot is taken .*request 1"):
        one.executor.execute(Admit(slot=0, request_id=2, prompt_tokens=3, max_tokens=9))
    one.executor.execute(Release(slots=[0]))
    assert not list(one.executor.slots)
    assert not [field for field in one.digest.fields() if field.startswith("slot")]
    with pytest.raises(EngineError, match="empty"):
        one.executor.execute(Release(slots=[0]))


def test_commands_without_work_and_commands_nobody_knows() -> None:
    one = rank()
    assert one.executor.execute(Noop()) is None
    assert one.executor.execute(Checkpoint(slot=0, tokens=1)) is None
    for message in (Placement(version=1, ranks_of_experts=[[0]]), Shutdown()):
        with pytest.raises(EngineError, match="no rank executes this command"):
            one.executor.execute(message)


def test_every_code_has_a_handler_but_shutdown() -> None:
    one = rank()
    handlers = one.executor.handlers()
    assert set(handlers) == set(Command) - {Command.SHUTDOWN}
    handlers[Command.ADMIT](Admit(slot=0, request_id=1, prompt_tokens=1, max_tokens=1))
    assert list(one.executor.slots) == [0]


def test_nothing_is_recorded_for_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    one = admitted()
    weight = torch.ones(1, requires_grad=True)
    original, seen = one.model.forward, []

    def watched(context: Any) -> torch.Tensor:
        seen.append((weight * 2).requires_grad)
        return original(context)

    monkeypatch.setattr(one.model, "forward", watched)
    one.executor.execute(forward(0, [4], 3, kinds=[RowKind.DECODE]))
    assert seen == [False]
