"""The adaptive rung: two drafts at widths 9..16 while they pay."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.accept_buckets import token_ratio
from phalanx.proposers.policy.adaptive import AdaptiveRung, RungPolicy, RungSettings
from phalanx.proposers.policy.ladder import Ladder
from tests.proposers.policy.views import outcome, view

PROSE = (0.732, 0.567)
TOOLS = (0.917, 0.877)


def _flush(rung: AdaptiveRung, point: tuple[float, float], *, width: int = 16) -> int:
    """One flush at the depth the rung asks for; returns that depth."""
    p1, p2 = point
    depth = rung.drafts_for(width, 3)
    mean = p1 * (1.0 + p2) if depth >= 2 else p1
    rung.observe(width, k_drafts=depth, p1=p1, mean_accepted=mean)
    return depth


@pytest.mark.parametrize(
    ("p1", "p2", "deep"),
    [(0.840, 0.542, False), (0.773, 0.539, False), (0.732, 0.567, False), (0.917, 0.877, True)],
)
def test_telemetry_points_read_the_same_from_both_states(
    p1: float, p2: float, *, deep: bool
) -> None:
    rung = AdaptiveRung(Ladder())
    ratio = token_ratio(p1, p2)
    assert not 1.30 <= ratio < 1.32
    assert rung.next_state(deep=False, ratio=ratio) is deep
    assert rung.next_state(deep=True, ratio=ratio) is deep


def test_dead_band_holds_and_its_edges_decide() -> None:
    rung = AdaptiveRung(Ladder())
    assert rung.next_state(deep=True, ratio=1.31)
    assert not rung.next_state(deep=False, ratio=1.31)
    assert rung.next_state(deep=False, ratio=1.32)
    assert rung.next_state(deep=True, ratio=1.30)
    assert not rung.next_state(deep=True, ratio=math.nextafter(1.30, 0.0))


def test_outside_the_band_the_ladder_decides() -> None:
    rung = AdaptiveRung(Ladder())
    assert [rung.drafts_for(n, 3) for n in (1, 4, 8)] == [3, 3, 3]
    assert [rung.drafts_for(n, 3) for n in (17, 24, 32, 64)] == [1, 1, 1, 1]
    assert rung.drafts_for(16, 1) == 1
    assert rung.drafts_for(16, 0) == 0


def test_cold_start_probes_and_one_prose_flush_settles_it() -> None:
    rung = AdaptiveRung(Ladder())
    assert rung.drafts_for(16, 3) == 2
    assert _flush(rung, PROSE) == 2
    assert rung.drafts_for(16, 3) == 1
    assert rung.drafts_for(9, 3) == 1
    assert rung.flips == 0


def test_noisy_prose_buys_no_probe() -> None:
    for seed in range(10):
        noise = random.Random(seed)
        rung = AdaptiveRung(Ladder())
        _flush(rung, PROSE)
        for _ in range(200):
            assert _flush(rung, (noise.gauss(PROSE[0], 0.053), PROSE[1])) == 1
        assert rung.flips == 0


def test_tool_traffic_is_found_kept_and_left() -> None:
    rung = AdaptiveRung(Ladder())
    for _ in range(20):
        _flush(rung, PROSE)
    depths = [_flush(rung, TOOLS) for _ in range(9)]
    assert 2 in depths[:9], "a jump of p1 must buy a probe within 8 flushes"
    probe = depths.index(2)
    assert probe <= 8
    assert rung.deep, "the probe flush itself must enter depth"
    assert rung.flips == 1
    assert {_flush(rung, TOOLS) for _ in range(60)} == {2}
    assert rung.flips == 1
    leaving = 0
    while rung.deep:
        _flush(rung, PROSE)
        leaving += 1
    assert leaving <= 4
    assert rung.flips == 2


def test_only_a_rise_of_p1_buys_a_probe() -> None:
    rung = AdaptiveRung(Ladder())
    _flush(rung, TOOLS)
    rung.deep = False
    for _ in range(100):
        rung.observe(16, k_drafts=1, p1=0.3, mean_accepted=0.3)
        assert not rung.probe_due()


def test_backstop_probes_after_its_flushes() -> None:
    rung = AdaptiveRung(Ladder(), settings=RungSettings(probe_ticks=50))
    _flush(rung, PROSE)
    depths = [_flush(rung, PROSE) for _ in range(51)]
    assert depths == [1] * 50 + [2]


@pytest.mark.parametrize(
    ("ladder", "settings"),
    [
        (Ladder(disabled=True), RungSettings()),
        (Ladder(), RungSettings(disabled=True)),
    ],
)
def test_pinned_rung_never_lifts(ladder: Ladder, settings: RungSettings) -> None:
    rung = AdaptiveRung(ladder, settings=settings)
    rung.observe(16, k_drafts=2, p1=0.95, mean_accepted=1.9)
    assert rung.drafts_for(16, 3) == ladder.drafts_for(16, 3)


def test_disabled_rung_ignores_samples() -> None:
    rung = AdaptiveRung(Ladder(), settings=RungSettings(disabled=True))
    rung.observe(16, k_drafts=2, p1=0.95, mean_accepted=1.9)
    assert rung.tick == 0


def test_settings_from_flags() -> None:
    settings = RungSettings.resolve(
        enter="1.5", leave="-1", alpha="7", alpha_slow="nan", probe_ticks="10", p1_trigger="0"
    )
    assert settings == RungSettings(enter=1.5, alpha=1.0, probe_ticks=10.0)
    assert RungSettings.resolve(static_rung="0").disabled
    assert RungSettings.resolve(explicit_ladder=True).disabled
    assert not RungSettings.resolve().disabled


def test_lift_never_goes_below_the_ladder() -> None:
    rung = AdaptiveRung(Ladder.resolve(flag="64:3"))
    assert rung.drafts_for(12, 5) == 3


@given(
    st.lists(
        st.tuples(st.integers(-2, 40), st.integers(-1, 6), st.floats(), st.floats()), max_size=80
    )
)
def test_odd_samples_never_poison_the_rung(
    samples: list[tuple[int, int, float, float]],
) -> None:
    rung = AdaptiveRung(Ladder())
    for width, depth, p1, mean in samples:
        rung.observe(width, k_drafts=depth, p1=p1, mean_accepted=mean)
        assert rung.drafts_for(12, 3) in (1, 2)
        assert rung.ratio is None or 1.0 <= rung.ratio <= 1.5
    for _ in range(12):
        rung.observe(16, k_drafts=2, p1=0.95, mean_accepted=0.95 * 1.9)
    assert rung.deep


def test_policy_feeds_fresh_windows_only() -> None:
    stale, fresh = RungPolicy(AdaptiveRung(Ladder())), RungPolicy(AdaptiveRung(Ladder()))
    for step in range(8):
        stale.observe(outcome(16, depth=2, accepted=2, now_s=step * 10.0))
        fresh.observe(outcome(16, depth=2, accepted=2, now_s=step * 0.1))
    assert stale.rung.tick == 0
    assert stale.last_flush is not None and not stale.last_flush.fresh
    assert fresh.rung.tick == 1
    assert fresh.rung.deep


def test_policy_names_its_reasons() -> None:
    policy = RungPolicy(AdaptiveRung(Ladder()))
    probe = policy.decide(view(12))
    assert (probe.depth, probe.probing) == (2, True)
    assert policy.decide(view(8)).reason == "ladder"
    cut = policy.decide(view(12, capacities=(3,) * 8 + (1,) * 4))
    assert (cut.depth, cut.probing) == (1, False)
    assert "capacity" in cut.reason
    for step in range(8):
        policy.observe(outcome(16, depth=2, accepted=2, now_s=step * 0.1))
    paying = policy.decide(view(12))
    assert (paying.depth, paying.probing) == (2, False)
    assert policy.decide(view(0)).depth == 0
