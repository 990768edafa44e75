"""Canonical depth-to-slot order of a verify batch, and the graph key made from it.

A captured verify is keyed by (slot, rows) of every member. Left alone, the same multiset of
depths meets the same slots in hundreds of arrangements, each a capture of its own. The canonical
order sorts the members by slot and hands the deepest depths to the lowest slots, so that one
multiset makes one key (8 streams, three multisets seen in service: 266 keys become 3). Narrow
batches keep the legacy order: deepest first, confident streams keep their depth.

rows = drafts + 1 of one member; index = position in the batch as it was handed in. Pure: no
torch, no environment. `verify_batch_order` re-pairs depths and slots, so it is called exactly
once per batch; everything after it only permutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.proposers.policy.dcut import ROW_BUDGET, DcutSettings, chunk_ranges, kept_prunable

DEFAULT_MIN_WIDTH: Final = 8
SENTINEL: Final = 0xFFFFFFFF
MAX_SLOT: Final = 0xFFFFFFFB
"""Slots stay below every sentinel word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGate:
    """From which batch width on the canonical order holds."""

    min_width: int = DEFAULT_MIN_WIDTH
    """CANONICAL_KEY_MIN_WIDTH; 0 = always."""
    disabled: bool = False
    """NO_CANONICAL_VERIFY_KEY (presence): the legacy order at every width."""

    @classmethod
    def resolve(cls, *, min_width: str | None = None, kill_switch: str | None = None) -> KeyGate:
        """Resolve the two flags; an unreadable or negative width gives 8."""
        return cls(min_width=parse_min_width(min_width), disabled=kill_switch is not None)

    def canonical_assignment(self, width: int) -> bool:
        """Whether a batch of `width` is ordered canonically. The kill switch dominates.

        `width` is the whole batch before it is cut into chunks: whoever orders the batch and
        whoever permutes a chunk must ask with the same number.
        """
        return not self.disabled and width >= self.min_width


def parse_min_width(raw: str | None) -> int:
    """CANONICAL_KEY_MIN_WIDTH: a non-negative integer, spaces allowed; else 8."""
    text = "" if raw is None else raw.strip().removeprefix("+")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else DEFAULT_MIN_WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """Dispatch order of one batch."""

    indices: tuple[int, ...]
    """Input indices in dispatch order."""
    rows: tuple[int, ...]
    """Rows by dispatch position. A member is truncated to rows - 1 drafts."""


def _check_lengths(slots: Sequence[int], rows: Sequence[int]) -> None:
    if len(slots) != len(rows):
        raise ValueError(
            f"verify batch out of step (slots={len(slots)}, rows={len(rows)}) -- depths would be "
            "paired with the wrong sequences -- pass one row count per slot"
        )


def verify_batch_permutation(
    slots: Sequence[int], rows: Sequence[int], *, canonical: bool
) -> tuple[int, ...]:
    """Input indices in dispatch order; nobody's depth changes.

    Canonical: by slot. Legacy: deepest first, then by slot. Ties keep the input order.

    Raises:
        ValueError: `slots` and `rows` differ in length.
    """
    _check_lengths(slots, rows)
    if canonical:
        return tuple(sorted(range(len(slots)), key=slots.__getitem__))
    return tuple(sorted(range(len(slots)), key=lambda index: (-rows[index], slots[index])))


def verify_batch_order(slots: Sequence[int], rows: Sequence[int], *, canonical: bool) -> BatchOrder:
    """Dispatch order and the depth each position verifies.

    Canonical: the multiset of depths, deepest first, is dealt out along ascending slots. Legacy:
    every member keeps its own.

    Raises:
        ValueError: `slots` and `rows` differ in length.
    """
    indices = verify_batch_permutation(slots, rows, canonical=canonical)
    if canonical:
        return BatchOrder(indices=indices, rows=tuple(sorted(rows, reverse=True)))
    return BatchOrder(indices=indices, rows=tuple(rows[index] for index in indices))


def sentinel_word(*, tables_null: bool = False, write_on_accept: bool = False) -> int:
    """Last key word: the two switches of the recurrent verify that change its kernels."""
    return SENTINEL - int(tables_null) - 2 * int(write_on_accept)


