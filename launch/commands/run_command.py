"""phalanx run: generate from one prompt or a file of prompts; text as it comes, or one JSON object.

The text goes to stdout; what runs, and the table at the end, to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from phalanx.launch.answers import OnText, timed_run
from phalanx.launch.args import add_config, add_dataclass, take_dataclass
from phalanx.launch.prompts_file import PromptLine, parse_token_ids, read_prompts
from phalanx.launch.ranks import who_am_i
from phalanx.launch.report import RunReport, table
from phalanx.launch.session import Session, rank_options, run_on_ranks
from phalanx.runtime.request import SamplingParams
from phalanx.runtime.tokenizer import Tokenizer, TokenizerError

# For ranks that are started by hand, one command on each host.
RANK_OPTIONS = {
    "--rank": "this process's rank, when it is started by hand",
    "--world-size": "number of ranks started by hand",
    "--local-rank": "this process's number on its host (its GPU)",
    "--local-world-size": "ranks on this host",
    "--master-addr": "host of rank 0",
    "--master-port": "free port on the host of rank 0",
}

SAMPLING_FIELDS = tuple(item.name for item in fields(SamplingParams))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `phalanx run`."""
    add_ranks(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="what to answer")
    prompt.add_argument(
        "--prompt-token-ids", metavar="1,2,3", help="token ids to continue, taken as they are"
    )
    prompt.add_argument(
        "--prompts-file",
        type=Path,
        metavar="F.jsonl",
        help="one JSON object a line: prompt, prompt_token_ids or messages, and sampling fields",
    )
    parser.add_argument(
        "--raw", action="store_true", help="plain text as it is, without the chat template"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_dataclass(parser, SamplingParams, title="Sampling")
    add_config(parser)


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add `--ranks`, and who this process is where no launcher says it."""
    group = parser.add_argument_group("Ranks")
    group.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="processes to start (default 1); under torchrun or SLURM the launcher decides",
    )
    for name, text in RANK_OPTIONS.items():
        kind = str if name == "--master-addr" else int
        group.add_argument(name, type=kind, metavar=kind.__name__.upper(), help=text)


def run(options: argparse.Namespace) -> int:
    """Generate; status 1 when a prompt could not be served."""
    # The ranks that serve need no prompts, and a prompts file may be on rank 0's host only.
    if who_am_i(rank_options(options)).info.rank > 0:
        return run_on_ranks(options, _never, quiet=True)
    defaults = take_dataclass(SamplingParams, vars(options))
    lines = prompt_lines(options)

    def work(session: Session) -> int:
        show = stream_of(lines, enabled=not options.json)
        tokenizer = load_tokenizer(session, lines)
        report = timed_run(
            session,
            lines,
            defaults=defaults,
            tokenizer=tokenizer,
            raw=options.raw,
            on_text=show,
        )
        say(report, lines, as_json=options.json, streamed=show is not None)
        return 1 if any(failed(reason) for reason in reasons(report)) else 0

    return run_on_ranks(options, work, quiet=options.json)


def _never(session: Session) -> int:
    raise AssertionError(f"work is for rank 0 (this is rank {session.rank.info.rank})")


def prompt_lines(options: argparse.Namespace) -> list[PromptLine]:
    """The prompts of a command line.

    Raises:
        PromptError: a file or ids that cannot be read.
    """
    if options.prompts_file is not None:
        return read_prompts(options.prompts_file, sampling_fields=SAMPLING_FIELDS)
    if options.prompt_token_ids is not None:
        return [PromptLine(prompt_token_ids=parse_token_ids(options.prompt_token_ids))]
    return [PromptLine(prompt=options.prompt)]


def load_tokenizer(session: Session, lines: Sequence[PromptLine]) -> Tokenizer | None:
    """The checkpoint's tokenizer; None when it has none and no prompt is text.

    Raises:
        TokenizerError: there is text and no tokenizer for it.
    """
    try:
        return Tokenizer.load(session.definite.folder)
    except TokenizerError:
        if any(line.prompt_token_ids is None for line in lines):
            raise
        return None


def stream_of(lines: Sequence[PromptLine], *, enabled: bool) -> OnText | None:
    """Prints text as it comes, when there is one prompt: several would be torn into each other."""
    if not enabled or len(lines) != 1:
        return None

    def show(index: int, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    return show


def say(report: RunReport, lines: Sequence[PromptLine], *, as_json: bool, streamed: bool) -> None:
    """Print the report in the form that was asked for."""
    if as_json:
        print(json.dumps(report.as_json(), ensure_ascii=False))
        return
    if streamed:
        print(flush=True)
    else:
        for line, output in zip(lines, report.outputs, strict=True):
            print(f"--- {line.label}\n{output.text}", flush=True)
    for line, output in zip(lines, report.outputs, strict=True):
        if failed(output.finish_reason):
            label = f"prompt {line.label}: " if line.label else ""
            print(f"phalanx: {label}{output.finish_reason}", file=sys.stderr)
        elif not output.text and not streamed:
            print(f"  token ids: {list(output.token_ids)}")
    print(f"\n{table(report)}", file=sys.stderr)


def reasons(report: RunReport) -> list[str]:
    """Why each answer ended."""
    return [output.finish_reason for output in report.outputs]


def failed(reason: str) -> bool:
    """Whether a finish reason says that the prompt was not served."""
    return reason.startswith("error")
