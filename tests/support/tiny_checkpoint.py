"""Small random checkpoints saved by transformers, one maker per family, and their oracles."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCAB = 211


def save_mixtral(folder: Path, *, seed: int = 0, **changes: object) -> Path:
    """Softmax router, top-2 of 8 experts, grouped-query attention."""
    from transformers import MixtralConfig, MixtralForCausalLM

    settings: dict[str, object] = dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=40, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, num_local_experts=8,
        num_experts_per_tok=2, max_position_embeddings=256, initializer_range=0.15,
        sliding_window=None, rope_theta=10000.0,
    )  # fmt: skip
    torch.manual_seed(seed)
    MixtralForCausalLM(MixtralConfig(**(settings | changes))).save_pretrained(folder)
    return folder


def save_glm4_moe(folder: Path, *, seed: int = 0, mtp: bool = True, **changes: object) -> Path:
    """Sigmoid router with correction bias, groups, shared expert, one dense layer, MTP layer."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    settings: dict[str, object] = dict(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=72, moe_intermediate_size=24,
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=1,
        first_k_dense_replace=1, use_qk_norm=True, attention_bias=True,
        partial_rotary_factor=0.5, routed_scaling_factor=1.5, max_position_embeddings=256,
        initializer_range=0.15, num_nextn_predict_layers=1,
    )  # fmt: skip
    config = Glm4MoeConfig(**(settings | changes))
    torch.manual_seed(seed)
    model = Glm4MoeForCausalLM(config)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    if mtp:
        _add_mtp_layer(folder, config.num_hidden_layers)
    return folder


def _add_mtp_layer(folder: Path, num_layers: int) -> None:
    """A random MTP layer shaped like the last MoE layer, under HF's name for it."""
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    last, mtp = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    torch.manual_seed(7)
    new: dict[str, Tensor] = {
        mtp + name.removeprefix(last): torch.randn_like(tensor) * 0.15 + (tensor.ndim == 1)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    hidden = tensors["model.norm.weight"].shape[0]
    for name in ("enorm", "hnorm", "shared_head.norm"):
        new[f"{mtp}{name}.weight"] = 1 + 0.2 * torch.randn(hidden)
    new[f"{mtp}eh_proj.weight"] = 0.15 * torch.randn(hidden, 2 * hidden)
    save_file(tensors | new, str(path), metadata={"format": "pt"})
