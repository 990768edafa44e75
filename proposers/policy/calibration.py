"""Calibration of one drafter: how often its drafts are accepted, by confidence and by position.

    [drafter]     weights_sha256, vocab, quantization, context
    [acceptance]  edges, p_accept, prior_by_position

`edges` are ascending upper bounds of log-probability buckets (an edge belongs to its own bucket),
`p_accept` the acceptance rate of each, `prior_by_position` the conditional rate of draft j, used
where no confidence was measured. The file belongs to the drafter it names.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from phalanx.proposers.policy.chain import rate_at
from phalanx.proposers.policy.toml_text import TomlSection, read_toml, render_toml

_WHAT: Final = "spec calibration"


class CalibrationError(ValueError):
    """A calibration that cannot be loaded, fitted or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterIdentity:
    """Which drafter a calibration was fitted to."""

    weights_sha256: str
    """Over the draft head's tensors as loaded."""
    vocab: int
    """Rows of the drafter's vocabulary."""
    quantization: str
    context: bool
    """Whether the drafter had the prompt as context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Acceptance rates of one drafter. Checked when built."""

    drafter: DrafterIdentity
    edges: tuple[float, ...]
    p_accept: tuple[float, ...]
    prior_by_position: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise CalibrationError for values that are no rates or no buckets."""
        trouble = self._trouble()
        if trouble is not None:
            raise CalibrationError(
                f"{_WHAT} refused ({trouble}) -- every draft would be valued by it -- fit it "
                "again from the drafter's own telemetry"
            )

    def _trouble(self) -> str | None:
        if self.drafter.vocab < 1:
            return f"vocab={self.drafter.vocab}, limit at least 1"
        if not self.edges or not all(math.isfinite(edge) for edge in self.edges):
            return f"edges={list(self.edges)}, limit at least one, all finite"
        if any(left >= right for left, right in pairwise(self.edges)):
            return f"edges={list(self.edges)} do not strictly ascend"
        if self.edges[-1] < 0.0:
            return f"last edge={self.edges[-1]}, limit at least 0: a certain draft has no bucket"
        if len(self.p_accept) != len(self.edges):
            return f"p_accept has {len(self.p_accept)} rates for {len(self.edges)} edges"
        if not self.prior_by_position:
            return "prior_by_position is empty, limit at least one rate"
        for name, rates in (
            ("p_accept", self.p_accept),
            ("prior_by_position", self.prior_by_position),
        ):
            for rate in rates:
                if not 0.0 <= rate <= 1.0:
                    return f"{name} holds {rate}, limit 0..1"
        return None

    def p_given_lp(self, lp: float) -> float:
        """Rate of a draft with log-probability `lp`: the first bucket with lp <= edge, else the
        last one. NaN reads the least confident bucket."""
        if lp != lp:
            return self.p_accept[0]
        return self.p_accept[min(bisect_left(self.edges, lp), len(self.edges) - 1)]

    def prior(self, position: int) -> float:
        """Conditional rate of draft `position` (1 = first); past the end the last rate."""
        return rate_at(self.prior_by_position, position)

    def rate(self, lps: Sequence[float], position: int) -> float:
        """Rate of draft `position`: by its confidence where one was measured, else the prior."""
        if position <= len(lps):
            lp = lps[position - 1]
            if lp == lp and lp != math.inf:
                return self.p_given_lp(lp)
        return self.prior(position)

    def gains(self, lps: Sequence[float], depth: int) -> list[float]:
        """Expected tokens that each of drafts 1 .. `depth` adds (running product of rates)."""
        run = 1.0
        gains: list[float] = []
        for position in range(1, depth + 1):
            run *= self.rate(lps, position)
            gains.append(run)
        return gains

    def expected_accepted(self, lps: Sequence[float], depth: int) -> float:
        """Expected accepted drafts of a chain of `depth` drafts with confidences `lps`."""
        return sum(self.gains(lps, depth))


def _read_drafter(section: TomlSection) -> DrafterIdentity:
    drafter = DrafterIdentity(
        weights_sha256=section.text("weights_sha256"),
        vocab=section.integer("vocab"),
        quantization=section.text("quantization"),
        context=section.boolean("context"),
    )
    section.done()
    return drafter


def parse_calibration(text: str) -> Calibration:
    """Read a calibration.

    Raises:
        CalibrationError: no TOML, a missing, mistyped or unknown name, edges that do not
            ascend or stop below 0, a rate outside 0..1, or lists of different length.
    """
    top = read_toml(text, what=_WHAT, error=CalibrationError)
    acceptance = top.table("acceptance")
    calibration = Calibration(
        drafter=_read_drafter(top.table("drafter")),
        edges=acceptance.numbers("edges"),
        p_accept=acceptance.numbers("p_accept"),
        prior_by_position=acceptance.numbers("prior_by_position"),
    )
    acceptance.done()
    top.done()
    return calibration


def render_calibration(calibration: Calibration) -> str:
    """Write a calibration as TOML and read it back.

    Raises:
        CalibrationError: what was written is not the same calibration.
    """
    drafter = calibration.drafter
    text = render_toml(
        {
            "drafter": {
                "weights_sha256": drafter.weights_sha256,
                "vocab": drafter.vocab,
                "quantization": drafter.quantization,
                "context": drafter.context,
            },
            "acceptance": {
                "edges": [float(edge) for edge in calibration.edges],
                "p_accept": [float(rate) for rate in calibration.p_accept],
                "prior_by_position": [float(rate) for rate in calibration.prior_by_position],
            },
        }
    )
    if parse_calibration(text) != calibration:
        raise CalibrationError(
            f"{_WHAT} does not read back equal (drafter={drafter.weights_sha256!r}) -- the serve "
            "would load other rates than were fitted -- report the values in the file"
        )
    return text


def check_drafter(calibration: Calibration, serve: DrafterIdentity) -> None:
    """Refuse a calibration of another drafter.

    Raises:
        CalibrationError: naming every difference.
    """
    mine = calibration.drafter
    differences = [
        f"{name}: file {getattr(mine, name)!r}, serve {getattr(serve, name)!r}"
        for name in ("weights_sha256", "vocab", "quantization", "context")
        if getattr(mine, name) != getattr(serve, name)
    ]
    if differences:
        raise CalibrationError(
            f"{_WHAT} refused ({'; '.join(differences)}) -- acceptance belongs to one drafter -- "
            "fit a calibration for this one"
        )
