"""Rung by measured acceptance: one or two drafts for batches of 9 to 16.

The static ladder gives these widths one draft. A second one pays when acceptance is high enough:
its gain in tokens per verify, 1 + p1 p2 / (1 + p1), must reach ENTER (the measured price of the
wider verify), and it stays until the gain falls under LEAVE. p2 can only be seen by running two
drafts, so a probe does that when p2 was never seen, when a slow average of p1 rose since the last
look, or after a long time. The rung never goes below the ladder.

One sample = one flush of `accept_buckets`. Nothing here raises on odd numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.accept_buckets import (
    AcceptBuckets,
    AcceptFlush,
    p2cond_from,
    token_ratio,
)
from phalanx.proposers.policy.capacity import step_depth, why_plain
from phalanx.proposers.policy.ladder import Ladder
from phalanx.proposers.policy.levers import is_present, positive_or
from phalanx.proposers.policy.policy import Decision, PolicyView, StepOutcome

BAND: Final = range(9, 17)
"""The widths the rung decides for."""

DEEP_DRAFTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSettings:
    """Thresholds of the rung; the defaults are the reference's measured ones."""

    enter: float = 1.32
    leave: float = 1.30
    alpha: float = 0.5
    """Weight of a flush in the averages that decide (about two flushes)."""
    alpha_slow: float = 0.15
    """Weight of a flush in the average that triggers a probe (about seven)."""
    probe_ticks: float = 2048
    """Flushes after which a probe is due anyway."""
    p1_trigger: float = 0.08
    """Rise of the slow p1 since the last depth flush that makes a probe due."""
    disabled: bool = False

    @classmethod
    def resolve(
        cls,
        *,
        enter: str | None = None,
        leave: str | None = None,
        alpha: str | None = None,
        alpha_slow: str | None = None,
        probe_ticks: str | None = None,
        p1_trigger: str | None = None,
        static_rung: str | None = None,
        explicit_ladder: bool = False,
    ) -> RungSettings:
        """Resolve MTP_RUNG_* (finite and above zero, else the default) and MTP_STATIC_RUNG
        (presence). An explicit ladder pins the rung as well."""
        base = cls()
        return cls(
            enter=positive_or(enter, base.enter),
            leave=positive_or(leave, base.leave),
            alpha=min(1.0, positive_or(alpha, base.alpha)),
            alpha_slow=min(1.0, positive_or(alpha_slow, base.alpha_slow)),
            probe_ticks=positive_or(probe_ticks, base.probe_ticks),
            p1_trigger=positive_or(p1_trigger, base.p1_trigger),
            disabled=is_present(static_rung) or explicit_ladder,
        )


def _blend(old: float | None, sample: float, alpha: float) -> float:
    """Exponential average whose first sample seeds it."""
    return sample if old is None else alpha * sample + (1.0 - alpha) * old


