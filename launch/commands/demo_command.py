"""phalanx demo: one prompt with MTP in lockstep, its text as it streams, then the same without."""

from __future__ import annotations

import argparse
import sys

from phalanx.launch.answers import timed_run
from phalanx.launch.args import add_config, add_dataclass, take_dataclass
from phalanx.launch.commands.run_command import add_ranks, load_tokenizer, stream_of
from phalanx.launch.prompts_file import PromptLine
from phalanx.launch.ranks import who_am_i
from phalanx.launch.report import table
from phalanx.launch.session import Session, rank_options, run_on_ranks
from phalanx.runtime.request import SamplingParams

PROMPT = "Write a Python function that checks whether a string is a palindrome, and explain it."
WARM_UP_TOKENS = 8
DEFAULT_RANKS = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `phalanx demo`."""
    add_ranks(parser)
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help=f"what to answer (default: {PROMPT!r})"
    )
    add_dataclass(parser, SamplingParams, title="Sampling")
    add_config(parser)


def run(options: argparse.Namespace) -> int:
    """Stream the answer and print the table."""
    if options.ranks is None and who_am_i(rank_options(options)).info.launcher == "single":
        options.ranks = DEFAULT_RANKS
    defaults = take_dataclass(SamplingParams, vars(options))
    lines = [PromptLine(prompt=options.prompt or PROMPT)]

    def work(session: Session) -> int:
        tokenizer = load_tokenizer(session, lines)
        warm_up = SamplingParams(max_tokens=WARM_UP_TOKENS)
        timed_run(session, lines, defaults=warm_up, tokenizer=tokenizer)
        print(f"\n> {lines[0].prompt}\n", flush=True)
        show = stream_of(lines, enabled=True)
        report = timed_run(session, lines, defaults=defaults, tokenizer=tokenizer, on_text=show)
        print("\n", flush=True)
        if session.loaded.proposer is None:
            print(table(report), flush=True)
            return 0
        print("the same prompt with speculation off ...", file=sys.stderr, flush=True)
        plain = timed_run(session, lines, defaults=defaults, tokenizer=tokenizer, speculate=False)
        print(table(report, plain_tokens_per_second=plain.tokens_per_second))
        if defaults.is_greedy or defaults.seed is not None:
            same = plain.outputs[0].token_ids == report.outputs[0].token_ids
            print(f"text with and without       {'identical' if same else 'DIFFERENT'}", flush=True)
            return 0 if same else 1
        return 0

    return run_on_ranks(options, work)
