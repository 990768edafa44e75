"""Flag texts become values exactly as their class says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy import levers


@pytest.mark.parametrize("raw", ["", "0", "1", "anything"])
def test_presence_means_set_with_any_value(raw: str) -> None:
    assert levers.is_present(raw)
    assert not levers.is_present(None)


def test_strict_one_takes_exactly_one() -> None:
    assert levers.is_one("1")
    assert not any(levers.is_one(raw) for raw in (None, "", "true", "yes", "2", "1 ", "01"))


def test_strict_zero_is_off_only_for_zero() -> None:
    assert not levers.unless_zero("0")
    assert all(levers.unless_zero(raw) for raw in (None, "", "1", "false", "0 "))


@pytest.mark.parametrize(
    ("raw", "count"),
    [("12", 12), (" 7 ", 7), ("+3", 3), ("0", 0), ("-3", None), ("", None), ("1_0", None)],
)
def test_counts_are_plain_unsigned_integers(raw: str, count: int | None) -> None:
    assert levers.parse_count(raw) == count


def test_other_digits_and_endless_digits_are_no_count() -> None:
    assert levers.parse_count("٣") is None
    assert levers.parse_count("9" * 5000) is None


@given(st.text(max_size=12) | st.none())
def test_no_text_breaks_a_parser(raw: str | None) -> None:
    assert levers.count_or(raw, 5) >= 0
    assert math.isfinite(levers.positive_or(raw, 2.0))
    assert levers.positive_or(raw, 2.0) > 0


@pytest.mark.parametrize("raw", ["nan", "inf", "-inf", "0", "-1", "x", "", "1e999"])
def test_only_finite_numbers_above_zero_are_positive(raw: str) -> None:
    assert levers.positive_or(raw, 1.5) == 1.5
