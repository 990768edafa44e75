"""The block allocator never hands out a block twice, counts holders, and prefers neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.runtime.cache.blocks import BlockAllocator
from phalanx.runtime.errors import EngineError

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("free"), st.integers(0, 20)),
        st.tuples(st.just("share"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(num_blocks=st.integers(1, 40), steps=STEPS)
@settings(max_examples=80, deadline=None)
def test_allocator_equals_a_set_of_free_blocks(
    num_blocks: int, steps: list[tuple[str, int, bool] | tuple[str, int]]
) -> None:
    allocator = BlockAllocator(num_blocks)
    holders = [0] * num_blocks
    held: list[list[int]] = []
    for step in steps:
        if step[0] == "allocate":
            after = held[-1][-1] if held and held[-1] and step[-1] else -1
            got = allocator.allocate(step[1], after=after)
            if step[1] > holders.count(0):
                assert got is None
                continue
            assert got is not None and len(set(got)) == len(got) == step[1]
            assert all(holders[block] == 0 for block in got)
            for block in got:
                holders[block] = 1
            held.append(got)
        elif held:
            blocks = held[step[1] % len(held)]
            if step[0] == "share":
                allocator.share(blocks)
                held.append(list(blocks))
                for block in blocks:
                    holders[block] += 1
            else:
                held.remove(blocks)
                allocator.free(blocks)
                for block in blocks:
                    holders[block] -= 1
        assert allocator.num_free == holders.count(0)
        free = [block for first, last in allocator.extents() for block in range(first, last)]
        assert free == [block for block in range(num_blocks) if holders[block] == 0]
        assert [allocator.references(block) for block in range(num_blocks)] == holders
        gaps = allocator.extents()
        assert all(a[1] < b[0] for a, b in pairwise(gaps)), "extents not joined"


def test_a_growing_sequence_gets_the_next_block() -> None:
    allocator = BlockAllocator(64)
    first = allocator.allocate(3)
    second = allocator.allocate(3)
    assert first == [0, 1, 2]
    assert second is not None and second[0] > 10, "the second starts where the first can grow"
    for last in range(3, 12):
        assert allocator.allocate(1, after=last - 1) == [last]


def test_any_free_block_serves_when_the_neighbour_is_taken() -> None:
    allocator = BlockAllocator(4)
    assert allocator.allocate(4) == [0, 1, 2, 3]
    allocator.free([0, 2])
    got = allocator.allocate(2, after=3)
    assert sorted(got or []) == [0, 2]
    assert allocator.allocate(1) is None


def test_a_refused_allocation_takes_nothing() -> None:
    allocator = BlockAllocator(3)
    assert allocator.allocate(4) is None
    assert allocator.num_free == 3


def test_freeing_a_free_block_is_a_defect() -> None:
    allocator = BlockAllocator(3)
    allocator.allocate(1)
    allocator.free([0])
    for block in (0, 2, 7, -1):
        with pytest.raises(EngineError, match=f"block={block}"):
            allocator.free([block])
        with pytest.raises(EngineError, match="share"):
            allocator.share([block])


def test_a_pool_has_a_block() -> None:
    with pytest.raises(EngineError, match="num_blocks=0"):
        BlockAllocator(0)
