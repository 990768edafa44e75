"""The command: lists what it can do, answers mistakes in one line, keeps its options frozen."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.launch.cli import COMMANDS, build_parser, command_parser, main
from phalanx.launch.commands.flags_command import as_json, as_table, markdown
from phalanx.runtime.flag_table import FLAGS
from phalanx.runtime.flags import read_flags

FROZEN = Path(__file__).with_name("frozen_options.json")


def options_of(parser: argparse.ArgumentParser, name: str) -> dict[str, list[str]]:
    """Options by command, sub-commands as `bench decode`."""
    options = {
        name: sorted(
            option
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--")
        )
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child, child_parser in action.choices.items():
                options |= options_of(child_parser, f"{name} {child}")
    return options


def test_options_are_frozen() -> None:
    """An option that users type may be added, never dropped or renamed without saying so here."""
    frozen = json.loads(FROZEN.read_text())
    now: dict[str, list[str]] = {}
    for name in COMMANDS:
        now |= options_of(command_parser(name), name)
    assert now == frozen, "options changed: note it in the README and rewrite frozen_options.json"


def test_help_names_every_command() -> None:
    text = build_parser().format_help()
    assert all(name in text for name in COMMANDS)


def test_no_command_is_a_mistake_and_help_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flgs"]) == 2
    assert "did you mean flags?" in capsys.readouterr().err


def test_traceback_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--model", "/nowhere", "--prompt", "x"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("phalanx: ") and "/nowhere" in error and error.count("\n") == 1
    with pytest.raises(ValueError, match="/nowhere"):
        main([*arguments, "--traceback"])


def test_flags_command_prints_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["flags"]) == {flag.name for flag in FLAGS}


def test_flags_table_shows_value_and_source() -> None:
    flags = read_flags({"PHALANX_STARTUP_PARITY": "warn", "PHALANX_NOPE": "1"})
    table = as_table(flags)
    row = next(line for line in table.splitlines() if line.startswith("PHALANX_STARTUP_PARITY"))
    assert "warn" in row and "environment" in row
    assert "warning: PHALANX_NOPE" in table
    assert as_json(flags)["warnings"] == list(flags.warnings)


def test_markdown_has_one_row_a_flag() -> None:
    assert sum(line.startswith("| `PHALANX_") for line in markdown().splitlines()) == len(FLAGS)


def test_flags_command_needs_no_torch() -> None:
    code = (
        "import sys; from phalanx.launch.cli import main; main(['flags']);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
