"""Fingerprint of one hidden row: do two places hold the same bytes?

A debug tool for the drafter's catch-up rows: the fingerprints logged when a row is written and
when it is fed must agree. It costs a device copy and a wait, so it never runs in a timed run.

The structure is 64-bit FNV-1a over the row's 2 * hidden little-endian bytes (xor, then multiply,
modulo 2^64) with the multiplier 2^44 + 435. That is not the standard FNV prime 2^40 + 435, so
standard tools do not reproduce the values; it is kept because logged values are compared.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

BASIS: Final = 0xCBF29CE484222325
MULTIPLIER: Final = 0x1000000001B3
_MASK: Final = (1 << 64) - 1


def hidden_fingerprint(row: bytes | memoryview | npt.NDArray[np.uint16] | None) -> int:
    """Fingerprint of one row of 16-bit values.

    Args:
        row: the bytes in little-endian order, or the bit patterns as numpy uint16 `[hidden]`;
            None when the copy from the device failed.

    Returns:
        64 bits; 0 for a failed copy, the basis for an empty row.

    Raises:
        ValueError: an array that is not one row of uint16.
    """
    if row is None:
        return 0
    if isinstance(row, np.ndarray):
        if row.dtype != np.uint16 or row.ndim != 1:
            raise ValueError(
                f"not one row of 16-bit patterns (dtype={row.dtype}, shape={row.shape}) -- the "
                "fingerprint is over raw bits -- view the row as uint16 first"
            )
        row = row.astype("<u2").tobytes()
    state = BASIS
    for byte in bytes(row):
        state = ((state ^ byte) * MULTIPLIER) & _MASK
    return state


def fingerprint_text(fingerprint: int) -> str:
    """As logged: 16 lower-case hexadecimal digits."""
    return f"{fingerprint & _MASK:016x}"
