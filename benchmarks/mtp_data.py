"""Let the demo model answer the training prompts, keeping its tokens and hidden states.

    python benchmarks/mtp_data.py --out FOLDER [--tokens 500000] [--threads 1]

Writes shards of safetensors: `tokens` int32 [N], `lengths` and `prompt_lengths` int32 [S], and
`hidden` bfloat16 [N, D], the residual before the final norm at every position. A plain batched
decoder (dense form of the model, float32) with one slot per stream; a finished stream's slot
takes the next prompt at once. The system prompt's keys and values are computed once.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from mtp_prompts import training_prompts
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from phalanx.launch.demo_model import _config, _open_gguf, dense_tensors, prepare_demo

HEADS, GROUPS, DIM, HIDDEN, LAYERS, FFN = 9, 3, 64, 576, 30, 1536
MAX_LENGTH = 288
TEMPERATURES = (0.0, 0.0, 0.0, 0.5, 0.8)


@dataclass
class DenseModel:
    """Fused float32 weights of the dense form."""

    embedding: Tensor
    final_norm: Tensor
    layers: list[tuple[Tensor, ...]]

    @classmethod
    def load(cls, cache_dir: Path) -> DenseModel:
        prepare_demo(cache_dir)
        reader = _open_gguf(cache_dir / "SmolLM2-135M-Instruct.Q4_1.gguf")
        named = {name: w.float() for name, w in dense_tensors(reader, _config(reader))}
        layers = []
        for i in range(LAYERS):
            get = lambda part, i=i: named[f"blk.{i}.{part}.weight"]  # noqa: E731
            qkv = torch.cat([get("attn_q"), get("attn_k"), get("attn_v")])
            gate_up = torch.cat([get("ffn_gate"), get("ffn_up")])
            layers.append(
                (
                    get("attn_norm"),
                    qkv,
                    get("attn_output"),
                    get("ffn_norm"),
                    gate_up,
                    get("ffn_down"),
                )
            )
        return cls(named["token_embd.weight"], named["output_norm.weight"], layers)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary of x [B, heads, DIM] with cos, sin [B, 1, DIM / 2]."""
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotary_tables(length: int) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / 100000.0 ** (torch.arange(0, DIM, 2).float() / DIM)
    angles = torch.arange(length).float()[:, None] * inverse
    return angles.cos(), angles.sin()


class Decoder:
    """One token of every slot a step; keys and values live in [LAYERS, B, GROUPS, T, DIM]."""

    def __init__(self, model: DenseModel, batch: int) -> None:
        self.model, self.batch = model, batch
        self.keys = torch.zeros(LAYERS, batch, GROUPS, MAX_LENGTH, DIM)
        self.values = torch.zeros_like(self.keys)
        self.cos, self.sin = rotary_tables(MAX_LENGTH)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden [B, HIDDEN] before the final norm after feeding one token a slot."""
        b, model = self.batch, self.model
        x = model.embedding[tokens]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        top = int(positions.max()) + 1
        hide = torch.arange(top)[None] > positions[:, None]
        bias = torch.zeros(b, top).masked_fill_(hide, float("-inf"))
        bias = bias[:, None, None].expand(b, GROUPS, 1, top).reshape(b * GROUPS, 1, top)
        rows = torch.arange(b)
        for i, (norm, qkv, out, norm2, gate_up, down) in enumerate(model.layers):
            fused = linear(rms_norm(x, (HIDDEN,), norm, 1e-5), qkv)
            q, k, v = fused.split([HEADS * DIM, GROUPS * DIM, GROUPS * DIM], dim=1)
            q = rotate(q.view(b, HEADS, DIM), cos, sin)
            self.keys[i, rows, :, positions] = rotate(k.view(b, GROUPS, DIM), cos, sin)
            self.values[i, rows, :, positions] = v.view(b, GROUPS, DIM)
            keys = self.keys[i, :, :, :top].reshape(b * GROUPS, top, DIM)
            values = self.values[i, :, :, :top].reshape(b * GROUPS, top, DIM)
            q = q.reshape(b * GROUPS, HEADS // GROUPS, DIM)
            scores = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=DIM**-0.5).softmax(-1)
            x = x + linear(torch.bmm(scores, values).reshape(b, HIDDEN), out)
            gate, up = linear(rms_norm(x, (HIDDEN,), norm2, 1e-5), gate_up).chunk(2, dim=1)
            x = x + linear(silu(gate) * up, down)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(
            rms_norm(hidden, (HIDDEN,), self.model.final_norm, 1e-5), self.model.embedding
        )


@dataclass
class Stream:
    """One prompt being answered in a slot."""

    prompt: list[int]
    temperature: float
    tokens: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)

    def next_token(self, sampled: int) -> int:
        fed = len(self.tokens)
        return self.prompt[fed] if fed < len(self.prompt) else sampled


class Writer:
    """Collects finished streams and writes a shard about every 40,000 tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held, self.shards, self.total = folder, [], 0, 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, stream: Stream) -> None:
        self.held.append(stream)
        self.total += len(stream.tokens)
        if sum(len(s.tokens) for s in self.held) > 40_000:
            self.flush()

    def flush(self) -> None:
        if not self.held:
            return
        save_file(
            {
                "tokens": torch.tensor([t for s in self.held for t in s.tokens], dtype=torch.int32),
                "lengths": torch.tensor([len(s.tokens) for s in self.held], dtype=torch.int32),
                "prompt_lengths": torch.tensor(
                    [min(len(s.prompt), len(s.tokens)) for s in self.held], dtype=torch.int32
                ),
                "hidden": torch.stack([h for s in self.held for h in s.hidden]),
            },
            str(self.folder / f"shard-{self.shards:04d}.safetensors"),
        )
        self.shards += 1
        self.held = []


