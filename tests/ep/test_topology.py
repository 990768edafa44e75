"""Ranks and deadlines that cannot be."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from phalanx.ep.topology import EPConfig, RankInfo

GOOD: dict[str, Any] = {
    "rank": 1,
    "world_size": 2,
    "local_rank": 1,
    "local_world_size": 2,
    "host": "h",
    "pid": 3,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 2}, "rank=2, world_size=2"),
        ({"rank": -1}, "rank=-1"),
        ({"world_size": 0}, "world_size=0"),
        ({"local_rank": 2}, "local_rank=2"),
        ({"local_world_size": 3}, "local_world_size=3"),
        ({"launcher": "magic"}, "launcher='magic'"),
    ],
)
def test_an_impossible_rank_is_refused(changes: dict[str, Any], said: str) -> None:
    assert str(RankInfo(**GOOD)) == "rank 1 of 2 (host h, pid 3)"
    with pytest.raises(ValueError, match=said):
        RankInfo(**(GOOD | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"startup_deadline_s": 0}, "startup_deadline_s=0"),
        ({"collective_deadline_s": -1.0}, "collective_deadline_s=-1.0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s=nan"),
        ({"heartbeat_s": 6.0}, "silence_deadline_s=10.0"),
        ({"command_transport": "pigeon"}, "supported: local, gloo, nccl"),
        ({"backend": "mpi"}, "supported: local, gloo, nccl, nccl-direct"),
    ],
)
def test_an_impossible_configuration_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EPConfig(**changes)


def test_neither_can_be_changed_later() -> None:
    for thing, name in ((RankInfo(**GOOD), "rank"), (EPConfig(), "heartbeat_s")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 0)
