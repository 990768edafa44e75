"""How many drafts each sequence is asked for after a round: a fixed count, or a policy's.

The choice is rank 0's and travels in the command. Only how often drafts are accepted depends on
it, never the text, so it may change every round and differ between the sequences of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from phalanx.proposers.policy.policy import (
    UNLIMITED,
    Decision,
    Policy,
    PolicyView,
    SpecLimits,
    StepOutcome,
)
from phalanx.runtime.sequence import Sequence


class DepthChooser(Protocol):
    """Asked once after each round's forward, told once what the round gave."""

    learns: bool
    """`observe` is worth calling."""

    def depths(self, sequences: SequenceOf[Sequence], *, now_s: float) -> list[int]:
        """Drafts for each sequence; the scheduler cuts them to what can still be emitted."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a round."""
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


class PolicyDepth:
    """Asks a policy of `proposers/policy` once a round."""

    __slots__ = ("_limits", "_policy", "decision", "learns")

    def __init__(self, policy: Policy, *, limits: SpecLimits) -> None:
        self._policy, self._limits, self.learns = policy, limits, True
        self.decision: Decision | None = None
        """The latest; None before the first."""

    def depths(self, sequences: SequenceOf[Sequence], *, now_s: float) -> list[int]:
        view = PolicyView(
            stream_ids=tuple(sequence.id for sequence in sequences),
            pending_drafts=tuple(len(sequence.drafts) for sequence in sequences),
            slots=tuple(sequence.slot for sequence in sequences),
            capacities=(UNLIMITED,) * len(sequences),
            limits=self._limits,
            context_depth=max((len(sequence.tokens) for sequence in sequences), default=0),
            now_s=now_s,
        )
        self.decision = self._policy.decide(view)
        return [self.decision.depth] * len(sequences)

    def observe(self, outcome: StepOutcome) -> None:
        self._policy.observe(outcome)
