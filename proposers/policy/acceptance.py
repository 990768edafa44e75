"""Acceptance model: decayed accept counts by draft position, and the rates drawn from them.

Each stream owns one model and the serve owns one more (the global one). A stream's rate at a
position is its own decayed count, smoothed by `prior_weight` verifies' worth of the global rate
and `cold_weight` verifies' worth of a cold prior:

    rate_j = (acc_j + prior_weight * global_j + cold_weight * cold_j)
             / (obs_j + prior_weight + cold_weight)

so a fresh stream starts at what the others see and moves away as its own evidence grows. A verify
of d drafts with a accepted says: drafts 1 .. a accepted, draft a + 1 rejected, nothing beyond.
Nothing but the settings raises.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.proposers.policy.chain import MAX_POSITIONS


class Seed(enum.Enum):
    """What the first observation of a position weighs."""

    UNIT = "unit"
    """As much as any other."""
    STEADY_STATE = "steady-state"
    """1 / (1 - decay): acc / obs is then exactly a seeded average with weight 1 - decay."""


class ColdMode(enum.Enum):
    """Where the cold prior of a position comes from."""

    NONE = "none"
    RATES = "rates"
    """A fixed list; its last rate repeats."""
    CHAINED = "chained"
    """The smoothed rate of the position before; position 1 has no cold prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdPrior:
    """What to believe about a position nobody has measured yet."""

    mode: ColdMode = ColdMode.CHAINED
    rates: tuple[float, ...] = ()
    """Conditional rates, for `ColdMode.RATES` only."""

    def __post_init__(self) -> None:
        if self.mode is ColdMode.RATES and not (
            self.rates and all(0.0 <= rate <= 1.0 for rate in self.rates)
        ):
            raise ValueError(
                f"cold prior refused (rates={self.rates!r}, limit at least one, each in 0..1) -- "
                "they are acceptance probabilities -- give the drafter's measured rates"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSettings:
    """Weights of the model; the defaults are the production ones."""

    decay: float = 0.95
    """What a count keeps per observation of its position (0.95: about 20 verifies)."""
    prior_weight: float = 4.0
    """Verifies that the global rate is worth."""
    cold_weight: float = 8.0
    """Verifies that the cold prior is worth."""
    seed: Seed = Seed.UNIT
    cold: ColdPrior = field(default_factory=ColdPrior)

    def __post_init__(self) -> None:
        """Raise ValueError for weights the arithmetic cannot stand on."""
        top_ok = self.decay < 1.0 or (self.decay == 1.0 and self.seed is Seed.UNIT)
        if not (self.decay > 0.0 and top_ok):
            raise ValueError(
                f"acceptance decay out of range (decay={self.decay}, limit above 0, up to 1 "
                "with unit seeding and below 1 with steady-state seeding) -- counts would grow or "
                "divide by zero -- the production value is 0.95"
            )
        for name in ("prior_weight", "cold_weight"):
            weight = getattr(self, name)
            if not (weight >= 0.0 and math.isfinite(weight)):
                raise ValueError(
                    f"acceptance weight out of range ({name}={weight}, limit finite, at least 0) "
                    "-- it counts verifies -- production: prior_weight 4, cold_weight 8"
                )


class AcceptanceModel:
    """Decayed accept and observation counts of positions 1 .. 16. Its owner alone writes it."""

    __slots__ = ("_decay", "_first_weight", "acc", "obs")

    def __init__(self, settings: AcceptanceSettings) -> None:
        self._decay = settings.decay
        self._first_weight = (
            1.0 / (1.0 - settings.decay) if settings.seed is Seed.STEADY_STATE else 1.0
        )
        self.acc = [0.0] * MAX_POSITIONS
        self.obs = [0.0] * MAX_POSITIONS

    def observe(self, drafts: int, accepted: int) -> None:
        """Take one verify of `drafts` drafts with `accepted` accepted (clamped to 0 .. drafts)."""
        if drafts <= 0:
            return
        accepted = 0 if accepted < 0 else accepted
        touched = accepted + 1 if accepted < drafts else drafts
        acc, obs, decay = self.acc, self.obs, self._decay
        for index in range(touched if touched < MAX_POSITIONS else MAX_POSITIONS):
            seen = obs[index]
            weight = 1.0 if seen > 0.0 else self._first_weight
            obs[index] = seen * decay + weight
            acc[index] = acc[index] * decay + (weight if index < accepted else 0.0)

    def observe_rate(self, position: int, rate: float) -> None:
        """Take one measured rate of `position` (1 = first draft), clamped to 0..1.

        A rate that is no finite number, or a position outside 1 .. 16, is ignored.
        """
        if not 1 <= position <= MAX_POSITIONS or not math.isfinite(rate):
            return
        index = position - 1
        seen = self.obs[index]
        weight = 1.0 if seen > 0.0 else self._first_weight
        self.obs[index] = seen * self._decay + weight
        self.acc[index] = self.acc[index] * self._decay + min(max(rate, 0.0), 1.0) * weight

    def soften(self, factor: float) -> None:
        """Multiply every count: old evidence keeps its rate and loses weight.

        A factor outside 0..1 (or NaN) is ignored.
        """
        if not 0.0 <= factor <= 1.0:
            return
        for index in range(MAX_POSITIONS):
            self.acc[index] *= factor
            self.obs[index] *= factor

    def fade(self, position: int, factor: float) -> None:
        """Multiply the counts of `position` and of every deeper one, as `soften` does for all."""
        if not 0.0 <= factor <= 1.0:
            return
        for index in range(max(position, 1) - 1, MAX_POSITIONS):
            self.acc[index] *= factor
            self.obs[index] *= factor

    def own_rate(self, position: int) -> float | None:
        """The unsmoothed rate of `position`, None without evidence."""
        seen = self.obs[position - 1]
        return self.acc[position - 1] / seen if seen > 0.0 else None


class PriorTerms(NamedTuple):
    """The smoothing of one decision, shared by all its streams: what to add to acc and obs."""

    num: tuple[float, ...]
    """Per position: weight x rate of the priors, the chained one left out."""
    den: tuple[float, ...]
    """Per position: weight of the priors, the chained one included."""
    chained: float
    """Weight of the rate of the position before; 0 unless the cold prior is chained."""


def prior_terms(
    settings: AcceptanceSettings, *, shared: AcceptanceModel | None, depth: int
) -> PriorTerms:
    """Build the smoothing terms of positions 1 .. `depth` (at most 16).

    `shared` is the global model, None when there is none; where it has no data it adds nothing.
    """
    cold, cold_weight, weight = settings.cold, settings.cold_weight, settings.prior_weight
    chained = cold_weight if cold.mode is ColdMode.CHAINED else 0.0
    num: list[float] = []
    den: list[float] = []
    for index in range(min(depth, MAX_POSITIONS)):
        top, bottom = 0.0, chained if index > 0 else 0.0
        if shared is not None and shared.obs[index] > 0.0:
            top += weight * (shared.acc[index] / shared.obs[index])
            bottom += weight
        if cold.mode is ColdMode.RATES:
            top += cold_weight * cold.rates[min(index, len(cold.rates) - 1)]
            bottom += cold_weight
        num.append(top)
        den.append(bottom)
    return PriorTerms(num=tuple(num), den=tuple(den), chained=chained)


def smoothed_rates(own: AcceptanceModel, terms: PriorTerms) -> list[float] | None:
    """Smoothed rates of the positions `terms` covers; None when position 1 has no information.

    A later position without any information takes the rate of the position before it.
    """
    rates: list[float] = []
    rate = 0.0
    for acc, obs, num, den in zip(own.acc, own.obs, terms.num, terms.den, strict=False):
        bottom = obs + den
        if bottom > 0.0:
            rate = (acc + num + terms.chained * rate) / bottom
        elif not rates:
            return None
        rates.append(rate)
    return rates or None


def rates_of(
    own: AcceptanceModel,
    *,
    settings: AcceptanceSettings,
    shared: AcceptanceModel | None = None,
    depth: int = MAX_POSITIONS,
) -> list[float] | None:
    """Smoothed rates of one stream: `prior_terms` and `smoothed_rates` in one call."""
    return smoothed_rates(own, prior_terms(settings, shared=shared, depth=depth))


class BatchTokens(NamedTuple):
    """Expected tokens of one step at depths 0, 1, 2, ...; index = depth."""

    total: list[float]
    """Over all streams."""
    slowest: list[float]
    """Of the stream that gets the fewest."""


def batch_tokens(
    models: Sequence[AcceptanceModel], terms: PriorTerms, *, depth: int
) -> BatchTokens | None:
    """Expected tokens of every depth 0 .. `depth`; None when a stream has no rates yet.

    The same arithmetic as `smoothed_rates` and `chain.tokens_by_depth` for each stream, in one
    loop: it runs every step for every stream. `terms` must cover min(depth, 16) positions; beyond
    them the last rate repeats. An empty batch yields zero tokens at every depth.
    """
    total = [float(len(models))] + [0.0] * depth
    if not models or depth < 1:
        return BatchTokens(total=total, slowest=[min(1.0, total[0])] * (depth + 1))
    slowest = [1.0] + [math.inf] * depth
    chained, num_first, den_first = terms.chained, terms.num[0], terms.den[0]
    rest = [(index, terms.num[index], terms.den[index]) for index in range(1, len(terms.num))]
    tail = range(len(terms.num), depth)
    for own in models:
        acc, obs = own.acc, own.obs
        bottom = obs[0] + den_first
        if bottom <= 0.0:
            return None
        rate = run = (acc[0] + num_first) / bottom
        tokens = 1.0 + run
        total[1] += tokens
        if tokens < slowest[1]:
            slowest[1] = tokens
        for index, num, den in rest:
            bottom = obs[index] + den
            if bottom > 0.0:
                rate = (acc[index] + num + chained * rate) / bottom
            run *= rate
            tokens += run
            total[index + 1] += tokens
            if tokens < slowest[index + 1]:
                slowest[index + 1] = tokens
        for index in tail:
            run *= rate
            tokens += run
            total[index + 1] += tokens
            slowest[index + 1] = min(slowest[index + 1], tokens)
    return BatchTokens(total=total, slowest=slowest)