class AdaptiveRung:
    """The rung's state. Written by the scheduler only."""

    __slots__ = (
        "_last_probe",
        "_p1",
        "_p1_at_decision",
        "_p1_slow",
        "_p2",
        "deep",
        "flips",
        "ladder",
        "settings",
        "tick",
    )

    def __init__(self, ladder: Ladder, *, settings: RungSettings | None = None) -> None:
        self.ladder = ladder
        self.settings = settings if settings is not None else RungSettings()
        self.deep = False
        """The state: two drafts pay."""
        self.flips = 0
        self.tick = 0
        """Flushes seen."""
        self._p1: float | None = None
        self._p1_slow: float | None = None
        self._p2: float | None = None
        self._p1_at_decision = 0.0
        self._last_probe = 0

    @property
    def ratio(self) -> float | None:
        """Token ratio of the fast averages; None until a depth flush was seen."""
        if self._p1 is None or self._p2 is None:
            return None
        return token_ratio(self._p1, self._p2)

    def next_state(self, *, deep: bool, ratio: float) -> bool:
        """Whether two drafts pay, with the dead band between LEAVE and ENTER."""
        return ratio >= (self.settings.leave if deep else self.settings.enter)

    def observe(self, width: int, *, k_drafts: int, p1: float, mean_accepted: float) -> str | None:
        """Take one flush; return the line to log when the state flips, else None.

        Ignored: disabled, a width outside the band, a p1 or mean that is no finite number >= 0.
        """
        usable = math.isfinite(p1) and math.isfinite(mean_accepted) and min(p1, mean_accepted) >= 0
        if self.settings.disabled or width not in BAND or not usable:
            return None
        p1 = min(p1, 1.0)
        self._p1 = _blend(self._p1, p1, self.settings.alpha)
        self._p1_slow = _blend(self._p1_slow, p1, self.settings.alpha_slow)
        self.tick += 1
        if k_drafts < DEEP_DRAFTS:
            return None
        self._last_probe = self.tick
        self._p1_at_decision = self._p1_slow
        p2cond = p2cond_from(p1, mean_accepted)
        if p2cond is None:
            return None
        self._p2 = _blend(self._p2, p2cond, self.settings.alpha)
        ratio = token_ratio(self._p1, self._p2)
        deep = self.next_state(deep=self.deep, ratio=ratio)
        if deep == self.deep:
            return None
        self.deep = deep
        self.flips += 1
        return (
            f"adaptive rung now {DEEP_DRAFTS if deep else 1} drafts n={width} ratio={ratio:.3f} "
            f"p1={self._p1:.3f} p2cond={self._p2:.3f} flips={self.flips}"
        )

    def probe_due(self) -> bool:
        """Whether the next step in the band should look at the second draft."""
        if self._p2 is None:
            return True
        rise = (self._p1_slow or 0.0) - self._p1_at_decision
        waited = self.tick - self._last_probe
        return rise >= self.settings.p1_trigger or waited >= self.settings.probe_ticks

    def drafts_for(self, width: int, num_drafts: int) -> int:
        """Drafts for `width` streams: the ladder's count, lifted to 2 in the band."""
        base = self.ladder.drafts_for(width, num_drafts)
        if self.settings.disabled or self.ladder.disabled or num_drafts < DEEP_DRAFTS:
            return base
        if width in BAND and (self.deep or self.probe_due()):
            return max(base, DEEP_DRAFTS)
        return base


class RungPolicy:
    """Ladder, accept buckets and adaptive rung as one policy."""

    __slots__ = ("_buckets", "last_flush", "rung")

    def __init__(self, rung: AdaptiveRung, *, buckets: AcceptBuckets | None = None) -> None:
        self.rung = rung
        self._buckets = buckets if buckets is not None else AcceptBuckets()
        self.last_flush: AcceptFlush | None = None
        """The latest full window, for the debug line."""

    def decide(self, view: PolicyView) -> Decision:
        """Return the rung's depth for the active width, clamped to the slots."""
        plain = why_plain(view)
        if plain is not None:
            return Decision(depth=0, reason=plain)
        num_drafts = view.limits.num_drafts
        drafts = self.rung.drafts_for(view.width, num_drafts)
        depth = step_depth(view, drafts)
        lifted = drafts > self.rung.ladder.drafts_for(view.width, num_drafts)
        if not lifted:
            return Decision(depth=depth, reason="ladder")
        if depth < drafts:
            return Decision(depth=depth, reason="rung lift cut by slot capacity")
        if self.rung.deep:
            return Decision(depth=depth, reason="rung: two drafts pay")
        return Decision(depth=depth, reason="rung probe", probing=True)

    def observe(self, outcome: StepOutcome) -> None:
        """Count the step's verifies; hand a fresh full window to the rung."""
        for stream in outcome.streams:
            flush = self._buckets.record(
                outcome.width,
                depth=stream.num_drafts,
                accepted=stream.num_accepted,
                first_matched=stream.num_accepted >= 1,
                now_s=outcome.now_s,
            )
            if flush is None:
                continue
            self.last_flush = flush
            if flush.fresh:
                self.rung.observe(
                    flush.width,
                    k_drafts=flush.k_drafts,
                    p1=flush.p1,
                    mean_accepted=flush.mean_accepted,
                )
