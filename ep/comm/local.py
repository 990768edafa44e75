"""World of one: every collective is a copy, or nothing.

It counts as the others do, so that one rank and two ranks can be compared call by call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.ep.comm.counting import count


class LocalCommunicator:
    """Communicator of a single rank."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.rank = 0
        self.world_size = 1
        self.device = torch.device(device)
        self.counts: dict[str, int] = {}

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        count(self.counts, "all_reduce")
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[*shape] -> a new [1, *shape]."""
        count(self.counts, "all_gather")
        return tensor.detach().clone().unsqueeze(0)

    def gather(self, tensor: Tensor, *, root: int = 0) -> Tensor | None:
        """[*shape] -> a new [1, *shape]; the only possible root is 0."""
        if root != 0:
            raise ValueError(f"no such root (root={root}, world_size=1)")
        count(self.counts, "gather")
        return tensor.detach().clone().unsqueeze(0)

    def broadcast(self, tensor: Tensor, *, root: int = 0) -> Tensor:
        """The tensor itself; the only possible root is 0."""
        if root != 0:
            raise ValueError(f"no such root (root={root}, world_size=1)")
        count(self.counts, "broadcast")
        return tensor

    def barrier(self) -> None:
        """Nobody to wait for."""
        count(self.counts, "barrier")

    def close(self) -> None:
        """Nothing is held."""
