"""Drafts plus the target's rows to accepted tokens: the rule of acceptance. No tensors.

    row i of a verify   the target's distribution of the token after last_token and drafts 0..i-1
    accepted            drafts before the first that differs from the target's token of its row
    bonus, correction   the target's own token of the row after the last accepted draft

The target's token of a row is its arg-max, or one draw from its exact distribution p at the
uniform number of that position. A draft d is therefore accepted with probability p(d), and after a
rejection the emitted token is distributed as p given "not d": that is the classical rule
min(1, p(d)/q(d)) with the residual max(0, p - q), for a drafter that puts all its mass q on d.
`accept_chain_reference` is that rule spelled out; the tests compare the two. Drawing first has one
gain: the text is a function of seed and position alone, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Acceptance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one verify of one sequence gave."""

    num_accepted: int
    token_ids: tuple[int, ...]
    """Accepted drafts, then the bonus or correction token: num_accepted + 1 of them."""


def accept_chain(
    drafts: Sequence[int], target_token: Callable[[int], int], *, num_rows: int
) -> Acceptance:
    """Walk the chain; `target_token(i)` is asked for row i only when it is reached.

    `num_rows` is the forward's row count of the sequence: it, not the drafts, bounds the walk, so
    drafts that were dropped before the forward are never accepted.
    """
    limit = min(len(drafts), num_rows - 1)
    emitted: list[int] = []
    for row in range(limit):
        token = target_token(row)
        emitted.append(token)
        if token != drafts[row]:
            return Acceptance(num_accepted=row, token_ids=tuple(emitted))
    emitted.append(target_token(limit))
    return Acceptance(num_accepted=limit, token_ids=tuple(emitted))


def accept_picks(drafts: Sequence[int], picks: Sequence[int]) -> Acceptance:
    """The greedy case: `picks` are the exchanged arg-max ids of the sequence's rows."""
    limit = min(len(drafts), len(picks) - 1)
    accepted = 0
    while accepted < limit and drafts[accepted] == picks[accepted]:
        accepted += 1
    return Acceptance(num_accepted=accepted, token_ids=tuple(picks[: accepted + 1]))


def residual(mass_V: Floats, draft: int) -> Floats:
    """The distribution after `draft` was rejected: p without it, renormalised.

    Raises:
        ValueError: the draft holds the whole mass, so it cannot be rejected.
    """
    rest_V = mass_V.copy()
    rest_V[draft] = 0.0
    total = rest_V.sum()
    if not total > 0.0:
        raise ValueError(
            f"no residual (draft={draft}, its probability {mass_V[draft]}) -- a draft with the "
            "whole mass is always accepted -- accept before asking for the residual"
        )
    rest_V /= total
    return rest_V


def accept_chain_reference(
    drafts: Sequence[int],
    mass_KV: Sequence[Floats],
    accept_u: Sequence[float],
    draw_u: Callable[[Floats], int],
) -> Acceptance:
    """The classical rule for arg-max drafters, to compare with: accept draft i iff
    accept_u[i] < p_i(draft i), else draw from the residual; after a full accept draw from the last
    row. `mass_KV` has a row more than there are drafts.
    """
    emitted: list[int] = []
    for row, draft in enumerate(drafts):
        mass_V = mass_KV[row]
        if accept_u[row] < mass_V[draft]:
            emitted.append(draft)
            continue
        emitted.append(draw_u(residual(mass_V, draft)))
        return Acceptance(num_accepted=row, token_ids=tuple(emitted))
    emitted.append(draw_u(mass_KV[len(drafts)]))
    return Acceptance(num_accepted=len(drafts), token_ids=tuple(emitted))
