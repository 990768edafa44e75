"""Shared lookup: drafts copied from what other requests of the same scope said before.

    scope     who may share text: model, tokenizer, adapter and tenant must all be equal
    ring      the texts of a scope, token ids, oldest overwritten first
    position  ever-growing index into a scope's text, from 1; position p lives at p % len(ring)
    slot      n-gram hash -> position of the token that followed it last; 0 = empty
    bucket    the WAYS neighbouring slots where an n-gram may be; a new one takes the oldest

Memory is bounded and taken when a scope is first written: a budget, split evenly among scopes.
Text that a scope already predicts is not stored again, so a growing conversation costs only its
new turns. Every hit is compared token by token, so collisions and overwritten text cost a missed
draft, never a wrong copy. One thread, no clock, nothing on disk: equal calls give equal answers.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from phalanx.kernels.lookup_native import NativeScope

SEPARATOR: Final = 0xFFFFFFFF
"""Ends every stored run of text; no token id."""

DEDUP_RUN: Final = 32
"""Consecutive tokens that the scope predicted already, after which storing stops again."""

WAYS: Final = 4
"""Slots of a bucket. The ring holds twice as many tokens as there are slots: choosing the oldest
of four to give way keeps what was said last, where a single place would lose it by chance."""

MAX_KEY_LEN: Final = 64
MIN_RING_TOKENS: Final = 1024
SLOT_BYTES: Final = 8
TOKEN_BYTES: Final = 4

_U64_MAX: Final = (1 << 64) - 1


class ScopeKey(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Whose text may answer whom: four u64, compared whole.

    `tenant` None belongs to nobody: such a sequence is neither stored nor answered.
    Raises ValueError for a field that is no u64.
    """

    model: int
    tokenizer: int
    adapter: int
    tenant: int | None

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "adapter", "tenant"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _U64_MAX:
                raise ValueError(
                    f"scope key is no u64 ({name}={value}, 0..2^64-1) -- it would not compare "
                    "equal to the scope it names -- pass the 64-bit fingerprint"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeGeometry:
    """What one scope's share of the budget holds."""

    num_slots: int
    ring_tokens: int

    @property
    def num_bytes(self) -> int:
        """Bytes of both tables."""
        return self.num_slots * SLOT_BYTES + self.ring_tokens * TOKEN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLookupConfig:
    """Budget and key of the shared cache. Raises ValueError when a scope would hold too little."""

    budget_bytes: int
    """All scopes together; a command line gives MiB << 20."""
    max_scopes: int = 4
    """Scopes kept at once, 1..256; one more drops the least recently used."""
    key_len: int = 8
    """Tokens that must match before a copy, 1..64: max(ngram, min_match) of prompt lookup."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_scopes <= 256:
            raise ValueError(
                f"shared lookup scopes out of range (max_scopes={self.max_scopes}, 1..256) -- "
                "each gets an equal share of the budget -- choose a value in the range"
            )
        if not 1 <= self.key_len <= MAX_KEY_LEN:
            raise ValueError(
                f"shared lookup key out of range (key_len={self.key_len}, 1..{MAX_KEY_LEN}) -- "
                "every text would match, or none -- give the tokens that must match"
            )
        geometry = self.geometry
        if geometry.num_slots < 2 * WAYS or geometry.ring_tokens < MIN_RING_TOKENS:
            raise ValueError(
                f"shared lookup scope too small (budget_bytes={self.budget_bytes}, max_scopes="
                f"{self.max_scopes}, ring_tokens={geometry.ring_tokens}, >= {MIN_RING_TOKENS}) -- "
                "it would forget a text before it could help -- raise the budget or lower the "
                "number of scopes"
            )

    @property
    def geometry(self) -> ScopeGeometry:
        """Half a share at most for slots (a power of two of them), the rest for text."""
        share = self.budget_bytes // self.max_scopes
        most = share // 2 // SLOT_BYTES
        num_slots = 1 << (most.bit_length() - 1) if most > 0 else 0
        return ScopeGeometry(
            num_slots=num_slots,
            ring_tokens=max(0, share - num_slots * SLOT_BYTES) // TOKEN_BYTES,
        )


class Scope(Protocol):
    """The text of one scope: `TextScope` here, or its compiled twin."""

    @property
    def num_bytes(self) -> int:
        """Bytes of slots and ring."""

    @property
    def num_stored(self) -> int:
        """Ring entries written since the start, separators included."""

    def insert(self, document: array[int], /) -> int:
        """Store what is new of [T] u32 token ids; returns the ring entries written."""

    def propose(self, history: Sequence[int], max_drafts: int, /) -> list[int]:
        """What followed the last `key_len` tokens, [] when they never occurred."""


class TextScope:
    """Slots and ring of one scope, in plain Python."""

    __slots__ = ("_head", "_key_len", "_mask", "_ring", "_shift", "_slots")

    def __init__(self, num_slots: int, ring_tokens: int, key_len: int) -> None:
        self._slots = array("Q", bytes(num_slots * SLOT_BYTES))
        self._ring = array("I", bytes(ring_tokens * TOKEN_BYTES))
        self._key_len = key_len
        self._head = 1
        # A tuple's hash is deterministic for ints, and the fastest fold there is.
        num_buckets = num_slots // WAYS
        self._shift = sys.hash_info.width - (num_buckets.bit_length() - 1)
        self._mask = num_buckets - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of slots and ring."""
        slots, ring = self._slots, self._ring
        return slots.itemsize * len(slots) + ring.itemsize * len(ring)

    @property
    def num_stored(self) -> int:
        """Ring entries written since the start, separators included."""
        return self._head - 1

    def insert(self, document: array[int], /) -> int:
        """Store the runs of `document` that the scope does not predict yet; entries written.

        A run is preceded by the `key_len` tokens it needs to be found. Documents longer than the
        ring keep their tail. No value is `SEPARATOR`.
        """
        key_len, ring = self._key_len, self._ring
        tokens = document[-(len(ring) - 1) :]
        if len(tokens) <= key_len:
            return 0
        before, writing, known_run = self._head, False, 0
        columns = [tokens[j : len(tokens) - key_len + j] for j in range(key_len)]
        for at, hashed in enumerate(map(hash, zip(*columns, strict=True)), key_len):
            token = tokens[at]
            slot, follows = self._find(hashed, tokens, at)
            known = follows == token
            if not writing:
                if known:
                    continue
                self._append(tokens[at - key_len : at])
                writing, known_run = True, 0
            self._slots[slot] = self._head
            ring[self._head % len(ring)] = token
            self._head += 1
            known_run = known_run + 1 if known else 0
            if known_run == DEDUP_RUN:
                self._append(_END)
                writing = False
        if writing:
            self._append(_END)
        return self._head - before

    def propose(self, history: Sequence[int], max_drafts: int, /) -> list[int]:
        """Up to `max_drafts` tokens that last followed the end of `history` in this scope.

        Ends with the text it copies from. Values that are no token id match nothing.
        """
        key_len = self._key_len
        if max_drafts <= 0 or len(history) < key_len:
            return []
        tail = history[len(history) - key_len :]
        try:
            key = array("I", tail)
        except (OverflowError, TypeError):
            return []
        slot, follows = self._find(hash(tuple(tail)), key, key_len)
        if follows < 0:
            return []
        position = self._slots[slot]
        copy = self._read(position, min(max_drafts, self._head - position)).tolist()
        return copy[: copy.index(SEPARATOR)] if SEPARATOR in copy else copy

    def _find(self, hashed: int, tokens: array[int], at: int) -> tuple[int, int]:
        """(slot, token that followed last) of the key tokens[at - key_len : at].

        (oldest slot of its bucket, -1) when the key is not there. Empty and overwritten slots
        hold the smallest positions, so they give way first.
        """
        key_len, ring, slots = self._key_len, self._ring, self._slots
        first_live = max(1, self._head - len(ring)) + key_len
        last = tokens[at - 1]
        bucket = ((hashed >> self._shift) & self._mask) * WAYS
        oldest = bucket
        for slot in range(bucket, bucket + WAYS):
            position = slots[slot]
            if (
                position >= first_live
                and ring[(position - 1) % len(ring)] == last
                and self._read(position - key_len, key_len) == tokens[at - key_len : at]
            ):
                return slot, ring[position % len(ring)]
            if position < slots[oldest]:
                oldest = slot
        return oldest, -1

    def _read(self, position: int, count: int) -> array[int]:
        """Ring entries position .. position + count, of which all are live."""
        ring = self._ring
        first = position % len(ring)
        piece = ring[first : first + count]
        return piece if len(piece) == count else piece + ring[: count - len(piece)]

    def _append(self, tokens: array[int]) -> None:
        ring = self._ring
        for token in tokens:
            ring[self._head % len(ring)] = token
            self._head += 1


_END: Final = array("I", [SEPARATOR])


def token_array(document: Sequence[int]) -> array[int]:
    """`document` as u32 token ids. Raises ValueError for a value that is no token id."""
    try:
        tokens = array("I", document)
    except (OverflowError, TypeError) as error:
        raise ValueError(
            f"document holds a value that is no token id ({error}, 0..2^32-2) -- it cannot be "
            "stored in the ring -- pass the token ids of the finished sequence"
        ) from error
    if SEPARATOR in tokens:
        raise ValueError(
            f"document holds the separator (token={SEPARATOR}, 0..2^32-2) -- copies would end "
            "there -- pass the token ids of the finished sequence"
        )
    return tokens


def make_scope(config: SharedLookupConfig) -> Scope:
    """An empty scope of the config's geometry: compiled when the compiled library is there."""
    geometry = config.geometry
    kind: Callable[[int, int, int], Scope] = NativeScope or TextScope
    return kind(geometry.num_slots, geometry.ring_tokens, config.key_len)


class SharedLookup:
    """The texts of up to `max_scopes` scopes, least recently used first to go.

    Called by one thread: `insert` when a sequence retires without error, `propose` when its own
    history has no match. No call reads or writes a scope whose key differs in any field.
    """

    __slots__ = ("_config", "_make", "_scopes")

    def __init__(
        self,
        config: SharedLookupConfig,
        *,
        make: Callable[[SharedLookupConfig], Scope] = make_scope,
    ) -> None:
        self._config = config
        self._make = make
        # Ordered by last use: the first is the next to be dropped.
        self._scopes: dict[ScopeKey, Scope] = {}

    @property
    def scopes(self) -> tuple[ScopeKey, ...]:
        """Keys held now, least recently used first."""
        return tuple(self._scopes)

    @property
    def num_bytes(self) -> int:
        """Bytes of all scopes held now; never above the budget."""
        return sum(scope.num_bytes for scope in self._scopes.values())

    def insert(self, key: ScopeKey, document: Sequence[int]) -> int:
        """Store a finished sequence (prompt then answer, [T] token ids); ring entries written.

        0 for a document no longer than the key, for one the scope predicts already and for a
        sequence without a tenant. Raises ValueError for a value that is no token id.
        """
        if key.tenant is None or len(document) <= self._config.key_len:
            return 0
        tokens = token_array(document)
        scope = self._scopes.pop(key, None)
        if scope is None:
            if len(self._scopes) >= self._config.max_scopes:
                del self._scopes[next(iter(self._scopes))]
            scope = self._make(self._config)
        self._scopes[key] = scope
        return scope.insert(tokens)

    def propose(self, key: ScopeKey, history: Sequence[int], max_drafts: int) -> list[int]:
        """Up to `max_drafts` tokens that followed the end of `history` in the scope, or []."""
        scope = self._scopes.pop(key, None)
        if scope is None:
            return []
        self._scopes[key] = scope
        return scope.propose(history, max_drafts)

    def reader(self, key: ScopeKey) -> Callable[[Sequence[int], int], list[int]]:
        """`propose` bound to one sequence's scope, for `PromptLookup.propose_with`."""

        def read(history: Sequence[int], max_drafts: int) -> list[int]:
            return self.propose(key, history, max_drafts)

        return read
