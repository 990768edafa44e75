"""One controller: speculate how deep, or decode plainly.

Every step it prices the depths that may run (`cost_sources`), estimates what each would emit from
the streams' acceptance (`acceptance`), and runs the best by the objective. Around that core:

    cost probe     a depth without a fresh price is run first (the shallowest such)
    dwell          plain decode must win several times running before it is run
    suspension     then it is kept for a number of tokens, and drafting gets a fair second look
    exploration    now and then one draft more is verified, to learn its acceptance

It wraps a depth source (ladder, rung, planner, block drafter), which names the depth speculation
would run after slot clamps; allowed are that depth and 0, or every depth up to it (`every_depth`).
One depth serves the whole batch. `decide` and `observe` are called by the scheduler alone.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from phalanx.proposers.policy.acceptance import (
    AcceptanceModel,
    AcceptanceSettings,
    BatchTokens,
    batch_tokens,
    prior_terms,
    rates_of,
)
from phalanx.proposers.policy.capacity import why_plain
from phalanx.proposers.policy.cost_online import CalibratedSource, OnlineSource
from phalanx.proposers.policy.cost_sources import CostSource, MeasuredSource, usable_ms
from phalanx.proposers.policy.cost_table import CostTable, StepCost
from phalanx.proposers.policy.objective import Candidate, Margins, Objective, choose
from phalanx.proposers.policy.policy import Decision, Policy, PolicyView, StepOutcome
from phalanx.proposers.policy.reprobe import DeepProbe, Exploration, Suspension

MAX_STREAMS_KEPT: Final = 64
"""Streams remembered beyond twice the batch before absent ones are forgotten."""

COST_PROBE: Final = "cost probe"
EXPLORATION: Final = "exploration"
DEEP_PROBE: Final = "deep probe"
"""Reasons that later steps look at."""


class ControllerMode(enum.Enum):
    """What the snapshot shows."""

    MTP = "mtp"
    SERIAL = "serial"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Constants of the controller; the defaults are the production ones."""

    objective: Objective
    margins: Margins = field(default_factory=lambda: Margins(suspend=0.05))
    dwell: int = 32
    """Plain choices running until plain is run; 1 = at once."""
    resume_after: int = 256
    """Plain tokens of the whole batch until drafting gets another look; 0 never suspends."""
    probe_steps: int = 16
    """Decisions of that look during which depth 0 is not an option."""
    soften: float = 0.25
    """What acceptance counts keep over a suspension."""
    explore_every: int = 32
    """Decisions of a stream until its first look one draft deeper; 0 never explores."""
    explore_max: int = 512
    explore_fade: float = 1.0
    """What the counts beyond the chosen depth keep at each look past it. They date from when the
    stream last ran that deep: below a cold prior of measured rates one unlucky stretch there can
    outvote every later look, and 0.5 lets the looks win. The chained cold prior is optimistic
    about unseen positions by itself and needs no fading (1): it would look too often."""
    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    every_depth: bool = False
    """Allow every depth up to the source's, not only that one and 0 (block drafters)."""
    tps_alpha: float = 0.3
    """Weight of a step in the delivered tokens per second."""

    def __post_init__(self) -> None:
        """Raise ValueError for counts below their least meaning or shares outside 0..1."""
        counts = {
            "dwell": (self.dwell, 1),
            "resume_after": (self.resume_after, 0),
            "probe_steps": (self.probe_steps, 0),
            "explore_every": (self.explore_every, 0),
            "explore_max": (self.explore_max, 0),
        }
        for name, (count, least) in counts.items():
            if count < least:
                raise ValueError(
                    f"controller setting out of range ({name}={count}, limit at least {least}) -- "
                    "it counts decisions or tokens -- use the default"
                )
        for name, share in (
            ("soften", self.soften),
            ("explore_fade", self.explore_fade),
            ("tps_alpha", self.tps_alpha),
        ):
            if not 0.0 <= share <= 1.0:
                raise ValueError(
                    f"controller setting out of range ({name}={share}, limit 0..1) -- it is a "
                    "share -- use the default"
                )


class _Stream:
    """What the controller knows of one stream."""

    __slots__ = ("exploration", "model", "suspension")

    def __init__(self, settings: ControllerSettings) -> None:
        self.model = AcceptanceModel(settings.acceptance)
        self.suspension = Suspension(
            resume_after=settings.resume_after, probe_steps=settings.probe_steps
        )
        self.exploration = Exploration(every=settings.explore_every, longest=settings.explore_max)


