"""Communicator protocol: the few collectives this project uses.

Every method is a collective: each rank calls it with the same shape and type, in the same order.
That order is never decided here; it follows from the command all ranks are executing. `counts`
says how often each was called, so that a test can compare ranks and a recorder can show it.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, device


class Communicator(Protocol):
    """The model's collectives. Failures raise CollectiveFailed, never a library's own error."""

    rank: int
    world_size: int
    device: device
    counts: dict[str, int]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """SUM over ranks, in place; the same tensor is returned."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[*shape] on each rank -> [world_size, *shape] on every rank, in rank order."""
        ...

    def gather(self, tensor: Tensor, *, root: int = 0) -> Tensor | None:
        """[*shape] on each rank -> [world_size, *shape] on `root`, None elsewhere."""
        ...

    def broadcast(self, tensor: Tensor, *, root: int = 0) -> Tensor:
        """`root`'s values into every rank's tensor, in place; the same tensor is returned."""
        ...

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        ...

    def close(self) -> None:
        """Free what the library holds; no collective afterwards. May be called twice."""
        ...
