"""Control plane beside a bare broadcast: what a command costs over the bytes it sends.

A round is one command from rank 0's encode until the last rank has received, decoded, compared and
folded it; the raw figure is one gloo broadcast of the same bytes in the same processes, from the
call until the last rank has them. The two alternate, every rank idle-waiting before each, and the
clock is the machine's (one host). Prints one JSON line.

    python benchmarks/bench_commands.py --ranks 2 --rounds 300
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.ep.comm.groups import broadcast_options, gloo_group
from phalanx.ep.commands import Forward, Message, MtpPropose, RowKind, Verdict, Want
from phalanx.ep.frames import FRAME_BYTES, encode
from phalanx.ep.rendezvous import LOOPBACK
from phalanx.ep.topology import EPConfig
from phalanx.launch.rank_main import Rank, make_sheet, open_rank
from phalanx.launch.ranks import who_am_i
from phalanx.launch.spawn import RankGroup

BAR = 1.5
WARM_UP = 30
SETTLE_S = 0.001


def forward(width: int) -> Forward:
    """A round of `width` sequences, each verifying three drafts, with the last round's verdict."""
    return Forward(
        slots=list(range(width)),
        rows=[4] * width,
        kinds=[RowKind.VERIFY] * width,
        starts=[700 + 13 * slot for slot in range(width)],
        new_blocks=[[slot] if slot % 4 == 0 else [] for slot in range(width)],
        tokens=[40_000 + row for row in range(4 * width)],
        wants=[Want.ARGMAX] * width,
        owners=[-1] * width,
        key=[4, width],
        verdicts=[Verdict(slot, 4, 2) for slot in range(width)],
    )


def propose() -> MtpPropose:
    """Three drafts for one sequence."""
    return MtpPropose(0, 41_234, 1_023, 3, 2, 3, [17], [Verdict(0, 4, 2)])


CASES: tuple[tuple[str, Message], ...] = (
    ("FORWARD, 1 sequence x 4 rows", forward(1)),
    ("MTP_PROPOSE, 1 sequence", propose()),
    ("FORWARD, 8 sequences x 4 rows", forward(8)),
    ("FORWARD, 32 sequences x 4 rows", forward(32)),
)


class Pair:
    """One case in one rank: a command and a raw broadcast of as many bytes, timed by turns."""

    def __init__(self, rank: Rank, group: Any, message: Message) -> None:
        encoded = encode(message, seq=1, digest=0, placement=0)
        self.num_bytes = FRAME_BYTES + len(encoded.spill)
        self.num_broadcasts = 2 if encoded.spill else 1
        self._rank = rank
        self._group = group
        self._message = message
        self._data = torch.zeros(self.num_bytes, dtype=torch.uint8)
        self._options = broadcast_options(deadline_s=60)

    def command(self) -> float:
        """One command; when it began (rank 0) or was folded (the others), in seconds."""
        rank = self._rank
        if rank.info.rank == 0:
            began = time.perf_counter()
            rank.channel.send(self._message, digest=rank.digest.value, placement=0)
            return began
        received = rank.channel.receive()
        if received.digest != rank.digest.value:
            raise ValueError(f"digests differ at seq {received.seq}")
        rank.digest.fold_command(received.seq, received.code, received.payload)
        return time.perf_counter()

    def broadcast(self) -> float:
        """One bare broadcast; when it began (rank 0) or had arrived (the others), in seconds."""
        began = time.perf_counter()
        self._group.broadcast([self._data], self._options).wait()
        return began if self._rank.info.rank == 0 else time.perf_counter()


def measure(rank: Rank, group: Any, message: Message, *, rounds: int) -> dict[str, Any]:
    """Both figures of one case; the same on every rank."""
    pair = Pair(rank, group, message)
    times = torch.zeros(2, rounds, dtype=torch.float64)
    for index in range(-WARM_UP, rounds):
        for column, act in enumerate((pair.command, pair.broadcast)):
            rank.comm.barrier()
            if rank.info.rank == 0:
                time.sleep(SETTLE_S)
            at = act()
            if index >= 0:
                times[column, index] = at
    every = rank.comm.all_gather(times)
    spans = (every[1:].amax(0) - every[0]) * 1e6
    control, raw = (sorted(column.tolist()) for column in spans)
    return {
        "bytes": pair.num_bytes,
        "broadcasts": pair.num_broadcasts,
        "round_control_us_p50": round(statistics.median(control), 1),
        "round_control_us_p90": round(control[int(0.9 * rounds)], 1),
        "raw_broadcast_us_p50": round(statistics.median(raw), 1),
        "raw_broadcast_us_p90": round(raw[int(0.9 * rounds)], 1),
        "ratio": round(statistics.median(control) / statistics.median(raw), 3),
    }


def as_rank(rounds: int) -> int:
    """One rank of the benchmark; rank 0 prints."""
    identity = who_am_i()
    rank = open_rank(
        EPConfig(),
        identity.info,
        meeting=identity.meeting,
        sheet=make_sheet(flags={}, settings={"rounds": str(rounds)}),
    )
    store = rank.joined.store
    if store is None:
        raise ValueError("one rank sends to nobody (ranks=1) -- start at least 2")
    group = gloo_group(store, identity.info, name="raw", deadline_s=60, address=LOOPBACK)
    cases = {name: measure(rank, group, message, rounds=rounds) for name, message in CASES}
    if identity.info.rank == 0:
        first = cases[CASES[0][0]]
        names = ("round_control_us_p50", "raw_broadcast_us_p50", "ratio")
        figures = {name: first[name] for name in names}
        head = {"bench": "commands", "ranks": identity.info.world_size, "rounds": rounds}
        print(json.dumps(head | figures | {"bar": BAR, "cases": cases}), flush=True)
    rank.ready("end")
    rank.close()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status; `argv` is the process's own by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=2, help="ranks on this host (default: 2)")
    parser.add_argument("--rounds", type=int, default=300, help="samples a case (default: 300)")
    parser.add_argument("--json", action="store_true", help="accepted; the output is always JSON")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.ranks < 2 or options.rounds < 10:
        parser.error("needs --ranks of at least 2 and --rounds of at least 10")
    if options.as_rank:
        return as_rank(options.rounds)
    command = [sys.executable, str(Path(__file__).resolve()), "--as-rank"]
    with RankGroup([*command, "--rounds", str(options.rounds)], options.ranks) as group:
        status = group.wait(deadline_s=300)
    if group.cause is not None:
        print(group.cause, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
