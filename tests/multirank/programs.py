"""What the ranks of these tests do; each is `function(start, *args)` of tests/support/ranks.py."""

from __future__ import annotations

import time
from typing import Any

import torch

from phalanx.ep.commands import Command, Forward, Message, Noop, Shutdown, Verdict
from phalanx.ep.topology import EPConfig
from phalanx.launch.rank_main import Rank, RankJob, make_sheet, open_rank, run_rank
from tests.support.ranks import RankStart


def quick_config(**changes: Any) -> EPConfig:
    """Deadlines short enough for a test and long enough for a busy machine."""
    values: dict[str, Any] = {
        "startup_deadline_s": 60,
        "command_deadline_s": 20,
        "collective_deadline_s": 20,
        "heartbeat_s": 0.2,
        "silence_deadline_s": 20,
    }
    return EPConfig(**(values | changes))


def joined(start: RankStart, config: EPConfig | None = None, **sheet: Any) -> Rank:
    """A rank that has joined."""
    return open_rank(
        config or quick_config(),
        start.info,
        meeting=start.meeting,
        sheet=make_sheet(**({"flags": {}, "settings": {}} | sheet)),
    )


def forward(step: int, *, rows: int = 1, width: int = 1) -> Forward:
    """A FORWARD whose tokens count up from `step`."""
    return Forward(
        slots=list(range(width)),
        rows=[rows] * width,
        kinds=[1] * width,
        starts=[step] * width,
        new_blocks=[[] for _ in range(width)],
        tokens=[(step + row) % 1000 for row in range(rows * width)],
        wants=[1] * width,
        owners=[-1] * width,
    )
