"""Which implementation of the operations runs: the torch reference or the native CPU library.

`REFERENCE` is plain torch on any device; it defines what every operation means. `NATIVE` is the
small C library built with the package (`kernels/native/`), for CPU tensors only; it gives the same
values to rounding, and its results do not depend on how many rows a call has or how many threads
work on it. Nothing here reads the environment: whether native code is allowed at all is passed in.
"""

from __future__ import annotations

import enum

import torch

from phalanx.kernels.native_library import native_problem


class Backend(enum.Enum):
    """The implementation behind an operation."""

    REFERENCE = "reference"
    NATIVE = "native"


def choose_backend(device: torch.device, *, native_allowed: bool) -> Backend:
    """The fastest backend that works on `device`.

    Args:
        device: where the operands live.
        native_allowed: False when the user switched the native library off.
    """
    if device.type == "cpu" and native_allowed and native_problem() is None:
        return Backend.NATIVE
    return Backend.REFERENCE
