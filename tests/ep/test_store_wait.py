"""Exchanges over a store: everybody's value, or the names of those who are late."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from phalanx.ep.faults import RendezvousFailed
from phalanx.ep.store_wait import exchange
from phalanx.ep.topology import RankInfo


def info(rank: int, world_size: int = 3) -> RankInfo:
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        host="h",
        pid=10 + rank,
    )


def file_store(path: Path, world_size: int = 3) -> Any:
    module: Any = torch.distributed
    return module.FileStore(str(path / "store"), world_size)


def test_every_rank_gets_every_value_in_rank_order(tmp_path: Path) -> None:
    results: dict[int, list[bytes]] = {}

    def one(rank: int) -> None:
        results[rank] = exchange(
            file_store(tmp_path), info(rank), name="x", value=b"%d" % rank, deadline_s=20
        )

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {rank: [b"0", b"1", b"2"] for rank in range(3)}


def test_alone_there_is_nothing_to_wait_for() -> None:
    assert exchange(None, info(0, 1), name="x", value=b"v", deadline_s=0.01) == [b"v"]


def test_late_ranks_are_named_at_the_deadline_and_said_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = file_store(tmp_path)
    store.set("warm-up/2", b"here")
    times = iter([0.0, 11.0, 22.0, 31.0])
    with caplog.at_level(logging.WARNING), pytest.raises(RendezvousFailed) as caught:
        exchange(
            store,
            info(0),
            name="warm-up",
            value=b"v",
            deadline_s=30,
            clock=lambda: next(times),
        )
    assert "ranks [1] did not reach 'warm-up'" in str(caught.value)
    assert "rank 0 of 3" in str(caught.value)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert "waiting for ranks [1] at 'warm-up', 11 s" in said[0]


def test_a_store_that_is_gone_is_an_error_in_words() -> None:
    class Gone:
        def set(self, key: str, value: bytes) -> None:
            raise RuntimeError("Broken pipe")

        def get(self, key: str) -> bytes:
            raise RuntimeError("Broken pipe")

        def add(self, key: str, value: int) -> int:
            raise RuntimeError("Broken pipe")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Broken pipe")

    with pytest.raises(RendezvousFailed, match="the store is gone while waiting for 'ready'"):
        exchange(Gone(), info(1), name="ready", value=b"", deadline_s=1)
