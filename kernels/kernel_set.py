"""KernelSet: every operation with its backend bound; what model code holds and calls.

Made once per process by `make_kernels`; frozen. The shape legends and errors are those of the
operation's own file, named in each method.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.kernels import (
    apply_rotary,
    gated_experts,
    gated_mlp,
    kv_store,
    linear_argmax,
    paged_attention,
    rms_norm,
    router_topk,
    row_linear,
)
from phalanx.kernels.backend import Backend
from phalanx.kernels.linear_argmax import RowMaximum
from phalanx.kernels.native_library import library, native_problem
from phalanx.kernels.rms_norm import NormedResidual
from phalanx.kernels.router_topk import ExpertChoice

MAX_THREADS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSet:
    """The operations of one backend.

    The native library has one pool of threads per process; the set made last decides its size.
    Results do not depend on it.
    """

    backend: Backend
    num_threads: int

    def linear(self, x_RK: Tensor, w_NK: Tensor, *, out: Tensor | None = None) -> Tensor:
        """y_RN = x @ w.T (`row_linear.py`)."""
        return row_linear.linear(x_RK, w_NK, out=out, backend=self.backend)

    def linear_argmax(self, x_RK: Tensor, w_NK: Tensor) -> RowMaximum:
        """Largest of x @ w.T per row, its column, log-sum-exp (`linear_argmax.py`)."""
        return linear_argmax.linear_argmax(x_RK, w_NK, backend=self.backend)

    def gated_mlp(
        self, x_RD: Tensor, gate_up_GD: Tensor, down_DF: Tensor, *, out: Tensor | None = None
    ) -> Tensor:
        """y_RD = down(silu(gate) * up) (`gated_mlp.py`)."""
        return gated_mlp.gated_mlp(x_RD, gate_up_GD, down_DF, out=out, backend=self.backend)

    def gated_experts(
        self,
        x_RD: Tensor,
        gate_up_EGD: Tensor,
        down_EDF: Tensor,
        expert_ids_RA: Tensor,
        weights_RA: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """This rank's experts of every row, weighted and added (`gated_experts.py`)."""
        return gated_experts.gated_experts(
            x_RD,
            gate_up_EGD,
            down_EDF,
            expert_ids_RA,
            weights_RA,
            out=out,
            backend=self.backend,
        )

    def rms_norm(
        self, x_RD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor | None = None
    ) -> Tensor:
        """RMSNorm of every row (`rms_norm.py`)."""
        return rms_norm.rms_norm(x_RD, weight_D, eps, out=out, backend=self.backend)

    def add_rms_norm(
        self, x_RD: Tensor, residual_RD: Tensor, weight_D: Tensor, eps: float
    ) -> NormedResidual:
        """(RMSNorm of x + residual, x + residual) (`rms_norm.py`)."""
        return rms_norm.add_rms_norm(x_RD, residual_RD, weight_D, eps, backend=self.backend)

    def rotary(
        self,
        q_RHD: Tensor,
        k_RGD: Tensor,
        cos_PD2: Tensor,
        sin_PD2: Tensor,
        positions_R: Tensor,
        *,
        rotary_dim: int,
    ) -> None:
        """Turn q and k in place by their positions (`apply_rotary.py`)."""
        apply_rotary.rotary(
            q_RHD,
            k_RGD,
            cos_PD2,
            sin_PD2,
            positions_R,
            rotary_dim=rotary_dim,
            backend=self.backend,
        )

    def kv_store(
        self, k_RGD: Tensor, v_RGD: Tensor, k_pool: Tensor, v_pool: Tensor, slots_R: Tensor
    ) -> None:
        """Write keys and values into their slots (`kv_store.py`)."""
        kv_store.kv_store(k_RGD, v_RGD, k_pool, v_pool, slots_R, backend=self.backend)

    def paged_attention(
        self,
        q_RHD: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables_SB: Tensor,
        row_seq_R: Tensor,
        row_last_R: Tensor,
        scale: float,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attention of every row over its sequence's cache, [R, H, D] (`paged_attention.py`)."""
        return paged_attention.paged_attention(
            q_RHD,
            k_pool,
            v_pool,
            block_tables_SB,
            row_seq_R,
            row_last_R,
            scale,
            out=out,
            backend=self.backend,
        )

    def softmax_topk(self, logits_RE: Tensor, top_k: int, *, normalize: bool) -> ExpertChoice:
        """Top-k of the softmax over experts (`router_topk.py`)."""
        return router_topk.softmax_topk(logits_RE, top_k, normalize=normalize, backend=self.backend)

    def grouped_sigmoid_topk(
        self,
        logits_RE: Tensor,
        correction_bias_E: Tensor,
        *,
        top_k: int,
        num_groups: int,
        topk_groups: int,
        normalize: bool,
        scale: float,
    ) -> ExpertChoice:
        """Grouped sigmoid selection with a correction bias (`router_topk.py`)."""
        return router_topk.grouped_sigmoid_topk(
            logits_RE,
            correction_bias_E,
            top_k=top_k,
            num_groups=num_groups,
            topk_groups=topk_groups,
            normalize=normalize,
            scale=scale,
            backend=self.backend,
        )


def make_kernels(backend: Backend, *, num_threads: int) -> KernelSet:
    """The operations of `backend` on `num_threads` threads (the caller's included).

    Raises:
        ValueError: a thread count outside 1..256, or NATIVE where the library cannot be used.
    """
    if not 1 <= num_threads <= MAX_THREADS:
        raise ValueError(
            f"bad thread count (num_threads={num_threads}, limit 1..{MAX_THREADS}) -- the caller "
            "is one of the threads -- give at least 1"
        )
    if backend is Backend.NATIVE:
        problem = native_problem()
        if problem is not None:
            raise ValueError(f"native kernels cannot be used: {problem}")
        library.set_num_threads(num_threads)
    else:
        torch.set_num_threads(num_threads)
    return KernelSet(backend=backend, num_threads=num_threads)
