"""Process groups of our own, made without torch's global default group.

An embedding program may have a default group already, and a global one could be used by accident
for a collective that no command ordered. Each group has its own deadline and prefix in the store.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch import distributed

from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.topology import RankInfo

FOREVER_S = 10 * 365 * 24 * 3600.0
"""The deadline of a wait that liveness watches instead of a clock."""


def seconds(value: float) -> datetime.timedelta:
    """Seconds as torch wants them."""
    return datetime.timedelta(seconds=value)


def gloo_group(
    store: distributed.Store, info: RankInfo, *, name: str, deadline_s: float, address: str
) -> Any:
    """A gloo group of all ranks. Every rank must call it, with the same name, in the same order.

    address: the local address the sockets bind to; loopback when all ranks are on one machine.
    """
    options = distributed.ProcessGroupGloo._Options()
    options._threads = 1  # operations are ordered by the commands; more threads only cost cores
    options._timeout = seconds(deadline_s)
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    prefixed = distributed.PrefixStore(f"gloo/{name}", store)
    return distributed.ProcessGroupGloo(prefixed, info.rank, info.world_size, options)


def nccl_group(
    store: distributed.Store, info: RankInfo, *, name: str, deadline_s: float, device: torch.device
) -> Any:
    """A NCCL group of all ranks on `device`. Raises ValueError when this torch has no NCCL."""
    if not distributed.is_nccl_available() or device.type != "cuda":
        raise ValueError(
            f"NCCL is not available (device={device}, torch={torch.__version__}) -- the nccl "
            "backend needs a CUDA build and a CUDA device -- choose the gloo backend here"
        )
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = seconds(deadline_s)
    prefixed = distributed.PrefixStore(f"nccl/{name}", store)
    return distributed.ProcessGroupNCCL(prefixed, info.rank, info.world_size, options)


def collective_failed(what: str, info: RankInfo, error: BaseException) -> CollectiveFailed:
    """A library's error as ours: what failed, where, why, and what to look at."""
    return CollectiveFailed(
        f"{what} failed: {plain_reason(error)} -- ranks no longer agree on what comes next, so all "
        "stop -- see which rank is behind, and its log"
    ).located(info)


def plain_reason(error: BaseException) -> str:
    """A collective library's message without its source positions and advice."""
    text = " ".join(str(error).split())
    if text.startswith("[/"):
        text = text.partition("] ")[2]
    return text.partition(". This is typically")[0] or type(error).__name__
