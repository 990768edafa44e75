"""Prefill chunks, plain rows and verify rows of several sequences in one forward, any order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import native_problem
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.models.decoder_model import DecoderModel
from tests.support.single_rank import load_single
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe, save_mixtral

BLOCK_SIZE, BLOCKS_EACH, SEQUENCES, LENGTH = 4, 6, 3, 20
GENERATOR = torch.Generator().manual_seed(13)
TEXTS = torch.randint(0, VOCAB, (SEQUENCES, LENGTH), generator=GENERATOR)
TABLES = torch.randperm(SEQUENCES * BLOCKS_EACH, generator=GENERATOR).view(SEQUENCES, -1).int()


@pytest.fixture(scope="module", params=["mixtral", "glm"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DecoderModel, Tensor]:
    """A model and transformers' logits of the three texts."""
    from transformers import AutoModelForCausalLM

    save = save_mixtral if request.param == "mixtral" else save_glm4_moe
    folder: Path = save(tmp_path_factory.mktemp(request.param))
    backend = Backend.REFERENCE if native_problem() else Backend.NATIVE
    with torch.inference_mode():
        oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return load_single(folder, backend=backend), oracle(TEXTS).logits


def batch(model: DecoderModel, kv: KVPool, rows: list[tuple[int, int, int]]) -> StepContext:
    """One step of (sequence, first position, number of rows) items."""
    seqs = torch.tensor([i for i, (_, _, count) in enumerate(rows) for _ in range(count)])
    ids = torch.tensor([seq for seq, _, count in rows for _ in range(count)])
    positions = torch.tensor([start + i for _, start, count in rows for i in range(count)])
    tables = TABLES[[seq for seq, _, _ in rows]].contiguous()
    blocks = tables[seqs, positions // BLOCK_SIZE].long()
    return StepContext(
        tokens_R=TEXTS[ids, positions],
        positions_R=positions,
        slots_R=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables_SB=tables,
        row_seq_R=seqs.int(),
        row_last_R=positions.int(),
        kv=kv,
        kernels=model.kernels,
        comm=model.comm,
    )


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_mix_of_rows_gives_transformers_logits(
    case: tuple[DecoderModel, Tensor], data: st.DataObject
) -> None:
    """Rows beyond the kept ones are rewound and written again, as rejected drafts are."""
    model, expected = case
    kv = KVPool(model.spec, num_blocks=SEQUENCES * BLOCKS_EACH, block_size=BLOCK_SIZE)
    done = [0] * SEQUENCES
    with torch.inference_mode():
        while min(done) < LENGTH:
            waiting = [seq for seq in range(SEQUENCES) if done[seq] < LENGTH]
            order = data.draw(st.permutations(waiting))
            chosen = order[: data.draw(st.integers(1, len(order)))]
            rows = [
                (seq, done[seq], data.draw(st.integers(1, min(7, LENGTH - done[seq]))))
                for seq in chosen
            ]
            logits = model.logits(model.forward(batch(model, kv, rows)))
            assert logits is not None
            want = torch.cat([expected[seq, start : start + count] for seq, start, count in rows])
            torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
            for seq, _, count in rows:
                done[seq] += data.draw(st.integers(1, count))
