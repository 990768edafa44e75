"""Replay: what each policy would have delivered on a logged run.

A trace is the accepted run length of every verify, logged at depth L; a cost source prices the
steps. A step of depth k <= L over n streams reads n consecutive entries (the trace is cycled) and
emits 1 + min(a, k) tokens for each; a plain step emits one each and reads nothing. The run stops
once enough tokens were emitted. The policies are the real ones, driven through `Policy`; time is
simulated. Figures are tokens per millisecond.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.chain import MAX_POSITIONS
from phalanx.proposers.policy.cost_sources import CostSource
from phalanx.proposers.policy.ladder import DEFAULT_MAX_SEQS
from phalanx.proposers.policy.policy import (
    UNLIMITED,
    Decision,
    Policy,
    PolicyView,
    SpecLimits,
    StepOutcome,
    StreamOutcome,
)

NUM_DEPTH_BINS: Final = MAX_POSITIONS + 1
MAX_STEPS: Final = 10_000_000


class ReplayError(ValueError):
    """A trace or a cost that cannot be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Accepted drafts of consecutive verifies, logged at one depth."""

    k_logged: int
    accepted: tuple[int, ...]
    """At least 0 each. An entry above k_logged (a step that ran deeper) reads as k_logged."""

    def __post_init__(self) -> None:
        """Raise ReplayError for an empty trace or an impossible run length."""
        bad = [run for run in self.accepted if run < 0]
        if not self.accepted or bad or self.k_logged < 1:
            raise ReplayError(
                f"trace refused (k_logged={self.k_logged}, entries={len(self.accepted)}, first "
                f"bad={bad[:1]}, limit k_logged >= 1, each entry at least 0) -- a verify accepts "
                "no fewer than 0 drafts -- log the run again"
            )

    @property
    def mean_accepted(self) -> float:
        """Mean accepted drafts of one logged verify."""
        return sum(self.accepted) / len(self.accepted)

    @property
    def relative_noise(self) -> float:
        """Sampling noise: standard error of mean tokens per verify, over that mean."""
        count, mean = len(self.accepted), self.mean_accepted
        if count < 2:
            return math.inf
        variance = sum((run - mean) ** 2 for run in self.accepted) / (count - 1)
        return math.sqrt(variance / count) / (1.0 + mean)

    def marginals(self) -> tuple[float, ...]:
        """Share of verifies that accepted at least j drafts, j = 1 .. k_logged."""
        count = len(self.accepted)
        return tuple(
            sum(1 for run in self.accepted if run >= position) / count
            for position in range(1, self.k_logged + 1)
        )

    def fixed_rate(self, n: int, k: int, *, cost: CostSource) -> float:
        """Tokens per millisecond of depth k for ever; 0.0 for a depth without a price."""
        price = cost.step(n, k)
        if price is None or k > self.k_logged:
            return 0.0
        tokens = 1.0 + sum(min(run, k) for run in self.accepted) / len(self.accepted)
        return n * tokens / price.ms

    def best_fixed(self, n: int, *, cost: CostSource) -> tuple[int, float]:
        """(depth, tokens per millisecond) of the best fixed depth, chosen in hindsight."""
        rates = [self.fixed_rate(n, k, cost=cost) for k in range(self.k_logged + 1)]
        best = max(range(len(rates)), key=lambda k: rates[k])
        return best, rates[best]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What one policy delivered."""

    tokens: int
    ms: float
    joules: float | None
    """None when a step of the run had no energy price."""
    steps: int
    plain_steps: int
    steps_by_depth: tuple[int, ...]
    """17 bins; the last holds everything deeper."""

    @property
    def tokens_per_ms(self) -> float:
        """The figure that is compared."""
        return self.tokens / self.ms if self.ms > 0.0 else 0.0

    @property
    def tokens_per_joule(self) -> float | None:
        """None without energy prices."""
        return self.tokens / self.joules if self.joules else None


class _Tape:
    """Cyclic reader of a trace."""

    __slots__ = ("_entries", "_next")

    def __init__(self, entries: Sequence[int]) -> None:
        self._entries = entries
        self._next = 0

    def read(self) -> int:
        entry = self._entries[self._next]
        self._next = (self._next + 1) % len(self._entries)
        return entry


def replay(
    policy: Policy, trace: Trace, *, cost: CostSource, n: int, budget_tokens: int
) -> ReplayResult:
    """Run `policy` over `trace` with n streams until `budget_tokens` tokens were emitted.

    The policy's depth is clamped to what the trace was logged at. `cost` is the truth of the
    simulation; give the policy a source of its own.

    Raises:
        ReplayError: n or the budget below 1, or a depth that `cost` cannot price.
    """
    if n < 1 or budget_tokens < 1:
        raise ReplayError(
            f"replay refused (n={n}, budget_tokens={budget_tokens}, limit at least 1) -- nothing "
            "would run -- give at least one stream and one token"
        )
    run = _Run(trace, cost=cost, n=n)
    while run.tokens < budget_tokens and run.steps < MAX_STEPS:
        run.step(policy)
    return run.result()


