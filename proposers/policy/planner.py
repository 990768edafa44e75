"""The measured planner: drafts per step and per sequence, from a measured table and calibration.

It maximises expected tokens per joule among depths that keep (1 - slack) of the tokens per
millisecond of depth 1. `propose_depth` says before drafting how deep the batch drafts;
`sequence_depths` says after it, with the drafter's confidences at hand, how many of the drafts
each sequence verifies. Selected by `--spec-cost-model measured`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from phalanx.proposers.policy.calibration import Calibration
from phalanx.proposers.policy.capacity import step_depth, why_plain
from phalanx.proposers.policy.chain import tokens_by_depth
from phalanx.proposers.policy.cost_table import CostTable
from phalanx.proposers.policy.objective import (
    Candidate,
    Objective,
    ObjectiveKind,
    choose,
    cut_depths,
)
from phalanx.proposers.policy.policy import Decision, PolicyView, StepOutcome

_REMEMBERED_WIDTHS: Final = 1024


class MeasuredOptionsError(ValueError):
    """`--spec-cost-model measured` together with options it cannot stand beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOptions:
    """What the command line says about the measured cost model; None = not given."""

    table: str | None
    calibration: str | None
    recipe: str | None
    slack: float | None
    speculative: bool
    dflash: bool = False
    k_ladder: str | None = None
    dcut_ratio: float | None = None
    confidence_stop: float | None = None


def check_measured_options(options: MeasuredOptions) -> float:
    """Check the options and return the slack.

    Raises:
        MeasuredOptionsError: naming everything missing, out of range or in the way at once.
    """
    trouble = [
        f"{name} is missing"
        for name, value in (
            ("--spec-cost-table", options.table),
            ("--spec-cost-calibration", options.calibration),
            ("--spec-cost-recipe", options.recipe),
            ("--spec-cost-slack", options.slack),
        )
        if value is None
    ]
    slack = 0.0 if options.slack is None else options.slack
    if not 0.0 <= slack < 1.0:
        trouble.append(f"--spec-cost-slack={slack}, limit 0 up to below 1")
    if not options.speculative:
        trouble.append("--speculative is missing")
    if options.dflash:
        trouble.append("--dflash drafts a block at once, the table prices chains")
    trouble += [
        f"{name}={value} also decides the depth"
        for name, value in (
            ("--mtp-k-ladder", options.k_ladder),
            ("--mtp-dcut-ratio", options.dcut_ratio),
            ("--draft-confidence-stop", options.confidence_stop),
        )
        if value is not None
    ]
    if trouble:
        raise MeasuredOptionsError(
            f"measured cost model refused ({'; '.join(trouble)}) -- two rules for one depth would "
            "hide each other -- give what is missing and drop what is in the way"
        )
    return slack


def _objective(slack: float) -> Objective:
    return Objective(kind=ObjectiveKind.ENERGY, slack=slack, floor=1)


def propose_depth(
    table: CostTable,
    calibration: Calibration,
    *,
    n: int,
    slack: float,
    max_seqs: int,
    context: float | None = None,
) -> int:
    """Depth 0 .. max_k with the most expected tokens per joule that keeps the speed floor.

    Above `max_seqs` streams (or without any) it is 0 and the table is not asked. Ties keep the
    shallower depth. `context` is the context length in tokens, for a table that has that axis.
    """
    if n < 1 or n > max_seqs:
        return 0
    expected = tokens_by_depth(calibration.prior_by_position, table.max_k)
    candidates: list[Candidate] = []
    for depth, tokens in enumerate(expected):
        cost = table.step(n, depth, context=context)
        if cost is not None:
            candidates.append(Candidate(depth=depth, tokens=n * tokens, slowest=tokens, cost=cost))
    return choose(candidates, objective=_objective(slack)).depth


def sequence_depths(
    table: CostTable,
    calibration: Calibration,
    *,
    confidences: Sequence[Sequence[float]],
    held: Sequence[int],
    k_max: int,
    row_budget: int,
    slack: float,
    context: float | None = None,
) -> tuple[int, ...]:
    """Drafts each sequence verifies, 0 .. min(held, k_max, max_k); see `objective.cut_depths`.

    `confidences[i]` are the log-probabilities of the drafts sequence i holds; a list of another
    length than `held[i]` (or none) is "not measured" and the priors by position stand in.
    `k_max` drafts were drafted for everyone and are paid for. `row_budget` bounds verify rows
    (sequences + drafts); when not even one draft each fits, all are 0.
    """
    deepest = min(k_max, table.max_k)
    gains: list[list[float]] = []
    for index, drafts in enumerate(held):
        lps = confidences[index] if index < len(confidences) else ()
        measured = lps if len(lps) == drafts else ()
        gains.append(calibration.gains(measured, max(min(drafts, deepest), 0)))
    price = partial(table.batch, len(held), k_drafted=max(deepest, 0), context=context)
    return cut_depths(gains, objective=_objective(slack), cost=price, row_budget=row_budget)


class MeasuredPlanner:
    """`propose_depth` as a policy: within the width cap always 1 .. num_drafts.

    A table that prefers plain decode is overruled to one draft: this policy says how deep, the
    controller over it says whether (or `--num-drafts 0`).
    """

    __slots__ = ("_calibration", "_remembered", "_slack", "_table")

    def __init__(self, table: CostTable, calibration: Calibration, *, slack: float) -> None:
        self._table = table
        self._calibration = calibration
        self._slack = slack
        self._remembered: dict[int, int] = {}

    def decide(self, view: PolicyView) -> Decision:
        """Return the planned depth for the active width, clamped to the slots."""
        plain = why_plain(view)
        if plain is not None:
            return Decision(depth=0, reason=plain)
        planned = self._planned(view)
        depth = step_depth(view, max(planned, 1))
        return Decision(depth=depth, reason="measured planner")

    def _planned(self, view: PolicyView) -> int:
        """The plan for this width; without a context axis it never changes."""
        n = view.width
        known = None if self._table.contexts else self._remembered.get(n)
        if known is not None:
            return known
        planned = propose_depth(
            self._table,
            self._calibration,
            n=n,
            slack=self._slack,
            max_seqs=view.limits.max_seqs,
            context=view.context_depth,
        )
        if len(self._remembered) < _REMEMBERED_WIDTHS:
            self._remembered[n] = planned
        return planned

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: the table and the calibration are given."""
