"""Token embedding, and the LM head split by vocabulary with one exchange.

The embedding is whole on every rank. Each rank computes the logits of its share of the vocabulary;
a pick gathers (largest logit, its id, log-sum-exp) of every share, so that no two ranks ever take
an argmax of "the same" logits separately. Ties go to the lower token id.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.placement import split_vocabulary
from phalanx.kernels.kernel_set import KernelSet


class TokenPicks(NamedTuple):
    """The most likely token of each row; the same bytes on every rank."""

    ids_R: Tensor
    """int64 token ids."""
    logprob_R: Tensor
    """float32 natural log of the pick's probability."""


class TokenEmbedding:
    """Rows of the embedding table, in the activation dtype."""

    def __init__(self, table_VD: Tensor) -> None:
        self.table_VD = table_VD

    def forward(self, tokens_R: Tensor) -> Tensor:
        rows = functional.embedding(tokens_R, self.table_VD)
        return rows if rows.is_cuda else rows.float()


class VocabHead:
    """This rank's share of the LM head.

    `head_VD` are the rows of `split_vocabulary(vocab_size, ...)`; `token_ids_V`, when given, maps a
    head row to its token id (a drafter's reduced vocabulary, ascending), else row = id.
    """

    def __init__(
        self,
        head_VD: Tensor,
        *,
        vocab_size: int,
        comm: Communicator,
        kernels: KernelSet,
        token_ids_V: Tensor | None = None,
    ) -> None:
        share = split_vocabulary(vocab_size, comm.world_size, comm.rank)
        if head_VD.shape[0] != len(share):
            raise ValueError(
                f"head rows do not match this rank's share (rows={head_VD.shape[0]}, "
                f"share={len(share)} of {vocab_size}) -- picks would name other tokens"
            )
        self.head_VD, self.vocab_size, self.start = head_VD, vocab_size, share.start
        self.comm, self.kernels, self.token_ids_V = comm, kernels, token_ids_V

    def pick(self, normed_RD: Tensor) -> TokenPicks:
        """The best token of each row; one exchange when there is more than one rank."""
        best = self.kernels.linear_argmax(normed_RD, self.head_VD)
        value, index, log_sum = best.value_R, best.index_R + self.start, best.log_sum_exp_R
        if self.comm.world_size > 1:
            value, index, log_sum = self._exchange(value, index, log_sum)
        ids = index if self.token_ids_V is None else self.token_ids_V[index]
        return TokenPicks(ids, value - log_sum)

    def _exchange(
        self, value: Tensor, index: Tensor, log_sum: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # float64 holds every id exactly, so one gather carries all three.
        packed = torch.stack([value.double(), index.double(), log_sum.double()])
        shares = self.comm.all_gather(packed)
        best_value, best_index = shares[0, 0], shares[0, 1]
        for share in shares[1:]:
            # Shares ascend in token id, so only a strictly larger logit replaces.
            larger = share[0] > best_value
            best_value = torch.where(larger, share[0], best_value)
            best_index = torch.where(larger, share[1], best_index)
        total = torch.logsumexp(shares[:, 2], dim=0)
        return best_value.float(), best_index.long(), total.float()

    def logits(self, normed_RD: Tensor) -> Tensor | None:
        """All logits [R, vocab_size] float32 on rank 0, None elsewhere; one gather."""
        share_RV = self.kernels.linear(normed_RD, self.head_VD).float()
        if self.comm.world_size == 1:
            return share_RV
        widest = len(split_vocabulary(self.vocab_size, self.comm.world_size, 0))
        padded = functional.pad(share_RV, (0, widest - share_RV.shape[1])).contiguous()
        gathered = self.comm.gather(padded)
        if gathered is None:
            return None
        sizes = [
            len(split_vocabulary(self.vocab_size, self.comm.world_size, rank))
            for rank in range(self.comm.world_size)
        ]
        parts = [part[:, :size] for part, size in zip(gathered, sizes, strict=True)]
        return torch.cat(parts, dim=1)
