"""N-gram index against brute force; everything is asked of the plain and of the compiled one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.kernels.lookup_native import LOAD_PROBLEM, NativeIndex
from phalanx.proposers.ngram_index import (
    BULK_FROM,
    Index,
    NgramIndex,
    make_index,
    match_len,
    propose_copy,
)

MakeIndex = Callable[..., Index]

KINDS: list[object] = [pytest.param(NgramIndex, id="plain")]
if NativeIndex is not None:
    KINDS.append(pytest.param(NativeIndex, id="compiled"))


def slow_match(history: list[int], sizes: tuple[int, ...]) -> tuple[int, int]:
    """(start, size) by trying every start, latest first, longest size first."""
    for size in sorted(sizes, reverse=True):
        tail = history[len(history) - size :]
        for start in range(len(history) - 1, size - 1, -1):
            if history[start - size : start] == tail:
                return start, size
    return 0, 0


def phrase(seed: int, length: int) -> list[int]:
    """Tokens that are all different."""
    return random.Random(seed).sample(range(100, 30000), length)


def test_compiled_index_is_used_where_it_is_built() -> None:
    expected = NgramIndex if NativeIndex is None else NativeIndex
    assert (LOAD_PROBLEM is None) == (NativeIndex is not None)
    assert isinstance(make_index(4), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_proposals_equal_brute_force_on_300_random_histories(kind: MakeIndex) -> None:
    rng = random.Random(11)
    hits = 0
    for _ in range(300):
        vocab, size = rng.randint(2, 7), rng.randint(1, 5)
        history = [rng.randrange(vocab) for _ in range(rng.randint(0, 120))]
        max_drafts = rng.randint(0, 19)
        index = kind(size)
        index.observe(history)
        start, found = slow_match(history, (size,))
        expected = history[start : start + max_drafts] if found else []
        assert propose_copy(index, history, max_drafts) == expected
        hits += bool(expected)
    assert hits > 100


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_longest_size_that_matches_wins(kind: MakeIndex, data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.sets(st.integers(1, 6), min_size=1)))
    history = data.draw(st.lists(st.integers(0, 2), max_size=90))
    wanted = data.draw(st.integers(0, 12))
    index = kind(*sizes)
    start, size = slow_match(history, sizes)
    matched = max(size, match_len(history, start, wanted)) if size else 0
    assert index.match(history, wanted) == (start, matched)
    assert index.continuation(history) == (start, size)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_incremental_equals_one_shot(kind: MakeIndex, data: st.DataObject) -> None:
    history = data.draw(st.lists(st.integers(0, 3), max_size=150))
    steps = data.draw(st.lists(st.integers(1, 2 * BULK_FROM)))
    growing, whole = kind(3, 1), kind(3, 1)
    seen = 0
    for step in steps:
        seen = min(seen + step, len(history))
        growing.observe(history[:seen])
    growing.observe(history)
    whole.observe(history)
    for end in range(len(history) + 1):
        # Queries at any end see the same entries, the future ones refused alike.
        assert growing.continuation(history[:end]) == whole.continuation(history[:end])


@pytest.mark.parametrize("kind", KINDS)
def test_latest_occurrence_wins(kind: MakeIndex) -> None:
    index = kind(2)
    history = [1, 2, 10, 1, 2, 20, 1, 2]
    index.observe(history)
    assert propose_copy(index, history, 2) == [20, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_text_never_proposes_itself(kind: MakeIndex) -> None:
    history = phrase(1, 50)
    index = kind(4)
    for end in range(len(history) + 1):
        assert index.match(history[:end], 4) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_one_token_more_than_the_ngram_is_the_least_that_proposes(
    kind: MakeIndex, size: int
) -> None:
    for length in range(size + 1):
        assert kind(size).match([7] * length, size) == (0, 0)
    index = kind(size)
    index.observe([7] * (size + 1))
    assert propose_copy(index, [7] * (size + 1), 9) == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_entry_of_rewound_text_is_never_used(kind: MakeIndex) -> None:
    index = kind(2)
    index.observe([1, 2, 3, 4, 5, 6])
    # Rewound to [1, 2], then another text: (3, 4) and (4, 5) were never said.
    for history in ([1, 2], [1, 2, 9, 9, 8, 3, 4], [1, 2, 9, 9, 8, 4, 5]):
        assert index.match(history, 2) == (0, 0)
    assert index.match([1, 2, 9, 9, 8, 4, 5, 1, 2], 2) == (2, 2)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_after_any_rewinds_a_match_is_a_match(kind: MakeIndex, data: st.DataObject) -> None:
    index = kind(2, 3)
    history: list[int] = []
    edits = st.tuples(st.integers(0, 12), st.lists(st.integers(0, 2), max_size=40))
    for keep_back, grown in data.draw(st.lists(edits, max_size=8)):
        del history[max(0, len(history) - keep_back) :]
        index.observe(history)
        history += grown
        start, matched = index.match(history, 3)
        if matched:
            assert matched in (2, 3)
            assert 0 < start < len(history)
            assert history[start - matched : start] == history[len(history) - matched :]


def test_planted_collision_is_refused() -> None:
    index = NgramIndex(2)
    history = [1, 2, 3, 8, 9]
    index.observe(history)
    assert index.continuation(history) == (0, 0)
    tables = dict(index._tables)
    tables[2][hash((8, 9))] = 2
    assert index.continuation(history) == (0, 0)
    tables[2][hash((8, 9))] = 99
    assert index.continuation(history) == (0, 0)


@pytest.mark.skipif(NativeIndex is None, reason="compiled tables are not built")
def test_planted_collision_is_refused_by_the_compiled_index() -> None:
    # The fold of one token is invertible: two tokens whose hashes share tag and table entry.
    word = (1 << 64) - 1
    basis, prime, spread = 0xCBF29CE484222325, 0x100000001B3, 0x9E3779B97F4A7C15

    def fold(token: int) -> int:
        mixed = (basis ^ token) * prime & word
        return (mixed << 29 | mixed >> 35) & word

    def unfold(hashed: int) -> int:
        mixed = (hashed >> 29 | hashed << 35) & word
        token = mixed * pow(prime, -1, 1 << 64) & word ^ basis
        return token - (1 << 64) if token >> 63 else token

    def entry(hashed: int) -> int:
        return (hashed * spread & word) >> 58

    one = 42
    hashed = fold(one)
    twins = (hashed + (k << 32) & word for k in range(1, 10000))
    other = unfold(next(twin for twin in twins if entry(twin) == entry(hashed)))
    assert NativeIndex is not None
    index = NativeIndex(1)
    assert index.match([one, 5, other], 1) == (0, 0)
    # The other's entry took the first one's place: an honest miss, never its continuation.
    assert index.match([one, 5, other, 6, one], 1) == (0, 0)
    assert index.match([one, 5, other, 6, one, 7, one], 1) == (5, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_below_one_are_refused(kind: MakeIndex) -> None:
    for sizes in ((), (0,), (4, 0), (-1,)):
        with pytest.raises(ValueError, match="size"):
            kind(*sizes)


@pytest.mark.skipif(NativeIndex is None, reason="compiled tables are not built")
def test_plain_and_compiled_index_agree_on_long_texts() -> None:
    assert NativeIndex is not None
    rng = random.Random(3)
    for sizes in ((4,), (8, 4, 2, 1), (3, 1)):
        plain, compiled = NgramIndex(*sizes), NativeIndex(*sizes)
        history: list[int] = []
        while len(history) < 6000:
            if rng.random() < 0.1:
                del history[len(history) - min(len(history), rng.randrange(20)) :]
            elif history and rng.random() < 0.4:
                start = rng.randrange(len(history))
                history += history[start : start + rng.randrange(40)]
            else:
                history += [rng.randrange(500) for _ in range(rng.randrange(30))]
            assert plain.match(history, 16) == compiled.match(history, 16)
        assert compiled.num_bytes <= len(sizes) * 8 * 6000 * 4


def test_compiled_index_refuses_what_is_no_sequence_of_ints() -> None:
    for index in (make_index(2), NgramIndex(2)):
        with pytest.raises(TypeError):
            index.observe(7)  # type: ignore[arg-type]


def test_match_len_counts_backwards_up_to_the_cap() -> None:
    history = [9, 1, 2, 3, 4, 8, 1, 2, 3, 4]
    assert match_len(history, 5, 16) == 4
    assert match_len(history, 5, 3) == 3
    assert match_len(history, 5, 0) == 0
    assert match_len(history, 4, 16) == 0
    assert match_len([5, 5, 5, 5], 2, 16) == 2
