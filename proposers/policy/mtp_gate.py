"""Speculate or decode plainly, by delivered throughput.

The gate never models cost or acceptance: it times windows of 16 steps in the running mode,
probes the other mode now and then with one window, and switches after two confirmed losses
outside a noise margin. Tokens per second of the whole batch is the only currency: a plain step
over n streams is charged n tokens, a verify step what all streams committed.

Estimates go stale (kept, but unable to win) when the context grows by a factor of two or the
batch width leaves its power-of-two bucket. Time comes in as step durations; implausible ones are
ignored. Written by the scheduler only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.levers import count_or
from phalanx.proposers.policy.policy import Decision, Policy, PolicyView, StepOutcome

WINDOW_STEPS: Final = 16
SWITCH_DWELL_WINDOWS: Final = 2
TPS_ALPHA: Final = 0.3
MARGIN_REL_FLOOR: Final = 0.05
REMEASURE_DEPTH_FACTOR: Final = 2
REMEASURE_DEPTH_FLOOR: Final = 512
DEFAULT_REPROBE_TOKENS: Final = 256
DEFAULT_REFRESH_TOKENS: Final = 1024
PLAUSIBLE_STEP_S: Final = (1e-9, 1e6)
"""Step durations outside are no measurement (NaN and the infinities included)."""

MAX_STEP_TOKENS: Final = 1 << 31


class Mode(enum.Enum):
    """How the engine decodes."""

    MTP = "mtp"
    SERIAL = "serial"

    @property
    def other(self) -> Mode:
        """The mode that is probed while this one runs."""
        return Mode.SERIAL if self is Mode.MTP else Mode.MTP


class GateStep(enum.Enum):
    """What the coming step runs."""

    MEASURE_VERIFY = "verify"
    MEASURE_DECODE = "decode"


class FreshDecision(enum.Enum):
    """One-shot news of a switch. `DISABLE_MTP`: drop every pending draft and its confidences and
    wait for the drafter's stream. `KEEP_MTP` needs nothing: the next MTP step bootstraps."""

    KEEP_MTP = "keep"
    DISABLE_MTP = "disable"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Cadence of the probes."""

    reprobe_tokens: int = DEFAULT_REPROBE_TOKENS
    """Serial mode: tokens between MTP probes."""
    refresh_tokens: int = DEFAULT_REFRESH_TOKENS
    """MTP mode: tokens between serial probes, times the width bucket."""

    @classmethod
    def resolve(cls, *, reprobe: str | None = None, refresh: str | None = None) -> GateSettings:
        """Resolve MTP_GATE_REPROBE and MTP_GATE_REFRESH (integers, else the default)."""
        return cls(
            reprobe_tokens=count_or(reprobe, DEFAULT_REPROBE_TOKENS),
            refresh_tokens=count_or(refresh, DEFAULT_REFRESH_TOKENS),
        )


def gate_forced(*, option: str | None = None, flag: str | None = None) -> bool:
    """Whether no gate is built and every eligible step speculates.

    `--mtp-gate auto|force` wins over MTP_GATE_FORCE (strict one).

    Raises:
        ValueError: the option is neither `auto` nor `force`.
    """
    if option is None:
        return flag == "1"
    if option not in ("auto", "force"):
        raise ValueError(
            f"unknown gate mode (mtp_gate={option!r}, one of auto, force) -- it decides whether "
            "plain decode is ever tried -- use one of the two"
        )
    return option == "force"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateObservation:
    """The gate's part of a snapshot."""

    mode: Mode
    probing: bool
    tokens_per_s: float
    """Estimate of the current mode; 0.0 until measured."""


class _Estimate:
    """Throughput of one mode."""

    __slots__ = ("deviation", "stale", "tps", "windows")

    def __init__(self) -> None:
        self.tps: float | None = None
        self.deviation = 0.0
        self.stale = False
        self.windows = 0

    def fold(self, window_tps: float, *, probe: bool) -> None:
        """Take one window; a probe, a stale or a missing estimate is replaced outright."""
        if probe or self.stale or self.tps is None:
            self.tps = window_tps
            self.deviation *= 0.5
        else:
            self.tps = (1.0 - TPS_ALPHA) * self.tps + TPS_ALPHA * window_tps
            distance = abs(window_tps - self.tps)
            self.deviation = (1.0 - TPS_ALPHA) * self.deviation + TPS_ALPHA * distance
        self.stale = False
        self.windows += 1


