"""Several ranks in one process: a communicator between threads, and a command channel of queues.

Collectives wait for each other at a barrier with a deadline, so ranks that disagree fail instead of
hanging; every call is recorded with its shape, so that two ranks can be compared.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phalanx.ep.commands import Message, Shutdown
from phalanx.ep.faults import EPFault
from phalanx.ep.frames import decode, encode
from phalanx.ep.lockstep import StateDigest, differing_fields
from phalanx.ep.worker import check_lockstep

DEADLINE_S = 10.0


class ThreadGroup:
    """The meeting point of a world of threads."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.box: list[tuple[str, Tensor] | None] = [None] * world_size


class ThreadComm:
    """Communicator of one thread."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.world_size = rank, group.world_size
        self.device = torch.device("cpu")
        self.counts: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._group = group

    def _meet(self, name: str, tensor: Tensor) -> list[Tensor]:
        self.calls.append((name, tuple(tensor.shape)))
        self.counts[name] = self.counts.get(name, 0) + 1
        group = self._group
        group.box[self.rank] = (name, tensor.clone())
        group.barrier.wait(DEADLINE_S)
        box = [entry for entry in group.box if entry is not None]
        names = {entry[0] for entry in box}
        shapes = {entry[1].shape for entry in box}
        group.barrier.wait(DEADLINE_S)
        assert len(names) == len(shapes) == 1, f"ranks met in {names} with {shapes}"
        return [entry[1] for entry in box]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self._meet("all_reduce", tensor)).sum(dim=0))

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._meet("all_gather", tensor))

    def gather(self, tensor: Tensor, *, root: int = 0) -> Tensor | None:
        parts = self._meet("gather", tensor)
        return torch.stack(parts) if self.rank == root else None

    def broadcast(self, tensor: Tensor, *, root: int = 0) -> Tensor:
        return tensor.copy_(self._meet("broadcast", tensor)[root])

    def barrier(self) -> None:
        self._meet("barrier", torch.zeros(0))

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Worker:
    """One worker rank: its digest, its handler, and what became of it."""

    rank: int
    digest: StateDigest
    execute: Callable[[Message], Any]
    head: StateDigest
    """Rank 0's, for the message about a difference."""
    on_error: Callable[[], None]
    """Wakes whoever waits for this rank."""
    inbox: queue.Queue[tuple[bytes, bytes]] = field(default_factory=queue.Queue)
    error: BaseException | None = None
    num_checked: int = 0

    def loop(self) -> None:
        """Receive, compare digests, execute, until SHUTDOWN."""
        try:
            while True:
                received = decode(*self.inbox.get(timeout=DEADLINE_S * 6))
                try:
                    check_lockstep(received, digest=self.digest, liveness=self)
                    self.digest.fold_command(received.seq, received.code, received.payload)
                    if isinstance(received.message, Shutdown):
                        return
                    self.execute(received.message)
                finally:
                    self.inbox.task_done()
        except BaseException as error:
            self.error = error
            self.on_error()

    def settle(self) -> None:
        """Wait until everything sent so far was executed."""
        self.inbox.join()
        if self.error is not None:
            raise self.error

    def phase(self, name: str) -> None:
        """Nobody watches."""

    def command(self, seq: int, code: int) -> None:
        """Nobody watches."""

    def checked(self) -> None:
        """An equal digest."""
        self.num_checked += 1

    def fail(self, error: BaseException) -> EPFault:
        """Never asked for here."""
        raise error

    def fields_of_head(self, seq: int) -> dict[str, str | int] | None:
        """Straight from rank 0, which is in this process."""
        return self.head.fields_at(seq)


class QueueChannel:
    """Rank 0's end: every command goes through its bytes, to any number of workers (or none)."""

    def __init__(self, digest: StateDigest, workers: list[Worker]) -> None:
        self._digest, self._workers, self._seq = digest, workers, 0
        self.sent: list[Message] = []
        self.stats: dict[Any, int] = {}

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        encoded = encode(message, seq=self._seq, digest=digest, placement=placement)
        assert decode(encoded.frame, encoded.spill).message == message
        self._digest.remember(self._seq)
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error
            worker.inbox.put((encoded.frame, encoded.spill))
        self._digest.fold_command(self._seq, encoded.code, encoded.payload)
        self.sent.append(message)
        self._seq += 1
        return self._seq - 1


def differences(first: StateDigest, second: StateDigest) -> list[tuple[str, Any, Any]]:
    """What two ranks' digests disagree about."""
    return list(differing_fields(first.fields(), second.fields()))
