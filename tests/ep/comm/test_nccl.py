"""Direct NCCL: what works without a GPU, and the calls it makes, against a recording library.

The tests of the real package are skipped only where nccl4py is not installed.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.ep.comm import nccl
from phalanx.ep.comm.nccl import (
    UNIQUE_ID_BYTES,
    NcclCommunicator,
    NcclUnavailable,
    load_nccl,
    nccl_failed,
    nccl_version,
    new_unique_id,
)
from phalanx.ep.faults import CollectiveFailed
from phalanx.ep.topology import RankInfo

IS_INSTALLED = importlib.util.find_spec("nccl") is not None
needs_nccl4py = pytest.mark.skipif(not IS_INSTALLED, reason="nccl4py is not installed")
CPU = torch.device("cpu")
INFO = RankInfo(rank=1, world_size=2, local_rank=1, local_world_size=2, host="h", pid=9)
ID = bytes(range(UNIQUE_ID_BYTES))


class LibraryError(Exception):
    """Shaped like nccl4py's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class FakeCore:
    """nccl.core of two ranks in which both hold the same values; it records what is called."""

    SUM = "sum"

    def __init__(self, *, fail: LibraryError | None = None, hold: float = 0.0) -> None:
        self.calls: list[Any] = []
        self._fail = fail
        self._hold = threading.Event()
        self._hold_s = hold
        self.UniqueId = SimpleNamespace(from_bytes=lambda data: ("id", data))
        self.Communicator = SimpleNamespace(init=self._init)

    def _init(self, world_size: int, rank: int, name: Any) -> FakeCore:
        if self._hold_s:
            self._hold.wait(self._hold_s)
        self.calls.append(("init", world_size, rank, name))
        return self

    def _record(self, *call: Any) -> None:
        if self._fail is not None:
            raise self._fail
        self.calls.append(call)

    def allreduce(self, sent: Any, received: Any, operation: Any, *, stream: Any) -> None:
        self._record("allreduce", operation, stream)
        received.copy_(2 * sent)

    def allgather(self, sent: Any, received: Any, *, stream: Any) -> None:
        self._record("allgather", stream)
        received.copy_(torch.stack([sent, sent]))

    def gather(self, sent: Any, received: Any, root: int, *, stream: Any) -> None:
        self._record("gather", root, stream)
        if received is not None:
            received.copy_(torch.stack([sent, sent]))

    def broadcast(self, sent: Any, received: Any, root: int, *, stream: Any) -> None:
        self._record("broadcast", root, stream)

    def destroy(self) -> None:
        self.calls.append(("destroy",))

    def abort(self) -> None:
        self.calls.append(("abort",))


def connected(core: FakeCore, **options: Any) -> NcclCommunicator:
    values = {"unique_id": ID, "device": CPU, "deadline_s": 5.0, "core": core}
    return NcclCommunicator(INFO, **(values | options))


def test_collectives_go_to_the_library_and_give_the_shapes_of_the_contract() -> None:
    core = FakeCore()
    comm = connected(core)
    summed = torch.ones(3)
    assert comm.all_reduce(summed) is summed
    assert summed.tolist() == [2.0] * 3
    assert comm.all_gather(torch.zeros(4, 2)).shape == (2, 4, 2)
    gathered = comm.gather(torch.zeros(5), root=1)
    assert gathered is not None
    assert gathered.shape == (2, 5)
    assert comm.gather(torch.zeros(5), root=0) is None
    comm.broadcast(torch.zeros(1), root=1)
    comm.barrier()
    comm.close()
    assert [call[0] for call in core.calls] == [
        "init",
        "allreduce",
        "allgather",
        "gather",
        "gather",
        "broadcast",
        "allreduce",
        "destroy",
    ]
    assert core.calls[0] == ("init", 2, 1, ("id", ID))
    assert comm.counts == {
        "all_reduce": 1,
        "all_gather": 1,
        "gather": 2,
        "broadcast": 1,
        "barrier": 1,
    }


def test_a_strided_tensor_is_gathered_by_its_values() -> None:
    comm = connected(FakeCore())
    columns = torch.arange(6).reshape(2, 3).t()
    assert comm.all_gather(columns)[1].tolist() == [[0, 3], [1, 4], [2, 5]]
    comm.close()


