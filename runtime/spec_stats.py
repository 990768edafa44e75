"""Speculation counters and their log lines, per run and per request.

A run's counters belong to one loaded model, so that a model swap never blends two. Verify widths
are named by rows: K = drafts + 1. Every 100 verifies of one width a summary line is due and that
width's window starts over; the run's totals never do. Written by the scheduler only; odd counts
are clamped, nothing raises.

uncond = draft j equals the target's pick at its row, whatever came before; cond = drafts 1..j all
do. p_j(cond) = cond_j / cond_(j-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SUMMARY_STEPS: Final = 100
DRIFT_SHARE: Final = 0.30
"""A K2 acceptance below this is logged as a warning: drafter and target have drifted apart."""

DECODE_TIMING_STEPS: Final = 512
LOOKUP_LINE_COPIES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StatLine:
    """A line to log."""

    text: str
    warning: bool = False


class Counter:
    """One count."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def bump(self, by: int = 1) -> int:
        """Add `by`; return the value before."""
        before = self.value
        self.value += by
        return before

    def reset(self) -> None:
        """Back to 0."""
        self.value = 0


def share(part: float, whole: float) -> float:
    """part / whole, 0.0 of nothing."""
    return part / whole if whole > 0 else 0.0


class RowsWindow:
    """Outcomes of the verifies of one width since its last summary."""

    __slots__ = ("accepts", "cond", "rows", "steps", "uncond")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.steps = 0
        self.accepts = [0] * self.rows
        """Steps by accepted drafts, 0 .. rows - 1."""
        self.uncond = [0] * (self.rows - 1)
        self.cond = [0] * (self.rows - 1)

    def record(self, matches: Sequence[bool], accepted: int) -> None:
        """Count one verify; `matches[j]` says that draft j + 1 equals the target's pick."""
        self.steps += 1
        self.accepts[min(max(accepted, 0), self.rows - 1)] += 1
        chained = True
        for position, match in enumerate(matches[: self.rows - 1]):
            chained = chained and match
            self.uncond[position] += 1 if match else 0
            self.cond[position] += 1 if chained else 0

    @property
    def mean_accepted(self) -> float:
        """Accepted drafts per verify."""
        total = sum(count * accepted for accepted, count in enumerate(self.accepts))
        return share(total, self.steps)

    def lines(self, seq_len: int) -> tuple[StatLine, ...]:
        """The summary."""
        if self.rows == 2:
            rejects, accepts = self.accepts
            rate = share(accepts, self.steps)
            head = "mtp k2 drift gauge" if rate < DRIFT_SHARE else "mtp k2"
            text = (
                f"{head} accepts={accepts} rejects={rejects} rate={100.0 * rate:.1f}% "
                f"over last {self.steps} seq_len={seq_len}"
            )
            return (StatLine(text=text, warning=rate < DRIFT_SHARE),)
        outcome = " ".join(
            f"{'reject' if accepted == 0 else f'accept{accepted}'}={self.accepts[accepted]}"
            for accepted in reversed(range(self.rows))
        )
        uncond = [share(count, self.steps) for count in self.uncond]
        before = [self.steps, *self.cond]
        cond = [share(now, prior) for now, prior in zip(self.cond, before, strict=False)]
        depths = range(1, self.rows - 1)
        positional = (
            f"mtp k{self.rows} positions steps={self.steps} p1={uncond[0]:.3f} "
            + " ".join(f"p{j + 1}_uncond={uncond[j]:.3f}" for j in depths)
            + " "
            + " ".join(f"p{j + 1}_cond={cond[j]:.3f}" for j in depths)
            + f" uncond={self.uncond} cond={self.cond}"
        )
        head = f"mtp k{self.rows} {outcome} mean_na={self.mean_accepted:.3f} seq_len={seq_len}"
        return (StatLine(text=head), StatLine(text=positional))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTotal:
    """All verifies of one width in the run."""

    rows: int
    steps: int
    drafts: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecTotals:
    """The run's totals, for metrics and the snapshot."""

    num_drafts: int = 0
    """Verifies that carried drafts."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: tuple[int, ...] = ()
    """Accepted drafts by position, first draft first."""
    by_rows: tuple[RowsTotal, ...] = ()
    """Ascending by rows; a width that never ran is absent."""
    by_depth: tuple[tuple[int, int], ...] = ()
    """(depth, steps) of the depths the policy chose, plain steps (0) included; ascending."""

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify, the bonus included: 1 + accepted / verifies; 0.0 before any."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0


class SpecStats:
    """The counters of one run."""

    __slots__ = (
        "_decode_copy_us",
        "_decode_sample_us",
        "_depths",
        "_per_pos",
        "_seen",
        "_totals",
        "_windows",
        "b1_low_margin",
        "decode_count",
    )

    def __init__(self) -> None:
        self._windows: dict[int, RowsWindow] = {}
        self._totals: dict[int, list[int]] = {}
        self._per_pos: list[int] = []
        self._depths: dict[int, int] = {}
        self._seen: set[str] = set()
        self.b1_low_margin = Counter()
        """Positions inside tool bodies whose two best picks were nearly tied."""
        self.decode_count = Counter()
        self._decode_copy_us = 0.0
        self._decode_sample_us = 0.0

    def record_verify(
        self, matches: Sequence[bool], *, accepted: int, seq_len: int
    ) -> tuple[StatLine, ...]:
        """Count one verify of `len(matches)` drafts; return the summary lines that are due."""
        drafts = len(matches)
        if drafts == 0:
            return ()
        accepted = min(max(accepted, 0), drafts)
        rows = drafts + 1
        total = self._totals.setdefault(rows, [0, 0, 0])
        total[0] += 1
        total[1] += drafts
        total[2] += accepted
        if len(self._per_pos) < drafts:
            self._per_pos += [0] * (drafts - len(self._per_pos))
        for position in range(accepted):
            self._per_pos[position] += 1
        window = self._windows.get(rows)
        if window is None:
            window = self._windows[rows] = RowsWindow(rows)
        window.record(matches, accepted)
        if window.steps < SUMMARY_STEPS:
            return ()
        lines = window.lines(seq_len)
        window.reset()
        return lines

    def record_depth(self, depth: int) -> None:
        """Count one step's chosen depth."""
        self._depths[depth] = self._depths.get(depth, 0) + 1

    def window(self, rows: int) -> RowsWindow | None:
        """The running window of one width, to read; None if it never ran."""
        return self._windows.get(rows)

    def record_decode(self, *, copy_us: float, sample_us: float) -> StatLine | None:
        """Count one plain decode's host times; a mean line is due every 512."""
        self._decode_copy_us += copy_us
        self._decode_sample_us += sample_us
        self.decode_count.bump()
        steps = self.decode_count.value
        if steps < DECODE_TIMING_STEPS:
            return None
        text = (
            f"decode timing steps={steps} copy_us={self._decode_copy_us / steps:.1f} "
            f"sample_us={self._decode_sample_us / steps:.1f}"
        )
        self.decode_count.reset()
        self._decode_copy_us = self._decode_sample_us = 0.0
        return StatLine(text=text)

    def once(self, key: str) -> bool:
        """True the first time `key` is asked in this run, for lines that are logged once."""
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def totals(self) -> SpecTotals:
        """A frozen copy of the run's totals."""
        by_rows = tuple(
            RowsTotal(rows=rows, steps=steps, drafts=drafts, accepted=accepted)
            for rows, (steps, drafts, accepted) in sorted(self._totals.items())
        )
        return SpecTotals(
            num_drafts=sum(total.steps for total in by_rows),
            num_draft_tokens=sum(total.drafts for total in by_rows),
            num_accepted_tokens=sum(total.accepted for total in by_rows),
            accepted_per_pos=tuple(self._per_pos),
            by_rows=by_rows,
            by_depth=tuple(sorted(self._depths.items())),
        )