def width_bucket(width: int) -> int:
    """Next power of two at or above `width`; 1 for an empty batch."""
    return 1 << max(width - 1, 0).bit_length()


class MtpGate:
    """The gate's state. `next_step` before a step, `record_step` after it."""

    __slots__ = (
        "_depth_remeasures",
        "_estimates",
        "_fresh",
        "_losing",
        "_measured_at_depth",
        "_observed_depth",
        "_other_windows_at_loss",
        "_probe_windows",
        "_probing",
        "_settings",
        "_settle_steps",
        "_tokens_since_event",
        "_width_regime",
        "_window_s",
        "_window_steps",
        "_window_tokens",
        "mode",
    )

    def __init__(self, settings: GateSettings | None = None) -> None:
        self._settings = settings if settings is not None else GateSettings()
        self.mode = Mode.MTP
        self._estimates = {mode: _Estimate() for mode in Mode}
        self._probing = False
        self._probe_windows = 0
        self._window_tokens = 0
        self._window_s = 0.0
        self._window_steps = 0
        self._losing = 0
        self._other_windows_at_loss = 0
        self._tokens_since_event = 0
        self._observed_depth = 0
        self._measured_at_depth = 0
        self._width_regime = 0
        self._fresh: FreshDecision | None = None
        self._settle_steps = 0
        self._depth_remeasures = 0

    # -- questions ---------------------------------------------------------------------------

    @property
    def probing(self) -> bool:
        """The other mode is being measured."""
        return self._probing

    @property
    def running(self) -> Mode:
        """The mode the coming step runs: the other one while probing."""
        return self.mode.other if self._probing else self.mode

    @property
    def depth_remeasures(self) -> int:
        """Context regimes crossed (the `regime_reprobes` of the statistics)."""
        return self._depth_remeasures

    def next_step(self) -> GateStep:
        """What the coming step runs."""
        return GateStep.MEASURE_VERIFY if self.running is Mode.MTP else GateStep.MEASURE_DECODE

    def tokens_per_s(self, mode: Mode) -> float | None:
        """The estimate of one mode; None until a window was folded into it."""
        return self._estimates[mode].tps

    def observe(self) -> GateObservation:
        """The gate's part of the snapshot."""
        tps = self._estimates[self.mode].tps
        return GateObservation(
            mode=self.mode, probing=self._probing, tokens_per_s=0.0 if tps is None else tps
        )

    def take_fresh_decision(self) -> FreshDecision | None:
        """The news of a switch, once; None when there is none."""
        fresh, self._fresh = self._fresh, None
        return fresh

    # -- acts --------------------------------------------------------------------------------

    def maybe_remeasure(self, depth: int) -> bool:
        """Note the context depth in tokens; True when it left the measured regime.

        Attention's share of a step grows with the context, so both estimates go stale at a factor
        of two (from 512 tokens on) and a probe is due at once. Nothing is wiped.
        """
        self._observed_depth = depth
        live = max(depth, REMEASURE_DEPTH_FLOOR)
        measured = max(self._measured_at_depth, REMEASURE_DEPTH_FLOOR)
        factor = REMEASURE_DEPTH_FACTOR
        if live < factor * measured and measured < factor * live:
            return False
        self._mark_stale()
        self._measured_at_depth = depth
        self._make_probe_due()
        self._depth_remeasures += 1
        return True

    def record_step(self, *, width: int, wall_s: float, tokens: int, ran: Mode) -> None:
        """Take one step of `width` streams that `ran` for `wall_s` seconds.

        A plain step is charged max(width, 1) tokens, a verify step max(tokens, 1). Pinned steps
        are not recorded; a step that ran the mode nobody asked for is not counted either.
        """
        shortest, longest = PLAUSIBLE_STEP_S
        if ran is not self.running or not shortest <= wall_s <= longest:
            return
        self._note_width(width)
        if self._settle_steps > 0:
            self._settle_steps -= 1
            return
        charged = min(max(width if ran is Mode.SERIAL else tokens, 1), MAX_STEP_TOKENS)
        self._window_tokens += charged
        self._window_s += wall_s
        self._window_steps += 1
        if not self._probing:
            self._tokens_since_event += charged
        if self._window_steps >= WINDOW_STEPS:
            self._close_window()
        elif not self._probing and self._probe_due() and not self._estimates[self.mode].stale:
            if self._window_steps < WINDOW_STEPS // 2:
                self._discard_window()
            self._close_window()

    def _note_width(self, width: int) -> None:
        """Start over when the batch leaves its width bucket: nothing measured applies."""
        bucket = width_bucket(width)
        if bucket == self._width_regime:
            return
        known = self._width_regime != 0
        self._width_regime = bucket
        if known:
            self._mark_stale()
            self._discard_window()
            self._losing = 0
            self._make_probe_due()
            self._settle_steps = WINDOW_STEPS

    def _mark_stale(self) -> None:
        for estimate in self._estimates.values():
            estimate.stale = True

    def _discard_window(self) -> None:
        self._window_tokens = 0
        self._window_s = 0.0
        self._window_steps = 0

    def _event_interval(self) -> int:
        """Tokens between probes. Refreshes scale with the width, or a wide batch would spend a
        third of its steps probing; re-probes do not, or a wide batch would never come back."""
        if self.mode is Mode.MTP:
            return self._settings.refresh_tokens * max(self._width_regime, 1)
        return self._settings.reprobe_tokens

    def _probe_due(self) -> bool:
        return self._tokens_since_event >= self._event_interval()

    def _make_probe_due(self) -> None:
        self._tokens_since_event = max(self._tokens_since_event, self._event_interval())

    def _close_window(self) -> None:
        """Fold the window into the mode that ran, then probe, arbitrate or go on."""
        if self._window_steps > 0:
            window_tps = self._window_tokens / self._window_s
            self._estimates[self.running].fold(window_tps, probe=self._probing)
        self._discard_window()
        if self._probing:
            self._probe_windows -= 1
            if self._probe_windows <= 0:
                self._probing = False
                self._tokens_since_event = 0
                self._arbitrate()
        elif self._probe_due():
            self._probing = True
            self._probe_windows = 1
        else:
            self._arbitrate()

    def _arbitrate(self) -> None:
        """Count a loss of the running mode, or switch at the second confirmed one."""
        current, other = self._estimates[self.mode], self._estimates[self.mode.other]
        if current.tps is None or other.tps is None or other.stale:
            return
        noise = 0.5 * (current.deviation + other.deviation)
        margin = max(MARGIN_REL_FLOOR * current.tps, noise)
        if not other.tps > current.tps + margin:
            self._losing = 0
            return
        if self._losing > 0 and other.windows <= self._other_windows_at_loss:
            return  # the same probe seen twice is one sample
        self._losing += 1
        self._other_windows_at_loss = other.windows
        if self._losing < SWITCH_DWELL_WINDOWS:
            self._make_probe_due()
            return
        self.mode = self.mode.other
        self._losing = 0
        self._tokens_since_event = 0
        self._measured_at_depth = self._observed_depth
        keep = self.mode is Mode.MTP
        self._fresh = FreshDecision.KEEP_MTP if keep else FreshDecision.DISABLE_MTP


