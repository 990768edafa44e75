"""Draft shapes: chains and trees as parent arrays.

A tree is a spine (the drafter's top-1 chain, one node a depth) plus hedges: the 2nd .. 4th best
token at a depth, leaves only. Verify rows:

    row 0        root = last committed token     depth 0
    rows 1..L    spine, by depth                 parent d - 1
    rows L+1..   hedges by (depth, rank)         parent d - 1, the spine node above

A row sees all committed tokens, its ancestors and itself: a hedge sees neither its spine sibling
nor another hedge, and shares its sibling's position. All counts 1 = a plain chain, row for row.
The emitted tokens are those of plain greedy decoding whatever was drafted: each accepted row
equals the target's pick at its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_RANK: Final = 4
"""Nodes at one depth."""

MAX_NODES: Final = 7
"""Drafted tokens of one tree; verify rows are one more."""


class TreeShapeError(ValueError):
    """A tree shape, or the tokens for one, that cannot be verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """Nodes per depth: `counts[d - 1]` = 1 spine node + hedges at depth d."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises TreeShapeError for an empty shape, a count outside 1..4, or over 7 nodes."""
        if not self.counts:
            trouble = "no depth"
        elif not all(1 <= count <= MAX_RANK for count in self.counts):
            trouble = f"counts must be 1..{MAX_RANK}"
        elif sum(self.counts) > MAX_NODES:
            trouble = f"{sum(self.counts)} nodes, limit {MAX_NODES}"
        else:
            return
        raise TreeShapeError(
            f"draft tree refused (tree_shape={','.join(map(str, self.counts))!r}, {trouble}) -- "
            f"one verify carries at most {MAX_NODES + 1} rows -- write nodes per depth, like 1,2,2"
        )

    @classmethod
    def chain(cls, depth: int) -> TreeShape:
        """The shape of a plain chain of `depth` drafts."""
        return cls(counts=(1,) * depth)

    @property
    def spine_len(self) -> int:
        """Depths."""
        return len(self.counts)

    @property
    def num_nodes(self) -> int:
        """Drafted tokens."""
        return sum(self.counts)

    @property
    def verify_width(self) -> int:
        """Rows: the nodes and the root."""
        return self.num_nodes + 1

    @property
    def is_chain(self) -> bool:
        """No hedges: must behave exactly like a chain of drafts."""
        return self.num_nodes == self.spine_len

    @property
    def shape_id(self) -> int:
        """One number per shape, for the graph key: counts as hexadecimal digits."""
        folded = 0
        for count in self.counts:
            folded = folded * 16 + count
        return folded

    def depths(self) -> tuple[int, ...]:
        """Depth by row; the logical position of a row is committed length + depth."""
        hedges = (
            depth for depth, count in enumerate(self.counts, start=1) for _ in range(count - 1)
        )
        return (*range(self.spine_len + 1), *hedges)

    def parents(self) -> tuple[int, ...]:
        """Parent row by row; -1 for the root. Parents come before their children."""
        return tuple(depth - 1 for depth in self.depths())

    def hedge_slots(self) -> tuple[tuple[int, int], ...]:
        """(depth, rank) of every hedge in row order; rank 2 = the second best token."""
        return tuple(
            (depth, rank)
            for depth, count in enumerate(self.counts, start=1)
            for rank in range(2, count + 1)
        )


def parse_tree_shape(raw: str | None) -> TreeShape | None:
    """Parse TREE_SHAPE, `c1,c2,...`; None when unset.

    Raises:
        TreeShapeError: a piece that is no small unsigned integer, or a shape out of limits.
    """
    if raw is None:
        return None
    counts: list[int] = []
    for piece in raw.split(","):
        text = piece.strip().removeprefix("+")
        if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 255):
            raise TreeShapeError(
                f"draft tree not understood (tree_shape={raw!r}, piece {piece!r}) -- a shape "
                "nobody asked for must not run -- write nodes per depth, like 1,2,2"
            )
        counts.append(int(text))
    return TreeShape(counts=tuple(counts))


def positions(shape: TreeShape, committed_len: int) -> tuple[int, ...]:
    """Logical position by row; the root holds the last committed token's."""
    return tuple(committed_len + depth for depth in shape.depths())


