"""The cost table's file: round trip, and refusals that name the line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_coverage import CoverageCount, CoveragePoint, ExpertCoverage
from phalanx.proposers.policy.cost_file import parse_table, render_table
from phalanx.proposers.policy.cost_key import CostKey, CostTableError
from phalanx.proposers.policy.cost_table import CostCell, CostTable

from .cost_samples import cell, cost_key, grid_table

TEXT = """
[key]
schema = 1
box_class = "gb10"
recipe = "qwen/27b"
[key.plan_digests]
verify = "v1"
verify_batch = "b1"
draft = "d1"
[[cells]]
n = 1
k = 0
verify_ms = 80
verify_j = 4.0
draft_ms = 0
draft_j = 0.0
"""

positive = st.floats(1e-3, 1e6)


def test_a_hand_written_table_loads() -> None:
    table = parse_table(TEXT)
    assert table.key == cost_key()
    assert table.cells == (CostCell(n=1, k=0, verify_ms=80.0, verify_j=4.0),)
    assert table.coverage is None and table.contexts == ()


def test_a_rendered_table_loads_equal_and_sorted() -> None:
    cells = list(reversed(grid_table().cells))
    text = render_table(CostTable(key=cost_key(), cells=cells))
    again = parse_table(text)
    assert (again.key, again.cells) == (cost_key(), grid_table().cells)
    assert text == render_table(again)
    assert [(c.n, c.k) for c in again.cells] == [(n, k) for n in (1, 4) for k in range(3)]


def test_the_optional_axes_survive_the_file() -> None:
    coverage = ExpertCoverage(
        num_experts=64,
        top_k=8,
        points=(CoveragePoint(distinct=8.0, verify_ms=1.0, verify_j=0.1),),
        counts=(CoverageCount(rows=2, distinct=14.5),),
    )
    cells = [replace(cell(1, k), context=c) for c in (512, 4096) for k in range(2)]
    table = CostTable(key=cost_key(), cells=cells, coverage=coverage)
    again = parse_table(render_table(table))
    assert (again.cells, again.coverage) == (table.cells, coverage)


@given(st.lists(st.tuples(positive, positive, positive, positive), min_size=3, max_size=3))
def test_every_float_survives_the_file(costs: list[tuple[float, float, float, float]]) -> None:
    cells = [
        CostCell(n=2, k=k, verify_ms=a, verify_j=b, draft_ms=c if k else 0.0, draft_j=d if k else 0)
        for k, (a, b, c, d) in enumerate(costs)
    ]
    table = CostTable(key=cost_key(), cells=cells)
    assert parse_table(render_table(table)).cells == table.cells


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("schema = 1", "schema = 2", "schema=2"),
        ("schema = 1", 'schema = "1"', "schema"),
        ("n = 1", "n = 1.0", "n=1.0 is not an integer"),
        ("n = 1", "n = 0", "n=0"),
        ("verify_ms = 80", "verify_ms = nan", "verify_ms=nan"),
        ("verify_ms = 80", "verify_ms = -80", "verify_ms=-80"),
        ("verify_ms = 80", 'verify_ms = "80"', "verify_ms='80'"),
        ("verify_ms = 80", "", "verify_ms is missing"),
        ("draft_ms = 0", "draft_ms = 1", "draft_ms=1.0 at k=0"),
        ("k = 0", "k = 0\ncontxt = 5", "contxt"),
        ('draft = "d1"', "draft = 7", "draft=7"),
        ("[[cells]]", "[cells]", "cells is not a list"),
        ("[key]", "[kee]", "key"),
        ("schema = 1", "schema = ", "Invalid"),
    ],
)
def test_a_malformed_table_is_refused_by_name(old: str, new: str, named: str) -> None:
    with pytest.raises(CostTableError, match=named):
        parse_table(TEXT.replace(old, new, 1))


def test_a_table_of_another_schema_cannot_even_be_built() -> None:
    key = CostKey(box_class="a", recipe="b", plan_digests={}, schema=2)
    with pytest.raises(CostTableError, match="schema=2"):
        CostTable(key=key, cells=[cell(1, 0)])


def test_a_table_without_cells_is_refused() -> None:
    with pytest.raises(CostTableError, match="no cells"):
        parse_table(TEXT.split("[[cells]]")[0])
