"""The split head gives the pick of the whole one: same bits on every rank, ties to the lower id."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import split_vocabulary
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.runtime.layers.vocab import TokenPicks, VocabHead
from tests.support.thread_ranks import ThreadComm, ThreadGroup

KERNELS = make_kernels(Backend.REFERENCE, num_threads=1)


def on_ranks(
    head_VD: Tensor, rows_RD: Tensor, world_size: int, *, token_ids_V: Tensor | None = None
) -> list[tuple[TokenPicks, Tensor | None]]:
    """Every rank's pick and logits."""
    group = ThreadGroup(world_size)
    results: dict[int, tuple[TokenPicks, Tensor | None]] = {}

    def work(rank: int) -> None:
        rows = split_vocabulary(head_VD.shape[0], world_size, rank)
        head = VocabHead(
            head_VD[rows.start : rows.stop],
            vocab_size=head_VD.shape[0],
            comm=ThreadComm(group, rank),
            kernels=KERNELS,
            token_ids_V=token_ids_V,
        )
        results[rank] = head.pick(rows_RD), head.logits(rows_RD)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [results[rank] for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_split_pick_equals_the_whole_one(world_size: int) -> None:
    generator = torch.Generator().manual_seed(world_size)
    head_VD = torch.randn(103, 16, generator=generator)
    rows_RD = torch.randn(9, 16, generator=generator)
    logits = rows_RD @ head_VD.T
    results = on_ranks(head_VD, rows_RD, world_size)
    for picks, _ in results:
        assert torch.equal(picks.ids_R, logits.argmax(-1))
        assert torch.equal(picks.logprob_R, results[0][0].logprob_R)
    best = torch.log_softmax(logits, -1).amax(-1)
    torch.testing.assert_close(results[0][0].logprob_R, best)
    assert results[0][1] is not None
    torch.testing.assert_close(results[0][1], logits)
    assert all(gathered is None for _, gathered in results[1:])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_equal_logits_go_to_the_lowest_id_across_shares(world_size: int) -> None:
    head_VD = torch.zeros(12, 4)
    head_VD[[2, 5, 11], 0] = 1.0  # a tie in every share
    rows_RD = torch.tensor([[3.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    for picks, _ in on_ranks(head_VD, rows_RD, world_size):
        assert picks.ids_R.tolist() == [2, 0]


def test_ids_beyond_the_exact_range_of_float32_survive_the_exchange() -> None:
    # 2**24 + 1 is not a float32; the exchange must not round it.
    vocab_size, wanted = (1 << 24) + 8, (1 << 24) + 1
    head_VD = torch.zeros(vocab_size, 1, dtype=torch.bfloat16)
    head_VD[wanted] = 1.0
    for picks, _ in on_ranks(head_VD, torch.ones(1, 1), 2):
        assert picks.ids_R.tolist() == [wanted]


def test_a_reduced_vocabulary_answers_in_token_ids() -> None:
    ids = torch.tensor([4, 9, 10, 57, 90])
    head_VD = torch.eye(5)
    for picks, _ in on_ranks(head_VD, torch.eye(5), 2, token_ids_V=ids):
        assert picks.ids_R.tolist() == ids.tolist()


def test_rows_of_another_share_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows=3, share=5 of 5"):
        VocabHead(torch.zeros(3, 4), vocab_size=5, comm=LocalCommunicator(), kernels=KERNELS)
