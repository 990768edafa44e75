"""Costs that follow the serve: online cells, and a scale on top of a given source.

Online cells learn the price of each (width bucket, depth) from the steps that ran it. A cell is
priced after three samples, at the fastest of them, for the first steps of a shape carry graph
captures and allocations that never come back. A later sample counts as at most twice the present
price, so that one stall does not condemn a depth. A cell unused for 256 samples of the serve has
to be run again. Nothing here raises; a sample that is no finite positive number is ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.proposers.policy.cost_sources import (
    NUM_WIDTH_BUCKETS,
    CostSource,
    CostSourceError,
    bucket_index,
    uneven_step,
    usable_ms,
)
from phalanx.proposers.policy.cost_table import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """How online cells learn; the defaults are the production ones."""

    alpha: float = 0.3
    """Weight of a sample."""
    stale_after: int = 256
    """Samples of the whole serve after which an unused cell is run again."""
    warm_up: int = 3
    """Samples before a cell has a price."""
    clip: float = 2.0
    """A sample counts as at most this multiple of the price."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings no cell could learn with."""
        fine = (
            0.0 < self.alpha <= 1.0
            and self.stale_after >= 1
            and self.warm_up >= 1
            and self.clip >= 1.0
        )
        if not fine:
            raise ValueError(
                f"online cost settings out of range ({self}, limit 0 < alpha <= 1, stale_after "
                ">= 1, warm_up >= 1, clip >= 1) -- a cell could never be priced -- use the "
                "defaults"
            )


class _Cell:
    """Price of one shape. Written by its source."""

    __slots__ = ("joules", "last", "ms", "price", "samples")

    def __init__(self) -> None:
        self.price: StepCost | None = None
        """None until the warm-up is over."""
        self.ms = math.inf
        self.joules: float | None = None
        self.samples = 0
        self.last = 0

    def take(self, ms: float, joules: float | None, settings: OnlineSettings) -> None:
        """Fold one sample in: the minimum while warming up, a clipped average afterwards."""
        warming = self.samples < settings.warm_up
        known = self.joules
        if joules is None:
            self.joules = None
        elif known is None:
            # A sample without joules forgot them: start over, but never from a warm-up's middle.
            self.joules = joules if self.samples == 0 or not warming else None
        elif warming:
            self.joules = min(known, joules)
        else:
            self.joules = known + settings.alpha * (min(joules, settings.clip * known) - known)
        if warming:
            self.ms = min(self.ms, ms)
        else:
            self.ms += settings.alpha * (min(ms, settings.clip * self.ms) - self.ms)
        self.samples += 1
        if self.samples >= settings.warm_up:
            self.price = StepCost(ms=self.ms, joules=self.joules)


class OnlineSource:
    """Prices learned from the steps. Written by the engine's `observe` only."""

    __slots__ = ("_cells", "_max_k", "_samples", "_settings")

    def __init__(self, *, max_k: int, settings: OnlineSettings | None = None) -> None:
        self._max_k = max(max_k, 0)
        self._settings = settings if settings is not None else OnlineSettings()
        self._cells = [[_Cell() for _ in range(self._max_k + 1)] for _ in range(NUM_WIDTH_BUCKETS)]
        self._samples = 0

    @property
    def max_k(self) -> int:
        """Deepest depth with a cell."""
        return self._max_k

    def _cell(self, n: int, k: int) -> _Cell | None:
        return self._cells[bucket_index(n)][k] if 0 <= k <= self._max_k else None

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """Price of the width bucket's cell; None before its warm-up is over."""
        cell = self._cell(n, k)
        return None if cell is None else cell.price

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """Whole steps, interpolated between the uniform depths around drafts / n."""
        return uneven_step(self, n, drafts, context=context)

    def needs_probe(self, n: int, k: int) -> bool:
        """Unmeasured, not warmed up, or not measured among the last `stale_after` samples."""
        cell = self._cell(n, k)
        if cell is None:
            return False
        if cell.price is None:
            return True
        return self._samples - cell.last >= self._settings.stale_after

    def observe(
        self,
        n: int,
        k: int,
        *,
        ms: float,
        joules: float | None = None,
        context: float | None = None,
    ) -> None:
        """Take one step's wall milliseconds, and its joules when they were metered."""
        cell = self._cell(n, k)
        if cell is None or n < 1 or not usable_ms(ms):
            return
        metered = joules if joules is not None and usable_ms(joules) else None
        self._samples += 1
        cell.last = self._samples
        cell.take(ms, metered, self._settings)


