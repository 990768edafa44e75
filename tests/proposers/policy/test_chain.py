"""Chain arithmetic: expected tokens, marginals and their inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.chain import (
    chain_sum,
    conditional_from_marginal,
    expected_accepted,
    expected_tokens,
    marginal_gain,
    marginals,
    rate_at,
    tokens_by_depth,
)

rates = st.lists(st.floats(0.0, 1.0), min_size=0, max_size=20)
positive_rates = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


def test_expected_tokens_repeat_the_last_rate() -> None:
    chain = (0.6, 0.5, 0.4)
    found = [expected_tokens(chain, depth) for depth in range(5)]
    assert found == pytest.approx([1.0, 1.6, 1.9, 2.02, 2.068])


def test_expected_accepted_starts_at_zero() -> None:
    assert expected_accepted((0.6, 0.5), 2) == pytest.approx(0.9)
    assert expected_accepted((0.6, 0.5), 0) == 0.0


def test_no_rates_mean_no_acceptance() -> None:
    assert expected_tokens((), 5) == 1.0
    assert rate_at((), 3) == 0.0


def test_marginals_are_products_of_rates() -> None:
    assert marginals((0.6, 0.5, 0.4), 4) == pytest.approx((0.6, 0.3, 0.12, 0.048))
    assert marginal_gain((0.6, 0.5, 0.4), 3) == pytest.approx(0.12)


def test_conditionals_after_a_zero_marginal_are_zero() -> None:
    assert conditional_from_marginal((0.5, 0.0, 0.3)) == (0.5, 0.0, 0.0)


def test_conditionals_are_clamped() -> None:
    assert conditional_from_marginal((0.4, 0.6, -0.1)) == (0.4, 1.0, 0.0)
    assert conditional_from_marginal((float("nan"), 0.5)) == (0.0, 0.0)


@given(positive_rates)
def test_conditionals_invert_marginals(chain: list[float]) -> None:
    gains = marginals(chain, len(chain))
    assert conditional_from_marginal(gains) == pytest.approx(chain)


@given(rates, st.integers(0, 24))
def test_all_depths_at_once_equal_each_depth_alone(chain: list[float], depth: int) -> None:
    assert tokens_by_depth(chain, depth) == [expected_tokens(chain, k) for k in range(depth + 1)]


@given(rates, st.integers(0, 24))
def test_expected_tokens_stay_between_one_and_all(chain: list[float], depth: int) -> None:
    assert 1.0 <= expected_tokens(chain, depth) <= 1.0 + depth


@given(rates, st.integers(0, 24))
def test_the_sum_of_marginals_is_the_expected_acceptance(chain: list[float], depth: int) -> None:
    assert sum(marginals(chain, depth)) == pytest.approx(chain_sum(chain, depth, start=0.0))
