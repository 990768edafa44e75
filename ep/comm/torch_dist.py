"""Collectives by torch.distributed: gloo on CPU, NCCL on CUDA, in a group of our own.

Each gloo collective has the deadline of the configuration. A NCCL collective only has to be
enqueued in time; its own deadline is kept by torch's watchdog, which ends the process, and liveness
then names the rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from phalanx.ep.comm.counting import count
from phalanx.ep.comm.groups import (
    KeyStore,
    broadcast_options,
    collective_failed,
    gloo_group,
    nccl_group,
    seconds,
)
from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.topology import RankInfo


class TorchDistCommunicator:
    """Communicator over one process group."""

    def __init__(
        self, group: Any, info: RankInfo, *, device: torch.device, deadline_s: float
    ) -> None:
        self.rank = info.rank
        self.world_size = info.world_size
        self.device = device
        self.counts: dict[str, int] = {}
        self._info = info
        self._group = group
        self._deadline_s = deadline_s
        self._is_closed = False
        limit = seconds(deadline_s)
        options: Any = distributed.distributed_c10d  # torch's stubs do not name them all
        self._sum = options.AllreduceOptions()
        self._sum.reduceOp = options.ReduceOp.SUM
        self._sum.timeout = limit
        self._gather = options.GatherOptions()
        self._gather.timeout = limit
        self._broadcast = broadcast_options(deadline_s=deadline_s)
        self._all = options.AllgatherOptions()
        self._all.timeout = limit
        self._barrier = options.BarrierOptions()
        self._barrier.timeout = limit

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """SUM over ranks, in place. Raises CollectiveFailed."""
        count(self.counts, "all_reduce")
        try:
            self._group.allreduce([tensor], self._sum).wait()
        except RuntimeError as error:
            raise self._failed("all_reduce", tensor, error) from error
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[*shape] -> [world_size, *shape], in rank order. Raises CollectiveFailed."""
        count(self.counts, "all_gather")
        tensor = tensor.contiguous()
        gathered = tensor.new_empty((self.world_size, *tensor.shape))
        try:
            self._group._allgather_base(gathered, tensor.unsqueeze(0), self._all).wait()
        except RuntimeError as error:
            raise self._failed("all_gather", tensor, error) from error
        return gathered

    def gather(self, tensor: Tensor, *, root: int = 0) -> Tensor | None:
        """[*shape] -> [world_size, *shape] on `root`, None elsewhere. Raises CollectiveFailed."""
        count(self.counts, "gather")
        tensor = tensor.contiguous()
        self._gather.rootRank = root
        gathered: Tensor | None = None
        parts: list[list[Tensor]] = []
        if self.rank == root:
            gathered = tensor.new_empty((self.world_size, *tensor.shape))
            parts = [list(gathered.unbind(0))]
        try:
            self._group.gather(parts, [tensor], self._gather).wait()
        except RuntimeError as error:
            raise self._failed("gather", tensor, error) from error
        return gathered

    def broadcast(self, tensor: Tensor, *, root: int = 0) -> Tensor:
        """`root`'s values everywhere, in place. Raises CollectiveFailed."""
        count(self.counts, "broadcast")
        self._broadcast.rootRank = root
        try:
            self._group.broadcast([tensor], self._broadcast).wait()
        except RuntimeError as error:
            raise self._failed("broadcast", tensor, error) from error
        return tensor

    def barrier(self) -> None:
        """Returns when every rank has called it. Raises CollectiveFailed."""
        count(self.counts, "barrier")
        try:
            self._group.barrier(self._barrier).wait()
        except RuntimeError as error:
            raise self._failed("barrier", None, error) from error

    def close(self) -> None:
        """Drop the group's sockets."""
        if not self._is_closed:
            self._is_closed = True
            self._group.shutdown()

    def _failed(
        self, operation: str, tensor: Tensor | None, error: RuntimeError
    ) -> CollectiveFailed:
        shape = "" if tensor is None else f" of {list(tensor.shape)} {tensor.dtype}"
        return collective_failed(
            f"{operation}{shape} (collective {sum(self.counts.values())} of this rank, deadline "
            f"{self._deadline_s:g} s)",
            self._info,
            error,
        )


def gloo_communicator(
    store: KeyStore, info: RankInfo, *, name: str, deadline_s: float, address: str
) -> TorchDistCommunicator:
    """A gloo communicator; every rank calls it."""
    group = gloo_group(store, info, name=name, deadline_s=deadline_s, address=address)
    return TorchDistCommunicator(group, info, device=torch.device("cpu"), deadline_s=deadline_s)


def nccl_communicator(
    store: KeyStore, info: RankInfo, *, name: str, deadline_s: float, device: torch.device
) -> TorchDistCommunicator:
    """A NCCL communicator on `device`; every rank calls it."""
    group = nccl_group(store, info, name=name, deadline_s=deadline_s, device=device)
    return TorchDistCommunicator(group, info, device=device, deadline_s=deadline_s)
