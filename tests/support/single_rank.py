"""One rank of a model in this process, with the smallest possible batching."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import ExpertPlacement
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.models.architectures import load_model
from phalanx.runtime.models.decoder_model import DecoderModel
from phalanx.runtime.models.spec import load_spec

BLOCK_SIZE = 8


def load_single(
    folder: Path, *, dtype: torch.dtype = torch.float32, backend: Backend = Backend.REFERENCE
) -> DecoderModel:
    """The whole model on one rank."""
    model, _ = load_model(
        folder,
        dtype=dtype,
        comm=LocalCommunicator(),
        kernels=make_kernels(backend, num_threads=1),
        placement=ExpertPlacement(num_experts=load_spec(folder).num_experts, world_size=1),
    )
    return model


class OneSequence:
    """Feeds rows of one sequence whose blocks are scattered on purpose."""

    def __init__(self, model: DecoderModel, *, num_blocks: int = 16) -> None:
        self.model = model
        self.kv = KVPool(model.spec, num_blocks=num_blocks, block_size=BLOCK_SIZE)
        for layer in range(model.spec.num_layers + model.spec.num_mtp_layers):
            for pool in self.kv.layer(layer):
                pool.fill_(float("nan"))
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(3))
        self.table = order.to(torch.int32)[None]
        self.kernels: KernelSet = model.kernels

    def context(self, tokens: list[int], start: int) -> StepContext:
        """Rows `start ..` of the sequence."""
        positions = torch.arange(start, start + len(tokens))
        blocks = self.table[0, positions // BLOCK_SIZE].long()
        return StepContext(
            tokens_R=torch.tensor(tokens),
            positions_R=positions,
            slots_R=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            block_tables_SB=self.table,
            row_seq_R=torch.zeros(len(tokens), dtype=torch.int32),
            row_last_R=positions.to(torch.int32),
            kv=self.kv,
            kernels=self.kernels,
            comm=self.model.comm,
        )

    def forward(self, tokens: list[int], start: int) -> Tensor:
        """Hidden of the rows."""
        return self.model.forward(self.context(tokens, start))
