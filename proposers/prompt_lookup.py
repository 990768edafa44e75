"""Prompt lookup: drafts copied from the sequence's own text, where its last tokens occurred before.

    history   token ids of prompt and answer so far, [T]; owned and grown by the caller
    start     index into history: the token after an earlier occurrence of the last n tokens

`ngram_index` finds the start in one hash lookup whatever T is. Here is one sequence's drafter on
top of it: how good a match must be, how long the copy may get, when to stop asking. It never reads
a clock, and what it proposes is verified, so it never changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.proposers.copy_window import CopyWindow
from phalanx.proposers.ngram_index import Index, make_index

SharedReader = Callable[[Sequence[int], int], list[int]]
"""(history, max_drafts) -> a copy from other requests, [] when there is none."""


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


class PromptLookup:
    """One sequence's lookup drafter: index, window, backoff and the copy in flight.

    The caller owns the history and calls, in order, `propose_with`, then `settle` or `abandon`.
    """

    __slots__ = (
        "_backoff",
        "_cooldown",
        "_counted",
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
        # Matched tokens beyond these change nothing, so nobody counts them.
        self._counted = max(self._least, self._enough)
        if self._per_match:
            self._counted = max(self._counted, -(-config.max_drafts // self._per_match))
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
        start, matched = self._index.match(history, self._counted)
        if matched < self._least:
            matched = 0
        if shared is not None and matched < self._enough:
            limit = max_drafts
            if self._per_match:
                limit = min(limit, self._per_match * self._shared_match)
            copy = shared(history, limit)
            if copy:
                self._in_flight = len(copy)
                self._in_flight_shared = True
                return copy
        if not matched:
            return []
        if self._per_match and self._per_match * matched < max_drafts:
            max_drafts = self._per_match * matched
        copy = list(history[start : start + max_drafts])
        self._in_flight = len(copy)
        return copy

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
