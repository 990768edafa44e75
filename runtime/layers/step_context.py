"""StepContext: what a layer needs to know about this step; passed as an argument, never global.

Shape legend: R rows of the step, S sequences, B blocks of the longest block table.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.kernels.kernel_set import KernelSet
from phalanx.runtime.cache.kv_pool import KVPool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """One forward: rows of every scheduled sequence, sequence-major, and where their KV lives."""

    tokens_R: Tensor
    """int64 token ids."""
    positions_R: Tensor
    """int64 positions in their sequences; also the rotary positions."""
    slots_R: Tensor
    """int64 physical KV slot of each row: block * block_size + offset."""
    block_tables_SB: Tensor
    """int32 physical block of each logical block; entries past a sequence's end are 0."""
    row_seq_R: Tensor
    """int32 sequence of each row."""
    row_last_R: Tensor
    """int32 last logical position a row attends to, itself included."""
    kv: KVPool
    kernels: KernelSet
    comm: Communicator
