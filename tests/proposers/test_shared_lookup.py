"""Shared lookup, asked of the plain and of the compiled scope: who sees what, and what it costs."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.kernels.lookup_native import NativeScope
from phalanx.proposers.prompt_lookup import PromptLookup, PromptLookupConfig
from phalanx.proposers.shared_lookup import (
    DEDUP_RUN,
    MIN_RING_TOKENS,
    SEPARATOR,
    Scope,
    ScopeKey,
    SharedLookup,
    SharedLookupConfig,
    TextScope,
    make_scope,
)

MakeScope = Callable[[int, int, int], Scope]

KINDS: list[object] = [pytest.param(TextScope, id="plain")]
if NativeScope is not None:
    KINDS.append(pytest.param(NativeScope, id="compiled"))

ONE = ScopeKey(model=1, tokenizer=2, adapter=3, tenant=4)


def cache_of(
    kind: MakeScope, *, budget: int = 4 << 20, scopes: int = 4, key: int = 4
) -> SharedLookup:
    config = SharedLookupConfig(budget_bytes=budget, max_scopes=scopes, key_len=key)

    def make(config: SharedLookupConfig) -> Scope:
        geometry = config.geometry
        return kind(geometry.num_slots, geometry.ring_tokens, config.key_len)

    return SharedLookup(config, make=make)


def phrase(seed: int, length: int) -> list[int]:
    """Tokens that are all different, and differ from most of another seed's."""
    return random.Random(seed).sample(range(1_000_000), length)


def test_compiled_scope_is_used_where_it_is_built() -> None:
    scope = make_scope(SharedLookupConfig(budget_bytes=1 << 20))
    assert isinstance(scope, TextScope if NativeScope is None else NativeScope)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_what_an_earlier_request_said(kind: MakeScope) -> None:
    cache = cache_of(kind)
    text = phrase(1, 60)
    cache.insert(ONE, text)
    assert cache.propose(ONE, [5, 5, *text[10:20]], 8) == text[20:28]
    assert cache.propose(ONE, text[:4], 3) == text[4:7]


@pytest.mark.parametrize("kind", KINDS)
def test_latest_request_wins(kind: MakeScope) -> None:
    cache = cache_of(kind)
    start = phrase(1, 8)
    first, second = phrase(2, 10), phrase(3, 10)
    cache.insert(ONE, start + first)
    cache.insert(ONE, start + second)
    assert cache.propose(ONE, start, 10) == second
    cache.insert(ONE, start + first)
    assert cache.propose(ONE, start, 10)[:1] == first[:1]


@pytest.mark.parametrize("kind", KINDS)
def test_40_random_rounds_against_the_obvious_model(kind: MakeScope) -> None:
    """The first token is the one that followed the key last; the copy is somebody's text."""
    rng = random.Random(8)
    cache = cache_of(kind, budget=64 << 20, scopes=1, key=3)
    follower: dict[tuple[int, ...], int] = {}
    documents: list[list[int]] = []
    hits = 0
    for _ in range(40):
        document = [rng.randrange(12) for _ in range(rng.randrange(120))]
        cache.insert(ONE, document)
        documents.append(document)
        for at in range(3, len(document)):
            follower[tuple(document[at - 3 : at])] = document[at]
        for _ in range(20):
            history = [rng.randrange(12) for _ in range(rng.randrange(3, 30))]
            copy = cache.propose(ONE, history, 6)
            assert bool(copy) == (tuple(history[-3:]) in follower)
            if copy:
                hits += 1
                assert copy[0] == follower[tuple(history[-3:])]
                assert occurs(documents, history[-3:] + copy)
    assert hits > 100


def occurs(documents: list[list[int]], piece: list[int]) -> bool:
    """Whether one of the documents (tokens below 256) holds the piece."""
    return any(bytes(piece) in bytes(document) for document in documents)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key_len", [1, 2, 3, 4])
def test_copies_stay_sound_under_collisions_and_wrapping(kind: MakeScope, key_len: int) -> None:
    rng = random.Random(key_len)
    cache = cache_of(kind, budget=16 << 10, scopes=1, key=key_len)
    documents: list[list[int]] = []
    hits = 0
    for _ in range(30):
        document = [min(rng.randrange(90), rng.randrange(90)) for _ in range(400)]
        cache.insert(ONE, document)
        documents.append(document)
        for _ in range(25):
            source = rng.choice(documents)
            end = rng.randrange(key_len, len(source))
            copy = cache.propose(ONE, source[:end], 5)
            if copy:
                hits += 1
                assert occurs(documents, source[end - key_len : end] + copy)
    assert hits > 20


