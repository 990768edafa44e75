"""Train the demo model's MTP module by distillation from the trunk's own distribution.

    python benchmarks/mtp_data.py --out DATA            # the model's own answers, once
    python benchmarks/train_mtp.py --data DATA --out launch/demo_mtp.safetensors

The module: RMSNorm of the next token's embedding and of the trunk's pre-final-norm hidden,
concatenated and projected to one hidden, one transformer block (its MLP cut into experts like
the trunk's), a norm, and the trunk's own head over the most frequent tokens. The block starts as
the trunk's last layer. Unrolled as it drafts: step 0 reads the trunk's hidden, each later step
the module's own output of the step before, attending to the true rows before it and to the rows
it drafted itself. The loss is the cross entropy to the trunk's distribution at every answer
position, so drafts match what the trunk will choose; prompts are context only.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from mtp_data import DIM, FFN, GROUPS, HEADS, HIDDEN, DenseModel, rotary_tables
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax, rms_norm, silu

from phalanx.launch.demo_model import cut_experts

EPS = 1e-5
RESIDUAL_RMS = 36.0


@dataclass(frozen=True)
class Sequence:
    """tokens [L] and trunk hiddens [L, D]; answers start at `prompt`."""

    tokens: Tensor
    hidden: Tensor
    prompt: int


def load_sequences(folders: list[Path]) -> list[Sequence]:
    found = []
    for path in sorted(p for folder in folders for p in folder.glob("shard-*.safetensors")):
        shard = load_file(str(path))
        start = 0
        for length, prompt in zip(
            shard["lengths"].tolist(), shard["prompt_lengths"].tolist(), strict=True
        ):
            stop = start + length
            if length > prompt + 8:
                found.append(
                    Sequence(
                        shard["tokens"][start:stop].long(), shard["hidden"][start:stop], prompt
                    )
                )
            start = stop
    return found


def draft_vocabulary(
    sequences: list[Sequence], model: DenseModel, keep: int, *, samples: int = 24_000
) -> Tensor:
    """Ascending ids of the `keep` most likely tokens of the answers.

    Counts of the text plus five times the trunk's own probabilities at sampled positions: the
    soft counts know the tokens that this much text happens not to contain.
    """
    vocab_size = model.embedding.shape[0]
    counts = torch.zeros(vocab_size)
    for sequence in sequences:
        counts += torch.bincount(sequence.tokens[sequence.prompt :], minlength=vocab_size)
    hidden = torch.cat([s.hidden[s.prompt :: 8] for s in sequences])
    hidden = hidden[torch.randperm(len(hidden))[:samples]]
    with torch.no_grad():
        for rows in hidden.split(1000):
            normed = rms_norm(rows.float(), (HIDDEN,), model.final_norm, EPS)
            counts += 5 * linear(normed, model.embedding).softmax(-1).sum(0)
    return counts.topk(keep).indices.sort().values


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, L, DIM], cos and sin [L, DIM / 2]."""
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def pack(keep: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Move the kept rows of each sequence to the front and cut to the longest: [B, M] -> [B, M'].

    Returns (kept, *rows) where `kept` [B, M'] marks real rows; rows are [B, M, ...].
    """
    width = max(1, int(keep.sum(1).max()))
    order = keep.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    kept = keep.gather(1, order)
    index = torch.arange(keep.shape[0])[:, None]
    return (kept, *(row[index, order] for row in rows))


class MtpModule(nn.Module):
    """The dense form; `export` cuts it into experts."""

    def __init__(self, model: DenseModel) -> None:
        super().__init__()
        attn_norm, qkv, out, ffn_norm, gate_up, down = model.layers[-1]
        self.enorm = nn.Parameter(torch.ones(HIDDEN))
        self.hnorm = nn.Parameter(torch.ones(HIDDEN))
        project = torch.cat([0.4 * torch.eye(HIDDEN), torch.eye(HIDDEN)], dim=1)
        self.eh_proj = nn.Parameter(project + 0.003 * torch.randn_like(project))
        # The trunk's residual has RMS 36 here and ours 1: norms undo any common factor.
        out, down = out / RESIDUAL_RMS, down / RESIDUAL_RMS
        self.input_norm = nn.Parameter(attn_norm.clone())
        self.qkv = nn.Parameter(qkv.clone())
        self.out = nn.Parameter(out.clone())
        self.post_norm = nn.Parameter(ffn_norm.clone())
        self.gate_up = nn.Parameter(gate_up.clone())
        self.down = nn.Parameter(down.clone())
        self.norm = nn.Parameter(model.final_norm.clone())

    def project_input(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        e = rms_norm(embedding, (HIDDEN,), self.enorm, EPS)
        h = rms_norm(hidden, (HIDDEN,), self.hnorm, EPS)
        return linear(torch.cat([e, h], dim=-1), self.eh_proj)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[B, HEADS, M, DIM] keys and values of block inputs x [B, M, D]."""
        b, rows, _ = x.shape
        normed = rms_norm(x, (HIDDEN,), self.input_norm, EPS)
        k, v = linear(normed, self.qkv[HEADS * DIM :]).view(b, rows, 2, GROUPS, DIM).unbind(2)
        k = rotate(k.transpose(1, 2), cos, sin)
        repeat = HEADS // GROUPS
        return k.repeat_interleave(repeat, 1), v.transpose(1, 2).repeat_interleave(repeat, 1)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, rows, _ = x.shape
        q = linear(rms_norm(x, (HIDDEN,), self.input_norm, EPS), self.qkv[: HEADS * DIM])
        return rotate(q.view(b, rows, HEADS, DIM).transpose(1, 2), cos, sin)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        b, _, rows, _ = mixed.shape
        x = x + linear(mixed.transpose(1, 2).reshape(b, rows, HIDDEN), self.out)
        gate, up = linear(rms_norm(x, (HIDDEN,), self.post_norm, EPS), self.gate_up).chunk(2, -1)
        return x + linear(silu(gate) * up, self.down)

    def draft(
        self,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        base: tuple[Tensor, Tensor],
        rows: Tensor,
        own: list[tuple[Tensor, Tensor]],
        depth: int,
    ) -> Tensor:
        """Block output [B, M, D] of drafting rows: x [B, M, D] at positions rows + depth.

        rows [B, M] are the base rows; each sees the true rows 0 .. rows and its `own` rows.
        """
        cos, sin = tables[0][rows + depth][:, None], tables[1][rows + depth][:, None]
        q = self.queries(x, cos, sin)
        hidden_keys = torch.arange(base[0].shape[2])[None, None] > rows[:, :, None]
        bias = torch.zeros(hidden_keys.shape).masked_fill_(hidden_keys, float("-inf"))
        scores = [q @ base[0].transpose(-1, -2) * DIM**-0.5 + bias[:, None]]
        scores += [(q * k).sum(-1, keepdim=True) * DIM**-0.5 for k, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)
        length = base[0].shape[2]
        mixed = weights[..., :length] @ base[1]
        for j, (_, v) in enumerate(own):
            mixed = mixed + weights[..., length + j : length + j + 1] * v
        return self.finish(x, mixed)

    def export(self, draft_ids: Tensor) -> dict[str, Tensor]:
        q, k, v = self.qkv.split([HEADS * DIM, GROUPS * DIM, GROUPS * DIM])
        named = {
            "enorm.weight": self.enorm,
            "hnorm.weight": self.hnorm,
            "eh_proj.weight": self.eh_proj,
            "norm.weight": self.norm,
            "block.input_layernorm.weight": self.input_norm,
            "block.post_attention_layernorm.weight": self.post_norm,
            "block.self_attn.q_proj.weight": q,
            "block.self_attn.k_proj.weight": k,
            "block.self_attn.v_proj.weight": v,
            "block.self_attn.o_proj.weight": self.out,
        }
        gate, up = self.gate_up.split([FFN, FFN])
        cuts = {
            part: cut_experts(weight.detach(), part)
            for part, weight in (("w1", gate), ("w3", up), ("w2", self.down))
        }
        moe = "block.block_sparse_moe."
        for part, experts in cuts.items():
            named |= {f"{moe}experts.{e}.{part}.weight": w for e, w in enumerate(experts)}
        named[moe + "gate.weight"] = torch.zeros(len(cuts["w1"]), HIDDEN)
        out = {f"mtp.{n}": w.detach().to(torch.bfloat16).contiguous() for n, w in named.items()}
        return out | {"mtp.draft_ids": draft_ids.to(torch.int32)}


def batches(sequences: list[Sequence], tokens: int, rng: random.Random) -> list[list[Sequence]]:
    """Batches of sequences of like length, about `tokens` rows each, in random order."""
    jittered = sorted(sequences, key=lambda s: len(s.tokens) + rng.uniform(0, 24))
    out: list[list[Sequence]] = [[]]
    for sequence in jittered:
        longest = max([len(sequence.tokens), *(len(s.tokens) for s in out[-1])])
        if out[-1] and longest * (len(out[-1]) + 1) > tokens:
            out.append([])
        out[-1].append(sequence)
    rng.shuffle(out)
    return out


@dataclass(frozen=True)
class Teacher:
    """The trunk's head over the draft vocabulary."""

    embedding: Tensor
    final_norm: Tensor
    head: Tensor
    draft_ids: Tensor

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(rms_norm(hidden, (HIDDEN,), self.final_norm, EPS), self.head)


def loss_of(
    module: MtpModule,
    teacher: Teacher,
    batch: list[Sequence],
    steps: int,
    sharpen: float,
    explore: float,
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Sum over steps of the mean loss, and (hits, rows) of each step.

    Step 0 drafts at every answer row; a later step only where all drafts before it were the text
    (the only case in which that draft will matter), and at a share `explore` of the others.
    """
    lengths = [len(s.tokens) for s in batch]
    total = max(lengths)
    tokens = torch.zeros(len(batch), total + steps + 2, dtype=torch.long)
    hidden = torch.zeros(len(batch), total, HIDDEN)
    for b, s in enumerate(batch):
        tokens[b, : lengths[b]] = s.tokens
        hidden[b, : lengths[b]] = s.hidden.float()
    tables = rotary_tables(total + steps)
    last = torch.tensor(lengths)[:, None] - 2  # the trunk's choice at row last is known
    first = torch.tensor([s.prompt for s in batch])[:, None] - 1
    x_all = module.project_input(teacher.embedding[tokens[:, 1 : total + 1]], hidden)
    base = module.keys_values(x_all, tables[0][:total], tables[1][:total])
    rows = torch.arange(total)[None].expand(len(batch), total)
    alive, rows, x = pack((rows >= first) & (rows <= last), rows, x_all)
    own: list[tuple[Tensor, Tensor]] = []
    losses, hits = [], []
    for depth in range(steps):
        output = module.draft(x, tables, base, rows, own, depth)
        index = torch.arange(len(batch))[:, None]
        seen_at = (rows + 1 + depth).clamp(max=total - 1)
        with torch.no_grad():
            target = (teacher.logits(hidden[index, seen_at][alive]) / sharpen).softmax(-1)
        guess = linear(rms_norm(output[alive], (HIDDEN,), module.norm, EPS), teacher.head)
        losses.append(-(target * log_softmax(guess, -1)).sum(-1).mean() * 0.9**depth)
        right = torch.zeros_like(alive)
        right[alive] = teacher.draft_ids[guess.argmax(-1)] == tokens[index, rows + 2 + depth][alive]
        hits.append((int(right.sum()), int(alive.sum())))
        if depth + 1 == steps:
            break
        follow = right | ((torch.rand(right.shape) < explore) & alive)
        follow &= rows + depth + 1 <= last
        if not bool(follow.any()):
            break
        parts = [t for pair in own for t in pair]
        packed = pack(follow, rows, output, *(t.transpose(1, 2) for t in parts))
        alive, rows, previous = packed[:3]
        kept = [t.transpose(1, 2) for t in packed[3:]]
        x = module.project_input(teacher.embedding[tokens[index, rows + 2 + depth]], previous)
        at = rows + depth + 1
        new = module.keys_values(x, tables[0][at][:, None], tables[1][at][:, None])
        own = [*zip(kept[::2], kept[1::2], strict=True), new]
    return torch.stack(losses).sum(), hits


def evaluate(
    module: MtpModule, teacher: Teacher, held: list[Sequence], steps: int
) -> dict[str, float]:
    """Conditional hit rates of each draft and the acceptance length on held-out sequences."""
    totals = [[0, 0] for _ in range(steps)]
    with torch.no_grad():
        for start in range(0, len(held), 8):
            _, found = loss_of(module, teacher, held[start : start + 8], steps, 1.0, 0.0)
            for total, (right, rows) in zip(totals, found, strict=False):
                total[0] += right
                total[1] += rows
    rates = [right / max(rows, 1) for right, rows in totals]
    length, product = 1.0, 1.0
    for rate in rates:
        product *= rate
        length += product
    return {f"p{i + 1}": round(rate, 4) for i, rate in enumerate(rates)} | {"al": round(length, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "phalanx")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--report", type=int, default=50, help="steps between reports")
    parser.add_argument("--draft-vocab", type=int, default=10240)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3, help="unrolled draft steps")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--sharpen", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rng = random.Random(0)
    model = DenseModel.load(args.cache_dir)
    sequences = load_sequences(args.data)
    rng.shuffle(sequences)
    held, sequences = sequences[:64], sequences[64:]
    draft_ids = draft_vocabulary(sequences, model, args.draft_vocab)
    to_draft = torch.full((model.embedding.shape[0],), -1, dtype=torch.long)
    to_draft[draft_ids] = torch.arange(len(draft_ids))
    teacher = Teacher(
        model.embedding, model.final_norm, model.embedding[draft_ids].contiguous(), draft_ids
    )
    module = MtpModule(model)
    if args.resume:
        module.load_state_dict(load_file(str(args.resume)))
    covered = sum(int((to_draft[s.tokens[s.prompt :]] >= 0).sum()) for s in held)
    answers = sum(len(s.tokens) - s.prompt for s in held)
    print(f"{len(sequences)} sequences, coverage {covered / answers:.4f}", flush=True)
    train(module, teacher, draft_ids, held, args, rng)
    save_file(module.export(draft_ids), str(args.out), metadata={"format": "pt"})


def train(
    module: MtpModule,
    teacher: Teacher,
    draft_ids: Tensor,
    held: list[Sequence],
    args: argparse.Namespace,
    rng: random.Random,
) -> None:
    """AdamW, linear warm-up, cosine to a tenth by wall clock; prints one JSON line per report."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
    )
    began, step, queue, seen = time.time(), 0, [], 0
    limit = args.minutes * 60
    running: list[list[float]] = []
    while (elapsed := time.time() - began) < limit:
        if not queue:  # a new pass also takes what mtp_data.py has written meanwhile
            known = {s.tokens.numpy().tobytes() for s in held}
            fresh = load_sequences(args.data)
            sequences = [s for s in fresh if s.tokens.numpy().tobytes() not in known]
            queue = batches(sequences, args.batch_tokens, rng)
        batch = queue.pop()
        progress = elapsed / limit
        rate = args.lr * min(1.0, (step + 1) / 50) * (0.05 + 0.95 * (1 - progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, hits = loss_of(module, teacher, batch, args.steps, args.sharpen, 0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        step += 1
        seen += sum(len(s.tokens) for s in batch)
        rates = [right / max(rows, 1) for right, rows in hits]
        running.append([float(loss.detach()), *rates, *[0.0] * (args.steps - len(rates))])
        if step % args.report == 0:
            means = [round(sum(c) / len(c), 4) for c in zip(*running, strict=True)]
            running = []
            report = {
                "step": step,
                "minutes": round(elapsed / 60, 1),
                "tokens": seen,
                "train": means,
            }
            if step % (4 * args.report) == 0:
                report |= evaluate(module, teacher, held, args.steps)
                save_file(module.state_dict(), f"{args.out}.state")
                save_file(module.export(draft_ids), str(args.out), metadata={"format": "pt"})
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
