"""Spawn: start N ranks of this program on this host, watch them, and leave none behind.

The parent computes nothing and imports no torch. It opens the listening socket that the ranks meet
on before it starts them and rank 0 inherits it, so there is no port to search for and lose. It
names the first rank that ends badly, gives the others a moment to say why, and kills the rest; if
the parent itself is killed, the kernel ends the ranks. The cause is the last line on stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from phalanx.ep.faults import (
    EPFault,
    FaultReport,
    RankFailed,
    RankLost,
    RankStopped,
    describe,
    from_report,
)
from phalanx.ep.status_page import process_state
from phalanx.launch.ranks import spawned_environment

GRACE_S = 5.0
"""How long the other ranks may take to end by themselves after the first one ended."""
STOPPED_DEADLINE_S = 15.0
"""How long a rank may be stopped by a signal before the parent ends the job (liveness is faster)."""
_TICK_S = 0.25
_PR_SET_PDEATHSIG = 1
_MAX_LINE_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True)
class Child:
    """One rank's process. Written by RankGroup only."""

    rank: int
    process: subprocess.Popen[bytes]
    pidfd: int
    exit_code: int | None = None
    stopped_since: float | None = None
    unread: dict[int, bytearray] = field(default_factory=dict)

    def known(self, world_size: int) -> dict[str, object]:
        """Who it is, for a fault."""
        return {
            "rank": self.rank,
            "world_size": world_size,
            "host": socket.gethostname(),
            "pid": self.process.pid,
        }


class RankGroup:
    """The ranks of one job as child processes. Use as a context: leaving it kills what is left."""

    def __init__(
        self,
        command: Sequence[str],
        num_ranks: int,
        *,
        grace_s: float = GRACE_S,
        stopped_deadline_s: float = STOPPED_DEADLINE_S,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """command: the program with its arguments, the same for every rank.

        say: receives each finished line that a rank other than 0 wrote, and warnings of the parent;
        stderr by default. Rank 0 writes to the parent's own stdout and stderr.
        """
        self.children: list[Child] = []
        self.cause: EPFault | None = None
        self._command = list(command)
        self._num_ranks = num_ranks
        self._grace_s = grace_s
        self._stopped_deadline_s = stopped_deadline_s
        self._say = say or _to_stderr
        self._said: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._cause_read, self._cause_write = os.pipe()
        self._causes = bytearray()
        os.set_blocking(self._cause_read, False)
        self._selector.register(self._cause_read, selectors.EVENT_READ, None)

    def __enter__(self) -> RankGroup:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every rank. Raises OSError when a process cannot be started; none is left then."""
        job = secrets.token_hex(8)
        with socket.create_server(("127.0.0.1", 0), backlog=4 * self._num_ranks) as listener:
            try:
                for rank in range(self._num_ranks):
                    self._start_rank(rank, job=job, listener=listener)
            except OSError:
                self.close()
                raise
        os.close(self._cause_write)
        self._cause_write = -1

    def wait(self, *, deadline_s: float | None = None) -> int:
        """Until every rank has ended; the job's exit status (0 only when every rank's is).

        After the first bad end, or `deadline_s` seconds, the others are killed once the grace is
        over. `cause` then says why.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        kill_at: float | None = None
        while running := [child for child in self.children if child.exit_code is None]:
            for key, _ in self._selector.select(timeout=_TICK_S):
                self._handle(key)
            now = time.monotonic()
            self._look_for_stopped(running, now)
            if until is not None and now > until and self.cause is None:
                self.cause = self._overdue(running[0], deadline_s or 0.0)
            if kill_at is None and self._is_ending():
                kill_at = now + self._grace_s
            if kill_at is not None and now > kill_at:
                self._kill()
        self._drain()
        return self._exit_status()

    def interrupt(self) -> None:
        """Ask rank 0 to stop; it tells the others."""
        if self.children and self.children[0].exit_code is None:
            self.children[0].process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Kill what is left and free everything. May be called twice."""
        self._kill()
        for child in self.children:
            child.process.wait()
            if child.pidfd >= 0:
                os.close(child.pidfd)
                child.pidfd = -1
            for stream in (child.process.stdout, child.process.stderr):
                if stream is not None:
                    stream.close()
        self._selector.close()
        for name in ("_cause_read", "_cause_write"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def _start_rank(self, rank: int, *, job: str, listener: socket.socket) -> None:
        listen_fd = listener.fileno() if rank == 0 else -1
        environment = spawned_environment(
            rank=rank,
            world_size=self._num_ranks,
            port=listener.getsockname()[1],
            listen_fd=listen_fd,
            job=job,
            cause_fd=self._cause_write,
        )
        piped = None if rank == 0 else subprocess.PIPE
        process = subprocess.Popen(
            self._command,
            env=environment,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=piped,
            stderr=piped,
            pass_fds=[fd for fd in (listen_fd, self._cause_write) if fd >= 0],
            # Ctrl-C reaches the parent only, which then ends the job in order.
            start_new_session=True,
            preexec_fn=_die_with_parent(os.getpid()),
        )
        child = Child(rank=rank, process=process, pidfd=os.pidfd_open(process.pid))
        self.children.append(child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                child.unread[stream.fileno()] = bytearray()
                self._selector.register(stream.fileno(), selectors.EVENT_READ, child)

    def _handle(self, key: selectors.SelectorKey) -> None:
        child = key.data
        if child is None:
            self._read_causes()
        elif key.fd == child.pidfd:
            self._selector.unregister(child.pidfd)
            child.exit_code = child.process.wait()
            self._read_causes()
            self._judge_end(child)
        elif not self._relay(child, key.fd):
            self._selector.unregister(key.fd)

    def _judge_end(self, child: Child) -> None:
        """The first bad end is the cause, unless a rank already said a better one."""
        code = child.exit_code or 0
        if code == 0 or self.cause is not None:
            return
        if code < 0:
            name = signal.Signals(-code).name
            self.cause = RankLost(
                f"its process was ended by {name} -- the job cannot go on without it -- look at "
                "the kernel log for the out-of-memory killer, or for who sent the signal",
                **child.known(self._num_ranks),
            )
        else:
            self.cause = RankFailed(
                f"its process ended with exit status {code} -- the job cannot go on without it -- "
                "its own lines are above",
                **child.known(self._num_ranks),
            )
            self.cause.said_by_rank = True  # type: ignore[attr-defined]

    def _read_causes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._cause_read, 1 << 16):
                self._causes += data
        while b"\n" in self._causes:
            line, _, self._causes = self._causes.partition(b"\n")
            with contextlib.suppress(msgspec.MsgspecError):
                fault = from_report(msgspec.json.decode(line, type=FaultReport))
                if self.cause is None or (self.cause.secondary and not fault.secondary):
                    self.cause = fault
