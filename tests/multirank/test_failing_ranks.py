"""Ranks that are late, raise, bring wrong sizes or are interrupted: named, and never a hang."""

from __future__ import annotations

import signal

import pytest

from tests.multirank import programs
from tests.support.ranks import Outcome, run_ranks, started_ranks


def last_lines(outcomes: list[Outcome]) -> set[str]:
    return {outcome.last_line for outcome in outcomes}


def test_a_rank_that_stays_away_from_a_collective_is_seen_behind() -> None:
    with started_ranks(programs.stuck, 3, "absent") as crew:
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.exit_code for outcome in outcomes] == [74, 74, 74], crew.report()
        (line,) = last_lines(outcomes)
        assert line.startswith("CollectiveFailed: rank "), line
        assert "all_reduce of [4] torch.float32" in line
        assert "deadline 2 s" in line
        assert "rank 2 seq 1 FORWARD phase forward" in line


def test_a_collective_of_different_sizes_ends_the_job() -> None:
    with started_ranks(programs.stuck, 2, "mismatch") as crew:
        outcomes = crew.wait(deadline_s=60)
        assert all(outcome.exit_code not in (0, None) for outcome in outcomes), crew.report()
        assert any(
            outcome.last_line.startswith(("CollectiveFailed: rank ", "RankLost: rank "))
            for outcome in outcomes
        ), crew.report()


def test_a_slow_start_is_waited_for_under_the_start_deadline() -> None:
    """Rank 1 takes three times as long as any collective may."""
    with started_ranks(programs.slow_load, 3, 3.0, 60.0) as crew:
        results = [outcome.result for outcome in crew.wait(deadline_s=60)]
        assert results == [98, 0, 0], crew.report()


def test_a_start_that_takes_too_long_names_the_late_rank() -> None:
    with started_ranks(programs.slow_load, 3, 100.0, 4.0) as crew:
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.exit_code for outcome in outcomes] == [69, 69, 69], crew.report()
        (line,) = last_lines(outcomes)
        assert "ranks [1] did not reach 'min/kv_blocks'" in line


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_a_bug_on_one_rank_ends_all_with_its_traceback_once(bad_rank: int) -> None:
    with started_ranks(programs.raising, 3, "execute", bad_rank) as crew:
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.exit_code for outcome in outcomes] == [70, 70, 70], crew.report()
        (line,) = last_lines(outcomes)
        assert line.startswith(f"RankFailed: rank {bad_rank} of 3"), line
        assert line.endswith("ZeroDivisionError: a bug"), line
        assert "seq 1, command FORWARD" in line
        assert "ZeroDivisionError: a bug" in outcomes[bad_rank].log
        with_traceback = [o.rank for o in outcomes if "in execute" in o.log]
        assert with_traceback == [bad_rank], crew.report()


def test_a_users_mistake_at_load_is_one_line_without_a_traceback() -> None:
    with started_ranks(programs.raising, 2, "load", 1) as crew:
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.exit_code for outcome in outcomes] == [70, 70], crew.report()
        for outcome in outcomes:
            assert "phase load: ValueError: config.json not found" in outcome.last_line
            assert "Traceback" not in outcome.log


def test_an_interrupt_ends_every_rank_in_good_order() -> None:
    with started_ranks(programs.interrupted, 3) as crew:
        crew.wait_for_mark("up")
        for rank in (2, 1, 0):
            crew.signal(rank, signal.SIGINT)
        outcomes = crew.wait(deadline_s=60)
        assert [outcome.result for outcome in outcomes] == [130, 0, 0], crew.report()


def test_one_rank_runs_the_same_job_alone() -> None:
    assert run_ranks(programs.slow_load, 1, 0.0, 30.0) == [100]
    assert run_ranks(programs.commands, 1, [1, 300, 2], 0.0)[0]["heard"] == [1, 300, 2]
