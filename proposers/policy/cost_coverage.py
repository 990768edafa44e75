"""Expert coverage: what a verify pays for each further expert its rows touch.

The rows of a mixture-of-experts verify touch rows x top-k routed choices, and the weights of each
*distinct* expert among them are read once. At small batches that reading is most of the step, so
cost follows the distinct count, which grows fast at first and then flattens. This term says how
much of a cell is that reading, so that a cost between two measured widths follows the curve and
not a chord, and so that a step whose distinct count is known is priced by it.

Points are joined linearly, and outside them the nearest holds, like everything in the table.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Piecewise linear through (xs, ys), xs ascending; the nearest end outside. NaN: first end."""
    if not x > xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect_left(xs, x)
    if xs[right] == x:
        return ys[right]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveragePoint:
    """What reading `distinct` experts a layer adds to one verify."""

    distinct: float
    """Mean distinct experts touched per layer."""
    verify_ms: float
    verify_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCount:
    """Mean distinct experts per layer, measured at `rows` verify rows."""

    rows: int
    distinct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCoverage:
    """The expert-reading part of the verify cost."""

    num_experts: int
    """Routed experts of a layer."""
    top_k: int
    """Experts each row is routed to."""
    points: tuple[CoveragePoint, ...]
    """Ascending in `distinct`."""
    counts: tuple[CoverageCount, ...] = ()
    """Ascending in `rows`; empty = independent uniform routing is assumed."""

    def expected_distinct(self, rows: float) -> float:
        """Distinct experts that `rows` rows touch: measured, else E (1 - (1 - top_k / E)^rows)."""
        if self.counts:
            return interpolate(
                [float(count.rows) for count in self.counts],
                [count.distinct for count in self.counts],
                rows,
            )
        untouched = math.pow(1.0 - self.top_k / self.num_experts, max(rows, 0.0))
        return self.num_experts * (1.0 - untouched)

    def term(self, distinct: float) -> tuple[float, float]:
        """(milliseconds, joules) of reading `distinct` experts a layer."""
        xs = [point.distinct for point in self.points]
        return (
            interpolate(xs, [point.verify_ms for point in self.points], distinct),
            interpolate(xs, [point.verify_j for point in self.points], distinct),
        )


def coverage_trouble(coverage: ExpertCoverage) -> str | None:
    """What is wrong with the section, in words; None when it can be used."""
    if not 1 <= coverage.top_k <= coverage.num_experts:
        return f"top_k={coverage.top_k} outside 1..num_experts={coverage.num_experts}"
    if not coverage.points:
        return "no points"
    distinct = [point.distinct for point in coverage.points]
    rows = [count.rows for count in coverage.counts]
    if any(left >= right for left, right in pairwise(distinct)):
        return f"points do not rise in distinct ({distinct})"
    if any(left >= right for left, right in pairwise(rows)):
        return f"counts do not rise in rows ({rows})"
    for value in (*distinct, *(count.distinct for count in coverage.counts)):
        if not 0.0 <= value <= coverage.num_experts:
            return f"distinct={value} outside 0..num_experts={coverage.num_experts}"
    for point in coverage.points:
        if not (0.0 <= point.verify_ms < float("inf") and 0.0 <= point.verify_j < float("inf")):
            return f"cost at distinct={point.distinct} is not finite and at least 0"
    return None
