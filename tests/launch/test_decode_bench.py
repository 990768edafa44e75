"""Decode benchmark: turns, totals and ratios, with engines replaced by scripted contenders."""

from __future__ import annotations

import pytest

from phalanx.launch.commands.decode_bench import (
    Row,
    Turn,
    acceptance,
    as_lines,
    figures,
    first_of_each,
)
from phalanx.launch.prompts_file import PromptLine
from phalanx.launch.report import SpecFigures


def spec(verifies: int, per_position: tuple[int, ...]) -> SpecFigures:
    return SpecFigures(
        method="mtp",
        num_drafts=3,
        num_verifies=verifies,
        num_draft_tokens=3 * verifies,
        num_accepted_tokens=sum(per_position),
        accepted_per_position=per_position,
    )


def row(category: str, *, plain: list[float], mtp: list[float], peer: list[float]) -> Row:
    made = Row(line=PromptLine(prompt="x", category=category))
    ids = tuple(range(10))
    made.turns["plain"] = [Turn(token_ids=ids, seconds=s) for s in plain]
    made.turns["mtp"] = [Turn(token_ids=ids, seconds=s, spec=spec(4, (3, 2, 1))) for s in mtp]
    made.turns["transformers"] = [Turn(token_ids=ids, seconds=s) for s in peer]
    return made


def test_rates_are_totals_of_median_times() -> None:
    rows = [
        row("code", plain=[1.0, 9.0, 1.0], mtp=[0.5], peer=[4.0]),
        row("chat", plain=[3.0], mtp=[1.5], peer=[4.0]),
    ]
    result = figures(rows, peers=["transformers"])
    assert result["plain_tok_s"] == pytest.approx(5.0)
    assert result["mtp_tok_s"] == pytest.approx(10.0)
    assert result["ratio"] == pytest.approx(2.0)
    assert result["peers"]["transformers"] == {"tok_s": 2.5, "ratio_plain": 2.0, "ratio_mtp": 4.0}


def test_acceptance_adds_counts_up_and_not_averages() -> None:
    result = acceptance([spec(1, (1, 1, 1)), spec(9, (0, 0, 0))])
    assert result["acceptance_length"] == pytest.approx(1.3)
    assert result["accepted_per_position"] == pytest.approx([0.1, 0.1, 0.1])


def test_a_checkpoint_without_a_drafter_has_plain_figures_only() -> None:
    made = row("code", plain=[1.0], mtp=[1.0], peer=[1.0])
    del made.turns["mtp"]
    result = figures([made], peers=["transformers"])
    assert "mtp_tok_s" not in result and result["peers"]["transformers"]["ratio_mtp"] is None


def test_limit_keeps_some_of_each_category() -> None:
    lines = [PromptLine(prompt=str(i), category="ab"[i % 2]) for i in range(6)]
    assert [line.prompt for line in first_of_each(lines, limit=1)] == ["0", "1"]
    assert first_of_each(lines, limit=0) == lines


def test_lines_for_a_person_name_every_contender() -> None:
    rows = [row("code", plain=[1.0], mtp=[0.5], peer=[2.0])]
    part = figures(rows, peers=["transformers"])
    text = as_lines({**part, "by_category": {"code": part}, "texts_equal": 1, "prompts": 1})
    assert "2.00 x" in text and "transformers" in text and "1 of 1" in text
