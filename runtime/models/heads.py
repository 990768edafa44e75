"""Draft networks. `MtpHead` is the network; the drafting loop is proposers/mtp.py.

MTP as in DeepSeek-V3 (arXiv:2412.19437, section 2.2) and GLM-4-MoE: the embedding of the next
token and the target's hidden are normalised, concatenated, projected to one hidden, and go
through one decoder layer. Pair key k is (embedding of token t[k+1], hidden h[k]); its rotary
position and its logical KV position are both k. It satisfies proposers.base.DraftHead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.kernels.kernel_set import KernelSet
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.layers.decoder import DecoderLayer
from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.layers.vocab import TokenEmbedding, TokenPicks, VocabHead


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpHead:
    """One MTP layer with its norms and its (possibly reduced) vocabulary head."""

    embedding: TokenEmbedding
    enorm_D: Tensor
    hnorm_D: Tensor
    eh_proj_D2D: Tensor
    """[D, 2D]; the embedding's columns first."""
    layer: DecoderLayer
    norm_D: Tensor
    head: VocabHead
    kv: KVPool
    kernels: KernelSet
    comm: Communicator
    eps: float

    def extend(
        self,
        *,
        tokens_R: Tensor,
        hidden_RD: Tensor,
        positions_R: Tensor,
        slots_R: Tensor,
        block_tables_SB: Tensor,
        row_seq_R: Tensor,
        row_last_R: Tensor,
    ) -> Tensor:
        """Write the rows' keys and values and return the layer's residual output [R, D].

        `tokens_R` are the tokens after each row; `hidden_RD` the target's hidden as
        `CausalModel.drafter_hidden` gives it, or this head's own output of the draft before.
        """
        kernels = self.kernels
        normed_e = kernels.rms_norm(self.embedding.forward(tokens_R), self.enorm_D, self.eps)
        normed_h = kernels.rms_norm(hidden_RD, self.hnorm_D, self.eps)
        x_RD = kernels.linear(torch.cat([normed_e, normed_h], dim=1), self.eh_proj_D2D)
        context = StepContext(
            tokens_R=tokens_R,
            positions_R=positions_R,
            slots_R=slots_R,
            block_tables_SB=block_tables_SB,
            row_seq_R=row_seq_R,
            row_last_R=row_last_R,
            kv=self.kv,
            kernels=kernels,
            comm=self.comm,
        )
        out_RD, residual_RD = self.layer.forward(x_RD, None, context)
        return residual_RD + out_RD

    def pick(self, hidden_RD: Tensor) -> TokenPicks:
        """The most likely draft of each row, identical on every rank that runs the drafter."""
        return self.head.pick(self.kernels.rms_norm(hidden_RD, self.norm_D, self.eps))
