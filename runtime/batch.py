"""Block tables, and a command's sequences to the index tensors of one forward.

R rows sequence-major, S sequences, B blocks of the longest table in this forward. The tables are
host memory on every rank; one forward's tensors are made by a handful of vectorised steps whatever
the batch, and their size depends on the longest context only through B.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phalanx.proposers.base import DraftRows
from phalanx.runtime.errors import EngineError


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
        size = self.block_size
        num_rows = np.array(counts, dtype=np.int64)
        first = np.array(starts, dtype=np.int64)
        slot_S = np.array(slots, dtype=np.int64)
        ends = first + num_rows
        width = (int(ends.max()) - 1) // size + 1
        tables_SB = self._tables[:, :width].take(slot_S, axis=0)
        seq_R = np.arange(len(slot_S), dtype=np.int64).repeat(num_rows)
        offset_S = ends - num_rows.cumsum()
        positions_R = np.arange(len(seq_R), dtype=np.int64) + offset_S.repeat(num_rows)
        block_R, within_R = np.divmod(positions_R, size)
        slots_R = tables_SB[seq_R, block_R].astype(np.int64) * size + within_R
        return DraftRows(
            positions_R=self._tensor(positions_R),
            slots_R=self._tensor(slots_R),
            block_tables_SB=self._tensor(tables_SB),
            row_seq_R=self._tensor(seq_R.astype(np.int32)),
            row_last_R=self._tensor(positions_R.astype(np.int32)),
        )

    def token_tensor(self, tokens: Sequence[int]) -> Tensor:
        """[R] int64 on the device."""
        return torch.tensor(tokens, dtype=torch.int64, device=self._device)

    def _tensor(self, array: np.ndarray) -> Tensor:
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
