"""Cost sources: given prices, in layers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_sources import (
    CostSourceError,
    DraftCost,
    EnvelopePoint,
    EnvelopeSource,
    MeasuredSource,
    StepTableSource,
    bucket_index,
    parse_step_table,
    uneven_step,
)

from .cost_samples import grid_table

POINTS = (EnvelopePoint(rows=2, ms=10.0, joules=1.0), EnvelopePoint(rows=10, ms=26.0, joules=5.0))


def ms(source: object, n: int, k: int) -> float | None:
    found = source.step(n, k)  # type: ignore[attr-defined]
    return None if found is None else found.ms


@pytest.mark.parametrize(
    ("n", "bucket"), [(-5, 0), (0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (128, 7)]
)
def test_widths_fall_into_powers_of_two(n: int, bucket: int) -> None:
    assert bucket_index(n) == bucket


@pytest.mark.parametrize("n", [129, 256, 10**9])
def test_everything_wide_shares_the_last_bucket(n: int) -> None:
    assert bucket_index(n) == 8


def test_the_measured_source_is_the_table() -> None:
    source = MeasuredSource(grid_table())
    for n in (1, 2, 4, 9):
        for k in (0, 1, 2, 3):
            assert source.step(n, k) == source.step(n, k) == grid_table().step(n, k)
    assert source.batch(4, 6, k_drafted=2) == grid_table().batch(4, 6, k_drafted=2)
    assert source.max_k == 2 and not source.needs_probe(1, 0)


def test_an_envelope_prices_total_rows() -> None:
    source = EnvelopeSource(POINTS, draft=DraftCost(), max_k=9)
    assert ms(source, 1, 1) == 10.0
    assert ms(source, 2, 2) == pytest.approx(18.0)
    assert ms(source, 3, 1) == pytest.approx(18.0)
    assert (ms(source, 1, 0), ms(source, 50, 3)) == (10.0, 26.0)
    assert ms(source, 1, 10) is None and ms(source, 0, 1) is None


def test_drafting_is_paid_per_draft_or_once_a_block() -> None:
    chain = EnvelopeSource(POINTS, draft=DraftCost(ms=2.0, joules=0.5), max_k=4)
    block = EnvelopeSource(POINTS, draft=DraftCost(ms=2.0, joules=0.5, per_block=True), max_k=4)
    free = EnvelopeSource(POINTS, draft=DraftCost(), max_k=4)
    extra = [
        [(ms(s, 1, k) or 0.0) - (ms(free, 1, k) or 0.0) for k in range(4)] for s in (chain, block)
    ]
    assert extra == [pytest.approx([0, 2, 4, 6]), pytest.approx([0, 2, 2, 2])]
    found = chain.step(1, 3)
    assert found is not None and found.joules == pytest.approx(2.0 + 1.5)


def test_an_envelope_with_one_unmetered_point_has_no_joules() -> None:
    points = (POINTS[0], EnvelopePoint(rows=10, ms=26.0))
    found = EnvelopeSource(points, draft=DraftCost(), max_k=4).step(1, 1)
    assert found is not None and found.joules is None


@pytest.mark.parametrize(
    ("points", "draft"),
    [
        ((), DraftCost()),
        (POINTS[::-1], DraftCost()),
        ((POINTS[0], POINTS[0]), DraftCost()),
        ((EnvelopePoint(rows=0, ms=1.0),), DraftCost()),
        ((EnvelopePoint(rows=1, ms=0.0),), DraftCost()),
        ((EnvelopePoint(rows=1, ms=math.nan),), DraftCost()),
        ((EnvelopePoint(rows=1, ms=1.0, joules=-1.0),), DraftCost()),
        (POINTS, DraftCost(ms=-0.5)),
        (POINTS, DraftCost(joules=math.inf)),
    ],
)
def test_an_envelope_that_prices_nothing_is_refused(
    points: tuple[EnvelopePoint, ...], draft: DraftCost
) -> None:
    with pytest.raises(CostSourceError, match="envelope refused"):
        EnvelopeSource(points, draft=draft, max_k=3)


def test_a_step_table_reads_depths_from_zero_or_one() -> None:
    source = parse_step_table(" 0:28.65, 1:44.15 ,2:50.5")
    assert [ms(source, n, 2) for n in (1, 64)] == [50.5, 50.5]
    assert source.max_k == 2 and ms(source, 1, 3) is None
    assert ms(parse_step_table("1:1.0,2:1.32"), 1, 0) is None


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "0:5",
        "2:5",
        "0:5,2:6",
        "1:5,0:6",
        "1:0",
        "1:-3",
        "1:nan",
        "1:inf",
        "1:a",
        "x:5",
        "1-5",
        "1:5,1:6",
        "1:5,,2:6",
        "-1:5,0:4,1:3",
    ],
)
def test_a_malformed_step_table_is_refused_naming_it(raw: str) -> None:
    with pytest.raises(CostSourceError, match="step table refused"):
        parse_step_table(raw)


def test_relative_prices_are_a_step_table() -> None:
    source = StepTableSource({1: 1.0, 2: 1.32})
    assert (ms(source, 16, 1), ms(source, 16, 2)) == (1.0, 1.32)


def test_uneven_depths_interpolate_whole_steps() -> None:
    source = StepTableSource({0: 10.0, 1: 14.0, 2: 22.0})
    found = uneven_step(source, 4, 5)
    assert found is not None and found.ms == pytest.approx(16.0)
    deep = uneven_step(source, 1, 9)
    assert deep is not None and deep.ms == 22.0
    assert uneven_step(source, 0, 1) is None and uneven_step(source, 2, -1) is None


@given(st.integers(1, 300), st.integers(0, 9), st.integers(0, 40))
def test_given_prices_are_positive(n: int, k: int, drafts: int) -> None:
    for source in (
        MeasuredSource(grid_table()),
        EnvelopeSource(POINTS, draft=DraftCost(ms=1.0), max_k=9),
        StepTableSource({0: 10.0, 1: 14.0}),
    ):
        for found in (source.step(n, k), source.batch(n, drafts, k_drafted=min(k, 1))):
            assert found is None or 0.0 < found.ms < math.inf
