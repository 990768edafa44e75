"""Real processes as ranks, for tests: start, watch, kill, collect, and always clean up.

A rank runs a module-level function `function(start, *args)` and returns something msgspec can write
as JSON. The processes are forked from one server that has imported torch once, so starting four
costs tenths of a second. Everything a rank prints goes to its own log; when a rank fails, the error
shows every log with a `[rank r]` prefix, the first failing rank first.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from phalanx.ep.meeting import Meeting
from phalanx.ep.topology import RankInfo

HOST = "testhost"
_PRELOAD = ["torch", "torch.distributed", "pytest", "phalanx.launch.rank_main"]


@dataclass(frozen=True, kw_only=True)
class RankStart:
    """What a rank's function gets first. meeting is None in a world of one."""

    info: RankInfo
    meeting: Meeting | None
    folder: str

    def mark(self, name: str) -> None:
        """Tell the test that this rank has come this far."""
        Path(self.folder, f"{name}.{self.info.rank}").touch()

    def wait_for_mark(self, name: str, *, deadline_s: float = 60) -> None:
        """Wait until the test, or this rank, has set a mark."""
        _wait(Path(self.folder, f"{name}.{self.info.rank}").exists, deadline_s, name)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a rank ended: exit code (negative = signal), its result, and everything it printed."""

    rank: int
    exit_code: int | None
    result: Any
    log: str

    @property
    def last_line(self) -> str:
        """The last line it printed."""
        lines = self.log.strip().splitlines()
        return lines[-1] if lines else ""


class Crew:
    """The ranks of one test."""

    def __init__(self, processes: Sequence[Any], folder: Path) -> None:
        self.processes = processes
        self._folder = folder

    def pid(self, rank: int) -> int:
        """The process id of a rank."""
        return int(self.processes[rank].pid)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        os.kill(self.pid(rank), number)

    def set_mark(self, name: str, rank: int) -> None:
        """Let a rank that waits for this mark go on."""
        Path(self._folder, f"{name}.{rank}").touch()

    def wait_for_mark(self, name: str, *, deadline_s: float = 60) -> None:
        """Wait until every rank has set this mark."""
        for rank in range(len(self.processes)):
            path = Path(self._folder, f"{name}.{rank}")
            _wait(path.exists, deadline_s, f"{name} of rank {rank}", self.report)

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        path = Path(self._folder, f"log.{rank}")
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, *, deadline_s: float = 60) -> list[Outcome]:
        """Wait until every rank has ended; AssertionError with the logs when one has not."""
        until = time.monotonic() + deadline_s
        for process in self.processes:
            process.join(timeout=max(0.0, until - time.monotonic()))
        late = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        if late:
            raise AssertionError(f"ranks {late} still run after {deadline_s} s\n{self.report()}")
        return [self._outcome(rank) for rank in range(len(self.processes))]

    def report(self, first: int = 0) -> str:
        """Every log with its rank in front, `first` first."""
        order = [first, *(rank for rank in range(len(self.processes)) if rank != first)]
        return "\n".join(
            f"[rank {rank}] {line}" for rank in order for line in self.log(rank).splitlines()
        )

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(timeout=10)
            process.close()

    def _outcome(self, rank: int) -> Outcome:
        path = Path(self._folder, f"result.{rank}")
        return Outcome(
            rank=rank,
            exit_code=self.processes[rank].exitcode,
            result=msgspec.json.decode(path.read_bytes()) if path.exists() else None,
            log=self.log(rank),
        )


@contextmanager
def started_ranks(function: Callable[..., Any], num_ranks: int, *args: Any) -> Iterator[Crew]:
    """Start `function(start, *args)` on every rank; whatever happens, none survives the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    job = secrets.token_hex(4)
    with (
        tempfile.TemporaryDirectory(prefix="phalanx-ranks-") as name,
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
    ):
        folder = Path(name)
        port = listener.getsockname()[1]
        processes = [
            context.Process(
                target=_child,
                args=(function, rank, num_ranks, port, listener, job, name, args),
                name=f"rank-{rank}",
                daemon=True,
            )
            for rank in range(num_ranks)
        ]
        crew = Crew(processes, folder)
        started = []
        try:
            for process in processes:
                process.start()
                started.append(process)
            yield crew
        finally:
            Crew(started, folder).end()


def run_ranks(
    function: Callable[..., Any], num_ranks: int, *args: Any, deadline_s: float = 60
) -> list[Any]:
    """Each rank's result, in rank order; AssertionError with all logs when one fails."""
    with started_ranks(function, num_ranks, *args) as crew:
        outcomes = crew.wait(deadline_s=deadline_s)
        failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
        if failed:
            # The one that raised, before those that only heard of it.
            first = next((o for o in failed if "Traceback" in o.log), failed[0])
            raise AssertionError(
                f"rank {first.rank} failed (exit code {first.exit_code})\n{crew.report(first.rank)}"
            )
        return [outcome.result for outcome in outcomes]


def _child(
    function: Callable[..., Any],
    rank: int,
    num_ranks: int,
    port: int,
    listener: socket.socket,
    job: str,
    folder: str,
    args: tuple[Any, ...],
) -> None:
    """Runs in the rank's process."""
    log = os.open(Path(folder, f"log.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if rank == 0 and num_ranks > 1:
        listen_fd = listener.detach()
    else:
        listener.close()
        listen_fd = -1
    info = RankInfo(
        rank=rank,
        world_size=num_ranks,
        local_rank=rank,
        local_world_size=num_ranks,
        host=HOST,
        pid=os.getpid(),
        launcher="spawn" if num_ranks > 1 else "single",
    )
    meeting = Meeting(
        address="127.0.0.1", port=port, job=job, listen_fd=listen_fd, on_one_host=True
    )
    start = RankStart(info=info, meeting=meeting if num_ranks > 1 else None, folder=folder)
    try:
        result = function(start, *args)
        Path(folder, f"result.{rank}").write_bytes(msgspec.json.encode(result))
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()


def _wait(
    condition: Callable[[], bool],
    deadline_s: float,
    what: str,
    report: Callable[[], str] = lambda: "",
) -> None:
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not happen within {deadline_s} s\n{report()}")
        time.sleep(0.01)
