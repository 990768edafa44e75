"""How many drafts each sequence is asked for after a round: a fixed count, or a policy's.

The choice is rank 0's and travels in the command. Only how often drafts are accepted depends on
it, never the text, so it may change every round and differ between the sequences of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from phalanx.proposers.policy.controller import Controller
from phalanx.proposers.policy.policy import (
    UNLIMITED,
    Decision,
    Policy,
    PolicyView,
    SpecLimits,
    StepOutcome,
)
from phalanx.runtime.sequence import Phase, Sequence


class DepthChooser(Protocol):
    """Asked once after each round's forward, told once what the round gave."""

    learns: bool
    """`observe` and `retire` are worth calling."""

    def depths(self, sequences: SequenceOf[Sequence], *, now_s: float) -> list[int]:
        """Drafts for each sequence; the scheduler cuts them to what can still be emitted."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a round, before the next one's depths are asked for."""
        ...

    def retire(self, stream_id: int) -> None:
        """Forget a request that ended."""
        ...


class FixedDepth:
    """The same count for everybody, always."""

    __slots__ = ("learns", "num_drafts")

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts, self.learns = num_drafts, False

    def depths(self, sequences: SequenceOf[Sequence], *, now_s: float) -> list[int]:
        return [self.num_drafts] * len(sequences)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""

    def retire(self, stream_id: int) -> None:
        """Nothing to forget."""


class PolicyDepth:
    """Asks a policy of `proposers/policy` once a round.

    Rows of a prompt are no decision of speculation, so the policy sees decoding sequences only.
    """

    __slots__ = ("_limits", "_policy", "decision", "learns", "plain_switches")

    def __init__(self, policy: Policy, *, limits: SpecLimits) -> None:
        self._policy, self._limits, self.learns = policy, limits, True
        self.decision: Decision | None = None
        """The latest; None before the first."""
        self.plain_switches = 0
        """How often the controller went from speculation to plain decoding. The rounds of this
        engine hold no drafts when a depth is chosen, so there are none to drop then."""

    def depths(self, sequences: SequenceOf[Sequence], *, now_s: float) -> list[int]:
        decoding = [sequence for sequence in sequences if sequence.phase is Phase.DECODE]
        if not decoding:
            return [0] * len(sequences)
        view = PolicyView(
            stream_ids=tuple(sequence.id for sequence in decoding),
            pending_drafts=tuple(len(sequence.drafts) for sequence in decoding),
            slots=tuple(sequence.slot for sequence in decoding),
            capacities=(UNLIMITED,) * len(decoding),
            limits=self._limits,
            context_depth=max(len(sequence.tokens) for sequence in decoding),
            now_s=now_s,
        )
        self.decision = self._policy.decide(view)
        if isinstance(self._policy, Controller) and self._policy.take_entered_plain():
            self.plain_switches += 1
        return [self.decision.depth] * len(sequences)

    def observe(self, outcome: StepOutcome) -> None:
        self._policy.observe(outcome)

    def retire(self, stream_id: int) -> None:
        if isinstance(self._policy, Controller):
            self._policy.retire(stream_id)
