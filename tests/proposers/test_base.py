"""Defaults of the drafter protocol, limits of its configuration, and the drafters it is kept by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from phalanx.proposers.base import (
    UNKNOWN_BUDGET,
    Draft,
    DraftContext,
    DraftInput,
    DraftProposer,
    SpecConfig,
    SpecConfigError,
)
from phalanx.proposers.catalog import make_proposer
from phalanx.proposers.mtp import MtpProposer
from phalanx.proposers.scripted import ScriptedState, junk_drafter, replay_drafter


class Smallest(DraftProposer):
    """What every drafter must have, and nothing else."""

    def alloc_state(self) -> ScriptedState:
        return ScriptedState()

    def propose(self, item: DraftInput, context: DraftContext) -> Draft:
        return Draft(token_ids=[])

    def after_verify(self, num_accepted: int, state: Any) -> None:
        """Nothing."""


def test_defaults_promise_nothing() -> None:
    drafter = Smallest()
    state = drafter.alloc_state_for(UNKNOWN_BUDGET)
    assert isinstance(state, ScriptedState)
    assert not drafter.needs_comm() and not drafter.needs_hidden()
    assert not drafter.prefill_uses_shared_buffers()
    assert drafter.prefill_hidden_rows(77) == 77
    assert drafter.block_gamma() is None and drafter.last_confidence() is None
    assert drafter.propose_batch([], cast(Any, None)) is None
    assert drafter.propose_batch_max() == 1 and not drafter.propose_batch_ready([])
    assert not drafter.propose_batch_mirrors_serial()
    assert drafter.drafter_rows(state) == 0 and drafter.last_pair_key(state) is None
    drafter.free_state(state)
    drafter.free_state(state)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "magic"}, "method='magic'"),
        ({"num_drafts": 0}, r"num_drafts=0, limit 1\.\.16"),
        ({"num_drafts": 17}, "num_drafts=17"),
        ({"draft_conf_tau": 1.0}, "draft_conf_tau=1.0"),
        ({"draft_conf_tau": float("nan")}, "draft_conf_tau=nan"),
    ],
)
def test_settings_out_of_range_are_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecConfigError, match=says):
        SpecConfig(**fields)


def test_the_catalog_knows_every_method() -> None:
    head: Any = object()
    assert make_proposer(SpecConfig(), head=head) is None
    lockstep = make_proposer(SpecConfig(method="mtp"), head=head)
    alone = make_proposer(SpecConfig(method="mtp"), head=head, lockstep=False)
    assert isinstance(lockstep, MtpProposer) and isinstance(alone, MtpProposer)
    assert lockstep.needs_comm() and not alone.needs_comm()
    with pytest.raises(SpecConfigError, match="no draft network"):
        make_proposer(SpecConfig(method="mtp"), head=None)


def ask(drafter: DraftProposer, history: Sequence[int], num_drafts: int) -> list[int]:
    *committed, last = history
    item = DraftInput(
        state=drafter.alloc_state(), slot=0, last_token=last, position=len(committed),
        num_drafts=num_drafts, feed_tokens=(), hidden_row=0, history=[*committed, 99, 99],
    )  # fmt: skip
    return drafter.propose(item, cast(Any, None)).token_ids


def test_scripted_drafters_follow_their_script() -> None:
    junk = junk_drafter(vocab_size=10, seed=3)
    assert ask(junk, [1, 2], 4) == ask(junk, [1, 2], 4)
    assert all(0 <= token < 10 for token in ask(junk, [1, 2], 8))
    replay = replay_drafter([[1, 2, 3, 4, 5], [1, 9, 9, 9]])
    assert ask(replay, [1, 2], 2) == [3, 4]
    assert ask(replay, [1, 9], 5) == [9, 9]
    assert ask(replay, [2, 2], 5) == []
    flawed = replay_drafter([[1, 2, 3, 0, 5]], flaw_every=3)
    assert ask(flawed, [1, 2], 3) == [3, 1, 5]
