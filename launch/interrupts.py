"""Ctrl-C on rank 0 waits until every rank is between two commands.

An interrupt inside a command would leave the other ranks in a collective that nobody finishes; the
job would then end by a deadline instead of in good order. So the first one is remembered and raised
just before the next command is sent. When none is sent for a while (rank 0 waits for work) it is
raised anyway, and a second Ctrl-C is never held back. After that the gate stays shut: clean-up code
on the way out sends nothing more, because SHUTDOWN is all that the other ranks still need.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

from phalanx.ep.channel import CommandChannel
from phalanx.ep.commands import Message
from phalanx.ep.frames import Received

PATIENCE_S = 3.0
"""How long an interrupt waits for the next command before it is raised anyway."""


class InterruptGate:
    """A context in which SIGINT is held back until `let_through`. For the main thread.

    In another thread, where Python lets nobody handle signals, it does nothing.
    """

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._is_pending = False
        self._is_shut = False
        self._timer: threading.Timer | None = None
        self._before: Any = None

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forget()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def let_through(self) -> None:
        """All ranks are between two commands: raise KeyboardInterrupt if there was an interrupt."""
        if self._is_pending or self._is_shut:
            self._interrupt()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending or self._is_shut:
            self._interrupt()
        self._is_pending = True
        self._timer = threading.Timer(self._patience_s, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()

    def _interrupt(self) -> NoReturn:
        self._forget()
        self._is_shut = True
        raise KeyboardInterrupt

    def _forget(self) -> None:
        self._is_pending = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GatedChannel:
    """A CommandChannel on which a held interrupt is raised before the next command."""

    def __init__(self, channel: CommandChannel, gate: InterruptGate) -> None:
        self.stats = channel.stats
        self._channel = channel
        self._gate = gate

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """See CommandChannel; raises KeyboardInterrupt, with nothing sent, when one is held."""
        self._gate.let_through()
        return self._channel.send(message, digest=digest, placement=placement)

    def receive(self) -> Received:
        """See CommandChannel."""
        return self._channel.receive()

    def close(self) -> None:
        """See CommandChannel."""
        self._channel.close()
