"""D-Cut: which drafts of a batch are worth a verify row, within a row budget.

Drafting is done when this runs; it prunes the verify only (after arXiv 2607.14647). Draft j of a
stream survives only if 1..j do, so its score is the sum of the log-probabilities of drafts 1..j.
The best `ratio` of all prunable drafts (those beyond each stream's first) is kept, so confident
streams verify deep and doubtful ones shallow. An unmeasured confidence counts as certain.

lp = natural log of the drafter's top-1 probability; rows = drafts + 1. Nothing here raises on odd
numbers: a NaN or positive lp is "not measured" (0.0), minus infinity is a hopeless draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.confidence import stop_depth
from phalanx.proposers.policy.levers import count_or, is_present, parse_finite

RATIOS: Final = (0.25, 0.5, 0.75, 1.0)
DEFAULT_RATIO: Final = 0.75
ROW_BUDGET: Final = 96
"""Verify rows of one batched forward, in tokens."""

DEFAULT_MAX_SEQS: Final = 8
TELEMETRY_STEPS: Final = 200


def snap_ratio(ratio: float) -> float:
    """The bucket nearest to `ratio` (clamped to 0..1; of two equally near, the smaller).

    A few fixed ratios keep the number of distinct verify shapes, and so of graphs, small. NaN
    gives the default.
    """
    if math.isnan(ratio):
        return DEFAULT_RATIO
    clamped = min(max(ratio, 0.0), 1.0)
    return min(RATIOS, key=lambda bucket: abs(bucket - clamped))


@dataclass(frozen=True, slots=True, kw_only=True)
class DcutSettings:
    """Switches of D-Cut, resolved once at start."""

    ratio: float = DEFAULT_RATIO
    max_seqs: int = DEFAULT_MAX_SEQS
    """Widest batch that is pruned; 0 = off."""
    disabled: bool = False
    row_budget: int = ROW_BUDGET
    stop_tau: float | None = None
    """Confidence stop: a chain is also cut where its confidence falls below."""

    @classmethod
    def resolve(
        cls,
        *,
        ratio_option: float | None = None,
        ratio_flag: str | None = None,
        max_seqs_flag: str | None = None,
        disable_flag: str | None = None,
        stop_tau: float | None = None,
    ) -> DcutSettings:
        """Resolve `--mtp-dcut-ratio` (wins), MTP_DCUT_RATIO, MTP_DCUT_MAX_SEQS and NO_MTP_DCUT
        (presence)."""
        ratio = ratio_option if ratio_option is not None else parse_finite(ratio_flag)
        return cls(
            ratio=DEFAULT_RATIO if ratio is None else snap_ratio(ratio),
            max_seqs=count_or(max_seqs_flag, DEFAULT_MAX_SEQS),
            disabled=is_present(disable_flag),
            stop_tau=stop_tau,
        )

    def prunes(self, width: int, k_drafts: int) -> bool:
        """Whether a batch of this width and depth is pruned."""
        return not self.disabled and k_drafts >= 2 and 0 < width <= self.max_seqs


def kept_prunable(width: int, k_drafts: int, *, row_budget: int, ratio: float) -> int:
    """How many drafts beyond the first ones a batch keeps: by ratio, within the budget.

    Rounds half away from zero (4.5 -> 5; Python's own rounding would give 4). NaN keeps all.
    """
    prunable = width * (k_drafts - 1)
    if prunable <= 0:
        return 0
    share = 1.0 if math.isnan(ratio) else min(max(ratio, 0.0), 1.0)
    return min(math.floor(prunable * share + 0.5), max(0, row_budget - 2 * width), prunable)


def select(
    lps: Sequence[Sequence[float]], k_drafts: int, *, row_budget: int, ratio: float
) -> list[int]:
    """Drafts to verify per stream, each 1 .. k_drafts (or 0 when k_drafts is).

    `lps[i][j]` is the log-probability of draft j + 1 of stream i; missing ones count as certain.
    Ties go to the earlier stream, then to the shallower draft. Scores never rise with depth, so
    what is kept is a prefix of every chain.
    """
    width = len(lps)
    retained = [min(1, max(k_drafts, 0))] * width
    keep = kept_prunable(width, k_drafts, row_budget=row_budget, ratio=ratio)
    if keep <= 0:
        return retained
    if keep == width * (k_drafts - 1):
        return [k_drafts] * width
    certain = [0.0] * k_drafts
    scores: list[float] = []  # minus the sums: ascending is best first
    for chain in lps:
        full = chain if len(chain) == k_drafts else [*chain, *certain][:k_drafts]
        score = 0.0
        for depth, lp in enumerate(full):
            if lp < 0.0:  # False for NaN as well
                score -= lp
            if depth:
                scores.append(score)
    # Stable: built stream by stream, shallow to deep, so ties keep that order.
    ranked = sorted(range(len(scores)), key=scores.__getitem__)
    for place in ranked[:keep]:
        retained[place // (k_drafts - 1)] += 1
    return retained


@dataclass(frozen=True, slots=True, kw_only=True)
class DcutPlan:
    """What the batched verify carries, in the order the streams came in."""

    drafts: tuple[int, ...]
    """Drafts each stream verifies; the surplus is dropped after the order is made."""
    pruned: bool
    """False: uniform depths, and the batch keeps its order."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Verify rows per stream."""
        return tuple(drafts + 1 for drafts in self.drafts)


def plan(
    pending_drafts: Sequence[int],
    lps: Sequence[Sequence[float]],
    *,
    k_drafts: int,
    settings: DcutSettings,
) -> DcutPlan:
    """Choose the depths of a batched verify whose streams hold `pending_drafts`.

    `lps` is aligned with the streams; a list whose length is not the stream's pending drafts is
    "not measured". When pruned, the caller orders the batch once with the returned rows (see
    `phalanx.runtime.verify_key`) and truncates each stream to the depth assigned there; under
    canonical keys who gets which depth is then not ordered by confidence, only the multiset is.
    No stream gets more than it holds.
    """
    width = len(pending_drafts)
    if not settings.prunes(width, k_drafts):
        uniform = max(k_drafts, 0)
        return _bounded([uniform] * width, pending_drafts, lps, settings=settings, pruned=False)
    measured = [
        chain if len(chain) == pending else ()
        for chain, pending in zip(lps, pending_drafts, strict=True)
    ]
    retained = select(measured, k_drafts, row_budget=settings.row_budget, ratio=settings.ratio)
    return _bounded(retained, pending_drafts, measured, settings=settings, pruned=True)


def _bounded(
    depths: list[int],
    pending_drafts: Sequence[int],
    lps: Sequence[Sequence[float]],
    *,
    settings: DcutSettings,
    pruned: bool,
) -> DcutPlan:
    """Bound each depth by what the stream holds and by the confidence stop, at least 1 of them."""
    bounded = list(map(min, depths, pending_drafts))
    if bounded and min(bounded) < 0:
        bounded = [max(depth, 0) for depth in bounded]
    if settings.stop_tau is not None:
        for index, chain in enumerate(lps):
            measured = chain if len(chain) == pending_drafts[index] else ()
            believed = stop_depth(measured, bounded[index], tau=settings.stop_tau)
            bounded[index] = max(min(1, bounded[index]), believed)
    uneven = len(set(bounded)) > 1
    return DcutPlan(drafts=tuple(bounded), pruned=pruned or uneven)


def chunk_ranges(rows: Sequence[int], *, row_budget: int = ROW_BUDGET) -> list[tuple[int, int]]:
    """Cut a batch, deepest first, into half-open ranges that fit the row budget.

    No range is empty: a stream wider than the budget gets one of its own, which the model then
    refuses and the engine runs serially.
    """
    ranges: list[tuple[int, int]] = []
    start = most = carried = 0
    for index, needed in enumerate(rows):
        if index > start and (index - start == most or carried + needed > row_budget):
            ranges.append((start, index))
            start = index
        if index == start:
            most = max(1, row_budget // max(needed, 1))
            carried = 0
        carried += max(needed, 0)
    if rows:
        ranges.append((start, len(rows)))
    return ranges


class DcutTelemetry:
    """What pruning saved, one line every 200 recorded steps. Written by the scheduler only."""

    __slots__ = ("_full", "_kept", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._full = 0
        self._kept = 0

    def record(self, chosen: DcutPlan, *, k_drafts: int, ratio: float) -> str | None:
        """Count one pruned step; return the line to log every 200 steps, else None."""
        self._steps += 1
        self._full += len(chosen.drafts) * (max(k_drafts, 0) + 1)
        self._kept += sum(chosen.rows)
        if self._steps < TELEMETRY_STEPS:
            return None
        share = self._kept / self._full if self._full else 1.0
        line = (
            f"mtp dcut ratio={ratio} steps={self._steps} rows_full={self._full} "
            f"rows_kept={self._kept} kept={share:.3f} last={list(chosen.rows)}"
        )
        self._steps = self._full = self._kept = 0
        return line
