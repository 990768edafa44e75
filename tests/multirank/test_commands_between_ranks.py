"""Commands, collectives and digests between real gloo processes."""

from __future__ import annotations

import re

import pytest

from tests.multirank import programs
from tests.support.ranks import run_ranks, started_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_collective_gives_the_same_on_every_rank(num_ranks: int) -> None:
    results = run_ranks(programs.collectives, num_ranks)
    total = float(sum(range(1, num_ranks + 1)))
    for rank, result in enumerate(results):
        assert result["sum"] == [[total] * 2] * 3
        assert result["bf16"] == [0.5 * num_ranks] * 4
        assert result["all_gather"] == [[[r, 10 + r]] for r in range(num_ranks)]
        assert result["scalar"] == list(range(num_ranks))
        assert result["strided"] == [[r, 4 + r] for r in range(num_ranks)]
        is_root = rank == num_ranks - 1
        assert result["gather"] == ([[r, r] for r in range(num_ranks)] if is_root else None)
        assert result["broadcast"] == [num_ranks - 1, 5]
        assert result["counts"] == results[0]["counts"]
    assert results[0]["counts"] == {
        "all_reduce": 2,
        "all_gather": 3,
        "gather": 1,
        "broadcast": 1,
        "barrier": 1,
    }


def test_commands_of_every_size_arrive_in_order_and_an_idle_job_still_serves() -> None:
    """The pause is three times the command and the collective deadline."""
    widths = [1, 2, 200, 1, 300, 5, 4000, 1, 1]
    results = run_ranks(programs.commands, 3, widths, 3.2)
    for result in results:
        assert result["code"] == 0
        assert result["heard"] == widths
        assert result["stats"] == {"FORWARD": len(widths), "NOOP": 1, "SHUTDOWN": 1}


def test_a_near_tie_taken_differently_by_one_rank_is_named_at_the_next_command() -> None:
    with started_ranks(programs.skewed, 3, 2, 4) as crew:
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.exit_code for outcome in outcomes] == [72, 72, 72], crew.report()
        for outcome in outcomes:
            line = outcome.last_line
            assert line.startswith("RankDesync: rank 2 of 3 (host testhost, pid "), line
            # Step 4 is command 5; the difference must be seen at command 6, before it runs.
            assert "seq 6, command FORWARD" in line, line
            assert re.search(r"slot 0 last_token: rank 0 has \d+, this rank has \d+", line), line
            assert "last exchange: rank 0 has [4], this rank has [5]" in line, line
