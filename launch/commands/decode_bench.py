"""phalanx bench decode: tokens/s plain and with MTP, acceptance by category, peers beside us.

All contenders take turns on the same prompt, so that whatever else the machine does hits each of
them; with repeats, a prompt's time is the median of its repeats. Rates are total tokens over total
time, the prompt's own time included, so that a peer's `generate` is measured alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.launch.answers import encode_prompt, timed_run
from phalanx.launch.args import add_config
from phalanx.launch.commands.run_command import add_ranks
from phalanx.launch.machine import describe_machine
from phalanx.launch.peer_transformers import PEERS, open_peer
from phalanx.launch.prompts_file import PromptLine, read_prompts
from phalanx.launch.report import SpecFigures
from phalanx.launch.session import Session, run_on_ranks
from phalanx.runtime.request import SamplingParams
from phalanx.runtime.tokenizer import Tokenizer

PROMPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "prompts.jsonl"
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One contender's answer to one prompt."""

    token_ids: tuple[int, ...]
    seconds: float
    spec: SpecFigures | None = None


Contender = Callable[[PromptLine, int], Turn]
"""Answers a prompt with at most so many tokens."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One prompt's turns by contender. Filled by `measure` only."""

    line: PromptLine
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        """Median time of a contender."""
        return statistics.median(turn.seconds for turn in self.turns[name])

    def tokens(self, name: str) -> tuple[int, ...]:
        """What a contender answered."""
        return self.turns[name][0].token_ids


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `phalanx bench decode`."""
    add_ranks(parser)
    parser.add_argument(
        "--prompts-file",
        type=Path,
        default=PROMPTS,
        metavar="F.jsonl",
        help="prompts with a category each (default: benchmarks/prompts.jsonl of the checkout)",
    )
    parser.add_argument(
        "--limit", type=int, default=0, metavar="N", help="prompts of each category; 0 = all"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="longest answer")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="turns for each prompt")
    parser.add_argument(
        "--peer", action="append", choices=PEERS, default=[], help="run it beside us"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    add_config(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print; status 1 when speculation changed a text."""
    lines = first_of_each(
        read_prompts(options.prompts_file, sampling_fields=()), limit=options.limit
    )

    def work(session: Session) -> int:
        result = measure(session, lines, options=options)
        print(json.dumps(result) if options.json else as_lines(result), flush=True)
        return 0 if result["texts_equal"] == len(lines) else 1

    return run_on_ranks(options, work, quiet=options.json)


def first_of_each(lines: Sequence[PromptLine], *, limit: int) -> list[PromptLine]:
    """The first `limit` prompts of every category (0 = all), in file order."""
    seen: dict[str, int] = {}
    kept = []
    for line in lines:
        seen[line.category] = seen.get(line.category, 0) + 1
        if not limit or seen[line.category] <= limit:
            kept.append(line)
    return kept


def measure(
    session: Session, lines: Sequence[PromptLine], *, options: argparse.Namespace
) -> dict[str, Any]:
    """Every contender on every prompt, in turn."""
    tokenizer = Tokenizer.load(session.definite.folder)
    config = session.definite.config
    contenders: dict[str, Contender] = {"plain": ours(session, tokenizer, speculate=False)}
    if session.loaded.proposer is not None:
        contenders["mtp"] = ours(session, tokenizer, speculate=True)
    for name in options.peer:
        threads = config.model.threads * session.rank.info.world_size
        peer = open_peer(name, session.definite.folder, dtype=config.model.dtype, threads=threads)
        contenders[name] = theirs(peer, tokenizer)
    for answer in contenders.values():
        answer(lines[0], WARM_UP_TOKENS)
    rows = [Row(line=line) for line in lines]
    for row in rows:
        for _ in range(options.repeats):
            for name, answer in contenders.items():
                row.turns.setdefault(name, []).append(answer(row.line, options.max_tokens))
    categories = sorted({line.category for line in lines})
    return {
        "benchmark": "decode",
        **figures(rows, peers=options.peer),
        "by_category": {
            name: figures([row for row in rows if row.line.category == name], peers=options.peer)
            for name in categories
        },
        "texts_equal": sum(
            row.tokens("plain") == row.tokens("mtp" if "mtp" in row.turns else "plain")
            for row in rows
        ),
        "prompts": len(rows),
        "max_tokens": options.max_tokens,
        "repeats": options.repeats,
        "ranks": session.rank.info.world_size,
        "machine": describe_machine(),
        "config": config.as_dict(),
    }


