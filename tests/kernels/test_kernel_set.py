"""KernelSet and backend choice: one frozen object, and a clear word when native cannot be."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from phalanx.kernels import native_library
from phalanx.kernels.backend import Backend, choose_backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from phalanx.kernels.native_library import library, native_problem

CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(native_problem() is not None, reason=str(native_problem()))


def test_the_native_library_is_never_chosen_where_it_cannot_run_or_may_not() -> None:
    assert choose_backend(torch.device("cuda"), native_allowed=True) is Backend.REFERENCE
    assert choose_backend(torch.device("meta"), native_allowed=True) is Backend.REFERENCE
    assert choose_backend(CPU, native_allowed=False) is Backend.REFERENCE


@needs_native
def test_the_native_library_is_chosen_on_the_cpu() -> None:
    assert choose_backend(CPU, native_allowed=True) is Backend.NATIVE


def test_a_missing_library_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "LOAD_ERROR", "No module named '_native'")
    assert choose_backend(CPU, native_allowed=True) is Backend.REFERENCE
    with pytest.raises(ValueError, match="native kernels cannot be used: not built"):
        make_kernels(Backend.NATIVE, num_threads=1)


@needs_native
def test_a_stale_build_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "EXPECTED_VERSION", library.VERSION + 1)
    assert choose_backend(CPU, native_allowed=True) is Backend.REFERENCE
    assert "stale build" in str(native_problem())


@pytest.mark.parametrize("num_threads", [0, -1, 257])
def test_an_impossible_thread_count_is_refused(num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads={num_threads}"):
        make_kernels(Backend.REFERENCE, num_threads=num_threads)


def test_a_set_cannot_be_changed(reference: KernelSet) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        reference.backend = Backend.NATIVE  # type: ignore[misc]


@needs_native
def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="name=sse9"):
        library.set_instruction_set("sse9")
    assert library.instruction_sets()[-1] == "portable"


@needs_native
def test_the_library_refuses_wrong_argument_lists() -> None:
    with pytest.raises(TypeError, match="linear takes 9 arguments"):
        library.linear(1, 2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="argument 6 is negative"):
        library.linear(0, 0, 0, 0, 0, 0, -1, 0, 0)
