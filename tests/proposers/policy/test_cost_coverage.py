"""Expert coverage: the part of a verify that reads expert weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_coverage import (
    CoverageCount,
    CoveragePoint,
    ExpertCoverage,
    coverage_trouble,
    interpolate,
)


def coverage(**changed: object) -> ExpertCoverage:
    values: dict[str, object] = {
        "num_experts": 64,
        "top_k": 8,
        "points": (
            CoveragePoint(distinct=8.0, verify_ms=1.0, verify_j=0.1),
            CoveragePoint(distinct=64.0, verify_ms=8.0, verify_j=0.8),
        ),
    }
    return ExpertCoverage(**(values | changed))  # type: ignore[arg-type]


def test_one_row_touches_its_own_experts() -> None:
    assert coverage().expected_distinct(1) == pytest.approx(8.0)


def test_many_rows_touch_all_experts() -> None:
    assert coverage().expected_distinct(10_000) == pytest.approx(64.0)


@given(st.integers(0, 500), st.integers(1, 500))
def test_more_rows_never_touch_fewer_experts_and_gain_less_each(rows: int, more: int) -> None:
    cover = coverage()
    first, then = cover.expected_distinct(rows), cover.expected_distinct(rows + more)
    assert first <= then <= 64.0 + 1e-9
    assert then - first <= 8.0 * more + 1e-9


def test_measured_counts_replace_the_uniform_assumption() -> None:
    counts = (CoverageCount(rows=1, distinct=8.0), CoverageCount(rows=9, distinct=16.0))
    cover = coverage(counts=counts)
    assert cover.expected_distinct(5) == pytest.approx(12.0)
    assert cover.expected_distinct(100) == 16.0


def test_the_term_is_linear_between_points_and_flat_outside() -> None:
    cover = coverage()
    assert cover.term(36.0) == pytest.approx((4.5, 0.45))
    assert cover.term(1.0) == (1.0, 0.1)
    assert cover.term(1e9) == (8.0, 0.8)
    assert cover.term(math.nan) == (1.0, 0.1)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6, unique=True).map(sorted),
    st.floats(),
    st.data(),
)
def test_interpolation_stays_within_its_values(
    xs: list[float], x: float, data: st.DataObject
) -> None:
    ys = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=len(xs), max_size=len(xs)))
    assert min(ys) - 1e-6 <= interpolate(xs, ys, x) <= max(ys) + 1e-6


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"top_k": 65}, "top_k"),
        ({"top_k": 0}, "top_k"),
        ({"points": ()}, "no points"),
        ({"points": (CoveragePoint(distinct=99.0, verify_ms=1, verify_j=1),)}, "distinct=99"),
        ({"points": (CoveragePoint(distinct=1.0, verify_ms=-1, verify_j=1),)}, "cost"),
        ({"points": (CoveragePoint(distinct=1.0, verify_ms=math.nan, verify_j=1),)}, "cost"),
        ({"points": (CoveragePoint(distinct=1.0, verify_ms=1, verify_j=1),) * 2}, "rise"),
        ({"counts": (CoverageCount(rows=4, distinct=9.0),) * 2}, "rise"),
    ],
)
def test_sections_that_cannot_be_used_are_named(changed: dict[str, object], named: str) -> None:
    assert named in (coverage_trouble(coverage(**changed)) or "")
    assert coverage_trouble(coverage()) is None
