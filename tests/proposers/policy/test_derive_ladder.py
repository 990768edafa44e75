"""Derive a ladder: the best depth per width, equal neighbours merged."""

from __future__ import annotations

import pytest

from phalanx.proposers.policy.cost_sources import (
    CostSourceError,
    MeasuredSource,
    StepTableSource,
    parse_step_table,
)
from phalanx.proposers.policy.cost_table import CostTable
from phalanx.proposers.policy.derive_ladder import derive_ladder, derive_steps, render_steps
from phalanx.proposers.policy.ladder import parse_steps
from phalanx.proposers.policy.objective import Objective, ObjectiveKind

from .cost_samples import cell, cost_key

THROUGHPUT = Objective(kind=ObjectiveKind.THROUGHPUT)
COSTS = parse_step_table("0:32,1:44,2:50,3:56")


def test_good_acceptance_gives_one_deep_rung() -> None:
    steps = derive_steps(COSTS, (0.8,), widths=(1, 2, 4, 8), k_cap=3, objective=THROUGHPUT)
    assert steps == ((8, 3),)
    table = derive_ladder(COSTS, (0.8,), widths=(1, 2, 4, 8), k_cap=3, objective=THROUGHPUT)
    assert [table.drafts_at(n) for n in (1, 8, 64)] == [3, 3, 3]


def test_poor_acceptance_gives_plain_decode() -> None:
    steps = derive_steps(COSTS, (0.1,), widths=(1, 2, 4), k_cap=3, objective=THROUGHPUT)
    assert steps == ((4, 0),)


def test_the_cap_bounds_the_depth() -> None:
    assert derive_steps(COSTS, (0.8,), widths=(1,), k_cap=1, objective=THROUGHPUT) == ((1, 1),)
    assert derive_steps(COSTS, (0.8,), widths=(1,), k_cap=-1, objective=THROUGHPUT) == ((1, 0),)


def test_rungs_follow_the_widths_and_read_back_as_a_ladder() -> None:
    cells = [cell(n, k, 20.0 + n * n * k, 1.0) for n in (1, 2, 4, 8) for k in range(4)]
    source = MeasuredSource(CostTable(key=cost_key(), cells=cells))
    steps = derive_steps(source, (0.8,), widths=(1, 2, 4, 8), k_cap=3, objective=THROUGHPUT)
    drafts = [count for _, count in steps]
    assert drafts == sorted(drafts, reverse=True) and len(set(drafts)) == len(drafts) > 1
    assert parse_steps(render_steps(steps)) == steps
    table = derive_ladder(source, (0.8,), widths=(1, 2, 4, 8), k_cap=3, objective=THROUGHPUT)
    for n_max, count in steps:
        assert table.drafts_at(n_max) == count
    # A width between two measured ones takes the wider one's depth.
    assert table.drafts_at(3) == table.drafts_at(4)


@pytest.mark.parametrize("widths", [(), (0, 1), (2, 1), (1, 1)])
def test_widths_that_make_no_ladder_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(CostSourceError, match="widths"):
        derive_steps(COSTS, (0.8,), widths=widths, k_cap=3, objective=THROUGHPUT)


def test_a_width_without_prices_is_refused() -> None:
    only_deep = StepTableSource({1: 5.0})
    with pytest.raises(CostSourceError, match="no price"):
        derive_steps(only_deep, (0.8,), widths=(1,), k_cap=0, objective=THROUGHPUT)
