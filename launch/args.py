"""Command-line options made from the config dataclasses: name, type, default and help.

A field `max_num_seqs` of any branch becomes `--max-num-seqs`; its default is the field's default
and its help the docstring under the field, so that the two can never disagree. Two fields with the
same name in two branches would clash and are refused when the parser is built. Unknown options
fail with the nearest known one, and options are never abbreviated (`--max` must not change its
meaning when an option is added).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import itertools
import json
import textwrap
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from phalanx.proposers.base import SpecConfig
from phalanx.runtime.config import Config, ConfigError

# Fields whose option has a shorter, customary name.
OPTION_NAMES = {"method": "spec", "backend": "comm-backend"}

# More choices than this are not spelled out in an error line.
MAX_LISTED = 12

# vLLM's names for `--speculative-config`, and ours.
SPECULATIVE_KEYS = {"method": "method", "num_speculative_tokens": "num_drafts"}


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose error for an unknown option names the nearest one."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but an unknown option is answered with a suggestion."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self.unknown_option(unknown[0]))
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; a sub-parser answers for its own unknown options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and unknown[0].startswith("-"):
            self.error(self.unknown_option(unknown[0]))
        return parsed, unknown

    def unknown_option(self, text: str) -> str:
        """What to say about an option or argument that nobody declared."""
        name = text.split("=", 1)[0]
        return f"unknown option {name} -- {nearest(name, tuple(self._option_string_actions))}"

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint that names the closest known word, or all of a short list when none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known)}" if len(known) <= MAX_LISTED else "see --help"


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, read from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for item, following in itertools.pairwise(body):
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[item.target.id] = " ".join(str(following.value.value).split())
    return docs


def option_name(field_name: str) -> str:
    """The option of a field, with its dashes."""
    return "--" + OPTION_NAMES.get(field_name, field_name).replace("_", "-")


def add_dataclass(
    parser: argparse.ArgumentParser, cls: type, *, title: str, skip: Sequence[str] = ()
) -> None:
    """Add one option for each field of `cls` whose type has one obvious text form.

    Options that are not given stay None in the namespace, so that "given" and "default" can be
    told apart. Fields of other types (tables, nested configs) get no option.
    """
    group = parser.add_argument_group(title)
    docs = field_docs(cls)
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind = _plain_type(hints[item.name])
        if kind is None or item.name in skip:
            continue
        default = item.default if item.default is not dataclasses.MISSING else None
        shown = "" if default is None else f" (default: {default})"
        help_text = (docs.get(item.name, "") + shown).replace("%", "%%")
        option = option_name(item.name)
        if kind is bool:
            group.add_argument(
                option, dest=item.name, action=argparse.BooleanOptionalAction, help=help_text
            )
        elif choices := _choices(hints[item.name]):
            group.add_argument(option, dest=item.name, choices=choices, help=help_text)
        else:
            group.add_argument(
                option, dest=item.name, type=kind, metavar=kind.__name__.upper(), help=help_text
            )


def take_dataclass(cls: type, values: Mapping[str, Any], *, base: Any = None) -> Any:
    """An instance of `cls` from the options that were given; the rest from `base` or defaults."""
    given = {
        item.name: values[item.name]
        for item in dataclasses.fields(cls)
        if values.get(item.name) is not None
    }
    return dataclasses.replace(base if base is not None else cls(), **given)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the options of every branch of `Config`, and `--speculative-config`."""
    hints = typing.get_type_hints(Config)
    docs = field_docs(Config)
    for branch in dataclasses.fields(Config):
        add_dataclass(parser, hints[branch.name], title=docs[branch.name].rstrip("."))
    parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='speculation as JSON: {"method": "mtp", "num_speculative_tokens": 3}',
    )


def take_config(values: Mapping[str, Any]) -> Config:
    """The configuration that the options ask for, not resolved yet.

    Raises:
        ConfigError: a value out of range, or an unknown key in `--speculative-config`.
    """
    hints = typing.get_type_hints(Config)
    branches = {}
    for branch in dataclasses.fields(Config):
        cls = hints[branch.name]
        base = None
        if cls is SpecConfig and values.get("speculative_config") is not None:
            base = read_speculative_config(values["speculative_config"])
        branches[branch.name] = take_dataclass(cls, values, base=base)
    return Config(**branches)


def speculation_given(values: Mapping[str, Any]) -> bool:
    """Whether the user said who drafts; otherwise the checkpoint decides."""
    return values.get("method") is not None or values.get("speculative_config") is not None


def read_speculative_config(text: str) -> SpecConfig:
    """`--speculative-config`: JSON in vLLM's shape.

    Raises:
        ConfigError: not a JSON object, an unknown key (with the nearest known one), a wrong type.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"--speculative-config is not JSON (value={text!r}: {error}) -- nothing to read from "
            'it -- write it like {"method": "mtp", "num_speculative_tokens": 3}'
        ) from error
    if not isinstance(given, dict):
        raise ConfigError(
            f"--speculative-config is not a JSON object (value={text!r}) -- settings need names "
            '-- write it like {"method": "mtp", "num_speculative_tokens": 3}'
        )
    hints = typing.get_type_hints(SpecConfig)
    keys = SPECULATIVE_KEYS | {name: name for name in hints if name != "num_drafts"}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key not in keys:
            raise ConfigError(
                f"unknown key in --speculative-config (key={key!r}) -- it would be ignored -- "
                f"{nearest(key, tuple(keys))}"
            )
        name = keys[key]
        kind = _plain_type(hints[name])
        if kind is float and type(value) is int:
            value = float(value)
        if kind is not None and type(value) is not kind:
            raise ConfigError(
                f"wrong type in --speculative-config (key={key!r}, value={value!r}, expected "
                f"{kind.__name__}) -- the setting cannot be read -- mend the value"
            )
        fields[name] = value
    return SpecConfig(**fields)


def _choices(hint: Any) -> tuple[str, ...]:
    """The accepted words of a Literal field; empty for other fields."""
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _plain_type(hint: Any) -> type | None:
    """str, int, float or bool for a field that has one text form; None otherwise."""
    options = [item for item in typing.get_args(hint) if item is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return type(options[0])
    candidate = options[0] if len(options) == 1 else hint
    return candidate if candidate in (str, int, float, bool) else None
