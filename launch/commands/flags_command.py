"""phalanx flags: the table of environment flags with current values and where each came from."""

from __future__ import annotations

import argparse
import json

from phalanx.runtime.flag_table import FLAGS, Flag, FlagClass
from phalanx.runtime.flags import Flags, read_environment


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `phalanx flags`."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    form.add_argument("--markdown", action="store_true", help="the text of docs/flags.md")


def run(options: argparse.Namespace) -> int:
    """Print the flags."""
    if options.markdown:
        print(markdown(), end="")
        return 0
    flags = read_environment()
    print(json.dumps(as_json(flags), indent=2) if options.json else as_table(flags))
    return 0


def as_json(flags: Flags) -> dict[str, object]:
    """The table as one object: `flags` by name, and `warnings`."""
    rows = {
        name: {
            "value": setting.value,
            "raw": setting.raw,
            "source": setting.source,
            "default": setting.flag.default,
            "class": setting.flag.kind.value,
            "ranks_must_agree": setting.flag.agree,
            "acts": setting.flag.wired,
            "effect": setting.flag.effect,
        }
        for name, setting in flags.settings.items()
    }
    return {"flags": rows, "warnings": list(flags.warnings)}


def as_table(flags: Flags) -> str:
    """The table in fixed-width columns, warnings below it."""
    rows = [("flag", "value", "from", "class", "acts", "effect")]
    for name, setting in flags.settings.items():
        flag = setting.flag
        rows.append(
            (
                name,
                _shown(setting.value),
                setting.source,
                flag.kind.value,
                "yes" if flag.wired else "not yet",
                flag.effect,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row[:5], widths, strict=True))
        + "  "
        + row[5]
        for row in rows
    ]
    return "\n".join(lines + [f"warning: {warning}" for warning in flags.warnings])


# What each class makes of its text, for the document.
CLASS_RULES = {
    FlagClass.PRESENCE: "set at all is on: `X=0` and `X=` are on too",
    FlagClass.STRICT_ONE: "on for exactly `1`; `true`, `yes` and `2` do nothing",
    FlagClass.STRICT_ZERO: "on unless exactly `0`",
    FlagClass.TRUTHY: "on for `1` and for `true` in any case",
    FlagClass.TRUTHY_EXACT: "on for `1` and lower-case `true`; `TRUE` does nothing",
    FlagClass.VALUE: "a value; unset or unreadable text gives the default, with a warning",
}


def markdown() -> str:
    """The whole text of docs/flags.md."""
    lines = [
        "# Environment flags",
        "",
        "Made by `phalanx flags --markdown` from `runtime/flag_table.py`; a test compares them.",
        "All flags are read once, at start. A command-line option wins over its flag. An unknown",
        "`PHALANX_*` name warns with the nearest known one. `phalanx flags` shows the values in",
        "force and where each came from.",
        "",
        "| class | rule |",
        "|---|---|",
        *[f"| {kind.value} | {CLASS_RULES[kind]} |" for kind in _used_classes()],
        "",
        "`alike` = every rank must have the same value, or the start-up agreement stops them all.",
        "`acts` = this version does something with it; `not yet` = parsed, shown and compared",
        "only, and a warning says so when it is set.",
        "",
        "| flag | class | default | alike | acts | effect |",
        "|---|---|---|---|---|---|",
        *[_markdown_row(flag) for flag in FLAGS],
    ]
    return "\n".join(lines) + "\n"


def _used_classes() -> list[FlagClass]:
    used = {flag.kind for flag in FLAGS}
    return [kind for kind in FlagClass if kind in used]


def _markdown_row(flag: Flag) -> str:
    accepts = f" ({flag.accepts})" if flag.accepts else ""
    cells = (
        f"`{flag.name}`",
        flag.kind.value,
        f"`{_shown(flag.default)}`",
        "yes" if flag.agree else "no",
        "yes" if flag.wired else "not yet",
        flag.effect + accepts,
    )
    return "| " + " | ".join(cells) + " |"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value is None else str(value)
