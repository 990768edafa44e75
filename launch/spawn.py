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
"""How long a rank may be stopped by a signal before the parent acts; liveness is faster."""
_TICK_S = 0.25
_PR_SET_PDEATHSIG = 1
_MAX_LINE_BYTES = 1 << 16
_MAX_LINES_KEPT = 1000


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
        self._ended: EPFault | None = None
        self._first_end: Child | None = None
        self._told: list[EPFault] = []
        self._command = list(command)
        self._num_ranks = num_ranks
        self._grace_s = grace_s
        self._stopped_deadline_s = stopped_deadline_s
        self._say = say or _to_stderr
        self._said: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._cause_read, self._cause_write = os.pipe()
        self._unread_causes = bytearray()
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
        over. `cause` then says why. The same holds for a rank that runs on long after rank 0 has
        ended well.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        kill_at: float | None = None
        while running := [child for child in self.children if child.exit_code is None]:
            for key, _ in self._selector.select(timeout=_TICK_S):
                self._handle(key)
            now = time.monotonic()
            self._look_for_stopped(running, now)
            if until is not None and now > until and self._ended is None:
                self._ended = self._overdue(running[0], f"after {deadline_s:g} s, the deadline")
            if self.cause is not None and all(child.stopped_since for child in running):
                self._kill()  # a stopped process never ends by itself
            elif kill_at is not None and now > kill_at:
                if self.cause is None:
                    self._ended = self._overdue(running[0], "long after rank 0 had finished")
                self._kill()
            elif kill_at is None and (self.cause is not None or self.children[0].exit_code == 0):
                kill_at = now + self._grace_s
        self._drain()
        return self._exit_status()

    @property
    def cause(self) -> EPFault | None:
        """Why the job ended badly: what the ranks said, else the first end that was seen."""
        return self._told_cause() if self._told else self._ended

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
        """Remember the first bad end; what a rank itself said about the cause counts more."""
        code = child.exit_code or 0
        if code == 0 or self._ended is not None:
            return
        self._first_end = child
        if code < 0:
            self._ended = RankLost(
                f"its process was ended by {signal.Signals(-code).name} -- the job cannot go on "
                "without it -- look at the kernel log for the out-of-memory killer, or for who "
                "sent the signal",
                **child.known(self._num_ranks),
            )
        else:
            self._ended = RankFailed(
                f"its process ended with exit status {code} -- the job cannot go on without it -- "
                "its own last lines are above",
                **child.known(self._num_ranks),
            )

    def _read_causes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._cause_read, 1 << 16):
                self._unread_causes += data
        *lines, rest = self._unread_causes.split(b"\n")
        self._unread_causes = bytearray(rest)
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                self._told.append(from_report(msgspec.json.decode(line, type=FaultReport)))

    def _relay(self, child: Child, fd: int, *, is_last: bool = False) -> bool:
        """Pass on the finished lines of a rank's output; False at its end.

        A line that another rank said word for word is passed on once.
        """
        is_open = True
        unread = child.unread[fd]
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 1 << 16):
                unread += data
            is_open = False
        *lines, rest = unread.split(b"\n")
        if (is_last or not is_open or len(rest) > _MAX_LINE_BYTES) and rest:
            lines, rest = [*lines, rest], bytearray()
        child.unread[fd] = bytearray(rest)
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if len(self._said) > _MAX_LINES_KEPT:
                self._said.clear()
            if self._said.setdefault(text, child.rank) == child.rank:
                self._say(f"[rank {child.rank}] {text}")
        return is_open

    def _look_for_stopped(self, running: Sequence[Child], now: float) -> None:
        """A stopped rank is liveness's business, but before it is up only the parent sees it."""
        for child in running:
            if process_state(child.process.pid) != "T":
                child.stopped_since = None
            elif child.stopped_since is None:
                child.stopped_since = now
            elif now - child.stopped_since > self._stopped_deadline_s and self._ended is None:
                self._ended = RankStopped(
                    f"stopped by a signal for {now - child.stopped_since:.0f} s (limit "
                    f"{self._stopped_deadline_s:g} s) -- the others would wait for it for ever -- "
                    "see who stopped that process",
                    **child.known(self._num_ranks),
                )

    def _overdue(self, child: Child, when: str) -> RankStopped:
        return RankStopped(
            f"still running {when} -- it was killed -- look at its last lines for what it waits on",
            **child.known(self._num_ranks),
        )

    def _exit_status(self) -> int:
        if self._told:
            return self._told_cause().exit_code
        if self._first_end is not None:
            code = self._first_end.exit_code or 0
            return 128 - code if code < 0 else code
        return 0 if self._ended is None else self._ended.exit_code

    def _told_cause(self) -> EPFault:
        """Ranks may report at once: a death explains a broken collective, not the other way."""
        return next((fault for fault in self._told if not fault.secondary), self._told[0])

    def _kill(self) -> None:
        for child in self.children:
            if child.exit_code is None and child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)

    def _drain(self) -> None:
        """What the ranks wrote last; a grandchild that still holds a pipe is not waited for."""
        for child in self.children:
            for fd in child.unread:
                self._relay(child, fd, is_last=True)


def spawn_ranks(arguments: Sequence[str], num_ranks: int, *, module: str = "phalanx.launch") -> int:
    """Run `python -m module arguments` as ranks 0..num_ranks-1; the job's exit status.

    Blocks until every rank has ended. Ctrl-C (or SIGTERM) asks rank 0 to stop in order, and kills
    the ranks when that takes longer than GRACE_S seconds. The cause of a bad end is printed last.
    """
    command = [sys.executable, "-m", module, *arguments]
    with _terminate_interrupts(), RankGroup(command, num_ranks) as group:
        try:
            status = group.wait()
        except KeyboardInterrupt:
            group.interrupt()
            with contextlib.suppress(KeyboardInterrupt):
                group.wait(deadline_s=GRACE_S)
            return 128 + signal.SIGINT
    # Exit status 2 is the user's mistake, which the rank itself explained in one line.
    if group.cause is not None and status != 2:
        _to_stderr(f"phalanx: {describe(group.cause.report)}")
    return status


@contextlib.contextmanager
def _terminate_interrupts() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does. Only the main thread may ask for that."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """For preexec_fn: the kernel kills the rank when the parent dies, however it dies.

    The library is loaded before the fork: nothing may be imported between fork and exec.
    """
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)

    def arrange() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
