"""The native thread pool: same answers from any thread, after a fork, and with too few cores."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels

WIDTH, NUM_OUT = 256, 2000  # 1 MB of bfloat16: large enough to be shared


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, WIDTH), torch.randn(NUM_OUT, WIDTH).bfloat16()


def test_many_more_threads_than_cores_finish_and_agree(native: KernelSet) -> None:
    x, w = operands()
    expected = native.linear(x, w)
    crowded = make_kernels(Backend.NATIVE, num_threads=24)
    for _ in range(30):
        assert torch.equal(crowded.linear(x, w), expected)


def test_callers_on_several_threads_do_not_disturb_each_other(native: KernelSet) -> None:
    x, w = operands()
    expected = native.linear(x, w)
    wrong: list[int] = []

    def call(caller: int) -> None:
        for _ in range(25):
            if not torch.equal(native.linear(x, w), expected):
                wrong.append(caller)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []


def test_thread_count_may_shrink_and_grow_between_calls(native: KernelSet) -> None:
    x, w = operands()
    expected = native.linear(x, w)
    for num_threads in (4, 1, 2, 8, 1, 3):
        assert torch.equal(
            make_kernels(Backend.NATIVE, num_threads=num_threads).linear(x, w), expected
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12 warns of forking with threads
def test_a_forked_child_makes_its_own_pool(native: KernelSet) -> None:
    """A host program may fork after the pool has started; the child has none of its threads."""
    x, w = operands()
    out = torch.empty(4, NUM_OUT)
    expected = native.linear(x, w)
    child = os.fork()
    if child == 0:
        # Only native code from here on: torch itself is not made for forked children.
        native.linear(x, w, out=out)
        same = out.numpy().tobytes() == expected.numpy().tobytes()
        os._exit(0 if same else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(native.linear(x, w), expected)
