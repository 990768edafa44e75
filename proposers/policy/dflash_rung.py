"""Rung for block drafts: how many rows of a block drafter's span one verify carries.

A block drafter drafts its whole span in one pass, so only the verify's width is a choice. Two or
more streams take `multi` rows. A lone stream takes `wide` on text that drafts well (code) and
`narrow` on text that does not (prose), told apart by the first draft's hit rate over the last 64
lone verifies: a 64-bit register, exact, with a dead band and a dwell. It starts wide, the smaller
measured loss when wrong. An explicit ladder (`min_active:drafts[,...]`) overrides it.

Rows = drafts + 1; K settings are rows, answers are drafts. Nothing but the parser raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.capacity import step_depth, why_plain
from phalanx.proposers.policy.ladder import Rung, RungTable
from phalanx.proposers.policy.levers import count_or, is_one, is_present, parse_count
from phalanx.proposers.policy.policy import Decision, PolicyView, StepOutcome

WINDOW: Final = 64
_REGISTER_MASK: Final = (1 << WINDOW) - 1


class DraftLadderError(ValueError):
    """An explicit block-draft ladder that cannot be used."""


def parse_draft_ladder(raw: str) -> RungTable:
    """Parse `--dflash-draft-ladder`: `min_active:drafts[,...]`, lower bounds.

    Raises:
        DraftLadderError: a piece that is no `int:int`, a first threshold other than 1, thresholds
            that do not strictly rise, or a draft count below 1.
    """
    rungs: list[Rung] = []
    for piece in raw.split(","):
        start_text, _, drafts_text = piece.partition(":")
        start, drafts = parse_count(start_text), parse_count(drafts_text)
        if start is None or drafts is None:
            trouble = f"rung {piece.strip()!r} is not min_active:drafts"
        elif not rungs and start != 1:
            trouble = f"the first threshold is {start}, not 1"
        elif rungs and start <= rungs[-1].min_active:
            trouble = f"threshold {start} does not rise above {rungs[-1].min_active}"
        elif drafts < 1:
            trouble = f"rung {piece.strip()!r} has no drafts"
        else:
            rungs.append(Rung(min_active=start, drafts=drafts))
            continue
        raise DraftLadderError(
            f"block-draft ladder refused (dflash_draft_ladder={raw!r}, {trouble}) -- every width "
            "needs exactly one draft count -- write it like 1:7,2:5,3:4"
        )
    return RungTable(rungs=tuple(rungs))


@dataclass(frozen=True, slots=True, kw_only=True)
class DflashSettings:
    """Rows and thresholds of the resolver; None = the default for the head's cap."""

    multi: int = 4
    narrow: int = 5
    wide: int | None = None
    """None = the head's cap."""
    enter: int = 60
    leave: int = 46
    dwell: int = 64
    write_on_accept: bool = False
    """GDN_WOA: the verify kernel that makes `multi` cheap; without it multi = the head's cap."""
    pinned: bool = False

    @classmethod
    def resolve(
        cls,
        *,
        multi: str | None = None,
        narrow: str | None = None,
        wide: str | None = None,
        enter: str | None = None,
        leave: str | None = None,
        dwell: str | None = None,
        write_on_accept: str | None = None,
        static_gamma: str | None = None,
        gamma_resolver: str | None = None,
        gamma_option: bool = False,
    ) -> DflashSettings:
        """Resolve DFLASH_RUNG_* (integers, else the default), GDN_WOA (strict one) and the pins.

        Pinned by DFLASH_STATIC_GAMMA (presence), or by `--dflash-gamma` unless
        DFLASH_GAMMA_RESOLVER (presence) arms the resolver all the same.
        """
        base = cls()
        return cls(
            multi=count_or(multi, base.multi),
            narrow=count_or(narrow, base.narrow),
            wide=parse_count(wide),
            enter=count_or(enter, base.enter),
            leave=count_or(leave, base.leave),
            dwell=count_or(dwell, base.dwell),
            write_on_accept=is_one(write_on_accept),
            pinned=is_present(static_gamma) or (gamma_option and not is_present(gamma_resolver)),
        )


