"""Fit: pooling by confidence, priors by position, and the least evidence that counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.calibration import (
    CalibrationError,
    parse_calibration,
    render_calibration,
)
from phalanx.proposers.policy.confidence import LP_EDGES, ReachCounts
from phalanx.proposers.policy.cost_fit import fit_calibration, pooled_rates, position_priors

from .cost_samples import DRAFTER


def counts(
    reached: dict[int, int], accepted: dict[int, int], steps: tuple[tuple[int, int, int], ...]
) -> ReachCounts:
    size = range(len(LP_EDGES))
    return ReachCounts(
        edges=LP_EDGES,
        reached=tuple(reached.get(index, 0) for index in size),
        accepted=tuple(accepted.get(index, 0) for index in size),
        overflow=0,
        verify_steps=steps,
    )


STEPS = ((2, 0, 50), (2, 1, 50), (2, 2, 100))


def test_bucket_rates_and_priors_of_a_clean_run() -> None:
    fitted = fit_calibration(counts({0: 200, 9: 400}, {0: 60, 9: 360}, STEPS), drafter=DRAFTER)
    assert fitted.p_given_lp(-9.0) == pytest.approx(0.3)
    assert fitted.p_given_lp(0.0) == pytest.approx(0.9)
    assert fitted.prior_by_position == pytest.approx((0.75, 2 / 3))
    assert fitted.drafter == DRAFTER


def test_poor_buckets_pool_from_the_confident_end() -> None:
    # 55 + 55 = 110 make one pool; the 40 left at the low end join it.
    rates = pooled_rates([40, 55, 55], [4, 11, 44])
    assert rates == (pytest.approx(59 / 150),) * 3
    assert pooled_rates([100, 55, 55], [10, 11, 44]) == pytest.approx((0.1, 0.5, 0.5))


def test_an_empty_bucket_takes_its_pool_s_rate() -> None:
    assert pooled_rates([0, 120, 0, 100], [0, 60, 0, 90]) == pytest.approx((0.5, 0.5, 0.5, 0.9))


def test_ninety_nine_outcomes_are_refused_and_a_hundred_are_not() -> None:
    with pytest.raises(CalibrationError, match="99"):
        pooled_rates([49, 50], [1, 1])
    assert pooled_rates([50, 50], [1, 1]) == pytest.approx((0.02, 0.02))


def test_priors_stop_before_the_first_position_with_too_few_verifies() -> None:
    # Position 3 was reached by 50 + 49 verifies, then by 51 + 49.
    found = position_priors(((3, 0, 1), (3, 1, 10), (3, 2, 50), (3, 3, 49)))
    assert found == pytest.approx((109 / 110, 99 / 109))
    found = position_priors(((3, 0, 0), (3, 1, 10), (3, 2, 51), (3, 3, 49)))
    assert found == pytest.approx((1.0, 100 / 110, 0.49))


def test_priors_count_only_verifies_that_drafted_so_deep() -> None:
    # The verifies of depth 1 say nothing about draft 2.
    assert position_priors(((1, 1, 300), (2, 1, 100), (2, 2, 100))) == pytest.approx((1.0, 0.5))


def test_too_few_verifies_are_refused() -> None:
    with pytest.raises(CalibrationError, match="99"):
        position_priors(((1, 0, 99),))
    with pytest.raises(CalibrationError, match="=0"):
        position_priors(())


@pytest.mark.parametrize(
    ("reached", "accepted", "named"),
    [([100, 100], [1], "length"), ([100], [101], "accepted=101"), ([100], [-1], "accepted=-1")],
)
def test_impossible_bucket_counts_are_refused(
    reached: list[int], accepted: list[int], named: str
) -> None:
    with pytest.raises(CalibrationError, match=named):
        pooled_rates(reached, accepted)


@pytest.mark.parametrize("step", [(1, 2, 500), (2, -1, 500), (2, 1, -500)])
def test_impossible_verify_counts_are_refused(step: tuple[int, int, int]) -> None:
    with pytest.raises(CalibrationError, match="impossible"):
        position_priors((step,))


@given(
    st.lists(
        st.integers(0, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        min_size=1,
        max_size=12,
    )
)
def test_pooling_keeps_the_total_acceptance(buckets: list[tuple[int, int]]) -> None:
    reached, accepted = [n for n, _ in buckets], [a for _, a in buckets]
    if sum(reached) < 100:
        with pytest.raises(CalibrationError):
            pooled_rates(reached, accepted)
        return
    rates = pooled_rates(reached, accepted)
    assert sum(n * r for n, r in zip(reached, rates, strict=True)) == pytest.approx(sum(accepted))


def test_a_fit_survives_its_file() -> None:
    fitted = fit_calibration(counts({3: 130, 9: 470}, {3: 41, 9: 399}, STEPS), drafter=DRAFTER)
    assert parse_calibration(render_calibration(fitted)) == fitted
