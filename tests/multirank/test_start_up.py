"""Ranks as processes: how they meet, agree, refuse each other, and do not collide."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.ep.faults import RendezvousFailed
from phalanx.ep.meeting import Meeting
from phalanx.ep.rendezvous import open_store, own_address
from phalanx.ep.topology import EPConfig, RankInfo
from tests.multirank import start_up_programs as programs
from tests.support.ranks import run_ranks, started_ranks

ROOT = Path(__file__).resolve().parents[2]
HASTY = EPConfig(startup_deadline_s=1.0)


def info(rank: int) -> RankInfo:
    return RankInfo(
        rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="h", pid=os.getpid()
    )


def test_three_ranks_meet_agree_on_the_minimum_and_leave() -> None:
    results = run_ranks(programs.alike, 3)
    assert results == [{"sum": 6.0, "kv_blocks": 48, "code": 0}] * 3


@pytest.mark.parametrize("what", ["flags", "settings"])
def test_a_rank_started_differently_stops_all_with_the_setting_and_the_values(what: str) -> None:
    with started_ranks(programs.one_differs, 3, what) as crew:
        outcomes = crew.wait()
        for outcome in outcomes:
            assert outcome.exit_code == 78, crew.report()
            assert outcome.last_line.startswith(f"AgreementFailed: rank {outcome.rank} of 3")
            assert "name_of_it (ranks 0, 1: ours; rank 2: theirs)" in outcome.last_line


def test_two_processes_with_one_rank_stop_all_and_both_are_named() -> None:
    with started_ranks(programs.two_are_one, 3) as crew:
        outcomes = crew.wait()
        for outcome in outcomes:
            assert outcome.exit_code == 78, crew.report()
            assert "two processes are rank 1" in outcome.last_line
            for rank in (1, 2):
                assert re.search(rf"pid {crew.pid(rank)}\b", outcome.last_line)


def test_eight_jobs_started_at_once_on_one_host_do_not_mix() -> None:
    with contextlib.ExitStack() as stack:
        crews = [stack.enter_context(started_ranks(programs.alike, 2)) for _ in range(8)]
        for crew in crews:
            results = [outcome.result for outcome in crew.wait(deadline_s=100)]
            assert results == [{"sum": 3.0, "kv_blocks": 49, "code": 0}] * 2, crew.report()


def test_under_torchrun_the_launched_ranks_are_joined() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    module = ["--nproc-per-node", "2", "-m", "tests.multirank.start_up_programs"]
    done = subprocess.run(
        [*command, *module],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("torchrun"))
    assert lines == ["torchrun rank 0 sum 3", "torchrun rank 1 sum 3"]


def test_a_port_in_use_is_named_with_the_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        meeting = Meeting(address="127.0.0.1", port=port, job="j")
        with pytest.raises(RendezvousFailed, match=rf"cannot listen at 127\.0\.0\.1:{port}") as no:
            open_store(info(0), HASTY, meeting)
    assert "--master-port" in str(no.value)
    assert no.value.report.rank == 0


def test_a_store_that_is_not_there_is_named_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    meeting = Meeting(address="127.0.0.1", port=port, job="j")
    with pytest.raises(RendezvousFailed, match=rf"cannot reach the store at 127\.0\.0\.1:{port}"):
        open_store(info(1), HASTY, meeting)


def test_the_own_address_of_a_job_on_one_host_is_loopback() -> None:
    meeting = Meeting(address="127.0.0.1", port=9, job="j", on_one_host=True)
    assert own_address(meeting) == "127.0.0.1"
