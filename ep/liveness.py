"""Liveness: every rank's connection to rank 0, on which a death or a stop is noticed and told.

It is a side channel, not a collective: its thread goes on while the main thread sits inside one.
The kernel closes a dead process's connection at once (EOF = died); a process that is stopped says
nothing (silence beyond the deadline = stopped). Whoever notices first tells rank 0, rank 0 tells
the others, and each then gets the same cause through `on_fault`, which is expected to end the
process. Workers watch rank 0 in the same way. The server is in liveness_server.py.

`on_fault` runs on the liveness thread, once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable

from phalanx.ep.faults import (
    CollectiveFailed,
    EPFault,
    RankFailed,
    RankLost,
    RankStopped,
    RendezvousFailed,
    from_report,
)
from phalanx.ep.liveness_wire import (
    AskFields,
    Beat,
    Farewell,
    Hello,
    Line,
    Report,
    Said,
    TellFields,
    WireError,
    ready,
)
from phalanx.ep.status_page import (
    PageReader,
    Status,
    StatusPage,
    machine_key,
    map_page,
    process_state,
)
from phalanx.ep.topology import EPConfig, RankInfo

_LOG = logging.getLogger(__name__)
OnFault = Callable[[EPFault], None]
VERDICT_WAIT_S = 3.0
"""How long a rank that failed waits for rank 0 to say what the cause of all was."""


class Peer:
    """The other end of a connection: who it is, what it last said, and since when it is silent."""

    def __init__(self, line: Line, hello: Hello, *, machine: str) -> None:
        self.line = line
        self.info = RankInfo(
            rank=hello.rank,
            world_size=hello.world_size,
            local_rank=0,
            local_world_size=1,
            host=hello.host,
            pid=hello.pid,
        )
        self.is_here = hello.machine == machine
        self.heard_at = time.monotonic()
        self.has_left = False
        self._said = Status("start", -1, "", 0)
        self._page: PageReader | None = None
        if self.is_here:
            self._page = map_page(pid=hello.pid, fd=hello.page_fd, token=hello.page_token)

    def note(self, message: Beat | Farewell) -> None:
        """A heartbeat or a farewell arrived."""
        if isinstance(message, Beat):
            self._said = Status(message.phase, message.seq, message.command, message.digest_checks)
        else:
            self._said = self._said._replace(digest_checks=message.digest_checks)
            self.has_left = True

    @property
    def status(self) -> Status:
        """Exact from its page where it can be mapped, else as of the last heartbeat."""
        return self._said if self._page is None or self.has_left else self._page.read()

    def lost(self) -> RankLost:
        """The fault for its closed connection."""
        return RankLost(
            "its process is gone (connection closed without a farewell) -- no collective can "
            "finish without it, so every rank stops -- look at the last lines of that rank's log "
            "and at the kernel log for the out-of-memory killer",
            **self._known(),
        )

    def stopped(self, *, silent_s: float, deadline_s: float) -> RankStopped:
        """The fault for its silence."""
        state = process_state(self.info.pid) if self.is_here else ""
        seen = ", stopped by a signal" if state == "T" else ""
        return RankStopped(
            f"silent for {silent_s:.1f} s (silence_deadline_s={deadline_s:g}{seen}) -- the others "
            "would wait for it for ever, so every rank stops -- see whether that process was "
            "stopped, or its machine swaps or hangs",
            **self._known(),
        )

    def close(self) -> None:
        """Close the connection and unmap its page."""
        self.line.close()
        if self._page is not None:
            self._page.close()
            self._page = None

    def _known(self) -> dict[str, object]:
        status = self.status
        return {
            "rank": self.info.rank,
            "world_size": self.info.world_size,
            "host": self.info.host,
            "pid": self.info.pid,
            "seq": status.seq,
            "command": status.command,
            "phase": status.phase,
        }


class Liveness:
    """What both ends share: own status, the one cause, and the thread that watches."""

    def __init__(self, info: RankInfo, config: EPConfig, *, token: str, on_fault: OnFault) -> None:
        self.info = info
        self._config = config
        self._token = token
        self._on_fault = on_fault
        self._page = StatusPage()
        self._machine = machine_key()
        self._cause: EPFault | None = None
        self._has_cause = threading.Event()
        self._lock = threading.Lock()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.setblocking(False)
        self._wake_there.setblocking(False)

    def phase(self, name: str) -> None:
        """Mark what this rank does now ("load", "idle", "forward", "verify", "propose" ...)."""
        self._page.phase(name)

    def command(self, seq: int, code: int) -> None:
        """Mark the command this rank executes now."""
        self._page.command(seq, code)

    def checked(self) -> None:
        """Count one digest that was compared and equal."""
        self._page.checked()

    @property
    def status(self) -> Status:
        """This rank's own status."""
        return self._page.status

    @property
    def cause(self) -> EPFault | None:
        """The fault that ends the job, once there is one."""
        return self._cause

    def fail(self, error: BaseException, *, wait_s: float = VERDICT_WAIT_S) -> EPFault:
        """This rank cannot go on. Tells the others and returns the cause of the whole job.

        Usually it does not return, because `on_fault` ends the process. The cause may be another
        rank's: a collective that broke here is most often the consequence of a death elsewhere.
        """
        fault = self.as_fault(error)
        if not isinstance(error, (EPFault, ValueError)):
            # Before anybody is told: being told ends this process.
            _LOG.error("%s failed", self.info, exc_info=error)
        self._tell(fault)
        if not self._has_cause.wait(wait_s):
            self._conclude(fault)
        return self._cause or fault

    def as_fault(self, error: BaseException) -> EPFault:
        """Any exception as a fault of this rank, with where this rank was."""
        status = self.status
        if not isinstance(error, EPFault):
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            error = RankFailed(text)
        return error.located(self.info, seq=status.seq, command=status.command, phase=status.phase)

    def close(self) -> None:
        """Say farewell and stop watching."""
        raise TypeError("close belongs to the two ends")

    def _tell(self, fault: EPFault) -> None:
        raise TypeError("_tell belongs to the two ends")

    def _conclude(self, fault: EPFault) -> None:
        """The cause is known: keep the first one and hand it to `on_fault`."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = fault
        try:
            self._on_fault(fault)
        finally:
            self._has_cause.set()  # only now: `fail` must not return into a process that ends

    def _start(self, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=run, name="phalanx-liveness", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_there.send(b"!")

    def _drain_wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_here.recv(4096)

    def _join(self) -> None:
        self._is_closing = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._wake_here.close()
        self._wake_there.close()
        self._page.close()

    def _hello(self) -> Hello:
        return Hello(
            token=self._token,
            rank=self.info.rank,
            world_size=self.info.world_size,
            host=self.info.host,
            pid=self.info.pid,
            machine=self._machine,
            page_fd=self._page.fd,
            page_token=self._page.token,
        )

    def _beat(self) -> Beat:
        return Beat(*self._page.status)


class LivenessClient(Liveness):
    """A worker's end: reports to rank 0, watches rank 0, and hears about the others."""

    def __init__(
        self,
        info: RankInfo,
        config: EPConfig,
        *,
        token: str,
        on_fault: OnFault,
        address: tuple[str, int],
    ) -> None:
        """Connects to rank 0 at `address`. Raises RendezvousFailed when it does not answer."""
        super().__init__(info, config, token=token, on_fault=on_fault)
        self._fields_asked = threading.Lock()
        self._fields_told = threading.Event()
        self._fields: TellFields | None = None
        try:
            self._head = self._connect(address)
        except BaseException:
            self._join()
            raise
        self._start(self._run)

    def fields_of_head(self, seq: int, *, wait_s: float = 1.0) -> dict[str, str | int] | None:
        """Rank 0's lockstep state before command `seq`; None when it is not to be had."""
        with self._fields_asked:
            self._fields_told.clear()
            self._head.line.say(AskFields(seq))
            self._fields_told.wait(wait_s)
            told = self._fields
            return told.fields if told is not None and told.seq == seq else None

    def close(self) -> None:
        """Say farewell and stop watching."""
        self._head.line.say(Farewell(self.status.digest_checks))
        self._join()
        self._head.close()

    def _connect(self, address: tuple[str, int]) -> Peer:
        deadline_s = self._config.startup_deadline_s
        try:
            sock = socket.create_connection(address, timeout=deadline_s)
        except OSError as error:
            raise RendezvousFailed(
                f"cannot reach rank 0's liveness port (address={address[0]}:{address[1]}: {error}) "
                "-- a rank that cannot be watched cannot take part -- open that address between "
                "the hosts, or start again if rank 0 has ended",
            ).located(self.info, phase="rendezvous") from error
        line = Line(sock)
        try:
            return Peer(line, self._greet(line, deadline_s), machine=self._machine)
        except EPFault as fault:
            line.close()
            raise fault.located(self.info, phase="rendezvous") from None

    def _greet(self, line: Line, deadline_s: float) -> Hello:
        """Say who this is and get rank 0's answer, which may be a fault."""
        line.say(self._hello())
        until = time.monotonic() + deadline_s
        is_open = True
        while is_open and (left := until - time.monotonic()) > 0:
            ready(line.sock, select.POLLIN, wait_s=left)
            try:
                messages, is_open = line.hear()
            except WireError:
                break
            if messages and isinstance(messages[0], Hello):
                return messages[0]
            if messages and isinstance(messages[0], Report):
                raise from_report(messages[0].fault)
        raise RendezvousFailed(
            "rank 0 did not answer on its liveness port -- another job may be listening there -- "
            "start the whole job again"
        )

    def _tell(self, fault: EPFault) -> None:
        self._head.line.say(Report(fault.report))

    def _run(self) -> None:
        beat_s, deadline_s = self._config.heartbeat_s, self._config.silence_deadline_s
        next_beat = 0.0
        poll = select.poll()
        poll.register(self._head.line.sock, select.POLLIN)
        poll.register(self._wake_here, select.POLLIN)
        awake_at = time.monotonic()
        while not self._is_closing:
            now = time.monotonic()
            if now - awake_at > deadline_s / 2:
                # This process did not run (stopped, or a suspended machine): its own sleep must
                # not be taken for rank 0's silence.
                self._head.heard_at = now
            awake_at = now
            if now >= next_beat:
                self._head.line.say(self._beat())
                next_beat = now + beat_s
            silent_s = now - self._head.heard_at
            if silent_s > deadline_s:
                self._conclude(self._head.stopped(silent_s=silent_s, deadline_s=deadline_s))
                return
            wait_s = min(next_beat - now, max(deadline_s - silent_s, 0.01))
            poll.poll(max(1, math.ceil(wait_s * 1000)))
            self._drain_wake()
            if self._is_closing or not self._read_head():
                return

    def _read_head(self) -> bool:
        """Handle what rank 0 said; False when there is nothing more to watch."""
        try:
            messages, is_open = self._head.line.hear()
        except WireError as error:
            self._conclude(CollectiveFailed(f"liveness: {error}").located(self.info))
            return False
        for message in messages:
            self._heed(message)
        if self._cause is not None:
            return False
        if not is_open and not self._head.has_left:
            self._conclude(self._head.lost())
        return is_open

    def _heed(self, message: Said) -> None:
        self._head.heard_at = time.monotonic()
        match message:
            case Beat() | Farewell():
                self._head.note(message)
            case Report(fault=report):
                self._conclude(from_report(report))
            case TellFields():
                self._fields = message
                self._fields_told.set()
            case _:
                pass
