"""The cost table as a TOML file: read it, write it, and prove what was written loads.

    [key]  schema, box_class, recipe        [key.plan_digests]  verify, verify_batch, draft
    [[cells]]  n, k, verify_ms, verify_j, draft_ms, draft_j, optional context
    [coverage]  num_experts, top_k          optional; [[coverage.points]]  distinct, verify_ms,
                verify_j; optional [[coverage.counts]]  rows, distinct

A name nobody knows is refused: a misspelt `context` would silently merge two measurements.
"""

from __future__ import annotations

from typing import Final

from phalanx.proposers.policy.cost_coverage import CoverageCount, CoveragePoint, ExpertCoverage
from phalanx.proposers.policy.cost_key import SCHEMA, CostKey, CostTableError
from phalanx.proposers.policy.cost_table import CostCell, CostTable
from phalanx.proposers.policy.toml_text import TomlSection, read_toml, render_toml, unreadable

_CELL_NUMBERS: Final = ("verify_ms", "verify_j", "draft_ms", "draft_j")


_WHAT: Final = "cost table"


def _bad(where: str, trouble: str) -> CostTableError:
    return CostTableError(unreadable(_WHAT, where, trouble))


def _read_key(section: TomlSection) -> CostKey:
    key = CostKey(
        schema=section.integer("schema"),
        box_class=section.text("box_class"),
        recipe=section.text("recipe"),
        plan_digests=section.table("plan_digests").texts(),
    )
    if key.schema != SCHEMA:
        raise _bad("key", f"schema={key.schema}, limit {SCHEMA}")
    section.done()
    return key


def _read_cell(section: TomlSection) -> CostCell:
    cell = CostCell(
        n=section.integer("n"),
        k=section.integer("k"),
        verify_ms=section.number("verify_ms"),
        verify_j=section.number("verify_j"),
        draft_ms=section.number("draft_ms"),
        draft_j=section.number("draft_j"),
        context=section.integer("context") if section.has("context") else None,
    )
    section.done()
    return cell


def _read_coverage(section: TomlSection) -> ExpertCoverage:
    points, counts = section.tables("points"), section.tables("counts")
    coverage = ExpertCoverage(
        num_experts=section.integer("num_experts"),
        top_k=section.integer("top_k"),
        points=tuple(
            CoveragePoint(
                distinct=point.number("distinct"),
                verify_ms=point.number("verify_ms"),
                verify_j=point.number("verify_j"),
            )
            for point in points
        ),
        counts=tuple(
            CoverageCount(rows=count.integer("rows"), distinct=count.number("distinct"))
            for count in counts
        ),
    )
    for part in (*points, *counts, section):
        part.done()
    return coverage


def parse_table(text: str) -> CostTable:
    """Read a cost table.

    Raises:
        CostTableError: no TOML, another schema, a missing, mistyped or unknown name, a bad or
            repeated cell, no cells, or a hole in the grid.
    """
    top = read_toml(text, what=_WHAT, error=CostTableError)
    table = CostTable(
        key=_read_key(top.table("key")),
        cells=[_read_cell(section) for section in top.tables("cells")],
        coverage=_read_coverage(top.table("coverage")) if top.has("coverage") else None,
    )
    top.done()
    return table


def render_table(table: CostTable) -> str:
    """Write a cost table as TOML, cells by (context, n, k), and read it back.

    Raises:
        CostTableError: what was written does not load or is not the same table.
    """
    cells: list[dict[str, object]] = []
    for cell in table.cells:
        row: dict[str, object] = {"n": cell.n, "k": cell.k}
        if cell.context is not None:
            row["context"] = cell.context
        cells.append(row | {name: float(getattr(cell, name)) for name in _CELL_NUMBERS})
    document: dict[str, object] = {
        "key": {
            "schema": table.key.schema,
            "box_class": table.key.box_class,
            "recipe": table.key.recipe,
            "plan_digests": dict(table.key.plan_digests),
        },
        "cells": cells,
    }
    if table.coverage is not None:
        document["coverage"] = _coverage_document(table.coverage)
    text = render_toml(document)
    again = parse_table(text)
    if (again.key, again.cells, again.coverage) != (table.key, table.cells, table.coverage):
        raise _bad("written text", "does not read back to the same table")
    return text


def _coverage_document(coverage: ExpertCoverage) -> dict[str, object]:
    document: dict[str, object] = {
        "num_experts": coverage.num_experts,
        "top_k": coverage.top_k,
        "points": [
            {
                "distinct": float(point.distinct),
                "verify_ms": float(point.verify_ms),
                "verify_j": float(point.verify_j),
            }
            for point in coverage.points
        ],
    }
    if coverage.counts:
        document["counts"] = [
            {"rows": count.rows, "distinct": float(count.distinct)} for count in coverage.counts
        ]
    return document
