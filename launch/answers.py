"""From prompts to answers: tokenize, hand in, collect tokens, stream text as it is made.

A prompt that cannot be served (too long, tokens out of range, impossible sampling) becomes an
answer with the error as its finish reason; the others go on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.launch.prompts_file import PromptError, PromptLine
from phalanx.launch.report import Output, RunReport, SpecFigures
from phalanx.launch.session import Session, generate
from phalanx.runtime.engine import Engine
from phalanx.runtime.errors import RequestError
from phalanx.runtime.request import SamplingParams
from phalanx.runtime.tokenizer import TextStream, Tokenizer, TokenizerError

OnText = Callable[[int, str], None]
"""Called with (index of the prompt, text that has become final)."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """One prompt on its way. Written by `answer_all` only."""

    prompt_token_ids: Sequence[int] = ()
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str = ""
    stream: TextStream | None = None

    def output(self) -> Output:
        """What the caller gets."""
        return Output(
            text="".join(self.pieces),
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt_token_ids),
        )


def encode_prompt(line: PromptLine, *, tokenizer: Tokenizer | None, raw: bool) -> Sequence[int]:
    """Token ids of one prompt: ids as they are, a conversation through the chat template, plain
    text through it too when the checkpoint has one, unless `raw`.

    Raises:
        PromptError, TokenizerError: it cannot become tokens.
    """
    if line.prompt_token_ids is not None:
        return line.prompt_token_ids
    if tokenizer is None:
        raise PromptError(
            "the checkpoint has no tokenizer -- text cannot become tokens -- give token ids with "
            "--prompt-token-ids, or in the prompts file"
        )
    if line.messages is not None:
        return tokenizer.encode_chat(line.messages)
    text = line.prompt or ""
    if raw or not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def make_params(defaults: SamplingParams, sampling: Mapping[str, Any]) -> SamplingParams:
    """The defaults with what one prompt says for itself.

    Raises:
        RequestError: a value out of its range.
    """
    given = dict(sampling)
    if isinstance(given.get("stop_token_ids"), list):
        given["stop_token_ids"] = tuple(given["stop_token_ids"])
    return dataclasses.replace(defaults, **given)


def answer_all(
    session: Session,
    engine: Engine,
    lines: Sequence[PromptLine],
    *,
    defaults: SamplingParams,
    tokenizer: Tokenizer | None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> list[Answer]:
    """Answer every prompt, as many at a time as the engine runs."""
    answers = [Answer() for _ in lines]
    by_id: dict[int, int] = {}
    for index, line in enumerate(lines):
        answer = answers[index]
        try:
            answer.prompt_token_ids = encode_prompt(line, tokenizer=tokenizer, raw=raw)
            request = session.request(answer.prompt_token_ids, make_params(defaults, line.sampling))
            engine.add_request(request)
        except (RequestError, PromptError, TokenizerError) as error:
            answer.finish_reason = f"error: {error}"
            continue
        answer.stream = tokenizer.stream() if tokenizer is not None else None
        by_id[request.id] = index
    for event in generate(engine):
        index = by_id[event.request_id]
        answer = answers[index]
        answer.token_ids.extend(event.token_ids)
        text = answer.stream.push(event.token_ids) if answer.stream is not None else ""
        if event.finish_reason is not None:
            why = f": {event.error}" if event.error else ""
            answer.finish_reason = f"{event.finish_reason}{why}"
            text += answer.stream.finish() if answer.stream is not None else ""
        if text:
            answer.pieces.append(text)
            if on_text is not None:
                on_text(index, text)
    return answers


def timed_run(
    session: Session,
    lines: Sequence[PromptLine],
    *,
    defaults: SamplingParams,
    tokenizer: Tokenizer | None,
    raw: bool = False,
    speculate: bool = True,
    on_text: OnText | None = None,
) -> RunReport:
    """Answer every prompt on a fresh engine and report the run."""
    engine = session.engine(speculate=speculate)
    began = time.monotonic()
    answers = answer_all(
        session,
        engine,
        lines,
        defaults=defaults,
        tokenizer=tokenizer,
        raw=raw,
        on_text=on_text,
    )
    seconds = time.monotonic() - began
    return report_of(session, engine, answers, seconds=seconds)


def report_of(
    session: Session, engine: Engine, answers: Sequence[Answer], *, seconds: float
) -> RunReport:
    """The figures of a finished run."""
    config = session.definite.config
    stats = engine.stats
    return RunReport(
        model=config.model.model,
        ranks=session.rank.info.world_size,
        outputs=tuple(answer.output() for answer in answers),
        seconds=seconds,
        rounds=stats.rounds,
        commands={code.name: count for code, count in sorted(stats.commands.items())},
        spec=spec_figures(session, engine),
        digest_checks=session.rank.lockstep_checks(),
        weights_bytes_per_rank=session.loaded.weights_bytes,
        config=config.as_dict(),
    )


def spec_figures(session: Session, engine: Engine) -> SpecFigures:
    """Speculation of one engine so far."""
    totals = engine.stats.spec.totals()
    depth = engine.stats.num_drafts_limit
    # A chain that never got that deep accepted nothing there.
    per_position = (*totals.accepted_per_pos, *[0] * depth)[:depth]
    return SpecFigures(
        method=session.definite.config.spec.method if depth else "off",
        num_drafts=depth,
        num_verifies=totals.num_drafts,
        num_draft_tokens=totals.num_draft_tokens,
        num_accepted_tokens=totals.num_accepted_tokens,
        accepted_per_position=per_position,
    )