def verify_graph_key(
    slots: Sequence[int],
    rows: Sequence[int],
    *,
    tables_null: bool = False,
    write_on_accept: bool = False,
) -> tuple[int, ...] | None:
    """Key words slot0, rows0, slot1, rows1, ..., sentinel, in dispatch order.

    An empty batch has the sentinel alone. None when a sequence has no slot (negative): such a
    batch runs without a graph.

    Raises:
        ValueError: `slots` and `rows` differ in length.
    """
    _check_lengths(slots, rows)
    if slots and not 0 <= min(slots) <= max(slots) <= MAX_SLOT:
        return None
    words = [0] * (2 * len(slots) + 1)
    words[0:-1:2] = slots
    words[1:-1:2] = rows
    words[-1] = sentinel_word(tables_null=tables_null, write_on_accept=write_on_accept)
    return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpace:
    """Every key one batch width can produce: to size a graph cache, and to audit one.

    Iterating yields each key once. Depths are any assignment of min_rows .. max_rows to the
    slots, restricted to a sum of `total_rows` when that is given (what D-Cut keeps is fixed by
    width and depth). Batches above the row budget give the keys of their chunks.
    """

    slots: tuple[int, ...]
    """Ascending; after compaction 0 .. width - 1. Empty: no batch, no key."""
    min_rows: int
    max_rows: int
    canonical: bool
    total_rows: int | None = None
    row_budget: int = ROW_BUDGET
    sentinels: tuple[int, ...] = (SENTINEL,)

    @property
    def one_chunk(self) -> bool:
        """No batch of this space is cut: even a deepest-first member leaves room for all."""
        return len(self.slots) * self.max_rows <= self.row_budget

    def count(self) -> int:
        """How many keys there are. Counted without listing them unless batches are chunked."""
        if not self.slots:
            return 0
        if not self.one_chunk:
            return sum(1 for _ in self)
        return self._count_depths() * len(self.sentinels)

    def _count_depths(self) -> int:
        """Assignments (legacy) or multisets (canonical) of rows, by number of members and sum."""
        width = len(self.slots)
        ways: dict[tuple[int, int], int] = {(0, 0): 1}
        if self.canonical:
            for rows in range(self.min_rows, self.max_rows + 1):
                grown: dict[tuple[int, int], int] = {}
                for (members, total), count in ways.items():
                    for extra in range(width - members + 1):
                        state = (members + extra, total + extra * rows)
                        grown[state] = grown.get(state, 0) + count
                ways = grown
        else:
            for _ in range(width):
                grown = {}
                for (members, total), count in ways.items():
                    for rows in range(self.min_rows, self.max_rows + 1):
                        state = (members + 1, total + rows)
                        grown[state] = grown.get(state, 0) + count
                ways = grown
        return sum(
            count
            for (members, total), count in ways.items()
            if members == width and self.total_rows in (None, total)
        )

    def _depths(self, width: int, deepest: int, total: int | None) -> Iterator[tuple[int, ...]]:
        """Row tuples of `width` members; non-increasing when canonical."""
        if width == 0:
            if total in (None, 0):
                yield ()
            return
        for rows in range(deepest, self.min_rows - 1, -1):
            left = None if total is None else total - rows
            ceiling = rows if self.canonical else self.max_rows
            if (
                left is not None
                and not (width - 1) * self.min_rows <= left <= (width - 1) * ceiling
            ):
                continue
            for rest in self._depths(width - 1, ceiling, left):
                yield (rows, *rest)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Each reachable key once."""
        seen: set[tuple[int, ...]] = set()
        for rows in self._depths(len(self.slots), self.max_rows, self.total_rows):
            order = verify_batch_order(self.slots, rows, canonical=self.canonical)
            for start, end in chunk_ranges(order.rows, row_budget=self.row_budget):
                words: list[int] = []
                for index, depth in zip(
                    order.indices[start:end], order.rows[start:end], strict=True
                ):
                    words += (self.slots[index], depth)
                for sentinel in self.sentinels:
                    key = (*words, sentinel)
                    if key not in seen:
                        seen.add(key)
                        yield key

    def __contains__(self, key: object) -> bool:
        """Whether a batch of this space can ask for `key`. Lists the space when it is chunked."""
        if not isinstance(key, tuple) or not self.slots:
            return False
        if not self.one_chunk:
            return any(key == reachable for reachable in self)
        slots, rows = key[0:-1:2], key[1:-1:2]
        if len(slots) != len(rows) or tuple(sorted(slots)) != self.slots:
            return False
        in_range = all(self.min_rows <= depth <= self.max_rows for depth in rows)
        total_fits = self.total_rows in (None, sum(rows))
        order = verify_batch_order(slots, rows, canonical=self.canonical)
        in_order = order.indices == tuple(range(len(slots))) and order.rows == rows
        return in_range and total_fits and in_order and key[-1] in self.sentinels


def ladder_key_spaces(
    depths_at: Callable[[int], Iterable[int]],
    *,
    widths: Iterable[int],
    gate: KeyGate,
    dcut: DcutSettings,
    ragged: bool = False,
    min_rows: int = 2,
    sentinels: tuple[int, ...] = (SENTINEL,),
) -> tuple[KeySpace, ...]:
    """The key spaces of every width: what a configuration can ever ask a graph cache for.

    `depths_at(width)` names every draft count the policies may pick there (0 = no verify). Slots
    are taken as compacted. By default depths are uniform, or what D-Cut keeps; `ragged` allows
    any mixture from `min_rows` up (confidence stop, copied drafts, bootstrap rows of 1).
    """
    spaces: list[KeySpace] = []
    for width in widths:
        depths = sorted({depth for depth in depths_at(width) if depth >= 1})
        for drafts in depths[-1:] if ragged else depths:  # a deep mixture holds the shallow ones
            lowest, total = drafts + 1, None
            if ragged:
                lowest = min_rows
            elif dcut.prunes(width, drafts):
                kept = kept_prunable(width, drafts, row_budget=dcut.row_budget, ratio=dcut.ratio)
                lowest, total = 2, 2 * width + kept
            spaces.append(
                KeySpace(
                    slots=tuple(range(width)),
                    min_rows=lowest,
                    max_rows=drafts + 1,
                    canonical=gate.canonical_assignment(width),
                    total_rows=total,
                    row_budget=dcut.row_budget,
                    sentinels=sentinels,
                )
            )
    return tuple(spaces)


def reachable_keys(spaces: Iterable[KeySpace]) -> Iterator[tuple[int, ...]]:
    """Each key of any space once. The sum of their counts is an upper bound that needs no
    listing: two spaces share keys only where batches are chunked or depths overlap."""
    seen: set[tuple[int, ...]] = set()
    for space in spaces:
        for key in space:
            if key not in seen:
                seen.add(key)
                yield key


def unreachable_keys(
    captured: Iterable[tuple[int, ...]], spaces: Sequence[KeySpace]
) -> tuple[tuple[int, ...], ...]:
    """Captured keys that no space can ask for: wasted captures, or a wrong enumeration."""
    whole = [space for space in spaces if space.one_chunk]
    chunks = {key for space in spaces if not space.one_chunk for key in space}
    return tuple(
        key for key in captured if key not in chunks and not any(key in space for space in whole)
    )
