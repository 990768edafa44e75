"""Row spaces: the pinned trim table, row books of both spaces, and feeds that leave no gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.trim import (
    CompactRows,
    DenseRows,
    RowGap,
    compact_rope,
    compact_trim,
    dense_rope,
    dense_trim,
)

# drafts, accepted, compact trim, compact trim with refeed, dense trim
PINNED = [
    (1, 0, 1, 1, 0),
    (1, 1, 0, 0, 0),
    (2, 0, 2, 2, 1),
    (2, 1, 1, 1, 0),
    (2, 2, 0, 1, 0),
    (3, 0, 3, 3, 2),
    (3, 1, 2, 2, 1),
    (3, 2, 1, 2, 0),
    (3, 3, 0, 2, 0),
]


@pytest.mark.parametrize(("drafted", "accepted", "compact", "refed", "dense"), PINNED)
def test_trims_are_pinned(
    drafted: int, accepted: int, compact: int, refed: int, dense: int
) -> None:
    assert compact_trim(last_drafted=drafted, num_accepted=accepted) == compact
    assert compact_trim(last_drafted=drafted, num_accepted=accepted, refeed=True) == refed
    assert dense_trim(last_drafted=drafted, num_accepted=accepted) == dense


@given(drafted=st.integers(0, 16), accepted=st.integers(0, 16))
def test_no_trim_takes_more_than_was_drafted(drafted: int, accepted: int) -> None:
    for refeed in (False, True):
        trim = compact_trim(last_drafted=drafted, num_accepted=accepted, refeed=refeed)
        assert 0 <= trim <= max(drafted, 1)
    assert 0 <= dense_trim(last_drafted=drafted, num_accepted=accepted) <= max(drafted - 1, 0)


@given(drafted=st.integers(0, 16))
def test_a_full_reject_is_the_same_with_and_without_refeed(drafted: int) -> None:
    plain = compact_trim(last_drafted=drafted, num_accepted=0)
    assert plain == compact_trim(last_drafted=drafted, num_accepted=0, refeed=True)


def test_the_two_spaces_turn_keys_by_one_apart() -> None:
    assert [compact_rope(4), dense_rope(4)] == [5, 4]


def test_compact_rows_are_appended_and_keys_may_skip() -> None:
    rows = CompactRows()
    assert rows.last_pair_key is None
    assert rows.append(4, 2) == 0
    assert rows.append(9, 1) == 2
    assert (rows.rows, rows.last_pair_key) == (3, 9)
    with pytest.raises(RowGap, match="key=9, newest 9"):
        rows.append(9, 1)
    rows.last_drafted = 2
    assert rows.after_verify(1) == 1
    assert (rows.rows, rows.last_pair_key) == (2, 8)
    rows.last_drafted = 16
    assert rows.after_verify(0) == 16
    assert (rows.rows, rows.last_pair_key) == (0, 0)


def test_dense_rows_refuse_a_gap_and_rewind_what_lies_ahead() -> None:
    rows = DenseRows()
    assert rows.last_pair_key is None
    rows.feed(0, 5)
    for _ in range(3):
        rows.draft_one()
    assert (rows.rows, rows.last_drafted, rows.last_pair_key) == (7, 3, 6)
    rows.feed(5, 1)
    assert (rows.rows, rows.last_drafted) == (6, 0)
    with pytest.raises(RowGap, match=r"key=7, limit 0\.\.6"):
        rows.feed(7, 1)
    with pytest.raises(RowGap):
        rows.feed(-1, 2)
    rows.rewind(2)
    assert rows.rows == 2


@given(
    rounds=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 2)), max_size=30)
)
def test_the_dense_space_is_whole_after_every_round(
    rounds: list[tuple[int, int, int]],
) -> None:
    """Drafts dropped before the verify are trimmed like rejected ones; after the next feed every
    key below the position is there, and no other."""
    rows, position = DenseRows(), 6
    rows.feed(0, 6)
    for drafted, accepted, dropped in rounds:
        for _ in range(drafted):
            rows.draft_one()
        assert rows.rows == position + max(0, drafted - 1)
        verified = max(0, drafted - dropped)
        kept = min(accepted, verified)
        if verified:
            rows.after_verify(kept)
        assert rows.rows >= position, "row 0 of a propose is always valid"
        position += kept + 1
        rows.feed(position - kept - 1, kept + 1)
        assert (rows.rows, rows.last_pair_key) == (position, position - 1)
