"""Logits to tokens: the filtered distribution of one row, and one draw from it. Rank 0 only.

A draw is the inverse CDF, tokens in id order, at a uniform number that depends on nothing but the
request's seed and the position of the token drawn. So a position's token does not depend on who
else is in the batch, on how many ranks there are, or on whether the position was reached one
token at a time or inside a verify: given equal logits it is the same token.

Filter, in this order: divide by the temperature; keep the top_k most probable; of those keep the
fewest that together reach top_p of their mass (the one that crosses it included); renormalise.
Of equals the lower id goes first; top_k compares logits, top_p probabilities. All in float64.
C = candidates that are left, V = vocabulary.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.runtime.errors import SamplingError
from phalanx.runtime.request import SamplingParams

Floats = NDArray[np.float64]
Ids = NDArray[np.intp]

NUCLEUS_WINDOW: Final = 256
"""Most probable tokens looked at before a whole row is sorted; usually they reach top_p."""

MANTISSA: Final = 2.0**-53


class Candidates(NamedTuple):
    """Tokens that may be drawn."""

    ids_C: Ids
    """Token ids, ascending."""
    mass_C: Floats
    """Their unnormalised probabilities; may be 0 where exp underflows."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, made from (seed, position) alone.

    The upper 53 bits of the first little-endian 64-bit word of BLAKE2b-64 over the two numbers as
    little-endian 64-bit words: a counter-based generator without state to keep or to roll back.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * MANTISSA


def candidates(logits_V: NDArray[np.float32], params: SamplingParams) -> Candidates:
    """What is left of one row of logits after the filters.

    Temperature 0 leaves the largest logit alone (the lowest id of equal ones).

    Raises:
        SamplingError: a row with NaN, with +inf, or with nothing above -inf.
    """
    best = logits_V.max() if logits_V.size else np.float32("nan")
    if not np.isfinite(best):
        raise SamplingError(
            f"no token can be drawn (largest logit={best}, limit finite) -- the model's output "
            "for this request is broken -- check the weights and their dtype"
        )
    if params.is_greedy:
        return Candidates(np.array([logits_V.argmax()], dtype=np.intp), np.ones(1))
    if 0 < params.top_k < logits_V.size:
        ids_C = largest(logits_V, params.top_k)
        scores_C = logits_V[ids_C].astype(np.float64)
    else:
        ids_C = np.arange(logits_V.size, dtype=np.intp)
        scores_C = logits_V.astype(np.float64)
    scores_C -= float(best)
    with np.errstate(over="ignore", under="ignore"):
        scores_C /= params.temperature
        mass_C = np.exp(scores_C, out=scores_C)
    if params.top_p < 1.0:
        kept = nucleus(mass_C, params.top_p)
        ids_C, mass_C = ids_C[kept], mass_C[kept]
    return Candidates(ids_C, mass_C)


def filtered_distribution(logits_V: NDArray[np.float32], params: SamplingParams) -> Floats:
    """Probabilities [V] of one row; filtered tokens are exactly 0.

    Raises:
        SamplingError: as `candidates`.
    """
    left = candidates(logits_V, params)
    mass_V = np.zeros(logits_V.size)
    mass_V[left.ids_C] = left.mass_C / left.mass_C.sum()
    return mass_V


def largest(values_V: NDArray[Any], count: int) -> Ids:
    """Indices of the `count` largest values, ascending; of equal ones the lower indices."""
    if count >= values_V.size:
        return np.arange(values_V.size, dtype=np.intp)
    least = np.partition(values_V, values_V.size - count)[values_V.size - count]
    kept = np.flatnonzero(values_V >= least)
    if kept.size > count:
        above = np.flatnonzero(values_V > least)
        tied = np.flatnonzero(values_V == least)[: count - above.size]
        kept = np.sort(np.concatenate((above, tied)))
    return kept


def nucleus(mass_C: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest masses whose share of the whole reaches top_p."""
    wanted = top_p * mass_C.sum()
    window = NUCLEUS_WINDOW
    while True:
        kept = largest(mass_C, window)
        order = kept[np.argsort(-mass_C[kept], kind="stable")]
        reached = np.cumsum(mass_C[order])
        if reached[-1] >= wanted or order.size == mass_C.size:
            # The one that crosses is kept; rounding may leave the whole sum a hair short.
            crossing = int(np.searchsorted(reached, wanted, side="left"))
            return np.sort(order[: crossing + 1])
        window *= 16


def draw(mass_C: Floats, u: float) -> int:
    """Index of the candidate whose span of the cumulative mass holds u, 0 <= u < 1.

    A candidate without mass has no span and is never drawn.
    """
    reached = np.cumsum(mass_C)
    index = int(np.searchsorted(reached, u * reached[-1], side="right"))
    if index >= mass_C.size:  # u * total rounded up to the total: the last one with mass
        index = int(np.flatnonzero(mass_C)[-1])
    return index


def draw_token(
    logits_V: NDArray[np.float32], params: SamplingParams, *, seed: int, position: int
) -> int:
    """The token at `position` (its index in the sequence) of a request.

    Raises:
        SamplingError: as `candidates`.
    """
    left = candidates(logits_V, params)
    return int(left.ids_C[draw(left.mass_C, uniform(seed, position))])
