"""Cost sources: where the price of a step comes from, in layers, and the correction on top.

    measured table  ->  envelope by rows  ->  an explicit cold-start prior  ->  refuse, saying why

and, beside them, online cells that learn the price from the steps themselves (`cost_online`).
Every source
answers `step(n, k)` for n streams at depth k and `batch(n, drafts, k_drafted=...)` for uneven
depths. Milliseconds may be relative (`1:1.0,2:1.32`): only comparisons at one width use them.
Nothing but the builders raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from phalanx.proposers.policy.cost_coverage import interpolate
from phalanx.proposers.policy.cost_table import CostTable, StepCost
from phalanx.proposers.policy.levers import parse_count, parse_finite

NUM_WIDTH_BUCKETS: Final = 9
"""Buckets 1, 2, 4, ... 128, and 256 for everything wider."""


class CostSourceError(ValueError):
    """A cost source that cannot be built."""


class CostSource(Protocol):
    """Prices one step."""

    @property
    def max_k(self) -> int:
        """Deepest depth it can price."""
        ...

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """Price of n streams at depth k; None when unknown."""
        ...

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Price of `drafts` drafts in total over n streams, drafted to depth `k_drafted`."""
        ...

    def needs_probe(self, n: int, k: int) -> bool:
        """Whether the shape has to be run to know its price."""
        ...

    def observe(
        self,
        n: int,
        k: int,
        *,
        ms: float,
        joules: float | None = None,
        context: float | None = None,
    ) -> None:
        """Take what a step of n streams at depth k really cost."""
        ...


def bucket_index(n: int) -> int:
    """Index of the power-of-two width bucket of `n`: 1 -> 0, 2 -> 1, 3..4 -> 2, ... 129.. -> 8."""
    return min(max(n - 1, 0).bit_length(), NUM_WIDTH_BUCKETS - 1)


def usable_ms(ms: float) -> bool:
    """Whether a sample is a duration at all."""
    return ms > 0.0 and math.isfinite(ms)


def _usable_joules(joules: float | None) -> float | None:
    return joules if joules is not None and joules > 0.0 and math.isfinite(joules) else None


def between_steps(low: StepCost, high: StepCost, share: float) -> StepCost:
    """Linear between two step prices; joules only where both have them."""
    joules = None
    if low.joules is not None and high.joules is not None:
        joules = low.joules + share * (high.joules - low.joules)
    return StepCost(ms=low.ms + share * (high.ms - low.ms), joules=joules)


def uneven_step(
    source: CostSource, n: int, drafts: int, *, context: float | None = None
) -> StepCost | None:
    """Interpolate whole steps between the uniform depths around drafts / n."""
    if n < 1 or drafts < 0:
        return None
    depth = drafts / n
    low = source.step(n, min(math.floor(depth), source.max_k), context=context)
    high = source.step(n, min(math.ceil(depth), source.max_k), context=context)
    if low is None or high is None:
        return None
    return between_steps(low, high, depth - math.floor(depth))


class _FixedSource:
    """What the sources that never learn share: no probes, and samples tell them nothing."""

    __slots__ = ()

    def needs_probe(self, n: int, k: int) -> bool:
        """Never: the prices are given."""
        return False

    def observe(
        self,
        n: int,
        k: int,
        *,
        ms: float,
        joules: float | None = None,
        context: float | None = None,
    ) -> None:
        """Nothing to learn."""


