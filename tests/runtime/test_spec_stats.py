"""Counters, totals and the lines they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.spec_stats import (
    Counter,
    LookupStats,
    RequestSpecStats,
    SpecStats,
    SpecTotals,
    StatLine,
    block_line,
)


def _verify(stats: SpecStats, matches: str, accepted: int) -> tuple[StatLine, ...]:
    """One verify; `matches` is like `yny`."""
    return stats.record_verify([m == "y" for m in matches], accepted=accepted, seq_len=77)


def test_bump_returns_the_value_before_and_reset_clears() -> None:
    counter = Counter()
    assert [counter.bump(), counter.bump(5), counter.bump()] == [0, 1, 6]
    counter.reset()
    assert counter.value == 0


def test_two_row_summary_every_100_verifies() -> None:
    stats = SpecStats()
    lines = [_verify(stats, "y" if step % 2 else "n", step % 2) for step in range(200)]
    assert [index for index, line in enumerate(lines) if line] == [99, 199]
    (line,) = lines[99]
    assert not line.warning
    for piece in ("accepts=50", "rejects=50", "rate=50.0%", "last 100", "seq_len=77"):
        assert piece in line.text


def test_low_two_row_acceptance_warns_of_drift() -> None:
    for accepts, warning in ((29, True), (30, False)):
        stats = SpecStats()
        (line,) = [_verify(stats, "n", int(step < accepts)) for step in range(100)][-1]
        assert line.warning is warning
        assert ("drift gauge" in line.text) is warning


def test_four_row_summary_counts_outcomes_and_positions() -> None:
    stats = SpecStats()
    for _ in range(40):
        _verify(stats, "yyy", 3)
    for _ in range(30):
        _verify(stats, "yny", 1)
    for _ in range(29):
        _verify(stats, "nyy", 0)
    outcome, positions = _verify(stats, "yyn", 2)
    for piece in ("accept3=40", "accept2=1", "accept1=30", "reject=29", "mean_na=1.520"):
        assert piece in outcome.text
    for piece in (
        "steps=100",
        "p1=0.710",
        "p2_uncond=0.700",
        "p3_uncond=0.990",
        f"p2_cond={41 / 71:.3f}",
        f"p3_cond={40 / 41:.3f}",
        "uncond=[71, 70, 99]",
        "cond=[71, 41, 40]",
    ):
        assert piece in positions.text


def test_three_row_window_is_kept_apart() -> None:
    stats = SpecStats()
    for _ in range(99):
        _verify(stats, "yy", 2)
        _verify(stats, "yyy", 3)
    window = stats.window(3)
    assert window is not None
    assert (window.steps, window.accepts, window.mean_accepted) == (99, [0, 0, 99], 2.0)
    assert len(_verify(stats, "yn", 1)) == 2
    assert window.steps == 0
    assert stats.window(9) is None


def test_totals_survive_the_summaries() -> None:
    stats = SpecStats()
    for step in range(250):
        _verify(stats, "yyy" if step % 2 else "ynn", 3 if step % 2 else 1)
    _verify(stats, "n", 0)
    totals = stats.totals()
    assert (totals.num_drafts, totals.num_draft_tokens) == (251, 751)
    assert totals.num_accepted_tokens == 125 * 3 + 125
    assert totals.accepted_per_pos == (250, 125, 125)
    assert [(t.rows, t.steps) for t in totals.by_rows] == [(2, 1), (4, 250)]
    assert totals.acceptance_length == pytest.approx(1 + 500 / 251)
    assert SpecTotals().acceptance_length == 0.0


def test_chosen_depths_are_counted_plain_steps_included() -> None:
    stats = SpecStats()
    for depth in (3, 0, 3, 1, 0, 3):
        stats.record_depth(depth)
    assert stats.totals().by_depth == ((0, 2), (1, 1), (3, 3))


def test_runs_do_not_blend() -> None:
    first, second = SpecStats(), SpecStats()
    _verify(first, "y", 1)
    assert second.totals() == SpecTotals()


def test_once_is_true_once_per_key() -> None:
    stats = SpecStats()
    assert [stats.once("a"), stats.once("a"), stats.once("b")] == [True, False, True]
    assert SpecStats().once("a")


def test_decode_timing_line_every_512() -> None:
    stats = SpecStats()
    lines = [stats.record_decode(copy_us=10.0, sample_us=2.0) for _ in range(1024)]
    assert [index for index, line in enumerate(lines) if line] == [511, 1023]
    line = lines[1023]
    assert line is not None and "copy_us=10.0 sample_us=2.0" in line.text


def test_block_line() -> None:
    line = block_line(gamma=8, accepted=3, total=7, seq_len=100)
    assert line.text == "dflash gamma=8 accepted=3/7 (43%) seq_len=100"


def test_lookup_line_at_the_first_copy_and_every_1024() -> None:
    stats = LookupStats()
    lines = [stats.record(proposed=4, accepted=2, shared=step % 4 == 0) for step in range(2050)]
    assert [index for index, line in enumerate(lines) if line] == [0, 1024, 2048]
    assert (stats.copies, stats.proposed, stats.accepted) == (2050, 8200, 4100)
    assert (stats.shared_copies, stats.shared_proposed, stats.shared_accepted) == (513, 2052, 1026)
    assert stats.record(proposed=0, accepted=0, shared=False) is None
    assert stats.copies == 2050


def test_request_figures_in_the_response_shape() -> None:
    stats = RequestSpecStats(num_spec_tokens=3)
    stats.record_serial()
    for accepted in (3, 0, 2, 0):
        stats.record_verify(drafts=3, accepted=accepted)
    stats.record_verify(drafts=0, accepted=0)
    assert stats.metrics() == {
        "mean_acceptance_length": 2.25,
        "draft_acceptance_rate": 5 / 12,
        "acceptance_histogram": [2, 0, 1, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }
    assert stats.accepted_prediction_tokens == 5
    assert stats.p1 == 0.5


def test_request_done_line() -> None:
    stats = RequestSpecStats(num_spec_tokens=3)
    stats.record_serial()
    for accepted in (3, 0, 2):
        stats.record_verify(drafts=3, accepted=accepted)
    line = stats.done_line(tokens=9, reason="stop", decode_s=0.5, ttft_ms=12.4, regime_reprobes=2)
    assert line.text == (
        "done tokens=9 reason=stop tok/s=18.0 ttft_ms=12 serial=0.25 mtp=0.75 "
        "p1=0.667 mean_na=1.667 tok_step=2.667 regime_reprobes=2"
    )


def test_request_that_did_nothing_has_figures_too() -> None:
    stats = RequestSpecStats(num_spec_tokens=0)
    assert stats.metrics()["mean_acceptance_length"] == 0.0
    assert (
        "serial=0.00 mtp=0.00"
        in stats.done_line(tokens=0, reason="abort", decode_s=0.0, ttft_ms=0.0).text
    )


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=9), st.integers(-5, 20)), max_size=150))
def test_odd_counts_never_break_the_invariants(records: list[tuple[list[bool], int]]) -> None:
    stats = SpecStats()
    request = RequestSpecStats(num_spec_tokens=3)
    for matches, accepted in records:
        stats.record_verify(matches, accepted=accepted, seq_len=-1)
        request.record_verify(drafts=len(matches), accepted=accepted)
    totals = stats.totals()
    assert 0 <= totals.num_accepted_tokens <= totals.num_draft_tokens
    assert sum(totals.accepted_per_pos) == totals.num_accepted_tokens == request.accepted
    assert list(totals.accepted_per_pos) == sorted(totals.accepted_per_pos, reverse=True)
    assert totals.num_drafts == request.verify_steps
