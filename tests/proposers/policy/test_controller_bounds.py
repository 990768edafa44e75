"""The controller's bounds: odd input, forgotten streams, settings and constants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.proposers.policy.controller import (
    Controller,
    ControllerSettings,
    production_controller,
)
from phalanx.proposers.policy.cost_online import OnlineSettings, OnlineSource
from phalanx.proposers.policy.objective import Margins, Objective, ObjectiveKind
from phalanx.proposers.policy.policy import StepOutcome, StreamOutcome
from phalanx.proposers.policy.replay import FixedDepth

from .cost_samples import grid_table, outcome, view

THROUGHPUT = Objective(kind=ObjectiveKind.THROUGHPUT)


def production(**changed: object) -> ControllerSettings:
    return replace(ControllerSettings(objective=THROUGHPUT), **changed)  # type: ignore[arg-type]


def controller(depth: int, *, cost: OnlineSource | None = None, **changed: object) -> Controller:
    source = cost if cost is not None else OnlineSource(max_k=depth)
    return Controller(FixedDepth(depth), cost=source, settings=production(**changed))


def test_a_retired_stream_is_forgotten_and_absent_ones_do_not_pile_up() -> None:
    policy = controller(1)
    for first in range(0, 5000, 4):
        policy.decide(view(4, num_drafts=1, first_id=first))
        policy.observe(outcome(1, 10.0, [1] * 4, first_id=first))
    assert len(policy._streams) < 100
    assert policy.rates(4996, 1) is not None
    policy.retire(4996)
    policy.retire(123456)
    assert policy.rates(4996, 1) is None


odd_streams = st.lists(
    st.builds(
        StreamOutcome,
        stream_id=st.integers(-3, 6),
        num_drafts=st.integers(-(10**6), 10**6),
        num_accepted=st.integers(-(10**6), 10**6),
        num_emitted=st.integers(-(10**6), 10**6),
    ),
    max_size=4,
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(-2, 9),
            st.floats(),
            odd_streams,
            st.none() | st.floats(),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_odd_outcomes_never_raise_and_never_corrupt(
    steps: list[tuple[int, int, float, list[StreamOutcome], float | None, bool]],
    every_depth: bool,
) -> None:
    cost = OnlineSource(max_k=3, settings=OnlineSettings(stale_after=8))
    policy = controller(3, cost=cost, every_depth=every_depth, dwell=2, resume_after=5)
    for n, depth, wall_s, streams, joules, pinned in steps:
        decision = policy.decide(replace(view(n, pinned=pinned), now_s=-wall_s))
        assert 0 <= decision.depth <= 3
        policy.observe(
            StepOutcome(
                depth=depth,
                wall_s=wall_s,
                streams=tuple(streams),
                joules=joules,
                pinned=pinned,
                now_s=-wall_s,
            )
        )
        assert 0.0 <= policy.delivered_tps < math.inf
        for stream_id in range(n):
            rates = policy.rates(stream_id, 3)
            assert rates is None or all(0.0 <= rate <= 1.0 + 1e-9 for rate in rates)


@pytest.mark.parametrize(
    "bad",
    [
        {"dwell": 0},
        {"resume_after": -1},
        {"probe_steps": -1},
        {"explore_every": -1},
        {"explore_max": -1},
        {"soften": 1.5},
        {"tps_alpha": math.nan},
        {"explore_fade": -0.1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        production(**bad)


def test_the_production_constants() -> None:
    made = ControllerSettings(objective=THROUGHPUT)
    assert made.margins == Margins(suspend=0.05)
    assert (made.dwell, made.resume_after, made.probe_steps) == (32, 256, 16)
    assert (made.explore_every, made.explore_max, made.soften) == (32, 512, 0.25)
    accept = made.acceptance
    assert (accept.decay, accept.prior_weight, accept.cold_weight) == (0.95, 4.0, 8.0)
    online = OnlineSettings()
    assert (online.alpha, online.stale_after, online.warm_up, online.clip) == (0.3, 256, 3, 2.0)


def test_the_served_controller_prices_by_its_table_or_learns() -> None:
    learning = production_controller(FixedDepth(2), objective=THROUGHPUT, num_drafts=2)
    assert learning.decide(view(1, num_drafts=2)).reason == "cost probe"
    given = production_controller(
        FixedDepth(2), objective=THROUGHPUT, num_drafts=2, table=grid_table(), every_depth=True
    )
    assert given.decide(view(1, num_drafts=2)).reason == "no acceptance yet"
    for _ in range(40):
        given.observe(outcome(2, 14.0, [0]))
    # Nothing is ever accepted: the shallowest depth that drafts, until plain has won long enough.
    assert given.decide(view(1, num_drafts=2)).depth == 1
