"""Worker loop: receive a command, compare digests, hand it to the handler of its code.

A worker decides nothing and survives nothing: a request-scoped error never reaches it, so any
exception here is a fault of the job and is reported over liveness. The handlers come from launch
(in practice Executor.execute), so ep does not know runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from phalanx.ep.channel import CommandChannel
from phalanx.ep.commands import Command, Message
from phalanx.ep.faults import EPFault, ProtocolError, RankDesync
from phalanx.ep.frames import Received
from phalanx.ep.lockstep import StateDigest, differing_fields

Handler = Callable[[Message], None]
_SHOWN_FIELDS = 4


class WorkerLiveness(Protocol):
    """What the loop needs of liveness."""

    def phase(self, name: str) -> None:
        """Mark what this rank does."""
        ...

    def command(self, seq: int, code: int) -> None:
        """Mark the command."""
        ...

    def checked(self) -> None:
        """Count an equal digest."""
        ...

    def fail(self, error: BaseException) -> EPFault:
        """Report; usually does not return."""
        ...

    def fields_of_head(self, seq: int) -> Mapping[str, str | int] | None:
        """Rank 0's state before a command."""
        ...


def worker_loop(
    channel: CommandChannel,
    *,
    handlers: Mapping[Command, Handler],
    digest: StateDigest,
    liveness: WorkerLiveness,
) -> None:
    """Until SHUTDOWN. Raises the cause of the job's end, if `liveness.fail` returns at all.

    NOOP and SHUTDOWN need no handler; every other code that arrives must have one.
    """
    try:
        while True:
            liveness.phase("idle")
            received = channel.receive()
            liveness.command(received.seq, received.code)
            liveness.phase("command")
            check_lockstep(received, digest=digest, liveness=liveness)
            digest.fold_command(received.seq, received.code, received.payload)
            _execute(received, handlers)
            if received.code is Command.SHUTDOWN:
                liveness.phase("shutdown")
                return
    except Exception as error:
        raise liveness.fail(error) from error


def check_lockstep(received: Received, *, digest: StateDigest, liveness: WorkerLiveness) -> None:
    """Compare rank 0's digest with this rank's, before the command runs.

    Raises RankDesync naming command, sequence number and the fields with expected and got.
    """
    own = digest.value
    if received.digest == own:
        liveness.checked()
        return
    known = {"seq": received.seq, "command": received.code.name}
    expected = liveness.fields_of_head(received.seq)
    if expected is None:
        where = "rank 0's fields for this command are not to be had"
    else:
        fields = differing_fields(expected, digest.fields())
        shown = [
            f"{name}: rank 0 has {want}, this rank has {got}"
            for name, want, got in fields[:_SHOWN_FIELDS]
        ]
        more = len(fields) - len(shown)
        where = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    raise RankDesync(
        f"state differs from rank 0's before this command ({where}; digest expected "
        f"{received.digest:016x}, got {own:016x}) -- the next collective would mix two different "
        "steps -- report it with both logs; nothing of this command was executed",
        **known,
    )


def _execute(received: Received, handlers: Mapping[Command, Handler]) -> None:
    handler = handlers.get(received.code)
    if handler is not None:
        handler(received.message)
    elif received.code not in (Command.NOOP, Command.SHUTDOWN):
        raise ProtocolError(
            f"no handler for this command ({received.code.name}) -- this build cannot execute it "
            "-- start every rank from the same build",
            field="command code",
        )
