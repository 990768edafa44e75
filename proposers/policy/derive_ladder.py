"""Derive a ladder: the best depth of each width by a cost source and a drafter's priors.

For a serve that wants a static table of its own machine and drafter, and for the figure that
shows what a cost table means. Neighbouring widths of equal depth share a rung; a width between
two given ones takes the depth of the wider, as in any upper-bound ladder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from phalanx.proposers.policy.chain import tokens_by_depth
from phalanx.proposers.policy.cost_sources import CostSource, CostSourceError
from phalanx.proposers.policy.ladder import RungTable
from phalanx.proposers.policy.objective import Candidate, Objective, choose


def best_depth(
    cost: CostSource, rates: Sequence[float], *, n: int, k_cap: int, objective: Objective
) -> int:
    """Depth 0 .. `k_cap` that the objective prefers for n streams of acceptance `rates`.

    Raises:
        CostSourceError: no depth up to `k_cap` has a price.
    """
    candidates: list[Candidate] = []
    for depth, tokens in enumerate(tokens_by_depth(rates, max(k_cap, 0))):
        price = cost.step(n, depth)
        if price is not None and price.ms > 0.0:
            candidates.append(Candidate(depth=depth, tokens=n * tokens, slowest=tokens, cost=price))
    if not candidates:
        raise CostSourceError(
            f"no price for any depth (n={n}, k_cap={k_cap}) -- the width has no best depth -- "
            "give a cost source that knows this width"
        )
    return choose(candidates, objective=objective).depth


def derive_steps(
    cost: CostSource,
    rates: Sequence[float],
    *,
    widths: Sequence[int],
    k_cap: int,
    objective: Objective,
) -> tuple[tuple[int, int], ...]:
    """(n_max, drafts) steps over ascending `widths`, equal neighbours merged.

    Raises:
        CostSourceError: widths empty or not strictly ascending from 1, or a width without prices.
    """
    ascending = all(left < right for left, right in pairwise(widths))
    if not widths or widths[0] < 1 or not ascending:
        raise CostSourceError(
            f"ladder widths refused (widths={list(widths)}, limit strictly ascending from 1) -- "
            "each rung ends at one of them -- sort and deduplicate them"
        )
    steps: list[tuple[int, int]] = []
    for n in widths:
        depth = best_depth(cost, rates, n=n, k_cap=k_cap, objective=objective)
        if steps and steps[-1][1] == depth:
            steps.pop()
        steps.append((n, depth))
    return tuple(steps)


def derive_ladder(
    cost: CostSource,
    rates: Sequence[float],
    *,
    widths: Sequence[int],
    k_cap: int,
    objective: Objective,
) -> RungTable:
    """`derive_steps` as a table. A depth of 0 is kept here; `Ladder` itself runs at least 1.

    Raises:
        CostSourceError: as `derive_steps`.
    """
    steps = derive_steps(cost, rates, widths=widths, k_cap=k_cap, objective=objective)
    return RungTable.from_upper_bounds(steps)


def render_steps(steps: Sequence[tuple[int, int]]) -> str:
    """The steps as `--mtp-k-ladder` takes them: `4:3,8:1`."""
    return ",".join(f"{n_max}:{drafts}" for n_max, drafts in steps)
