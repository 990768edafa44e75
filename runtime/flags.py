"""Every environment flag, read once at start into one frozen struct. The only os.environ here.

The parsers are pure functions of the text; `read_flags` is a pure function of a mapping. Nothing
re-reads the environment later: what `Flags` holds is passed down. A command-line option wins over
its flag, which is the caller's business.

Traps that are kept, because launch scripts rely on them: PRESENCE counts `0` and the empty text
as set; STRICT_ONE wants exactly `1`; TRUTHY_EXACT knows `true` but not `TRUE`. A VALUE flag whose
text cannot be read keeps its default and says so: a typing mistake never switches a feature off.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.proposers.policy.levers import is_one, is_present, unless_zero
from phalanx.runtime.flag_table import FLAGS, Flag, FlagClass, FlagValue

PREFIX = "PHALANX_"
# Variables with our prefix that the launcher sets for the processes it starts: not flags.
INTERNAL_PREFIX = "PHALANX_INTERNAL_"


def parse_truthy(raw: str | None) -> bool:
    """TRUTHY: True for `1` and for `true` in any case."""
    return raw is not None and (raw == "1" or raw.lower() == "true")


def parse_truthy_exact(raw: str | None) -> bool:
    """TRUTHY_EXACT: True for `1` and lower-case `true` only."""
    return raw in ("1", "true")


def parse(flag: Flag, raw: str | None) -> FlagValue:
    """The value of `flag` for its text (None = unset)."""
    match flag.kind:
        case FlagClass.PRESENCE:
            return is_present(raw)
        case FlagClass.STRICT_ONE:
            return is_one(raw)
        case FlagClass.STRICT_ZERO:
            return unless_zero(raw)
        case FlagClass.TRUTHY:
            return parse_truthy(raw)
        case FlagClass.TRUTHY_EXACT:
            return parse_truthy_exact(raw)
        case FlagClass.VALUE:
            value = None if raw is None or flag.read is None else flag.read(raw)
            return flag.default if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One flag with what the environment said."""

    flag: Flag
    raw: str | None
    """The text found, or None."""
    value: FlagValue

    @property
    def source(self) -> str:
        """Where the value came from: `environment` or `default`."""
        return "default" if self.raw is None else "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """All flags of this process, read once."""

    settings: Mapping[str, Setting]
    """By whole name, in the table's order."""
    warnings: tuple[str, ...] = ()
    """What to tell the user at start."""

    def value(self, name: str) -> FlagValue:
        """The value of a declared flag (whole name)."""
        return self._setting(name).value

    def is_on(self, name: str) -> bool:
        """Whether a switch (every class but VALUE) is on."""
        value = self._setting(name).value
        if not isinstance(value, bool):
            raise TypeError(f"not a switch (flag={name}, value={value!r}) -- read it with value()")
        return value

    def raw(self, name: str) -> str | None:
        """The text of a declared flag, for a policy's own parser; None when unset."""
        return self._setting(name).raw

    def agreement(self) -> dict[str, str]:
        """What every rank must have alike: name to value in words."""
        return {
            name: "unset" if setting.value is None else str(setting.value)
            for name, setting in self.settings.items()
            if setting.flag.agree
        }

    def _setting(self, name: str) -> Setting:
        if name not in self.settings:
            raise KeyError(
                f"undeclared flag (name={name!r}) -- declare it in runtime/flag_table.py"
            )
        return self.settings[name]


def read_flags(environ: Mapping[str, str]) -> Flags:
    """Read every declared flag from `environ` and collect the warnings."""
    settings: dict[str, Setting] = {}
    warnings: list[str] = []
    for flag in FLAGS:
        raw = environ.get(flag.name)
        settings[flag.name] = Setting(flag=flag, raw=raw, value=parse(flag, raw))
        if raw is not None:
            warnings.extend(_doubts(flag, raw))
    for name in sorted(environ):
        ours = name.startswith(PREFIX) and not name.startswith(INTERNAL_PREFIX)
        if ours and name not in settings:
            warnings.append(_unknown(name, tuple(settings)))
    return Flags(settings=settings, warnings=tuple(warnings))


def read_environment() -> Flags:
    """Read the flags of this process. Call once, at start."""
    return read_flags(os.environ)


def _doubts(flag: Flag, raw: str) -> list[str]:
    """Texts that probably do not mean what their author meant."""
    doubts: list[str] = []
    off_words = {"", "0", "false", "no", "off"}
    on_words = {"true", "yes", "on", "2"}
    text = raw.strip().lower()
    if flag.kind is FlagClass.PRESENCE and text in off_words:
        doubts.append(
            f"{flag.name}={raw!r} is set, and set means on for this flag, even to 0 -- "
            f"in effect: {flag.effect} -- unset it to switch it off"
        )
    if flag.kind is FlagClass.STRICT_ONE and raw != "1" and text in on_words | {"1"}:
        doubts.append(f"{flag.name}={raw!r} does nothing -- only the text 1 switches it on")
    if flag.kind is FlagClass.STRICT_ZERO and raw != "0" and text in off_words:
        doubts.append(f"{flag.name}={raw!r} leaves it on -- only the text 0 switches it off")
    if flag.kind is FlagClass.TRUTHY_EXACT and text == "true" and raw != "true":
        doubts.append(f"{flag.name}={raw!r} does nothing -- only 1 or lower-case true counts")
    if flag.kind is FlagClass.VALUE and (flag.read is None or flag.read(raw) is None):
        doubts.append(
            f"{flag.name}={raw!r} cannot be read (accepted: {flag.accepts}) -- "
            f"the default {flag.default!r} holds -- mend or unset it"
        )
    if not flag.wired:
        doubts.append(
            f"{flag.name} is read and compared, but no step of this version acts on it yet -- "
            "see the column `acts` of `phalanx flags`"
        )
    return doubts


def _unknown(name: str, known: tuple[str, ...]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "`phalanx flags` lists the known ones"
    return f"{name} is not a flag of this version and does nothing -- {hint}"
