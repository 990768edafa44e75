"""One request in flight: its tokens, blocks and phase. Written by the Scheduler alone.

    tokens        prompt and answer; the last one is not computed yet once decoding has begun
    num_committed tokens whose keys and values are in the cache: the position of the next row

While a prompt is computed num_committed < len(tokens) - 1 or the final chunk is due; while
decoding num_committed == len(tokens) - 1. A preempted sequence goes back to num_committed 0 with
all its tokens, answer included, and computes them again as if they were a prompt.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from phalanx.runtime.request import Request

FinishReason = Literal["stop", "length", "abort", "error"]


class Phase(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request in flight."""

    request: Request
    seed: int
    """Of its draws; the user's, or one chosen when it arrived."""
    arrival: int
    """Order of arrival; lower is older, and older is served first."""
    tokens: list[int]
    num_prompt: int
    phase: Phase = Phase.WAITING
    slot: int = -1
    """Identity on every rank while it runs; -1 when it does not."""
    num_committed: int = 0
    blocks: list[int] = field(default_factory=list)
    """The cache blocks of its positions, in order."""
    num_sent_blocks: int = 0
    """How many of them the ranks have been told."""
    drafts: list[int] = field(default_factory=list)
    """Drafts for the tokens after the last one, to be verified next."""
    finish_reason: FinishReason | None = None
    num_preemptions: int = 0

    @property
    def id(self) -> int:
        """The request's id."""
        return self.request.id

    @property
    def num_output(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_to_compute(self) -> int:
        """Tokens not in the cache yet."""
        return len(self.tokens) - self.num_committed

    def take_new_blocks(self) -> list[int]:
        """The blocks that the ranks have not been told yet; they count as told from now on."""
        fresh = self.blocks[self.num_sent_blocks :]
        self.num_sent_blocks = len(self.blocks)
        return fresh


def open_sequence(request: Request, *, seed: int, arrival: int) -> Sequence:
    """A sequence that waits."""
    tokens = list(request.prompt_token_ids)
    return Sequence(
        request=request, seed=seed, arrival=arrival, tokens=tokens, num_prompt=len(tokens)
    )
