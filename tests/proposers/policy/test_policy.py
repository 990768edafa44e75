"""What every policy of this folder promises, whatever it is shown."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.proposers.policy.adaptive import AdaptiveRung, RungPolicy
from phalanx.proposers.policy.dflash_rung import DflashPolicy, DflashRung
from phalanx.proposers.policy.ladder import Ladder, LadderPolicy
from phalanx.proposers.policy.mtp_gate import GatePolicy
from phalanx.proposers.policy.policy import (
    Policy,
    PolicyView,
    SpecLimits,
    StepOutcome,
    StreamOutcome,
)
from tests.proposers.policy.views import outcome, view

MAKERS: dict[str, Callable[[], Policy]] = {
    "fixed": lambda: LadderPolicy(Ladder(disabled=True)),
    "ladder": lambda: LadderPolicy(Ladder()),
    "rung": lambda: RungPolicy(AdaptiveRung(Ladder())),
    "dflash": lambda: DflashPolicy(DflashRung(8)),
    "gate": lambda: GatePolicy(RungPolicy(AdaptiveRung(Ladder()))),
}

COUNTS = st.integers(-3, 40)

VIEWS = st.builds(
    PolicyView,
    stream_ids=st.integers(0, 40).map(lambda width: tuple(range(width))),
    pending_drafts=st.just(()),
    slots=st.lists(COUNTS, max_size=2).map(tuple),
    capacities=st.lists(COUNTS, max_size=2).map(tuple),
    limits=st.builds(
        SpecLimits, num_drafts=st.integers(-2, 9), max_seqs=COUNTS, slot_cap=st.integers(0, 50)
    ),
    context_depth=st.integers(-5, 1 << 40),
    now_s=st.floats(),
    pinned=st.booleans(),
)

OUTCOMES = st.builds(
    StepOutcome,
    depth=COUNTS,
    wall_s=st.floats(),
    streams=st.lists(
        st.builds(
            StreamOutcome,
            stream_id=COUNTS,
            num_drafts=COUNTS,
            num_accepted=COUNTS,
            num_emitted=st.integers(-5, 1 << 70),
        ),
        max_size=2,
    ).map(tuple),
    joules=st.none() | st.floats(),
    pinned=st.booleans(),
    now_s=st.floats(),
)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.tuples(VIEWS, OUTCOMES), max_size=6))
def test_any_input_gives_a_legal_depth_and_never_raises(
    name: str, steps: list[tuple[PolicyView, StepOutcome]]
) -> None:
    policy = MAKERS[name]()
    for seen, happened in steps:
        decision = policy.decide(seen)
        assert 0 <= decision.depth <= max(seen.limits.num_drafts, 0)
        assert decision.reason
        policy.observe(happened)
    assert policy.decide(view(1)).depth in range(4)


@pytest.mark.parametrize("name", MAKERS)
def test_same_steps_give_the_same_decisions(name: str) -> None:
    runs = []
    for _ in range(2):
        policy, depths = MAKERS[name](), []
        for step in range(700):
            width = 1 + step // 100
            decision = policy.decide(view(width, context_depth=step * 3))
            depths.append((decision.depth, decision.reason))
            policy.observe(
                outcome(width, depth=decision.depth, accepted=step % 3, now_s=step / 100)
            )
        runs.append(depths)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", MAKERS)
def test_no_policy_speculates_where_it_cannot(name: str) -> None:
    policy = MAKERS[name]()
    for refused in (
        view(0),
        view(33),
        view(2, num_drafts=0),
        view(2, slots=(0, 9), slot_cap=8),
        view(33, pinned=True),
    ):
        assert policy.decide(refused).depth == 0


def test_outcome_sums_what_its_streams_emitted() -> None:
    happened = outcome(3, depth=2, accepted=1)
    assert (happened.width, happened.num_emitted) == (3, 6)
