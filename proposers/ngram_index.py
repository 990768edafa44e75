"""N-gram index: where the last tokens of a history occurred before, in one hash lookup.

    history   token ids of one sequence so far, [T]; owned and grown by the caller
    start     index into history: the token after an earlier occurrence of the last n tokens

The index maps the hash of an n-gram to its latest start. It holds no text: every hit is compared
with the history token by token, which makes hash collisions and entries left behind by a rewind
harmless. `make_index` gives the compiled twin where it is built, `NgramIndex` elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from phalanx.kernels.lookup_native import NativeIndex

BULK_FROM: Final = 24
"""New tokens from which indexing through iterators beats a loop (a prompt, not a decode step)."""


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
                hashes = map(hash, zip(*columns, strict=True))
                starts.update(zip(hashes, range(first, end), strict=True))

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
