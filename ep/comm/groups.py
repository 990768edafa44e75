"""Process groups of our own, made without torch's global default group.

An embedding program may have a default group already, and a global one could be used by accident
for a collective that no command ordered. Each group has its own deadline and prefix in the store.
"""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import torch
from torch import distributed

from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.topology import RankInfo

# torch's stubs do not name its stores, options and process groups.
_TORCH: Any = distributed

FOREVER_S = 10 * 365 * 24 * 3600.0
"""The deadline of a wait that liveness watches instead of a clock."""


class KeyStore(Protocol):
    """What is used of torch's stores (TCPStore, FileStore, PrefixStore)."""

    def set(self, key: str, value: bytes) -> None:
        """Put a value."""

    def get(self, key: str) -> bytes:
        """The value; waits for it."""

    def add(self, key: str, value: int) -> int:
        """Add to a counter and return it."""

    def check(self, keys: list[str]) -> bool:
        """True when all of them are there."""


def seconds(value: float) -> datetime.timedelta:
    """Seconds as torch wants them."""
    return datetime.timedelta(seconds=value)


def prefixed_store(store: KeyStore, prefix: str) -> KeyStore:
    """The same store with keys of its own."""
    prefixed: KeyStore = _TORCH.PrefixStore(prefix, store)
    return prefixed


def tcp_store(
    address: str, port: int, *, hosts: int | None, listen_fd: int, deadline_s: float
) -> KeyStore:
    """Connect to a TCP store; with `hosts` = number of ranks, also hold it in this process.

    listen_fd: an inherited listening socket to hold it on, or -1 to bind `port`. torch takes the
    socket over and closes it.
    """
    more = {"master_listen_fd": listen_fd} if hosts is not None and listen_fd >= 0 else {}
    store: KeyStore = _TORCH.TCPStore(
        address,
        port,
        hosts,
        hosts is not None,
        timeout=seconds(deadline_s),
        wait_for_workers=False,
        **more,
    )
    return store


def broadcast_options(*, deadline_s: float) -> Any:
    """From rank 0, with this deadline. Kept by callers: making one costs as much as a frame."""
    options = _TORCH.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.timeout = seconds(deadline_s)
    return options


def gloo_group(
    store: KeyStore, info: RankInfo, *, name: str, deadline_s: float, address: str
) -> Any:
    """A gloo group of all ranks. Every rank must call it, with the same name, in the same order.

    address: the local address the sockets bind to; loopback when all ranks are on one machine.
    """
    options = _TORCH.ProcessGroupGloo._Options()
    options._threads = 1  # operations are ordered by the commands; more threads only cost cores
    options._timeout = seconds(deadline_s)
    options._devices = [_TORCH.ProcessGroupGloo.create_device(hostname=address)]
    prefixed = prefixed_store(store, f"gloo/{name}")
    return _TORCH.ProcessGroupGloo(prefixed, info.rank, info.world_size, options)


def nccl_group(
    store: KeyStore, info: RankInfo, *, name: str, deadline_s: float, device: torch.device
) -> Any:
    """A NCCL group of all ranks on `device`. Raises ValueError when this torch has no NCCL."""
    if not distributed.is_nccl_available() or device.type != "cuda":
        raise ValueError(
            f"NCCL is not available (device={device}, torch={torch.__version__}) -- the nccl "
            "backend needs a CUDA build and a CUDA device -- choose the gloo backend here"
        )
    options = _TORCH.ProcessGroupNCCL.Options()
    options._timeout = seconds(deadline_s)
    prefixed = prefixed_store(store, f"nccl/{name}")
    return _TORCH.ProcessGroupNCCL(prefixed, info.rank, info.world_size, options)


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
