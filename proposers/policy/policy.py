"""Policy protocol: what a policy sees and what it may decide.

A policy says how deep the step speculates; it never chooses a token and never says whether a
sequence is allowed to speculate (that is `eligibility`). The engine calls `decide` once a step
with a frozen `PolicyView` and, after the step ran, `observe` once with a frozen `StepOutcome`.
Time is a number inside these values: a policy reads no clock, no environment and no torch.

Words: width = active sequences; depth = drafts of one sequence (0 = plain decode); a verify of
depth k has k + 1 rows and emits 1 .. k + 1 tokens of each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

UNLIMITED: Final = 2**63 - 1
"""The draft capacity of a slot without a limit (also: no row budget, no slot cap)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLimits:
    """What the serve allows at all; the same value for the whole run."""

    num_drafts: int
    """Deepest draft chain the drafter was configured for; 0 = speculation off."""
    max_seqs: int = 32
    """Widest batch that may speculate (`mtp_max_seqs`)."""
    row_budget: int = UNLIMITED
    """Verify rows one step may carry, over all sequences."""
    slot_cap: int = UNLIMITED
    """Slots at or above this one hold no rollback state, so a step touching them is plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """One step as a policy sees it. Tuples are per active stream, all in the same order."""

    stream_ids: tuple[int, ...]
    """Identity of each stream, never reused within a run."""
    pending_drafts: tuple[int, ...]
    """Drafts each stream holds already (0 = a bootstrap step comes first)."""
    slots: tuple[int, ...]
    """State slot of each stream."""
    capacities: tuple[int, ...]
    """Draft capacity of each stream's slot; `UNLIMITED` for none."""
    limits: SpecLimits
    context_depth: int = 0
    """Longest context among the active streams, in tokens."""
    now_s: float = 0.0
    """The engine's monotonic time in seconds. May be wrong: it never corrupts a policy."""
    pinned: bool = False
    """A pin holds (see `eligibility`): a policy that would choose 0 answers with the depth it
    would speculate at and sets `Decision.pinned`. Refusals (width cap, no slot) still give 0."""

    @property
    def width(self) -> int:
        """Active sequences (never a padded graph width)."""
        return len(self.stream_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How deep the step speculates, and why."""

    depth: int
    """Drafts per sequence, after the slot-capacity clamp, before pruning; 0 = plain decode."""
    reason: str
    """Why, in a few words for the snapshot and the logs, e.g. `cost probe`."""
    probing: bool = False
    """The depth was picked to measure something, not because it is the best known one."""
    pinned: bool = False
    """A pin turned a chosen 0 into this depth; the engine hands it back in the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOutcome:
    """What one stream got from one step."""

    stream_id: int
    num_drafts: int
    """Drafts the stream verified; 0 for a plain or bootstrap row."""
    num_accepted: int
    """Accepted drafts, 0 .. num_drafts."""
    num_emitted: int
    """Tokens committed: accepted drafts plus the bonus or correction token."""
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one step did and what it cost."""

    depth: int
    """The depth that ran, after every clamp and pin; 0 = plain decode. A bootstrap step, which
    only drafts for the next one, counts with the depth it drafts: its time is speculation's."""
    wall_s: float
    """Wall time of the step, propose and bootstrap included."""
    streams: tuple[StreamOutcome, ...]
    joules: float | None = None
    pinned: bool = False
    """A pin overrode the policy: the step says nothing about the policy's choice."""
    now_s: float = 0.0
    """The engine's monotonic time in seconds after the step."""
    reason: str = ""
    """The reason of the decision behind it."""

    @property
    def width(self) -> int:
        """Active sequences of the step."""
        return len(self.streams)

    @property
    def num_emitted(self) -> int:
        """Tokens committed by all streams."""
        return sum(stream.num_emitted for stream in self.streams)


class Policy(Protocol):
    """Picks how many drafts each step carries.

    Neither method raises on odd numbers (NaN, infinities, negative counts, empty batches, clocks
    that run backwards): such input is ignored or clamped.
    """

    def decide(self, view: PolicyView) -> Decision:
        """Return the depth of the coming step, 0 .. `view.limits.num_drafts`."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from the step that `decide`'s answer led to."""
        ...