def generate(decoder: Decoder, streams: list[Stream], writer: Writer, limit: int, eos: int) -> None:
    """Answer `streams` in order until `limit` tokens are written."""
    queue, batch = list(reversed(streams)), decoder.batch
    shared = len(_common_prefix([s.prompt for s in streams]))
    slots: list[Stream] = []
    for _ in range(batch):
        slots.append(queue.pop())
    tokens, began, steps = torch.zeros(batch, dtype=torch.long), time.time(), 0
    while writer.total < limit:
        for b, stream in enumerate(slots):
            tokens[b] = stream.next_token(int(tokens[b]))
        positions = torch.tensor([len(s.tokens) for s in slots])
        hidden = decoder.step(tokens, positions)
        kept = hidden.to(torch.bfloat16)
        logits = decoder.logits(hidden)
        greedy = logits.argmax(-1)
        for b, stream in enumerate(slots):
            stream.tokens.append(int(tokens[b]))
            stream.hidden.append(kept[b].clone())
            tokens[b] = _pick(logits[b], greedy[b], stream.temperature)
            done = len(stream.tokens) >= len(stream.prompt) and stream.tokens[-1] == eos
            if done or len(stream.tokens) >= len(stream.prompt) + 160:
                writer.add(stream)
                if not queue:
                    writer.flush()
                    return
                slots[b] = queue.pop()
                slots[b].tokens, slots[b].hidden = stream.tokens[:shared], stream.hidden[:shared]
        steps += 1
        if steps % 50 == 0:
            rate = steps * batch / (time.time() - began)
            print(f"{writer.total} tokens written, {rate:.0f} tok/s", flush=True)
    writer.flush()


def _common_prefix(lists: list[list[int]]) -> list[int]:
    first, last = min(lists), max(lists)
    return [
        a
        for i, (a, b) in enumerate(zip(first, last, strict=False))
        if first[:i] == last[:i] and a == b
    ]


def _pick(logits: Tensor, greedy: Tensor, temperature: float) -> int:
    if temperature == 0.0:
        return int(greedy)
    top, ids = (logits / temperature).topk(50)
    return int(ids[torch.multinomial(top.softmax(-1), 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "phalanx")
    parser.add_argument("--tokens", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from-end", action="store_true", help="take the prompts last to first")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepare_demo(args.cache_dir))
    streams = []
    for i, prompt in enumerate(training_prompts(args.seed)):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        streams.append(Stream(ids[:120], TEMPERATURES[i % len(TEMPERATURES)]))
    if args.from_end:
        streams.reverse()
    decoder = Decoder(DenseModel.load(args.cache_dir), args.batch)
    with torch.inference_mode():
        generate(decoder, streams, Writer(args.out), args.tokens, tokenizer.eos_token_id)


if __name__ == "__main__":
    main()
