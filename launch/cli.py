"""The `phalanx` command: finds the sub-command, runs it, and turns failures into one line.

Only the chosen command's module is imported, so that `phalanx flags` does not wait for torch.
Exit status: 0 done, 1 the command's own "no", 2 the user's mistake, 130 interrupted; a failure of
the ranks keeps the status that `launch/rank_main.py` gave it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from phalanx.launch.args import Parser, nearest

# Sub-command -> (module, one line of help). A module has add_options(parser) and run(options).
COMMANDS = {
    "run": ("run_command", "generate from one prompt or a file of prompts"),
    "demo": ("demo_command", "the demo: streamed text, then a table with speculation on and off"),
    "bench": ("bench_command", "measure, beside peers, and print one JSON object"),
    "doctor": ("doctor_command", "what would stop this machine, each line with its mend"),
    "flags": ("flags_command", "the table of environment flags with their values"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    traceback = "--traceback" in arguments
    if traceback:
        arguments.remove("--traceback")
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        return _say("interrupted", status=130)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if traceback:
            raise
        return _say(str(error), status=2)


def build_parser() -> Parser:
    """The top-level parser, for its help; sub-commands parse their own options."""
    parser = Parser(
        prog="phalanx",
        description="Expert-parallel runtime with speculative decoding in lockstep.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        subparsers.add_parser(name, help=text, add_help=False)
    parser.add_argument(
        "--traceback", action="store_true", help="show where a failure came from in the code"
    )
    return parser


def command_parser(name: str) -> Parser:
    """The parser of one sub-command with all its options."""
    module_name, text = COMMANDS[name]
    parser = Parser(prog=f"phalanx {name}", description=text[0].upper() + text[1:] + ".")
    _command_module(module_name).add_options(parser)
    return parser


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        build_parser().parse_args(arguments)
        build_parser().print_help()
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        return _say(f"unknown command {name!r} -- {nearest(name, tuple(COMMANDS))}", status=2)
    options = command_parser(name).parse_args(rest)
    options.argv = arguments
    status: int = _command_module(COMMANDS[name][0]).run(options)
    return status


def _command_module(module_name: str) -> ModuleType:
    return importlib.import_module(f"phalanx.launch.commands.{module_name}")


def _say(message: str, *, status: int) -> int:
    print(f"phalanx: {message}", file=sys.stderr)
    return status
