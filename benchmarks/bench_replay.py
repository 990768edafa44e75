"""Replay recorded runs through every mechanism; one JSON line, `--plot` draws it.

Prints {fixture/trace/width: {mechanism: tokens per millisecond}}, with the best fixed depth chosen
in hindsight as `best-fixed`. The runs are data, the time is simulated, the policies are the real
ones, so the figures are the same on every machine. Traces known only by their counts are averaged
over `--seeds` orders.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from phalanx.proposers.policy.replay import ReplayError
from phalanx.proposers.policy.replay_suite import tokens_per_ms

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "proposers" / "policy" / "fixtures"


def load_fixtures(paths: Sequence[Path]) -> list[Mapping[str, object]]:
    """Read fixture files.

    Raises:
        ReplayError: no file, or one that is not a JSON object.
    """
    documents: list[Mapping[str, object]] = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ReplayError(
                f"replay fixture not readable (fixture={path}, {error}) -- nothing can be "
                "replayed from it -- name a JSON file like those beside the policy tests"
            ) from error
        if not isinstance(document, dict):
            raise ReplayError(
                f"replay fixture not readable (fixture={path}, limit a JSON object) -- nothing "
                "can be replayed from it -- name a file like those beside the policy tests"
            )
        documents.append(document)
    if not documents:
        raise ReplayError(
            f"no replay fixture (looked in {FIXTURES}) -- there is nothing to replay -- run from "
            "a source checkout or name files with --fixture"
        )
    return documents


def load_plots() -> ModuleType:
    """The figures beside this file, wherever it was started from."""
    spec = importlib.util.spec_from_file_location("plots", Path(__file__).with_name("plots.py"))
    if spec is None or spec.loader is None:
        raise ReplayError(
            f"plots.py not found (beside {__file__}) -- it draws the figure -- run from a source "
            "checkout"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_replay", description=__doc__, allow_abbrev=False)
    parser.add_argument("--fixture", type=Path, action="append", help="a fixture file; repeatable")
    parser.add_argument("--seeds", type=int, default=3, help="orders of a trace known by counts")
    parser.add_argument("--plot", type=Path, help="write a figure (svg, png or pdf)")
    parser.add_argument("--json", action="store_true", help="one JSON line (the default)")
    parser.add_argument("--table", action="store_true", help="an aligned table instead of JSON")
    return parser.parse_args(argv)


def as_table(results: Mapping[str, Mapping[str, float]]) -> str:
    """The figures as aligned text, the best mechanism of each row starred."""
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    wide = max(len(name) for name in results)
    lines = [" " * wide + "".join(f"{name:>19}" for name in names)]
    for scenario, row in results.items():
        best = max(value for name, value in row.items() if name != "best-fixed")
        cells = [
            f"{row[name]:.5f}{'*' if row[name] == best else ' '}" if name in row else "-"
            for name in names
        ]
        lines.append(f"{scenario:<{wide}}" + "".join(f"{cell:>19}" for cell in cells))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Replay, print, and draw when asked."""
    options = parse(argv)
    paths = options.fixture or sorted(FIXTURES.glob("*.json"))
    try:
        documents = load_fixtures(paths)
        results = tokens_per_ms(documents, seeds=range(options.seeds))
        if options.plot is not None:
            load_plots().plot_replay(results, options.plot)
    except ReplayError as error:
        print(error, file=sys.stderr)
        return 2
    if options.table and not options.json:
        print(as_table(results))
    else:
        figures = {
            scenario: {name: round(value, 6) for name, value in row.items()}
            for scenario, row in results.items()
        }
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
