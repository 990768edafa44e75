"""NCCL called directly through nccl4py: collectives on the current stream, capturable in a graph.

The package is optional and loaded on demand: version, unique id and the mapping of errors work
without a GPU, so `doctor` can say what is there. A collective here is only enqueued; `StreamWatch`
sees one that does not finish, aborts the communicator (which frees the stream) and reports.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phalanx.ep.comm.counting import count
from phalanx.ep.comm.stream_watch import StreamWatch
from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.topology import RankInfo

UNIQUE_ID_BYTES = 128

# NCCL's result codes: our words for what to do about each.
_MENDS = {
    1: "look at the CUDA driver and at the last kernel of that rank",
    2: "look at the network and the kernel log of that host (NCCL_DEBUG=INFO says more)",
    3: "report it with NCCL_DEBUG=INFO output",
    4: "report it: the arguments are ours",
    5: "report it: the order of calls is ours",
    6: "see which rank is gone or unreachable (NCCL_DEBUG=INFO says more)",
    7: "the call is still running; wait for it",
}


class NcclUnavailable(ValueError):
    """nccl4py or the NCCL library is not there."""


def load_nccl() -> Any:
    """The `nccl.core` module. Raises NcclUnavailable saying what is missing."""
    try:
        return importlib.import_module("nccl.core")
    except (ImportError, OSError, RuntimeError) as error:
        raise NcclUnavailable(
            f"nccl4py cannot be loaded ({error}) -- the nccl-direct backend calls NCCL through it "
            "-- install the [cuda] extra, or choose the nccl or gloo backend"
        ) from error


def nccl_version() -> str:
    """`2.32.3 (cuda 13.4)`: the library that is loaded. Raises NcclUnavailable."""
    core = load_nccl()
    try:
        found = core.get_version().libnccl
    except Exception as error:
        raise NcclUnavailable(f"libnccl cannot be loaded ({error})") from error
    if found is None:
        raise NcclUnavailable("libnccl was not found -- install nvidia-nccl for this CUDA version")
    return f"{found.version} (cuda {found.cuda_variant})"


def new_unique_id() -> bytes:
    """128 bytes that name a new communicator; rank 0 makes them, all ranks use them.

    Raises NcclUnavailable when there is no library, CollectiveFailed when it refuses.
    """
    core = load_nccl()
    try:
        return bytes(core.get_unique_id())
    except Exception as error:
        if getattr(error, "status", None) is None:
            raise NcclUnavailable(
                f"libnccl cannot be loaded ({error}) -- nccl4py only finds it, it does not bring "
                "it -- install nvidia-nccl for this CUDA version"
            ) from error
        raise nccl_failed("unique id", error) from error


def nccl_failed(what: str, error: BaseException, info: RankInfo | None = None) -> CollectiveFailed:
    """An error of nccl4py as ours: what, NCCL's name and code for it, and the mend."""
    status = getattr(error, "status", None)
    mend = _MENDS.get(status if isinstance(status, int) else -1, "NCCL_DEBUG=INFO says more")
    text = " ".join(str(error).split()) or type(error).__name__
    fault = CollectiveFailed(f"{what} failed: {text} -- every rank stops -- {mend}")
    return fault if info is None else fault.located(info)


