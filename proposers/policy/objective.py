"""Objective: what makes one depth better than another, and how a choice is made from values.

    latency      the slowest stream's expected tokens per millisecond
    throughput   all expected tokens per millisecond
    energy       all expected tokens per joule, among candidates whose tokens per millisecond
                 reach (1 - slack) of the floor candidate's

A candidate's value is divided by 1 + its margin before values are compared: leaving the incumbent
or giving up drafting must pay by that much. Candidates come in ascending order; ties keep the
shallower one, except that reaching the incumbent's value exactly is enough to leave it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.proposers.policy.cost_table import StepCost


class ObjectiveKind(enum.Enum):
    """The values of `--spec-objective`."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to maximise."""

    kind: ObjectiveKind
    slack: float = 0.0
    """Energy only: share of the floor's tokens per millisecond that may be given up."""
    floor: int | None = 1
    """Energy only: the depth whose speed is the floor (clamped to the deepest candidate);
    None = the fastest candidate."""

    def __post_init__(self) -> None:
        """Raise ValueError for a slack that leaves no floor, or a floor that is no depth."""
        if not 0.0 <= self.slack < 1.0:
            raise ValueError(
                f"energy slack out of range (spec_cost_slack={self.slack}, limit 0 up to below 1) "
                "-- it is the share of speed that may be given up -- 0.05 gives up 5 %"
            )
        if self.floor is not None and self.floor < 0:
            raise ValueError(
                f"energy floor out of range (floor={self.floor}, limit at least 0) -- it is a "
                "depth -- give 1, or none for the fastest"
            )


