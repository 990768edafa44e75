"""A causal decoder on this rank: embedding, layers, final norm, head. Families differ in names.

`forward` returns the residual stream before the final norm, because that is what an MTP drafter
reads; `pick` and `logits` normalise the rows they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.kernels.kernel_set import KernelSet
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.layers.decoder import DecoderLayer
from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.layers.vocab import TokenEmbedding, TokenPicks, VocabHead
from phalanx.runtime.models.heads import MtpHead
from phalanx.runtime.models.spec import ModelSpec


class CausalModel(Protocol):
    """What the executor asks of a target model."""

    spec: ModelSpec

    def embed(self, tokens_R: Tensor) -> Tensor:
        """[R, D] in the activation dtype."""
        ...

    def forward(self, ctx: StepContext) -> Tensor:
        """hidden_RD, the residual before the final norm; writes the rows' keys and values."""
        ...

    def pick(self, hidden_RD: Tensor) -> TokenPicks:
        """The most likely next token of each row, identical on every rank."""
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor | None:
        """[R, vocab] float32 on rank 0, None elsewhere."""
        ...

    def drafter_hidden(self, hidden_RD: Tensor) -> Tensor:
        """The target's hidden as its drafter was trained to read it."""
        ...

    def draft_head(self, kv: KVPool) -> MtpHead | None:
        """The model's own MTP head on this rank, writing to `kv`; None where there is none."""
        ...


class DecoderModel:
    """The one implementation of CausalModel; `architectures.load_model` builds it."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: TokenEmbedding,
        layers: Sequence[DecoderLayer],
        final_norm_D: Tensor,
        head: VocabHead,
        mtp: Callable[[KVPool], MtpHead] | None,
        comm: Communicator,
        kernels: KernelSet,
    ) -> None:
        self.spec, self.comm, self.kernels = spec, comm, kernels
        self._embedding, self._layers = embedding, tuple(layers)
        self._final_norm_D, self._head, self._mtp = final_norm_D, head, mtp

    def embed(self, tokens_R: Tensor) -> Tensor:
        return self._embedding.forward(tokens_R)

    def forward(self, ctx: StepContext) -> Tensor:
        x_RD: Tensor = self._embedding.forward(ctx.tokens_R)
        residual_RD: Tensor | None = None
        for layer in self._layers:
            x_RD, residual_RD = layer.forward(x_RD, residual_RD, ctx)
        return x_RD if residual_RD is None else residual_RD + x_RD

    def final_norm(self, hidden_RD: Tensor) -> Tensor:
        """[R, D] normalised for the head."""
        return self.kernels.rms_norm(hidden_RD, self._final_norm_D, self.spec.rms_eps)

    def pick(self, hidden_RD: Tensor) -> TokenPicks:
        return self._head.pick(self.final_norm(hidden_RD))

    def logits(self, hidden_RD: Tensor) -> Tensor | None:
        return self._head.logits(self.final_norm(hidden_RD))

    def drafter_hidden(self, hidden_RD: Tensor) -> Tensor:
        return self.final_norm(hidden_RD) if self.spec.mtp_reads_normed else hidden_RD

    def draft_head(self, kv: KVPool) -> MtpHead | None:
        return None if self._mtp is None else self._mtp(kv)
