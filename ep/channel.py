"""Command channel: ordered, numbered commands from rank 0 to all.

Rank 0 sends, the others receive; the first command has number 1. The channel keeps the sequence
number, checks it on arrival, and counts commands per code. On rank 0 it also folds each command
into the state digest and remembers the state before it (workers do that in worker.py, after they
have compared digests), so no caller folds a command itself.

Implementations: LocalChannel here (one rank); channel_gloo.py (CPU); channel_nccl.py (a buffer on
the device, over any Communicator).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from phalanx.ep.commands import Message, Shutdown
from phalanx.ep.faults import ProtocolError
from phalanx.ep.frames import SEQ_MASK, Encoded, Header, Received, decode, encode
from phalanx.ep.lockstep import StateDigest

Mark = Callable[[int, int], None]


class CommandChannel(Protocol):
    """What engine and worker loop know of a channel."""

    stats: dict[str, int]

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """Rank 0: to every rank. Returns the command's sequence number.

        digest: rank 0's state digest before this command. Raises ProtocolError, with nothing sent,
        for a message no rank may get; CollectiveFailed when the ranks cannot be reached.
        """
        ...

    def receive(self) -> Received:
        """Workers: the next command; waits without limit for its first word.

        Raises ProtocolError naming the field, or CollectiveFailed.
        """
        ...

    def close(self) -> None:
        """Let go of the transport; what was sent before is delivered first."""
        ...


class Numbering:
    """Sequence numbers, counts per code, and rank 0's folding; shared by every channel."""

    def __init__(self, state: StateDigest | None, mark: Mark | None = None) -> None:
        """state: rank 0's digest; None on workers, and where nobody compares.

        mark: told (sequence number, code) of every outgoing command, for liveness.
        """
        self.seq = 0
        self.stats: dict[str, int] = {}
        self._state = state
        self._mark = mark

    def outgoing(self, message: Message, *, digest: int, placement: int) -> Encoded:
        """The next command's bytes; the number is taken only if the message is good."""
        encoded = encode(message, seq=self.seq + 1, digest=digest, placement=placement)
        self.seq = (self.seq + 1) & SEQ_MASK
        self._count(encoded.code.name)
        if self._mark is not None:
            self._mark(self.seq, encoded.code)
        if self._state is not None:
            self._state.remember(self.seq)
            self._state.fold_command(self.seq, encoded.code, encoded.payload)
        return encoded

    def incoming(self, header: Header) -> None:
        """Check the number of an arriving command."""
        expected = (self.seq + 1) & SEQ_MASK
        if header.seq != expected:
            kind = "replayed" if header.seq in (self.seq, 0) else "out of order"
            raise ProtocolError(
                f"bad sequence number (seq={header.seq}, expected {expected}: {kind}) -- a command "
                "was lost, repeated or came from another job -- start the whole job again",
                field="sequence number",
                seq=header.seq,
                command=header.code.name,
            )
        self.seq = expected
        self._count(header.code.name)

    def _count(self, name: str) -> None:
        self.stats[name] = self.stats.get(name, 0) + 1


class LocalChannel:
    """The channel of a world of one: rank 0 reads back its own bytes, so they are checked too."""

    def __init__(self, *, state: StateDigest | None = None, mark: Mark | None = None) -> None:
        """state, mark: see Numbering."""
        self._numbering = Numbering(state, mark)
        self.stats = self._numbering.stats

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """Encode, decode, count. Raises ProtocolError."""
        encoded = self._numbering.outgoing(message, digest=digest, placement=placement)
        received = decode(encoded.frame, encoded.spill)
        if received.message != message:
            raise ProtocolError(
                f"message changed on the wire ({message!r} became {received.message!r})",
                field="payload",
            )
        return received.seq

    def receive(self) -> Received:
        """Always a SHUTDOWN: a world of one has nobody to receive from."""
        shutdown = encode(Shutdown("one rank"), seq=self._numbering.seq, digest=0, placement=0)
        return decode(shutdown.frame, shutdown.spill)

    def close(self) -> None:
        """Nothing is held."""
