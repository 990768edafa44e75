"""Copy window: how long the next copy of a lookup drafter may be, and how long it is worth sending.

The window doubles after a copy that was accepted whole and halves after one that broke, so a
sequence that repeats itself soon drafts at full width and one that does not drafts a token or two.
It never decides whether to copy (`prompt_lookup` does) and never reads a clock.
"""

from __future__ import annotations

from typing import Final

START: Final = 2
"""Drafts of a sequence's first copy, before anything is known about it (clamped to the bounds)."""

SHARED_PATH_CAP: Final = 3
"""Drafts a copy may add to a batch or to several ranks: their verify widths stop at four rows."""

ROUNDED_FROM: Final = 4
"""Copies at least this long are cut to a power of two."""


class CopyWindow:
    """The drafts one copy may carry, between `min_drafts` and `max_drafts`.

    `start` is clamped to the bounds. Raises ValueError unless 1 <= min_drafts <= max_drafts.
    """

    __slots__ = ("_current", "_max", "_min")

    def __init__(self, *, min_drafts: int = 1, max_drafts: int, start: int = START) -> None:
        if not 1 <= min_drafts <= max_drafts:
            raise ValueError(
                f"copy window bounds (min_drafts={min_drafts}, max_drafts={max_drafts}, "
                "1 <= min <= max) -- no copy could satisfy them -- give increasing positive bounds"
            )
        self._min = min_drafts
        self._max = max_drafts
        self._current = min(max(start, min_drafts), max_drafts)

    @property
    def current(self) -> int:
        """Drafts the next copy may carry."""
        return self._current

    def record(self, *, proposed: int, accepted: int) -> None:
        """Learn from one verified copy; an empty copy is no evidence."""
        if proposed <= 0:
            return
        if accepted >= proposed:
            self._current = min(self._current * 2, self._max)
        else:
            self._current = max(self._current // 2, self._min)


def copy_cap(*, max_drafts: int, slot_capacity: int, num_seqs: int, num_ranks: int) -> int:
    """The most drafts a copy may carry in this step.

    A lone sequence on one rank is bounded by its slot only; in a batch or on several ranks a copy
    joins a verify whose widths are fixed, so it is bounded by `SHARED_PATH_CAP` too.
    """
    cap = min(max_drafts, slot_capacity)
    alone = num_seqs <= 1 and num_ranks <= 1
    return max(0, cap if alone else min(cap, SHARED_PATH_CAP))


def copy_request(*, cap: int, window: int, chain: int) -> int:
    """Drafts to ask a lookup for, when `chain` drafts of the model's own are already pending.

    0 = do not ask: a copy that must stay shorter than the pending chain cannot replace it.
    """
    if cap < max(chain, 1):
        return 0
    return min(cap, max(window, chain))


def sendable_len(copy_len: int) -> int:
    """How much of a copy to send: `ROUNDED_FROM` tokens or more are cut to a power of two.

    Few distinct verify widths means few captured graphs.
    """
    if copy_len < ROUNDED_FROM:
        return max(copy_len, 0)
    return 1 << (copy_len.bit_length() - 1)