def ours(session: Session, tokenizer: Tokenizer, *, speculate: bool) -> Contender:
    """This engine, with or without speculation."""

    def answer(line: PromptLine, max_tokens: int) -> Turn:
        report = timed_run(
            session,
            [line],
            defaults=SamplingParams(max_tokens=max_tokens),
            tokenizer=tokenizer,
            speculate=speculate,
        )
        return Turn(token_ids=report.outputs[0].token_ids, seconds=report.seconds, spec=report.spec)

    return answer


def theirs(
    peer: Callable[[Sequence[int], int], tuple[list[int], float]], tokenizer: Tokenizer
) -> Contender:
    """A peer on the same token ids."""

    def answer(line: PromptLine, max_tokens: int) -> Turn:
        prompt = encode_prompt(line, tokenizer=tokenizer, raw=False)
        token_ids, seconds = peer(prompt, max_tokens)
        return Turn(token_ids=tuple(token_ids), seconds=seconds)

    return answer


def figures(rows: Sequence[Row], *, peers: Sequence[str]) -> dict[str, Any]:
    """Rates, ratios and acceptance over some prompts."""
    plain = rate(rows, "plain")
    result: dict[str, Any] = {"plain_tok_s": round(plain, 2)}
    mtp = None
    if all("mtp" in row.turns for row in rows):
        mtp = rate(rows, "mtp")
        specs = [row.turns["mtp"][0].spec for row in rows]
        result |= {"mtp_tok_s": round(mtp, 2), "ratio": round(mtp / plain, 3)}
        result |= acceptance([spec for spec in specs if spec is not None])
    result["peers"] = {
        name: {
            "tok_s": round(rate(rows, name), 2),
            "ratio_plain": round(plain / rate(rows, name), 3),
            "ratio_mtp": None if mtp is None else round(mtp / rate(rows, name), 3),
        }
        for name in peers
    }
    return result


def rate(rows: Sequence[Row], name: str) -> float:
    """Tokens per second of a contender over all rows."""
    return sum(len(row.tokens(name)) for row in rows) / sum(row.seconds(name) for row in rows)


def acceptance(specs: Sequence[SpecFigures]) -> dict[str, Any]:
    """Acceptance over several runs: totals, not a mean of means."""
    verifies = sum(spec.num_verifies for spec in specs)
    depth = max((spec.num_drafts for spec in specs), default=0)
    counts = [
        sum(s.accepted_per_position[i] for s in specs if i < len(s.accepted_per_position))
        for i in range(depth)
    ]
    accepted = sum(spec.num_accepted_tokens for spec in specs)
    return {
        "acceptance_length": round(1.0 + accepted / max(1, verifies), 3),
        "accepted_per_position": [round(count / max(1, verifies), 3) for count in counts],
    }


def as_lines(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = []
    for name, part in [("all", result), *result["by_category"].items()]:
        text = f"{name:6} plain {part['plain_tok_s']:7.1f} tok/s"
        if "mtp_tok_s" in part:
            text += f"  mtp {part['mtp_tok_s']:7.1f} ({part['ratio']:.2f} x)"
            text += f"  acceptance length {part['acceptance_length']:.2f}"
        for peer, figure in part["peers"].items():
            text += f"  {peer} {figure['tok_s']:.1f} (plain is {figure['ratio_plain']:.2f} x)"
        lines.append(text)
    lines.append(
        f"texts equal with and without speculation: {result['texts_equal']} of {result['prompts']}"
    )
    return "\n".join(lines)
