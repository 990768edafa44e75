"""Both ends of liveness over real sockets, in one process; faults are recorded.

Deaths of real processes are in tests/multirank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from phalanx.ep.commands import Command
from phalanx.ep.faults import (
    AgreementFailed,
    CollectiveFailed,
    EPFault,
    RankDesync,
    RankFailed,
    RankLost,
    RankStopped,
    RendezvousFailed,
)
from phalanx.ep.liveness import LivenessClient
from phalanx.ep.liveness_server import LivenessServer
from phalanx.ep.topology import EPConfig, RankInfo

TOKEN = "token-of-this-job"
WAIT_S = 20


class Recorder:
    """on_fault that keeps the fault."""

    def __init__(self) -> None:
        self.fault: EPFault | None = None
        self.count = 0
        self.came = threading.Event()

    def __call__(self, fault: EPFault) -> None:
        self.fault = fault
        self.count += 1
        self.came.set()

    def wait(self) -> EPFault:
        assert self.came.wait(WAIT_S), "no fault arrived"
        assert self.fault is not None
        return self.fault


def info(rank: int, world_size: int = 3, pid: int | None = None) -> RankInfo:
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        host=f"host{rank}",
        pid=os.getpid() if pid is None else pid,
        launcher="spawn",
    )


def config(**changes: Any) -> EPConfig:
    values = {"heartbeat_s": 0.05, "silence_deadline_s": 30, "startup_deadline_s": 20}
    return EPConfig(**(values | changes))


class Job:
    """A server and its clients."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.heard: dict[int, Recorder] = {}

    def server(self, *, world_size: int = 3, **changes: Any) -> LivenessServer:
        self.heard[0] = Recorder()
        server = LivenessServer(
            info(0, world_size), config(**changes), token=TOKEN, on_fault=self.heard[0]
        )
        self._stack.callback(server.close)
        return server

    def client(
        self, server: LivenessServer, rank: int, *, token: str = TOKEN, **changes: Any
    ) -> LivenessClient:
        self.heard[rank] = Recorder()
        client = LivenessClient(
            info(rank, server.info.world_size),
            config(**changes),
            token=token,
            on_fault=self.heard[rank],
            address=("127.0.0.1", server.port),
        )
        self._stack.callback(client.close)
        return client


@pytest.fixture
def job() -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(stack)


def vanish(client: LivenessClient) -> None:
    """What the kernel does to the connection of a killed process."""
    client._head.line.sock.shutdown(socket.SHUT_RDWR)


