"""The measured planner: depth before drafting, rows after it, and its options."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_table import CostCell, CostTable
from phalanx.proposers.policy.planner import (
    MeasuredOptions,
    MeasuredOptionsError,
    MeasuredPlanner,
    check_measured_options,
    propose_depth,
    sequence_depths,
)

from .cost_samples import calibration, cost_key, outcome, row_table, view

BIG = 10**9
CAL = calibration()


def planned(n: int, row_ms: float, row_j: float, *, slack: float = 0.05) -> int:
    table = row_table(n, row_ms=row_ms, row_j=row_j)
    return propose_depth(table, CAL, n=n, slack=slack, max_seqs=32)


def cut(
    lps: list[list[float]],
    held: list[int],
    *,
    row_ms: float = 0.1,
    row_j: float = 0.01,
    budget: int = BIG,
    k_max: int = 3,
    slack: float = 0.0,
) -> tuple[int, ...]:
    table = row_table(max(len(held), 1), row_ms=row_ms, row_j=row_j)
    return sequence_depths(
        table, CAL, confidences=lps, held=held, k_max=k_max, row_budget=budget, slack=slack
    )


def test_the_price_of_a_row_sets_the_depth() -> None:
    assert planned(2, 0.1, 0.01) == 3
    assert planned(2, 1.0, 0.3) == 1
    assert planned(1, 40.0, 4.0) == 0


def test_slack_trades_speed_for_energy() -> None:
    assert planned(1, 12.0, 1e-9, slack=0.0) == 1
    assert planned(1, 12.0, 1e-9, slack=0.9) == 3


def test_above_the_width_cap_nothing_is_proposed() -> None:
    table = row_table(4, row_ms=0.1, row_j=0.01)
    assert propose_depth(table, CAL, n=5, slack=0.0, max_seqs=4) == 0
    assert propose_depth(table, CAL, n=4, slack=0.0, max_seqs=4) == 3
    assert propose_depth(table, CAL, n=0, slack=0.0, max_seqs=4) == 0


def test_a_table_without_drafts_proposes_none() -> None:
    table = row_table(1, row_ms=0.1, row_j=0.01, max_k=0)
    assert propose_depth(table, CAL, n=1, slack=0.0, max_seqs=4) == 0


def test_all_caps_bind() -> None:
    assert cut([], [3, 3]) == (3, 3)
    assert cut([], [1, 0, 9]) == (1, 0, 3)
    assert cut([], [3, 3], k_max=2) == (2, 2)
    assert cut([], []) == ()


def test_the_contested_row_goes_to_the_confident_sequence() -> None:
    doubtful, sure = [-0.05, -3.0], [-0.05, -0.01]
    assert cut([doubtful, sure], [2, 2], budget=5) == (1, 2)
    assert cut([sure, doubtful], [2, 2], budget=5) == (2, 1)
    assert cut([sure, sure], [2, 2], budget=5) == (2, 1)


def test_a_budget_below_one_draft_each_is_plain() -> None:
    assert cut([], [2, 2], budget=3) == (0, 0)
    assert cut([], [2, 2], budget=4) == (1, 1)


def test_dear_rows_keep_one_draft_each() -> None:
    assert cut([], [3, 3], row_ms=40.0, row_j=4.0) == (1, 1)


def test_a_dip_beyond_a_dear_depth_is_found() -> None:
    joules = (0.9, 1.0, 3.0, 1.1)
    cells = [
        CostCell(
            n=1,
            k=k,
            verify_ms=10.0,
            verify_j=verify_j,
            draft_ms=0.1 * k,
            draft_j=0.01 * k,
        )
        for k, verify_j in enumerate(joules)
    ]
    table = CostTable(key=cost_key(), cells=cells)
    found = sequence_depths(
        table, CAL, confidences=[], held=[3], k_max=3, row_budget=BIG, slack=0.0
    )
    assert found == (3,)
    assert propose_depth(table, CAL, n=1, slack=0.0, max_seqs=4) == 3


def test_confidences_of_another_length_are_not_measured() -> None:
    # Two confidences for three drafts: the priors stand in, as with none at all.
    stale = [[-9.0, -9.0]]
    assert cut(stale, [3], budget=4) == cut([], [3], budget=4)
    assert cut([[-9.0, -9.0, -9.0]], [3], row_ms=2.0, row_j=0.3) == (1,)


lps = st.lists(st.floats(-5.0, 0.0), min_size=3, max_size=3)


@given(st.lists(lps, min_size=2, max_size=5), st.integers(4, 20), st.floats(0.0, 3.0))
def test_more_confidence_never_costs_a_sequence_its_rows(
    batch: list[list[float]], budget: int, row_ms: float
) -> None:
    held = [3] * len(batch)
    before = cut(batch, held, row_ms=row_ms, row_j=0.1, budget=budget)
    surer = [[min(lp + 1.0, 0.0) for lp in batch[0]], *batch[1:]]
    after = cut(surer, held, row_ms=row_ms, row_j=0.1, budget=budget)
    if sum(after) >= sum(before):
        assert after[0] >= before[0]
    assert after == cut(surer, held, row_ms=row_ms, row_j=0.1, budget=budget)


@given(
    st.lists(st.lists(st.floats(), max_size=5), max_size=6),
    st.lists(st.integers(-3, 9), max_size=6),
    st.integers(-5, 40),
    st.integers(-2, 6),
)
def test_odd_drafts_and_confidences_never_raise(
    batch: list[list[float]], held: list[int], budget: int, k_max: int
) -> None:
    found = cut(batch, held, budget=budget, k_max=k_max)
    assert len(found) == len(held)
    for kept, drafts in zip(found, held, strict=True):
        assert 0 <= kept <= max(min(drafts, k_max, 3), 0)
    assert len(held) + sum(found) <= max(budget, len(held))


def test_the_policy_never_goes_below_one_draft_within_the_cap() -> None:
    table = row_table(1, row_ms=40.0, row_j=4.0)
    planner = MeasuredPlanner(table, CAL, slack=0.05)
    assert planner.decide(view(1)).depth == 1
    assert planner.decide(view(5, max_seqs=4)).depth == 0
    assert planner.decide(view(0)).depth == 0
    assert planner.decide(view(1, num_drafts=0)).depth == 0
    planner.observe(outcome(1, 10.0, [1]))


def test_the_policy_obeys_the_slots() -> None:
    planner = MeasuredPlanner(row_table(1, row_ms=0.1, row_j=0.01), CAL, slack=0.05)
    assert planner.decide(view(1)).depth == 3
    assert planner.decide(replace(view(1), capacities=(2,))).depth == 2
    assert planner.decide(view(1, num_drafts=1)).depth == 1


def test_a_context_axis_reaches_the_policy() -> None:
    short, long = (row_table(1, row_ms=ms, row_j=j) for ms, j in ((0.1, 0.01), (2.0, 0.9)))
    cells = [
        replace(cell, context=context)
        for context, table in ((100, short), (10_000, long))
        for cell in table.cells
    ]
    planner = MeasuredPlanner(CostTable(key=cost_key(), cells=cells), CAL, slack=0.05)
    found = [planner.decide(replace(view(1), context_depth=c)).depth for c in (100, 10_000, 100)]
    assert found == [3, 1, 3]


OPTIONS = MeasuredOptions(
    table="t.toml", calibration="c.toml", recipe="a/b", slack=0.05, speculative=True
)


def test_complete_options_give_the_slack() -> None:
    assert check_measured_options(OPTIONS) == 0.05


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"table": None}, "--spec-cost-table"),
        ({"calibration": None}, "--spec-cost-calibration"),
        ({"recipe": None}, "--spec-cost-recipe"),
        ({"slack": None}, "--spec-cost-slack is missing"),
        ({"slack": 1.0}, "--spec-cost-slack=1.0"),
        ({"slack": -0.1}, "--spec-cost-slack=-0.1"),
        ({"slack": math.nan}, "--spec-cost-slack=nan"),
        ({"speculative": False}, "--speculative"),
        ({"dflash": True}, "--dflash"),
        ({"k_ladder": "4:3"}, "--mtp-k-ladder=4:3"),
        ({"dcut_ratio": 0.5}, "--mtp-dcut-ratio=0.5"),
        ({"confidence_stop": 0.3}, "--draft-confidence-stop=0.3"),
    ],
)
def test_options_that_are_missing_or_in_the_way_are_named(
    changed: dict[str, object], named: str
) -> None:
    with pytest.raises(MeasuredOptionsError, match=named):
        check_measured_options(replace(OPTIONS, **changed))  # type: ignore[arg-type]


def test_everything_wrong_is_named_at_once() -> None:
    wrong = replace(OPTIONS, table=None, recipe=None, dflash=True, k_ladder="1:1")
    with pytest.raises(MeasuredOptionsError) as refused:
        check_measured_options(wrong)
    for name in ("--spec-cost-table", "--spec-cost-recipe", "--dflash", "--mtp-k-ladder"):
        assert name in str(refused.value)
