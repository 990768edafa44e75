"""Rows of a batch land in the right slots, whatever the tables look like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.runtime.batch import BlockTables, take_rows
from phalanx.runtime.errors import EngineError


def tables(**sizes: int) -> BlockTables:
    return BlockTables(
        num_slots=sizes.get("num_slots", 4),
        max_blocks=sizes.get("max_blocks", 8),
        block_size=sizes.get("block_size", 4),
        device=torch.device("cpu"),
    )


@given(
    spans=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 3, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_rows_equal_a_loop(spans: list[tuple[int, int]], block_size: int, seed: int) -> None:
    target = tables(block_size=block_size, max_blocks=30)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(seed)).tolist()
    blocks = {slot: order[30 * slot : 30 * slot + 30] for slot in range(4)}
    for slot, ids in blocks.items():
        target.write(slot, 0, ids)
    slots = [3, 1, 0, 2][: len(spans)]
    starts, counts = [s for s, _ in spans], [c for _, c in spans]
    got = target.rows(slots, starts, counts)
    positions, physical, sequences = [], [], []
    for index, (slot, (start, count)) in enumerate(zip(slots, spans, strict=True)):
        for position in range(start, start + count):
            block = blocks[slot][position // block_size]
            positions.append(position)
            physical.append(block * block_size + position % block_size)
            sequences.append(index)
    assert got.positions_R.tolist() == positions and got.positions_R.dtype is torch.int64
    assert got.slots_R.tolist() == physical and got.slots_R.dtype is torch.int64
    assert got.row_seq_R.tolist() == sequences and got.row_seq_R.dtype is torch.int32
    assert got.row_last_R.tolist() == positions and got.row_last_R.dtype is torch.int32
    width = max(s + c - 1 for s, c in spans) // block_size + 1
    assert got.block_tables_SB.tolist() == [blocks[slot][:width] for slot in slots]
    assert got.block_tables_SB.dtype is torch.int32 and got.block_tables_SB.is_contiguous()


@given(starts=st.lists(st.integers(0, 20), min_size=1, max_size=4), steps=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_chain_rows_equal_rows_step_by_step(starts: list[int], steps: int) -> None:
    target = tables(max_blocks=30)
    for slot in range(4):
        target.write(slot, 0, range(30 * slot, 30 * slot + 30))
    slots = [3, 1, 0, 2][: len(starts)]
    chain = target.chain_rows(slots, starts, steps)
    assert len(chain) == steps
    for step, got in enumerate(chain):
        expected = target.rows(slots, [start + step for start in starts], [1] * len(slots))
        for name in ("positions_R", "slots_R", "row_seq_R", "row_last_R"):
            assert getattr(got, name).tolist() == getattr(expected, name).tolist()
            assert getattr(got, name).dtype is getattr(expected, name).dtype
            assert getattr(got, name).is_contiguous()
        width = expected.block_tables_SB.shape[1]
        assert got.block_tables_SB[:, :width].tolist() == expected.block_tables_SB.tolist()


def test_entries_past_the_end_are_zero_again_after_a_release() -> None:
    target = tables()
    target.write(0, 0, [5, 6, 7])
    target.clear(0)
    target.write(0, 0, [3])
    target.write(1, 0, [8, 9])
    assert target.rows([0, 1], [0, 4], [1, 1]).block_tables_SB.tolist() == [[3, 0], [8, 9]]


def test_a_table_that_is_too_small_is_an_error() -> None:
    with pytest.raises(EngineError, match="blocks=9, limit 8"):
        tables().write(0, 7, [1, 2])
    with pytest.raises(EngineError, match="slot=4 of 4"):
        tables().write(4, 0, [1])


def test_rows_are_taken_without_a_copy_where_possible() -> None:
    rows = torch.arange(10.0).reshape(5, 2)
    assert take_rows(rows, [0, 1, 2, 3, 4]) is rows
    assert take_rows(rows, [1, 2]).data_ptr() == rows[1].data_ptr()
    assert take_rows(rows, [0, 3]).tolist() == [[0.0, 1.0], [6.0, 7.0]]