class CalibratedSource:
    """A given source times one scale per width bucket, for ms and for joules.

    The scale follows measured / given with weight alpha, so a table measured on a cooler day still
    prices this one. All depths of a width scale alike: the ranking of depths stays the table's.
    With alpha 0 the prices are the source's, bit for bit. Written by `observe` only.
    """

    __slots__ = ("_alpha", "_joule_scale", "_ms_scale", "_source")

    def __init__(self, source: CostSource, *, alpha: float = 0.1) -> None:
        """Raise CostSourceError for an alpha outside 0..1."""
        if not 0.0 <= alpha <= 1.0:
            raise CostSourceError(
                f"calibration weight out of range (alpha={alpha}, limit 0..1) -- the scale would "
                "run away -- 0 switches it off, 0.1 is the production value"
            )
        self._source = source
        self._alpha = alpha
        self._ms_scale = [1.0] * NUM_WIDTH_BUCKETS
        self._joule_scale = [1.0] * NUM_WIDTH_BUCKETS

    @property
    def max_k(self) -> int:
        """The source's deepest depth."""
        return self._source.max_k

    def scales(self, n: int) -> tuple[float, float]:
        """(ms scale, joule scale) of the width bucket of n."""
        bucket = bucket_index(n)
        return self._ms_scale[bucket], self._joule_scale[bucket]

    def _scaled(self, n: int, given: StepCost | None) -> StepCost | None:
        if given is None or self._alpha == 0.0:
            return given
        ms_scale, joule_scale = self.scales(n)
        joules = None if given.joules is None else given.joules * joule_scale
        return StepCost(ms=given.ms * ms_scale, joules=joules)

    def step(self, n: int, k: int, *, context: float | None = None) -> StepCost | None:
        """The source's price, scaled."""
        return self._scaled(n, self._source.step(n, k, context=context))

    def batch(
        self, n: int, drafts: int, *, k_drafted: int, context: float | None = None
    ) -> StepCost | None:
        """The source's price, scaled."""
        given = self._source.batch(n, drafts, k_drafted=k_drafted, context=context)
        return self._scaled(n, given)

    def needs_probe(self, n: int, k: int) -> bool:
        """The source's answer."""
        return self._source.needs_probe(n, k)

    def observe(
        self,
        n: int,
        k: int,
        *,
        ms: float,
        joules: float | None = None,
        context: float | None = None,
    ) -> None:
        """Move the scales of the width bucket towards measured / given."""
        given = self._source.step(n, k, context=context)
        if given is None or self._alpha == 0.0:
            return
        bucket = bucket_index(n)
        _follow(self._ms_scale, bucket, ms / given.ms, self._alpha)
        if joules is not None and given.joules is not None:
            _follow(self._joule_scale, bucket, joules / given.joules, self._alpha)


def _follow(scales: list[float], bucket: int, ratio: float, alpha: float) -> None:
    if usable_ms(ratio):
        scales[bucket] += alpha * (ratio - scales[bucket])


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLayer:
    """The source that prices a serve, and which layer it came from."""

    name: str
    """measured, envelope or cold prior."""
    source: CostSource
    skipped: tuple[str, ...] = ()
    """Why each layer above was not used."""


def choose_layer(
    *, measured: CostSource | str, envelope: CostSource | str, cold_prior: CostSource | str
) -> CostLayer:
    """Take the first layer that is there; a string says why a layer is not.

    Raises:
        CostSourceError: no layer is there; the message holds every reason.
    """
    skipped: list[str] = []
    layers = (("measured", measured), ("envelope", envelope), ("cold prior", cold_prior))
    for name, source in layers:
        if isinstance(source, str):
            skipped.append(f"{name}: {source}")
        else:
            return CostLayer(name=name, source=source, skipped=tuple(skipped))
    raise CostSourceError(
        f"no cost source ({'; '.join(skipped)}) -- a depth cannot be chosen without prices -- "
        "measure a table, give an envelope, or state a step table"
    )