class DflashRung:
    """The resolver's state. Written by the scheduler only."""

    __slots__ = (
        "_last_switch",
        "_last_width",
        "_multi",
        "_narrow",
        "_register",
        "_settings",
        "_tick",
        "_wide",
        "armed",
        "flips",
        "ladder",
        "wide",
    )

    def __init__(
        self, cap: int, *, settings: DflashSettings | None = None, ladder: RungTable | None = None
    ) -> None:
        """`cap` is the head's block size in rows. `ladder` decides alone when given."""
        self.flips = 0
        self.ladder = ladder
        self.configure(cap, settings=settings)

    def configure(self, cap: int, *, settings: DflashSettings | None = None) -> None:
        """Start over for a head of `cap` rows: wide, empty register. Flips are kept."""
        chosen = settings if settings is not None else DflashSettings()
        top = max(cap, 2)
        self._settings = chosen
        self._wide = min(max(chosen.wide if chosen.wide is not None else cap, 2), top)
        self._narrow = min(max(chosen.narrow, 2), top)
        self._multi = min(max(chosen.multi, 2), top) if chosen.write_on_accept else top
        self.armed = not chosen.pinned and cap >= 3
        self.wide = True
        self._register = 0
        self._tick = 0
        self._last_switch = 0
        self._last_width = 0

    @property
    def hits(self) -> int:
        """First-draft hits among the last 64 lone verifies."""
        return self._register.bit_count()

    def rows_for(self, width: int) -> int:
        """Verify rows for `width` streams in the present state."""
        if width >= 2:
            return self._multi
        return self._wide if self.wide else self._narrow

    def drafts_for(self, width: int, num_drafts: int) -> int:
        """Drafts for `width` streams, at most num_drafts; pinned or unarmed: num_drafts."""
        if self.armed:
            self._last_width = width
        if num_drafts <= 0:
            return 0
        if self.ladder is not None:
            return max(1, min(self.ladder.drafts_at(max(width, 1)), num_drafts))
        if not self.armed:
            return num_drafts
        return max(1, min(self.rows_for(width) - 1, num_drafts))

    def next_state(self, *, wide: bool, hits: int) -> bool:
        """Whether a lone stream verifies wide, with the dead band between LEAVE and ENTER."""
        return hits > self._settings.leave if wide else hits >= self._settings.enter

    def observe_step(self, *, first_accepted: bool) -> str | None:
        """Score one verify; return the line to log when the state flips, else None.

        Only lone verifies count: the step must have been sized by `drafts_for(1, ...)`.
        """
        if not self.armed or self._last_width != 1:
            return None
        self._register = ((self._register << 1) | int(first_accepted)) & _REGISTER_MASK
        self._tick += 1
        if self._tick - self._last_switch < self._settings.dwell:
            return None
        wide = self.next_state(wide=self.wide, hits=self.hits)
        if wide == self.wide:
            return None
        self.wide = wide
        self._last_switch = self._tick
        self.flips += 1
        word = "wide" if wide else "narrow"
        return f"dflash rung now {word} rows={self.rows_for(1)} hits={self.hits}/64"


class DflashPolicy:
    """The block-draft rung as a policy."""

    __slots__ = ("rung",)

    def __init__(self, rung: DflashRung) -> None:
        self.rung = rung

    def decide(self, view: PolicyView) -> Decision:
        """Return the rung's depth for the active width, clamped to the slots."""
        plain = why_plain(view)
        if plain is not None:
            return Decision(depth=0, reason=plain)
        drafts = self.rung.drafts_for(view.width, view.limits.num_drafts)
        if self.rung.ladder is not None:
            reason = "block-draft ladder"
        elif not self.rung.armed:
            reason = "pinned block"
        elif view.width >= 2:
            reason = "block rung: several streams"
        else:
            reason = "block rung: wide" if self.rung.wide else "block rung: narrow"
        return Decision(depth=step_depth(view, drafts), reason=reason)

    def observe(self, outcome: StepOutcome) -> None:
        """Score the verify of a lone stream."""
        if outcome.width == 1 and outcome.streams[0].num_drafts > 0:
            self.rung.observe_step(first_accepted=outcome.streams[0].num_accepted >= 1)
