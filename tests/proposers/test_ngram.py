"""The index-free drafter: longest repeated suffix, earliest occurrence, one token."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.ngram import MAX_SUFFIX, MIN_SUFFIX, NgramProposer


def slow_draft(history: list[int]) -> int | None:
    for size in range(min(MAX_SUFFIX, len(history) - 1), MIN_SUFFIX - 1, -1):
        suffix = history[len(history) - size :]
        for start in range(len(history) - size):
            if history[start : start + size] == suffix:
                return history[start + size]
    return None


@pytest.mark.parametrize(
    ("history", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], 4),
        (list(range(20)), None),
        ([1, 2], None),
        ([10, 20, 30, 10, 20, 30, 10, 20], 30),
    ],
)
def test_reference_examples(history: list[int], draft: int | None) -> None:
    assert NgramProposer().propose(history) == draft


@pytest.mark.parametrize("history", [[], [7], [7, 7]])
def test_fewer_than_three_tokens_draft_nothing(history: list[int]) -> None:
    assert NgramProposer().propose(history) is None


def test_longest_suffix_beats_an_earlier_shorter_one() -> None:
    assert NgramProposer().propose([2, 3, 8, 1, 2, 3, 9, 1, 2, 3]) == 9


def test_earliest_occurrence_wins_among_equal_lengths() -> None:
    assert NgramProposer().propose([1, 2, 5, 1, 2, 6, 1, 2]) == 5


def test_suffixes_longer_than_the_limit_count_as_the_limit() -> None:
    phrase = list(range(1, MAX_SUFFIX + 1))
    history = [*phrase, 100, 50, *phrase, 200, 50, *phrase]
    assert NgramProposer().propose(history) == 100


def test_bytes_that_straddle_two_tokens_are_no_match() -> None:
    # The suffix's bytes occur between tokens of the first three, one byte early.
    history = [0x0100, 0x0200, 0x0300, 9, 1, 2]
    assert slow_draft(history) is None
    assert NgramProposer().propose(history) is None


@given(st.lists(st.integers(0, 3), max_size=80))
def test_equals_the_obvious_scan(history: list[int]) -> None:
    assert NgramProposer().propose(history) == slow_draft(history)


def test_equals_the_obvious_scan_on_long_texts_of_wide_tokens() -> None:
    rng = random.Random(5)
    for _ in range(20):
        vocab = [rng.randrange(1 << 32) for _ in range(rng.randrange(2, 9))]
        history = [rng.choice(vocab) for _ in range(600)]
        assert NgramProposer().propose(history) == slow_draft(history)


def test_proposing_changes_nothing_and_verdicts_are_counted() -> None:
    proposer = NgramProposer()
    history = [1, 2, 3, 1, 2]
    assert [proposer.propose(history) for _ in range(3)] == [3, 3, 3]
    assert (proposer.num_accepted, proposer.num_rejected) == (0, 0)
    for accepted in (True, False, True):
        proposer.settle(accepted=accepted)
    assert (proposer.num_accepted, proposer.num_rejected) == (2, 1)
