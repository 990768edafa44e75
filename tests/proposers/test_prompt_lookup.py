"""Prompt lookup: what one sequence copies, its window, its backoff and its copy in flight."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.prompt_lookup import PromptLookup, PromptLookupConfig


def phrase(seed: int, length: int) -> list[int]:
    """Tokens that are all different."""
    return random.Random(seed).sample(range(100, 30000), length)


def repeating(length: int = 40) -> list[int]:
    """A text that ends in the middle of its own second reading."""
    text = phrase(2, length)
    return text + text[: length // 2]


def test_reference_defaults() -> None:
    config = PromptLookupConfig()
    assert (config.ngram, config.max_drafts, config.min_match) == (4, 8, 8)
    assert (config.max_seqs, config.miss_backoff) == (8, 16)
    assert config.ngram_sizes == (4,)
    assert config.shared_key_len == 8
    assert PromptLookup(config).window == 2


@pytest.mark.parametrize(
    "setting",
    [
        {"ngram": 0},
        {"ngram": 65},
        {"max_drafts": 0},
        {"max_drafts": 17},
        {"min_match": 0},
        {"min_match": 65},
        {"miss_backoff": -1},
        {"miss_backoff": 1025},
        {"max_seqs": 0},
        {"max_seqs": 129},
        {"drafts_per_match": -1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, int]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        PromptLookupConfig(**setting)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ngram=0"):
        PromptLookupConfig(extra_ngrams=(2, 0))


def test_copy_follows_the_earlier_occurrence_and_the_cap_is_the_callers() -> None:
    history = repeating()
    lookup = PromptLookup(PromptLookupConfig())
    assert lookup.propose_with(history, 5) == history[20:25]
    assert lookup.in_flight == 5
    # The window says 2; the caller asked for 11 and gets 11, past max_drafts even.
    assert lookup.window == 2
    assert lookup.propose_with(history, 11) == history[20:31]
    assert lookup.propose_with(history, 0) == []
    assert lookup.in_flight == 0


@pytest.mark.parametrize(("matching", "copies"), [(7, False), (8, True), (9, True)])
def test_copies_only_after_min_match_tokens(matching: int, copies: bool) -> None:
    text = phrase(3, 30)
    history = [*text, 1, *text[20 - matching : 20]]
    lookup = PromptLookup(PromptLookupConfig(ngram=4, min_match=8))
    assert lookup.propose_with(history, 3) == (text[20:23] if copies else [])


def test_min_match_is_never_below_the_ngram() -> None:
    assert PromptLookupConfig(ngram=6, min_match=2).least_match == 6
    assert PromptLookupConfig(ngram=6, min_match=2).shared_key_len == 6
    assert PromptLookupConfig(ngram=4, min_match=1, extra_ngrams=(2, 1)).least_match == 1


def skipped_rounds(lookup: PromptLookup, history: list[int]) -> int:
    rounds = 0
    while not lookup.propose_with(history, 4):
        rounds += 1
        if rounds > 5000:
            pytest.fail(f"still cooling down after {rounds} rounds")
    return rounds


def test_missed_copies_skip_doubling_rounds_up_to_the_cap() -> None:
    lookup = PromptLookup(PromptLookupConfig(miss_backoff=16))
    history = repeating()
    skipped = []
    for _ in range(8):
        skipped.append(skipped_rounds(lookup, history))
        assert lookup.settle(0) == 4
    assert skipped == [0, 1, 2, 4, 8, 16, 16, 16]


def test_zero_backoff_never_skips() -> None:
    lookup = PromptLookup(PromptLookupConfig(miss_backoff=0))
    for _ in range(30):
        assert lookup.propose_with(repeating(), 4)
        lookup.settle(0)


def test_backoff_of_many_misses_stays_at_its_cap() -> None:
    lookup = PromptLookup(PromptLookupConfig(miss_backoff=1024))
    history = repeating()
    for _ in range(13):
        skipped_rounds(lookup, history)
        lookup.settle(0)
    assert lookup.cooldown == 1024


def test_accepted_token_ends_the_series_of_misses() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    history = repeating()
    for _ in range(4):
        skipped_rounds(lookup, history)
        lookup.settle(0)
    assert skipped_rounds(lookup, history) == 8
    lookup.settle(1)
    assert lookup.cooldown == 0
    assert skipped_rounds(lookup, history) == 0
    lookup.settle(0)
    assert skipped_rounds(lookup, history) == 1


def test_rounds_without_room_use_up_the_cooldown_too() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    for _ in range(3):
        skipped_rounds(lookup, repeating())
        lookup.settle(0)
    assert lookup.cooldown == 4
    lookup.propose_with(repeating(), 0)
    assert lookup.cooldown == 3


def test_text_said_during_the_cooldown_is_indexed() -> None:
    lookup = PromptLookup(PromptLookupConfig(miss_backoff=1))
    history = repeating()
    assert lookup.propose_with(history, 4)
    lookup.settle(0)
    later = phrase(9, 20)
    assert lookup.propose_with(history + later, 4) == []
    assert lookup.propose_with(history + later + later[:10], 4) == later[10:14]


def test_settling_moves_window_and_returns_the_length() -> None:
    lookup = PromptLookup(PromptLookupConfig(max_drafts=8))
    windows = []
    for accepted in (4, 99, 4, 3, 1, 2, 1):
        assert len(lookup.propose_with(repeating(), 4)) == 4
        assert lookup.settle(accepted) == 4
        windows.append(lookup.window)
    assert windows == [4, 8, 8, 4, 2, 1, 1]


def test_settling_nothing_changes_nothing() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    for accepted in (0, 3, -1):
        assert lookup.settle(accepted) == 0
    assert (lookup.window, lookup.cooldown) == (2, 0)


def test_later_miss_clears_the_copy_in_flight() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    assert lookup.propose_with(repeating(), 4)
    assert lookup.propose_with([*repeating(), 5], 4) == []
    assert lookup.in_flight == 0
    assert lookup.settle(4) == 0


def test_abandoned_copy_is_not_judged() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    assert lookup.propose_with(repeating(), 4)
    lookup.abandon()
    assert lookup.settle(0) == 0
    assert (lookup.window, lookup.cooldown) == (2, 0)


def test_shortened_copy_is_judged_by_what_was_sent() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    assert len(lookup.propose_with(repeating(), 7)) == 7
    lookup.shorten(4)
    assert lookup.settle(4) == 4
    assert lookup.window == 4
    lookup.shorten(9)
    assert lookup.in_flight == 0


def test_shared_text_is_asked_only_when_the_own_has_no_match() -> None:
    asked: list[int] = []

    def shared(history: object, max_drafts: int) -> list[int]:
        asked.append(max_drafts)
        return [7, 8]

    lookup = PromptLookup(PromptLookupConfig())
    assert lookup.propose_with(repeating(), 4, shared=shared) == repeating()[20:24]
    assert (asked, lookup.in_flight_shared) == ([], False)
    assert lookup.propose_with(phrase(5, 30), 6, shared=shared) == [7, 8]
    assert (asked, lookup.in_flight, lookup.in_flight_shared) == ([6], 2, True)
    lookup.settle(2)
    assert not lookup.in_flight_shared


def test_empty_shared_answer_is_no_copy() -> None:
    lookup = PromptLookup(PromptLookupConfig())
    assert lookup.propose_with(phrase(5, 30), 6, shared=lambda history, max_drafts: []) == []
    assert (lookup.in_flight, lookup.in_flight_shared) == (0, False)


def test_cooldown_does_not_ask_the_shared_text() -> None:
    asked: list[int] = []

    def shared(history: object, max_drafts: int) -> list[int]:
        asked.append(max_drafts)
        return [7]

    lookup = PromptLookup(PromptLookupConfig(miss_backoff=4))
    history = phrase(5, 30)
    for _ in range(3):
        while not lookup.propose_with(history, 4, shared=shared):
            pass
        lookup.settle(0)
    asked.clear()
    for _ in range(4):
        assert lookup.propose_with(history, 4, shared=shared) == []
    assert asked == []
    assert lookup.propose_with(history, 0, shared=shared) == []
    assert asked == []


def test_short_matches_get_short_copies_when_asked_so() -> None:
    config = PromptLookupConfig(
        ngram=4, min_match=1, extra_ngrams=(2, 1), drafts_per_match=2, miss_backoff=0
    )
    text = phrase(6, 30)
    for matching, drafts in [(1, 2), (2, 4), (3, 6), (4, 8), (9, 8)]:
        history = [*text, 1, *text[15 - matching : 15]]
        assert PromptLookup(config).propose_with(history, 8) == text[15 : 15 + drafts]


def test_longer_shared_match_is_preferred_when_asked_so() -> None:
    config = PromptLookupConfig(ngram=4, min_match=1, extra_ngrams=(1,), prefer_longer=True)
    text = phrase(7, 20)

    def shared(history: object, max_drafts: int) -> list[int]:
        return [7, 8]

    lookup = PromptLookup(config)
    assert lookup.propose_with([*text, 1, text[9]], 4, shared=shared) == [7, 8]
    # Four own tokens are as long as the shared key: the own text goes first.
    assert lookup.propose_with([*text, 1, *text[6:10]], 4, shared=shared) == text[10:14]
    assert lookup.propose_with([*text, 1, text[9]], 2, shared=lambda h, n: []) == text[10:12]


@given(
    calls=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=30), st.integers(-3, 20), st.integers())
    )
)
def test_no_sequence_of_calls_raises_or_breaks_the_bounds(
    calls: list[tuple[list[int], int, int]],
) -> None:
    config = PromptLookupConfig(ngram=2, min_match=2, miss_backoff=3)
    lookup = PromptLookup(config)
    for history, max_drafts, accepted in calls:
        copy = lookup.propose_with(history, max_drafts)
        assert len(copy) <= max(0, max_drafts)
        assert lookup.settle(accepted) == len(copy)
        assert 1 <= lookup.window <= config.max_drafts
        assert 0 <= lookup.cooldown <= config.miss_backoff
