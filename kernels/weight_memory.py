"""Memory for weights on huge pages: the CPU reads them faster.

Decoding reads every weight once a token, so it is bound by the memory; with pages of 2 MiB instead
of 4 KiB reading is 10 to 25 % faster, since the hardware reads ahead within a page only. The kernel
is asked, not forced (transparent huge pages, `madvise` mode); where it has none, this is ordinary
memory. A file mapped into memory cannot have them: copy from it into this.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

# Smaller tensors would waste most of a huge page.
SMALLEST_BYTES = 4 << 20


def empty_weights(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, on huge pages when it is large and the system has them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
    if advice is None or num_bytes < SMALLEST_BYTES:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes)  # the tensor keeps it alive
    # A kernel built without huge pages refuses the advice; the memory is good all the same.
    with contextlib.suppress(OSError):
        memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
