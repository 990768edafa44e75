"""Block allocator and reference counts; no tensors. Rank 0 alone allocates and sends the ids.

Free blocks are kept as extents (runs of consecutive ids), because consecutive blocks of one
sequence are cheaper to read. A sequence that grows gets the block after its last one whenever it
is free; a new sequence starts in the middle of the largest free extent when another sequence ends
just before it, so that both have room to grow. All of this is preference: any free block serves.
Costs grow with the number of extents (a few per sequence), never with the size of the pool.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from phalanx.runtime.errors import EngineError


class BlockAllocator:
    """Blocks 0 .. num_blocks-1, each with a count of its holders."""

    __slots__ = ("_ends", "_num_free", "_refs", "_starts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        """Raises EngineError for a pool without blocks."""
        if num_blocks < 1:
            raise EngineError(
                f"cache pool without blocks (num_blocks={num_blocks}, limit >= 1) -- no sequence "
                "could run -- give the pool at least one block"
            )
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._starts: list[int] = [0]
        self._ends: dict[int, int] = {0: num_blocks}
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return self._num_free

    def references(self, block: int) -> int:
        """Holders of a block."""
        return self._refs[block]

    def can_allocate(self, count: int) -> bool:
        """`allocate` of this many would succeed."""
        return count <= self._num_free

    def allocate(self, count: int, *, after: int = -1) -> list[int] | None:
        """`count` blocks with one holder each, or None (and nothing taken) if too few are free.

        `after` is the caller's last block; -1 = this is its first.
        """
        if count > self._num_free:
            return None
        ids: list[int] = []
        if after >= 0 and count:
            self._take(after + 1, count, ids)
        while len(ids) < count:
            self._take(self._place(count - len(ids)), count - len(ids), ids)
        for block in ids:
            self._refs[block] = 1
        return ids

    def share(self, blocks: Sequence[int]) -> None:
        """One holder more for each block.

        Raises:
            EngineError: a block that nobody holds.
        """
        for block in blocks:
            self._held(block, "share")
            self._refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One holder less for each block; the last one gives it back.

        Raises:
            EngineError: a block that nobody holds.
        """
        for block in blocks:
            self._held(block, "free")
            self._refs[block] -= 1
            if not self._refs[block]:
                self._give_back(block)

    def extents(self) -> list[tuple[int, int]]:
        """Free runs as (first, one past the last), ascending."""
        return [(start, self._ends[start]) for start in self._starts]

    def _held(self, block: int, act: str) -> None:
        if not 0 <= block < self.num_blocks or self._refs[block] == 0:
            raise EngineError(
                f"cannot {act} a block that nobody holds (block={block}, pool "
                f"{self.num_blocks}) -- two sequences would write into it -- this is a defect of "
                "the scheduler's bookkeeping"
            )

    def _place(self, count: int) -> int:
        """Where a new run starts: the largest free extent, or its middle behind a neighbour."""
        start = max(self._starts, key=lambda first: self._ends[first] - first)
        size = self._ends[start] - start
        crowded = start > 0 and size >= 4 * count
        return start + size // 2 if crowded else start

    def _take(self, first: int, count: int, ids: list[int]) -> None:
        """Move up to `count` free blocks from `first` on into `ids`; none if it is not free."""
        at = bisect_right(self._starts, first) - 1
        if at < 0:
            return
        start = self._starts[at]
        end = self._ends[start]
        if first >= end:
            return
        last = min(end, first + count)
        ids += range(first, last)
        self._num_free -= last - first
        if start == first:
            del self._starts[at], self._ends[start]
        else:
            self._ends[start] = first
        if last < end:
            insort(self._starts, last)
            self._ends[last] = end

    def _give_back(self, block: int) -> None:
        """Return one block, joined with the extents around it."""
        self._num_free += 1
        at = bisect_left(self._starts, block)
        end = block + 1
        if at < len(self._starts) and self._starts[at] == end:
            end = self._ends.pop(end)
            del self._starts[at]
        if at > 0 and self._ends[self._starts[at - 1]] == block:
            self._ends[self._starts[at - 1]] = end
        else:
            self._starts.insert(at, block)
            self._ends[block] = end