class _Run:
    """One replay under way: the simulated engine around a policy."""

    __slots__ = (
        "_bins",
        "_cost",
        "_joules",
        "_limits",
        "_ms",
        "_streams",
        "_tape",
        "_trace",
        "steps",
        "tokens",
    )

    def __init__(self, trace: Trace, *, cost: CostSource, n: int) -> None:
        self._trace = trace
        self._cost = cost
        self._tape = _Tape(trace.accepted)
        self._streams = tuple(range(n))
        self._limits = SpecLimits(num_drafts=trace.k_logged, max_seqs=max(n, DEFAULT_MAX_SEQS))
        self._bins = [0] * NUM_DEPTH_BINS
        self._ms = 0.0
        self._joules: float | None = 0.0
        self.tokens = 0
        self.steps = 0

    def step(self, policy: Policy) -> None:
        """Ask the policy, run the depth it names, tell it what happened."""
        n = len(self._streams)
        decision = policy.decide(
            PolicyView(
                stream_ids=self._streams,
                pending_drafts=(self._trace.k_logged,) * n,
                slots=self._streams,
                capacities=(UNLIMITED,) * n,
                limits=self._limits,
                context_depth=self.tokens // n,
                now_s=self._ms / 1000.0,
            )
        )
        depth = min(max(decision.depth, 0), self._trace.k_logged)
        price = self._cost.step(n, depth)
        if price is None:
            raise ReplayError(
                f"depth without a price (n={n}, k={depth}) -- the replay cannot time it -- give "
                "a cost for every depth up to the logged one"
            )
        results = tuple(_verify(stream, depth, self._tape) for stream in self._streams)
        self.tokens += sum(result.num_emitted for result in results)
        self.steps += 1
        self._ms += price.ms
        if self._joules is not None:
            self._joules = None if price.joules is None else self._joules + price.joules
        self._bins[min(depth, NUM_DEPTH_BINS - 1)] += 1
        policy.observe(
            StepOutcome(
                depth=depth,
                wall_s=price.ms / 1000.0,
                streams=results,
                joules=price.joules,
                pinned=decision.pinned,
                now_s=self._ms / 1000.0,
                reason=decision.reason,
            )
        )

    def result(self) -> ReplayResult:
        """What was delivered so far."""
        return ReplayResult(
            tokens=self.tokens,
            ms=self._ms,
            joules=self._joules,
            steps=self.steps,
            plain_steps=self._bins[0],
            steps_by_depth=tuple(self._bins),
        )


def _verify(stream: int, depth: int, tape: _Tape) -> StreamOutcome:
    accepted = min(tape.read(), depth) if depth > 0 else 0
    return StreamOutcome(
        stream_id=stream,
        num_drafts=depth,
        num_accepted=accepted,
        num_emitted=accepted + 1,
        slot=stream,
    )


class FixedDepth:
    """A policy that always runs the same depth: the yardstick, and a depth source."""

    __slots__ = ("_depth",)

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def decide(self, view: PolicyView) -> Decision:
        """The fixed depth, within the configured drafts."""
        return Decision(depth=min(self._depth, view.limits.num_drafts), reason="fixed depth")

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


def trace_from_counts(counts: Sequence[int], *, k_logged: int, seed: int) -> Trace:
    """Rebuild a trace from how often each run length occurred, in an order drawn from `seed`."""
    entries = [run for run, times in enumerate(counts) for _ in range(times)]
    random.Random(seed).shuffle(entries)
    return Trace(k_logged=k_logged, accepted=tuple(entries))


def trace_from_windows(windows: Iterable[Sequence[int]], *, k_logged: int) -> Trace:
    """Rebuild a trace from windows of counts (deepest run length first, as logged).

    Inside a window the outcomes are spread evenly: occurrence i of an outcome that came c times
    sits at (i + 0.5) / c of the window, ties to the deeper outcome.
    """
    entries: list[int] = []
    for window in windows:
        placed = [
            ((index + 0.5) / times, column)
            for column, times in enumerate(window)
            for index in range(times)
        ]
        entries += [k_logged - column for _, column in sorted(placed)]
    return Trace(k_logged=k_logged, accepted=tuple(entries))


PolicyFactory = Callable[[], Policy]


def run_replay(
    mechanisms: Mapping[str, PolicyFactory],
    trace: Trace,
    *,
    cost: CostSource,
    n: int,
    budget_tokens: int,
) -> dict[str, ReplayResult]:
    """Replay every mechanism on one trace, each from its own fresh state.

    Raises:
        ReplayError: as `replay`.
    """
    return {
        name: replay(build(), trace, cost=cost, n=n, budget_tokens=budget_tokens)
        for name, build in mechanisms.items()
    }
