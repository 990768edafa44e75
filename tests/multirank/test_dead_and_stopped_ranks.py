"""kill -9 and SIGSTOP of real ranks: every process ends, each with the cause as its last line."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.multirank import programs
from tests.support.ranks import HOST, Crew, started_ranks

NEVER_S = 60.0


def killed(crew: Crew, victim: int) -> None:
    crew.signal(victim, signal.SIGKILL)
    outcomes = crew.wait(deadline_s=30)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.exit_code == 70, crew.report()
        line = outcome.last_line
        place = f"rank {victim} of {len(outcomes)} (host {HOST}, pid {crew.pid(victim)})"
        assert line.startswith(f"RankLost: {place}"), crew.report()


@pytest.mark.parametrize(
    ("place", "victim", "said"),
    [
        ("load", 1, r"seq \?, command \?, phase load"),
        ("idle", 2, "seq 1, command NOOP, phase (idle|command)"),
        ("verify", 2, "seq 1, command FORWARD, phase verify"),
        ("propose", 0, "seq 1, command FORWARD, phase propose"),
        ("collective", 1, "seq 1, command FORWARD, phase collective"),
        ("collective", 0, "seq 1, command FORWARD, phase collective"),
    ],
)
def test_a_killed_rank_ends_all_and_is_named(place: str, victim: int, said: str) -> None:
    with started_ranks(programs.held, 3, place, NEVER_S) as crew:
        crew.wait_for_mark(place)
        killed(crew, victim)
        witness = 1 if victim == 0 else 0
        assert re.search(said, crew.log(witness).splitlines()[-1]), crew.report()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_ends_all_within_the_silence_deadline(victim: int) -> None:
    with started_ranks(programs.held, 3, "collective", 3.0) as crew:
        crew.wait_for_mark("collective")
        crew.signal(victim, signal.SIGSTOP)
        others = [rank for rank in range(3) if rank != victim]
        for rank in others:
            crew.processes[rank].join(timeout=30)
        assert [crew.processes[rank].exitcode for rank in others] == [71, 71], crew.report()
        for rank in others:
            line = crew.log(rank).splitlines()[-1]
            assert line.startswith(f"RankStopped: rank {victim} of 3"), crew.report()
            assert "phase collective" in line
            assert "stopped by a signal" in line


def test_a_rank_that_was_stopped_and_goes_on_in_time_harms_nobody() -> None:
    with started_ranks(programs.held, 2, "idle", 8.0) as crew:
        crew.wait_for_mark("idle")
        crew.signal(1, signal.SIGSTOP)
        time.sleep(1.0)  # far under the deadline: nothing to wait for but time itself
        crew.signal(1, signal.SIGCONT)
        crew.processes[0].join(timeout=1.0)
        assert crew.processes[0].is_alive(), crew.report()
        killed(crew, 1)
