"""Prompts file: what is readable is read, what is not is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.launch.prompts_file import PromptError, parse_token_ids, read_prompts

SAMPLING = ("temperature", "max_tokens")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_three_kinds_of_prompt_and_their_settings(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"prompt": "ab", "temperature": 0.5, "id": "x", "category": "code"}\n\n'
        '{"prompt_token_ids": [1, 2]}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}\n',
    )
    text, ids, chat = read_prompts(path, sampling_fields=SAMPLING)
    assert (text.prompt, text.sampling, text.label, text.category) == (
        "ab",
        {"temperature": 0.5},
        "x",
        "code",
    )
    assert ids.prompt_token_ids == (1, 2) and ids.label == "3"
    assert chat.messages == ({"role": "user", "content": "hi"},)
    assert chat.sampling == {"max_tokens": 3}


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", r":1: not JSON"),
        ("[1]", r":1: not a JSON object"),
        ("{}", "0 prompts in one line"),
        ('{"prompt": "a", "messages": []}', "2 prompts in one line"),
        ('{"prompt": "a", "temprature": 1}', "did you mean temperature"),
        ('{"prompt": 3}', "prompt holds text"),
        ('{"prompt_token_ids": [1.5]}', "a list of integers"),
        ('{"prompt_token_ids": [true]}', "a list of integers"),
        ('{"messages": ["hi"]}', "a list of objects"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, match: str) -> None:
    with pytest.raises(PromptError, match=match):
        read_prompts(write(tmp_path, line), sampling_fields=SAMPLING)


def test_empty_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="empty"):
        read_prompts(write(tmp_path, "\n \n"), sampling_fields=SAMPLING)
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / "nowhere", sampling_fields=SAMPLING)


def test_token_ids_from_the_command_line() -> None:
    assert parse_token_ids("1, 2,3") == (1, 2, 3)
    with pytest.raises(PromptError, match="write them like"):
        parse_token_ids("1,x")
