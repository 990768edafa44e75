"""A world of one gives the shapes of a world of many."""

from __future__ import annotations

import pytest
import torch

from phalanx.ep.comm.local import LocalCommunicator


def test_results_are_copies_where_other_worlds_would_copy() -> None:
    comm = LocalCommunicator()
    tensor = torch.arange(6.0).reshape(2, 3)
    gathered = comm.all_gather(tensor)
    rooted = comm.gather(tensor)
    assert rooted is not None
    assert gathered.shape == rooted.shape == (1, 2, 3)
    tensor.zero_()
    assert gathered.sum() == rooted.sum() == 15
    assert comm.all_reduce(tensor) is tensor
    assert comm.broadcast(tensor) is tensor


def test_there_is_only_root_0() -> None:
    comm = LocalCommunicator()
    for call in (comm.gather, comm.broadcast):
        with pytest.raises(ValueError, match="root=1"):
            call(torch.ones(1), root=1)