def test_an_error_of_the_library_is_a_collective_fault_with_its_text_and_our_rank() -> None:
    comm = connected(FakeCore(fail=LibraryError("RemoteError (6): remote process exited", 6)))
    with pytest.raises(CollectiveFailed, match="remote process exited") as caught:
        comm.all_reduce(torch.ones(1))
    assert "all_reduce failed" in str(caught.value)
    assert "which rank is gone" in str(caught.value)
    assert caught.value.report.rank == 1
    comm.close()


@pytest.mark.parametrize("status", range(1, 8))
def test_every_result_code_has_a_mend_of_its_own(status: int) -> None:
    text = str(nccl_failed("broadcast", LibraryError("text", status)))
    others = [str(nccl_failed("broadcast", LibraryError("text", s))) for s in range(1, 8)]
    assert others.count(text) == 1


def test_an_unknown_error_still_says_where_to_look() -> None:
    assert "NCCL_DEBUG=INFO" in str(nccl_failed("broadcast", RuntimeError("?")))


def test_a_start_that_hangs_is_given_up_at_the_deadline() -> None:
    with pytest.raises(CollectiveFailed, match=r"not every rank came within 0\.05 s"):
        connected(FakeCore(hold=2.0), deadline_s=0.05)


def test_a_unique_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="limit 128 bytes"):
        connected(FakeCore(), unique_id=b"short")


def test_a_stuck_collective_aborts_the_communicator_reports_and_poisons_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck: list[Callable[[str, float], None]] = []

    class Watch:
        def __init__(self, device: torch.device, *, deadline_s: float, on_stuck: Any) -> None:
            stuck.append(on_stuck)

        def enqueued(self, operation: str) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(nccl, "StreamWatch", Watch)
    told: list[CollectiveFailed] = []
    core = FakeCore()
    comm = connected(core, on_stuck=told.append)
    stuck[0]("all_reduce", 5.5)
    assert core.calls[-1] == ("abort",)
    assert "all_reduce failed" in str(told[0])
    with pytest.raises(CollectiveFailed, match="not finished after"):
        comm.broadcast(torch.ones(1))
    comm.close()
    assert ("destroy",) not in core.calls


def test_a_closed_communicator_refuses_and_may_be_closed_twice() -> None:
    core = FakeCore()
    comm = connected(core)
    comm.close()
    comm.close()
    assert core.calls.count(("destroy",)) == 1
    with pytest.raises(CollectiveFailed, match="closed"):
        comm.all_reduce(torch.ones(1))


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(nccl.importlib, "import_module", missing)
    for call in (load_nccl, nccl_version, new_unique_id):
        with pytest.raises(NcclUnavailable, match=r"install the \[cuda\] extra"):
            call()


def test_a_package_without_the_library_is_unavailable_not_a_failed_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_library() -> None:
        raise RuntimeError('Failure finding "libnccl.so.2"')

    monkeypatch.setattr(nccl, "load_nccl", lambda: SimpleNamespace(get_unique_id=no_library))
    with pytest.raises(NcclUnavailable, match="install nvidia-nccl"):
        new_unique_id()


@needs_nccl4py
def test_the_real_library_says_its_version() -> None:
    assert nccl_version()[0].isdigit()
    assert "cuda" in nccl_version()


@needs_nccl4py
def test_the_real_library_makes_different_unique_ids_without_a_gpu() -> None:
    first, second = new_unique_id(), new_unique_id()
    assert len(first) == len(second) == UNIQUE_ID_BYTES
    assert first != second
    assert bytes(load_nccl().UniqueId.from_bytes(first)) == first


@needs_nccl4py
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the start succeeds")
def test_the_real_library_without_a_gpu_fails_in_our_words() -> None:
    alone = RankInfo(rank=0, world_size=1, local_rank=0, local_world_size=1, host="h", pid=9)
    with pytest.raises(CollectiveFailed, match="communicator start failed") as caught:
        NcclCommunicator(alone, unique_id=new_unique_id(), device=CPU, deadline_s=30)
    assert "rank 0 of 1" in str(caught.value)
