"""Confidence floor, confidence stop, and the reach counters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.confidence import (
    LP_EDGES,
    ConfidenceReach,
    chain_confidence,
    check_confidence_stop,
    keeps_drafts,
    lp_bucket,
    parse_draft_conf_tau,
    stop_depth,
)


@pytest.mark.parametrize(
    ("raw", "tau"),
    [(None, 0.0), ("0.5", 0.5), ("1.5", 0.99), ("-2", 0.0), ("junk", 0.0), ("nan", 0.0)],
)
def test_tau_is_clamped_and_junk_is_off(raw: str | None, tau: float) -> None:
    assert parse_draft_conf_tau(raw) == tau


def test_chain_confidence_is_the_weakest_draft() -> None:
    assert chain_confidence([0.9, 0.4, 0.8]) == 0.4
    assert chain_confidence([0.9, math.nan]) == 0.9
    assert chain_confidence([]) is None


def test_floor_drops_only_what_is_measured_and_below() -> None:
    assert not keeps_drafts(1, confidence=0.59, tau=0.6)
    assert keeps_drafts(1, confidence=0.6, tau=0.6)
    assert keeps_drafts(1, confidence=None, tau=0.6)
    assert keeps_drafts(1, confidence=0.1, tau=0.0)
    assert keeps_drafts(0, confidence=0.1, tau=0.6)
    assert keeps_drafts(1, confidence=math.nan, tau=0.6)


def test_stop_ends_the_chain_at_the_first_doubtful_draft() -> None:
    lps = [math.log(0.9), math.log(0.3), math.log(0.95)]
    assert stop_depth(lps, 3, tau=0.5) == 1
    assert stop_depth(lps, 3, tau=0.2) == 3
    assert stop_depth(lps, 1, tau=0.5) == 1
    assert stop_depth([math.log(0.1)], 3, tau=0.5) == 0
    assert stop_depth(lps, 3, tau=None) == 3
    assert stop_depth([], 3, tau=0.5) == 3
    assert stop_depth([math.nan, -math.inf], 3, tau=0.5) == 1


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.5, math.nan, math.inf])
def test_stop_outside_the_probabilities_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match="draft_confidence_stop="):
        check_confidence_stop(tau)


def test_stop_of_a_probability_or_none_is_taken() -> None:
    assert check_confidence_stop(None) is None
    assert check_confidence_stop(1.0) == 1.0


def test_edges_belong_to_their_own_bucket() -> None:
    assert [lp_bucket(edge) for edge in LP_EDGES] == list(range(10))
    assert lp_bucket(-100.0) == 0
    assert lp_bucket(math.nextafter(-4.0, 0.0)) == 1
    assert lp_bucket(0.3) == 9
    assert [lp_bucket(lp) for lp in (math.nan, math.inf, -math.inf)] == [None] * 3


def test_only_reached_drafts_count() -> None:
    reach = ConfidenceReach()
    reach.record([-0.001, -0.3, -3.0], num_drafts=3, accepted=1)
    counts = reach.counts()
    assert sum(counts.reached) == 2
    assert counts.reached[9] == counts.accepted[9] == 1
    assert counts.reached[4] == 1 and counts.accepted[4] == 0
    assert counts.rate(-0.001) == 1.0
    assert counts.rate(-0.3) == 0.0
    assert counts.rate(-3.0) is None
    assert counts.verify_steps == ((3, 1, 1),)


def test_wrong_length_is_not_measured_but_still_a_verify() -> None:
    reach = ConfidenceReach()
    reach.record([-0.1], num_drafts=2, accepted=2)
    reach.record([], num_drafts=2, accepted=0)
    assert sum(reach.counts().reached) == 0
    assert reach.counts().verify_steps == ((2, 0, 1), (2, 2, 1))


def test_non_finite_confidence_goes_to_overflow() -> None:
    reach = ConfidenceReach()
    reach.record([math.nan, -0.1], num_drafts=2, accepted=2)
    counts = reach.counts()
    assert (counts.overflow, sum(counts.reached)) == (1, 1)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(), max_size=5), st.integers(-2, 6), st.integers(-2, 9)),
        max_size=30,
    )
)
def test_counts_stay_consistent(records: list[tuple[list[float], int, int]]) -> None:
    reach = ConfidenceReach()
    for lps, num_drafts, accepted in records:
        reach.record(lps, num_drafts=num_drafts, accepted=accepted)
    counts = reach.counts()
    assert all(0 <= a <= r for a, r in zip(counts.accepted, counts.reached, strict=True))
    assert sum(count for _, _, count in counts.verify_steps) == sum(
        1 for _, num_drafts, _ in records if num_drafts > 0
    )


@given(st.lists(st.floats(), max_size=6), st.integers(-2, 8), st.floats() | st.none())
def test_stop_depth_stays_within_the_chain(
    lps: list[float], num_drafts: int, tau: float | None
) -> None:
    assert 0 <= stop_depth(lps, num_drafts, tau=tau) <= max(num_drafts, 0)
