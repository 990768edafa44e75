"""Calibration: buckets and priors, its file, and the drafter it belongs to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.calibration import (
    Calibration,
    CalibrationError,
    check_drafter,
    parse_calibration,
    render_calibration,
)

from .cost_samples import DRAFTER, calibration

rate = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("lp", "expected"),
    [
        (-math.inf, 0.3),
        (-9.0, 0.3),
        (-1.0, 0.3),
        (-0.99, 0.6),
        (-0.1, 0.6),
        (-0.05, 0.9),
        (0.0, 0.9),
        (0.5, 0.9),
        (math.nan, 0.3),
    ],
)
def test_an_edge_belongs_to_its_own_bucket(lp: float, expected: float) -> None:
    assert calibration().p_given_lp(lp) == expected


def test_priors_past_the_end_are_the_last_one() -> None:
    assert [calibration().prior(j) for j in (1, 2, 3, 9)] == [0.8, 0.6, 0.4, 0.4]


def test_expected_acceptance_uses_confidence_where_measured() -> None:
    cal = calibration()
    assert cal.expected_accepted((-0.05, -2.0), 3) == pytest.approx(0.9 + 0.9 * 0.3 * (1 + 0.4))
    assert cal.expected_accepted((), 2) == pytest.approx(0.8 + 0.48)
    assert cal.expected_accepted((math.nan, -0.05), 2) == pytest.approx(0.8 + 0.72)


@given(st.lists(st.floats(), max_size=6), st.integers(-1, 8))
def test_gains_never_rise_with_depth(lps: list[float], depth: int) -> None:
    gains = calibration().gains(lps, depth)
    assert len(gains) == max(depth, 0)
    assert all(a >= b >= 0.0 for a, b in zip([1.0, *gains], gains, strict=False))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"edges": ()}, "edges"),
        ({"edges": (-1.0, -1.0, 0.0)}, "ascend"),
        ({"edges": (0.0, -1.0, 2.0)}, "ascend"),
        ({"edges": (-3.0, -2.0, -1.0)}, "last edge"),
        ({"edges": (-1.0, math.nan, 0.0)}, "finite"),
        ({"edges": (-1.0, 0.0)}, "3 rates for 2 edges"),
        ({"p_accept": (0.1, 1.2, 0.3)}, "p_accept holds 1.2"),
        ({"p_accept": (0.1, math.nan, 0.3)}, "p_accept holds nan"),
        ({"prior_by_position": ()}, "prior_by_position is empty"),
        ({"prior_by_position": (-0.1,)}, "prior_by_position holds -0.1"),
        ({"drafter": replace(DRAFTER, vocab=0)}, "vocab=0"),
    ],
)
def test_a_malformed_set_is_refused_by_name(changed: dict[str, object], named: str) -> None:
    with pytest.raises(CalibrationError, match=named):
        replace(calibration(), **changed)  # type: ignore[arg-type]


@given(st.lists(rate, min_size=1, max_size=9), st.lists(rate, min_size=1, max_size=16))
def test_a_rendered_calibration_reads_back_equal(rates: list[float], priors: list[float]) -> None:
    cal = Calibration(
        drafter=DRAFTER,
        edges=tuple(float(index) for index in range(len(rates))),
        p_accept=tuple(rates),
        prior_by_position=tuple(priors),
    )
    assert parse_calibration(render_calibration(cal)) == cal


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("vocab = 248320", "vocab = true", "vocab"),
        ("context = true", "context = 1", "context"),
        ('quantization = "bf16"', "", "quantization is missing"),
        ("[acceptance]", "[acceptance]\nextra = 1", "extra"),
        ("[drafter]", "[drafter]\nextra = 1", "extra"),
        ("[acceptance]", "[accept]", "acceptance is missing"),
        ("edges = [", 'edges = ["a", ', "edges holds|not a number"),
    ],
)
def test_a_malformed_file_is_refused_by_name(old: str, new: str, named: str) -> None:
    text = render_calibration(calibration())
    with pytest.raises(CalibrationError, match=named):
        parse_calibration(text.replace(old, new, 1))


def test_another_drafter_is_refused_naming_every_difference() -> None:
    check_drafter(calibration(), DRAFTER)
    other = replace(DRAFTER, weights_sha256="ff", vocab=1, quantization="fp8", context=False)
    with pytest.raises(CalibrationError) as refused:
        check_drafter(calibration(), other)
    for name in ("weights_sha256", "vocab", "quantization", "context"):
        assert name in str(refused.value)
