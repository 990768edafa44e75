"""Drafts equal transformers', step by step; a module under `mtp.` equals its layer there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from phalanx.runtime.weights.index import CheckpointError
from tests.support.single_rank import OneSequence, load_single
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe, save_mixtral

DRAFT_VOCAB = 101


def extend(head: Any, sequence: OneSequence, tokens: list[int], hidden: Tensor, at: int) -> Tensor:
    """The head over pairs at keys `at ..`."""
    rows = sequence.context(tokens, at)
    out: Tensor = head.extend(
        tokens_R=rows.tokens_R, hidden_RD=hidden, positions_R=rows.positions_R,
        slots_R=rows.slots_R, block_tables_SB=rows.block_tables_SB,
        row_seq_R=rows.row_seq_R, row_last_R=rows.row_last_R,
    )  # fmt: skip
    return out


def test_greedy_drafts_equal_those_of_transformers_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Glm4MoeForCausalLM
    from transformers.generation.candidate_generator import MTPCandidateGenerator

    save_glm4_moe(tmp_path)
    monkeypatch.setattr(
        Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.3\..*"]
    )
    theirs: list[tuple[int, int]] = []
    ask = MTPCandidateGenerator.get_candidates

    def recorded(self: Any, input_ids: Tensor, *args: Any, **more: Any) -> Any:
        candidates, logits = ask(self, input_ids, *args, **more)
        if candidates.shape[1] > input_ids.shape[1]:
            theirs.append((input_ids.shape[1], int(candidates[0, input_ids.shape[1]])))
        return candidates, logits

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", recorded)
    prompt = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(8))
    oracle = Glm4MoeForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.inference_mode():
        text = oracle.generate(
            prompt, use_mtp=True, max_new_tokens=20, do_sample=False, eos_token_id=None,
            pad_token_id=0, attention_mask=torch.ones_like(prompt),
        )[0].tolist()  # fmt: skip
        ours = drafts_along(load_single(tmp_path), text)
    assert len(theirs) > 10
    assert theirs == [(length, ours[length]) for length, _ in theirs]


def drafts_along(model: Any, text: list[int]) -> dict[int, int]:
    """For every length of `text`, the draft of the token after it."""
    sequence = OneSequence(model)
    head = model.draft_head(sequence.kv)
    target = model.drafter_hidden(sequence.forward(text, 0))
    # Pair k holds token k+1, so that row k drafts the token after k+2 tokens.
    out = extend(head, sequence, text[1:], target[:-1], 0)
    return {k + 2: token for k, token in enumerate(head.pick(out).ids_R.tolist())}


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def demo_like(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral with a drafter in mtp.safetensors, as the demo model has it."""
    folder = save_mixtral(tmp_path_factory.mktemp("demo"), tie_word_embeddings=request.param)
    target = load_file(str(folder / "model.safetensors"))
    hidden = target["model.norm.weight"].shape[0]
    torch.manual_seed(9)
    last = "model.layers.2."
    module = {
        "mtp.block." + name.removeprefix(last): 0.15 * torch.randn_like(tensor) + (tensor.ndim == 1)
        for name, tensor in target.items()
        if name.startswith(last)
    }
    for name in ("enorm", "hnorm", "norm"):
        module[f"mtp.{name}.weight"] = 1 + 0.2 * torch.randn(hidden)
    module["mtp.eh_proj.weight"] = 0.2 * torch.randn(hidden, 2 * hidden)
    module["mtp.draft_ids"] = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values.to(torch.int32)
    save_file(module, str(folder / "mtp.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_nextn_predict_layers": 1, "phalanx_mtp": {"vocab": DRAFT_VOCAB}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_module_under_mtp_equals_the_same_layer_in_transformers(demo_like: Path) -> None:
    tokens = torch.randint(0, VOCAB, (23,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        model = load_single(demo_like)
        sequence = OneSequence(model)
        hidden = sequence.forward(tokens[:-1].tolist(), 0)
        head = model.draft_head(sequence.kv)
        assert head is not None
        out = extend(head, sequence, tokens[1:].tolist(), model.drafter_hidden(hidden), 0)
        expected, logits, ids = module_by_transformers(demo_like, tokens[1:], hidden)
        picks = head.pick(out)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    assert picks.ids_R.tolist() == ids[logits.argmax(-1)].tolist()
    best = torch.log_softmax(logits, -1).amax(-1)
    torch.testing.assert_close(picks.logprob_R, best, atol=1e-4, rtol=1e-4)


def module_by_transformers(
    folder: Path, after: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(block output, logits over the draft vocabulary, draft ids) with transformers' layer."""
    from transformers import MixtralForCausalLM

    own = load_file(str(folder / "mtp.safetensors"))
    shell = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32, num_hidden_layers=1)
    norm = shell.model.norm
    rest = {name: own[f"mtp.{name}.weight"] for name in ("enorm", "hnorm", "norm", "eh_proj")}

    def normed(rows: Tensor, weight: Tensor) -> Tensor:
        norm.weight.data = weight
        return norm(rows)

    embedded = shell.get_input_embeddings()(after)
    x = torch.cat([normed(embedded, rest["enorm"]), normed(hidden, rest["hnorm"])], -1)
    x = torch.nn.functional.linear(x, rest["eh_proj"])[None]
    layer = shell.model.layers[0]
    layer.load_state_dict(in_memory_names(own))
    positions = torch.arange(after.shape[0])[None]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    out = layer(
        x, position_embeddings=shell.model.rotary_emb(x, positions), attention_mask=mask
    )[0]  # fmt: skip
    ids = own["mtp.draft_ids"].long()
    return out, normed(out, rest["norm"]) @ shell.lm_head.weight[ids].T, ids


def in_memory_names(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The block's tensors as a transformers layer holds them: experts fused."""
    state, prefix = {}, "mtp.block."
    for name, tensor in own.items():
        if name.startswith(prefix) and ".experts." not in name:
            state[name.removeprefix(prefix).replace("block_sparse_moe", "mlp")] = tensor
    experts = [f"{prefix}block_sparse_moe.experts.{e}." for e in range(8)]
    state["mlp.experts.gate_up_proj"] = torch.stack(
        [torch.cat([own[f"{e}w1.weight"], own[f"{e}w3.weight"]]) for e in experts]
    )
    state["mlp.experts.down_proj"] = torch.stack([own[f"{e}w2.weight"] for e in experts])
    return state


def test_a_draft_vocabulary_outside_the_model_is_refused(demo_like: Path, tmp_path: Path) -> None:
    for file in demo_like.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    own = load_file(str(tmp_path / "mtp.safetensors"))
    own["mtp.draft_ids"][-1] = VOCAB
    save_file(own, str(tmp_path / "mtp.safetensors"))
    with pytest.raises(CheckpointError, match=rf"draft_ids .* {VOCAB}.*ascending"):
        load_single(tmp_path)
