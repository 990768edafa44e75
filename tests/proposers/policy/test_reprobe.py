"""Reprobe: the schedules of looking elsewhere."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.reprobe import DeepProbe, Exploration, Suspension


def explored(bases: list[int], *, every: int = 4, longest: int = 16) -> list[int]:
    schedule = Exploration(every=every, longest=longest)
    found = []
    for index, base in enumerate(bases):
        if schedule.due(base):
            schedule.explored(base)
            found.append(index)
    return found


def test_gaps_double_up_to_the_longest() -> None:
    assert explored([1] * 64) == [3, 7, 15, 31, 47, 63]


def test_a_changed_base_starts_the_gaps_over() -> None:
    # Base 2 from decision 20 on: 4 decisions since the last look are over, so it looks at once.
    assert explored([1] * 20 + [2] * 20) == [3, 7, 15, 20, 24, 32]


def test_zero_never_explores() -> None:
    assert explored([1] * 200, every=0) == []


def test_a_look_that_was_not_possible_stays_due() -> None:
    schedule = Exploration(every=4, longest=16)
    due = [schedule.due(1) for _ in range(8)]
    assert due == [False] * 3 + [True] * 5


def test_reset_is_a_new_stream() -> None:
    schedule = Exploration(every=4, longest=16)
    for _ in range(9):
        if schedule.due(1):
            schedule.explored(1)
    schedule.reset()
    assert [schedule.due(1) for _ in range(4)] == [False, False, False, True]


def test_a_suspension_ends_after_its_plain_tokens() -> None:
    state = Suspension(resume_after=10, probe_steps=5)
    assert not state.plain_tokens(100)
    state.suspend()
    assert [state.plain_tokens(4) for _ in range(3)] == [False, False, True]
    assert (state.suspended, state.probe_left) == (False, 5)


def test_suspending_twice_does_not_start_the_count_over() -> None:
    state = Suspension(resume_after=10, probe_steps=5)
    state.suspend()
    state.plain_tokens(9)
    state.suspend()
    assert state.plain_tokens(1)


def test_zero_plain_tokens_never_suspend() -> None:
    state = Suspension(resume_after=0, probe_steps=5)
    state.suspend()
    assert not state.suspended


@given(st.lists(st.integers(-(10**9), 10**9), max_size=50))
def test_negative_tokens_never_lengthen_a_suspension(tokens: list[int]) -> None:
    state = Suspension(resume_after=10, probe_steps=5)
    state.suspend()
    ended = [state.plain_tokens(count) for count in tokens]
    assert any(ended) == (sum(count for count in tokens if count > 0) >= 10)
    assert ended.count(True) <= 1


def test_a_deep_probe_is_due_until_one_was_seen() -> None:
    probe = DeepProbe()
    probe.observe(0.9, deep=False)
    assert probe.due()
    probe.observe(0.9, deep=True)
    assert not probe.due()


def test_only_a_rise_of_the_first_draft_asks_for_depth() -> None:
    probe = DeepProbe(rise=0.08, backstop=10_000)
    probe.observe(0.73, deep=True)
    for _ in range(200):
        probe.observe(0.5, deep=False)
    assert not probe.due()
    for step in range(200):
        probe.observe(0.92, deep=False)
        if probe.due():
            assert 0 < step < 15
            return
    raise AssertionError("a rise from .50 to .92 never asked for a deep look")


def test_the_backstop_asks_for_depth_without_any_rise() -> None:
    probe = DeepProbe(backstop=20)
    probe.observe(0.5, deep=True)
    due = []
    for _ in range(20):
        probe.observe(0.5, deep=False)
        due.append(probe.due())
    assert due == [False] * 19 + [True]


@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=50))
def test_odd_rates_never_break_the_trigger(samples: list[tuple[float, bool]]) -> None:
    probe = DeepProbe()
    for p1, deep in samples:
        probe.observe(p1, deep=deep)
    seen = any(deep and math.isfinite(p1) for p1, deep in samples)
    assert probe.due() or seen
