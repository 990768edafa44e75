"""The MTP loop: which rows it feeds, where drafts go, who leaves when, what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from phalanx.proposers.base import DraftInput, DraftRows
from phalanx.proposers.mtp import MtpProposer, MtpState
from phalanx.proposers.scripted import ScriptedState
from phalanx.proposers.trim import RowGap


class Picks(NamedTuple):
    ids_R: Tensor
    logprob_R: Tensor


class RecordingHead:
    """Output = input hidden + 1000; pick = the hidden's value. Every call is written down."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[float], list[int], list[int]]] = []
        self.pick_rows: list[int] = []

    def extend(
        self,
        *,
        tokens_R: Tensor,
        hidden_RD: Tensor,
        positions_R: Tensor,
        slots_R: Tensor,
        block_tables_SB: Tensor,
        row_seq_R: Tensor,
        row_last_R: Tensor,
    ) -> Tensor:
        self.calls.append(
            (tokens_R.tolist(), hidden_RD[:, 0].tolist(), positions_R.tolist(), slots_R.tolist())
        )
        return hidden_RD + 1000.0

    def pick(self, hidden_RD: Tensor) -> Picks:
        self.pick_rows.append(len(hidden_RD))
        return Picks(hidden_RD[:, 0].long(), -hidden_RD[:, 0] / 10000.0)


class Context:
    """Hidden row r holds the number r; physical slot = 100 * slot + position."""

    def __init__(self, num_rows: int = 8) -> None:
        self.target_hidden = torch.arange(float(num_rows))[:, None]

    def rows(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> DraftRows:
        positions = [p for s, c in zip(starts, counts, strict=True) for p in range(s, s + c)]
        owner = [slot for slot, c in zip(slots, counts, strict=True) for _ in range(c)]
        tensor = torch.tensor(positions)
        return DraftRows(
            positions_R=tensor,
            slots_R=tensor + 100 * torch.tensor(owner),
            block_tables_SB=None,
            row_seq_R=None,
            row_last_R=tensor,
        )

    def chain_rows(
        self, slots: Sequence[int], starts: Sequence[int], steps: int
    ) -> list[DraftRows]:
        return [
            self.rows(slots, [start + step for start in starts], [1] * len(slots))
            for step in range(steps)
        ]

    def token_tensor(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens)


def item(state: Any, **changes: Any) -> DraftInput:
    fields: dict[str, Any] = dict(
        state=state, slot=0, last_token=9, position=3, num_drafts=2, feed_tokens=[7, 8, 9],
        hidden_row=2, history=[1, 7, 8],
    )  # fmt: skip
    return DraftInput(**(fields | changes))


def test_one_propose_feeds_true_rows_then_chains_on_its_own() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head)
    state = proposer.alloc_state_for(50)
    draft = proposer.propose(item(state, num_drafts=3), Context())
    assert draft.token_ids == [1002, 2002, 3002]
    assert head.calls == [
        # keys 0..2: token t[k+1] with target hidden h[k]
        ([7, 8, 9], [0.0, 1.0, 2.0], [0, 1, 2], [0, 1, 2]),
        # then drafts with the head's own output, at keys 3 and 4
        ([1002], [1002.0], [3], [3]),
        ([2002], [2002.0], [4], [4]),
    ]
    assert head.pick_rows == [1, 1, 1]
    assert (proposer.drafter_rows(state), proposer.last_pair_key(state)) == (5, 4)


def test_a_feed_without_drafts_picks_nothing() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head)
    state = proposer.alloc_state()
    assert proposer.propose(item(state, num_drafts=0), Context()).token_ids == []
    assert len(head.calls) == 1 and head.pick_rows == []
    assert proposer.drafter_rows(state) == 3


def test_accepted_drafts_are_fed_again_with_true_hiddens() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head)
    state = proposer.alloc_state()
    proposer.propose(item(state, num_drafts=3), Context())
    proposer.after_verify(1, state)
    assert proposer.drafter_rows(state) == 4
    head.calls.clear()
    # The verify computed positions 3 and on at rows 4..; one draft stayed, so keys 3 and 4 are due.
    proposer.propose(
        item(state, position=5, num_drafts=1, feed_tokens=[1002, 6], hidden_row=5), Context()
    )
    assert head.calls == [([1002, 6], [4.0, 5.0], [3, 4], [3, 4])]
    assert proposer.drafter_rows(state) == 5


