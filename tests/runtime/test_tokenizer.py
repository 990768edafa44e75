"""Tokenizer: ids and back, chat template, and streamed pieces that join to the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from phalanx.runtime.tokenizer import Tokenizer, TokenizerError

TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + ': ' + m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def byte_level() -> Backend:
    """A byte-level tokenizer: 256 byte tokens and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>", special=True)])
    return backend


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": {"content": "<|start|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@given(st.text(max_size=20))
def test_streamed_pieces_join_to_the_text(text: str) -> None:
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    pieces = [stream.push([token]) for token in ids]
    assert "".join(pieces) + stream.finish() == text == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 255), max_size=24), st.integers(1, 5))
def test_streamed_pieces_join_even_for_bytes_that_are_no_text(ids: list[int], width: int) -> None:
    tokenizer = Tokenizer(byte_level())
    stream = tokenizer.stream()
    pieces = [stream.push(ids[i : i + width]) for i in range(0, len(ids), width)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


def test_no_piece_shows_half_a_letter() -> None:
    tokenizer = Tokenizer(byte_level())
    stream = tokenizer.stream()
    pieces = [stream.push([token]) for token in tokenizer.encode("aé日🙂b")]
    assert [piece for piece in pieces if piece] == ["a", "é", "日", "🙂", "b"]


def test_chat_template_writes_the_prompt_up_to_the_answer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "<|start|>user: hi\n<|start|>assistant: "
    assert tokenizer.encode_chat(messages)[0] == 256
    assert tokenizer.vocab_size == 257


def test_template_beside_the_settings_wins(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages | tojson }}")
    assert Tokenizer.load(folder).render_chat([{"a": "ü"}]) == '<|start|>[{"a": "ü"}]'


def test_template_may_refuse_a_conversation(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    with pytest.raises(TokenizerError, match="no system role"):
        Tokenizer.load(folder).render_chat([{"role": "system", "content": "x"}])


def test_template_cannot_reach_outside_its_sandbox(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ ().__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TokenizerError, match="refused"):
        Tokenizer.load(folder).render_chat([])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", "{broken", "unreadable tokenizer"),
        ("tokenizer_config.json", "{broken", "unreadable tokenizer settings"),
        ("chat_template.jinja", "{% if %}", "does not parse"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, content: str, match: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(TokenizerError, match=match):
        Tokenizer.load(folder)


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="give token ids instead"):
        Tokenizer.load(tmp_path)


def test_no_chat_template_is_an_error_only_when_asked_for() -> None:
    tokenizer = Tokenizer(byte_level())
    assert not tokenizer.has_chat_template
    with pytest.raises(TokenizerError, match="--raw"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])
