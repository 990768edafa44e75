"""The door to the compiled library: loads it once, or says why it cannot be used.

`library` is the extension module `phalanx.kernels._native` (its functions take addresses and
sizes, see `_native.pyi`). Where the package was installed without a C compiler it is missing, and
every operation falls back to its torch reference.
"""

from __future__ import annotations

import torch

__all__ = ["DTYPE_CODES", "library", "native_problem"]

# The number the Python side was written against; a stale build carries another one.
EXPECTED_VERSION = 1

LOAD_ERROR: str | None = None
try:
    from phalanx.kernels import _native as library
except ImportError as error:
    LOAD_ERROR = str(error)
    library = None  # type: ignore[assignment]  # Backend.NATIVE is refused then.

# How the library names an element type.
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


def native_problem() -> str | None:
    """Why the native library cannot be used here, or None when it can."""
    if LOAD_ERROR is not None:
        return (
            f"not built or not loadable ({LOAD_ERROR}) -- reinstall with a C compiler on the path"
        )
    if library.VERSION != EXPECTED_VERSION:
        return (
            f"stale build (version={library.VERSION}, expected {EXPECTED_VERSION}) -- "
            "reinstall the package to rebuild it"
        )
    return None
