"""The tiny model: a seeded random GLM-4-MoE checkpoint with an MTP layer, for tests and smoke runs.

Its text is noise, but everything is there: sigmoid router with correction bias, groups, shared
expert, a dense first layer, partial rotary, QK norm, and a byte-level tokenizer with a chat
template. transformers loads it as Glm4MoeForCausalLM.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

FORMAT: Final = 1  # raise when the written checkpoint changes, so that caches are rebuilt
SPECIAL_TOKENS: Final = ("<|end|>", "<|user|>", "<|assistant|>", "<|pad|>")
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ 'assistant' if message['role'] == 'assistant' else 'user' }}"
    "|>{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "torch_dtype": "float32",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": True,
    "attention_bias": False,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "pad_token_id": 259,
}


def prepare_tiny(cache_dir: Path, *, seed: int = 0) -> Path:
    """Return the folder of the tiny checkpoint, writing it on the first call (about a second)."""
    target = cache_dir / f"tiny-{FORMAT}-{seed}"
    if (target / "model.safetensors").exists():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="tiny-") as scratch:
        staged = Path(scratch) / "tiny"
        staged.mkdir()
        write_tiny(staged, seed=seed)
        try:
            os.replace(staged, target)
        except OSError:
            if not (target / "model.safetensors").exists():
                raise
            shutil.rmtree(staged)  # another process was faster; its checkpoint is the same
    return target


def write_tiny(folder: Path, *, seed: int = 0, **changes: Any) -> None:
    """Write config, tokenizer and weights into `folder`; `changes` override config fields."""
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder)
    save_file(
        random_weights(config, seed=seed), str(folder / "model.safetensors"), {"format": "pt"}
    )


def random_weights(config: dict[str, Any], *, seed: int) -> dict[str, Tensor]:
    """Every tensor of the checkpoint, float32, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    shapes = _shapes(config)
    return {name: _draw(name, shape, generator) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("e_score_correction_bias"):
        return 0.1 * noise
    return 1.0 + 0.1 * noise if len(shape) == 1 else noise * (1.2 / shape[1] ** 0.5)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    d, v, last = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (v, d),
        "model.norm.weight": (d,),
        "lm_head.weight": (v, d),
    }
    for i in range(last + config["num_nextn_predict_layers"]):
        dense = i < config["first_k_dense_replace"]
        parts = _attention_shapes(config) | _mlp_shapes(config, dense=dense)
        if i == last:
            parts |= {name: (d,) for name in ("enorm", "hnorm", "shared_head.norm")}
            parts |= {"eh_proj": (d, 2 * d)}
        for name, shape in parts.items():
            suffix = "" if name.endswith("bias") else ".weight"
            shapes[f"model.layers.{i}.{name}{suffix}"] = shape
    return shapes


def _attention_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    d, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q),
        "self_attn.q_norm": (dim,),
        "self_attn.k_norm": (dim,),
    }


def _mlp_shapes(config: dict[str, Any], *, dense: bool) -> dict[str, tuple[int, ...]]:
    d, f = config["hidden_size"], config["moe_intermediate_size"]
    if dense:
        return _gated("mlp", d, config["intermediate_size"])
    shapes = _gated("mlp.shared_experts", d, f * config["n_shared_experts"])
    shapes["mlp.gate"] = (config["n_routed_experts"], d)
    shapes["mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
    for expert in range(config["n_routed_experts"]):
        shapes |= _gated(f"mlp.experts.{expert}", d, f)
    return shapes


def _gated(prefix: str, d: int, f: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj": (f, d),
        f"{prefix}.up_proj": (f, d),
        f"{prefix}.down_proj": (d, f),
    }


def _write_tokenizer(folder: Path) -> None:
    """One token a byte, then the special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[3],
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2))
