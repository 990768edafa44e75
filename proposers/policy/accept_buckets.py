"""Accept statistics by batch width: 128 verifies fill a bucket, and a full bucket is one flush.

One bucket per width 0 .. 128; wider batches share the last. A flush is the only sample the
adaptive rung ever sees, and only when its window was short enough to describe the present
(fresh). Counting never depends on the debug lever (MTP_ACCEPT_DEBUG), which only adds a log line.

p1 = share of verifies whose first draft equals the target's pick; na = accepted drafts of one
verify; p2cond = chance of the second draft given the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

LAST_BUCKET: Final = 128
FOLD_BUCKET: Final = 16
FLUSH_VERIFIES: Final = 128
FRESH_SPAN_MS: Final = 5000.0


def token_ratio(p1: float, p2cond: float) -> float:
    """Expected tokens of a two-draft verify over a one-draft verify: 1 + p1 p2 / (1 + p1).

    1.0 (no gain) when p1 is not above zero or either number is not finite.
    """
    if not (math.isfinite(p1) and math.isfinite(p2cond)) or p1 <= 0.0:
        return 1.0
    return 1.0 + p1 * p2cond / (1.0 + p1)


def p2cond_from(p1: float, mean_accepted: float) -> float | None:
    """p2cond out of a two-draft window's mean, clamped to 0..1; None without a usable p1."""
    if not (math.isfinite(p1) and math.isfinite(mean_accepted)) or p1 <= 0.0:
        return None
    return min(1.0, max(0.0, (mean_accepted - p1) / p1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptFlush:
    """Statistics of one full window at one width."""

    width: int
    k_drafts: int
    """Deepest verify of the window, in drafts."""
    verifies: int
    p1: float
    mean_accepted: float
    span_ms: float
    """From the window's first verify to its last; negative or NaN when the clock misbehaved."""

    @property
    def fresh(self) -> bool:
        """The window is short enough to judge the present by (a misread clock is not)."""
        return 0.0 <= self.span_ms <= FRESH_SPAN_MS

    def line(self) -> str:
        """The debug line."""
        p2cond = p2cond_from(self.p1, self.mean_accepted) if self.k_drafts >= 2 else None
        ratio = "-" if p2cond is None else f"{token_ratio(self.p1, p2cond):.3f}"
        return (
            f"mtp accept n={self.width} k_drafts={self.k_drafts} verifies={self.verifies} "
            f"p1={self.p1:.3f} mean_na={self.mean_accepted:.3f} "
            f"tok_step={1.0 + self.mean_accepted:.3f} token_ratio={ratio} "
            f"span_ms={self.span_ms:.0f} fresh={str(self.fresh).lower()}"
        )


class _Bucket:
    """Counters of one width since its last flush."""

    __slots__ = ("accepted", "depth", "first", "start_s", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.accepted = 0
        self.first = 0
        self.depth = 0
        self.start_s = 0.0


class AcceptBuckets:
    """The counters of every width. Written by the scheduler only."""

    __slots__ = ("_buckets", "_last")

    def __init__(self, *, fold_at_16: bool = False) -> None:
        """`fold_at_16` (MTP_ACCEPT_FOLD_AT_16) lets widths of 16 and more share one bucket."""
        self._last = FOLD_BUCKET if fold_at_16 else LAST_BUCKET
        self._buckets = [_Bucket() for _ in range(self._last + 1)]

    def record(
        self, width: int, *, depth: int, accepted: int, first_matched: bool, now_s: float
    ) -> AcceptFlush | None:
        """Count one sequence's verify; return the flush when it fills the bucket.

        `width` is the active batch (1 for a verify outside the batch). `first_matched` says that
        the first draft equals the target's pick, before any mask or stop cut the chain. A verify
        without drafts is not one and counts nothing; `accepted` is clamped to 0..depth.
        """
        if depth <= 0:
            return None
        index = 0 if width < 0 else width
        if index > self._last:
            index = self._last
        bucket = self._buckets[index]
        if bucket.steps == 0:
            bucket.start_s = now_s
        bucket.steps += 1
        if accepted > 0:
            bucket.accepted += accepted if accepted < depth else depth
        if first_matched:
            bucket.first += 1
        if depth > bucket.depth:
            bucket.depth = depth
        if bucket.steps < FLUSH_VERIFIES:
            return None
        self._buckets[index] = _Bucket()
        return AcceptFlush(
            width=index,
            k_drafts=bucket.depth,
            verifies=bucket.steps,
            p1=bucket.first / bucket.steps,
            mean_accepted=bucket.accepted / bucket.steps,
            span_ms=(now_s - bucket.start_s) * 1000.0,
        )
