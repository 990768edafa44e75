"""Spawn: every rank starts once, a bad end is named and ends the job, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.ep.faults import RankFailed, RankLost, RankStopped
from phalanx.launch.spawn import RankGroup

# What each test program begins with: its rank, and a way to wait without an end.
PROLOGUE = """
import os, signal, sys, time
rank = int(os.environ["PHALANX_INTERNAL_RANK"])
world_size = int(os.environ["PHALANX_INTERNAL_WORLD_SIZE"])
cause_fd = int(os.environ["PHALANX_INTERNAL_CAUSE_FD"])
def hang():
    time.sleep(120)
"""
FAULT = '["RankDesync","slot 3 length",1,3,"here",42,812,"FORWARD","verify"]'


def program(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", PROLOGUE + code]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def eventually(condition: Callable[[], bool], *, within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def pids(group: RankGroup) -> list[int]:
    return [child.process.pid for child in group.children]


def run(code: str, num_ranks: int, **options: float) -> tuple[int, RankGroup, list[str]]:
    lines: list[str] = []
    with RankGroup(program(code), num_ranks, say=lines.append, **options) as group:
        status = group.wait(deadline_s=60)
    assert all(is_gone(pid) for pid in pids(group))
    return status, group, lines


def test_every_rank_runs_once_and_its_lines_come_with_its_rank() -> None:
    status, group, lines = run("print(f'{rank} of {world_size}')", 4)
    assert status == 0
    assert group.cause is None
    assert sorted(lines) == [f"[rank {rank}] {rank} of 4" for rank in (1, 2, 3)]


def test_a_line_that_several_ranks_say_is_passed_on_once() -> None:
    _, _, lines = run("print('the same')", 4)
    assert len(lines) == 1
    assert lines[0].endswith("the same")


def test_output_without_a_last_newline_is_not_lost() -> None:
    _, _, lines = run("sys.stderr.write(f'end of {rank}')", 2)
    assert lines == ["[rank 1] end of 1"]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_is_named_and_the_others_are_ended(rank: int) -> None:
    code = f"os.kill(os.getpid(), signal.SIGKILL) if rank == {rank} else hang()"
    status, group, _ = run(code, 3, grace_s=0.2)
    assert status == 128 + signal.SIGKILL
    assert isinstance(group.cause, RankLost)
    assert group.cause.report.rank == rank
    assert group.cause.report.pid == pids(group)[rank]
    assert "SIGKILL" in str(group.cause)


def test_a_rank_that_exits_with_a_status_gives_the_job_that_status() -> None:
    status, group, _ = run("sys.exit(7) if rank == 1 else hang()", 3, grace_s=0.2)
    assert status == 7
    assert isinstance(group.cause, RankFailed)
    assert group.cause.report.rank == 1


def test_what_a_rank_reported_as_the_cause_wins_over_how_the_ranks_ended() -> None:
    code = f"""
if rank == 1:
    os.write(cause_fd, b'{FAULT}\\n')
    os._exit(72)
os._exit(70)
"""
    status, group, _ = run(code, 3)
    assert status == 72
    assert group.cause is not None
    assert group.cause.report.seq == 812
    assert "slot 3 length" in str(group.cause)


def test_a_broken_collective_reported_first_gives_way_to_its_cause() -> None:
    broken = FAULT.replace("RankDesync", "CollectiveFailed")
    code = f"""
if rank == 0:
    os.write(cause_fd, b'{broken}\\n')
    os.write(cause_fd, b'not json\\n')
    os.write(cause_fd, b'{FAULT}\\n')
    os._exit(74)
