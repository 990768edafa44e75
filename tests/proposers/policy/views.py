"""Builders of policy views and outcomes for the tests of this folder."""

from phalanx.proposers.policy.policy import (
    UNLIMITED,
    PolicyView,
    SpecLimits,
    StepOutcome,
    StreamOutcome,
)


def view(
    width: int,
    *,
    num_drafts: int = 3,
    capacities: tuple[int, ...] | None = None,
    slots: tuple[int, ...] | None = None,
    max_seqs: int = 32,
    slot_cap: int = UNLIMITED,
    context_depth: int = 0,
    pinned: bool = False,
) -> PolicyView:
    return PolicyView(
        stream_ids=tuple(range(width)),
        pending_drafts=(num_drafts,) * width,
        slots=slots if slots is not None else tuple(range(width)),
        capacities=capacities if capacities is not None else (UNLIMITED,) * width,
        limits=SpecLimits(num_drafts=num_drafts, max_seqs=max_seqs, slot_cap=slot_cap),
        context_depth=context_depth,
        pinned=pinned,
    )


def outcome(
    width: int,
    *,
    depth: int,
    accepted: int = 0,
    wall_s: float = 0.01,
    now_s: float = 0.0,
    pinned: bool = False,
) -> StepOutcome:
    emitted = accepted + 1 if depth > 0 else 1
    streams = tuple(
        StreamOutcome(stream_id=i, num_drafts=depth, num_accepted=accepted, num_emitted=emitted)
        for i in range(width)
    )
    return StepOutcome(depth=depth, wall_s=wall_s, streams=streams, now_s=now_s, pinned=pinned)
