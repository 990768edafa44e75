"""Drafts by batch width: the static ladder, the width cap and the regime note.

A ladder is a table width -> drafts. It exists because a verify's cost grows with its rows: three
drafts pay at 8 streams and cost 16 % at 16. One `RungTable` stores both spellings: upper bounds
(`4:3,8:3,16:1,32:1`, "up to n streams") and lower bounds (`1:7,2:5`, "from n streams on", see
`dflash_rung`). Lookups never raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from phalanx.proposers.policy.capacity import step_depth, why_plain
from phalanx.proposers.policy.levers import parse_count
from phalanx.proposers.policy.policy import Decision, PolicyView, StepOutcome

DEFAULT_STEPS: Final = ((4, 3), (8, 3), (16, 1), (32, 1))
"""(n_max, drafts): the measured default of the reference."""

DEFAULT_MAX_SEQS: Final = 32
DEFAULT_MAX_SEQS_WITHOUT_LADDER: Final = 4
MAX_SEQS_RANGE: Final = (1, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """From `min_active` streams on, this many drafts."""

    min_active: int
    drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RungTable:
    """Rungs by ascending threshold; the last one whose threshold is reached decides."""

    rungs: tuple[Rung, ...]

    @classmethod
    def from_upper_bounds(cls, steps: Iterable[tuple[int, int]]) -> RungTable:
        """Build from (n_max, drafts) steps: each rung starts one above the bound before it.

        Steps are sorted by n_max (stable, so of two equal bounds the first one decides); a width
        past the last bound keeps the last count.
        """
        ordered = sorted(steps, key=lambda step: step[0])
        starts = [0, *(n_max + 1 for n_max, _ in ordered[:-1])]
        return cls(
            rungs=tuple(
                Rung(min_active=start, drafts=drafts)
                for start, (_, drafts) in zip(starts, ordered, strict=True)
            )
            if ordered
            else ()
        )

    def drafts_at(self, width: int) -> int:
        """Drafts the table names for `width` streams, unclamped; 0 when the table is empty."""
        found = self.rungs[0].drafts if self.rungs else 0
        for rung in self.rungs:
            if rung.min_active > width:
                break
            found = rung.drafts
        return found


def parse_steps(raw: str | None) -> tuple[tuple[int, int], ...] | None:
    """Parse `n_max:drafts[,...]` into steps by ascending n_max.

    Returns None when unset, or when any piece does not parse: a ladder is taken whole or not at
    all, so that a slip in one rung does not leave a table nobody asked for.
    """
    if raw is None:
        return None
    steps: list[tuple[int, int]] = []
    for piece in raw.split(","):
        bound_text, colon, drafts_text = piece.partition(":")
        bound, drafts = parse_count(bound_text), parse_count(drafts_text)
        if not colon or bound is None or drafts is None:
            return None
        steps.append((bound, drafts))
    return tuple(sorted(steps, key=lambda step: step[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The static table with its switches, resolved once at start."""

    table: RungTable = field(default_factory=lambda: RungTable.from_upper_bounds(DEFAULT_STEPS))
    disabled: bool = False
    """Every width gets num_drafts."""
    explicit: bool = False
    """The user gave a ladder (even one that was refused): the adaptive rung stays out."""
    complaint: str | None = None
    """What to warn about at start when the given text was refused, naming it."""

    @classmethod
    def resolve(
        cls, *, option: str | None = None, flag: str | None = None, disable_flag: str | None = None
    ) -> Ladder:
        """Resolve `--mtp-k-ladder` (wins), MTP_K_LADDER and NO_MTP_K_LADDER (presence).

        Text that does not parse gives the default table; `explicit` is True all the same.
        """
        raw = option if option is not None else flag
        steps = parse_steps(raw)
        complaint = None
        if raw is not None and steps is None:
            complaint = (
                f"draft ladder not understood (mtp_k_ladder={raw!r}, form n_max:drafts[,...]) -- "
                "one bad rung refuses the whole table, the default ladder is used -- mend the text"
            )
        return cls(
            table=RungTable.from_upper_bounds(DEFAULT_STEPS if steps is None else steps),
            disabled=disable_flag is not None,
            explicit=raw is not None,
            complaint=complaint,
        )

    def drafts_for(self, width: int, num_drafts: int) -> int:
        """Drafts for `width` streams: 1 .. num_drafts, or 0 when num_drafts is 0."""
        if num_drafts <= 0:
            return 0
        if self.disabled:
            return num_drafts
        return max(1, min(self.table.drafts_at(width), num_drafts))


def resolve_max_seqs(
    *,
    option: int | None = None,
    flag: str | None = None,
    model: int | None = None,
    ladder_disabled: bool = False,
) -> int:
    """Resolve the widest batch that may speculate.

    `--mtp-max-seqs` wins, then MTP_MAX_SEQS, then the model's own value when above 0, then 32 (4
    without a ladder: a fixed depth does not pay above that). The result lives in the frozen
    configuration, so it cannot be published twice with different values.

    Raises:
        ValueError: the value lies outside 1 .. 128, wherever it came from.
    """
    default = DEFAULT_MAX_SEQS_WITHOUT_LADDER if ladder_disabled else DEFAULT_MAX_SEQS
    from_model = model if model is not None and model > 0 else None
    sources = (
        ("--mtp-max-seqs", option),
        ("MTP_MAX_SEQS", parse_count(flag)),
        ("the model", from_model),
    )
    given = ((source, value) for source, value in sources if value is not None)
    source, value = next(given, ("the default", default))
    low, high = MAX_SEQS_RANGE
    if not low <= value <= high:
        raise ValueError(
            f"speculation width cap out of range (mtp_max_seqs={value} from {source}, limit "
            f"{low}..{high}) -- verify pools are sized by it -- give a value inside the range"
        )
    return value


def multi_seq_mode(max_seqs: int) -> bool:
    """More than one sequence may speculate: catch-up ring, refeed and carry are then off."""
    return max_seqs > 1


class WidthRegime:
    """Counts how often the batch crosses the width cap. It decides nothing.

    Written by the scheduler only.
    """

    __slots__ = ("engaged", "flips")

    def __init__(self) -> None:
        self.engaged = True
        self.flips = 0

    def note(self, width: int, cap: int) -> str | None:
        """Return the line to log when speculation engages or disengages, else None."""
        engaged = width <= cap
        if engaged == self.engaged:
            return None
        self.engaged = engaged
        self.flips += 1
        word = "ENGAGED" if engaged else "DISENGAGED"
        return f"speculation {word} active={width} cap={cap} flips={self.flips}"


class LadderPolicy:
    """The static ladder as a policy; with a disabled ladder, a fixed depth. It learns nothing."""

    __slots__ = ("ladder",)

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder

    def decide(self, view: PolicyView) -> Decision:
        """Return the ladder's depth for the active width, clamped to the slots."""
        plain = why_plain(view)
        if plain is not None:
            return Decision(depth=0, reason=plain)
        drafts = self.ladder.drafts_for(view.width, view.limits.num_drafts)
        reason = "fixed depth" if self.ladder.disabled else "ladder"
        return Decision(depth=step_depth(view, drafts), reason=reason)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
