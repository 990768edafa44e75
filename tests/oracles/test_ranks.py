"""Real gloo ranks give transformers' greedy tokens and logits, and the same bits on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.ep.placement import ExpertPlacement
from phalanx.ep.topology import EPConfig
from phalanx.kernels.backend import choose_backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.kernels.native_library import native_problem
from phalanx.launch.rank_main import make_sheet, open_rank
from phalanx.runtime.models.architectures import load_model
from phalanx.runtime.models.spec import load_spec
from tests.support.ranks import RankStart, run_ranks
from tests.support.single_rank import OneSequence
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe, save_mixtral

PROMPT = torch.randint(0, VOCAB, (11,), generator=torch.Generator().manual_seed(21)).tolist()
NEW_TOKENS = 16


def decode_on_a_rank(start: RankStart, folder: str) -> dict[str, Any]:
    """One rank: greedy decoding, drafts, and a verify of four rows against rows one by one."""
    rank = open_rank(
        EPConfig(),
        start.info,
        meeting=start.meeting,
        sheet=make_sheet(flags={}, settings={}),
    )
    path = Path(folder)
    placement = ExpertPlacement(
        num_experts=load_spec(path).num_experts, world_size=start.info.world_size
    )
    kernels = make_kernels(choose_backend(torch.device("cpu"), native_allowed=True), num_threads=1)
    model, report = load_model(
        path, dtype=torch.float32, comm=rank.comm, kernels=kernels, placement=placement
    )
    rank.ready()
    with torch.inference_mode():
        sequence = OneSequence(model)
        prompt_hidden = sequence.forward(PROMPT, 0)
        logits = model.logits(prompt_hidden)
        tokens, hidden, rows = list[int](), prompt_hidden, list[torch.Tensor]()
        for position in range(len(PROMPT), len(PROMPT) + NEW_TOKENS):
            tokens += model.pick(hidden[-1:]).ids_R.tolist()
            hidden = sequence.forward(tokens[-1:], position)
            rows.append(hidden)
        verified = sequence.forward(tokens[:4], len(PROMPT))
        same_bits = torch.equal(verified, torch.cat(rows[:4]))
        drafts = draft_chain(model, sequence, prompt_hidden, tokens[0])
        picks = model.pick(verified)
    counts = dict(rank.comm.counts)
    rank.close()
    return {
        "tokens": tokens,
        "logits": None if logits is None else logits.tolist(),
        "bits": [x.hex() for x in [*verified.flatten().tolist(), *picks.logprob_R.tolist()]],
        "same_bits": same_bits,
        "drafts": drafts,
        "counts": counts,
        "read": report.bytes_read / report.bytes_total,
    }


def draft_chain(
    model: Any, sequence: OneSequence, target: torch.Tensor, first_token: int
) -> list[int]:
    """Three drafts after the prompt; [] for a model without a drafter."""
    head = model.draft_head(sequence.kv)
    if head is None:
        return []
    tokens, hidden, start, drafts = [*PROMPT[1:], first_token], model.drafter_hidden(target), 0, []
    for _ in range(3):
        rows = sequence.context(tokens, start)
        hidden = head.extend(
            tokens_R=rows.tokens_R, hidden_RD=hidden, positions_R=rows.positions_R,
            slots_R=rows.slots_R, block_tables_SB=rows.block_tables_SB,
            row_seq_R=rows.row_seq_R, row_last_R=rows.row_last_R,
        )[-1:]  # fmt: skip
        start += len(tokens)
        tokens = head.pick(hidden).ids_R.tolist()
        drafts += tokens
    return drafts


@pytest.fixture(scope="module", params=["mixtral", "glm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save = save_mixtral if request.param == "mixtral" else save_glm4_moe
    return save(tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """What transformers answers, and what one rank drafts."""
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        logits = oracle(prompt).logits[0]
        tokens = oracle.generate(
            prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0,
            attention_mask=torch.ones_like(prompt),
        )[0, len(PROMPT) :].tolist()  # fmt: skip
    alone = run_ranks(decode_on_a_rank, 1, str(folder))[0]
    assert alone["tokens"] == tokens
    return {"logits": logits, "tokens": tokens, "drafts": alone["drafts"]}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_answer_as_transformers_does_and_agree_to_the_last_bit(
    folder: Path, expected: dict[str, Any], world_size: int
) -> None:
    ranks = run_ranks(decode_on_a_rank, world_size, str(folder))
    torch.testing.assert_close(
        torch.tensor(ranks[0]["logits"]), expected["logits"], atol=1e-4, rtol=1e-4
    )
    assert all(rank["logits"] is None for rank in ranks[1:])
    assert all(rank["tokens"] == expected["tokens"] for rank in ranks)
    assert all(rank["drafts"] == expected["drafts"] for rank in ranks)
    assert all(rank["bits"] == ranks[0]["bits"] for rank in ranks)
    assert all(rank["counts"] == ranks[0]["counts"] for rank in ranks)
    assert all(rank["read"] < 1.0 for rank in ranks)
    if native_problem() is None:
        # Row-independent kernels, and a combine that adds in one order: a verify is exact.
        assert all(rank["same_bits"] for rank in ranks)
