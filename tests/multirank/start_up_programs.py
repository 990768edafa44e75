"""How the ranks of test_start_up.py start; run as a module it is one rank under torchrun."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch

from phalanx.ep.meeting import Meeting
from phalanx.ep.topology import EPConfig, RankInfo
from phalanx.launch.rank_main import Rank, RankJob, make_sheet, run_rank
from phalanx.launch.ranks import who_am_i
from tests.support.ranks import RankStart

QUICK = EPConfig(startup_deadline_s=60, collective_deadline_s=30, silence_deadline_s=30)


def start_up(info: RankInfo, meeting: Meeting | None, **sheet: Any) -> dict[str, Any]:
    """Join, sum the ranks' numbers once, leave."""
    seen: dict[str, Any] = {}

    def load(rank: Rank) -> int:
        summed = rank.comm.all_reduce(torch.tensor([float(rank.info.rank + 1)]))
        seen["sum"] = summed.item()
        seen["kv_blocks"] = rank.kv_blocks
        return 0

    job = RankJob(load=load, coordinate=lambda rank, _: 0, handlers=lambda rank, _: {})
    sheet = {"flags": {}, "settings": {}} | sheet
    seen["code"] = run_rank(job, QUICK, info, meeting=meeting, sheet=make_sheet(**sheet))
    return seen


def alike(start: RankStart) -> dict[str, Any]:
    """Every rank is started alike; each has other KV blocks."""
    return start_up(start.info, start.meeting, max_kv_blocks=50 - start.info.rank)


def one_differs(start: RankStart, what: str) -> dict[str, Any]:
    """The last rank has another flag or setting."""
    is_last = start.info.rank == start.info.world_size - 1
    table = {"name_of_it": "theirs" if is_last else "ours"}
    return start_up(start.info, start.meeting, **{what: table})


def two_are_one(start: RankStart) -> dict[str, Any]:
    """Ranks 1 and 2 both believe that they are rank 1."""
    info = start.info
    if info.rank == 2:
        info = dataclasses.replace(info, rank=1, local_rank=1)
    return start_up(info, start.meeting)


def main() -> int:
    """One rank that a launcher started."""
    identity = who_am_i()
    seen = start_up(identity.info, identity.meeting)
    print(f"{identity.info.launcher} rank {identity.info.rank} sum {seen['sum']:g}", flush=True)
    return int(seen["code"])


if __name__ == "__main__":
    sys.exit(main())