@pytest.mark.parametrize("kind", KINDS)
def test_repeating_a_document_stores_nothing(kind: MakeScope) -> None:
    cache = cache_of(kind, key=8)
    text = phrase(4, 500)
    assert cache.insert(ONE, text) == 500 + 1
    for _ in range(3):
        assert cache.insert(ONE, text) == 0
    assert cache.insert(ONE, text[100:300]) == 0
    assert cache.propose(ONE, text[:200], 8) == text[200:208]


@pytest.mark.parametrize("kind", KINDS)
def test_new_turn_of_a_conversation_costs_itself_its_key_and_an_end(kind: MakeScope) -> None:
    cache = cache_of(kind, key=8)
    said, turn = phrase(5, 400), phrase(6, 100)
    cache.insert(ONE, said)
    written = cache.insert(ONE, said + turn)
    assert 0 < written <= 100 + 8 + 1
    assert cache.propose(ONE, said, 4) == turn[:4]


@pytest.mark.parametrize("kind", KINDS)
def test_known_text_after_a_new_part_is_stored_for_one_dedup_run_only(kind: MakeScope) -> None:
    cache = cache_of(kind, key=8)
    said, new = phrase(5, 400), phrase(6, 10)
    cache.insert(ONE, said)
    written = cache.insert(ONE, said[:100] + new + said[100:])
    # Key, new part, the key_len tokens whose context is new, then known ones until the run ends.
    assert written == 8 + 10 + 8 + DEDUP_RUN + 1
    assert cache.propose(ONE, said[:100] + new, 4) == said[100:104]


@pytest.mark.parametrize("kind", KINDS)
def test_copy_stops_where_the_request_ended(kind: MakeScope) -> None:
    cache = cache_of(kind)
    first, second = phrase(7, 20), phrase(8, 20)
    cache.insert(ONE, first)
    cache.insert(ONE, second)
    assert cache.propose(ONE, first[:17], 8) == first[17:]
    assert cache.propose(ONE, first, 8) == []
    assert cache.propose(ONE, second[:16], 8) == second[16:]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_proposed_without_a_whole_match(kind: MakeScope) -> None:
    cache = cache_of(kind)
    text = phrase(9, 30)
    assert cache.propose(ONE, text, 8) == []
    cache.insert(ONE, text)
    for history in ([], text[:3], phrase(10, 30), [*text[:9], 5], [5, *text[1:4]]):
        assert cache.propose(ONE, history, 8) == []
    for max_drafts in (0, -1):
        assert cache.propose(ONE, text[:9], max_drafts) == []


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_no_token_match_nothing(kind: MakeScope) -> None:
    cache = cache_of(kind, key=2)
    cache.insert(ONE, [1, 2, 3, 4])
    for bad in (-1, SEPARATOR, SEPARATOR + 1, 1 << 70):
        assert cache.propose(ONE, [1, bad], 4) == []
        assert cache.propose(ONE, [bad, 1, 2], 4) == [3, 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [-1, SEPARATOR, 1 << 40, 1 << 70])
def test_document_with_a_value_that_is_no_token_is_refused_whole(kind: MakeScope, bad: int) -> None:
    cache = cache_of(kind, scopes=1)
    text = phrase(11, 30)
    cache.insert(ONE, text)
    other = ScopeKey(model=9, tokenizer=2, adapter=3, tenant=4)
    for key in (ONE, other):
        with pytest.raises(ValueError, match="document holds"):
            cache.insert(key, [*phrase(12, 20), bad, 1])
    assert cache.scopes == (ONE,)
    assert cache.propose(ONE, text[:10], 4) == text[10:14]


@pytest.mark.parametrize("kind", KINDS)
def test_document_no_longer_than_the_key_is_stored_nowhere(kind: MakeScope) -> None:
    cache = cache_of(kind, key=8)
    for length in range(9):
        assert cache.insert(ONE, phrase(13, length)) == 0
    assert not cache.scopes
    assert cache.insert(ONE, phrase(13, 9)) == 10
    assert cache.scopes == (ONE,)


