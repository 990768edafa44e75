"""Block tables, and a command's sequences to the index tensors of one forward.

R rows sequence-major, S sequences, B blocks of the longest table in this forward. The tables are
host memory on every rank; one forward's tensors are made by a handful of vectorised steps whatever
the batch, and their size depends on the longest context only through B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.proposers.base import DraftRows
from phalanx.runtime.errors import EngineError

Ints = NDArray[Any]


class BlockTables:
    """Physical block of each logical block of each slot; entries past the end are 0."""

    __slots__ = ("_device", "_tables", "block_size")

    def __init__(
        self, *, num_slots: int, max_blocks: int, block_size: int, device: torch.device
    ) -> None:
        """`max_blocks` bounds one sequence's table."""
        self.block_size = block_size
        self._tables = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self._device = device

    def write(self, slot: int, at: int, blocks: Sequence[int]) -> None:
        """Put `blocks` at logical blocks `at` and after.

        Raises:
            EngineError: the table or the slot is outside what was sized.
        """
        num_slots, max_blocks = self._tables.shape
        if not (0 <= slot < num_slots and at + len(blocks) <= max_blocks):
            raise EngineError(
                f"block table too small (slot={slot} of {num_slots}, blocks={at + len(blocks)}, "
                f"limit {max_blocks}) -- the ranks were sized for shorter sequences -- start every "
                "rank with one configuration"
            )
        self._tables[slot, at : at + len(blocks)] = blocks

    def clear(self, slot: int) -> None:
        """The slot is empty again."""
        self._tables[slot] = 0

    def rows(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> DraftRows:
        """Rows at logical positions starts[i] .. starts[i]+counts[i]-1 of each slot, as tensors.

        positions_R, slots_R int64; block_tables_SB, row_seq_R, row_last_R int32. Causal: a row
        attends to the positions up to its own.
        """
        if len(slots) == 1:
            return self._one_sequence(slots[0], starts[0], counts[0])
        num_rows = np.array(counts, dtype=np.int64)
        ends = np.array(starts, dtype=np.int64) + num_rows
        width = (int(ends.max()) - 1) // self.block_size + 1
        tables_SB = self._tables[:, :width].take(slots, axis=0)
        seq_R = np.arange(len(slots), dtype=np.int32).repeat(num_rows)
        offset_S = ends - num_rows.cumsum()
        positions_R = np.arange(len(seq_R), dtype=np.int64) + offset_S.repeat(num_rows)
        return self._made(
            tables_SB, positions_R, self._physical(tables_SB, seq_R, positions_R), seq_R
        )

    def chain_rows(
        self, slots: Sequence[int], starts: Sequence[int], steps: int
    ) -> list[DraftRows]:
        """One row per slot for each of `steps` forwards: step i at positions starts[..] + i.

        The tables and the row's owners are the same tensors in every step.
        """
        first_S = np.array(starts, dtype=np.int64)
        width = (int(first_S.max()) + steps - 1) // self.block_size + 1
        tables_SB = self._tables[:, :width].take(slots, axis=0)
        seq_S = np.arange(len(slots), dtype=np.int32)
        positions_TS = first_S + np.arange(steps, dtype=np.int64)[:, None]
        slots_TS = self._physical(tables_SB, seq_S, positions_TS)
        whole = self._made(tables_SB, positions_TS, slots_TS, seq_S)
        parts = zip(whole.positions_R, whole.slots_R, whole.row_last_R, strict=True)
        return [
            DraftRows(
                positions_R=positions_S,
                slots_R=slots_S,
                block_tables_SB=whole.block_tables_SB,
                row_seq_R=whole.row_seq_R,
                row_last_R=last_S,
            )
            for positions_S, slots_S, last_S in parts
        ]

    def _one_sequence(self, slot: int, start: int, count: int) -> DraftRows:
        """The same for one slot, without what only several need."""
        positions_R = np.arange(start, start + count, dtype=np.int64)
        # A copy: the forward may still read it on a device when the table grows.
        table_1B = self._tables[
            slot : slot + 1, : (start + count - 1) // self.block_size + 1
        ].copy()
        block_R = positions_R // self.block_size
        slots_R = positions_R + (table_1B[0, block_R] - block_R) * self.block_size
        return self._made(table_1B, positions_R, slots_R, np.zeros(count, dtype=np.int32))

    def _physical(self, tables_SB: Ints, seq_R: Ints, positions: Ints) -> Ints:
        """block * block_size + offset of each position; `seq_R` broadcasts against it."""
        block = positions // self.block_size
        slots: Ints = positions + (tables_SB[seq_R, block] - block) * self.block_size
        return slots

    def _made(self, tables_SB: Ints, positions: Ints, slots: Ints, seq: Ints) -> DraftRows:
        return DraftRows(
            positions_R=self._tensor(positions),
            slots_R=self._tensor(slots),
            block_tables_SB=self._tensor(tables_SB),
            row_seq_R=self._tensor(seq),
            row_last_R=self._tensor(positions.astype(np.int32)),
        )

    def token_tensor(self, tokens: Sequence[int]) -> Tensor:
        """[R] int64 on the device."""
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)

    def _tensor(self, array: Ints) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


def take_rows(rows_RD: Tensor, indices: Sequence[int]) -> Tensor:
    """Rows by index, in order; the tensor itself when all of them are taken."""
    if len(indices) == rows_RD.shape[0]:
        return rows_RD
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return rows_RD[first : last + 1]
    return rows_RD.index_select(0, torch.tensor(indices, device=rows_RD.device))
