"""Combine: the partial expert sums of every rank become one, by a sum all-reduce.

Every rank has computed every row over its own experts only, so the sum over ranks is the mixture.
Called with the same shapes on every rank: the rows come from the command that rank 0 sent.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.ep.comm.communicator import Communicator


def combine(partial_RD: Tensor, comm: Communicator) -> Tensor:
    """The sum over ranks, in place; one rank alone has the whole sum already."""
    return partial_RD if comm.world_size == 1 else comm.all_reduce(partial_RD)
