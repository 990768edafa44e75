"""Microseconds of one whole policy decision: depth, D-Cut, verify order, graph key; one JSON line.

What the scheduler runs on the host before each verify, with the real parts: the controller over a
ladder with online prices, D-Cut over the drafter's confidences, the canonical order, the chunks
and the graph key. Between two decisions the step's outcome is fed back (timed apart as
`observe_us`). Medians; the widths take turns, so whatever else the machine does hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from phalanx.proposers.policy.controller import Controller, ControllerSettings
from phalanx.proposers.policy.cost_online import OnlineSource
from phalanx.proposers.policy.dcut import DcutSettings, chunk_ranges, plan
from phalanx.proposers.policy.ladder import Ladder, LadderPolicy, RungTable
from phalanx.proposers.policy.objective import Objective, ObjectiveKind
from phalanx.proposers.policy.policy import (
    UNLIMITED,
    PolicyView,
    SpecLimits,
    StepOutcome,
    StreamOutcome,
)
from phalanx.runtime.verify_key import KeyGate, verify_batch_order, verify_graph_key

WIDTHS = (1, 8, 64)
NUM_DRAFTS = 3
PARTS = ("controller", "dcut", "order", "key")


class Serve:
    """One simulated serve of a fixed width, whose decisions are timed part by part."""

    def __init__(self, width: int, *, seed: int) -> None:
        self.width = width
        self.rng = random.Random(seed)
        ladder = Ladder(table=RungTable.from_upper_bounds(((128, NUM_DRAFTS),)))
        self.controller = Controller(
            LadderPolicy(ladder),
            cost=OnlineSource(max_k=NUM_DRAFTS),
            settings=ControllerSettings(objective=Objective(kind=ObjectiveKind.THROUGHPUT)),
        )
        self.slots = tuple(range(width))
        self.view = PolicyView(
            stream_ids=self.slots,
            pending_drafts=(NUM_DRAFTS,) * width,
            slots=self.slots,
            capacities=(UNLIMITED,) * width,
            limits=SpecLimits(num_drafts=NUM_DRAFTS, max_seqs=128),
        )
        # Wide enough that D-Cut has work at every width: it is off above 8 streams by default.
        self.dcut = DcutSettings(max_seqs=128, row_budget=4 * width)
        self.gate = KeyGate()
        self.decision_us: list[float] = []
        self.observe_us: list[float] = []
        self.parts_us: dict[str, list[float]] = {part: [] for part in PARTS}

    def step(self) -> None:
        """One decision (timed), its simulated outcome, and its observation (timed)."""
        lps = [[-self.rng.expovariate(2.0) for _ in range(NUM_DRAFTS)] for _ in range(self.width)]
        clock = time.perf_counter_ns
        started = clock()
        decision = self.controller.decide(self.view)
        decided = clock()
        depth = decision.depth
        if depth > 0:
            cut = plan(self.view.pending_drafts, lps, k_drafts=depth, settings=self.dcut)
            after_cut = clock()
            canonical = self.gate.canonical_assignment(self.width)
            order = verify_batch_order(self.slots, cut.rows, canonical=canonical)
            chunks = chunk_ranges(order.rows)
            after_order = clock()
            slots = [self.slots[index] for index in order.indices]
            for start, end in chunks:
                verify_graph_key(slots[start:end], order.rows[start:end])
            ended = clock()
            marks = (started, decided, after_cut, after_order, ended)
            self.decision_us.append((ended - started) / 1000.0)
            for part, begin, end in zip(PARTS, marks, marks[1:], strict=False):
                self.parts_us[part].append((end - begin) / 1000.0)
        outcome = self._outcome(depth)
        started = clock()
        self.controller.observe(outcome)
        if depth > 0:
            self.observe_us.append((clock() - started) / 1000.0)

    def _outcome(self, depth: int) -> StepOutcome:
        streams: list[StreamOutcome] = []
        for slot in self.slots:
            run = 0
            while run < depth and self.rng.random() < 0.8:
                run += 1
            streams.append(
                StreamOutcome(
                    stream_id=slot,
                    num_drafts=depth,
                    num_accepted=run,
                    num_emitted=run + 1,
                    slot=slot,
                )
            )
        wall_s = 0.020 + 0.002 * depth
        return StepOutcome(depth=depth, wall_s=wall_s, streams=tuple(streams))


def run_policy(*, steps: int, warm_up: int = 20, seed: int = 0) -> dict[str, Any]:
    """Time `steps` decisions at every width; returns the figures that are printed."""
    serves = {width: Serve(width, seed=seed) for width in WIDTHS}
    for index in range(warm_up + steps):
        for serve in serves.values():
            if index == warm_up:
                serve.decision_us.clear()
                serve.observe_us.clear()
                for timed in serve.parts_us.values():
                    timed.clear()
            serve.step()

    def median(values: Sequence[float]) -> float:
        return round(statistics.median(values), 2) if values else 0.0

    return {
        "decision_us": {str(n): median(serve.decision_us) for n, serve in serves.items()},
        "fastest_us": {str(n): round(min(s.decision_us), 2) for n, s in serves.items()},
        "parts_us": {
            str(n): {part: median(values) for part, values in serve.parts_us.items()}
            for n, serve in serves.items()
        },
        "observe_us": {str(n): median(serve.observe_us) for n, serve in serves.items()},
        "config": {"num_drafts": NUM_DRAFTS, "steps": steps, "controller": "production"},
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Time and print."""
    parser = argparse.ArgumentParser(prog="bench_policy", description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=400, help="timed decisions per width")
    parser.add_argument("--json", action="store_true", help="one JSON line (always)")
    options = parser.parse_args(argv)
    if options.steps < 1:
        parser.error(f"nothing to time (--steps {options.steps}, limit at least 1)")
    print(json.dumps(run_policy(steps=options.steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
