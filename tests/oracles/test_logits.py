"""Logits and greedy tokens equal transformers' on the same checkpoint, float32, one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.kernels.backend import Backend
from phalanx.kernels.native_library import native_problem
from tests.support.single_rank import OneSequence, load_single
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe, save_mixtral

FAMILIES = {
    "mixtral": (save_mixtral, {}),
    "mixtral_tied": (save_mixtral, {"tie_word_embeddings": True}),
    "glm": (save_glm4_moe, {}),
    "glm_without_qk_norm": (save_glm4_moe, {"use_qk_norm": False, "attention_bias": False}),
    "glm_one_group": (save_glm4_moe, {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
}
BACKENDS = [Backend.REFERENCE] + ([] if native_problem() else [Backend.NATIVE])


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save, changes = FAMILIES[request.param]
    return save(tmp_path_factory.mktemp(request.param), **changes)


def oracle(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name.lower())
def test_logits_equal_transformers(folder: Path, backend: Backend) -> None:
    tokens = torch.randint(0, VOCAB, (41,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = oracle(folder)(tokens[None]).logits[0]
        model = load_single(folder, backend=backend)
        got = model.logits(OneSequence(model).forward(tokens.tolist(), 0))
    assert got is not None
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name.lower())
def test_chunks_and_several_rows_give_the_same_logits_as_one_forward(
    folder: Path, backend: Backend
) -> None:
    tokens = torch.randint(0, VOCAB, (29,), generator=torch.Generator().manual_seed(2)).tolist()
    model = load_single(folder, backend=backend)
    with torch.inference_mode():
        whole = model.logits(OneSequence(model).forward(tokens, 0))
        cut, start, parts = OneSequence(model), 0, []
        for size in (7, 1, 4, 1, 11, 5):
            parts.append(model.logits(cut.forward(tokens[start : start + size], start)))
            start += size
    assert whole is not None
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)
    if backend is Backend.NATIVE:
        assert torch.equal(torch.cat(parts), whole), "rows must not depend on their batch"


def test_greedy_tokens_equal_transformers(folder: Path) -> None:
    prompt = torch.randint(0, VOCAB, (9,), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        expected = oracle(folder).generate(
            prompt[None], max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0, attention_mask=torch.ones(1, 9, dtype=torch.long),
        )[0, 9:].tolist()  # fmt: skip
        model = load_single(folder)
        sequence, got, rows, start = OneSequence(model), [], prompt.tolist(), 0
        while len(got) < 24:
            hidden = sequence.forward(rows, start)
            start += len(rows)
            rows = model.pick(hidden[-1:]).ids_R.tolist()
            got += rows
    assert got == expected
