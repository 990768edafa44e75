"""TOML text for the cost table and the calibration: a small deterministic writer, a strict reader.

Writes what those two files need and nothing more: integers, finite floats, booleans, strings,
flat arrays, nested tables and arrays of tables. Keys keep the order they are given in; floats are
written with the shortest digits that read back to the same bits, so a file is equal to the value
it was written from. Reading is the standard library's `tomllib` behind `TomlSection`, which checks
types and refuses names nobody asked for: a misspelt optional name would silently change a meaning.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _string(text: str) -> str:
    """Quote `text` as a basic string; control characters become \\uXXXX."""
    parts: list[str] = []
    for char in text:
        if char in _ESCAPES:
            parts.append(_ESCAPES[char])
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            parts.append(f"\\u{ord(char):04x}")
        else:
            parts.append(char)
    return '"' + "".join(parts) + '"'


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _float(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError(
            f"number not writable (value={number}, limit finite) -- a cost or a rate that is not "
            "finite would be refused when the file is loaded -- drop the measurement"
        )
    text = repr(number)
    return text if any(mark in text for mark in ".e") else text + ".0"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    raise ValueError(
        f"value not writable (type={type(value).__name__}, limit bool, int, float, str or a flat "
        "list) -- the file holds nothing else -- convert it first"
    )


def _is_table_list(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(item, Mapping) for item in value)
    )


def _emit(table: Mapping[str, object], path: tuple[str, ...], lines: list[str]) -> None:
    """Append `table` at `path`: its scalars first, then its tables, as TOML wants them."""
    nested: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, Mapping) or _is_table_list(value):
            nested.append((name, value))
        else:
            lines.append(f"{_key(name)} = {_scalar(value)}")
    for name, value in nested:
        here = (*path, _key(name))
        if isinstance(value, Mapping):
            lines.extend(("", f"[{'.'.join(here)}]"))
            _emit(value, here, lines)
        elif isinstance(value, Sequence):
            for item in value:
                lines.extend(("", f"[[{'.'.join(here)}]]"))
                _emit(item, here, lines)


def render_toml(document: Mapping[str, object]) -> str:
    """Return `document` as TOML text, equal inputs giving equal bytes.

    Raises:
        ValueError: a value TOML's subset here cannot hold (NaN, infinity, an unknown type).
    """
    lines: list[str] = []
    _emit(document, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def unreadable(what: str, where: str, trouble: str) -> str:
    """The message for a file that cannot be read."""
    return (
        f"{what} not readable ({where or 'top level'}: {trouble}) -- a value read wrongly misleads "
        "every step -- write the file with the spec-cost benchmark, or mend the line"
    )


class TomlSection:
    """One TOML table being read: typed access, and no name left over at `done`.

    Every method raises the error class it was built with, naming section, name and value.
    """

    __slots__ = ("_error", "_left", "_table", "_what", "_where")

    def __init__(
        self, table: object, *, what: str, error: type[ValueError], where: str = ""
    ) -> None:
        self._what = what
        self._error = error
        self._where = where
        if not isinstance(table, Mapping):
            raise self._bad("not a table")
        self._table: Mapping[str, object] = table
        self._left = set(table)

    def _bad(self, trouble: str) -> ValueError:
        return self._error(unreadable(self._what, self._where, trouble))

    def has(self, name: str) -> bool:
        """Whether the optional `name` is there."""
        return name in self._table

    def _take(self, name: str) -> object:
        if name not in self._table:
            raise self._bad(f"{name} is missing")
        self._left.discard(name)
        return self._table[name]

    def integer(self, name: str) -> int:
        """An integer (a boolean is none)."""
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(f"{name}={value!r} is not an integer")
        return value

    def number(self, name: str) -> float:
        """An integer or a float, as a float."""
        return self._as_number(name, self._take(name))

    def _as_number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(f"{name}={value!r} is not a number")
        try:
            return float(value)
        except OverflowError:
            raise self._bad(f"{name} is too large") from None

    def text(self, name: str) -> str:
        """A string."""
        value = self._take(name)
        if not isinstance(value, str):
            raise self._bad(f"{name}={value!r} is not a string")
        return value

    def boolean(self, name: str) -> bool:
        """true or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._bad(f"{name}={value!r} is not true or false")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._take(name)
        if not isinstance(value, list):
            raise self._bad(f"{name}={value!r} is not a list")
        return tuple(self._as_number(name, item) for item in value)

    def table(self, name: str) -> TomlSection:
        """A nested table."""
        where = f"{self._where}.{name}" if self._where else name
        return TomlSection(self._take(name), what=self._what, error=self._error, where=where)

    def tables(self, name: str) -> list[TomlSection]:
        """An array of tables; empty when it is not there."""
        value = self._take(name) if self.has(name) else []
        if not isinstance(value, list):
            raise self._bad(f"{name} is not a list of tables")
        prefix = f"{self._where}.{name}" if self._where else name
        return [
            TomlSection(item, what=self._what, error=self._error, where=f"{prefix}[{index}]")
            for index, item in enumerate(value)
        ]

    def texts(self) -> dict[str, str]:
        """Every entry as a string."""
        return {name: self.text(name) for name in sorted(self._table)}

    def done(self) -> None:
        """Refuse names that were never asked for."""
        if self._left:
            raise self._bad(f"unknown names {', '.join(sorted(self._left))}")


def read_toml(text: str, *, what: str, error: type[ValueError]) -> TomlSection:
    """Parse TOML text; `what` names the file in messages, `error` is raised for anything wrong."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as trouble:
        raise error(unreadable(what, "", str(trouble))) from trouble
    return TomlSection(document, what=what, error=error)
