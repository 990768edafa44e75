"""Prompt lookup: drafts copied from the sequence's own text, where its last tokens occurred before.

    history   token ids of prompt and answer so far, [T]; owned and grown by the caller
    start     index into history: the token after an earlier occurrence of the last n tokens

`NgramIndex` maps the hash of an n-gram to its latest start, so a proposal costs one hash lookup
whatever T is. It holds no text: every hit is compared with the history token by token, which makes
hash collisions and entries left behind by a rewind harmless. `PromptLookup` is one sequence's
drafter on top of it: how good a match must be, how long the copy, when to stop asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from phalanx.kernels.lookup_native import NativeIndex
from phalanx.proposers.copy_window import CopyWindow

SharedReader = Callable[[Sequence[int], int], list[int]]
"""(history, max_drafts) -> a copy from other requests, [] when there is none."""

BULK_FROM: Final = 24
"""New tokens from which indexing through iterators beats a loop (a prompt, not a decode step)."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(
            f"prompt lookup {name} out of range ({name}={value}, {low}..{high}) -- lookups with "
            "it would never match or never end -- choose a value in the range"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookupConfig:
    """Settings of prompt lookup; the defaults are the reference's.

    Raises ValueError for a value outside its range.
    """

    ngram: int = 4
    """Tokens of the n-gram that is looked up, 1..64."""
    max_drafts: int = 8
    """Longest copy, 1..16."""
    min_match: int = 8
    """Tokens before the copy that must match, 1..64; never below the shortest n-gram."""
    miss_backoff: int = 16
    """Most rounds skipped after copies that matched nothing, 0..1024; 0 never skips."""
    max_seqs: int = 8
    """Widest batch in which sequences copy at all, 1..128."""
    extra_ngrams: tuple[int, ...] = ()
    """Further n-gram sizes; the longest size that matches wins. One more index entry a token each.
    """
    drafts_per_match: int = 0
    """At most this many drafts for each matched token, 0..16; 0 = no such limit. Short matches are
    worth short copies."""
    prefer_longer: bool = False
    """Ask the shared cache too when the own match is shorter than the cache's key."""

    def __post_init__(self) -> None:
        for size in (self.ngram, *self.extra_ngrams):
            _check_range("ngram", size, 1, 64)
        _check_range("max_drafts", self.max_drafts, 1, 16)
        _check_range("min_match", self.min_match, 1, 64)
        _check_range("miss_backoff", self.miss_backoff, 0, 1024)
        _check_range("max_seqs", self.max_seqs, 1, 128)
        _check_range("drafts_per_match", self.drafts_per_match, 0, 16)

    @property
    def ngram_sizes(self) -> tuple[int, ...]:
        """Every size looked up, longest first, each once."""
        return tuple(sorted({self.ngram, *self.extra_ngrams}, reverse=True))

    @property
    def least_match(self) -> int:
        """Matched tokens below which nothing is copied from the own text."""
        return max(self.min_match, min(self.ngram_sizes))

    @property
    def shared_key_len(self) -> int:
        """Tokens that must match in the shared cache."""
        return max(self.ngram, self.min_match)


class Index(Protocol):
    """What a lookup asks of an index: `NgramIndex` here, or its compiled twin."""

    def observe(self, history: Sequence[int], /) -> None:
        """Index what is new in the history."""

    def continuation(self, history: Sequence[int], /) -> tuple[int, int]:
        """(start, size) of the longest indexed n-gram that ends the history, or (0, 0)."""

    def match(self, history: Sequence[int], wanted: int, /) -> tuple[int, int]:
        """Observe, then (start, matched) of the continuation, or (0, 0)."""


class NgramIndex:
    """Latest occurrence of every n-gram of one history, for one or several n.

    Holds one dict entry per distinct n-gram and size, about 100 bytes, for the sequence's life.
    Raises ValueError when no size is given or one is below 1.
    """

    __slots__ = ("_indexed", "_tables")

    def __init__(self, *sizes: int) -> None:
        if not sizes or min(sizes) < 1:
            raise ValueError(
                f"n-gram sizes (sizes={sizes}, each >= 1) -- an empty n-gram matches "
                "everywhere -- give at least one positive size"
            )
        self._tables: tuple[tuple[int, dict[int, int]], ...] = tuple(
            (size, {}) for size in sorted(set(sizes), reverse=True)
        )
        self._indexed = 0

    def observe(self, history: Sequence[int], /) -> None:
        """Index every n-gram of `history` that a token follows and that is not indexed yet.

        O(new tokens). A history shorter than the one indexed is a rewind: its later n-grams are
        indexed again as they come, the entries of the old ones stay and are refused when met.
        The last n-gram is left out, so no lookup ever finds the end it started from.
        """
        end = len(history)
        done = self._indexed
        self._indexed = end
        if end - done > BULK_FROM:
            self._observe_bulk(history, done, end)
            return
        for size, starts in self._tables:
            for at in range(done if done > size else size, end):
                # A tuple's hash is deterministic for ints and is the fastest fold there is.
                starts[hash(tuple(history[at - size : at]))] = at

    def _observe_bulk(self, history: Sequence[int], done: int, end: int) -> None:
        for size, starts in self._tables:
            first = max(done, size)
            if first < end:
                columns = [history[first - size + j : end - size + j] for j in range(size)]
                starts.update(zip(map(hash, zip(*columns, strict=True)), range(first, end)))

    def continuation(self, history: Sequence[int], /) -> tuple[int, int]:
        """(start, size) of the longest indexed n-gram that ends `history`; (0, 0) when none did.

        `history` is the one last observed.
        """
        end = len(history)
        for size, starts in self._tables:
            if end > size:
                tail = history[end - size :]
                start = starts.get(hash(tuple(tail)), 0)
                if size <= start < end and history[start - size : start] == tail:
                    return start, size
        return 0, 0

    def match(self, history: Sequence[int], wanted: int, /) -> tuple[int, int]:
        """Observe, then (start, matched): the continuation and how much before it matches.

        `matched` is at least the n-gram's size and counted further up to `wanted` tokens; (0, 0)
        when no n-gram that ends the history occurred before.
        """
        self.observe(history)
        start, size = self.continuation(history)
        if 0 < size < wanted:
            size = match_len(history, start, wanted, known=size)
        return start, size


