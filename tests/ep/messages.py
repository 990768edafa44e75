"""Hypothesis strategies for every message, valid by construction."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from phalanx.ep.commands import (
    MAX_TOKEN_ID,
    MAX_WORD,
    Admit,
    Checkpoint,
    Forward,
    Message,
    MtpPropose,
    MtpProposeBatch,
    Noop,
    Placement,
    Release,
    Shutdown,
    Verdict,
)

words = st.integers(0, MAX_WORD)
tokens = st.integers(0, MAX_TOKEN_ID)
block_lists = st.lists(words, max_size=4)


def slots_of(width: int) -> st.SearchStrategy[list[int]]:
    """Distinct slots."""
    return st.lists(words, min_size=width, max_size=width, unique=True)


@st.composite
def verdicts(draw: st.DrawFn) -> list[Verdict]:
    """Verdicts about distinct slots."""
    found = []
    for slot in draw(st.lists(words, max_size=4, unique=True)):
        rows = draw(st.integers(1, 16))
        found.append(Verdict(slot, rows, draw(st.integers(0, rows - 1))))
    return found


@st.composite
def forwards(draw: st.DrawFn) -> Forward:
    """A batch of up to 8 sequences and 9 rows each."""
    width = draw(st.integers(0, 8))
    rows = draw(st.lists(st.integers(1, 9), min_size=width, max_size=width))

    def each(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=width, max_size=width))

    return Forward(
        slots=draw(slots_of(width)),
        rows=rows,
        kinds=each(st.integers(0, 2)),
        starts=each(words),
        new_blocks=each(block_lists),
        tokens=draw(st.lists(tokens, min_size=sum(rows), max_size=sum(rows))),
        wants=each(st.integers(0, 2)),
        owners=each(st.integers(-1, 7)),
        key=draw(st.lists(words, max_size=5)),
        verdicts=draw(verdicts()),
    )


@st.composite
def proposes(draw: st.DrawFn) -> MtpPropose:
    """One-sequence propose."""
    hidden_row = draw(st.integers(0, 1000))
    return MtpPropose(
        slot=draw(words),
        last_token=draw(tokens),
        position=draw(words),
        num_drafts=draw(st.integers(0, 8)),
        hidden_row=hidden_row,
        feed_rows=draw(st.integers(0, hidden_row + 1)),
        new_blocks=draw(block_lists),
        verdicts=draw(verdicts()),
    )


@st.composite
def propose_batches(draw: st.DrawFn) -> MtpProposeBatch:
    """Batched propose."""
    width = draw(st.integers(0, 8))
    hidden_rows = draw(st.lists(st.integers(0, 500), min_size=width, max_size=width, unique=True))

    def each(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=width, max_size=width))

    return MtpProposeBatch(
        slots=draw(slots_of(width)),
        last_tokens=each(tokens),
        positions=each(words),
        hidden_rows=hidden_rows,
        feed_rows=[draw(st.integers(0, row + 1)) for row in hidden_rows],
        num_drafts=each(st.integers(0, 8)),
        new_blocks=each(block_lists),
        verdicts=draw(verdicts()),
    )


messages: st.SearchStrategy[Message] = st.one_of(
    forwards(),
    proposes(),
    propose_batches(),
    st.builds(
        Admit,
        slot=words,
        request_id=st.integers(0, 2**63 - 1),
        prompt_tokens=words,
        max_tokens=words,
        verdicts=verdicts(),
    ),
    st.builds(Release, slots=st.lists(words, max_size=6, unique=True), verdicts=verdicts()),
    st.builds(
        Placement,
        version=words,
        ranks_of_experts=st.lists(
            st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), max_size=40
        ),
    ),
    st.builds(Checkpoint, slot=words, tokens=words),
    st.just(Noop()),
    st.builds(Shutdown, reason=st.text(max_size=400)),
)
