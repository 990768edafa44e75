"""The block-draft rung: widths, hysteresis, dwell, pins and the explicit ladder."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.dflash_rung import (
    DflashPolicy,
    DflashRung,
    DflashSettings,
    DraftLadderError,
    parse_draft_ladder,
)
from tests.proposers.policy.views import outcome, view

WOA = DflashSettings(write_on_accept=True)


def _lone(rung: DflashRung, hits: int, misses: int = 0) -> None:
    """Lone verifies: the hits first, then the misses."""
    for accepted in [True] * hits + [False] * misses:
        rung.drafts_for(1, 15)
        rung.observe_step(first_accepted=accepted)


def _narrow(cap: int = 10) -> DflashRung:
    rung = DflashRung(cap, settings=WOA)
    _lone(rung, 0, 64)
    assert not rung.wide
    return rung


def test_rows_of_a_cap_of_ten() -> None:
    rung = DflashRung(10, settings=WOA)
    assert (rung.rows_for(16), rung.rows_for(2), rung.rows_for(1)) == (4, 4, 10)
    rung = _narrow()
    assert (rung.rows_for(16), rung.rows_for(2), rung.rows_for(1)) == (4, 4, 5)


def test_rows_of_small_caps() -> None:
    rung = DflashRung(4, settings=WOA)
    assert (rung.rows_for(2), rung.rows_for(1)) == (4, 4)
    assert DflashRung(3, settings=WOA).rows_for(2) == 3
    for cap in (0, 1):
        rung = DflashRung(cap, settings=WOA)
        assert (rung.rows_for(1), rung.rows_for(2), rung.rows_for(16)) == (2, 2, 2)
        rung.wide = False
        assert rung.rows_for(1) == 2


def test_without_write_on_accept_several_streams_take_the_cap() -> None:
    settings = DflashSettings.resolve(multi="4")
    assert DflashRung(10, settings=settings).rows_for(2) == 10


def test_drafts_are_rows_less_one_within_num_drafts() -> None:
    rung = DflashRung(10, settings=WOA)
    assert [rung.drafts_for(1, 9), rung.drafts_for(1, 4), rung.drafts_for(8, 9)] == [9, 4, 3]
    assert rung.drafts_for(1, 0) == 0


@pytest.mark.parametrize(
    ("hits", "wide"), [(40, False), (46, False), (47, True), (56, True), (64, True)]
)
def test_wide_leaves_at_46_hits(hits: int, *, wide: bool) -> None:
    assert DflashRung(10).next_state(wide=True, hits=hits) is wide
    rung = DflashRung(10)
    _lone(rung, hits, 64 - hits)
    assert rung.wide is wide


@pytest.mark.parametrize(("hits", "wide"), [(62, True), (60, True), (58, False), (49, False)])
def test_narrow_enters_at_60_hits(hits: int, *, wide: bool) -> None:
    assert DflashRung(10).next_state(wide=False, hits=hits) is wide
    rung = _narrow()
    _lone(rung, 0, 64 - hits)
    _lone(rung, hits)
    assert rung.wide is wide


def test_register_forgets_exactly_one_old_bit() -> None:
    rung = DflashRung(10)
    _lone(rung, 1, 63)
    assert rung.hits == 1
    _lone(rung, 0, 1)
    assert rung.hits == 0


def test_dwell_is_64_lone_steps_after_start_and_after_a_switch() -> None:
    rung = DflashRung(10)
    _lone(rung, 0, 63)
    assert (rung.wide, rung.flips) == (True, 0)
    _lone(rung, 0, 1)
    assert (rung.wide, rung.flips) == (False, 1)
    _lone(rung, 63)
    assert (rung.wide, rung.flips) == (False, 1)
    _lone(rung, 1)
    assert (rung.wide, rung.flips) == (True, 2)


def test_steps_of_wider_batches_are_never_scored() -> None:
    rung = DflashRung(10)
    for _ in range(500):
        rung.drafts_for(16, 15)
        rung.observe_step(first_accepted=False)
    assert (rung.wide, rung.hits, rung.flips) == (True, 0, 0)
    rung.drafts_for(1, 15)
    assert rung.observe_step(first_accepted=True) is None
    assert rung.hits == 1


def _simulate(rate: float, *, seed: int, steps: int = 2000) -> DflashRung:
    rung = DflashRung(10)
    noise = random.Random(seed)
    for _ in range(steps):
        rung.drafts_for(1, 9)
        rung.observe_step(first_accepted=noise.random() < rate)
    return rung


@pytest.mark.parametrize(
    ("rate", "most_flips", "mostly_wide"), [(0.76, 6, False), (0.97, 2, True), (0.875, 16, True)]
)
def test_steady_text_hardly_flips(rate: float, most_flips: int, *, mostly_wide: bool) -> None:
    rungs = [_simulate(rate, seed=seed) for seed in range(20)]
    settling = 0 if mostly_wide else 20  # from wide, where every rung starts, to narrow
    assert sum(rung.flips for rung in rungs) - settling <= most_flips
    assert sum(rung.wide is mostly_wide for rung in rungs) >= 18


def test_change_of_text_ends_in_the_right_state() -> None:
    flips = 0
    for seed in range(20):
        rung = DflashRung(10)
        noise = random.Random(seed)
        for rate, wide in ((0.56, False), (0.97, True)):
            for _ in range(400):
                rung.drafts_for(1, 9)
                rung.observe_step(first_accepted=noise.random() < rate)
            assert rung.wide is wide
        flips += rung.flips
    assert flips <= 46


@pytest.mark.parametrize(
    "settings",
    [
        DflashSettings.resolve(static_gamma="0"),
        DflashSettings.resolve(gamma_option=True),
    ],
)
def test_pinned_returns_num_drafts_and_scores_nothing(settings: DflashSettings) -> None:
    rung = DflashRung(10, settings=settings)
    assert not rung.armed
    assert [rung.drafts_for(width, 7) for width in (1, 2, 16)] == [7, 7, 7]
    _lone(rung, 0, 200)
    assert (rung.wide, rung.hits) == (True, 0)


def test_resolver_flag_arms_again_under_an_explicit_gamma() -> None:
    assert not DflashSettings.resolve(gamma_option=True, gamma_resolver="").pinned
    assert DflashSettings.resolve(gamma_option=True, gamma_resolver="", static_gamma="").pinned


def test_heads_below_three_rows_are_unarmed() -> None:
    assert [DflashRung(cap).armed for cap in (0, 1, 2, 3)] == [False, False, False, True]


def test_settings_from_flags_keep_defaults_on_junk_and_clamp() -> None:
    settings = DflashSettings.resolve(
        multi="99", narrow="1", wide="x", enter="50", leave="-4", dwell="", write_on_accept="1"
    )
    assert (settings.enter, settings.leave, settings.dwell) == (50, 46, 64)
    rung = DflashRung(10, settings=settings)
    assert (rung.rows_for(2), rung.rows_for(1)) == (10, 10)
    rung.wide = False
    assert rung.rows_for(1) == 2


def test_configuring_again_starts_over_but_keeps_the_flips() -> None:
    rung = _narrow()
    rung.configure(6, settings=WOA)
    assert (rung.wide, rung.hits, rung.flips, rung.rows_for(1)) == (True, 0, 1, 6)
    _lone(rung, 0, 63)
    assert rung.wide


@pytest.mark.parametrize(
    "raw",
    ["", "2:5", "1:0", "1:7,1:5", "1:7,3:4,2:5", "1-7", "1:x", "1:7,", "0:7", "1:-2", "1:7:8"],
)
def test_malformed_ladders_are_refused_by_name(raw: str) -> None:
    with pytest.raises(DraftLadderError) as caught:
        parse_draft_ladder(raw)
    assert f"dflash_draft_ladder={raw!r}" in str(caught.value)


def test_explicit_ladder_by_width() -> None:
    table = parse_draft_ladder("1:7,2:5,3:4,4:3,5:2,6:7")
    rung = DflashRung(8, ladder=table)
    assert [rung.drafts_for(width, 7) for width in range(9)] == [7, 7, 5, 4, 3, 2, 7, 7, 7]
    assert rung.drafts_for(64, 7) == 7
    assert rung.drafts_for(1, 3) == 3


def test_explicit_ladder_decides_even_when_pinned_and_can_be_removed() -> None:
    pinned = DflashSettings(pinned=True)
    rung = DflashRung(8, settings=pinned, ladder=parse_draft_ladder("1:7,2:5"))
    assert rung.drafts_for(2, 7) == 5
    rung.ladder = None
    assert rung.drafts_for(2, 7) == 7


@given(st.text(alphabet="0123456789:, -x", max_size=16))
def test_any_ladder_text_is_refused_or_answers_every_width(raw: str) -> None:
    try:
        table = parse_draft_ladder(raw)
    except DraftLadderError:
        return
    rung = DflashRung(8, ladder=table)
    assert all(1 <= rung.drafts_for(width, 7) <= 7 for width in range(-1, 70))


@given(
    st.integers(-4, 40),
    st.lists(st.tuples(st.integers(-3, 20), st.integers(-3, 20), st.booleans()), max_size=200),
)
def test_odd_numbers_never_break_the_rung(cap: int, steps: list[tuple[int, int, bool]]) -> None:
    rung = DflashRung(cap)
    for width, num_drafts, accepted in steps:
        assert 0 <= rung.drafts_for(width, num_drafts) <= max(num_drafts, 0)
        rung.observe_step(first_accepted=accepted)
        assert 0 <= rung.hits <= 64


def test_policy_scores_lone_verifies_and_names_its_reasons() -> None:
    policy = DflashPolicy(DflashRung(10, settings=WOA))
    assert policy.decide(view(1, num_drafts=9)).reason == "block rung: wide"
    for _ in range(64):
        decision = policy.decide(view(1, num_drafts=9))
        policy.observe(outcome(1, depth=decision.depth, accepted=0))
    narrow = policy.decide(view(1, num_drafts=9))
    assert (narrow.depth, narrow.reason) == (4, "block rung: narrow")
    assert policy.decide(view(3, num_drafts=9)).depth == 3
    assert policy.decide(view(0, num_drafts=9)).depth == 0
    policy.observe(outcome(0, depth=0))
