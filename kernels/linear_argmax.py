"""The greedy head: the best output of a linear layer per row, without keeping the logits.

Shapes: x_RK float32 on the CPU (on other devices the weight's dtype), w_NK float32 or bfloat16.
A vocabulary-split head calls this on its shard; (value, index, log-sum-exp) of every shard are
exchanged and merged, ties going to the lower token id.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import DTYPE_CODES, library
from phalanx.kernels.operand_checks import bad_operands, row_stride
from phalanx.kernels.row_linear import linear_reference

EXPECTED = "x_RK float32 with contiguous rows, w_NK contiguous float32 or bfloat16 with N >= 1"


class RowMaximum(NamedTuple):
    """The largest output of each row."""

    value_R: Tensor
    """The largest logit, float32."""
    index_R: Tensor
    """Its column, int64; the lowest of equal ones."""
    log_sum_exp_R: Tensor
    """log of the sum over all columns of exp(logit), float32."""


def linear_argmax_reference(x_RK: Tensor, w_NK: Tensor) -> RowMaximum:
    """Through the whole logits, on any device."""
    logits_RN = linear_reference(x_RK, w_NK).float()
    value_R = logits_RN.amax(dim=-1)
    # torch leaves open which of equal maxima argmax returns; the lowest is part of our contract.
    ids_N = torch.arange(w_NK.shape[0], device=w_NK.device)
    at_max_RN = torch.where(logits_RN == value_R[:, None], ids_N, w_NK.shape[0] - 1)
    return RowMaximum(value_R, at_max_RN.amin(dim=-1), logits_RN.logsumexp(dim=-1))


def linear_argmax(x_RK: Tensor, w_NK: Tensor, *, backend: Backend) -> RowMaximum:
    """The largest of x @ w.T per row, its column, and the row's log-sum-exp.

    A row holding NaN gives a NaN log-sum-exp and an unspecified but valid index.

    Raises:
        BadOperands: native backend and an operand of another dtype, shape or layout.
    """
    if backend is Backend.NATIVE:
        return linear_argmax_native(x_RK, w_NK)
    return linear_argmax_reference(x_RK, w_NK)


def linear_argmax_native(x_RK: Tensor, w_NK: Tensor) -> RowMaximum:
    """The call into the library."""
    code = DTYPE_CODES.get(w_NK.dtype, -1)
    x_shape, w_shape = x_RK.shape, w_NK.shape
    if (
        code < 0
        or x_RK.dtype is not torch.float32
        or not (x_RK.is_cpu and w_NK.is_cpu and w_NK.is_contiguous())
        or not len(x_shape) == len(w_shape) == 2
        or x_shape[1] != w_shape[1]
        or w_shape[0] == 0
        or (x_stride := x_shape[1] if x_RK.is_contiguous() else row_stride(x_RK)) < 0
    ):
        raise bad_operands("linear_argmax", expected=EXPECTED, x_RK=x_RK, w_NK=w_NK)
    rows, width = x_shape
    value_R = torch.empty(rows)
    index_R = torch.empty(rows, dtype=torch.int64)
    log_sum_exp_R = torch.empty(rows)
    library.linear_argmax(
        x_RK.data_ptr(),
        x_stride,
        w_NK.data_ptr(),
        code,
        value_R.data_ptr(),
        index_R.data_ptr(),
        log_sum_exp_R.data_ptr(),
        rows,
        w_shape[0],
        width,
    )
    return RowMaximum(value_R, index_R, log_sum_exp_R)
