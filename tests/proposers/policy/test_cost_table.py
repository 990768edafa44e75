"""Cost table: grid lookup, interpolation, and the optional context and coverage axes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_coverage import CoveragePoint, ExpertCoverage
from phalanx.proposers.policy.cost_key import CostTableError
from phalanx.proposers.policy.cost_table import CostCell, CostTable

from .cost_samples import cell, cost_key, grid_table

COVERAGE = ExpertCoverage(
    num_experts=64,
    top_k=8,
    points=(
        CoveragePoint(distinct=8.0, verify_ms=1.0, verify_j=0.1),
        CoveragePoint(distinct=64.0, verify_ms=8.0, verify_j=0.8),
    ),
)


def test_a_measured_cell_is_returned_exactly() -> None:
    table = grid_table()
    assert table.cell(4, 2) == cell(4, 2, 42.0, 4.2)
    assert (table.max_k, table.widths) == (2, (1, 4))


def test_width_two_lies_one_third_between_one_and_four() -> None:
    found = grid_table().cell(2, 1)
    assert found is not None and found.n == 2
    assert found.verify_ms == pytest.approx(11.0 + (41.0 - 11.0) / 3)
    assert found.verify_j == pytest.approx(1.1 + (4.1 - 1.1) / 3)
    assert (found.draft_ms, found.draft_j) == pytest.approx((1.0, 0.1))


def test_outside_the_measured_widths_the_nearest_holds() -> None:
    table = grid_table()
    assert table.cell(128, 1) == replace(cell(4, 1, 41.0, 4.1), n=128)
    assert table.cell(0, 1) == replace(cell(1, 1, 11.0, 1.1), n=0)


@pytest.mark.parametrize("k", [-1, 3, 99])
def test_an_unmeasured_depth_has_no_price(k: int) -> None:
    assert grid_table().cell(1, k) is None
    assert grid_table().step(1, k) is None


def test_a_step_is_verify_plus_draft() -> None:
    found = grid_table().step(1, 2)
    assert found is not None and (found.ms, found.joules) == pytest.approx((14.0, 1.4))


def test_uneven_depths_lie_between_the_uniform_ones_and_pay_all_drafting() -> None:
    # 4 streams, 6 drafts: half way between depths 1 and 2, drafted to depth 2.
    found = grid_table().batch(4, 6, k_drafted=2)
    assert found is not None and found.ms == pytest.approx(41.5 + 2.0)
    assert found.joules == pytest.approx(4.15 + 0.2)


def test_uneven_depths_outside_the_grid() -> None:
    table = grid_table()
    deep = table.batch(1, 9, k_drafted=9)
    assert deep is not None and deep.ms == pytest.approx(14.0)
    assert table.batch(0, 0, k_drafted=1) is None
    assert table.batch(1, -1, k_drafted=1) is None


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (cell(0, 0), "n=0"),
        (cell(1, -1), "k=-1"),
        (cell(1, 0, 0.0), "verify_ms=0"),
        (cell(1, 0, -2.0), "verify_ms=-2"),
        (cell(1, 0, math.nan), "verify_ms=nan"),
        (cell(1, 0, math.inf), "verify_ms=inf"),
        (cell(1, 0, 1.0, 0.0), "verify_j=0"),
        (replace(cell(1, 0), draft_ms=1.0), "draft_ms=1.0 at k=0"),
        (replace(cell(1, 0), draft_j=math.nan), "draft_j=nan at k=0"),
        (replace(cell(1, 1), draft_ms=0.0), "draft_ms=0.0"),
        (replace(cell(1, 0), context=-5), "context=-5"),
    ],
)
def test_a_bad_cell_is_refused_by_name(bad: CostCell, named: str) -> None:
    with pytest.raises(CostTableError, match=named):
        CostTable(key=cost_key(), cells=[bad])


def test_a_cell_given_twice_is_refused() -> None:
    with pytest.raises(CostTableError, match="twice: n=1, k=0"):
        CostTable(key=cost_key(), cells=[cell(1, 0), cell(1, 0, 12.0)])


def test_no_cells_are_refused() -> None:
    with pytest.raises(CostTableError, match="no cells"):
        CostTable(key=cost_key(), cells=[])


def test_a_hole_in_the_grid_is_refused() -> None:
    with pytest.raises(CostTableError, match="missing cell: n=4, k=1"):
        CostTable(key=cost_key(), cells=[cell(1, 0), cell(1, 1), cell(4, 0)])
    with pytest.raises(CostTableError, match="missing cell: n=1, k=0"):
        CostTable(key=cost_key(), cells=[cell(1, 1)])


def context_table() -> CostTable:
    cells = [
        replace(cell(n, k, 10.0 * n + k + context / 1000), context=context)
        for context in (1000, 9000)
        for n in (1, 4)
        for k in range(2)
    ]
    return CostTable(key=cost_key(), cells=cells)


def test_a_context_axis_is_interpolated_the_same_way() -> None:
    table = context_table()
    assert table.contexts == (1000, 9000)
    costs = [table.step(2, 1, context=context) for context in (0, 1000, 3000, 9000, 10**6)]
    assert [cost.ms for cost in costs if cost is not None] == pytest.approx([23, 23, 25, 31, 31])


def test_without_an_asked_context_the_shortest_measured_one_holds() -> None:
    table = context_table()
    assert table.step(4, 1) == table.step(4, 1, context=1000)
    assert table.step(4, 1, context=math.nan) == table.step(4, 1, context=1000)


def test_a_table_without_the_axis_ignores_the_context() -> None:
    assert grid_table().step(2, 1, context=99_999) == grid_table().step(2, 1)


def test_a_context_on_some_cells_only_is_refused() -> None:
    cells = [replace(cell(1, 0), context=100), cell(1, 1)]
    with pytest.raises(CostTableError, match="some cells only"):
        CostTable(key=cost_key(), cells=cells)


def test_a_hole_in_one_context_is_refused() -> None:
    cells = [replace(cell(1, 0), context=100), replace(cell(1, 1), context=200)]
    with pytest.raises(CostTableError, match="missing cell: context=100, n=1, k=1"):
        CostTable(key=cost_key(), cells=cells)


def coverage_table() -> CostTable:
    cells = [cell(n, k, 12.0 * n, 2.0 * n) for n in (1, 4) for k in range(2)]
    return CostTable(key=cost_key(), cells=cells, coverage=COVERAGE)


def test_coverage_leaves_measured_cells_alone() -> None:
    assert coverage_table().cell(4, 1) == cell(4, 1, 48.0, 8.0)


def test_coverage_bends_the_line_between_widths() -> None:
    found = coverage_table().cell(2, 0)
    chord = 12.0 + 36.0 / 3
    # Distinct experts grow fastest at first, so half way is dearer than the chord.
    at = [COVERAGE.term(COVERAGE.expected_distinct(rows))[0] for rows in (1, 2, 4)]
    bend = at[1] - (at[0] + (at[2] - at[0]) / 3)
    assert found is not None and bend > 0.1
    assert found.verify_ms == pytest.approx(chord + bend)


def test_a_known_distinct_count_moves_the_price_by_its_term() -> None:
    table = coverage_table()
    usual = table.step(4, 1)
    for distinct in (8.0, 20.0, 64.0):
        found = table.step(4, 1, distinct=distinct)
        expected = COVERAGE.expected_distinct(8)
        shift = COVERAGE.term(distinct)[0] - COVERAGE.term(expected)[0]
        assert found is not None and usual is not None
        assert found.ms == pytest.approx(usual.ms + shift)


def test_a_table_without_coverage_ignores_the_distinct_count() -> None:
    assert grid_table().step(2, 1, distinct=5.0) == grid_table().step(2, 1)


def test_a_coverage_term_as_large_as_a_cell_is_refused() -> None:
    with pytest.raises(CostTableError, match="not below cell n=1, k=0"):
        CostTable(key=cost_key(), cells=[cell(1, 0, 1.0)], coverage=COVERAGE)


@given(st.integers(-10, 300), st.integers(-2, 4), st.floats(), st.floats())
def test_every_price_is_positive_and_finite(
    n: int, k: int, context: float, distinct: float
) -> None:
    for table in (grid_table(), context_table(), coverage_table()):
        found = table.step(n, k, context=context, distinct=distinct)
        if 0 <= k <= table.max_k:
            assert found is not None and 0.0 < found.ms < math.inf
            assert found.joules is not None and 0.0 < found.joules < math.inf
        else:
            assert found is None
