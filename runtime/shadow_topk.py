"""Shadow top-k: would a draft tree have caught what the chain missed?

While MTP_SHADOW_TOPK=k is set, each drafter step logs its k best tokens and each verify logs the
target's picks; no token is chosen differently. `join` reads the log offline and counts, per
depth, how often the target's pick was among the drafter's best j, given that the chain was right
up to there. That is the go / no-go for tree shapes.

    shadow-draft seq=7 base=120 depth=1 ids=5,9,2 probs=0.71,0.11,0.04
    shadow-verify seq=7 base=120 picks=5,8,3

base = committed length before the verify; depth 1 is the first draft and meets pick 0. Anything
may stand before the tag (time, rank), so a whole log file can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.levers import count_or

MAX_TOPK: Final = 8
MAX_DEPTH: Final = 64

_INTS: Final = r"-?\d{1,18}(?:,-?\d{1,18})*"
_DRAFT: Final = re.compile(
    rf"\bshadow-draft seq=(\d{{1,18}}) base=(\d{{1,18}}) depth=(\d{{1,3}}) ids=({_INTS}) probs=\S*",
    re.ASCII,
)
_VERIFY: Final = re.compile(
    rf"\bshadow-verify seq=(\d{{1,18}}) base=(\d{{1,18}}) picks=({_INTS})(?:\s|$)", re.ASCII
)
_TAG: Final = re.compile(r"\bshadow-(?:draft|verify)\b")


def parse_shadow_topk(raw: str | None) -> int:
    """MTP_SHADOW_TOPK: how many candidates to log, at most 8; 0 (off) when unset or unreadable."""
    return min(count_or(raw, 0), MAX_TOPK)


def draft_line(
    *, seq: int, base: int, depth: int, ids: Sequence[int], probs: Sequence[float]
) -> str:
    """The line of one drafter step: its best tokens, best first, with softmax probabilities."""
    ids_text = ",".join(str(token) for token in ids)
    probs_text = ",".join(f"{prob:.6f}" for prob in probs)
    return f"shadow-draft seq={seq} base={base} depth={depth} ids={ids_text} probs={probs_text}"


def verify_line(*, seq: int, base: int, picks: Sequence[int]) -> str:
    """The line of one verify: the target's pick at every row, the bonus row included."""
    return f"shadow-verify seq={seq} base={base} picks={','.join(str(token) for token in picks)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCoverage:
    """What the drafter's candidates covered at one depth, given a correct chain above it."""

    depth: int
    reached: int
    """Verifies whose drafts 1 .. depth - 1 all equalled the target's picks."""
    within: tuple[int, ...]
    """`within[j - 1]`: how many of those had the target's pick among the best j; rising."""

    def rate(self, rank: int) -> float:
        """Conditional coverage of the best `rank` candidates; 0.0 when never reached."""
        if self.reached == 0 or not self.within or rank < 1:
            return 0.0
        return self.within[min(rank, len(self.within)) - 1] / self.reached

    def rescue(self, rank: int) -> float:
        """Share of the chain's misses that the candidates 2 .. rank would have caught."""
        missed = 1.0 - self.rate(1)
        return (self.rate(rank) - self.rate(1)) / missed if missed > 0.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The join of one log."""

    depths: tuple[DepthCoverage, ...]
    """Ascending from depth 1."""
    joined: int
    """Verifies that met drafts of the same sequence and base."""
    lone_verifies: int
    lone_proposals: int
    """Proposals no verify was logged for."""
    malformed: int
    """Tagged lines that could not be read; a log cut off in the middle has one."""

    def expected_tokens(self, counts: Sequence[int]) -> float:
        """Expected tokens of a verify of a tree with `counts[d - 1]` nodes at depth d.

        1 for the bonus, plus each spine node's chance of being reached and right, plus each
        hedge group's chance of catching the miss below a correct chain. (1, 1, 1) is the chain.
        """
        total, chain = 1.0, 1.0
        for coverage, count in zip(self.depths, counts, strict=False):
            total += chain * coverage.rate(count)
            chain *= coverage.rate(1)
        return total


class _Tally:
    """Counts of one depth while joining."""

    __slots__ = ("ranks", "reached")

    def __init__(self) -> None:
        self.reached = 0
        self.ranks = [0] * MAX_TOPK


def join(lines: Iterable[str]) -> Coverage:
    """Join drafter and verify lines of a log; never raises on what a log may hold.

    A verify uses the latest proposal of its sequence and base, once. Depths count up to the first
    that the drafter did not log and the verify did not cover.
    """
    proposals: dict[tuple[int, int], dict[int, list[int]]] = {}
    tallies: list[_Tally] = []
    joined = lone_verifies = malformed = replaced = 0
    for line in lines:
        if _TAG.search(line) is None:
            continue
        draft = _DRAFT.search(line)
        if draft is not None and 1 <= int(draft[3]) <= MAX_DEPTH:
            where, depth = (int(draft[1]), int(draft[2])), int(draft[3])
            if depth == 1 and where in proposals:
                del proposals[where]
                replaced += 1
            proposals.setdefault(where, {})[depth] = _ints(draft[4])[:MAX_TOPK]
            continue
        verify = _VERIFY.search(line)
        if verify is None:
            malformed += 1
            continue
        chain = proposals.pop((int(verify[1]), int(verify[2])), None)
        if chain is None:
            lone_verifies += 1
            continue
        joined += 1
        _count(tallies, chain, _ints(verify[3]))
    return Coverage(
        depths=tuple(_close(depth, tally) for depth, tally in enumerate(tallies, start=1)),
        joined=joined,
        lone_verifies=lone_verifies,
        lone_proposals=len(proposals) + replaced,
        malformed=malformed,
    )


def _ints(text: str) -> list[int]:
    return [int(piece) for piece in text.split(",")]


def _count(tallies: list[_Tally], chain: dict[int, list[int]], picks: list[int]) -> None:
    """Count one verify's depths while the chain is right.

    The bonus row's pick counts too when the proposal was deeper than the verify: it is the
    target's true pick there as long as everything above it was right.
    """
    for depth, pick in enumerate(picks, start=1):
        candidates = chain.get(depth)
        if candidates is None:
            return
        while len(tallies) < depth:
            tallies.append(_Tally())
        tally = tallies[depth - 1]
        tally.reached += 1
        if pick in candidates:
            tally.ranks[candidates.index(pick)] += 1
        if candidates[0] != pick:
            return


def _close(depth: int, tally: _Tally) -> DepthCoverage:
    within: list[int] = []
    for count in tally.ranks:
        within.append(count + (within[-1] if within else 0))
    return DepthCoverage(depth=depth, reached=tally.reached, within=tuple(within))


def report(coverage: Coverage, *, topk: int = MAX_TOPK) -> str:
    """The table a person reads: conditional coverage per depth, and what it was made from."""
    ranks = range(1, min(max(topk, 1), MAX_TOPK) + 1)
    lines = ["depth  reached  " + "  ".join(f"top-{rank}" for rank in ranks) + "  rescued"]
    for depth in coverage.depths:
        rates = "  ".join(f"{depth.rate(rank):5.3f}" for rank in ranks)
        lines.append(
            f"{depth.depth:5d}  {depth.reached:7d}  {rates}  {depth.rescue(ranks[-1]):7.3f}"
        )
    lines.append(
        f"joined {coverage.joined} verifies; without drafts {coverage.lone_verifies}; proposals "
        f"never verified {coverage.lone_proposals}; unreadable lines {coverage.malformed}"
    )
    return "\n".join(lines)
