"""Chain arithmetic: expected tokens of a draft chain from its acceptance rates.

Rates are conditional: rate j = P(draft j accepted | drafts 1 .. j-1 accepted), position 1 first.
Past the end of the list the last rate repeats; an empty list means no draft is ever accepted. A
verify emits its accepted drafts and one token more, so expected tokens start at 1 and expected
accepted drafts at 0. Sums run in position order, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_POSITIONS: Final = 16
"""Draft positions whose acceptance is tracked; deeper ones repeat the last."""


def rate_at(rates: Sequence[float], position: int) -> float:
    """Conditional rate of `position` (1 = first draft); 0.0 for an empty list."""
    if not rates:
        return 0.0
    return rates[min(max(position, 1), len(rates)) - 1]


def chain_sum(rates: Sequence[float], depth: int, *, start: float) -> float:
    """`start` plus the probability of reaching and accepting each of the first `depth` drafts."""
    total, run = start, 1.0
    for position in range(1, depth + 1):
        run *= rate_at(rates, position)
        total += run
    return total


def expected_tokens(rates: Sequence[float], depth: int) -> float:
    """Tokens one verify of `depth` drafts emits on average: 1 .. depth + 1."""
    return chain_sum(rates, depth, start=1.0)


def expected_accepted(rates: Sequence[float], depth: int) -> float:
    """Drafts one verify of `depth` drafts accepts on average: 0 .. depth."""
    return chain_sum(rates, depth, start=0.0)


def tokens_by_depth(rates: Sequence[float], depth: int) -> list[float]:
    """Expected tokens at every depth 0 .. `depth`, each equal to `expected_tokens` bit for bit."""
    total, run = 1.0, 1.0
    totals = [total]
    for position in range(1, depth + 1):
        run *= rate_at(rates, position)
        total += run
        totals.append(total)
    return totals


def marginal_gain(rates: Sequence[float], position: int) -> float:
    """Tokens that draft `position` adds: the product of the first `position` rates."""
    run = 1.0
    for step in range(1, position + 1):
        run *= rate_at(rates, step)
    return run


def marginals(rates: Sequence[float], depth: int) -> tuple[float, ...]:
    """The marginal gains of drafts 1 .. `depth`."""
    gains: list[float] = []
    run = 1.0
    for position in range(1, depth + 1):
        run *= rate_at(rates, position)
        gains.append(run)
    return tuple(gains)


def conditional_from_marginal(gains: Sequence[float]) -> tuple[float, ...]:
    """Conditional rates from marginal gains, each clamped to 0..1; 0 after a zero marginal.

    The inverse of `marginals` for rates above zero. Telemetry counts marginals ("draft j was
    accepted in this share of verifies"); the policies think in conditionals.
    """
    rates: list[float] = []
    before = 1.0
    for gain in gains:
        rate = gain / before if before > 0.0 else 0.0
        # The comparison order turns NaN into 0.
        rates.append(min(rate, 1.0) if rate > 0.0 else 0.0)
        before = gain
    return tuple(rates)