@pytest.mark.parametrize("field", ["model", "tokenizer", "adapter", "tenant"])
def test_scopes_that_differ_in_any_field_share_nothing(field: str) -> None:
    cache = cache_of(TextScope)
    fields = {"model": 1, "tokenizer": 2, "adapter": 3, "tenant": 4}
    other = ScopeKey(**{**fields, field: 77})
    text, reply = phrase(14, 40), phrase(15, 40)
    cache.insert(ONE, text)
    assert cache.propose(other, text[:10], 4) == []
    cache.insert(other, text[:10] + reply)
    assert cache.propose(ONE, text[:10], 4) == text[10:14]
    assert cache.propose(other, text[:10], 4) == reply[:4]


def test_sequence_without_a_tenant_is_neither_stored_nor_answered() -> None:
    cache = cache_of(TextScope)
    nobody = ScopeKey(model=1, tokenizer=2, adapter=3, tenant=None)
    text = phrase(16, 40)
    assert cache.insert(nobody, text) == 0
    assert not cache.scopes
    cache.insert(ONE, text)
    assert cache.propose(nobody, text[:10], 4) == []


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_scope_field_that_is_no_u64_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"adapter={value}"):
        ScopeKey(model=1, tokenizer=2, adapter=value, tenant=4)


@pytest.mark.parametrize("kind", KINDS)
def test_ring_forgets_the_oldest_text_first(kind: MakeScope) -> None:
    cache = cache_of(kind, budget=32 << 10, scopes=1)
    ring = SharedLookupConfig(budget_bytes=32 << 10, max_scopes=1, key_len=4).geometry.ring_tokens
    documents = [phrase(100 + i, 100) for i in range(2 * ring // 101 + 1)]
    for document in documents:
        cache.insert(ONE, document)
    answered = [bool(cache.propose(ONE, document[:50], 4)) for document in documents]
    assert not any(answered[: len(documents) // 2 - 1])
    # There is one slot for two tokens of the ring: the newer half keeps its slots.
    newest = ring // 101 // 3
    assert sum(answered[-newest:]) >= newest - 1
    assert cache.propose(ONE, documents[-1][:50], 4) == documents[-1][50:54]


@pytest.mark.parametrize("kind", KINDS)
def test_document_longer_than_the_ring_keeps_its_tail(kind: MakeScope) -> None:
    cache = cache_of(kind, budget=16 << 10, scopes=1)
    ring = SharedLookupConfig(budget_bytes=16 << 10, max_scopes=1, key_len=4).geometry.ring_tokens
    text = phrase(17, 3 * ring)
    assert cache.insert(ONE, text) == ring
    assert cache.propose(ONE, text[:10], 4) == []
    assert cache.propose(ONE, text[-20:-10], 20) == text[-10:]


def test_least_recently_used_scope_is_dropped_whole() -> None:
    cache = cache_of(TextScope, scopes=2)
    keys = [ScopeKey(model=1, tokenizer=2, adapter=3, tenant=tenant) for tenant in range(3)]
    text = phrase(18, 40)
    cache.insert(keys[0], text)
    cache.insert(keys[1], text)
    assert cache.propose(keys[0], text[:10], 4) == text[10:14]
    cache.insert(keys[2], text)
    assert cache.scopes == (keys[0], keys[2])
    assert cache.propose(keys[1], text[:10], 4) == []
    assert cache.propose(keys[0], text[:10], 4) == text[10:14]


def test_resent_text_counts_as_use_of_its_scope() -> None:
    cache = cache_of(TextScope, scopes=2)
    keys = [ScopeKey(model=1, tokenizer=2, adapter=3, tenant=tenant) for tenant in range(3)]
    text = phrase(18, 40)
    for key in (keys[0], keys[1], keys[0], keys[2]):
        cache.insert(key, text)
    assert cache.scopes == (keys[0], keys[2])


@given(budget=st.integers(0, 1 << 31), scopes=st.integers(1, 256))
def test_geometry_fills_at_least_three_quarters_of_each_share(budget: int, scopes: int) -> None:
    share = budget // scopes
    try:
        geometry = SharedLookupConfig(budget_bytes=budget, max_scopes=scopes).geometry
    except ValueError:
        assert share < 2 * (4 * MIN_RING_TOKENS)
        return
    assert geometry.num_slots & (geometry.num_slots - 1) == 0
    assert geometry.num_slots <= share // 2 // 8 < 2 * geometry.num_slots
    assert geometry.ring_tokens == (share - 8 * geometry.num_slots) // 4
    assert 0.75 * share <= geometry.num_bytes <= share


@pytest.mark.parametrize("kind", KINDS)
def test_memory_taken_is_what_the_geometry_says(kind: MakeScope) -> None:
    config = SharedLookupConfig(budget_bytes=3_000_000, max_scopes=3)
    assert (config.geometry.num_slots, config.geometry.ring_tokens) == (32768, 184464)
    cache = cache_of(kind, budget=3_000_000, scopes=3)
    assert cache.num_bytes == 0
    for tenant in range(5):
        cache.insert(ScopeKey(model=1, tokenizer=2, adapter=3, tenant=tenant), phrase(19, 40))
        assert cache.num_bytes == min(tenant + 1, 3) * config.geometry.num_bytes <= 3_000_000


@pytest.mark.parametrize(
    ("budget", "scopes", "key_len", "named"),
    [
        (2 << 10, 1, 8, "ring_tokens=256"),
        (8 << 10, 4, 8, "ring_tokens=256"),
        (0, 1, 8, "budget_bytes=0"),
        (-5, 1, 8, "budget_bytes=-5"),
        (1 << 20, 0, 8, "max_scopes=0"),
        (1 << 20, 257, 8, "max_scopes=257"),
        (1 << 20, 4, 0, "key_len=0"),
        (1 << 20, 4, 65, "key_len=65"),
    ],
)
def test_cache_that_could_not_help_is_refused(
    budget: int, scopes: int, key_len: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        SharedLookupConfig(budget_bytes=budget, max_scopes=scopes, key_len=key_len)


@pytest.mark.skipif(NativeScope is None, reason="compiled tables are not built")
def test_compiled_scope_refuses_geometry_and_documents_it_cannot_hold() -> None:
    assert NativeScope is not None
    for num_slots, ring_tokens, key_len in [
        (9, 99, 4),
        (4, 99, 4),
        (8, 5, 4),
        (8, 99, 0),
        (8, 99, 65),
    ]:
        with pytest.raises(ValueError, match=f"num_slots={num_slots}"):
            NativeScope(num_slots, ring_tokens, key_len)
    with pytest.raises(TypeError):
        NativeScope(8, 99, 4).insert(array("Q", [1] * 9))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_calls_give_equal_answers(kind: MakeScope) -> None:
    def replay() -> list[object]:
        rng = random.Random(20)
        cache = cache_of(kind, budget=64 << 10, scopes=2, key=2)
        answers: list[object] = []
        for _ in range(300):
            key = ScopeKey(model=1, tokenizer=2, adapter=3, tenant=rng.randrange(3))
            text = [rng.randrange(30) for _ in range(rng.randrange(60))]
            answers.append(cache.insert(key, text))
            answers.append(cache.propose(key, text[: rng.randrange(60)], 5))
        return answers

    assert replay() == replay()


@pytest.mark.skipif(NativeScope is None, reason="compiled tables are not built")
@given(data=st.data())
def test_plain_and_compiled_scope_agree_where_no_slots_collide(data: st.DataObject) -> None:
    assert NativeScope is not None
    key_len = data.draw(st.integers(1, 3))
    # 4 symbols and keys up to 3: at most 64 keys in 2^18 slots; a small ring wraps often.
    plain, compiled = TextScope(1 << 18, 64, key_len), NativeScope(1 << 18, 64, key_len)
    documents = st.lists(st.integers(0, 3), max_size=100)
    for document in data.draw(st.lists(documents, max_size=8)):
        assert plain.insert(array("I", document)) == compiled.insert(array("I", document))
        assert plain.num_stored == compiled.num_stored
        for end in range(0, len(document), 3):
            history = document[:end]
            assert plain.propose(history, 7) == compiled.propose(history, 7)


def test_own_history_goes_before_the_shared_text() -> None:
    cache = cache_of(TextScope, key=8)
    text, other = phrase(21, 40), phrase(22, 20)
    lookup = PromptLookup(PromptLookupConfig())
    reader = cache.reader(ONE)
    cache.insert(ONE, text[:20] + other)
    history = text + text[:20]
    assert lookup.propose_with(history, 4, shared=reader) == text[20:24]
    fresh = PromptLookup(PromptLookupConfig())
    assert fresh.propose_with(text[:20], 4, shared=reader) == other[:4]
    assert fresh.in_flight_shared
