"""Rank 0's end of liveness: one thread that hears every worker and tells all of them the cause.

A fault that is usually a consequence (a broken collective) is held back for a moment, so that the
death that broke it can be noticed and named instead.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from phalanx.ep.faults import (
    AgreementFailed,
    EPFault,
    RankFailed,
    RendezvousFailed,
    from_report,
)
from phalanx.ep.liveness import Liveness, OnFault, Peer
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
)
from phalanx.ep.status_page import Status
from phalanx.ep.topology import EPConfig, RankInfo

SECONDARY_GRACE_S = 1.0
_LINGER_S = 0.3
FieldsAt = Callable[[int], Mapping[str, str | int] | None]


class LivenessServer(Liveness):
    """Watches ranks 1..world_size-1. With a world of one it has no thread and no socket."""

    def __init__(
        self,
        info: RankInfo,
        config: EPConfig,
        *,
        token: str,
        on_fault: OnFault,
        bind: str = "127.0.0.1",
        listener: socket.socket | None = None,
    ) -> None:
        """Listens on `listener`, or on a fresh port of `bind` (see `port`)."""
        super().__init__(info, config, token=token, on_fault=on_fault)
        self.port = 0
        self._fields_at: FieldsAt = lambda seq: None
        self._peers: dict[int, Peer] = {}
        self._strangers: dict[socket.socket, Line] = {}
        self._inbox: deque[EPFault] = deque()
        self._held: tuple[float, EPFault] | None = None
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        if info.world_size > 1:
            if self._listener is None:
                self._listener = socket.create_server((bind, 0), backlog=info.world_size)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._selector.register(self._listener, selectors.EVENT_READ, "listen")
            self._selector.register(self._wake_here, selectors.EVENT_READ, "wake")
            self._start(self._run)

    def serve_fields(self, fields_at: FieldsAt) -> None:
        """Who answers a worker that asks for rank 0's lockstep state before a command."""
        self._fields_at = fields_at

    def wait_for_peers(self, deadline_s: float) -> None:
        """Until every worker has connected. Raises RendezvousFailed naming those who have not."""
        expected = set(range(1, self.info.world_size))
        with self._changed:
            if self._changed.wait_for(lambda: expected <= self._peers.keys(), timeout=deadline_s):
                return
            missing = sorted(expected - self._peers.keys())
        raise RendezvousFailed(
            f"ranks that never came: {missing} (startup_deadline_s={deadline_s:g}) -- the job "
            "needs all of them -- look at their logs, or raise the deadline"
        ).located(self.info, phase="rendezvous")

    def wait_for_farewells(self, deadline_s: float) -> list[int]:
        """Until every worker has said farewell; the ranks that have not, [] when all have."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(peer.has_left for peer in self._peers.values()), timeout=deadline_s
            )
            return sorted(rank for rank, peer in self._peers.items() if not peer.has_left)

    def statuses(self) -> dict[int, Status]:
        """Where each rank is, this one included; any thread."""
        with self._changed:
            return {0: self.status} | {rank: peer.status for rank, peer in self._peers.items()}

    def close(self) -> None:
        """Say farewell to all and stop watching."""
        with self._changed:
            peers = list(self._peers.values())
        for peer in peers:
            peer.line.say(Farewell(0))
        self._join()
        for line in self._strangers.values():
            line.close()
        for peer in peers:
            peer.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def _tell(self, fault: EPFault) -> None:
        if self._thread is None:
            self._conclude(fault)
            return
        self._inbox.append(fault)
        self._wake()

    def _run(self) -> None:
        beat_s, deadline_s = self._config.heartbeat_s, self._config.silence_deadline_s
        next_beat = 0.0
        awake_at = time.monotonic()
        while not self._is_closing and self._cause is None:
            now = time.monotonic()
            if now - awake_at > deadline_s / 2:
                # This process did not run; its own sleep is nobody else's silence.
                for peer in self._peers.values():
                    peer.heard_at = now
            awake_at = now
            if now >= next_beat:
                next_beat = now + beat_s
                for peer in self._peers.values():
                    peer.line.say(self._beat())
            self._judge(now)
            for key, _ in self._selector.select(timeout=min(beat_s, deadline_s / 4, 0.25)):
                self._handle(key)

    def _judge(self, now: float) -> None:
        """Declare what is due: own faults, silences, and a held fault whose grace is over."""
        while self._inbox:
            self._consider(self._inbox.popleft())
        for peer in self._peers.values():
            silent_s = now - peer.heard_at
            if silent_s > self._config.silence_deadline_s and not peer.has_left:
                deadline_s = self._config.silence_deadline_s
                self._declare(peer.stopped(silent_s=silent_s, deadline_s=deadline_s))
                return
        if self._held is not None and now >= self._held[0]:
            self._declare(self._held[1])

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.data == "listen" and self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._strangers[sock] = Line(sock)
            self._selector.register(sock, selectors.EVENT_READ, None)
        elif key.data == "wake":
            self._drain_wake()
        elif isinstance(key.data, Peer):
            self._hear_peer(key.data)
        elif isinstance(key.fileobj, socket.socket):
            self._hear_stranger(key.fileobj)

    def _hear_stranger(self, sock: socket.socket) -> None:
        """A connection that has not said who it is: a worker with our token, or nobody of ours."""
        line = self._strangers[sock]
        try:
            messages, is_open = line.hear()
        except WireError:
            messages, is_open = [], False
        hello = messages[0] if messages else None
        if isinstance(hello, Hello) and hello.token == self._token:
            del self._strangers[sock]
            self._welcome(line, hello)
        elif hello is not None or not is_open:
            self._selector.unregister(sock)
            del self._strangers[sock]
            line.close()

    def _welcome(self, line: Line, hello: Hello) -> None:
        other = self._peers.get(hello.rank)
        who = self.info if hello.rank == 0 else other.info if other is not None else None
        if who is not None:
            fault = AgreementFailed(
                f"two processes are rank {hello.rank}: host {who.host} pid {who.pid}, and host "
                f"{hello.host} pid {hello.pid} -- each rank must be started once -- check the rank "
                "variables of the launcher",
                rank=hello.rank,
                world_size=hello.world_size,
                host=hello.host,
                pid=hello.pid,
                phase="rendezvous",
            )
            line.say(Report(fault.report))
            self._selector.unregister(line.sock)
            line.close()
            self._declare(fault)
            return
        peer = Peer(line, hello, machine=self._machine)
        line.say(self._hello())
        self._selector.modify(line.sock, selectors.EVENT_READ, peer)
        with self._changed:
            self._peers = {**self._peers, hello.rank: peer}
            self._changed.notify_all()

    def _hear_peer(self, peer: Peer) -> None:
        try:
            messages, is_open = peer.line.hear()
        except WireError as error:
            self._declare(RankFailed(f"liveness: {error}").located(peer.info))
            return
        for message in messages:
            peer.heard_at = time.monotonic()
            self._heed(peer, message)
        if not is_open:
            self._selector.unregister(peer.line.sock)
            if not peer.has_left and self._cause is None:
                self._declare(peer.lost())

    def _heed(self, peer: Peer, message: Said) -> None:
        match message:
            case Beat() | Farewell():
                with self._changed:
                    peer.note(message)
                    self._changed.notify_all()
            case Report(fault=report):
                self._consider(from_report(report))
            case AskFields(seq=seq):
                fields = self._fields_at(seq)
                peer.line.say(TellFields(seq, None if fields is None else dict(fields)))
            case _:
                pass

    def _consider(self, fault: EPFault) -> None:
        """Declare at once, or hold a secondary fault until its cause has had time to show."""
        if not fault.secondary:
            self._declare(fault)
        elif self._held is None:
            self._held = (time.monotonic() + SECONDARY_GRACE_S, fault)

    def _declare(self, fault: EPFault) -> None:
        """The cause of the job's end: tell every worker, then this process."""
        if self._cause is not None:
            return
        if fault.secondary:
            places = "; ".join(
                f"rank {rank} seq {status.seq} {status.command} phase {status.phase}"
                for rank, status in sorted(self.statuses().items())
            )
            fault = fault.adding(f"ranks are at: {places}")
        told = [peer for peer in self._peers.values() if peer.line.say(Report(fault.report))]
        self._linger(told)
        self._conclude(fault)

    def _linger(self, told: list[Peer]) -> None:
        """Let the workers read the cause.

        TRAP: a socket closed with unread bytes sends a reset, which can overtake the cause and
        make workers believe that rank 0 died (test_a_killed_worker_is_named_by_every_other_rank).
        """
        until = time.monotonic() + _LINGER_S
        for peer in told:
            try:
                peer.line.sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue
        waiting = told
        while waiting and time.monotonic() < until:
            still = []
            for peer in waiting:
                try:
                    _, is_open = peer.line.hear()
                except WireError:
                    is_open = False
                if is_open:
                    still.append(peer)
            waiting = still
            if waiting:
                time.sleep(0.005)