def ancestor_mask(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which rows each row sees: `mask[row, other]`, shape `[rows, rows]`, itself included.

    Every row sees all committed tokens besides. Works for any tree whose parents come before
    their children (-1 = a root).

    Raises:
        TreeShapeError: a parent that does not come before its child.
    """
    rows = len(parents)
    mask = np.zeros((rows, rows), dtype=np.bool_)
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise TreeShapeError(
                f"parents out of order (row={row}, parent={parent}) -- rows are computed in "
                "order -- number the rows so that each parent comes first"
            )
        if parent >= 0:
            mask[row] = mask[parent]
        mask[row, row] = True
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """An alternative to the spine token of its depth."""

    depth: int
    rank: int
    """2 = the second best token of the drafter."""
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """The tokens of one tree."""

    spine: tuple[int, ...]
    hedges: tuple[Hedge, ...] = ()
    """In (depth, rank) order."""

    def __post_init__(self) -> None:
        """Raises TreeShapeError unless ranks and depths make a legal shape of distinct siblings."""
        depths = len(self.spine)
        places = [(hedge.depth, hedge.rank) for hedge in self.hedges]
        per_depth = [sum(1 for depth, _ in places if depth == d + 1) for d in range(depths)]
        shape = TreeShape(counts=tuple(1 + hedges for hedges in per_depth))
        tokens = {(depth, token) for depth, token in enumerate(self.spine, start=1)}
        tokens |= {(hedge.depth, hedge.token) for hedge in self.hedges}
        if tuple(places) != shape.hedge_slots() or len(tokens) != shape.num_nodes:
            raise TreeShapeError(
                f"draft tree refused (spine={list(self.spine)}, hedges={places}) -- the accept "
                "walk needs hedges ranked 2, 3, .. in depth order and distinct siblings -- take "
                "them from one top-k per depth"
            )

    @classmethod
    def from_topk(cls, shape: TreeShape, topk: Sequence[Sequence[int]]) -> DraftTree:
        """Build from the drafter's best tokens per depth along its top-1 chain.

        `topk[d - 1]` holds at least `shape.counts[d - 1]` distinct tokens, best first.
        """
        if len(topk) < shape.spine_len or any(
            len(best) < count for best, count in zip(topk, shape.counts, strict=False)
        ):
            raise TreeShapeError(
                f"too few candidates (tree_shape={list(shape.counts)}, "
                f"topk={[len(best) for best in topk]}) -- every node needs a token -- draft with a "
                "larger top-k or a smaller shape"
            )
        hedges = tuple(
            Hedge(depth=depth, rank=rank, token=topk[depth - 1][rank - 1])
            for depth, rank in shape.hedge_slots()
        )
        return cls(spine=tuple(best[0] for best in topk[: shape.spine_len]), hedges=hedges)

    @property
    def shape(self) -> TreeShape:
        """Nodes per depth."""
        counts = [1] * len(self.spine)
        for hedge in self.hedges:
            counts[hedge.depth - 1] += 1
        return TreeShape(counts=tuple(counts))

    def tokens(self, root: int) -> tuple[int, ...]:
        """Input token by row; `root` is the last committed token."""
        return (root, *self.spine, *(hedge.token for hedge in self.hedges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What a verify accepted."""

    path: tuple[int, ...]
    """Accepted rows, shallow to deep."""
    bonus: int
    """The target's pick after the last accepted row; always emitted."""

    @property
    def num_accepted(self) -> int:
        """Accepted drafts."""
        return len(self.path)

    @property
    def last_row(self) -> int:
        """The row whose hidden state and recurrent state continue the sequence."""
        return self.path[-1] if self.path else 0

    def moved_row(self) -> tuple[int, int] | None:
        """(row, depth) of an accepted hedge: its cache entry moves to the spine's place of that
        depth, committed length + depth. None when the path is all spine."""
        if self.path and self.path[-1] != len(self.path):
            return self.path[-1], len(self.path)
        return None


def _check_picks(num_rows: int, picks: Sequence[int]) -> None:
    if len(picks) != num_rows:
        raise TreeShapeError(
            f"picks out of step (rows={num_rows}, picks={len(picks)}) -- every verify row has one "
            "target pick -- pass them in row order"
        )


def walk_chain(drafts: Sequence[int], picks: Sequence[int]) -> Walk:
    """Accept the drafts up to the first that differs from the target's pick.

    `picks[row]` is the target's pick after row `row`: len(drafts) + 1 of them.

    Raises:
        TreeShapeError: another number of picks.
    """
    _check_picks(len(drafts) + 1, picks)
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == picks[accepted]:
        accepted += 1
    return Walk(path=tuple(range(1, accepted + 1)), bonus=picks[accepted])


def walk_tree(tree: DraftTree, picks: Sequence[int]) -> Walk:
    """Follow the target's picks down the tree: the spine first, a hedge ends the walk.

    `picks[row]` is the target's pick after row `row`, in row order.

    Raises:
        TreeShapeError: another number of picks than rows.
    """
    spine_len = len(tree.spine)
    _check_picks(1 + spine_len + len(tree.hedges), picks)
    hedge_rows = {
        (hedge.depth, hedge.token): spine_len + 1 + place for place, hedge in enumerate(tree.hedges)
    }
    path: list[int] = []
    for depth, token in enumerate(tree.spine, start=1):
        wanted = picks[depth - 1]  # the walk stands on spine row depth - 1
        if wanted == token:
            path.append(depth)
            continue
        hedge_row = hedge_rows.get((depth, wanted))
        if hedge_row is not None:
            path.append(hedge_row)
        break
    return Walk(path=tuple(path), bonus=picks[path[-1] if path else 0])