class Controller:
    """The controller as a policy. Written by the scheduler only."""

    __slots__ = (
        "_context",
        "_cost",
        "_deep_probe",
        "_entered_plain",
        "_incumbent",
        "_last",
        "_plain_wins",
        "_ran_plain",
        "_settings",
        "_shared",
        "_source",
        "_streams",
        "delivered_tps",
    )

    def __init__(
        self,
        source: Policy,
        *,
        cost: CostSource,
        settings: ControllerSettings,
        deep_probe: DeepProbe | None = None,
    ) -> None:
        """`source` names the speculative depth; `cost` prices steps and learns from them."""
        self._source = source
        self._cost = cost
        self._settings = settings
        self._deep_probe = deep_probe
        self._shared = AcceptanceModel(settings.acceptance)
        self._streams: dict[int, _Stream] = {}
        self._context = 0
        self._incumbent: int | None = None
        self._plain_wins = 0
        self._last: Decision | None = None
        self._ran_plain = False
        self._entered_plain = False
        self.delivered_tps = 0.0
        """Average tokens per second over steps; 0.0 before the first."""

    @property
    def mode(self) -> ControllerMode:
        """Probing during a cost probe, serial after a plain choice, else mtp."""
        if self._last is None:
            return ControllerMode.MTP
        if self._last.reason == COST_PROBE:
            return ControllerMode.PROBING
        return ControllerMode.SERIAL if self._last.depth == 0 else ControllerMode.MTP

    def take_entered_plain(self) -> bool:
        """True once per switch to plain decode: drop pending drafts, wait for the drafter."""
        entered, self._entered_plain = self._entered_plain, False
        return entered

    def retire(self, stream_id: int) -> None:
        """Forget a finished stream."""
        self._streams.pop(stream_id, None)

    def rates(self, stream_id: int, depth: int) -> list[float] | None:
        """Smoothed acceptance rates of a known stream at positions 1 .. `depth`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        return rates_of(
            stream.model, settings=self._settings.acceptance, shared=self._shared, depth=depth
        )

    def decide(self, view: PolicyView) -> Decision:
        """Return the depth of the coming step."""
        wanted = self._source.decide(view)
        if wanted.depth <= 0:
            plain = Decision(depth=0, reason=why_plain(view) or wanted.reason)
            return self._settle(plain)
        streams = self._present(view.stream_ids)
        self._context = view.context_depth
        # A depth nobody can price would only ever lose to 0: run the deepest that has a price.
        spec_k = min(wanted.depth, max(self._cost.max_k, 1))
        allowed = [0, *range(1 if self._settings.every_depth else spec_k, spec_k + 1)]
        pick = self._pick(view, streams, allowed, spec_k)
        if pick.depth == 0 and view.pinned:
            return self._settle(Decision(depth=spec_k, reason="pinned", pinned=True))
        self._note_pick(pick, streams)
        return self._settle(pick)

    def _settle(self, decision: Decision) -> Decision:
        """Remember the answer; notice the first plain one after a speculative one."""
        self._last = decision
        plain = decision.depth == 0
        if plain and not self._ran_plain:
            self._entered_plain = True
        self._ran_plain = plain
        return decision

    def _note_pick(self, pick: Decision, streams: Sequence[_Stream]) -> None:
        """Suspend on a chosen plain step; use up re-probe windows on a speculative one."""
        if pick.depth > 0:
            for stream in streams:
                if stream.suspension.probe_left > 0:
                    stream.suspension.probe_left -= 1
        elif not pick.probing:
            for stream in streams:
                stream.suspension.suspend()

    def _present(self, stream_ids: Sequence[int]) -> list[_Stream]:
        """The state of the batch's streams, made on first sight; long-absent ones are dropped."""
        known = self._streams
        if len(known) > 2 * len(stream_ids) + MAX_STREAMS_KEPT:
            here = set(stream_ids)
            known = {key: stream for key, stream in known.items() if key in here}
            self._streams = known
        found: list[_Stream] = []
        for stream_id in stream_ids:
            stream = known.get(stream_id)
            if stream is None:
                stream = known[stream_id] = _Stream(self._settings)
            found.append(stream)
        return found

    def _pick(
        self, view: PolicyView, streams: Sequence[_Stream], allowed: Sequence[int], spec_k: int
    ) -> Decision:
        """The rules in order: suspended, cost probe, no rates, best value, exploration."""
        if all(stream.suspension.suspended for stream in streams):
            return Decision(depth=0, reason="suspended")
        width = len(streams)
        cost = self._cost
        usable = [depth for depth in allowed if depth <= cost.max_k]
        if any(stream.suspension.probe_left > 0 for stream in streams):
            usable = [depth for depth in usable if depth > 0] or usable
        for depth in usable:
            if cost.needs_probe(width, depth):
                return Decision(depth=depth, reason=COST_PROBE, probing=True)
        prices = [(depth, cost.step(width, depth, context=view.context_depth)) for depth in usable]
        terms = prior_terms(self._settings.acceptance, shared=self._shared, depth=spec_k)
        tokens = batch_tokens([stream.model for stream in streams], terms, depth=spec_k)
        if tokens is None:
            return Decision(depth=spec_k, reason="no acceptance yet")
        candidates = _candidates(prices, tokens)
        if not candidates or cost.max_k < 1:
            return Decision(depth=spec_k, reason="no prices")
        best = self._choose(candidates)
        return self._explore(best, streams[0], usable)

    def _choose(self, candidates: Sequence[Candidate]) -> Decision:
        """The best candidate, a plain one only after `dwell` wins running."""
        settings = self._settings
        margins = settings.margins
        hysteresis = margins.deeper > 0.0 or margins.shallower > 0.0
        incumbent = self._incumbent if hysteresis else None
        best = choose(
            candidates, objective=settings.objective, margins=margins, incumbent=incumbent
        )
        reason = settings.objective.kind.value
        if best.depth > 0:
            self._plain_wins = 0
        else:
            self._plain_wins += 1
            drafting = [candidate for candidate in candidates if candidate.depth > 0]
            if self._plain_wins < settings.dwell and drafting:
                reason = f"outvoted plain {self._plain_wins}/{settings.dwell}"
                best = choose(
                    drafting, objective=settings.objective, margins=margins, incumbent=incumbent
                )
        self._incumbent = best.depth
        return Decision(depth=best.depth, reason=reason)

    def _explore(self, best: Decision, first: _Stream, usable: Sequence[int]) -> Decision:
        """One draft more when the first stream's schedule, or the deep probe, asks for it."""
        exploration = first.exploration
        due = exploration.due(best.depth)
        deeper = best.depth + 1
        if best.depth == 0 or deeper not in usable:
            return best
        if due:
            exploration.explored(best.depth)
            first.model.fade(deeper, self._settings.explore_fade)
            self._shared.fade(deeper, self._settings.explore_fade)
            return Decision(depth=deeper, reason=EXPLORATION, probing=True)
        if self._deep_probe is not None and self._deep_probe.due():
            return Decision(depth=deeper, reason=DEEP_PROBE, probing=True)
        return best

    def observe(self, outcome: StepOutcome) -> None:
        """Learn acceptance and cost from the step that ran."""
        self._source.observe(outcome)
        width = outcome.width
        if width == 0 or outcome.depth < 0:
            return
        verified = 0
        for result in outcome.streams:
            if result.num_drafts <= 0:
                continue
            verified += 1
            stream = self._streams.get(result.stream_id)
            if stream is not None:
                stream.model.observe(result.num_drafts, result.num_accepted)
            self._shared.observe(result.num_drafts, result.num_accepted)
        self._probe_note(outcome, verified)
        ms = outcome.wall_s * 1000.0
        if usable_ms(ms):
            if verified > 0 or outcome.depth == 0:
                self._cost.observe(
                    width, outcome.depth, ms=ms, joules=outcome.joules, context=self._context
                )
            self._deliver(max(outcome.num_emitted, 0) * 1000.0 / ms)
        if outcome.depth == 0 and not outcome.pinned:
            self._count_plain(outcome)

    def _probe_note(self, outcome: StepOutcome, verified: int) -> None:
        if self._deep_probe is None or verified == 0:
            return
        hits = sum(1 for result in outcome.streams if result.num_accepted > 0)
        last = self._last
        deep = last is not None and last.reason in (DEEP_PROBE, EXPLORATION)
        self._deep_probe.observe(hits / verified, deep=deep)

    def _deliver(self, tps: float) -> None:
        if not math.isfinite(tps):
            return
        if self.delivered_tps == 0.0:
            self.delivered_tps = tps
        else:
            self.delivered_tps += self._settings.tps_alpha * (tps - self.delivered_tps)

    def _count_plain(self, outcome: StepOutcome) -> None:
        """Advance every suspended stream by the batch's plain tokens; resume where it is over."""
        for result in outcome.streams:
            stream = self._streams.get(result.stream_id)
            if stream is None or not stream.suspension.plain_tokens(outcome.width):
                continue
            stream.model.soften(self._settings.soften)
            stream.exploration.reset()
            self._incumbent = None
            self._plain_wins = 0


def _candidates(
    prices: Sequence[tuple[int, StepCost | None]], tokens: BatchTokens
) -> list[Candidate]:
    """Every priced depth with what it is expected to emit."""
    return [
        Candidate(
            depth=depth, tokens=tokens.total[depth], slowest=tokens.slowest[depth], cost=price
        )
        for depth, price in prices
        if price is not None and price.ms > 0.0
    ]


def production_controller(
    source: Policy,
    *,
    objective: Objective,
    num_drafts: int,
    table: CostTable | None = None,
    every_depth: bool = False,
) -> Controller:
    """The controller as it is served: a measured table that follows the serve, else online prices.

    `source` names the speculative depth. `every_depth` for a block drafter whose width is not
    pinned by the user.
    """
    cost: CostSource = OnlineSource(max_k=num_drafts)
    if table is not None:
        cost = CalibratedSource(MeasuredSource(table))
    settings = ControllerSettings(objective=objective, every_depth=every_depth)
    return Controller(source, cost=cost, settings=settings)
