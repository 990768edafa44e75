"""The tiny checkpoint is whole: transformers loads it, a seed repeats it, it has a drafter."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from phalanx.launch.tiny_model import prepare_tiny
from tests.support.single_rank import OneSequence, load_single


def test_transformers_loads_every_weight_and_agrees(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, Glm4MoeForCausalLM

    folder = prepare_tiny(tmp_path)
    oracle, info = Glm4MoeForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert {name.split(".")[2] for name in info["unexpected_keys"]} <= {"3"}, "the MTP layer only"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "def f(x):\n\treturn x  # naïve ☃"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids) < 256
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
        model = load_single(folder)
        got = model.logits(OneSequence(model).forward(ids, 0))
        assert model.draft_head(OneSequence(model).kv) is not None
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_the_same_seed_writes_the_same_weights_once(tmp_path: Path) -> None:
    first = prepare_tiny(tmp_path / "a")
    again, other = prepare_tiny(tmp_path / "b"), prepare_tiny(tmp_path / "b", seed=1)
    one, two, three = (load_file(str(f / "model.safetensors")) for f in (first, again, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], three["lm_head.weight"])
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert prepare_tiny(tmp_path / "a") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted([again.name, other.name])


def test_chat_template_marks_turns(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepare_tiny(tmp_path))
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>hi<|assistant|>"
