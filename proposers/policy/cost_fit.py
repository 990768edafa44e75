"""Telemetry to a calibration.

By confidence: buckets are pooled, from the most confident one down, until a pool holds at least
100 reached drafts, and every bucket of a pool takes the pool's rate; what is left at the low end
joins the last closed pool. Pooling and not isotonic regression: a bucket of few samples borrows
from its neighbours, but no order is forced on the rates.

By position: P(draft j accepted | 1 .. j-1 accepted) from verify steps (drafts, accepted), in
order, for as long as at least 100 verifies reached position j.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from phalanx.proposers.policy.calibration import (
    Calibration,
    CalibrationError,
    DrafterIdentity,
    parse_calibration,
    render_calibration,
)
from phalanx.proposers.policy.chain import MAX_POSITIONS
from phalanx.proposers.policy.confidence import ReachCounts

MIN_OUTCOMES: Final = 100
"""Reached drafts a rate must rest on."""


def _too_few(what: str, count: int) -> CalibrationError:
    return CalibrationError(
        f"too few outcomes to fit ({what}={count}, limit {MIN_OUTCOMES}) -- a rate from so few "
        "drafts is noise -- run the benchmark longer or at more streams"
    )


def pooled_rates(reached: Sequence[int], accepted: Sequence[int]) -> tuple[float, ...]:
    """Acceptance rate of each bucket, least confident first, after pooling.

    Raises:
        CalibrationError: lists of different length, more accepted than reached or a negative
            count, or fewer than 100 outcomes in all.
    """
    if len(reached) != len(accepted):
        raise CalibrationError(
            f"bucket counts of different length (reached={len(reached)}, "
            f"accepted={len(accepted)}) -- they count the same buckets -- pass both from one run"
        )
    for bucket, (seen, kept) in enumerate(zip(reached, accepted, strict=True)):
        if not 0 <= kept <= seen:
            raise CalibrationError(
                f"bucket counts impossible (bucket={bucket}, reached={seen}, accepted={kept}) -- "
                "only reached drafts can be accepted -- check the counters"
            )
    rates = [0.0] * len(reached)
    pools: list[tuple[list[int], int, int]] = []
    members: list[int] = []
    seen = kept = 0
    for bucket in reversed(range(len(reached))):
        members.append(bucket)
        seen += reached[bucket]
        kept += accepted[bucket]
        if seen >= MIN_OUTCOMES:
            pools.append((members, seen, kept))
            members, seen, kept = [], 0, 0
    if not pools:
        raise _too_few("reached drafts with a confidence", seen)
    if members:
        last_members, last_seen, last_kept = pools[-1]
        pools[-1] = (last_members + members, last_seen + seen, last_kept + kept)
    for buckets, total, good in pools:
        for bucket in buckets:
            rates[bucket] = good / total
    return tuple(rates)


def position_priors(verify_steps: Iterable[tuple[int, int, int]]) -> tuple[float, ...]:
    """Conditional rates by position from (drafts, accepted, verifies) counts.

    Stops before the first position that fewer than 100 verifies reached.

    Raises:
        CalibrationError: an impossible count, or fewer than 100 verifies at position 1.
    """
    steps = list(verify_steps)
    for drafts, accepted, count in steps:
        if not (0 <= accepted <= drafts and count >= 0):
            raise CalibrationError(
                f"verify counts impossible (drafts={drafts}, accepted={accepted}, "
                f"verifies={count}) -- accepted lies in 0..drafts -- check the counters"
            )
    priors: list[float] = []
    reached = 0
    for position in range(1, MAX_POSITIONS + 1):
        reached = sum(n for d, a, n in steps if d >= position and a >= position - 1)
        if reached < MIN_OUTCOMES:
            break
        priors.append(sum(n for d, a, n in steps if d >= position and a >= position) / reached)
    if not priors:
        raise _too_few("verifies with a first draft", reached)
    return tuple(priors)


def fit_calibration(counts: ReachCounts, *, drafter: DrafterIdentity) -> Calibration:
    """Fit a drafter's calibration to what a run counted.

    Raises:
        CalibrationError: too few outcomes, or counts that contradict themselves.
    """
    calibration = Calibration(
        drafter=drafter,
        edges=counts.edges,
        p_accept=pooled_rates(counts.reached, counts.accepted),
        prior_by_position=position_priors(counts.verify_steps),
    )
    # The file is what will be loaded: a fit that does not survive it must fail here.
    return parse_calibration(render_calibration(calibration))
