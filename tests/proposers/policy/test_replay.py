"""Replay: what a step reads from a trace, what it costs, and how traces are rebuilt."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_sources import MeasuredSource, StepTableSource
from phalanx.proposers.policy.policy import Decision, PolicyView, StepOutcome
from phalanx.proposers.policy.replay import (
    FixedDepth,
    ReplayError,
    Trace,
    replay,
    run_replay,
    trace_from_counts,
    trace_from_windows,
)

from .cost_samples import grid_table

COST = StepTableSource({0: 10.0, 1: 12.0, 2: 15.0, 3: 20.0})
TRACE = Trace(k_logged=3, accepted=(3, 0, 1, 2))


class Recorder:
    """A policy that runs listed depths and keeps what it was told."""

    def __init__(self, depths: list[int]) -> None:
        self.depths = depths
        self.views: list[PolicyView] = []
        self.outcomes: list[StepOutcome] = []

    def decide(self, view: PolicyView) -> Decision:
        self.views.append(view)
        depth = self.depths[(len(self.views) - 1) % len(self.depths)]
        return Decision(depth=depth, reason="listed")

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def test_a_verify_reads_one_entry_per_stream_and_a_plain_step_none() -> None:
    recorder = Recorder([3, 0, 1])
    done = replay(recorder, TRACE, cost=COST, n=2, budget_tokens=12)
    accepted = [[s.num_accepted for s in out.streams] for out in recorder.outcomes]
    # Entries 3, 0 at depth 3; nothing; entries 1, 2 cut to depth 1; entries 3, 0 again.
    assert accepted == [[3, 0], [0, 0], [1, 1], [3, 0]]
    assert done.tokens == 5 + 2 + 4 + 5
    assert done.ms == pytest.approx(20 + 10 + 12 + 20)
    assert (done.steps, done.plain_steps) == (4, 1)
    assert done.steps_by_depth[:4] == (1, 1, 0, 2) and len(done.steps_by_depth) == 17
    assert done.joules is None and done.tokens_per_joule is None


def test_the_run_stops_at_its_budget() -> None:
    done = replay(FixedDepth(0), TRACE, cost=COST, n=4, budget_tokens=9)
    assert (done.tokens, done.steps, done.tokens_per_ms) == (12, 3, pytest.approx(0.4))


def test_energy_is_summed_where_every_step_has_a_price() -> None:
    done = replay(
        FixedDepth(2),
        Trace(k_logged=2, accepted=(2,)),
        cost=MeasuredSource(grid_table()),
        n=1,
        budget_tokens=6,
    )
    assert done.joules == pytest.approx(2 * 1.4)
    assert done.tokens_per_joule == pytest.approx(6 / 2.8)


def test_a_policy_sees_the_simulated_clock_and_context() -> None:
    recorder = Recorder([1])
    replay(recorder, TRACE, cost=COST, n=1, budget_tokens=5)
    assert [view.now_s for view in recorder.views] == pytest.approx([0.0, 0.012, 0.024])
    assert [view.context_depth for view in recorder.views] == [0, 2, 3]
    assert recorder.outcomes[0].wall_s == pytest.approx(0.012)
    assert recorder.outcomes[0].reason == "listed"


def test_depths_outside_the_trace_are_clamped() -> None:
    recorder = Recorder([99, -4])
    replay(recorder, TRACE, cost=COST, n=1, budget_tokens=5)
    assert [out.depth for out in recorder.outcomes] == [3, 0]


def test_a_fixed_depth_in_hindsight_is_what_a_replay_delivers() -> None:
    for k in range(4):
        done = replay(FixedDepth(k), TRACE, cost=COST, n=1, budget_tokens=10_000)
        assert TRACE.fixed_rate(1, k, cost=COST) == pytest.approx(done.tokens_per_ms, rel=1e-3)
    assert TRACE.best_fixed(1, cost=COST) == (2, pytest.approx(2.25 / 15.0))
    assert TRACE.fixed_rate(1, 4, cost=COST) == 0.0


def test_noise_is_the_standard_error_of_tokens_over_their_mean() -> None:
    trace = Trace(k_logged=1, accepted=(0, 1) * 50)
    assert trace.relative_noise == pytest.approx((0.25 * 100 / 99 / 100) ** 0.5 / 1.5)
    assert Trace(k_logged=1, accepted=(1,)).relative_noise == float("inf")


def test_marginals_of_a_trace() -> None:
    assert TRACE.marginals() == (0.75, 0.5, 0.25)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any), st.integers(0, 9))
def test_a_trace_rebuilt_from_counts_keeps_them_in_a_seeded_order(
    counts: list[int], seed: int
) -> None:
    trace = trace_from_counts(counts, k_logged=5, seed=seed)
    seen = Counter(trace.accepted)
    assert [seen[run] for run in range(len(counts))] == counts
    assert trace == trace_from_counts(counts, k_logged=5, seed=seed)


def test_windows_spread_their_outcomes_evenly() -> None:
    trace = trace_from_windows([(1, 0, 2, 4), (0, 1, 0, 0)], k_logged=3)
    # .125 reject, .25 one, .375 reject, .5 three, .625 reject, .75 one, .875 reject; then two.
    assert trace.accepted == (0, 1, 0, 3, 0, 1, 0, 2)


def test_an_entry_deeper_than_logged_reads_as_the_logged_depth() -> None:
    done = replay(FixedDepth(9), Trace(k_logged=1, accepted=(7,)), cost=COST, n=1, budget_tokens=4)
    assert done.tokens == 4 and done.steps == 2


@pytest.mark.parametrize(("k_logged", "accepted"), [(3, ()), (3, (1, -1)), (0, (0,))])
def test_an_impossible_trace_is_refused(k_logged: int, accepted: tuple[int, ...]) -> None:
    with pytest.raises(ReplayError, match="trace refused"):
        Trace(k_logged=k_logged, accepted=accepted)


@pytest.mark.parametrize(("n", "budget"), [(0, 5), (1, 0), (-1, -1)])
def test_a_replay_of_nothing_is_refused(n: int, budget: int) -> None:
    with pytest.raises(ReplayError, match="replay refused"):
        replay(FixedDepth(1), TRACE, cost=COST, n=n, budget_tokens=budget)


def test_a_depth_without_a_price_is_refused() -> None:
    with pytest.raises(ReplayError, match="k=0"):
        replay(FixedDepth(0), TRACE, cost=StepTableSource({1: 5.0}), n=1, budget_tokens=5)


def test_every_mechanism_starts_fresh() -> None:
    made: list[Recorder] = []

    def build() -> Recorder:
        made.append(Recorder([1]))
        return made[-1]

    done = run_replay({"a": build, "b": build}, TRACE, cost=COST, n=1, budget_tokens=20)
    assert done["a"] == done["b"] and len(made) == 2
