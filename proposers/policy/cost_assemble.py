"""Assemble the cost table and the calibration from one spec-cost run per depth.

All runs must come from one machine, one model and equal parameters, or the grid would mix two
things. The table's verify time is the wall time of a step less its drafting, so that it covers
the loop between steps, as the metered joules do. A vacuous width, or one without joules, refuses
the whole table: a hole would be filled by interpolation and look measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from phalanx.proposers.policy.calibration import Calibration, DrafterIdentity
from phalanx.proposers.policy.confidence import ReachCounts
from phalanx.proposers.policy.cost_coverage import ExpertCoverage
from phalanx.proposers.policy.cost_fit import fit_calibration
from phalanx.proposers.policy.cost_key import CostKey
from phalanx.proposers.policy.cost_record import RunRecord, SpecCostError, WidthRecord
from phalanx.proposers.policy.cost_table import CostCell, CostTable


def _refused(trouble: Sequence[str]) -> SpecCostError:
    return SpecCostError(
        f"cost table not assembled ({'; '.join(trouble)}) -- every step would be priced by it -- "
        "run the benchmark again for what is named, on one machine with equal parameters"
    )


def check_runs(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Check that the runs make one grid; return them by prompt length and depth.

    Raises:
        SpecCostError: naming every difference, missing or repeated depth at once.
    """
    if not runs:
        raise _refused(("no runs",))
    ordered = tuple(sorted(runs, key=lambda run: (run.parameters.prompt_tokens, run.parameters.k)))
    trouble: list[str] = []
    deepest = max(run.parameters.k for run in ordered)
    for prompt in sorted({run.parameters.prompt_tokens for run in ordered}):
        depths = [run.parameters.k for run in ordered if run.parameters.prompt_tokens == prompt]
        if depths != list(range(deepest + 1)):
            where = f"depths {depths} at {prompt} prompt tokens"
            trouble.append(f"{where}, limit one run of each of 0..{deepest}")
    first = ordered[0]
    for run in ordered[1:]:
        where = f"run k={run.parameters.k}"
        if run.machine_id != first.machine_id:
            trouble.append(f"{where}: machine {run.machine_id!r}, not {first.machine_id!r}")
        if run.model != first.model:
            trouble.append(f"{where}: model {run.model!r}, not {first.model!r}")
        mine = first.parameters.shared()
        for name, value in run.parameters.shared().items():
            if value != mine[name]:
                trouble.append(f"{where}: {name} {value}, not {mine[name]}")
    for run in ordered:
        for record in run.widths:
            if record.vacuous:
                where = f"k={run.parameters.k} n={record.n}"
                trouble.append(f"{where} vacuous: {', '.join(record.vacuous)}")
    if trouble:
        raise _refused(trouble)
    return ordered


def assemble_table(
    runs: Sequence[RunRecord],
    *,
    key: CostKey,
    coverage: ExpertCoverage | None = None,
    nominal_watts: float | None = None,
) -> CostTable:
    """Build the table of one run per depth, and per prompt length when there are several: the
    table then has a context axis.

    `nominal_watts` stands in for joules on a machine without a meter: joules = watts x seconds,
    so that tokens per joule ranks depths as tokens per second does. It is refused when any width
    was metered, for a table must not mix the two.

    Raises:
        SpecCostError: as `check_runs`, joules missing, or `nominal_watts` beside metered joules.
        CostTableError: cells that make no table.
    """
    ordered = check_runs(runs)
    several = len({run.parameters.prompt_tokens for run in ordered}) > 1
    records = [(run.parameters, record) for run in ordered for record in run.widths]
    unmetered = [
        f"k={asked.k} n={record.n} without joules"
        for asked, record in records
        if record.verify_j is None
    ]
    if nominal_watts is None and unmetered:
        raise _refused([*unmetered, "state nominal watts for a machine without a meter"])
    if nominal_watts is not None:
        if len(unmetered) < len(records):
            raise _refused(("nominal watts given beside metered joules",))
        if not 0.0 < nominal_watts < math.inf:
            raise _refused((f"nominal_watts={nominal_watts}, limit finite and above 0",))
    cells = [
        replace(
            _cell(asked.k, record, nominal_watts),
            context=asked.prompt_tokens if several else None,
        )
        for asked, record in records
    ]
    return CostTable(key=key, cells=cells, coverage=coverage)


def _cell(k: int, record: WidthRecord, nominal_watts: float | None) -> CostCell:
    verify_ms = record.wall_ms - record.draft_ms
    verify_j, draft_j = record.verify_j, record.draft_j
    if nominal_watts is not None:
        verify_j = nominal_watts * verify_ms / 1000.0
        draft_j = nominal_watts * record.draft_ms / 1000.0
    return CostCell(
        n=record.n,
        k=k,
        verify_ms=verify_ms,
        verify_j=verify_j or 0.0,
        draft_ms=record.draft_ms,
        draft_j=draft_j or 0.0,
    )


def pooled_counts(runs: Sequence[RunRecord]) -> ReachCounts:
    """The acceptance telemetry of all runs together.

    Raises:
        SpecCostError: no runs, or runs that count other buckets.
    """
    if not runs:
        raise _refused(("no runs",))
    edges = runs[0].counts.edges
    if any(run.counts.edges != edges for run in runs):
        raise _refused(("runs with different confidence buckets",))
    steps: dict[tuple[int, int], int] = {}
    for run in runs:
        for drafts, accepted, verifies in run.counts.verify_steps:
            steps[drafts, accepted] = steps.get((drafts, accepted), 0) + verifies
    return ReachCounts(
        edges=edges,
        reached=tuple(
            sum(column) for column in zip(*(r.counts.reached for r in runs), strict=True)
        ),
        accepted=tuple(
            sum(column) for column in zip(*(r.counts.accepted for r in runs), strict=True)
        ),
        overflow=sum(run.counts.overflow for run in runs),
        verify_steps=tuple((*step, count) for step, count in sorted(steps.items())),
    )


def assemble_calibration(runs: Sequence[RunRecord], *, drafter: DrafterIdentity) -> Calibration:
    """Fit the drafter's calibration to the telemetry of all runs.

    Raises:
        SpecCostError: runs that do not belong together.
        CalibrationError: too few outcomes.
    """
    return fit_calibration(pooled_counts(check_runs(runs)), drafter=drafter)
