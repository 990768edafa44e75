"""Assembly: one run per depth becomes a table and a calibration, or is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.proposers.policy.calibration import CalibrationError
from phalanx.proposers.policy.confidence import LP_EDGES, ReachCounts
from phalanx.proposers.policy.cost_assemble import (
    assemble_calibration,
    assemble_table,
    pooled_counts,
)
from phalanx.proposers.policy.cost_file import parse_table, render_table
from phalanx.proposers.policy.cost_record import (
    RunRecord,
    SpecCostError,
    SpecCostParameters,
    WidthRecord,
)

from .cost_samples import DRAFTER, cost_key


def counts(reached: int, accepted: int, steps: tuple[tuple[int, int, int], ...]) -> ReachCounts:
    zeros = (0,) * (len(LP_EDGES) - 1)
    return ReachCounts(
        edges=LP_EDGES,
        reached=(*zeros, reached),
        accepted=(*zeros, accepted),
        overflow=1,
        verify_steps=steps,
    )


def record(n: int, k: int) -> WidthRecord:
    return WidthRecord(
        n=n,
        steps=100.0,
        wall_ms=40.0 + n + 6.0 * k,
        verify_ms=38.0 + n + k,
        verify_j=4.0 + k,
        draft_ms=5.0 * k,
        draft_j=0.25 * k,
        tok_per_step=1.0 + 0.5 * k,
    )


def run(k: int, **changed: object) -> RunRecord:
    made = RunRecord(
        machine_id="box-7",
        model="qwen/27b",
        parameters=SpecCostParameters(k=k, widths=(1, 4)),
        widths=(record(1, k), record(4, k)),
        counts=counts(60 * k, 40 * k, ((k, 0, 20), (k, k, 40)) if k else ()),
        energy_source="nvml",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def unmetered(k: int) -> RunRecord:
    widths = tuple(replace(r, verify_j=None, draft_j=None) for r in run(k).widths)
    return run(k, widths=widths, energy_source=None)


def test_verify_time_in_the_table_covers_the_loop_between_steps() -> None:
    table = assemble_table([run(2), run(0), run(1)], key=cost_key())
    found = table.cell(4, 1)
    assert found is not None
    assert found.verify_ms == pytest.approx(50.0 - 5.0)
    assert (found.verify_j, found.draft_ms, found.draft_j) == pytest.approx((5.0, 5.0, 0.25))
    assert (table.max_k, table.widths, table.contexts) == (2, (1, 4), ())
    assert parse_table(render_table(table)).cells == table.cells


def test_runs_at_several_prompt_lengths_make_a_context_axis() -> None:
    runs = [
        run(k, parameters=SpecCostParameters(k=k, widths=(1, 4), prompt_tokens=prompt))
        for prompt in (4096, 512)
        for k in (0, 1)
    ]
    table = assemble_table(runs, key=cost_key())
    assert table.contexts == (512, 4096)
    with pytest.raises(SpecCostError, match="at 512 prompt tokens"):
        assemble_table(runs[:3], key=cost_key())


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        ([], "no runs"),
        ([run(1)], r"depths \[1\]"),
        ([run(0), run(2)], r"depths \[0, 2\]"),
        ([run(0), run(1), run(1)], r"depths \[0, 1, 1\]"),
        ([run(0), run(1, machine_id="box-8")], "machine 'box-8'"),
        ([run(0), run(1, model="glm")], "model 'glm'"),
        (
            [run(0), run(1, parameters=SpecCostParameters(k=1, widths=(1, 4), osl=512))],
            "osl 512, not 1024",
        ),
        (
            [run(0), run(1, widths=(record(1, 1), WidthRecord(n=4, vacuous=("idle",))))],
            "k=1 n=4 vacuous: idle",
        ),
        ([run(0), unmetered(1)], "k=1 n=1 without joules"),
    ],
)
def test_runs_that_make_no_grid_are_refused_by_name(runs: list[RunRecord], named: str) -> None:
    with pytest.raises(SpecCostError, match=named):
        assemble_table(runs, key=cost_key())


def test_everything_wrong_is_named_at_once() -> None:
    with pytest.raises(SpecCostError) as refused:
        assemble_table([run(0), run(2, machine_id="other", model="glm")], key=cost_key())
    for name in ("depths", "other", "glm"):
        assert name in str(refused.value)


def test_nominal_watts_stand_in_only_where_nothing_was_metered() -> None:
    table = assemble_table([unmetered(0), unmetered(1)], key=cost_key(), nominal_watts=100.0)
    found = table.cell(1, 1)
    assert found is not None
    assert (found.verify_j, found.draft_j) == pytest.approx((4.2, 0.5))
    for runs, watts, named in (
        ([run(0), unmetered(1)], 100.0, "beside metered"),
        ([unmetered(0), unmetered(1)], 0.0, "nominal_watts=0"),
    ):
        with pytest.raises(SpecCostError, match=named):
            assemble_table(runs, key=cost_key(), nominal_watts=watts)


def test_the_calibration_is_fitted_to_all_runs_together() -> None:
    runs = [run(0), run(1), run(2)]
    pooled = pooled_counts(runs)
    assert (pooled.reached[-1], pooled.accepted[-1], pooled.overflow) == (180, 120, 3)
    assert pooled.verify_steps == ((1, 0, 20), (1, 1, 40), (2, 0, 20), (2, 2, 40))
    fitted = assemble_calibration(runs, drafter=DRAFTER)
    assert fitted.p_given_lp(0.0) == pytest.approx(120 / 180)
    assert fitted.prior_by_position == pytest.approx((80 / 120,))


def test_too_little_telemetry_is_refused() -> None:
    with pytest.raises(CalibrationError, match="60"):
        assemble_calibration([run(0), run(1)], drafter=DRAFTER)


def test_runs_that_count_other_buckets_are_refused() -> None:
    other = replace(run(1).counts, edges=(-1.0, 0.0))
    with pytest.raises(SpecCostError, match="different confidence buckets"):
        pooled_counts([run(0), run(1, counts=other)])
