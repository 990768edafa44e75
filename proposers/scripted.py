"""Scripted drafters: junk and replay. For proving that drafts never change the text.

Not in the catalog: they are handed over in code. Both run on rank 0 alone, follow no command and
keep no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from phalanx.proposers.base import Draft, DraftContext, DraftInput, DraftProposer, ProposerState

GOLDEN: Final = 0x9E3779B97F4A7C15
MASK: Final = 2**64 - 1


class ScriptedState(ProposerState):
    """Nothing."""

    __slots__ = ()

    def map_rows_through(self, end: int) -> None:
        """Nothing to back."""


class ScriptedProposer(DraftProposer):
    """Drafts what a function says for a history that ends in the last token."""

    def __init__(self, script: Callable[[Sequence[int], int], list[int]]) -> None:
        """`script(history, num_drafts)` -> at most num_drafts ids."""
        self._script = script

    def alloc_state(self) -> ScriptedState:
        return ScriptedState()

    def after_verify(self, num_accepted: int, state: ProposerState) -> None:
        """Nothing to trim."""

    def propose(self, item: DraftInput, context: DraftContext) -> Draft:
        history = [*item.history[: item.position], item.last_token]
        return Draft(token_ids=self._script(history, item.num_drafts)[: item.num_drafts])


def junk_drafter(*, vocab_size: int, seed: int = 0) -> ScriptedProposer:
    """Drafts ids that have nothing to do with the text, the same for the same history length."""

    def script(history: Sequence[int], num_drafts: int) -> list[int]:
        base = seed + len(history) * 31 + history[-1]
        return [((base + 7 * i) * GOLDEN & MASK) % vocab_size for i in range(num_drafts)]

    return ScriptedProposer(script)


def replay_drafter(
    transcripts: Sequence[Sequence[int]], *, flaw_every: int = 0
) -> ScriptedProposer:
    """Drafts what a transcript (prompt and answer) went on with: the target as its own drafter.

    `flaw_every` = n spoils each n-th position of the transcript; 0 = none. A history that no
    transcript continues gets no drafts.
    """

    def script(history: Sequence[int], num_drafts: int) -> list[int]:
        at = len(history)
        for transcript in transcripts:
            if list(transcript[:at]) == list(history):
                return [
                    token + 1
                    if flaw_every and (at + i) % flaw_every == 0 and token == 0
                    else token - 1
                    if flaw_every and (at + i) % flaw_every == 0
                    else token
                    for i, token in enumerate(transcript[at : at + num_drafts])
                ]
        return []

    return ScriptedProposer(script)
