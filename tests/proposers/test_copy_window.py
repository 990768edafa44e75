"""Copy window: doubling, halving, bounds; and the arithmetic of what copy to ask for and send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.copy_window import CopyWindow, copy_cap, copy_request, sendable_len


def test_window_doubles_after_whole_copies_and_halves_after_broken_ones() -> None:
    window = CopyWindow(min_drafts=2, max_drafts=16, start=4)
    seen = []
    for accepted_whole in (True, True, True, False, False, False, False):
        proposed = window.current
        window.record(proposed=proposed, accepted=proposed if accepted_whole else proposed - 1)
        seen.append(window.current)
    assert seen == [8, 16, 16, 8, 4, 2, 2]


def test_empty_copy_is_no_evidence() -> None:
    window = CopyWindow(max_drafts=8)
    window.record(proposed=0, accepted=0)
    window.record(proposed=-3, accepted=5)
    assert window.current == 2


@pytest.mark.parametrize(
    ("low", "high", "current"), [(1, 8, 2), (1, 1, 1), (4, 8, 4), (2, 2, 2), (1, 16, 2)]
)
def test_start_is_clamped_to_the_bounds(low: int, high: int, current: int) -> None:
    assert CopyWindow(min_drafts=low, max_drafts=high).current == current


@pytest.mark.parametrize(("low", "high"), [(5, 4), (0, 4), (-1, 4), (1, 0)])
def test_inverted_or_empty_bounds_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"min_drafts={low}, max_drafts={high}"):
        CopyWindow(min_drafts=low, max_drafts=high)


@given(
    low=st.integers(1, 8),
    extra=st.integers(0, 8),
    copies=st.lists(st.tuples(st.integers(-2, 20), st.integers(-2, 20))),
)
def test_window_never_leaves_its_bounds(
    low: int, extra: int, copies: list[tuple[int, int]]
) -> None:
    window = CopyWindow(min_drafts=low, max_drafts=low + extra)
    for proposed, accepted in copies:
        window.record(proposed=proposed, accepted=accepted)
        assert low <= window.current <= low + extra


def test_only_a_lone_sequence_on_one_rank_copies_past_the_shared_cap() -> None:
    assert copy_cap(max_drafts=8, slot_capacity=16, num_seqs=1, num_ranks=1) == 8
    assert copy_cap(max_drafts=8, slot_capacity=5, num_seqs=1, num_ranks=1) == 5
    assert copy_cap(max_drafts=8, slot_capacity=16, num_seqs=2, num_ranks=1) == 3
    assert copy_cap(max_drafts=8, slot_capacity=16, num_seqs=1, num_ranks=2) == 3
    assert copy_cap(max_drafts=8, slot_capacity=1, num_seqs=4, num_ranks=4) == 1
    assert copy_cap(max_drafts=8, slot_capacity=-1, num_seqs=1, num_ranks=1) == 0


def test_copy_is_asked_for_only_when_it_could_replace_the_pending_chain() -> None:
    assert copy_request(cap=8, window=2, chain=3) == 3
    assert copy_request(cap=8, window=4, chain=3) == 4
    assert copy_request(cap=3, window=8, chain=3) == 3
    assert copy_request(cap=2, window=8, chain=3) == 0
    assert copy_request(cap=0, window=8, chain=0) == 0
    assert copy_request(cap=1, window=2, chain=0) == 1


def test_sent_copies_of_four_or_more_are_powers_of_two() -> None:
    assert [sendable_len(n) for n in range(18)] == [
        *(0, 1, 2, 3, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 16, 16),
    ]
    assert sendable_len(-1) == 0
