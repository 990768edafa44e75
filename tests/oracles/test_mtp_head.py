"""The MTP layer of GLM-4-MoE equals transformers' own MtpModel: hidden, logits, drafts, text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.single_rank import OneSequence, load_single
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_glm4_moe(tmp_path_factory.mktemp("glm"))


@pytest.fixture
def oracle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.nn.Module]:
    """transformers names only the released depths of the MTP layer; ours is layer 3."""
    from transformers import Glm4MoeForCausalLM

    monkeypatch.setattr(
        Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.3\..*"]
    )
    yield Glm4MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_drafter_logits_equal_transformers(folder: Path, oracle: torch.nn.Module) -> None:
    from transformers.modeling_layers import MtpModel

    tokens = torch.randint(0, VOCAB, (34,), generator=torch.Generator().manual_seed(5))
    prompt, after = tokens[:-1], tokens[1:]
    with torch.inference_mode():
        theirs = MtpModel.from_pretrained(oracle).eval()
        hidden = oracle(prompt[None], output_hidden_states=True).hidden_states[-1]
        positions = torch.arange(1, 34)[None]
        normed = theirs.forward_layer(0, hidden, positions, None, input_ids=after[None])
        expected = theirs._project_to_logits(normed)[0]

        model = load_single(folder)
        sequence = OneSequence(model)
        target = model.drafter_hidden(sequence.forward(prompt.tolist(), 0))
        head = model.draft_head(sequence.kv)
        assert head is not None
        rows = sequence.context(after.tolist(), 0)
        out = head.extend(
            tokens_R=rows.tokens_R, hidden_RD=target, positions_R=rows.positions_R,
            slots_R=rows.slots_R, block_tables_SB=rows.block_tables_SB,
            row_seq_R=rows.row_seq_R, row_last_R=rows.row_last_R,
        )  # fmt: skip
        got = model.kernels.linear(
            model.kernels.rms_norm(out, head.norm_D, head.eps), head.head.head_VD
        )
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert head.pick(out).ids_R.tolist() == expected.argmax(-1).tolist()


def test_speculative_text_of_transformers_is_plain_text(
    folder: Path, oracle: torch.nn.Module
) -> None:
    """The oracle itself speculates losslessly here, so its drafts are worth comparing with."""
    prompt = torch.randint(0, VOCAB, (1, 8), generator=torch.Generator().manual_seed(6))
    common = dict(
        max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0,
        attention_mask=torch.ones_like(prompt),
    )  # fmt: skip
    with torch.inference_mode():
        plain = oracle.generate(prompt, **common)
        drafted = oracle.generate(prompt, use_mtp=True, **common)
    assert torch.equal(plain, drafted)
