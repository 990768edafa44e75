"""Objective: values, margins, ties, and the split of rows among sequences."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.proposers.policy.chain import tokens_by_depth
from phalanx.proposers.policy.cost_table import StepCost
from phalanx.proposers.policy.objective import (
    Candidate,
    Margins,
    Objective,
    ObjectiveKind,
    choose,
    cut_depths,
    parse_objective,
)

LATENCY = Objective(kind=ObjectiveKind.LATENCY)
THROUGHPUT = Objective(kind=ObjectiveKind.THROUGHPUT)
BIG = 10**9


def energy(*, slack: float = 0.0, floor: int | None = 1) -> Objective:
    return Objective(kind=ObjectiveKind.ENERGY, slack=slack, floor=floor)


def candidate(
    depth: int, tokens: float, ms: float, joules: float | None = None, slowest: float | None = None
) -> Candidate:
    slow = tokens if slowest is None else slowest
    return Candidate(depth=depth, tokens=tokens, slowest=slow, cost=StepCost(ms=ms, joules=joules))


def at_rate(rate: float, costs: list[float]) -> list[Candidate]:
    tokens = tokens_by_depth((rate,), len(costs) - 1)
    return [candidate(k, tokens[k], ms) for k, ms in enumerate(costs)]


def test_throughput_finds_the_best_depth() -> None:
    assert choose(at_rate(0.8, [10, 14, 17, 21]), objective=THROUGHPUT).depth == 2


@given(st.floats(0.01, 0.98), st.floats(0.0, 0.02))
def test_more_acceptance_never_goes_shallower(rate: float, more: float) -> None:
    costs = [10.0, 14.0, 17.0, 21.0]
    shallow = choose(at_rate(rate, costs), objective=THROUGHPUT).depth
    assert choose(at_rate(rate + more, costs), objective=THROUGHPUT).depth >= shallow


@given(st.floats(0.05, 0.95), st.floats(0.2, 1.0))
def test_cheaper_drafts_never_go_shallower(rate: float, factor: float) -> None:
    dear = [10.0 + 4.0 * k for k in range(5)]
    cheap = [10.0 + 4.0 * factor * k for k in range(5)]
    before = choose(at_rate(rate, dear), objective=THROUGHPUT).depth
    assert choose(at_rate(rate, cheap), objective=THROUGHPUT).depth >= before


def test_latency_looks_at_the_slowest_stream_and_throughput_at_all() -> None:
    field = [
        candidate(0, 2.0, 10.0, slowest=1.0),
        candidate(3, 5.0, 14.0, slowest=1.1),
    ]
    assert choose(field, objective=THROUGHPUT).depth == 3
    assert choose(field, objective=LATENCY).depth == 0


def test_energy_and_latency_may_disagree() -> None:
    field = [candidate(1, 1.7, 10.0, 2.0), candidate(2, 2.2, 12.0, 4.0)]
    assert choose(field, objective=LATENCY).depth == 2
    assert choose(field, objective=energy(slack=0.1)).depth == 1


def test_energy_keeps_the_floor_s_speed() -> None:
    field = [candidate(0, 1.0, 10.0, 0.1), candidate(1, 1.6, 12.0, 2.0)]
    assert choose(field, objective=energy()).depth == 1
    assert choose(field, objective=energy(slack=0.5)).depth == 0


def test_the_floor_may_be_the_fastest_or_the_deepest_there_is() -> None:
    field = [candidate(0, 1.0, 10.0, 1.0), candidate(1, 1.6, 12.0, 2.0), candidate(2, 2, 14, 9.0)]
    assert choose(field, objective=energy(floor=None)).depth == 2
    assert choose(field, objective=energy(floor=7)).depth == 2
    assert choose(field, objective=energy(floor=0)).depth == 0


def test_without_joules_the_floor_runs() -> None:
    field = [candidate(0, 1.0, 5.0), candidate(1, 1.6, 12.0), candidate(2, 2.0, 13.0)]
    assert choose(field, objective=energy(slack=0.9)).depth == 1
    assert choose(field[:1], objective=energy()).depth == 0


def test_giving_up_must_pay_the_suspend_margin() -> None:
    margins = Margins(suspend=0.03)
    near = [candidate(0, 1.0, 10.0), candidate(1, 1.0, 10.25)]
    far = [candidate(0, 1.0, 10.0), candidate(1, 1.0, 10.35)]
    assert choose(near, objective=THROUGHPUT, margins=margins).depth == 1
    assert choose(far, objective=THROUGHPUT, margins=margins).depth == 0
    # An incumbent pays no margin: once plain, a gap of 2.5 % keeps it plain.
    assert choose(near, objective=THROUGHPUT, margins=margins, incumbent=0).depth == 0


def test_a_band_around_the_incumbent_holds_it() -> None:
    margins = Margins(deeper=0.02, shallower=0.02)
    close = [candidate(1, 1.0, 10.0), candidate(2, 1.01, 10.0)]
    clear = [candidate(1, 1.0, 10.0), candidate(2, 1.03, 10.0)]
    for field, incumbent, expected in (
        (close, 1, 1),
        (close, 2, 2),
        (clear, 1, 2),
        (clear, 2, 2),
        (close, None, 2),
    ):
        found = choose(field, objective=THROUGHPUT, margins=margins, incumbent=incumbent)
        assert found.depth == expected, (incumbent, expected)


def test_ties_keep_the_shallower_unless_the_incumbent_is_reached() -> None:
    tie = [candidate(1, 1.0, 10.0), candidate(2, 1.0, 10.0)]
    assert choose(tie, objective=THROUGHPUT).depth == 1
    assert choose(tie, objective=THROUGHPUT, incumbent=2).depth == 1
    assert choose(tie, objective=THROUGHPUT, incumbent=1).depth == 2


def test_choosing_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        choose([], objective=THROUGHPUT)


@pytest.mark.parametrize("slack", [-0.1, 1.0, math.nan])
def test_a_slack_outside_its_range_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match="spec_cost_slack"):
        energy(slack=slack)


def test_the_objective_must_be_stated() -> None:
    assert parse_objective("latency", slack=None) == LATENCY
    assert parse_objective("throughput", slack=None) == THROUGHPUT
    assert parse_objective("energy", slack=0.05) == energy(slack=0.05)
    for raw in (None, "", "Latency", "speed"):
        with pytest.raises(ValueError, match="spec_objective"):
            parse_objective(raw, slack=0.05)


def test_energy_needs_measured_costs() -> None:
    with pytest.raises(ValueError, match="without joules"):
        parse_objective("energy", slack=None)


def test_a_floor_or_margin_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="floor"):
        energy(floor=-1)
    for name in ("suspend", "deeper", "shallower"):
        with pytest.raises(ValueError, match=name):
            Margins(**{name: -0.1})


def cut(gains: list[list[float]], objective: Objective, per_row: float, budget: int) -> object:
    return cut_depths(
        gains,
        objective=objective,
        cost=lambda d: StepCost(ms=10.0 + per_row * d, joules=1.0 + per_row * d),
        row_budget=budget,
    )


def test_the_contested_row_goes_to_the_larger_gain_and_ties_to_the_earlier() -> None:
    assert cut([[0.5, 0.2], [0.9, 0.8]], THROUGHPUT, 0.0, 5) == (1, 2)
    assert cut([[0.9, 0.8], [0.9, 0.8]], THROUGHPUT, 0.0, 5) == (2, 1)


def test_over_budget_everyone_decodes_plainly() -> None:
    assert cut([[0.9], [0.9]], THROUGHPUT, 0.0, 3) == (0, 0)
    assert cut([[0.9], []], THROUGHPUT, 0.0, 3) == (1, 0)
    assert cut([], THROUGHPUT, 0.0, 3) == ()


def test_dear_rows_keep_one_draft_each() -> None:
    gains = [[0.9, 0.5, 0.3]] * 3
    assert cut(gains, THROUGHPUT, 50.0, BIG) == (1, 1, 1)
    assert cut(gains, THROUGHPUT, 0.0, BIG) == (3, 3, 3)


def test_a_total_without_a_price_is_skipped() -> None:
    found = cut_depths(
        [[0.9, 0.8, 0.7]],
        objective=THROUGHPUT,
        cost=lambda d: None if d == 2 else StepCost(ms=10.0),
        row_budget=BIG,
    )
    assert found == (3,)
    none = cut_depths([[0.9]], objective=THROUGHPUT, cost=lambda d: None, row_budget=BIG)
    assert none == (0,)


chains = st.lists(st.floats(0.05, 1.0), max_size=3).map(
    lambda rates: list(itertools.accumulate(rates, lambda a, b: a * b))
)


@settings(max_examples=60)
@given(st.lists(chains, min_size=1, max_size=4), st.floats(0.0, 8.0), st.integers(1, 20))
def test_no_split_of_any_total_beats_the_greedy_one(
    gains: list[list[float]], per_row: float, budget: int
) -> None:
    width = len(gains)

    def speed(depths: tuple[int, ...]) -> float:
        tokens = width + sum(sum(held[:d]) for held, d in zip(gains, depths, strict=True))
        return tokens / (10.0 + per_row * sum(depths))

    base = [min(len(held), 1) for held in gains]
    found = cut(gains, THROUGHPUT, per_row, budget)
    if width + sum(base) > budget:
        assert found == (0,) * width
        return
    options = itertools.product(
        *(range(low, len(held) + 1) for low, held in zip(base, gains, strict=True))
    )
    best = max(speed(d) for d in options if width + sum(d) <= budget)
    assert isinstance(found, tuple)
    assert speed(found) == pytest.approx(best)
    assert width + sum(found) <= budget


def test_latency_counts_the_stream_with_the_fewest_tokens() -> None:
    # A second draft for the good stream does nothing for the slowest one.
    assert cut([[0.9, 0.9], [0.1]], LATENCY, 0.5, BIG) == (1, 1)
    assert cut([[0.9, 0.9], [0.1]], THROUGHPUT, 0.5, BIG) == (2, 1)
