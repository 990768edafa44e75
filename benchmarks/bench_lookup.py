"""Lookup drafters: microseconds a token, and accepted tokens on real text; one JSON line.

Text is the standard library's source, tokenized. Timed: one whole round (observe, propose, settle)
at several history lengths. Replayed: 256 tokens after a context, drafts checked against the true
text, requests in waves of `max_seqs`, each finished one stored in the shared cache. The peer scan
runs in the same minutes in its own interpreter (`--peer-python`, one that has numba and maybe
vllm); without one its figures are null.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from phalanx.kernels.lookup_native import LOAD_PROBLEM
from phalanx.proposers.prompt_lookup import PromptLookup, PromptLookupConfig
from phalanx.proposers.shared_lookup import ScopeKey, SharedLookup, SharedLookupConfig

LENGTHS = (1024, 8192, 32768, 131072)
CONTEXTS = (1024, 4096)
ANSWER_TOKENS = 256
SCAN_LENGTH = 32768
CHUNK = 64
BATCH_LENGTH = 4096

TOKENIZER = Path("~/.cache/phalanx/demo/tokenizer.json")
SKIPPED = frozenset({"site-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3"})

TUNED = PromptLookupConfig(
    ngram=4,
    extra_ngrams=(2, 1),
    min_match=1,
    miss_backoff=0,
    drafts_per_match=2,
    prefer_longer=True,
)
"""What the figures are measured with: three n-gram sizes, copies as long as their match is good."""

CACHE = SharedLookupConfig(budget_bytes=16 << 20, max_scopes=1, key_len=TUNED.shared_key_len)
SCOPE = ScopeKey(model=1, tokenizer=1, adapter=0, tenant=0)

Encode = Callable[[str], list[int]]


def make_encode(tokenizer: Path | None) -> tuple[str, Encode]:
    """(name, encode): the given tokenizer.json, the demo model's, or a plain word splitter."""
    path = (tokenizer or TOKENIZER).expanduser()
    if tokenizer is not None or path.exists():
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(path))
        return str(path), lambda text: loaded.encode(text).ids
    ids: dict[str, int] = {}
    word = re.compile(r"[A-Za-z]+|\d|\s+|.")
    return "words", lambda text: [ids.setdefault(w, len(ids)) for w in word.findall(text)]


