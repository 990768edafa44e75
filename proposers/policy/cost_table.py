"""Measured milliseconds and joules by width and depth.

A table holds one cell per (width n, depth k), a full grid: the verify step (k = 0: one plain
decode step) and the k propose steps that feed it, each in wall milliseconds and joules. Between
measured widths costs are interpolated linearly and outside them the nearest width holds: verify
cost was measured non-monotone in its rows, so nothing is fitted and nothing extrapolated.

Two refinements are optional, and a table without them loads and prices as ever: a context axis
(cells carry the context length in tokens they were measured at; a full grid per context, joined
linearly) and an expert-coverage term (`cost_coverage`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.proposers.policy.cost_coverage import ExpertCoverage, coverage_trouble
from phalanx.proposers.policy.cost_key import SCHEMA, CostKey, CostTableError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one step costs."""

    ms: float
    joules: float | None = None
    """None where energy was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCell:
    """What one step of one shape costs."""

    n: int
    """Width: active sequences, at least 1."""
    k: int
    """Depth: drafts of each sequence; 0 = plain decode."""
    verify_ms: float
    verify_j: float
    draft_ms: float = 0.0
    """The k propose steps that feed the next verify; exactly 0 at k = 0."""
    draft_j: float = 0.0
    context: int | None = None
    """Context length in tokens the cell was measured at; None = the table has no such axis."""

    @property
    def cost(self) -> StepCost:
        """Verify plus draft."""
        return StepCost(ms=self.verify_ms + self.draft_ms, joules=self.verify_j + self.draft_j)


def _cell_trouble(cell: CostCell) -> str | None:
    """What is wrong with one cell, in words; None when it can be used."""
    if cell.n < 1 or cell.k < 0:
        return f"n={cell.n}, k={cell.k} outside n >= 1, k >= 0"
    if cell.context is not None and cell.context < 0:
        return f"context={cell.context} below 0"
    must_cost = {"verify_ms": cell.verify_ms, "verify_j": cell.verify_j}
    drafts = {"draft_ms": cell.draft_ms, "draft_j": cell.draft_j}
    if cell.k == 0:
        for name, value in drafts.items():
            if value != 0.0:
                return f"{name}={value} at k=0, limit exactly 0"
    else:
        must_cost |= drafts
    for name, value in must_cost.items():
        if not (value > 0.0 and math.isfinite(value)):
            return f"{name}={value}, limit finite and above 0"
    return None


def _blend(left: CostCell, right: CostCell, share: float, *, like: CostCell) -> CostCell:
    """The cell `share` of the way from left to right, under the coordinates of `like`."""

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    return replace(
        like,
        verify_ms=between(left.verify_ms, right.verify_ms),
        verify_j=between(left.verify_j, right.verify_j),
        draft_ms=between(left.draft_ms, right.draft_ms),
        draft_j=between(left.draft_j, right.draft_j),
    )


def _bracket(axis: Sequence[int], value: float) -> tuple[int, int, float]:
    """Neighbours of `value` on the ascending `axis` and the share between them; ends hold."""
    if not value > axis[0]:
        return axis[0], axis[0], 0.0
    if value >= axis[-1]:
        return axis[-1], axis[-1], 0.0
    right = bisect_left(axis, value)
    if axis[right] == value:
        return axis[right], axis[right], 0.0
    low, high = axis[right - 1], axis[right]
    return low, high, (value - low) / (high - low)


class CostTable:
    """A checked full grid of cells under a key. Never changes after it is built."""

    __slots__ = ("_cells", "_grid", "contexts", "coverage", "key", "max_k", "widths")

    def __init__(
        self, *, key: CostKey, cells: Sequence[CostCell], coverage: ExpertCoverage | None = None
    ) -> None:
        """Check and index the cells.

        Raises:
            CostTableError: wrong schema, no cells, a bad or repeated cell, a context on some
                cells only, a hole in the grid, or a coverage term larger than a cell.
        """
        self.key = key
        self.coverage = coverage
        self._grid: dict[tuple[int | None, int, int], CostCell] = {}
        if key.schema != SCHEMA:
            raise _refused(f"schema={key.schema}, limit {SCHEMA}")
        for cell in cells:
            trouble = _cell_trouble(cell)
            if trouble is not None:
                raise _refused(f"bad cell: {trouble}")
            if (cell.context, cell.n, cell.k) in self._grid:
                raise _refused(f"cell given twice: {_where(cell.context, cell.n, cell.k)}")
            self._grid[cell.context, cell.n, cell.k] = cell
        if not self._grid:
            raise _refused("no cells")
        self.max_k: int = max(cell.k for cell in cells)
        """Deepest depth measured."""
        self.widths: tuple[int, ...] = tuple(sorted({cell.n for cell in cells}))
        self.contexts: tuple[int, ...] = tuple(
            sorted({cell.context for cell in cells if cell.context is not None})
        )
        """Measured context lengths in tokens; empty without a context axis."""
        self._check_grid()
        self._check_coverage()
        self._cells = tuple(sorted(self._grid.values(), key=_order))

    @property
    def cells(self) -> tuple[CostCell, ...]:
        """The measured cells by (context, n, k)."""
        return self._cells

    def _check_grid(self) -> None:
        if self.contexts and any(context is None for context, _, _ in self._grid):
            raise _refused("context given on some cells only")
        contexts: tuple[int | None, ...] = self.contexts or (None,)
        for context in contexts:
            for n in self.widths:
                for k in range(self.max_k + 1):
                    if (context, n, k) not in self._grid:
                        raise _refused(f"missing cell: {_where(context, n, k)}")

    def _check_coverage(self) -> None:
        if self.coverage is None:
            return
        trouble = coverage_trouble(self.coverage)
        if trouble is not None:
            raise _refused(f"bad coverage: {trouble}")
        for (context, n, k), cell in self._grid.items():
            ms, joules = self._coverage_term(n, k)
            if ms >= cell.verify_ms or joules >= cell.verify_j:
                where = _where(context, n, k)
                raise _refused(f"coverage term ({ms} ms, {joules} J) not below cell {where}")

    def _coverage_term(self, n: float, k: int) -> tuple[float, float]:
        if self.coverage is None:
            return 0.0, 0.0
        return self.coverage.term(self.coverage.expected_distinct(n * (k + 1)))

    def cell(
        self, n: int, k: int, *, context: float | None = None, distinct: float | None = None
    ) -> CostCell | None:
        """The cell of width `n` (drafts `k`), interpolated; None when k was not measured.

        `context` is the context length in tokens (None: the shortest measured one; without a
        context axis it says nothing). `distinct` is the step's distinct experts per layer (None:
        what its rows touch on average; without a coverage term it says nothing).
        """
        if not 0 <= k <= self.max_k:
            return None
        if not self.contexts:
            return self._at_width(None, n, k, distinct)
        low, high, share = _bracket(self.contexts, self.contexts[0] if context is None else context)
        left = self._at_width(low, n, k, distinct)
        if share == 0.0:
            return left
        right = self._at_width(high, n, k, distinct)
        return _blend(left, right, share, like=replace(left, context=round(context or 0.0)))

    def _at_width(self, context: int | None, n: int, k: int, distinct: float | None) -> CostCell:
        """Interpolate in width at one measured context."""
        low, high, share = _bracket(self.widths, n)
        left = self._grid[context, low, k]
        if share == 0.0:
            found = left if left.n == n else replace(left, n=n)
            shift_from = self._coverage_term(low, k) if distinct is not None else (0.0, 0.0)
        else:
            found = _blend(left, self._grid[context, high, k], share, like=replace(left, n=n))
            at_low, at_high = self._coverage_term(low, k), self._coverage_term(high, k)
            shift_from = (
                at_low[0] + share * (at_high[0] - at_low[0]),
                at_low[1] + share * (at_high[1] - at_low[1]),
            )
        if self.coverage is None or (share == 0.0 and distinct is None):
            return found
        touched = self.coverage.expected_distinct(n * (k + 1)) if distinct is None else distinct
        shift_to = self.coverage.term(touched)
        return replace(
            found,
            verify_ms=found.verify_ms + (shift_to[0] - shift_from[0]),
            verify_j=found.verify_j + (shift_to[1] - shift_from[1]),
        )

    def step(
        self, n: int, k: int, *, context: float | None = None, distinct: float | None = None
    ) -> StepCost | None:
        """Verify plus draft cost of one step; None when k was not measured."""
        found = self.cell(n, k, context=context, distinct=distinct)
        return None if found is None else found.cost

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Cost of a verify of `drafts` drafts in total over `n` sequences of uneven depth.

        The verify is interpolated between the uniform depths around drafts / n, clamped to the
        measured ones. The draft cost is that of `k_drafted` whole: pruning comes after drafting.
        None when `k_drafted` or n is out of range.
        """
        drafted = self.cell(n, min(k_drafted, self.max_k), context=context)
        if n < 1 or drafts < 0 or drafted is None:
            return None
        depth = drafts / n
        low = self.cell(n, min(math.floor(depth), self.max_k), context=context)
        high = self.cell(n, min(math.ceil(depth), self.max_k), context=context)
        if low is None or high is None:
            return None
        share = depth - math.floor(depth)
        return StepCost(
            ms=low.verify_ms + share * (high.verify_ms - low.verify_ms) + drafted.draft_ms,
            joules=low.verify_j + share * (high.verify_j - low.verify_j) + drafted.draft_j,
        )


def _order(cell: CostCell) -> tuple[int, int, int]:
    return (-1 if cell.context is None else cell.context, cell.n, cell.k)


def _where(context: int | None, n: int, k: int) -> str:
    prefix = "" if context is None else f"context={context}, "
    return f"{prefix}n={n}, k={k}"


def _refused(trouble: str) -> CostTableError:
    return CostTableError(
        f"cost table refused ({trouble}) -- every step would be priced by it -- measure the table "
        "again, one cell for every width and every depth from 0"
    )