class NcclCommunicator:
    """Communicator over one ncclComm. Use it from one thread."""

    def __init__(
        self,
        info: RankInfo,
        *,
        unique_id: bytes,
        device: torch.device,
        deadline_s: float,
        on_stuck: Callable[[CollectiveFailed], object] | None = None,
        core: Any = None,
    ) -> None:
        """Collective: every rank calls it, with rank 0's `unique_id`, within `deadline_s`.

        on_stuck: called from the watching thread when a collective passes its deadline.
        core: nccl4py's `nccl.core` (default: load it). Raises CollectiveFailed.
        """
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"unique id length ({len(unique_id)}, limit {UNIQUE_ID_BYTES} bytes)")
        self.rank = info.rank
        self.world_size = info.world_size
        self.device = device
        self.counts: dict[str, int] = {}
        self._info = info
        self._core = load_nccl() if core is None else core
        self._deadline_s = deadline_s
        self._comm: Any = self._connect(unique_id)
        self._failure: CollectiveFailed | None = None
        self._on_stuck = on_stuck
        self._watch = StreamWatch(device, deadline_s=deadline_s, on_stuck=self._abort)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """SUM over ranks, in place. Raises CollectiveFailed."""
        stream = self._stream()
        self._call(
            "all_reduce",
            lambda comm: comm.allreduce(tensor, tensor, self._core.SUM, stream=stream),
        )
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[*shape] -> [world_size, *shape], in rank order. Raises CollectiveFailed."""
        tensor = tensor.contiguous()
        gathered = tensor.new_empty((self.world_size, *tensor.shape))
        stream = self._stream()
        self._call("all_gather", lambda comm: comm.allgather(tensor, gathered, stream=stream))
        return gathered

    def gather(self, tensor: Tensor, *, root: int = 0) -> Tensor | None:
        """[*shape] -> [world_size, *shape] on `root`, None elsewhere. Raises CollectiveFailed."""
        tensor = tensor.contiguous()
        is_root = self.rank == root
        gathered = tensor.new_empty((self.world_size, *tensor.shape)) if is_root else None
        stream = self._stream()
        self._call("gather", lambda comm: comm.gather(tensor, gathered, root, stream=stream))
        return gathered

    def broadcast(self, tensor: Tensor, *, root: int = 0) -> Tensor:
        """`root`'s values everywhere, in place. Raises CollectiveFailed."""
        stream = self._stream()
        self._call("broadcast", lambda comm: comm.broadcast(tensor, tensor, root, stream=stream))
        return tensor

    def barrier(self) -> None:
        """Returns when every rank has called it. Raises CollectiveFailed."""
        one = torch.zeros(1, dtype=torch.int32, device=self.device)
        stream = self._stream()
        self._call("barrier", lambda comm: comm.allreduce(one, one, self._core.SUM, stream=stream))
        one.cpu()
        self._raise_failure()

    def close(self) -> None:
        """Destroy the communicator; every rank calls it."""
        self._watch.close()
        if self._comm is not None:
            comm, self._comm = self._comm, None
            comm.destroy()

    def _connect(self, unique_id: bytes) -> Any:
        """ncclCommInitRank has no deadline of its own, hence a thread that may be given up."""
        outcome: list[Any] = []

        def connect() -> None:
            try:
                if self.device.type == "cuda":
                    torch.cuda.set_device(self.device)
                name = self._core.UniqueId.from_bytes(unique_id)
                outcome.append(self._core.Communicator.init(self.world_size, self.rank, name))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=connect, name="phalanx-nccl-init", daemon=True)
        thread.start()
        thread.join(self._deadline_s)
        if not outcome:
            error = TimeoutError(f"not every rank came within {self._deadline_s:g} s")
            raise nccl_failed("communicator start", error, self._info)
        if isinstance(outcome[0], Exception):
            raise nccl_failed("communicator start", outcome[0], self._info) from outcome[0]
        return outcome[0]

    def _call(self, operation: str, enqueue: Callable[[Any], None]) -> None:
        self._raise_failure()
        if self._comm is None:
            raise nccl_failed(operation, RuntimeError("the communicator is closed"), self._info)
        count(self.counts, operation)
        try:
            enqueue(self._comm)
        except Exception as error:
            raise nccl_failed(operation, error, self._info) from error
        self._watch.enqueued(operation)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _abort(self, operation: str, age_s: float) -> None:
        """From the watch: the stream will not go on by itself."""
        late = TimeoutError(f"not finished after {age_s:.1f} s (deadline {self._deadline_s:g} s)")
        self._failure = nccl_failed(operation, late, self._info)
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort()
        if self._on_stuck is not None:
            self._on_stuck(self._failure)

    def _stream(self) -> int | None:
        if self.device.type != "cuda":
            return None
        return torch.cuda.current_stream(self.device).cuda_stream
