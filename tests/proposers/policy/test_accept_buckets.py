"""A full bucket is one flush, and only a fresh one may teach."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.accept_buckets import (
    AcceptBuckets,
    AcceptFlush,
    p2cond_from,
    token_ratio,
)


@pytest.mark.parametrize(
    ("p1", "p2", "ratio", "within"),
    [
        (0.917, 0.877, 1.424, 0.01),
        (0.732, 0.567, 1.229, 0.015),
        (0.84, 0.542, 1.247, 0.001),
        (0.773, 0.539, 1.235, 0.001),
        (0.732, 0.567, 1.240, 0.001),
        (0.917, 0.877, 1.420, 0.001),
    ],
)
def test_token_ratio_anchors(p1: float, p2: float, ratio: float, within: float) -> None:
    assert token_ratio(p1, p2) == pytest.approx(ratio, abs=within)


@pytest.mark.parametrize(
    ("p1", "p2"), [(0.0, 0.9), (math.nan, 0.9), (0.9, 0.0), (-1.0, 0.5), (0.9, math.inf)]
)
def test_token_ratio_without_information_is_one(p1: float, p2: float) -> None:
    assert token_ratio(p1, p2) == 1.0


@given(st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_p2cond_inverts_the_mean_of_a_two_draft_window(p1: float, p2: float) -> None:
    recovered = p2cond_from(p1, p1 + p1 * p2)
    assert recovered == pytest.approx(p2, abs=1e-12)


def test_p2cond_edges() -> None:
    assert p2cond_from(0.6, 0.6) == 0.0
    assert p2cond_from(0.5, 2.0) == 1.0
    assert p2cond_from(0.0, 1.0) is None
    assert p2cond_from(0.5, math.nan) is None


def _fill(buckets: AcceptBuckets, *, width: int, steps: int, now_s: float) -> list[AcceptFlush]:
    flushes = []
    for step in range(steps):
        flush = buckets.record(
            width, depth=2, accepted=step % 3, first_matched=step % 3 > 0, now_s=now_s
        )
        if flush is not None:
            flushes.append(flush)
    return flushes


def test_flush_comes_at_128_verifies_and_resets() -> None:
    buckets = AcceptBuckets()
    assert _fill(buckets, width=16, steps=127, now_s=1.0) == []
    (flush,) = _fill(buckets, width=16, steps=1, now_s=1.5)
    assert (flush.verifies, flush.width, flush.k_drafts) == (128, 16, 2)
    assert flush.p1 == pytest.approx(84 / 128)
    assert flush.mean_accepted == pytest.approx((42 + 2 * 42) / 128)
    assert flush.span_ms == pytest.approx(500.0)
    assert flush.fresh
    assert _fill(buckets, width=16, steps=127, now_s=2.0) == []


def test_eight_steps_of_sixteen_sequences_are_one_flush() -> None:
    buckets = AcceptBuckets()
    flushes = [len(_fill(buckets, width=16, steps=16, now_s=0.0)) for _ in range(16)]
    assert flushes == [0] * 7 + [1] + [0] * 7 + [1]


def test_slow_window_is_stale() -> None:
    buckets = AcceptBuckets()
    _fill(buckets, width=4, steps=127, now_s=0.0)
    (flush,) = _fill(buckets, width=4, steps=1, now_s=5.0)
    assert flush.fresh
    _fill(buckets, width=4, steps=127, now_s=10.0)
    (flush,) = _fill(buckets, width=4, steps=1, now_s=15.001)
    assert not flush.fresh


@pytest.mark.parametrize("later", [-1.0, math.nan, math.inf, -math.inf])
def test_misread_clock_is_stale_and_does_not_raise(later: float) -> None:
    buckets = AcceptBuckets()
    _fill(buckets, width=4, steps=127, now_s=0.0)
    (flush,) = _fill(buckets, width=4, steps=1, now_s=later)
    assert not flush.fresh
    assert "fresh=false" in flush.line()


def test_widths_have_buckets_of_their_own_up_to_128() -> None:
    buckets = AcceptBuckets()
    for width in (0, 1, 127):
        assert _fill(buckets, width=width, steps=127, now_s=0.0) == []
    _fill(buckets, width=128, steps=100, now_s=0.0)
    (flush,) = _fill(buckets, width=500, steps=28, now_s=0.0)
    assert flush.width == 128


def test_fold_at_16_joins_the_wide_batches() -> None:
    buckets = AcceptBuckets(fold_at_16=True)
    _fill(buckets, width=16, steps=64, now_s=0.0)
    _fill(buckets, width=15, steps=64, now_s=0.0)
    (flush,) = _fill(buckets, width=40, steps=64, now_s=0.0)
    assert flush.width == 16


def test_verify_without_drafts_counts_nothing() -> None:
    buckets = AcceptBuckets()
    for _ in range(300):
        assert buckets.record(4, depth=0, accepted=0, first_matched=False, now_s=0.0) is None


def test_debug_line_carries_the_figures() -> None:
    flush = AcceptFlush(
        width=16, k_drafts=2, verifies=128, p1=0.917, mean_accepted=1.721, span_ms=900.0
    )
    line = flush.line()
    for piece in (
        "n=16",
        "k_drafts=2",
        "p1=0.917",
        "mean_na=1.721",
        "tok_step=2.721",
        "fresh=true",
    ):
        assert piece in line
    shallow = AcceptFlush(
        width=16, k_drafts=1, verifies=128, p1=0.9, mean_accepted=0.9, span_ms=9.0
    )
    assert "token_ratio=-" in shallow.line()


@given(
    st.lists(
        st.tuples(
            st.integers(-3, 200),
            st.integers(-2, 9),
            st.integers(-9, 20),
            st.floats(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_odd_numbers_never_leave_the_range(
    records: list[tuple[int, int, int, float, bool]],
) -> None:
    buckets = AcceptBuckets()
    for _ in range(5):
        for width, depth, accepted, now_s, matched in records:
            flush = buckets.record(
                width, depth=depth, accepted=accepted, first_matched=matched, now_s=now_s
            )
            if flush is not None:
                assert 0.0 <= flush.p1 <= 1.0
                assert 0.0 <= flush.mean_accepted <= flush.k_drafts