class GatePolicy:
    """The gate over a depth source: the source says how deep, the gate says whether."""

    __slots__ = ("_source", "gate")

    def __init__(self, source: Policy, *, gate: MtpGate | None = None) -> None:
        self._source = source
        self.gate = gate if gate is not None else MtpGate()

    def decide(self, view: PolicyView) -> Decision:
        """Return the source's depth, or 0 while the gate decodes plainly."""
        wanted = self._source.decide(view)
        if wanted.depth == 0:
            return wanted
        self.gate.maybe_remeasure(view.context_depth)
        probing = self.gate.probing
        word = "probe" if probing else "holds"
        if self.gate.next_step() is GateStep.MEASURE_VERIFY:
            reason = f"{wanted.reason}; gate {word} mtp"
            return Decision(depth=wanted.depth, reason=reason, probing=probing or wanted.probing)
        if view.pinned:
            return Decision(depth=wanted.depth, reason="pinned", pinned=True)
        return Decision(depth=0, reason=f"gate {word} serial", probing=probing)

    def observe(self, outcome: StepOutcome) -> None:
        """Teach the source, and time the step unless a pin chose it."""
        self._source.observe(outcome)
        if not outcome.pinned and outcome.width > 0:
            self.gate.record_step(
                width=outcome.width,
                wall_s=outcome.wall_s,
                tokens=outcome.num_emitted,
                ran=Mode.MTP if outcome.depth > 0 else Mode.SERIAL,
            )