def parse_objective(raw: str | None, *, slack: float | None) -> Objective:
    """Read `--spec-objective`; `slack` is the measured cost model's, None without that model.

    Raises:
        ValueError: not given, not one of the three, or energy without measured costs: nothing
            else knows joules.
    """
    names = "|".join(kind.value for kind in ObjectiveKind)
    kinds = {kind.value: kind for kind in ObjectiveKind}
    if raw is None or raw not in kinds:
        raise ValueError(
            f"speculation objective missing or unknown (spec_objective={raw!r}, limit {names}) -- "
            "a depth is only best for something -- say what, or force speculation on"
        )
    kind = kinds[raw]
    if kind is ObjectiveKind.ENERGY and slack is None:
        raise ValueError(
            "energy objective without joules (spec_objective='energy', spec_cost_model not "
            "measured) -- only a measured table knows what a step costs in joules -- give "
            "--spec-cost-model measured with its table, or another objective"
        )
    return Objective(kind=kind, slack=0.0 if slack is None else slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """What a candidate must gain before it is chosen, as a share of its value."""

    suspend: float = 0.0
    """For depth 0, unless it is the incumbent."""
    deeper: float = 0.0
    """For a depth above the incumbent."""
    shallower: float = 0.0
    """For a depth below the incumbent, 0 excepted."""

    def __post_init__(self) -> None:
        """Raise ValueError for a margin below 0 or not finite."""
        for name in ("suspend", "deeper", "shallower"):
            margin = getattr(self, name)
            if not (margin >= 0.0 and math.isfinite(margin)):
                raise ValueError(
                    f"margin out of range ({name}={margin}, limit finite, at least 0) -- it is "
                    "the share a challenger must gain -- 0.05 asks for 5 %"
                )

    def of(self, depth: int, *, incumbent: int | None) -> float:
        """The margin of one candidate."""
        if depth == incumbent:
            return 0.0
        if depth == 0:
            return self.suspend
        if incumbent is None:
            return 0.0
        return self.deeper if depth > incumbent else self.shallower


class Candidate(NamedTuple):
    """One depth (or one total of rows) that could run."""

    depth: int
    tokens: float
    """Expected over all streams."""
    slowest: float
    """Expected of the stream that gets the fewest."""
    cost: StepCost


def tokens_per_ms(candidate: Candidate) -> float:
    """Speed of one candidate."""
    return candidate.tokens / candidate.cost.ms


def _floor_candidate(objective: Objective, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate whose speed is the floor: never empty-handed for a non-empty sequence."""
    if objective.floor is None:
        return max(candidates, key=tokens_per_ms)
    for candidate in candidates:
        if candidate.depth >= objective.floor:
            return candidate
    return candidates[-1]


def _energy_field(objective: Objective, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates with joules that keep the floor; the floor candidate alone when there are none."""
    floor = _floor_candidate(objective, candidates)
    limit = (1.0 - objective.slack) * tokens_per_ms(floor)
    field = [
        candidate
        for candidate in candidates
        if candidate.cost.joules is not None and tokens_per_ms(candidate) >= limit
    ]
    return field or [floor]


def _value(objective: Objective, candidate: Candidate) -> float:
    if objective.kind is ObjectiveKind.LATENCY:
        return candidate.slowest / candidate.cost.ms
    if objective.kind is ObjectiveKind.THROUGHPUT:
        return candidate.tokens / candidate.cost.ms
    joules = candidate.cost.joules
    return candidate.tokens / joules if joules is not None and joules > 0.0 else 0.0


def choose(
    candidates: Sequence[Candidate],
    *,
    objective: Objective,
    margins: Margins | None = None,
    incumbent: int | None = None,
) -> Candidate:
    """Pick the best of `candidates` (ascending in depth, not empty).

    Raises:
        ValueError: no candidates.
    """
    if not candidates:
        raise ValueError(
            "no candidate to choose from (candidates=0, limit at least 1) -- a step always runs "
            "something -- pass depth 0 at least"
        )
    if objective.kind is ObjectiveKind.ENERGY:
        candidates = _energy_field(objective, candidates)
    rules = margins if margins is not None else Margins()
    best: Candidate | None = None
    best_value = 0.0
    for candidate in candidates:
        margin = rules.of(candidate.depth, incumbent=incumbent)
        value = _value(objective, candidate) / (1.0 + margin)
        if best is None or value > best_value or (value == best_value and best.depth == incumbent):
            best, best_value = candidate, value
    return best if best is not None else candidates[0]


def cut_depths(
    gains: Sequence[Sequence[float]],
    *,
    objective: Objective,
    cost: Callable[[int], StepCost | None],
    row_budget: int,
) -> tuple[int, ...]:
    """Share a verify's rows among sequences whose drafts are already there.

    `gains[i][j]` are the expected tokens that draft j + 1 of sequence i adds, not rising in j;
    its length is the most that sequence may verify. `cost(d)` prices a verify of d drafts in
    total (None: that total cannot run). `row_budget` bounds rows = sequences + drafts.

    Every sequence with a draft keeps one; the further ones are taken in order of gain (ties: the
    earlier sequence), which has the most tokens of all splits of every total, and the total is
    chosen by the objective over *all* totals, for cost is not monotone in rows. An energy floor
    of depth d means the total that gives every sequence its first d drafts. All zeros (plain)
    when even one draft each is over the budget or has no price.
    """
    width = len(gains)
    base = [1 if held else 0 for held in gains]
    floor_total = None
    if objective.floor is not None:
        floor_total = sum(min(len(held), objective.floor) for held in gains)
    order = sorted((-gain, index) for index, held in enumerate(gains) for gain in held[1:])
    tokens = [1.0 + held[0] if held else 1.0 for held in gains]
    total, total_tokens = sum(base), sum(tokens)
    candidates: list[Candidate] = []
    latency = objective.kind is ObjectiveKind.LATENCY
    for step in range(len(order) + 1):
        if width + total > row_budget:
            break
        priced = cost(total)
        if priced is not None and priced.ms > 0.0:
            slowest = min(tokens, default=0.0) if latency else 0.0
            candidates.append(
                Candidate(depth=total, tokens=total_tokens, slowest=slowest, cost=priced)
            )
        elif not candidates:
            break
        if step < len(order):
            gain, index = order[step]
            tokens[index] -= gain
            total_tokens -= gain
            total += 1
    if not candidates:
        return (0,) * width
    wanted = Objective(kind=objective.kind, slack=objective.slack, floor=floor_total)
    chosen = choose(candidates, objective=wanted).depth
    kept = list(base)
    for _, index in order[: chosen - sum(base)]:
        kept[index] += 1
    return tuple(kept)
