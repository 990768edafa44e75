"""Snapshot: one immutable picture of the engine per step.

Made by the engine once a tick, after draining and admission and before any forward, idle ticks
included; read by the HTTP server, the metrics and the live view from their own threads. Readers
only ever see whole pictures: a cell's value is replaced, never changed.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Final

from phalanx.proposers.policy.policy import Decision, StepOutcome
from phalanx.runtime.spec_stats import SpecTotals, share

DELIVERED_ALPHA: Final = 0.3
"""Weight of one step in the delivered tokens per second."""

MAX_STEP_TOKENS: Final = 1 << 31

DASH: Final = "-"


class MtpMode(enum.Enum):
    """What speculation is doing; the value is what a person reads."""

    MTP = "speculative"
    SERIAL = "serial"
    PROBING = "probing"
    OFF = "off"
    """No gate and no controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine at one tick. Counts are of this moment unless they say total."""

    active_seqs: int = 0
    prefilling_seqs: int = 0
    swapped_seqs: int = 0
    """Swapped out plus preempted."""
    pending_len: int = 0
    """Requests waiting for admission."""
    kv_blocks_free: int = 0
    kv_blocks_total: int = 0
    ssm_slots_used: int = 0
    ssm_slots_total: int = 0
    """Recurrent-state slots; 0 for a model without any."""
    mtp_mode: MtpMode = MtpMode.OFF
    delivered_tps: float = 0.0
    """Tokens per second over all streams, averaged; 0.0 = unmeasured."""
    steps_total: int = 0
    """Ticks since start."""
    published_at_s: float = 0.0
    """The engine's monotonic time in seconds."""
    decision_depth: int | None = None
    """Drafts per sequence of the last decision; None before the first."""
    decision_reason: str = ""
    """Why that depth."""
    decision_probing: bool = False
    """It was a probe."""
    spec: SpecTotals = field(default_factory=SpecTotals)
    """The run's speculation counters."""

    @property
    def kv_blocks_used(self) -> int:
        """Blocks held by sequences and by the prefix cache."""
        return self.kv_blocks_total - self.kv_blocks_free


class SnapshotCell:
    """Holds the latest snapshot of one engine. The engine publishes, anyone reads.

    One attribute holds one frozen value, so a read sees the old picture or the new one, whole:
    no lock is needed and a slow reader never delays the engine.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: Snapshot | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the picture."""
        self._latest = snapshot

    def read(self) -> Snapshot | None:
        """The latest picture; None before the first tick."""
        return self._latest


class SpecPicture:
    """Turns decisions and steps into the speculation fields of a snapshot.

    Written by the engine only.
    """

    __slots__ = ("_armed", "_last", "delivered_tps")

    def __init__(self, *, armed: bool) -> None:
        """`armed`: a gate or controller decides; otherwise the mode reads off."""
        self._armed = armed
        self._last: Decision | None = None
        self.delivered_tps = 0.0

    def note_decision(self, decision: Decision) -> None:
        """Keep the decision of the coming step."""
        self._last = decision

    def note_step(self, outcome: StepOutcome) -> None:
        """Average the step's rate in; a step with an odd duration or no token changes nothing."""
        if not (math.isfinite(outcome.wall_s) and outcome.wall_s > 0.0):
            return
        rate = min(outcome.num_emitted, MAX_STEP_TOKENS) / outcome.wall_s
        if not (math.isfinite(rate) and rate > 0.0):
            return
        known = self.delivered_tps > 0.0
        blended = DELIVERED_ALPHA * rate + (1.0 - DELIVERED_ALPHA) * self.delivered_tps
        self.delivered_tps = blended if known else rate

    @property
    def last(self) -> Decision | None:
        """The latest decision; None before the first."""
        return self._last

    @property
    def mode(self) -> MtpMode:
        """Probing if the last decision was a probe, serial if it was depth 0, else speculative
        (before the first decision too); off without a gate or controller."""
        if not self._armed:
            return MtpMode.OFF
        if self._last is None:
            return MtpMode.MTP
        if self._last.probing:
            return MtpMode.PROBING
        return MtpMode.SERIAL if self._last.depth == 0 else MtpMode.MTP


def _gauge(used: int, total: int) -> str:
    return f"{used}/{total}" if total > 0 else DASH


def stats_lines(snapshot: Snapshot | None) -> tuple[str, ...]:
    """The statistics pane, one line each; nothing before the first snapshot.

    What was not measured reads as a dash, never as zero, and a verify width that never ran has no
    line.
    """
    if snapshot is None:
        return ()
    tps = snapshot.delivered_tps
    depth = DASH if snapshot.decision_depth is None else str(snapshot.decision_depth)
    reason = snapshot.decision_reason or DASH
    return (
        f"active {snapshot.active_seqs} · prefill {snapshot.prefilling_seqs} · "
        f"swapped {snapshot.swapped_seqs} · queue {snapshot.pending_len}",
        f"KV {_gauge(snapshot.kv_blocks_used, snapshot.kv_blocks_total)}",
        f"SSM slots {_gauge(snapshot.ssm_slots_used, snapshot.ssm_slots_total)}",
        f"MTP gate {snapshot.mtp_mode.value}",
        f"drafts {depth} · {reason}",
        f"delivered {f'{tps:.1f}' if tps > 0.0 else DASH} tok/s",
        *(
            f"accept k={total.rows} {100.0 * share(total.accepted, total.drafts):.0f}%"
            for total in snapshot.spec.by_rows
        ),
    )