def source_files(seed: int) -> list[Path]:
    """The standard library's modules in a seeded order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not SKIPPED.intersection(path.relative_to(root).parts)
    ]
    random.Random(seed).shuffle(files)
    return files


def read_tokens(encode: Encode, seed: int) -> Iterator[list[int]]:
    """Token ids of one module after another."""
    for path in source_files(seed):
        yield encode(path.read_text(encoding="utf-8", errors="replace"))


def long_text(encode: Encode, seed: int, length: int) -> list[int]:
    """At least `length` tokens of source."""
    text: list[int] = []
    for tokens in read_tokens(encode, seed):
        text += tokens
        if len(text) >= length:
            break
    return text


def windows(encode: Encode, seed: int, *, context: int, count: int) -> list[list[int]]:
    """`count` windows of context + answer, each from another module."""
    rng = random.Random(seed)
    length = context + ANSWER_TOKENS
    found: list[list[int]] = []
    for tokens in read_tokens(encode, seed):
        if len(tokens) >= length:
            start = rng.randrange(len(tokens) - length + 1)
            found.append(tokens[start : start + length])
        if len(found) == count:
            break
    return found


class Peer:
    """The scan in its own process."""

    def __init__(self, python: str, *, text: list[int], drafts: int) -> None:
        script = Path(__file__).with_name("peer_ngram_scan.py")
        self._process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.names: list[str] = self.ask(do="setup", text=text, drafts=drafts)["peers"]

    def ask(self, **command: object) -> dict[str, Any]:
        """One command, one answer. Raises RuntimeError when the peer has ended."""
        stdin = cast("IO[str]", self._process.stdin)
        stdout = cast("IO[str]", self._process.stdout)
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(
                f"peer ended (exit={self._process.wait()}) -- no scan to compare with -- run "
                "peer_ngram_scan.py by hand with that interpreter to see why"
            )
        return cast("dict[str, Any]", json.loads(line))

    def close(self) -> None:
        """End the process."""
        cast("IO[str]", self._process.stdin).close()
        self._process.wait()


def time_rounds(text: Sequence[int], length: int, *, drafts: int, chunks: int) -> list[float]:
    """Microseconds a token of observe + propose + settle, one figure a chunk of tokens."""
    lookup = PromptLookup(TUNED)
    history = list(text[:length])
    lookup.observe(history)
    spent = []
    for chunk in range(chunks):
        start = length + chunk * CHUNK
        arriving = text[start : start + CHUNK]
        began = time.perf_counter()
        for token in arriving:
            history.append(token)
            lookup.propose_with(history, drafts)
            lookup.settle(1)
        spent.append((time.perf_counter() - began) * 1e6 / CHUNK)
    return spent


def time_batch(requests: Sequence[Sequence[int]], *, drafts: int, steps: int) -> float:
    """Median microseconds of one step over all `requests` at once."""
    histories = [list(request[:BATCH_LENGTH]) for request in requests]
    lookups = [PromptLookup(TUNED) for _ in requests]
    for lookup, history in zip(lookups, histories, strict=True):
        lookup.observe(history)
    spent = []
    for step in range(steps):
        for history, request in zip(histories, requests, strict=True):
            history.append(request[BATCH_LENGTH + step])
        began = time.perf_counter()
        for lookup, history in zip(lookups, histories, strict=True):
            lookup.propose_with(history, drafts)
            lookup.settle(1)
        spent.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent)


def replay(
    requests: Sequence[Sequence[int]],
    config: PromptLookupConfig,
    *,
    context: int,
    drafts: int,
    cache: SharedLookup | None,
) -> dict[str, float]:
    """Tokens a step and accepted drafts, waves of `config.max_seqs` requests."""
    steps = tokens = drafted = 0
    shared = None if cache is None else cache.reader(SCOPE)
    for first in range(0, len(requests), config.max_seqs):
        wave = requests[first : first + config.max_seqs]
        for request in wave:
            lookup = PromptLookup(config)
            history = list(request[:context])
            while len(history) < len(request):
                copy = lookup.propose_with(history, drafts, shared=shared)
                left = request[len(history) :]
                accepted = 0
                # The last token of a step is the model's own.
                while accepted < min(len(copy), len(left) - 1) and (
                    copy[accepted] == left[accepted]
                ):
                    accepted += 1
                lookup.settle(accepted)
                drafted += len(copy)
                steps += 1
                tokens += accepted + 1
                history += left[: accepted + 1]
        for request in wave:
            if cache is not None:
                cache.insert(SCOPE, request)
    return {"tokens_per_step": tokens / steps, "accept_rate": (tokens - steps) / max(1, drafted)}


def time_shared(requests: Sequence[Sequence[int]], *, drafts: int) -> tuple[float, float]:
    """(microseconds a token of insert, microseconds a call of propose), medians."""
    cache = SharedLookup(CACHE)
    inserts, proposals = [], []
    for number, request in enumerate(requests):
        began = time.perf_counter()
        cache.insert(SCOPE, request)
        inserts.append((time.perf_counter() - began) * 1e6 / len(request))
        # Ends of this text, which hit, and of one that is not stored yet, which mostly miss.
        for source in (request, requests[(number + 1) % len(requests)]):
            for end in range(64, len(source), 512):
                history = list(source[:end])
                began = time.perf_counter()
                cache.propose(SCOPE, history, drafts)
                proposals.append((time.perf_counter() - began) * 1e6)
    return statistics.median(inserts), statistics.median(proposals)


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Three decimals are more than the noise leaves."""
    return {name: round(value, 3) for name, value in values.items()}


