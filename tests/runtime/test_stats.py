"""Run counters add up and forget requests that ended."""

from __future__ import annotations

from phalanx.ep.commands import Command
from phalanx.runtime.stats import RunStats


def test_counters_add_up() -> None:
    stats = RunStats(num_drafts_limit=3)
    stats.open_request(1)
    stats.count_command(Command.FORWARD)
    stats.count_command(Command.FORWARD)
    stats.record_rows(1, matches=[True, True, False], num_accepted=2, seq_len=9)
    stats.record_rows(1, matches=[False, True, False], num_accepted=0, seq_len=10)
    stats.record_rows(1, matches=[], num_accepted=0, seq_len=11)
    run = stats.as_dict()
    assert run["commands"] == {"FORWARD": 2}
    assert run["spec"] == {
        "num_drafts": 2,
        "num_draft_tokens": 6,
        "num_accepted_tokens": 2,
        "acceptance_length": 2.0,
        "accepted_per_position": [1, 1, 0],
    }
    request = stats.close_request(1)
    assert request is not None
    assert (request.drafted, request.accepted, request.serial_steps) == (6, 2, 1)
    assert request.metrics()["num_spec_tokens"] == 3
    assert stats.close_request(1) is None


def test_rows_of_an_unknown_request_still_count_for_the_run() -> None:
    stats = RunStats()
    stats.record_rows(7, matches=[True], num_accepted=1, seq_len=2)
    assert stats.as_dict()["spec"]["num_accepted_tokens"] == 1


def test_a_summary_line_is_due_every_hundred_verifies() -> None:
    stats = RunStats()
    due = [len(stats.record_rows(1, matches=[True], num_accepted=1, seq_len=n)) for n in range(200)]
    assert [number for number, lines in enumerate(due, start=1) if lines] == [100, 200]
