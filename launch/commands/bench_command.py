"""phalanx bench: measure, beside peers, and print one JSON object.

`decode` runs the model and lives in the package. The others are scripts of the benchmarks folder,
started as they are, with the options behind their name: they need a source checkout.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from phalanx.launch.commands import decode_bench

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# Name -> what it measures; the script is benchmarks/bench_<name>.py.
SCRIPTS = {
    "commands": "control-plane time of one round beside a raw broadcast of the same bytes",
    "kernels": "one operation at a time, by rows",
    "policy": "decisions of the speculation policies",
    "replay": "policies against recorded acceptance",
    "lookup": "lookup drafters beside a peer's",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser for each benchmark."""
    benches = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    text = "tokens/s plain and with MTP, acceptance by category"
    decode_bench.add_options(benches.add_parser("decode", help=text, description=text))
    for name, text in SCRIPTS.items():
        # No prefix character: every argument, options included, is the script's own.
        script = benches.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        script.add_argument("arguments", nargs="*")


def run(options: argparse.Namespace) -> int:
    """Run the benchmark."""
    if options.bench == "decode":
        return decode_bench.run(options)
    script = BENCHMARKS / f"bench_{options.bench}.py"
    if not script.is_file():
        raise FileNotFoundError(
            f"no such script here (file={script}) -- this benchmark is not part of the installed "
            "package -- run it from a source checkout"
        )
    # The scripts print one JSON line in any case.
    arguments = [argument for argument in options.arguments if argument != "--json"]
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode
