"""The paged key and value tensors; block bookkeeping lives elsewhere and has no tensors.

One pool for the target's layers and, behind them, the MTP layer: the drafter's key k sits at
logical position k of the same block table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.runtime.models.spec import ModelSpec


def kv_layers(spec: ModelSpec) -> int:
    """Layers that keep keys and values: the target's and the MTP layer's."""
    return spec.num_layers + spec.num_mtp_layers


def bytes_per_block(spec: ModelSpec, *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values together."""
    row = spec.num_kv_heads * spec.head_dim * dtype.itemsize
    return 2 * kv_layers(spec) * block_size * row


class KVPool:
    """Keys and values of every layer, [num_blocks, block_size, num_kv_heads, head_dim] each."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"empty KV pool (num_blocks={num_blocks}, block_size={block_size}, limit >= 1) -- "
                "no token could be kept -- give the cache more memory"
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = (kv_layers(spec), 2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        self._storage = torch.zeros(shape, dtype=dtype, device=device)
        self._layers = [(pair[0], pair[1]) for pair in self._storage]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(key pool, value pool) of one layer; the MTP layer is index `num_layers`."""
        return self._layers[index]

    @property
    def bytes(self) -> int:
        """Memory held by the pool."""
        return self._storage.nbytes