def block_line(*, gamma: int, accepted: int, total: int, seq_len: int) -> StatLine:
    """The per-step line of a block drafter."""
    rate = 100.0 * share(accepted, total)
    return StatLine(
        text=f"dflash gamma={gamma} accepted={accepted}/{total} ({rate:.0f}%) seq_len={seq_len}"
    )


class LookupStats:
    """Serve-wide counters of copied drafts; the shared ones came from other requests' text."""

    __slots__ = (
        "accepted",
        "copies",
        "proposed",
        "shared_accepted",
        "shared_copies",
        "shared_proposed",
    )

    def __init__(self) -> None:
        self.copies = self.proposed = self.accepted = 0
        self.shared_copies = self.shared_proposed = self.shared_accepted = 0

    def record(self, *, proposed: int, accepted: int, shared: bool) -> StatLine | None:
        """Count one settled copy; a line is due at the first and every 1024 from there."""
        if proposed <= 0:
            return None
        accepted = min(max(accepted, 0), proposed)
        self.copies += 1
        self.proposed += proposed
        self.accepted += accepted
        if shared:
            self.shared_copies += 1
            self.shared_proposed += proposed
            self.shared_accepted += accepted
        if self.copies % LOOKUP_LINE_COPIES != 1:
            return None
        return StatLine(
            text=f"prompt lookup copies={self.copies} proposed={self.proposed} "
            f"accepted={self.accepted} shared_copies={self.shared_copies} "
            f"shared_proposed={self.shared_proposed} shared_accepted={self.shared_accepted}"
        )


