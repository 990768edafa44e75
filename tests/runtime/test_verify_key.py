"""Canonical order and graph keys of verify batches."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.dcut import DcutSettings, chunk_ranges, plan
from phalanx.proposers.policy.ladder import Ladder
from phalanx.runtime.verify_key import (
    SENTINEL,
    KeyGate,
    KeySpace,
    ladder_key_spaces,
    parse_min_width,
    reachable_keys,
    sentinel_word,
    unreachable_keys,
    verify_batch_order,
    verify_batch_permutation,
    verify_graph_key,
)

OBSERVED = ([4] * 5 + [3] * 2 + [2], [4] * 4 + [3] * 4, [4] * 6 + [2] * 2)
"""Row multisets seen in service at width 8."""

BATCHES = st.integers(0, 10).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 40), min_size=n, max_size=n, unique=True),
        st.lists(st.integers(1, 9), min_size=n, max_size=n),
    )
)


def _key(slots: list[int], rows: list[int], *, canonical: bool) -> tuple[int, ...] | None:
    order = verify_batch_order(slots, rows, canonical=canonical)
    return verify_graph_key([slots[index] for index in order.indices], order.rows)


def test_worked_example() -> None:
    order = verify_batch_order([7, 2, 5, 0, 3], [2, 4, 2, 3, 4], canonical=True)
    assert order.indices == (3, 1, 4, 2, 0)
    assert order.rows == (4, 4, 3, 2, 2)


def test_legacy_example() -> None:
    slots, rows = [0, 1, 2, 3], [3, 3, 4, 4]
    assert _key(slots, rows, canonical=False) == (2, 4, 3, 4, 0, 3, 1, 3, SENTINEL)


def test_observed_multisets_give_266_legacy_keys_and_3_canonical_ones() -> None:
    slots = list(range(8))
    arrangements = [
        list(rows) for multiset in OBSERVED for rows in set(itertools.permutations(multiset))
    ]
    assert [
        len({rows for rows in map(tuple, arrangements) if sorted(rows) == sorted(multiset)})
        for multiset in OBSERVED
    ] == [168, 70, 28]
    legacy = {_key(slots, rows, canonical=False) for rows in arrangements}
    canonical = {_key(slots, rows, canonical=True) for rows in arrangements}
    assert (len(legacy), len(canonical)) == (266, 3)


def test_every_arrangement_of_three_depths_over_eight_slots() -> None:
    slots = list(range(8))
    arrangements = list(itertools.product((2, 3, 4), repeat=8))
    keys = {_key(slots, list(rows), canonical=True) for rows in arrangements}
    assert (len(arrangements), len(keys)) == (6561, 45)


@given(BATCHES, st.randoms(use_true_random=False))
def test_one_multiset_on_one_slot_set_is_one_key(
    batch: tuple[list[int], list[int]], noise: random.Random
) -> None:
    slots, rows = batch
    key = _key(slots, rows, canonical=True)
    noise.shuffle(slots)
    noise.shuffle(rows)
    assert _key(slots, rows, canonical=True) == key


@given(BATCHES)
def test_canonical_order_sorts_slots_and_depths_and_keeps_the_multiset(
    batch: tuple[list[int], list[int]],
) -> None:
    slots, rows = batch
    order = verify_batch_order(slots, rows, canonical=True)
    assert [slots[index] for index in order.indices] == sorted(slots)
    assert list(order.rows) == sorted(rows, reverse=True)


@given(BATCHES)
def test_legacy_order_never_re_pairs(batch: tuple[list[int], list[int]]) -> None:
    slots, rows = batch
    order = verify_batch_order(slots, rows, canonical=False)
    assert [rows[index] for index in order.indices] == list(order.rows)
    assert sorted(order.indices) == list(range(len(slots)))
    pairs = [(-depth, slots[index]) for index, depth in zip(order.indices, order.rows, strict=True)]
    assert pairs == sorted(pairs)


@given(BATCHES, st.booleans())
def test_ordering_twice_changes_nothing(
    batch: tuple[list[int], list[int]], canonical: bool
) -> None:
    slots, rows = batch
    once = verify_batch_order(slots, rows, canonical=canonical)
    ordered = [slots[index] for index in once.indices]
    again = verify_batch_order(ordered, once.rows, canonical=canonical)
    assert again.indices == tuple(range(len(slots)))
    assert again.rows == once.rows
    assert verify_batch_permutation(ordered, once.rows, canonical=canonical) == again.indices


@given(BATCHES)
def test_each_depth_is_one_run_of_slots_when_slots_have_no_gaps(
    batch: tuple[list[int], list[int]],
) -> None:
    _, rows = batch
    slots = list(range(len(rows)))
    order = verify_batch_order(slots, rows, canonical=True)
    runs = [depth for depth, _ in itertools.groupby(order.rows)]
    assert len(runs) == len(set(runs))


@given(st.lists(st.integers(0, 40), unique=True, max_size=10), st.integers(2, 5))
def test_uniform_depths_make_both_orders_equal(slots: list[int], rows: int) -> None:
    uniform = [rows] * len(slots)
    assert verify_batch_order(slots, uniform, canonical=True) == verify_batch_order(
        slots, uniform, canonical=False
    )


def test_kill_switch_and_narrow_batches_are_the_stable_legacy_sort() -> None:
    killed = KeyGate.resolve(kill_switch="0", min_width="0")
    for width in range(1, 8):
        slots = list(range(width, 0, -1))
        assert not KeyGate().canonical_assignment(width)
        for rows in itertools.product((2, 3, 4), repeat=width):
            order = verify_batch_order(slots, rows, canonical=killed.canonical_assignment(width))
            expected = sorted(range(width), key=lambda i: (-rows[i], slots[i], i))
            assert list(order.indices) == expected


def test_gate_opens_exactly_at_eight_and_moves_with_the_flag() -> None:
    assert [KeyGate().canonical_assignment(n) for n in (7, 8, 64)] == [False, True, True]
    moved = KeyGate.resolve(min_width=" 3 ")
    assert [moved.canonical_assignment(n) for n in (2, 3)] == [False, True]
    assert KeyGate.resolve(min_width="0").canonical_assignment(0)


def test_kill_switch_dominates() -> None:
    for raw in ("", "0", "1"):
        gate = KeyGate.resolve(min_width="0", kill_switch=raw)
        assert not any(gate.canonical_assignment(n) for n in (0, 8, 128))


@pytest.mark.parametrize(
    ("raw", "width"),
    [(None, 8), ("", 8), ("junk", 8), ("-1", 8), (" 12 ", 12), ("0", 0), ("+4", 4), ("1.5", 8)],
)
def test_min_width_text(raw: str | None, width: int) -> None:
    assert parse_min_width(raw) == width


@given(st.text(max_size=8))
def test_no_min_width_text_breaks_the_parser(raw: str) -> None:
    assert parse_min_width(raw) >= 0


def test_empty_and_single_batches() -> None:
    assert verify_graph_key([], []) == (SENTINEL,)
    for canonical in (False, True):
        assert verify_batch_order([], [], canonical=canonical).indices == ()
        assert verify_batch_order([5], [4], canonical=canonical).rows == (4,)


def test_length_mismatch_is_an_error() -> None:
    for call in (
        lambda: verify_batch_permutation([1, 2], [3], canonical=True),
        lambda: verify_batch_order([1], [3, 4], canonical=False),
        lambda: verify_graph_key([1], []),
    ):
        with pytest.raises(ValueError, match=r"slots=\d, rows=\d"):
            call()


def test_four_sentinels_are_distinct_and_only_the_last_word_moves() -> None:
    keys = [
        verify_graph_key([0, 1], [4, 3], tables_null=null, write_on_accept=woa)
        for null in (False, True)
        for woa in (False, True)
    ]
    assert len(set(keys)) == 4
    assert {key[:-1] for key in keys if key} == {(0, 4, 1, 3)}
    assert sentinel_word(tables_null=True, write_on_accept=True) == 0xFFFFFFFC
    assert sentinel_word(tables_null=True) == 0xFFFFFFFE
    assert sentinel_word(write_on_accept=True) == 0xFFFFFFFD


def test_sequence_without_a_slot_has_no_key() -> None:
    assert verify_graph_key([0, -1], [4, 3]) is None
    assert verify_graph_key([0xFFFFFFFC], [4]) is None


@given(BATCHES, BATCHES)
def test_different_batches_have_different_keys(
    a: tuple[list[int], list[int]], b: tuple[list[int], list[int]]
) -> None:
    same = sorted(a[0]) == sorted(b[0]) and sorted(a[1]) == sorted(b[1])
    assert (_key(*a, canonical=True) == _key(*b, canonical=True)) is same


# -- pruning, order and chunks together ------------------------------------------------------


@given(
    st.lists(st.lists(st.floats(-6.0, 0.0), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(0, 12),
)
def test_canonical_assignment_keeps_the_rows_pruning_chose(
    lps: list[list[float]], min_width: int
) -> None:
    chosen = plan([3] * len(lps), lps, k_drafts=3, settings=DcutSettings())
    canonical = KeyGate(min_width=min_width).canonical_assignment(len(lps))
    order = verify_batch_order(range(len(lps)), chosen.rows, canonical=canonical)
    assert sorted(order.rows) == sorted(chosen.rows)
    assert all(
        start < end and sum(order.rows[start:end]) <= 96 for start, end in chunk_ranges(order.rows)
    )


def test_three_streams_of_three_drafts_run_rows_four_four_three() -> None:
    chosen = plan([3] * 3, [()] * 3, k_drafts=3, settings=DcutSettings())
    assert verify_batch_order([0, 1, 2], chosen.rows, canonical=False).rows == (4, 4, 3)


# -- the reachable keys ------------------------------------------------------------------------


def test_pruning_at_width_eight_reaches_the_observed_keys_only() -> None:
    (legacy,) = ladder_key_spaces(
        lambda _: [3], widths=[8], gate=KeyGate(disabled=True), dcut=DcutSettings()
    )
    (canonical,) = ladder_key_spaces(lambda _: [3], widths=[8], gate=KeyGate(), dcut=DcutSettings())
    assert (legacy.count(), canonical.count()) == (266, 3)
    assert set(canonical) == {_key(list(range(8)), rows, canonical=True) for rows in OBSERVED}


def test_any_mixture_at_width_eight() -> None:
    spaces = ladder_key_spaces(
        lambda _: [1, 3], widths=[8], gate=KeyGate(), dcut=DcutSettings(), ragged=True
    )
    assert [space.count() for space in spaces] == [45]
    (legacy,) = ladder_key_spaces(
        lambda _: [3], widths=[8], gate=KeyGate(disabled=True), dcut=DcutSettings(), ragged=True
    )
    assert legacy.count() == 6561


SPACES = st.builds(
    KeySpace,
    slots=st.lists(st.integers(0, 20), unique=True, max_size=4).map(lambda s: tuple(sorted(s))),
    min_rows=st.integers(1, 2),
    max_rows=st.integers(2, 4),
    canonical=st.booleans(),
    total_rows=st.none() | st.integers(0, 16),
    row_budget=st.sampled_from([6, 96]),
    sentinels=st.sampled_from([(SENTINEL,), (SENTINEL, SENTINEL - 1)]),
)


@given(SPACES)
def test_space_counts_lists_and_knows_its_keys(space: KeySpace) -> None:
    keys = list(space)
    assert len(keys) == len(set(keys)) == space.count()
    assert all(key in space for key in (keys if space.one_chunk else keys[-1:]))
    assert unreachable_keys(keys, [space]) == ()


@given(SPACES, st.data())
def test_space_holds_exactly_the_keys_of_its_batches(space: KeySpace, data: st.DataObject) -> None:
    width = len(space.slots)
    rows = data.draw(
        st.lists(st.integers(space.min_rows, space.max_rows), min_size=width, max_size=width)
    )
    legal = space.total_rows in (None, sum(rows))
    order = verify_batch_order(space.slots, rows, canonical=space.canonical)
    slots = [space.slots[index] for index in order.indices]
    keys = [
        verify_graph_key(slots[start:end], order.rows[start:end])
        for start, end in chunk_ranges(order.rows, row_budget=space.row_budget)
    ]
    if legal:
        assert all(key in space for key in keys)
    elif space.one_chunk:  # chunks of an illegal batch can also be chunks of a legal one
        assert all(key not in space for key in keys)


@pytest.mark.parametrize(
    "key",
    [
        (),
        "key",
        (0, 4, SENTINEL),
        (0, 4, 1, 5, SENTINEL),
        (0, 3, 1, 4, SENTINEL),
        (1, 4, 0, 4, SENTINEL),
        (0, 4, 1, 4, 7),
        (0, 4, 1, SENTINEL),
    ],
)
def test_space_refuses_what_no_batch_asks_for(key: object) -> None:
    space = KeySpace(slots=(0, 1), min_rows=2, max_rows=4, canonical=True)
    assert (0, 4, 1, 4, SENTINEL) in space
    assert key not in space


def test_default_configuration_fits_and_is_audited() -> None:
    ladder = Ladder()
    spaces = ladder_key_spaces(
        lambda width: [ladder.drafts_for(width, 3)],
        widths=range(1, 33),
        gate=KeyGate(),
        dcut=DcutSettings(),
    )
    keys = list(reachable_keys(spaces))
    assert len(keys) == sum(space.count() for space in spaces) == len(set(keys))
    assert unreachable_keys(keys, spaces) == ()
    stray = (*(word for slot in range(16) for word in (slot, 3)), SENTINEL)
    assert unreachable_keys([stray, keys[0]], spaces) == (stray,)
    wide = [key for key in keys if len(key) == 2 * 16 + 1]
    assert wide == [(*tuple(w for slot in range(16) for w in (slot, 2)), SENTINEL)]


def test_every_pruned_batch_of_service_lands_in_its_space() -> None:
    noise = random.Random(5)
    gate, dcut = KeyGate(), DcutSettings()
    spaces = ladder_key_spaces(lambda _: [3], widths=range(1, 9), gate=gate, dcut=dcut)
    for _ in range(500):
        width = noise.randint(1, 8)
        slots = noise.sample(range(width), width)
        lps = [[math.log(noise.random()) for _ in range(3)] for _ in range(width)]
        chosen = plan([3] * width, lps, k_drafts=3, settings=dcut)
        key = _key(slots, list(chosen.rows), canonical=gate.canonical_assignment(width))
        assert key is not None and key in spaces[width - 1]


def test_chunked_batches_list_the_keys_of_their_chunks() -> None:
    (space,) = ladder_key_spaces(lambda _: [2], widths=[33], gate=KeyGate(), dcut=DcutSettings())
    assert not space.one_chunk
    assert [len(key) // 2 for key in space] == [32, 1]
    assert space.count() == 2


def test_counting_a_wide_legacy_space_lists_nothing() -> None:
    space = KeySpace(slots=tuple(range(24)), min_rows=2, max_rows=4, canonical=False)
    assert space.count() == 3**24