class MeasuredSource(_FixedSource):
    """Prices from a measured table, remembered per shape."""

    __slots__ = ("_remembered", "table")

    _ROOM: Final = 4096

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._remembered: dict[tuple[int, int], StepCost | None] = {}

    @property
    def max_k(self) -> int:
        """Deepest depth of the table."""
        return self.table.max_k

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """The table's cell total."""
        if self.table.contexts:
            return self.table.step(n, k, context=context)
        shape = (n, k)
        if shape not in self._remembered:
            if len(self._remembered) >= self._ROOM:
                self._remembered.clear()
            self._remembered[shape] = self.table.step(n, k)
        return self._remembered[shape]

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Verify between uniform depths, plus the whole draft cost of `k_drafted`."""
        return self.table.batch(n, drafts, k_drafted=k_drafted, context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopePoint:
    """What a verify of `rows` rows in total costs."""

    rows: int
    ms: float
    joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """What drafting costs: per draft for a chain drafter, once a step for a block drafter.

    The default is free (a lookup drafter).
    """

    ms: float = 0.0
    joules: float = 0.0
    per_block: bool = False

    def of(self, k: int) -> StepCost:
        """Cost of drafting `k` drafts."""
        times = min(max(k, 0), 1) if self.per_block else max(k, 0)
        return StepCost(ms=self.ms * times, joules=self.joules * times)


class EnvelopeSource(_FixedSource):
    """Prices from a curve by total verify rows n (k + 1), plus the drafter's own cost."""

    __slots__ = ("_draft", "_joules", "_max_k", "_ms", "_rows")

    def __init__(self, points: Sequence[EnvelopePoint], *, draft: DraftCost, max_k: int) -> None:
        """`points` ascend in rows.

        Raises:
            CostSourceError: no points, rows that do not ascend, or a cost that is no price.
        """
        rows = [point.rows for point in points]
        if not points or any(b <= a for a, b in pairwise(rows)) or rows[0] < 1:
            raise CostSourceError(
                f"envelope refused (rows={rows}, limit at least one point, ascending from 1) -- "
                "costs are interpolated between the points -- sort and deduplicate them"
            )
        costs = [point.ms for point in points]
        costs += [point.joules for point in points if point.joules is not None]
        drafting = (draft.ms, draft.joules)
        drafting_ok = all(cost == 0.0 or usable_ms(cost) for cost in drafting)
        if not (drafting_ok and all(usable_ms(cost) for cost in costs)):
            raise CostSourceError(
                f"envelope refused (costs={costs}, drafting={drafting}, limit finite, above 0; "
                "drafting at least 0) -- a step's price must be positive -- measure the point again"
            )
        self._draft = draft
        self._max_k = max_k
        self._rows = [float(row) for row in rows]
        self._ms = [point.ms for point in points]
        joules = [point.joules for point in points if point.joules is not None]
        self._joules = joules if len(joules) == len(points) else None

    @property
    def max_k(self) -> int:
        """Deepest depth asked of it."""
        return self._max_k

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """Verify of n (k + 1) rows plus drafting k; the nearest point outside the curve."""
        if n < 1 or not 0 <= k <= self._max_k:
            return None
        rows = float(n * (k + 1))
        drafting = self._draft.of(k)
        joules = None
        if self._joules is not None:
            joules = interpolate(self._rows, self._joules, rows) + (drafting.joules or 0.0)
        return StepCost(ms=interpolate(self._rows, self._ms, rows) + drafting.ms, joules=joules)

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Whole steps, interpolated between the uniform depths around drafts / n."""
        return uneven_step(self, n, drafts, context=context)


class StepTableSource(_FixedSource):
    """Prices by depth alone, the same at every width: a step table or relative costs."""

    __slots__ = ("_costs",)

    def __init__(self, costs: Mapping[int, float]) -> None:
        """`costs[k]` = milliseconds (or a relative price) of a step of depth k.

        Raises:
            CostSourceError: a depth missing between 0 or 1 and the deepest, no depth from 1 on,
                or a price that is not finite and positive.
        """
        depths = sorted(costs)
        trouble = None
        if not depths or depths[-1] < 1:
            trouble = "no depth from 1 on"
        elif depths[0] not in (0, 1) or depths != list(range(depths[0], depths[-1] + 1)):
            trouble = "depths are not consecutive from 0 or 1"
        elif not all(usable_ms(cost) for cost in costs.values()):
            trouble = "a price is not finite and above 0"
        if trouble is not None:
            raise CostSourceError(
                f"step table refused ({trouble}; costs={dict(costs)!r}) -- every depth that could "
                "be chosen needs a price -- write it like 0:28.65,1:44.15,2:50.5"
            )
        self._costs = {k: StepCost(ms=float(costs[k])) for k in depths}

    @property
    def max_k(self) -> int:
        """Deepest depth of the table."""
        return max(self._costs)

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """The price of depth k; None for a depth the table does not name."""
        return self._costs.get(k)

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Whole steps, interpolated between the uniform depths around drafts / n."""
        return uneven_step(self, n, drafts, context=context)


def parse_step_table(raw: str) -> StepTableSource:
    """Parse `k:ms[,...]`, depths consecutive from 0 or 1.

    Raises:
        CostSourceError: a piece that is no `depth:milliseconds`, a depth given twice, or what
            `StepTableSource` refuses.
    """
    costs: dict[int, float] = {}
    for piece in raw.split(","):
        depth_text, _, ms_text = piece.partition(":")
        depth, ms = parse_count(depth_text), parse_finite(ms_text)
        if depth is None or ms is None or depth in costs:
            raise CostSourceError(
                f"step table refused (step_table={raw!r}, piece {piece.strip()!r} is no new "
                "depth:milliseconds) -- every depth needs one price -- write it like "
                "1:44.15,2:50.5"
            )
        costs[depth] = ms
    if list(costs) != sorted(costs):
        raise CostSourceError(
            f"step table refused (step_table={raw!r}, depths do not ascend) -- they must be "
            "consecutive from 0 or 1 -- sort the pieces"
        )
    return StepTableSource(costs)