class RequestSpecStats:
    """One request's share of speculation."""

    __slots__ = ("_histogram", "accepted", "drafted", "num_spec_tokens", "serial_steps")

    def __init__(self, *, num_spec_tokens: int) -> None:
        """`num_spec_tokens` is the configured draft count."""
        self.num_spec_tokens = num_spec_tokens
        self.serial_steps = 0
        """Steps that emitted one token without drafts."""
        self.drafted = 0
        self.accepted = 0
        self._histogram: list[int] = []

    def record_serial(self) -> None:
        """Count a step without drafts."""
        self.serial_steps += 1

    def record_verify(self, *, drafts: int, accepted: int) -> None:
        """Count a verify; one without drafts is a serial step."""
        if drafts <= 0:
            self.record_serial()
            return
        accepted = min(max(accepted, 0), drafts)
        self.drafted += drafts
        self.accepted += accepted
        if len(self._histogram) <= accepted:
            self._histogram += [0] * (accepted + 1 - len(self._histogram))
        self._histogram[accepted] += 1

    @property
    def verify_steps(self) -> int:
        """Verifies of this request."""
        return sum(self._histogram)

    @property
    def accepted_prediction_tokens(self) -> int:
        """Accepted drafts of the request, for the usage field of that name."""
        return self.accepted

    @property
    def p1(self) -> float:
        """Share of verifies that emitted more than one token."""
        return share(sum(self._histogram[1:]), self.verify_steps)

    def metrics(self) -> dict[str, float | int | list[int]]:
        """The `metrics.speculative_decoding` object of a response, in vLLM's shape."""
        steps = self.verify_steps
        return {
            "mean_acceptance_length": 1.0 + self.accepted / steps if steps else 0.0,
            "draft_acceptance_rate": share(self.accepted, self.drafted),
            "acceptance_histogram": list(self._histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "num_spec_tokens": self.num_spec_tokens,
        }

    def done_line(
        self, *, tokens: int, reason: str, decode_s: float, ttft_ms: float, regime_reprobes: int = 0
    ) -> StatLine:
        """The line at the end of the request."""
        steps = self.verify_steps
        every = self.serial_steps + steps
        mean_na = share(self.accepted, steps)
        rate = share(tokens, decode_s)
        return StatLine(
            text=f"done tokens={tokens} reason={reason} tok/s={rate:.1f} ttft_ms={ttft_ms:.0f} "
            f"serial={share(self.serial_steps, every):.2f} mtp={share(steps, every):.2f} "
            f"p1={self.p1:.3f} mean_na={mean_na:.3f} tok_step={1.0 + mean_na:.3f} "
            f"regime_reprobes={regime_reprobes}"
        )