def measure_text(encode: Encode, options: argparse.Namespace, peer: Peer | None) -> dict[str, Any]:
    """Everything that is replayed on real text."""
    result: dict[str, Any] = {"by_context": {}}
    requests: list[list[int]] = []
    for context in CONTEXTS:
        requests = windows(encode, options.seed, context=context, count=options.requests)
        figures: dict[str, Any] = {}
        for name, config, cache in (
            ("prompt_and_shared", TUNED, SharedLookup(CACHE)),
            ("prompt_only", TUNED, None),
            ("reference_defaults", PromptLookupConfig(), None),
        ):
            figures[name] = rounded(
                replay(requests, config, context=context, drafts=options.drafts, cache=cache)
            )
        if peer is not None:
            figures["scan"] = rounded(peer.ask(do="replay", requests=requests, context=context))
        result["by_context"][str(context)] = figures
    result["tokens_per_step"] = min(
        figures["prompt_and_shared"]["tokens_per_step"] for figures in result["by_context"].values()
    )
    insert_us, propose_us = time_shared(requests, drafts=options.drafts)
    result["insert_us"], result["shared_propose_us"] = round(insert_us, 3), round(propose_us, 3)
    result["batch_us"] = round(time_batch(requests, drafts=options.drafts, steps=128), 1)
    return result


def measure_time(text: list[int], options: argparse.Namespace, peer: Peer | None) -> dict[str, Any]:
    """Everything that is timed, ours and the peer's in alternating rounds."""
    ours: dict[int, list[float]] = {length: [] for length in LENGTHS}
    scans: dict[str, list[float]] = {name: [] for name in peer.names} if peer else {}
    for _ in range(options.rounds):
        for length in LENGTHS:
            ours[length] += time_rounds(text, length, drafts=options.drafts, chunks=8)
        if peer is not None:
            for name, value in peer.ask(do="time", length=SCAN_LENGTH, calls=50).items():
                scans[name].append(value)
    per_token = {length: statistics.median(values) for length, values in ours.items()}
    scan_us = {name: statistics.median(values) for name, values in scans.items()}
    # The last peer is vLLM's where it is installed, which is the one to be compared with.
    named = next(reversed(scan_us), None)
    return {
        "per_token_us": {str(length): round(value, 3) for length, value in per_token.items()},
        "flatness": round(max(per_token.values()) / per_token[LENGTHS[0]], 3),
        "scan": named,
        "scan_us_32768": None if named is None else round(scan_us[named], 2),
        "speedup": None if named is None else round(scan_us[named] / per_token[SCAN_LENGTH], 1),
        "scans_us_32768": rounded(scan_us),
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: always JSON")
    parser.add_argument("--tokenizer", type=Path, help=f"a tokenizer.json (default {TOKENIZER})")
    parser.add_argument("--peer-python", help="interpreter with numba (and vllm) for the scan")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=8, help="most drafts a step")
    parser.add_argument("--rounds", type=int, default=5, help="alternating timing rounds")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one JSON line."""
    options = parse(argv)
    name, encode = make_encode(options.tokenizer)
    text = long_text(encode, options.seed, LENGTHS[-1] + 16 * CHUNK)
    python = options.peer_python or (sys.executable if find_spec("numba") else None)
    peer = None if python is None else Peer(python, text=text, drafts=options.drafts)
    result = {
        **measure_time(text, options, peer),
        **measure_text(encode, options, peer),
        "tables": "compiled" if LOAD_PROBLEM is None else "python",
        "tokenizer": name,
        "requests": options.requests,
        "drafts": options.drafts,
        "settings": asdict(TUNED),
        "cache": asdict(CACHE),
        "python": platform.python_version(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "load": [round(load, 2) for load in os.getloadavg()],
    }
    if peer is not None:
        batch = peer.ask(do="batch", length=BATCH_LENGTH, width=options.requests, calls=32)
        result["scan_batch_us"] = rounded(batch)
        peer.close()
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
