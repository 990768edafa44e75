"""Config to Communicator; the only place that picks one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.comm.groups import KeyStore
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.comm.nccl import NcclCommunicator, new_unique_id
from phalanx.ep.comm.torch_dist import gloo_communicator, nccl_communicator
from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.store_wait import exchange
from phalanx.ep.topology import EPConfig, RankInfo


def choose_communicator(
    config: EPConfig,
    info: RankInfo,
    *,
    store: KeyStore | None,
    name: str,
    device: torch.device,
    address: str,
    on_stuck: Callable[[CollectiveFailed], object] | None = None,
) -> Communicator:
    """The communicator of this job, under `name` (each name once). Every rank calls it.

    address: the local address gloo binds to. Raises ValueError when the backend and the device do
    not fit together, CollectiveFailed when the ranks cannot be connected.
    """
    if info.world_size == 1:
        return LocalCommunicator(device)
    if store is None or config.backend == "local":
        raise ValueError(
            f"backend does not reach other ranks (backend={config.backend!r}, world_size="
            f"{info.world_size}) -- several ranks need gloo, nccl or nccl-direct -- set the backend"
        )
    deadline_s = config.collective_deadline_s
    if config.backend == "gloo":
        if device.type != "cpu":
            raise ValueError(
                f"gloo carries CPU tensors (device={device}) -- set the backend to nccl for GPUs"
            )
        return gloo_communicator(store, info, name=name, deadline_s=deadline_s, address=address)
    if config.backend == "nccl":
        return nccl_communicator(store, info, name=name, deadline_s=deadline_s, device=device)
    mine = new_unique_id() if info.rank == 0 else b""
    unique_id = exchange(
        store,
        info,
        name=f"nccl-direct/{name}",
        value=mine,
        deadline_s=config.startup_deadline_s,
    )[0]
    return NcclCommunicator(
        info, unique_id=unique_id, device=device, deadline_s=deadline_s, on_stuck=on_stuck
    )
