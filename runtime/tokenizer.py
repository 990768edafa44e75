"""Tokenizer: text to token ids and back, chat template, text that streams without torn letters.

Reads `tokenizer.json` with the tokenizers library directly: starting it takes milliseconds, where
importing transformers takes seconds. A folder that only has another tokenizer format is converted
by transformers, if that can. Only rank 0 ever has a tokenizer.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer as Backend

# What a decoder writes for bytes that are not (yet) a whole character.
TORN = "\N{REPLACEMENT CHARACTER}"


class TokenizerError(ValueError):
    """Text cannot become tokens, or the folder has no tokenizer or chat template for it."""


class Tokenizer:
    """Text to ids and back, for one checkpoint. Holds no per-request state."""

    __slots__ = ("_backend", "_special", "_template")

    def __init__(
        self,
        backend: Backend,
        *,
        template: str | None = None,
        special: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a loaded tokenizer; `special` holds bos_token and its kin for the template."""
        self._backend = backend
        self._special = dict(special or {})
        self._template = None if template is None else _compile(template)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder.

        Raises:
            TokenizerError: no tokenizer in the folder, or one that cannot be read.
        """
        settings = _read_json(folder / "tokenizer_config.json")
        return cls(
            _load_backend(folder), template=_template(folder, settings), special=_special(settings)
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can work."""
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text, with the beginning token if the tokenizer adds one."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; an unfinished character becomes a replacement mark."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a conversation, up to where the assistant's answer begins.

        Raises:
            TokenizerError: the checkpoint has no chat template, or the template refuses.
        """
        if self._template is None:
            raise TokenizerError(
                "no chat template in the checkpoint -- a conversation cannot become a prompt -- "
                "give plain text with --raw, or token ids"
            )
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._special
            )
        except jinja2.TemplateError as error:
            raise TokenizerError(
                f"the chat template refused the conversation ({error}) -- no prompt came of it -- "
                "mend the messages: each needs a role and a content"
            ) from error

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation (the template writes the special tokens itself)."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def stream(self) -> TextStream:
        """A fresh stream for one answer."""
        return TextStream(self)


class TextStream:
    """One answer's text as its tokens arrive. The pieces joined are the text of all tokens.

    A token may end in the middle of a character, and some decoders write a token differently at
    the start of a text, so each piece is the difference of two decodings that share a prefix.
    """

    __slots__ = ("_ids", "_read", "_start", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with no tokens."""
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        """First token of the decoded window: what was last given out begins here."""
        self._read = 0
        """Tokens before this one are given out."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text they finish, often empty."""
        self._ids.extend(token_ids)
        piece, whole = self._pending()
        if whole.endswith(TORN):
            return ""
        self._advance()
        return piece

    def finish(self) -> str:
        """The rest, torn characters included."""
        piece, _ = self._pending()
        self._advance()
        return piece

    def _pending(self) -> tuple[str, str]:
        given = self._tokenizer.decode(self._ids[self._start : self._read])
        whole = self._tokenizer.decode(self._ids[self._start :])
        return whole[len(given) :], whole

    def _advance(self) -> None:
        self._start, self._read = self._read, len(self._ids)


def _load_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise TokenizerError(
                f"unreadable tokenizer (file={path}: {error}) -- text cannot become tokens -- "
                "fetch the checkpoint again"
            ) from error
    if not any(folder.glob("tokenizer*")) and not any(folder.glob("*.model")):
        raise TokenizerError(
            f"no tokenizer in the checkpoint (folder={folder}, expected tokenizer.json) -- text "
            "cannot become tokens -- give token ids instead, or add the tokenizer's files"
        )
    from transformers import AutoTokenizer  # slow to import, rarely needed

    converted: Backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    return converted


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default")
    return template


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    special: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            special[name] = value
    return special


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TokenizerError(
            f"unreadable tokenizer settings (file={path}: {error}) -- the chat template would be "
            "missing -- fetch the checkpoint again"
        ) from error
    return content if isinstance(content, dict) else {}


def _compile(template: str) -> jinja2.Template:
    """The template in a sandbox, with the helpers that published templates count on."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _time_now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TokenizerError(
            f"the chat template does not parse ({error}) -- conversations cannot become prompts "
            "-- mend chat_template in the checkpoint"
        ) from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _time_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
