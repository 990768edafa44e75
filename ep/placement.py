"""Which rank holds which expert.

Linear placement: each rank holds `experts // ranks` consecutive experts and the last rank takes
the remainder. The version number travels in every command, so that a change is seen by all ranks
at the same step.
"""

from __future__ import annotations

from dataclasses import dataclass


class PlacementError(ValueError):
    """Experts cannot be spread over the ranks as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlacement:
    """Consecutive experts per rank."""

    num_experts: int
    world_size: int
    version: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.world_size <= max(self.num_experts, 1):
            raise PlacementError(
                f"more ranks than experts (ranks={self.world_size}, experts={self.num_experts}) -- "
                "each rank must hold at least one expert -- start at most "
                f"{self.num_experts} ranks"
            )

    def check(self, *, num_experts: int, world_size: int) -> None:
        """Raise PlacementError when this places other experts, or on other ranks."""
        if (num_experts, world_size) != (self.num_experts, self.world_size):
            raise PlacementError(
                f"placement of another model or job (experts={self.num_experts}, "
                f"ranks={self.world_size}; here {num_experts} experts on {world_size} ranks) -- "
                "experts would be lost or counted twice -- make the placement for this checkpoint"
            )

    def experts_of(self, rank: int) -> range:
        """Logical ids of the experts that `rank` holds."""
        share = self.num_experts // self.world_size
        start = rank * share
        last = rank == self.world_size - 1
        return range(start, self.num_experts if last else start + share)

    def ranks_of_experts(self) -> list[list[int]]:
        """For every expert, the ranks that hold it."""
        owners: list[list[int]] = [[] for _ in range(self.num_experts)]
        for rank in range(self.world_size):
            for expert in self.experts_of(rank):
                owners[expert].append(rank)
        return owners


def split_vocabulary(vocab_size: int, world_size: int, rank: int) -> range:
    """Rows of the LM head that `rank` computes: near-equal consecutive shares."""
    share, rest = divmod(vocab_size, world_size)
    start = rank * share + min(rank, rest)
    return range(start, start + share + (1 if rank < rest else 0))