def make_index(*sizes: int) -> Index:
    """An empty index of those n-gram sizes: compiled when the compiled library is there."""
    return NgramIndex(*sizes) if NativeIndex is None else NativeIndex(*sizes)


def propose_copy(index: Index, history: Sequence[int], max_drafts: int) -> list[int]:
    """Up to `max_drafts` tokens after the latest match of an observed history; [] when none."""
    if max_drafts <= 0:
        return []
    start, size = index.continuation(history)
    return list(history[start : start + max_drafts]) if size else []


def match_len(history: Sequence[int], start: int, cap: int, *, known: int = 0) -> int:
    """Tokens before `start` that equal the tokens at the end of `history`, counted up to `cap`.

    The first `known` are taken as equal without a look.
    """
    last = len(history) - 1
    most = min(cap, start)
    matched = min(known, most)
    while matched < most and history[start - 1 - matched] == history[last - matched]:
        matched += 1
    return max(matched, 0)


class PromptLookup:
    """One sequence's lookup drafter: index, window, backoff and the copy in flight.

    The caller owns the history and calls, in order, `propose_with`, then `settle` or `abandon`.
    """

    __slots__ = (
        "_backoff",
        "_cooldown",
        "_enough",
        "_in_flight",
        "_in_flight_shared",
        "_index",
        "_least",
        "_misses",
        "_per_match",
        "_shared_match",
        "_window",
    )

    def __init__(self, config: PromptLookupConfig, *, index: Index | None = None) -> None:
        self._index = make_index(*config.ngram_sizes) if index is None else index
        self._window = CopyWindow(max_drafts=config.max_drafts)
        self._backoff = config.miss_backoff
        self._least = config.least_match
        self._per_match = config.drafts_per_match
        self._shared_match = config.shared_key_len
        self._enough = config.shared_key_len if config.prefer_longer else 1
        self._misses = 0
        self._cooldown = 0
        self._in_flight = 0
        self._in_flight_shared = False

    @property
    def window(self) -> int:
        """Drafts that the sequence's record says the next copy may carry."""
        return self._window.current

    @property
    def in_flight(self) -> int:
        """Tokens of the copy that awaits its verdict, 0 when none does."""
        return self._in_flight

    @property
    def in_flight_shared(self) -> bool:
        """Whether that copy came from the shared cache."""
        return self._in_flight_shared

    @property
    def cooldown(self) -> int:
        """Rounds still to be skipped."""
        return self._cooldown

    def observe(self, history: Sequence[int]) -> None:
        """Index what is new in `history` without proposing (a prefilled prompt, a plain step)."""
        self._index.observe(history)

    def propose_with(
        self,
        history: Sequence[int],
        max_drafts: int,
        *,
        shared: SharedReader | None = None,
    ) -> list[int]:
        """A copy of at most `max_drafts` tokens that may follow `history`, [] when there is none.

        The caller's `max_drafts` is the only bound on length besides `drafts_per_match`; it takes
        `window` into account if it wants to. A round of the cooldown is used up by each call.
        """
        self._in_flight = 0
        self._in_flight_shared = False
        if self._cooldown or max_drafts <= 0:
            self._cooldown = max(0, self._cooldown - 1)
            self._index.observe(history)
            return []
        wanted = max(self._least, self._enough)
        if self._per_match:
            wanted = max(wanted, -(-max_drafts // self._per_match))
        start, matched = self._index.match(history, wanted)
        if matched < self._least:
            matched = 0
        if shared is not None and matched < self._enough:
            copy = shared(history, self._limit(max_drafts, self._shared_match))
            if copy:
                self._in_flight = len(copy)
                self._in_flight_shared = True
                return copy
        if not matched:
            return []
        copy = list(history[start : start + self._limit(max_drafts, matched)])
        self._in_flight = len(copy)
        return copy

    def _limit(self, max_drafts: int, matched: int) -> int:
        return min(max_drafts, self._per_match * matched) if self._per_match else max_drafts

    def shorten(self, num_drafts: int) -> None:
        """Say that only the first `num_drafts` tokens of the copy were sent to the verify."""
        self._in_flight = max(0, min(self._in_flight, num_drafts))

    def settle(self, accepted: int) -> int:
        """Learn what the verify accepted of the copy in flight; returns the copy's length.

        Nothing in flight changes nothing. A copy of which nothing was accepted doubles the rounds
        to skip, up to `miss_backoff`; any accepted token ends the series of misses.
        """
        proposed = self._in_flight
        self._in_flight = 0
        self._in_flight_shared = False
        if not proposed:
            return 0
        accepted = min(accepted, proposed)
        self._window.record(proposed=proposed, accepted=accepted)
        if accepted > 0:
            self._misses = 0
        else:
            self._misses += 1
            # Past 2^10 the cap of 1024 rounds decides anyway.
            self._cooldown = min(1 << min(self._misses - 1, 10), self._backoff)
        return proposed

    def abandon(self) -> None:
        """Forget the copy in flight without judging it: it was never verified."""
        self._in_flight = 0
        self._in_flight_shared = False
