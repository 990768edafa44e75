"""Report: figures are derived alike for JSON and table, and nothing divides by zero."""

from __future__ import annotations

import pytest

from phalanx.launch.report import BAR_CELLS, Output, RunReport, SpecFigures, histogram, table


def report(*, tokens: int = 10, seconds: float = 2.0, spec: SpecFigures | None = None) -> RunReport:
    output = Output(
        text="x", token_ids=tuple(range(tokens)), finish_reason="length", prompt_tokens=3
    )
    return RunReport(
        model="tiny",
        ranks=2,
        outputs=(output,),
        seconds=seconds,
        rounds=5,
        commands={"FORWARD": 5},
        spec=spec or SpecFigures(method="off", num_drafts=0),
        digest_checks=7,
        weights_bytes_per_rank=(1, 2),
        config={},
    )


SPEC = SpecFigures(
    method="mtp",
    num_drafts=3,
    num_verifies=4,
    num_draft_tokens=12,
    num_accepted_tokens=6,
    accepted_per_position=(3, 2, 1),
)


def test_acceptance_length_counts_the_targets_own_token() -> None:
    assert SPEC.acceptance_length == pytest.approx(2.5)
    assert SPEC.acceptance_rates == pytest.approx((0.75, 0.5, 0.25))


def test_before_the_first_verify_nothing_is_claimed() -> None:
    fresh = SpecFigures(method="mtp", num_drafts=3)
    assert fresh.acceptance_length is None and fresh.as_json()["acceptance_length"] is None
    assert "acceptance" not in table(report(spec=fresh))


def test_json_and_table_agree() -> None:
    run = report(spec=SPEC)
    printed = run.as_json()
    assert printed["tokens_per_second"] == pytest.approx(5.0)
    assert printed["lockstep"] == {"digest_checks": 7, "mismatches": 0}
    text = table(run, plain_tokens_per_second=2.5)
    assert "5.0" in text and "2.50 tokens a verify" in text and "(on is 2.00 x)" in text
    assert "7 checks passed on 2 ranks" in text


def test_no_time_and_no_tokens_are_no_trouble() -> None:
    assert report(tokens=0, seconds=0.0).tokens_per_second == 0.0
    assert "tokens/s" in table(report(tokens=0, seconds=0.0), plain_tokens_per_second=0.0)


def test_histogram_is_as_long_as_its_share() -> None:
    full, half, none = histogram((1.0, 0.5, 0.0))
    assert full.count("█") == BAR_CELLS and half.count("█") == BAR_CELLS // 2
    assert none.count("█") == 0 and none.endswith("0%")
