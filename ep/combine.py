"""Combine: the partial expert sums of every rank become one, added in the order of the ranks.

Every rank has computed every row over its own experts only, so the sum over ranks is the mixture.
Called with the same shapes on every rank: the rows come from the command that rank 0 sent.

On the CPU the shares are gathered and added here instead of by the library's all-reduce. A ring
all-reduce adds each part of the buffer in another order of ranks, so with three ranks or more a
row's last bits would depend on the rows beside it, and a verify of several rows could then pick
another token than plain decoding at a near tie. It is also the quicker of the two for the few rows
of a decoding step. On GPUs the products before it depend on the batch anyway.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.ep.comm.communicator import Communicator


def combine(partial_RD: Tensor, comm: Communicator) -> Tensor:
    """The sum over ranks [R, D], the same bits on every rank; `partial_RD` may be overwritten.

    One rank alone has the whole sum already.
    """
    if comm.world_size == 1:
        return partial_RD
    if partial_RD.is_cuda:
        return comm.all_reduce(partial_RD)
    shares_WRD = comm.all_gather(partial_RD)
    total_RD = shares_WRD[0]
    for rank in range(1, comm.world_size):
        total_RD += shares_WRD[rank]
    return total_RD