def test_a_batch_reads_each_depth_once_and_sequences_leave_in_turn() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head)
    states = [proposer.alloc_state() for _ in range(4)]
    items = [
        item(states[0], slot=0, num_drafts=1, hidden_row=2),
        item(states[1], slot=1, num_drafts=3, position=1, feed_tokens=[9], hidden_row=3),
        item(states[2], slot=2, num_drafts=0, position=2, feed_tokens=[4, 9], hidden_row=5),
        item(states[3], slot=3, num_drafts=2, position=1, feed_tokens=[9], hidden_row=6),
    ]
    assert proposer.propose_batch_ready(items)
    drafts = proposer.propose_batch(items, Context())
    assert drafts is not None
    assert [draft.token_ids for draft in drafts] == [[1002], [1003, 2003, 3003], [], [1006, 2006]]
    assert head.calls[0] == (
        [7, 8, 9, 9, 4, 9, 9],
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [0, 1, 2, 0, 0, 1, 0],
        [0, 1, 2, 100, 200, 201, 300],
    )
    assert [call[3] for call in head.calls[1:]] == [[101, 301], [102]]
    assert head.pick_rows == [3, 2, 1]
    assert [proposer.drafter_rows(state) for state in states] == [3, 3, 2, 2]


def test_batch_and_single_form_agree() -> None:
    assert MtpProposer(RecordingHead()).propose_batch_mirrors_serial()
    singles, batch = [], MtpProposer(RecordingHead())
    inputs = [
        dict(slot=slot, num_drafts=slot + 1, position=1, feed_tokens=[9], hidden_row=slot)
        for slot in range(3)
    ]
    for fields in inputs:
        proposer = MtpProposer(RecordingHead())
        singles.append(proposer.propose(item(proposer.alloc_state(), **fields), Context()))
    together = batch.propose_batch(
        [item(batch.alloc_state(), **fields) for fields in inputs], Context()
    )
    assert together == singles


def test_a_batch_with_a_foreign_state_is_declined_whole() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head, batch_max=2)
    own = proposer.alloc_state()
    released = proposer.alloc_state()
    proposer.free_state(released)
    proposer.free_state(released)
    for batch in (
        [item(own), item(ScriptedState(), slot=1)],
        [item(own), item(released, slot=1)],
        [item(own), item(proposer.alloc_state(), feed_tokens=[])],
        [item(proposer.alloc_state()) for _ in range(3)],
        [],
    ):
        assert not proposer.propose_batch_ready(batch)
        assert proposer.propose_batch(batch, Context()) is None
    assert head.calls == [] and proposer.drafter_rows(own) == 0
    with pytest.raises(ValueError, match="type=ScriptedState"):
        proposer.propose(item(ScriptedState()), Context())
    with pytest.raises(ValueError, match="feed_rows=0"):
        proposer.propose(item(own, feed_tokens=[]), Context())


def test_a_gap_in_the_rows_is_refused_before_the_network_runs() -> None:
    head = RecordingHead()
    proposer = MtpProposer(head)
    with pytest.raises(RowGap, match="key=5"):
        proposer.propose(item(proposer.alloc_state(), position=6, feed_tokens=[9]), Context())
    assert head.calls == []


def test_confidence_is_the_least_sure_draft_and_measured_only_when_asked() -> None:
    silent = MtpProposer(RecordingHead())
    assert silent.propose(item(silent.alloc_state()), Context()).logprobs == []
    assert silent.last_confidence() is None
    measuring = MtpProposer(RecordingHead(), measure_confidence=True)
    draft = measuring.propose(item(measuring.alloc_state()), Context())
    assert draft.logprobs == pytest.approx([-0.1002, -0.2002])
    assert measuring.last_confidence() == pytest.approx(0.8186, abs=1e-4)
    measuring.propose(item(measuring.alloc_state(), num_drafts=0), Context())
    assert measuring.last_confidence() == 1.0


def test_a_chain_that_fails_midway_leaves_its_rows_counted() -> None:
    class Failing(RecordingHead):
        def pick(self, hidden_RD: Tensor) -> Picks:
            if len(self.pick_rows) == 2:
                raise RuntimeError("head lost")
            return super().pick(hidden_RD)

    proposer = MtpProposer(Failing())
    state = proposer.alloc_state()
    with pytest.raises(RuntimeError, match="head lost"):
        proposer.propose(item(state, num_drafts=5), Context())
    assert isinstance(state, MtpState)
    assert (state.rows.rows, state.rows.last_drafted) == (4, 2)
    proposer.after_verify(0, state)
    assert state.rows.rows == 3
