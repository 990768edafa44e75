"""Prompts from a JSONL file: one JSON object a line, each with its own sampling settings if wanted.

A line has exactly one of `prompt` (text), `prompt_token_ids` (integers) or `messages` (a
conversation), and may set any sampling field (`temperature`, `max_tokens`, ...). Keys that belong
to nobody are refused with the nearest known one, except `id` and `category`, which label a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.launch.args import nearest

PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
LABEL_KEYS = ("id", "category")


class PromptError(ValueError):
    """A prompt that cannot be read: says where, what and how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """One prompt as the user gave it."""

    prompt: str | None = None
    """Plain text."""
    prompt_token_ids: tuple[int, ...] | None = None
    """Token ids, taken as they are."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """A conversation for the chat template."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields that this prompt sets."""
    label: str = ""
    """`id` of the line, else its number."""
    category: str = ""
    """`category` of the line, for figures by category."""


def read_prompts(path: Path, *, sampling_fields: Sequence[str]) -> list[PromptLine]:
    """Read every line of a prompts file; empty lines are skipped.

    Raises:
        PromptError: unreadable file, no prompts, or a line that says nothing usable.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(
            f"prompts file cannot be read (file={path}: {error}) -- there is nothing to generate "
            "from -- name a UTF-8 file with one JSON object a line"
        ) from error
    lines = [
        _read_line(line, where=f"{path}:{number}", number=number, sampling_fields=sampling_fields)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    if not lines:
        raise PromptError(
            f"prompts file is empty (file={path}) -- there is nothing to generate from -- "
            'write one JSON object a line, like {"prompt": "..."}'
        )
    return lines


def _read_line(text: str, *, where: str, number: int, sampling_fields: Sequence[str]) -> PromptLine:
    try:
        item = json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"{where}: not JSON ({error}) -- the line cannot be read -- one JSON object a line"
        ) from error
    if not isinstance(item, dict):
        raise PromptError(
            f"{where}: not a JSON object (value={text[:60]!r}) -- settings need names -- "
            'write it like {"prompt": "..."}'
        )
    known = (*PROMPT_KEYS, *LABEL_KEYS, *sampling_fields)
    for key in item:
        if key not in known:
            raise PromptError(
                f"{where}: unknown key {key!r} -- it would be ignored -- {nearest(key, known)}"
            )
    given = [key for key in PROMPT_KEYS if key in item]
    if len(given) != 1:
        raise PromptError(
            f"{where}: {len(given)} prompts in one line ({', '.join(given) or 'none'}) -- which "
            f"one is meant is open -- give exactly one of {', '.join(PROMPT_KEYS)}"
        )
    _check_kind(given[0], item[given[0]], where=where)
    return PromptLine(
        prompt=item.get("prompt"),
        prompt_token_ids=_tuple(item.get("prompt_token_ids")),
        messages=_tuple(item.get("messages")),
        sampling={key: item[key] for key in sampling_fields if key in item},
        label=str(item.get("id", number)),
        category=str(item.get("category", "")),
    )


def _check_kind(key: str, value: Any, *, where: str) -> None:
    good = {
        "prompt": lambda: isinstance(value, str),
        "prompt_token_ids": lambda: (
            isinstance(value, list) and all(type(token) is int for token in value)
        ),
        "messages": lambda: (
            isinstance(value, list) and all(isinstance(message, dict) for message in value)
        ),
    }
    if not good[key]():
        words = {"prompt": "text", "prompt_token_ids": "integers", "messages": "objects"}[key]
        raise PromptError(
            f"{where}: wrong type (key={key!r}, value={value!r:.60}) -- it cannot become tokens -- "
            f"{key} holds {'a list of ' if key != 'prompt' else ''}{words}"
        )


def _tuple(value: Any) -> Any:
    return None if value is None else tuple(value)


def parse_token_ids(text: str) -> tuple[int, ...]:
    """`--prompt-token-ids 1,2,3`.

    Raises:
        PromptError: something that is no integer.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise PromptError(
            f"token ids cannot be read (value={text!r}) -- the model takes integers -- "
            "write them like 1,2,3"
        ) from error
