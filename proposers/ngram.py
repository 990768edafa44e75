"""Drafts one token from the longest suffix the text has repeated: no index, no state, no memory.

The simplest drafter there is, and the yardstick for the indexed ones. Every call scans the whole
history: among the suffixes of 2 to 16 tokens the longest that occurred before wins, and the token
after its *earliest* occurrence is the draft. Use `prompt_lookup` where the scan would show.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

MIN_SUFFIX: Final = 2
MAX_SUFFIX: Final = 16

_WORD: Final = "q"
_WORD_BYTES: Final = array(_WORD).itemsize


class NgramProposer:
    """One draft per call, and counters of what became of them."""

    __slots__ = ("num_accepted", "num_rejected")

    def __init__(self) -> None:
        self.num_accepted = 0
        self.num_rejected = 0

    def propose(self, history: Sequence[int]) -> int | None:
        """The draft that follows `history` ([T] token ids), or None when no suffix repeats.

        Costs O(T): whether a suffix repeats is monotone in its length (drop the first token of
        both occurrences), so the longest is found by bisection over searches at memory speed.
        """
        longest = min(MAX_SUFFIX, len(history) - 1)
        if longest < MIN_SUFFIX:
            return None
        text = array(_WORD, history).tobytes()
        follower = _earliest_follower(text, MIN_SUFFIX)
        if follower is None:
            return None
        repeats, too_long = MIN_SUFFIX, longest + 1
        while too_long - repeats > 1:
            size = (repeats + too_long) // 2
            found = _earliest_follower(text, size)
            if found is None:
                too_long = size
            else:
                repeats, follower = size, found
        return history[follower]

    def settle(self, *, accepted: bool) -> None:
        """Count what the verify said of the last draft."""
        if accepted:
            self.num_accepted += 1
        else:
            self.num_rejected += 1


def _earliest_follower(text: bytes, size: int) -> int | None:
    """Index of the token after the first earlier occurrence of the last `size` tokens of `text`.

    `text` holds tokens of `_WORD_BYTES`. The search ends one token early, so that a token always
    follows; a hit that straddles two tokens is no hit.
    """
    end = len(text) - _WORD_BYTES
    suffix = text[len(text) - size * _WORD_BYTES :]
    at = text.find(suffix, 0, end)
    while at >= 0:
        if at % _WORD_BYTES == 0:
            return at // _WORD_BYTES + size
        at = text.find(suffix, at + 1, end)
    return None
