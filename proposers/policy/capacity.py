"""Slot capacity: how many drafts the slots of a step can still carry, and which verify runs.

A state slot of a recurrent model keeps one rollback state per verify row, so its pool bounds the
drafts. Pools are tiered by the ladder: low slots are deep because only narrow batches speculate
deep, and slots are compacted downward. `UNLIMITED` = no bound. Nothing here raises on odd numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.policy import UNLIMITED, PolicyView

UNIFORM_POOL_WIDTH: Final = 32
"""Up to this many sequences every slot gets verify state whatever the width cap."""


def clamp_drafts(drafts: int, capacities: Iterable[int]) -> int:
    """The step's drafts bounded by every slot's capacity; no slots leave it unchanged."""
    return max(0, min(drafts, min(capacities, default=UNLIMITED)))


def step_depth(view: PolicyView, drafts: int) -> int:
    """The drafts a policy wants, bounded by num_drafts and by every active slot."""
    return clamp_drafts(min(drafts, view.limits.num_drafts), view.capacities)


def why_plain(view: PolicyView) -> str | None:
    """Why this step cannot speculate at all, or None when it can."""
    limits = view.limits
    if limits.num_drafts <= 0:
        return "speculation off"
    if view.width == 0:
        return "no active stream"
    if view.width > limits.max_seqs:
        return "width over the cap"
    if max(view.slots, default=0) >= limits.slot_cap:
        return "slot without verify state"
    return None


def pool_capacities(
    drafts_for: Callable[[int, int], int],
    *,
    num_slots: int,
    num_drafts: int,
    max_width: int = 128,
    full_width: bool = False,
    lookup_max_seqs: int = 0,
    lookup_max_drafts: int = 0,
) -> tuple[int, ...]:
    """Draft capacity of every slot, for sizing the pools.

    A sequence in slot s means at least s + 1 active ones, so its slot needs the deepest count
    that `drafts_for(width, num_drafts)` gives any such width. `full_width`
    (MTP_POOL_FULL_WIDTH) gives every slot num_drafts. Prompt lookup raises the first
    `lookup_max_seqs` slots to `lookup_max_drafts`.
    """
    deepest = [0] * (max(num_slots, 0) + 1)
    widest = max(max_width, num_slots, 1)
    running = 0
    for width in range(widest, 0, -1):
        running = max(running, drafts_for(width, num_drafts))
        if width <= num_slots:
            deepest[width - 1] = running
    tiers = [num_drafts if full_width else drafts for drafts in deepest[:-1]]
    for slot in range(min(max(lookup_max_seqs, 0), len(tiers))):
        tiers[slot] = max(tiers[slot], lookup_max_drafts)
    return tuple(tiers)


def spec_slot_cap(
    *, recurrent: bool, max_batch: int, max_seqs: int, full_width: bool = False
) -> int:
    """First slot that may not speculate.

    Models without recurrent state have none to roll back: every slot of the batch may. The
    others stop at their verify-state pool, which covers the batch up to 32 sequences or with
    full-width pools, and else grows with the width cap.
    """
    if not recurrent or full_width or max_batch <= UNIFORM_POOL_WIDTH:
        return max(max_batch, 0)
    return min(max_batch, max(UNIFORM_POOL_WIDTH, max_seqs))


class VerifyArm(enum.Enum):
    """Which verify a single sequence runs; the name counts rows (drafts + 1)."""

    K2 = "k2"
    K3 = "k3"
    K4 = "k4"
    KN = "kn"
    """One verify of as many rows as there are drafts, judged like K4 (copied drafts)."""
    DFLASH = "dflash"
    """The block drafter's span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialPlan:
    """How a sequence outside the batched verify runs."""

    keep: int
    """Drafts it verifies; the surplus is dropped."""
    arm: VerifyArm


def serial_plan(pending: int, step_drafts: int, *, dflash: bool = False) -> SerialPlan:
    """Pick the verify of one sequence from what it holds and what the step allows."""
    held = max(pending, 0)
    keep = held if dflash else min(held, max(step_drafts, 0))
    if keep >= 4:
        return SerialPlan(keep=keep, arm=VerifyArm.DFLASH if dflash else VerifyArm.KN)
    if step_drafts >= 3 and keep >= 3:
        return SerialPlan(keep=keep, arm=VerifyArm.K4)
    if step_drafts >= 2 and keep >= 2:
        return SerialPlan(keep=keep, arm=VerifyArm.K3)
    return SerialPlan(keep=keep, arm=VerifyArm.K2)
