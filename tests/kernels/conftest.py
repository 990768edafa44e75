"""What the kernel tests share: the native operations per instruction set, and the reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from phalanx.kernels.native_library import library, native_problem

PROBLEM = native_problem()
INSTRUCTION_SETS = library.instruction_sets() if PROBLEM is None else ("none",)


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest) -> Iterator[KernelSet]:
    """The native operations on two threads, once per instruction set this machine can run."""
    if PROBLEM is not None:
        pytest.skip(f"native library: {PROBLEM}")
    library.set_instruction_set(request.param)
    yield make_kernels(Backend.NATIVE, num_threads=2)
    library.set_instruction_set(INSTRUCTION_SETS[0])


@pytest.fixture
def reference() -> KernelSet:
    """The torch reference; its answers define the operations."""
    return KernelSet(backend=Backend.REFERENCE, num_threads=1)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every weight and cache dtype."""
    assert isinstance(request.param, torch.dtype), request.param
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random operands in every run."""
    torch.manual_seed(20)
