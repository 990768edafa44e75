"""Confidence: stop drafting or drop drafts the drafter doubts, and count how often it is right.

Confidence of a draft = the drafter's top-1 softmax probability, or its natural logarithm (`lp`).
Three users: the chain floor tau (MTP_DRAFT_CONF) drops a whole proposal; the confidence stop
(`--draft-confidence-stop`) ends a chain at its first doubtful draft; and the reach counters tell
the calibration how often a draft of a given confidence is accepted. A missing or NaN confidence
is "not measured" and never stops anything.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.levers import parse_finite

TAU_RANGE: Final = (0.0, 0.99)

LP_EDGES: Final = (-4.0, -2.0, -1.0, -0.5, -0.25, -0.1, -0.05, -0.02, -0.005, 0.0)
"""Upper bounds of the log-probability buckets; an edge belongs to its own bucket."""


def parse_draft_conf_tau(raw: str | None) -> float:
    """MTP_DRAFT_CONF: a number clamped to 0 .. 0.99; 0.0 (off) when unset or unreadable."""
    tau = parse_finite(raw)
    low, high = TAU_RANGE
    return low if tau is None else min(max(tau, low), high)


def check_confidence_stop(tau: float | None) -> float | None:
    """Check `--draft-confidence-stop`; None = off.

    Raises:
        ValueError: tau is no probability above 0 and up to 1.
    """
    if tau is None or 0.0 < tau <= 1.0:
        return tau
    raise ValueError(
        f"confidence stop is no probability (draft_confidence_stop={tau}, limit above 0, up to 1) "
        "-- a chain ends where the drafter's confidence falls below it -- give such a value or "
        "leave it out"
    )


def chain_confidence(probabilities: Iterable[float]) -> float | None:
    """Confidence of one proposal: the smallest top-1 probability; None without a measured one."""
    return min((p for p in probabilities if not math.isnan(p)), default=None)


def keeps_drafts(num_drafts: int, *, confidence: float | None, tau: float) -> bool:
    """Whether a proposal is verified at all.

    False means: drop it as if every draft had been rejected (the drafter's rows are trimmed) and
    decode plainly next step. An unmeasured confidence never drops anything.
    """
    if tau <= 0.0 or num_drafts <= 0 or confidence is None:
        return True
    return not confidence < tau


def stop_depth(lps: Sequence[float], num_drafts: int, *, tau: float | None) -> int:
    """Drafts before the first whose log-probability lies below ln tau; 0 .. num_drafts.

    `lps` may be shorter than the chain: positions without a measurement pass.
    """
    if tau is None or not tau > 0.0:
        return max(num_drafts, 0)
    floor = math.log(tau)
    for depth in range(min(len(lps), max(num_drafts, 0))):
        if lps[depth] < floor:
            return depth
    return max(num_drafts, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachCounts:
    """How often drafts were reached by a verify, and accepted, per confidence bucket.

    This is the telemetry the calibration is fitted from (`cost_fit`).
    """

    edges: tuple[float, ...]
    reached: tuple[int, ...]
    accepted: tuple[int, ...]
    overflow: int
    """Reached drafts whose confidence was no finite number."""
    verify_steps: tuple[tuple[int, int, int], ...]
    """(drafts, accepted, verifies), ascending: the base of the priors by position."""

    def rate(self, lp: float) -> float | None:
        """Share accepted in the bucket of `lp`; None when that bucket was never reached."""
        bucket = lp_bucket(lp)
        if bucket is None or self.reached[bucket] == 0:
            return None
        return self.accepted[bucket] / self.reached[bucket]


def lp_bucket(lp: float) -> int | None:
    """Bucket of a log-probability: first edge at or above it, a positive one in the last.

    None for NaN and the infinities.
    """
    if not math.isfinite(lp):
        return None
    return min(bisect.bisect_left(LP_EDGES, lp), len(LP_EDGES) - 1)


class ConfidenceReach:
    """Counters behind `ReachCounts`. Written by the scheduler only."""

    __slots__ = ("_accepted", "_overflow", "_reached", "_verify_steps")

    def __init__(self) -> None:
        self._reached = [0] * len(LP_EDGES)
        self._accepted = [0] * len(LP_EDGES)
        self._overflow = 0
        self._verify_steps: dict[tuple[int, int], int] = {}

    def record(self, lps: Sequence[float], *, num_drafts: int, accepted: int) -> None:
        """Count one verify of `num_drafts` drafts with the drafter's `lps` for them.

        Only drafts the verify reached count: the accepted ones and the first rejected. A list of
        another length than the drafts is "not measured" and adds to the verify steps only.
        """
        if num_drafts <= 0:
            return
        accepted = min(max(accepted, 0), num_drafts)
        step = (num_drafts, accepted)
        self._verify_steps[step] = self._verify_steps.get(step, 0) + 1
        if len(lps) != num_drafts:
            return
        for position in range(min(accepted + 1, num_drafts)):
            bucket = lp_bucket(lps[position])
            if bucket is None:
                self._overflow += 1
                continue
            self._reached[bucket] += 1
            self._accepted[bucket] += 1 if position < accepted else 0

    def counts(self) -> ReachCounts:
        """A frozen copy."""
        steps = sorted((*step, count) for step, count in self._verify_steps.items())
        return ReachCounts(
            edges=LP_EDGES,
            reached=tuple(self._reached),
            accepted=tuple(self._accepted),
            overflow=self._overflow,
            verify_steps=tuple(steps),
        )
