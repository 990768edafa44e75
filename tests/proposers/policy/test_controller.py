"""The controller: cost probes, dwell, suspension and re-probes on simulated serves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from phalanx.proposers.policy.acceptance import AcceptanceSettings, ColdMode, ColdPrior
from phalanx.proposers.policy.controller import (
    Controller,
    ControllerMode,
    ControllerSettings,
)
from phalanx.proposers.policy.cost_online import CalibratedSource, OnlineSource
from phalanx.proposers.policy.cost_sources import CostSource, MeasuredSource, StepTableSource
from phalanx.proposers.policy.ladder import Ladder, LadderPolicy
from phalanx.proposers.policy.objective import Objective, ObjectiveKind
from phalanx.proposers.policy.policy import Decision, StepOutcome, StreamOutcome
from phalanx.proposers.policy.replay import FixedDepth
from phalanx.proposers.policy.reprobe import DeepProbe

from .cost_samples import grid_table, outcome, view

THROUGHPUT = Objective(kind=ObjectiveKind.THROUGHPUT)
Text = Callable[[random.Random], int]


def production(**changed: object) -> ControllerSettings:
    return replace(ControllerSettings(objective=THROUGHPUT), **changed)  # type: ignore[arg-type]


def controller(
    depth: int, *, cost: CostSource | None = None, probe: DeepProbe | None = None, **changed: object
) -> Controller:
    source = cost if cost is not None else OnlineSource(max_k=depth)
    return Controller(
        FixedDepth(depth), cost=source, settings=production(**changed), deep_probe=probe
    )


def chain(rates: Sequence[float]) -> Text:
    """Draws accepted run lengths of a drafter with these conditional rates."""

    def draw(rng: random.Random) -> int:
        run = 0
        while run < len(rates) and rng.random() < rates[run]:
            run += 1
        return run

    return draw


def serve(
    policy: Controller,
    ms: Callable[[int], float],
    text: Text,
    *,
    steps: int,
    n: int = 1,
    depth: int = 3,
    seed: int = 1,
) -> list[Decision]:
    """Run a simulated serve; return every decision."""
    rng = random.Random(seed)
    found = []
    for _ in range(steps):
        decision = policy.decide(view(n, num_drafts=depth))
        found.append(decision)
        runs = [text(rng) for _ in range(n)]
        policy.observe(outcome(decision.depth, ms(decision.depth), runs))
    return found


def depths(decisions: Sequence[Decision]) -> list[int]:
    return [decision.depth for decision in decisions]


def test_unmeasured_depths_are_probed_shallowest_first() -> None:
    policy = controller(2, every_depth=True)
    found = serve(policy, lambda k: 10.0 + k, chain([0.9, 0.9]), steps=9, depth=2)
    assert depths(found) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(decision.probing for decision in found)


def test_a_plain_probe_does_not_suspend() -> None:
    policy = controller(2)
    found = serve(policy, lambda k: 10.0 + k, chain([0.9, 0.9]), steps=20, depth=2)
    assert depths(found)[6:] == [2] * 14
    assert policy.mode is ControllerMode.MTP


def test_only_zero_and_the_source_s_depth_run_by_default() -> None:
    policy = controller(3)
    found = serve(policy, lambda k: 10.0 + k, chain([0.5, 0.1, 0.1]), steps=300)
    assert set(depths(found)) <= {0, 3}


def test_a_new_width_bucket_is_measured_anew() -> None:
    policy = controller(1)
    serve(policy, lambda k: 10.0 + k, chain([0.9]), steps=20, depth=1)
    found = serve(policy, lambda k: 10.0 + k, chain([0.9]), steps=7, n=3, depth=1)
    assert [decision.reason for decision in found] == ["cost probe"] * 6 + ["throughput"]
    # 4 shares the bucket of 3.
    found = serve(policy, lambda k: 10.0 + k, chain([0.9]), steps=1, n=4, depth=1)
    assert found[0].reason == "throughput"


def test_until_acceptance_is_known_the_default_depth_runs() -> None:
    policy = controller(3, cost=StepTableSource({0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}))
    decision = policy.decide(view(1))
    assert (decision.depth, decision.reason) == (3, "no acceptance yet")


def always(run: int) -> Text:
    return lambda _: run


@pytest.mark.parametrize(("gap", "plain"), [(0.03, False), (0.10, True)])
def test_the_suspend_margin_is_five_percent(gap: float, plain: bool) -> None:
    # Every draft is accepted: two tokens a verify, at a price that loses by `gap`.
    costs = StepTableSource({0: 10.0, 1: 20.0 * (1.0 + gap)})
    policy = controller(1, cost=costs, dwell=1)
    found = serve(policy, lambda k: 10.0, always(1), steps=100, depth=1)
    assert (0 in depths(found)) is plain


def test_sixteen_streams_run_three_outvoted_steps_then_four_plain() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0})
    policy = controller(1, cost=costs, dwell=4, resume_after=64, probe_steps=16)
    found = serve(policy, lambda k: 10.0, always(0), steps=60, n=16, depth=1)
    # One step to learn, three outvoted, four plain; then a re-probe window and the same again.
    assert depths(found)[:8] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [decision.reason for decision in found[1:4]] == [
        f"outvoted plain {wins}/4" for wins in (1, 2, 3)
    ]
    assert depths(found)[8 : 8 + 16 + 3 + 4] == [1] * 16 + [1] * 3 + [0] * 4


def test_a_capture_spike_does_not_condemn_speculation() -> None:
    policy = controller(3)
    spikes = iter([900.0])
    found = serve(
        policy,
        lambda k: next(spikes, 60.0) if k else 40.0,
        chain([0.9, 0.85, 0.8]),
        steps=400,
    )
    assert depths(found).count(0) <= 20


def test_speculation_that_pays_is_nearly_always_run() -> None:
    policy = controller(3)
    found = serve(policy, lambda k: 40.0 + 6.0 * k, chain([0.8, 0.7, 0.6]), steps=1024, n=8)
    assert depths(found).count(0) < 0.02 * 1024


def test_code_goes_deep_and_prose_stays_shallow() -> None:
    def run(rates: Sequence[float]) -> list[int]:
        policy = controller(7, every_depth=True)
        found = serve(policy, lambda k: 40.0 + 6.0 * k, chain(rates), steps=500, depth=7)
        return depths(found)[-100:]

    code, prose = run([0.96] * 7), run([0.5] + [0.1] * 6)
    assert sum(1 for depth in code if depth >= 6) >= 90
    assert sum(1 for depth in prose if depth >= 2) <= 5


def test_fading_frees_a_stream_from_an_unlucky_stretch() -> None:
    cold = ColdPrior(mode=ColdMode.RATES, rates=(0.6, 0.5))
    found = []
    for fade in (1.0, 0.5):
        policy = controller(
            2,
            cost=StepTableSource({0: 40.0, 1: 44.0, 2: 50.0}),
            every_depth=True,
            explore_every=16,
            explore_max=256,
            explore_fade=fade,
            acceptance=AcceptanceSettings(cold=cold),
        )
        policy.decide(view(1, num_drafts=2))
        for _ in range(60):
            policy.observe(outcome(2, 50.0, [1]))
        # The second draft was never accepted; from now on it nearly always is.
        decisions = serve(policy, lambda k: 40.0, chain([0.7, 0.9]), steps=1000, depth=2)
        found.append(depths(decisions).count(2))
    assert found[1] > 2 * found[0]


def test_a_stream_that_improves_is_followed_deeper() -> None:
    policy = controller(4, every_depth=True, explore_every=16, explore_max=64)
    rng = random.Random(3)
    text = chain([0.5, 0.1, 0.1, 0.1])
    serve(policy, lambda k: 40.0 + 4.0 * k, text, steps=300, depth=4)
    better = chain([0.97] * 4)
    found = serve(
        policy, lambda k: 40.0 + 4.0 * k, better, steps=400, depth=4, seed=rng.randint(2, 99)
    )
    assert depths(found)[-50:].count(4) >= 40


def test_exploration_never_starts_from_plain_nor_beyond_the_deepest() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0, 2: 50.0})
    policy = controller(2, cost=costs, every_depth=True, dwell=1, explore_every=2)
    found = serve(policy, lambda k: 10.0, always(0), steps=200, depth=2)
    for decision in found:
        assert decision.reason != "exploration" or decision.depth in (1, 2)
    costs = StepTableSource({0: 30.0, 1: 31.0, 2: 32.0})
    policy = controller(2, cost=costs, every_depth=True, explore_every=2)
    found = serve(policy, lambda k: 10.0, always(2), steps=200, depth=2)
    assert set(depths(found)) == {2}


def test_resuming_softens_the_counts_and_gives_a_window_without_plain() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0})
    policy = controller(1, cost=costs, dwell=1, resume_after=8, probe_steps=5)
    serve(policy, lambda k: 10.0, always(0), steps=1, depth=1)
    found = serve(policy, lambda k: 10.0, always(0), steps=40, depth=1)
    assert depths(found) == ([0] * 8 + [1] * 5) * 3 + [0]


def test_a_new_stream_beside_suspended_ones_gets_its_own_decision() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0})
    policy = controller(1, cost=costs, dwell=1, resume_after=10_000)
    serve(policy, lambda k: 10.0, always(0), steps=5, n=2, depth=1)
    assert policy.decide(view(2, num_drafts=1)).reason == "suspended"
    assert policy.decide(view(3, num_drafts=1)).reason == "throughput"


def test_entering_plain_is_reported_once() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0})
    policy = controller(1, cost=costs, dwell=1, resume_after=4, probe_steps=2)
    entered = []
    for _ in range(20):
        decision = policy.decide(view(1, num_drafts=1))
        entered.append((decision.depth, policy.take_entered_plain()))
        policy.observe(outcome(decision.depth, 10.0, [0]))
    switches = [
        index
        for index, (depth, _) in enumerate(entered)
        if depth == 0 and (index == 0 or entered[index - 1][0] > 0)
    ]
    assert [index for index, (_, told) in enumerate(entered) if told] == switches
    assert len(switches) >= 3


def test_a_pin_turns_a_chosen_plain_step_into_speculation() -> None:
    costs = StepTableSource({0: 10.0, 1: 30.0})
    policy = controller(1, cost=costs, dwell=1)
    policy.observe(outcome(1, 10.0, [0]))
    pinned = policy.decide(view(1, num_drafts=1, pinned=True))
    assert (pinned.depth, pinned.pinned) == (1, True)
    policy.observe(outcome(1, 10.0, [0], pinned=True))
    free = policy.decide(view(1, num_drafts=1))
    assert (free.depth, free.pinned) == (0, False)


def test_refusals_of_the_source_stay_plain_even_when_pinned() -> None:
    policy = Controller(LadderPolicy(Ladder()), cost=OnlineSource(max_k=3), settings=production())
    for refused in (view(9, max_seqs=8, pinned=True), view(0), view(1, num_drafts=0)):
        assert policy.decide(refused).depth == 0
    assert policy.decide(view(9, max_seqs=8)).reason == "width over the cap"


def test_a_depth_without_a_price_is_not_what_decides() -> None:
    policy = controller(7, cost=StepTableSource({0: 10.0, 1: 11.0, 2: 12.0}))
    policy.observe(outcome(2, 12.0, [2]))
    assert policy.decide(view(1, num_drafts=7)).depth == 2


def test_the_latency_objective_looks_at_the_slowest_stream() -> None:
    costs = StepTableSource({0: 10.0, 1: 14.0})
    for kind, expected in ((ObjectiveKind.THROUGHPUT, 1), (ObjectiveKind.LATENCY, 0)):
        policy = controller(1, cost=costs, objective=Objective(kind=kind), dwell=1)
        policy.decide(view(4, num_drafts=1))
        for _ in range(60):
            policy.observe(outcome(1, 14.0, [1, 1, 1, 0]))
        assert policy.decide(view(4, num_drafts=1)).depth == expected, kind


def test_the_energy_objective_reads_the_measured_joules() -> None:
    source = CalibratedSource(MeasuredSource(grid_table()))
    policy = controller(
        2,
        cost=source,
        objective=Objective(kind=ObjectiveKind.ENERGY, slack=0.5),
        every_depth=True,
    )
    policy.decide(view(4, num_drafts=2))
    for _ in range(60):
        policy.observe(outcome(2, 44.0, [2] * 4))
    assert policy.decide(view(4, num_drafts=2)).depth == 2


def test_a_deep_probe_looks_deeper_once_when_due() -> None:
    costs = StepTableSource({0: 10.0, 1: 11.0, 2: 40.0})
    policy = controller(
        2, cost=costs, every_depth=True, explore_every=0, probe=DeepProbe(backstop=50)
    )
    policy.observe(outcome(1, 11.0, [1]))
    found = serve(policy, lambda k: 10.0, always(1), steps=60, depth=2)
    assert [i for i, decision in enumerate(found) if decision.reason == "deep probe"] == [0, 51]


def test_the_snapshot_mode_follows_the_last_decision() -> None:
    policy = controller(1, dwell=1)
    assert policy.mode is ControllerMode.MTP
    policy.decide(view(1, num_drafts=1))
    assert policy.mode is ControllerMode.PROBING
    serve(policy, lambda k: 10.0 if k == 0 else 90.0, always(0), steps=20, depth=1)
    assert policy.mode is ControllerMode.SERIAL


def test_delivered_throughput_is_an_average_over_steps() -> None:
    policy = controller(1)
    assert policy.delivered_tps == 0.0
    policy.observe(outcome(0, 10.0, [0, 0]))
    assert policy.delivered_tps == pytest.approx(200.0)
    policy.observe(outcome(0, 5.0, [0, 0]))
    assert policy.delivered_tps == pytest.approx(200.0 + 0.3 * 200.0)


def test_bootstrap_steps_teach_neither_acceptance_nor_cost() -> None:
    cost = OnlineSource(max_k=1)
    policy = controller(1, cost=cost)
    policy.decide(view(1, num_drafts=1))
    boot = StreamOutcome(stream_id=0, num_drafts=0, num_accepted=0, num_emitted=1)
    for _ in range(5):
        policy.observe(StepOutcome(depth=1, wall_s=0.01, streams=(boot,)))
    assert cost.needs_probe(1, 1) and policy.rates(0, 1) is None