def until(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("condition not met")


def test_a_lost_rank_is_named_to_every_other_rank(job: Job) -> None:
    server = job.server()
    one, two = job.client(server, 1), job.client(server, 2)
    server.wait_for_peers(WAIT_S)
    two.command(812, Command.MTP_PROPOSE)
    two.phase("propose")
    vanish(two)
    for rank in (0, 1):
        fault = job.heard[rank].wait()
        assert isinstance(fault, RankLost)
        text = str(fault)
        for part in (
            "rank 2 of 3",
            "host host2",
            f"pid {os.getpid()}",
            "seq 812",
            "command MTP_PROPOSE",
            "phase propose",
        ):
            assert part in text, (part, text)
    assert one.cause is not None


def test_without_a_shared_page_the_last_heartbeat_is_named(job: Job) -> None:
    server = job.server(world_size=2)
    job.heard[1] = Recorder()
    far = LivenessClient(
        info(1, 2, pid=2**22 + 1),  # no such process here, as for a rank on another host
        config(),
        token=TOKEN,
        on_fault=job.heard[1],
        address=("127.0.0.1", server.port),
    )
    far.command(11, Command.FORWARD)
    far.phase("verify")
    until(lambda: server.statuses()[1].phase == "verify")
    vanish(far)
    assert "seq 11, command FORWARD, phase verify" in str(job.heard[0].wait())
    far.close()


def test_a_silent_rank_is_named_within_the_deadline(job: Job) -> None:
    server = job.server(world_size=2, silence_deadline_s=0.6)
    job.client(server, 1, heartbeat_s=14, silence_deadline_s=30)  # one heartbeat, then nothing
    fault = job.heard[0].wait()
    assert isinstance(fault, RankStopped)
    assert "rank 1 of 2" in str(fault)
    assert "silence_deadline_s=0.6" in str(fault)
    assert isinstance(job.heard[1].wait(), RankStopped)


def test_a_silent_rank_0_is_named_by_workers(job: Job) -> None:
    server = job.server(world_size=2, heartbeat_s=14, silence_deadline_s=30)
    job.client(server, 1, silence_deadline_s=0.6)
    fault = job.heard[1].wait()
    assert isinstance(fault, RankStopped)
    assert "rank 0 of 2" in str(fault)


def test_a_failing_worker_gets_its_own_fault_back_with_where_it_was(job: Job) -> None:
    server = job.server()
    one = job.client(server, 1)
    job.client(server, 2)
    server.wait_for_peers(WAIT_S)
    one.command(9, Command.FORWARD)
    one.phase("forward")
    cause = one.fail(RankDesync("differs"))
    assert isinstance(cause, RankDesync)
    for rank in (0, 2):
        heard = job.heard[rank].wait()
        assert isinstance(heard, RankDesync)
        assert "rank 1 of 3 (host host1" in str(heard)
        assert "seq 9, command FORWARD, phase forward" in str(heard)


def test_any_exception_becomes_a_fault_of_its_rank(job: Job) -> None:
    server = job.server(world_size=2)
    job.client(server, 1)
    server.wait_for_peers(WAIT_S)
    cause = server.fail(ValueError("bad shape"))
    assert isinstance(cause, RankFailed)
    assert "rank 0 of 2" in str(cause)
    assert "ValueError: bad shape" in str(job.heard[1].wait())


def test_a_broken_collective_waits_for_the_death_that_broke_it(job: Job) -> None:
    server = job.server()
    one, two = job.client(server, 1), job.client(server, 2)
    server.wait_for_peers(WAIT_S)
    failed: list[EPFault] = []
    thread = threading.Thread(
        target=lambda: failed.append(one.fail(CollectiveFailed("connection closed")))
    )
    thread.start()
    until(lambda: server._held is not None)
    vanish(two)
    thread.join(WAIT_S)
    assert isinstance(failed[0], RankLost)
    assert failed[0].report.rank == 2


def test_a_broken_collective_alone_says_where_every_rank_is(job: Job) -> None:
    server = job.server(world_size=2)
    one = job.client(server, 1)
    server.wait_for_peers(WAIT_S)
    server.command(4, Command.FORWARD)
    one.command(3, Command.NOOP)
    one.phase("idle")
    cause = one.fail(CollectiveFailed("timed out"))
    assert isinstance(cause, CollectiveFailed)
    assert "rank 0 seq 4 FORWARD" in str(cause)
    assert "rank 1 seq 3 NOOP phase idle" in str(cause)


def test_only_the_first_fault_is_handed_on(job: Job) -> None:
    server = job.server()
    one, two = job.client(server, 1), job.client(server, 2)
    server.wait_for_peers(WAIT_S)
    first = one.fail(RankFailed("first"))
    two.fail(RankFailed("second"))
    assert "first" in str(first)
    assert "first" in str(job.heard[0].wait())
    assert [job.heard[rank].count for rank in (0, 1, 2)] == [1, 1, 1]


def test_leaving_with_a_farewell_is_no_death(job: Job) -> None:
    server = job.server()
    one, two = job.client(server, 1), job.client(server, 2)
    server.wait_for_peers(WAIT_S)
    for client in (one, two):
        client.checked()
        client.checked()
        client.close()
    assert server.wait_for_farewells(WAIT_S) == []
    assert sum(status.digest_checks for status in server.statuses().values()) == 4
    assert [job.heard[rank].count for rank in (0, 1, 2)] == [0, 0, 0]


def test_rank_0_leaving_with_a_farewell_is_no_death(job: Job) -> None:
    server = job.server(world_size=2)
    one = job.client(server, 1)
    server.wait_for_peers(WAIT_S)
    server.close()
    until(lambda: one._head.has_left)
    assert job.heard[1].count == 0


def test_a_worker_can_ask_for_rank_0s_fields(job: Job) -> None:
    server = job.server(world_size=2)
    one = job.client(server, 1)
    server.serve_fields({7: {"slot 0 length": 12}}.get)
    assert one.fields_of_head(7) == {"slot 0 length": 12}
    assert one.fields_of_head(8) is None


def test_missing_ranks_are_named_at_the_deadline(job: Job) -> None:
    server = job.server()
    job.client(server, 1)
    with pytest.raises(RendezvousFailed, match=r"never came: \[2\]"):
        server.wait_for_peers(0.5)


def test_a_second_process_of_the_same_rank_is_refused(job: Job) -> None:
    server = job.server()
    job.client(server, 1)
    with pytest.raises(AgreementFailed, match="two processes are rank 1"):
        job.client(server, 1)
    assert isinstance(job.heard[0].wait(), AgreementFailed)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", 1 << 31) + b"x",
        struct.pack("<I", 3) + b"abc",
        b"",
    ],
)
def test_strangers_are_turned_away_and_harm_nobody(job: Job, data: bytes) -> None:
    server = job.server(world_size=2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # closed with something still unread
            assert stranger.recv(100) == b""
    job.client(server, 1)
    server.wait_for_peers(WAIT_S)
    assert job.heard[0].count == 0


def test_a_worker_of_another_job_is_turned_away(job: Job) -> None:
    server = job.server(world_size=2)
    with pytest.raises(RendezvousFailed, match="did not answer"):
        job.client(server, 1, token="token of another job")
    job.client(server, 1)
    server.wait_for_peers(WAIT_S)


def test_a_server_that_is_not_there_is_an_error_in_words(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RendezvousFailed, match="cannot reach rank 0's liveness port"):
        LivenessClient(
            info(1), config(), token=TOKEN, on_fault=Recorder(), address=("127.0.0.1", port)
        )


def test_a_world_of_one_needs_no_socket(job: Job) -> None:
    server = job.server(world_size=1)
    assert server.port == 0
    server.wait_for_peers(0.1)
    assert server.wait_for_farewells(0.1) == []
    assert isinstance(server.fail(ValueError("x")), RankFailed)
    assert job.heard[0].count == 1
