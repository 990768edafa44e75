"""The gate: plain decode against MTP by delivered throughput."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.ladder import Ladder, LadderPolicy
from phalanx.proposers.policy.mtp_gate import (
    WINDOW_STEPS,
    FreshDecision,
    GatePolicy,
    GateSettings,
    GateStep,
    Mode,
    MtpGate,
    gate_forced,
    width_bucket,
)
from tests.proposers.policy.views import outcome, view


class Bench:
    """Drives a gate with fixed costs per mode and keeps the trace of what ran."""

    def __init__(self, *, mtp_s: float = 0.02, serial_s: float = 0.02, tokens: int = 2) -> None:
        self.gate = MtpGate()
        self.seconds = {Mode.MTP: mtp_s, Mode.SERIAL: serial_s}
        self.tokens = tokens
        """Tokens of one MTP step per stream."""
        self.trace: list[Mode] = []
        self.width = 1

    def step(self) -> Mode:
        ran = Mode.MTP if self.gate.next_step() is GateStep.MEASURE_VERIFY else Mode.SERIAL
        self.gate.record_step(
            width=self.width, wall_s=self.seconds[ran], tokens=self.tokens * self.width, ran=ran
        )
        self.trace.append(ran)
        return ran

    def run(self, steps: int) -> "Bench":
        for _ in range(steps):
            self.step()
        return self

    def until(self, mode: Mode, *, limit: int = 5000) -> int:
        """Steps until the coming step runs `mode`."""
        for steps in range(limit):
            if self.gate.running is mode:
                return steps
            self.step()
        raise AssertionError(f"{mode} never came within {limit} steps")

    def probe(self) -> None:
        """Run the probe that is due, whole."""
        self.until(self.gate.mode.other)
        self.run(WINDOW_STEPS)
        assert not self.gate.probing


def test_starts_speculating_and_unmeasured() -> None:
    gate = MtpGate()
    assert gate.next_step() is GateStep.MEASURE_VERIFY
    assert gate.observe().tokens_per_s == 0.0
    assert gate.take_fresh_decision() is None


def test_no_switch_without_both_baselines() -> None:
    bench = Bench(mtp_s=10.0).run(64)
    assert bench.gate.mode is Mode.MTP
    assert set(bench.trace) == {Mode.MTP}
    assert bench.gate.tokens_per_s(Mode.SERIAL) is None


@pytest.mark.parametrize("width", [1, 16])
def test_refresh_probe_interval_in_steps_does_not_depend_on_width(width: int) -> None:
    bench = Bench(serial_s=0.03)
    bench.width = width
    steps = bench.until(Mode.SERIAL)
    assert 400 <= steps <= 520


def test_probe_is_exactly_one_window() -> None:
    bench = Bench(serial_s=0.03)
    start = bench.until(Mode.SERIAL)
    bench.run(40)
    assert bench.trace[start : start + 17] == [Mode.SERIAL] * 16 + [Mode.MTP]
    assert bench.trace[start:].count(Mode.SERIAL) == 16


def test_one_lucky_window_does_not_switch_but_its_confirmation_does() -> None:
    bench = Bench(serial_s=0.01 / 5)
    bench.probe()
    assert bench.gate.mode is Mode.MTP
    assert bench.until(Mode.SERIAL) == 1, "the confirming probe is due after one more step"
    bench.run(WINDOW_STEPS)
    assert bench.gate.mode is Mode.SERIAL
    assert bench.gate.take_fresh_decision() is FreshDecision.DISABLE_MTP
    assert bench.gate.take_fresh_decision() is None


def test_unconfirmed_loss_is_forgotten() -> None:
    bench = Bench(serial_s=0.002)
    bench.probe()
    bench.seconds[Mode.SERIAL] = 0.05
    bench.probe()
    assert bench.gate.mode is Mode.MTP
    bench.seconds[Mode.SERIAL] = 0.002
    bench.probe()
    assert bench.gate.mode is Mode.MTP, "the earlier loss must not count towards this one"


def test_two_arbitrations_against_one_probe_are_one_sample() -> None:
    bench = Bench(serial_s=0.002)
    bench.probe()
    gate = bench.gate
    gate._tokens_since_event = 0  # keep the confirming probe away
    bench.run(5 * WINDOW_STEPS)
    assert gate.mode is Mode.MTP


def test_gain_within_the_margin_never_switches() -> None:
    bench = Bench(mtp_s=2 / 40, serial_s=1 / 41).run(5000)
    assert bench.gate.mode is Mode.MTP
    assert bench.trace.count(Mode.SERIAL) > 0


def test_gain_beyond_the_margin_switches() -> None:
    bench = Bench(mtp_s=2 / 40, serial_s=1 / 44).run(5000)
    assert bench.gate.mode is Mode.SERIAL


def test_mtp_comes_back_after_two_probe_windows() -> None:
    bench = Bench(serial_s=0.002).run(700)
    assert bench.gate.mode is Mode.SERIAL
    bench.gate.take_fresh_decision()
    bench.seconds[Mode.SERIAL] = 0.1
    bench.run(300)  # serial's own windows see the slowdown
    before = len(bench.trace)
    bench.until(Mode.MTP)
    while bench.gate.mode is Mode.SERIAL:
        bench.step()
    assert bench.trace[before:].count(Mode.MTP) <= 2 * WINDOW_STEPS
    assert bench.gate.take_fresh_decision() is FreshDecision.KEEP_MTP


def _turn(bench: Bench, *, start: int, tokens: int) -> int:
    """A turn that grows the context from `start`; returns its serial steps."""
    before = len(bench.trace)
    depth = start
    while depth < start + tokens:
        bench.gate.maybe_remeasure(depth)
        depth += bench.tokens if bench.step() is Mode.MTP else 1
    return bench.trace[before:].count(Mode.SERIAL)


def test_depth_change_probes_early_and_wipes_nothing() -> None:
    bench = Bench(serial_s=0.03)
    bench.gate.maybe_remeasure(600)
    bench.probe()
    bench.run(64)
    estimates = (bench.gate.tokens_per_s(Mode.MTP), bench.gate.tokens_per_s(Mode.SERIAL))
    assert bench.gate.depth_remeasures == 0
    assert bench.gate.maybe_remeasure(1300)
    assert not bench.gate.maybe_remeasure(1300)
    assert bench.gate.depth_remeasures == 1
    assert (bench.gate.tokens_per_s(Mode.MTP), bench.gate.tokens_per_s(Mode.SERIAL)) == estimates
    assert bench.until(Mode.SERIAL) <= WINDOW_STEPS


def test_depth_change_costs_one_window_in_a_thousand_token_turn() -> None:
    bench = Bench(serial_s=0.03)
    bench.gate.maybe_remeasure(600)
    bench.probe()
    bench.run(16)
    before = len(bench.trace)
    serial = _turn(bench, start=1300, tokens=1000)
    assert serial == WINDOW_STEPS
    assert serial / (len(bench.trace) - before) < 0.05


def test_long_thinking_crosses_two_regimes_cheaply() -> None:
    bench = Bench(serial_s=0.03)
    serial = _turn(bench, start=0, tokens=2060)
    assert bench.gate.depth_remeasures == 2
    assert serial <= 48
    assert serial / len(bench.trace) < 0.08


def test_shrinking_context_is_a_regime_too() -> None:
    gate = MtpGate()
    assert gate.maybe_remeasure(4096)
    assert not gate.maybe_remeasure(2049)
    assert gate.maybe_remeasure(2048)
    assert not gate.maybe_remeasure(1500)
    assert gate.maybe_remeasure(100)
    assert not gate.maybe_remeasure(1000)


def test_stale_baseline_cannot_win() -> None:
    bench = Bench(serial_s=0.03)
    bench.probe()
    bench.gate._estimates[Mode.SERIAL].tps = 1e6
    bench.gate._estimates[Mode.SERIAL].stale = True
    for _ in range(20):
        bench.run(WINDOW_STEPS)
        if bench.gate.probing:
            break
        assert bench.gate._losing == 0
    assert bench.gate.mode is Mode.MTP


def test_step_without_tokens_is_charged_one() -> None:
    gate = MtpGate()
    for _ in range(WINDOW_STEPS):
        gate.record_step(width=1, wall_s=0.5, tokens=0, ran=Mode.MTP)
    assert gate.tokens_per_s(Mode.MTP) == pytest.approx(2.0)


def test_plain_step_is_charged_its_width() -> None:
    bench = Bench(mtp_s=0.01, serial_s=0.01)
    bench.width = 4
    bench.probe()
    assert bench.gate.tokens_per_s(Mode.SERIAL) == pytest.approx(400.0)


def test_step_of_the_other_mode_is_not_recorded() -> None:
    """A pinned verify in serial mode, or a plain step forced on an MTP tick."""
    gate = MtpGate()
    for _ in range(100):
        gate.record_step(width=1, wall_s=0.01, tokens=1, ran=Mode.SERIAL)
    assert gate.tokens_per_s(Mode.SERIAL) is None
    assert gate.tokens_per_s(Mode.MTP) is None


def test_width_change_settles_then_replaces_then_probes() -> None:
    bench = Bench(serial_s=0.03)
    bench.width = 4
    bench.probe()
    bench.run(64)
    old = bench.gate.tokens_per_s(Mode.MTP)
    bench.width = 8
    bench.seconds[Mode.MTP] = 0.01
    bench.run(16)
    assert bench.gate.tokens_per_s(Mode.MTP) == old, "settle steps count toward nothing"
    bench.run(15)
    assert bench.gate.tokens_per_s(Mode.MTP) == old
    bench.run(1)
    assert bench.gate.tokens_per_s(Mode.MTP) == pytest.approx(2 * 8 / 0.01)
    assert bench.gate.running is Mode.SERIAL, "the probe follows at once"


def test_jitter_inside_a_width_bucket_keeps_everything() -> None:
    bench = Bench(serial_s=0.03)
    bench.width = 8
    bench.probe()
    before = len(bench.trace)
    for width in (5, 6, 7, 8) * 20:
        bench.width = width
        bench.step()
    assert Mode.SERIAL not in bench.trace[before:]
    assert not any(estimate.stale for estimate in bench.gate._estimates.values())


def test_width_buckets_are_powers_of_two() -> None:
    widths = [-3, 0, 1, 2, 3, 4, 5, 8, 9, 128]
    assert [width_bucket(width) for width in widths] == [1, 1, 1, 2, 4, 4, 8, 8, 16, 128]


def test_estimate_blends_after_the_first_window_and_a_probe_replaces() -> None:
    bench = Bench(mtp_s=0.02).run(WINDOW_STEPS)
    assert bench.gate.tokens_per_s(Mode.MTP) == pytest.approx(100.0)
    bench.seconds[Mode.MTP] = 0.01
    bench.run(WINDOW_STEPS)
    assert bench.gate.tokens_per_s(Mode.MTP) == pytest.approx(0.7 * 100 + 0.3 * 200)
    assert bench.gate._estimates[Mode.MTP].deviation == pytest.approx(0.3 * 70)
    assert bench.gate.observe().tokens_per_s == pytest.approx(130.0)


def test_observation_reads_probing() -> None:
    bench = Bench(serial_s=0.03)
    bench.until(Mode.SERIAL)
    assert bench.gate.observe().probing
    assert bench.gate.observe().mode is Mode.MTP


def test_early_close_folds_half_a_window_and_drops_less() -> None:
    for already, windows in ((8, 1), (7, 0)):
        gate = MtpGate(GateSettings(refresh_tokens=already * 2))
        for _ in range(already):
            gate.record_step(width=1, wall_s=0.02, tokens=2, ran=Mode.MTP)
        assert gate.probing
        assert gate._estimates[Mode.MTP].windows == windows


def test_settings_from_flags() -> None:
    assert GateSettings.resolve() == GateSettings(reprobe_tokens=256, refresh_tokens=1024)
    settings = GateSettings.resolve(reprobe="64", refresh="junk")
    assert (settings.reprobe_tokens, settings.refresh_tokens) == (64, 1024)


def test_force_option_wins_over_the_flag() -> None:
    assert gate_forced(flag="1")
    assert not gate_forced(flag="true")
    assert not gate_forced(option="auto", flag="1")
    assert gate_forced(option="force")
    with pytest.raises(ValueError, match="mtp_gate='on'"):
        gate_forced(option="on")


@given(
    st.lists(
        st.tuples(
            st.integers(-5, 200),
            st.floats() | st.just(0.01),
            st.integers(-5, 1 << 70),
            st.sampled_from(Mode),
            st.integers(-5, 1 << 40),
        ),
        max_size=120,
    )
)
def test_odd_steps_never_poison_the_gate(
    steps: list[tuple[int, float, int, Mode, int]],
) -> None:
    gate = MtpGate(GateSettings(reprobe_tokens=0, refresh_tokens=0))
    for width, wall_s, tokens, ran, depth in steps:
        gate.maybe_remeasure(depth)
        gate.record_step(width=width, wall_s=wall_s, tokens=tokens, ran=ran)
        assert math.isfinite(gate.observe().tokens_per_s)
        assert all(math.isfinite(e.deviation) for e in gate._estimates.values())
        assert gate._tokens_since_event >= 0


def test_gate_recovers_from_an_hour_of_misread_clocks() -> None:
    bench = Bench(serial_s=0.002)
    for wall_s in (math.nan, -1.0, 0.0, math.inf, 1e-300, 1e300):
        bench.gate.record_step(width=1, wall_s=wall_s, tokens=2, ran=Mode.MTP)
    bench.run(700)
    assert bench.gate.mode is Mode.SERIAL


def _policy(*, mtp_s: float, serial_s: float, steps: int) -> tuple[GatePolicy, list[int]]:
    policy = GatePolicy(LadderPolicy(Ladder()))
    depths = []
    for _ in range(steps):
        decision = policy.decide(view(2))
        depths.append(decision.depth)
        wall_s = mtp_s if decision.depth else serial_s
        policy.observe(outcome(2, depth=decision.depth, accepted=1, wall_s=wall_s))
    return policy, depths


def test_policy_switches_the_ladder_off_when_plain_is_faster() -> None:
    policy, depths = _policy(mtp_s=0.1, serial_s=0.01, steps=1500)
    assert depths[:400] == [3] * 400
    assert depths[-100:].count(0) > 60
    assert policy.gate.mode is Mode.SERIAL


def test_policy_says_why_and_obeys_a_pin_without_recording_it() -> None:
    policy, _ = _policy(mtp_s=0.1, serial_s=0.01, steps=1500)
    while policy.gate.running is not Mode.SERIAL:
        policy.observe(outcome(2, depth=policy.decide(view(2)).depth, wall_s=0.1))
    plain = policy.decide(view(2))
    assert (plain.depth, plain.reason, plain.probing) == (0, "gate holds serial", False)
    pinned = policy.decide(view(2, pinned=True))
    assert (pinned.depth, pinned.pinned) == (3, True)
    before = policy.gate._window_steps
    policy.observe(outcome(2, depth=3, accepted=1, pinned=True))
    assert policy.gate._window_steps == before


def test_policy_marks_probes() -> None:
    policy = GatePolicy(LadderPolicy(Ladder()))
    for _ in range(1000):
        decision = policy.decide(view(2))
        if decision.depth == 0:
            break
        policy.observe(outcome(2, depth=decision.depth, accepted=1))
    assert (decision.depth, decision.reason, decision.probing) == (0, "gate probe serial", True)


def test_policy_passes_refusals_of_its_source_through() -> None:
    policy = GatePolicy(LadderPolicy(Ladder()))
    assert policy.decide(view(64)).reason == "width over the cap"
    policy.observe(outcome(0, depth=0))