hang()
"""
    status, group, _ = run(code, 2, grace_s=0.2)
    assert status == 72
    assert type(group.cause).__name__ == "RankDesync"


def test_a_rank_stopped_by_a_signal_is_named_and_killed() -> None:
    code = "os.kill(os.getpid(), signal.SIGSTOP) if rank == 2 else hang()"
    status, group, _ = run(code, 3, grace_s=0.2, stopped_deadline_s=0.5)
    assert status == RankStopped.exit_code
    assert isinstance(group.cause, RankStopped)
    assert group.cause.report.rank == 2


def test_a_stopped_rank_is_not_waited_for_once_the_others_have_said_why_they_ended() -> None:
    code = f"""
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
os.write(cause_fd, b'{FAULT}\\n')
os._exit(72)
"""
    status, _, _ = run(code, 2, grace_s=1_000)  # waiting for it would end in this test's time-out
    assert status == 72


def test_a_worker_that_runs_on_after_rank_0_has_ended_fails_the_job() -> None:
    status, group, _ = run("hang() if rank == 1 else None", 2, grace_s=0.3)
    assert status != 0
    assert group.cause is not None
    assert group.cause.report.rank == 1


def test_a_deadline_ends_a_job_that_hangs() -> None:
    with RankGroup(program("hang()"), 2, grace_s=0.2) as group:
        assert group.wait(deadline_s=0.5) == RankStopped.exit_code
    assert all(is_gone(pid) for pid in pids(group))


def test_leaving_the_group_kills_grandchildren_too(tmp_path: Path) -> None:
    code = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
with open({str(tmp_path)!r} + f"/{{rank}}", "w") as file:
    file.write(str(child.pid))
os.rename({str(tmp_path)!r} + f"/{{rank}}", {str(tmp_path)!r} + f"/{{rank}}.pid")
hang()
"""
    with RankGroup(program(code), 2) as group:
        files = [tmp_path / "0.pid", tmp_path / "1.pid"]
        assert eventually(lambda: all(file.exists() for file in files))
        grandchildren = [int(file.read_text()) for file in files]
    assert eventually(lambda: all(is_gone(pid) for pid in [*pids(group), *grandchildren]))


def test_the_ranks_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = PROLOGUE + f"open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w').close()\nhang()"
    parent_code = f"""
import sys
from phalanx.launch.spawn import RankGroup
with RankGroup([sys.executable, "-S", "-c", {code!r}], 3) as group:
    group.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code])
    try:
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        children = [int(path.name) for path in tmp_path.iterdir()]
        assert not any(is_gone(pid) for pid in children)
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: all(is_gone(pid) for pid in children))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_the_parent_ends_every_rank(tmp_path: Path, number: signal.Signals) -> None:
    """The parent forwards it to rank 0 as SIGINT and kills what does not end."""
    (tmp_path / "hanging.py").write_text(
        "import os, time\n"
        f"open({str(tmp_path)!r} + '/rank' + os.environ['PHALANX_INTERNAL_RANK'], 'w').close()\n"
        "try:\n    time.sleep(120)\n"
        "except KeyboardInterrupt:\n"
        f"    open({str(tmp_path)!r} + '/asked', 'w').close()\n",
        encoding="utf-8",
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from phalanx.launch import spawn; spawn.GRACE_S = 0.5; "
            "sys.exit(spawn.spawn_ranks([], 2, module='hanging'))",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        # A non-interactive shell's background job would ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    try:
        assert eventually(lambda: all((tmp_path / f"rank{rank}").exists() for rank in range(2)))
        parent.send_signal(number)
        _, stderr = parent.communicate(timeout=30)
    finally:
        parent.kill()
    assert parent.returncode == 130
    assert (tmp_path / "asked").exists()
    assert b"Traceback" not in stderr


def test_the_meeting_socket_goes_to_rank_0_only_and_is_already_listening() -> None:
    code = """
import socket
fd = int(os.environ["PHALANX_INTERNAL_LISTEN_FD"])
port = int(os.environ["PHALANX_INTERNAL_PORT"])
if rank == 0:
    listener = socket.socket(fileno=fd)
    assert listener.getsockname() == ("127.0.0.1", port)
    for _ in range(world_size - 1):
        listener.accept()[0].sendall(b"ok")
else:
    assert fd == -1
    assert socket.create_connection(("127.0.0.1", port), timeout=30).recv(2) == b"ok"
"""
    status, group, lines = run(code, 3)
    assert (status, group.cause, lines) == (0, None, [])


def test_eight_jobs_at_once_do_not_collide() -> None:
    code = "print(os.environ['PHALANX_INTERNAL_PORT'], os.environ['PHALANX_INTERNAL_JOB'])"
    lines: list[str] = []
    groups = [RankGroup(program(code), 2, say=lines.append) for _ in range(8)]
    try:
        for group in groups:
            group.start()
        assert [group.wait(deadline_s=60) for group in groups] == [0] * 8
    finally:
        for group in groups:
            group.close()
    assert len(set(lines)) == 8


def test_a_program_that_cannot_be_started_leaves_nothing() -> None:
    group = RankGroup(["/nonexistent/program"], 2)
    with pytest.raises(FileNotFoundError):
        group.start()
    assert group.children == []
