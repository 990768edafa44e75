"""Peer for `bench_lookup`: a longest-suffix n-gram scan, and vLLM's proposer where it is installed.

Runs in an interpreter of its own that has numba (and maybe vllm), and imports nothing of ours.
Reads one JSON command a line on stdin and answers one JSON line on stdout:

    {"do": "setup", "text": [ids], "drafts": K}       -> {"peers": [names]}
    {"do": "time", "length": T, "calls": n}           -> {name: median microseconds a proposal}
    {"do": "batch", "length": T, "width": n}          -> {name: median microseconds a step}
    {"do": "replay", "requests": [ids], "context": L} -> {"tokens_per_step", "accept_rate"}
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba  # type: ignore[import-not-found]
import numpy as np

SHORTEST, LONGEST = 2, 4
MAX_LENGTH = 1 << 18
MAX_WIDTH = 64

Propose = Callable[[list[np.ndarray]], object]


@numba.njit  # type: ignore[untyped-decorator]
def scan(text: np.ndarray, shortest: int, longest: int, drafts: int) -> np.ndarray:
    """Copy after the leftmost occurrence of the longest repeated suffix, in one pass over `text`.

    The prefix function of the reversed text, cut at `longest`, gives the suffix length that
    matches at each place.
    """
    length = text.shape[0]
    prefix = np.zeros(longest, np.int32)
    best, place, matched, at = 0, 0, 0, 1
    while at < length:
        if text[length - 1 - matched] == text[length - 1 - at]:
            matched += 1
            if matched >= best:
                best, place = matched, at
            if at < longest:
                prefix[at] = matched
            if matched == longest:
                matched = prefix[longest - 1]
            at += 1
        elif matched > 0:
            matched = prefix[matched - 1]
        else:
            at += 1
    if best < shortest:
        return text[:0]
    start = length - 1 - place + best
    return text[start : start + drafts]


def scan_peer(drafts: int) -> Propose:
    """The bare scan, one call a history."""

    def propose(histories: list[np.ndarray]) -> list[np.ndarray]:
        return [scan(history, SHORTEST, LONGEST, drafts) for history in histories]

    return propose


def vllm_peer(drafts: int) -> tuple[str, Propose]:
    """vLLM's proposer over its own batch layout; ImportError without vllm."""
    import vllm  # type: ignore[import-not-found]
    from vllm.v1.spec_decode.ngram_proposer import (  # type: ignore[import-not-found]
        NgramProposer,
    )

    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=SHORTEST,
            prompt_lookup_max=LONGEST,
            num_speculative_tokens=drafts,
        ),
        model_config=SimpleNamespace(max_model_len=MAX_LENGTH),
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_WIDTH),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer = NgramProposer(config)
    tokens = np.zeros((MAX_WIDTH, MAX_LENGTH), np.int32)
    lengths = np.zeros(MAX_WIDTH, np.int32)
    filled: list[np.ndarray] = []

    def propose(histories: list[np.ndarray]) -> object:
        width = len(histories)
        for row, history in enumerate(histories):
            # Its engine keeps the rows up to date as tokens come: not part of a proposal.
            if row >= len(filled) or filled[row] is not history:
                tokens[row, : len(history)] = history
                lengths[row] = len(history)
        filled[:] = histories
        return proposer.propose(drafts, [[1]] * width, lengths[:width], tokens[:width])

    return f"vllm {vllm.__version__} NgramProposer", propose


def median_us(propose: Propose, histories: list[list[np.ndarray]], *, fills_first: bool) -> float:
    """Median microseconds of one call over several steps."""
    spent = []
    for step in histories:
        if fills_first:
            propose(step)
        began = time.perf_counter()
        propose(step)
        spent.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent)


def replay(requests: list[list[int]], context: int, drafts: int) -> dict[str, float]:
    """Drafts against the true text, every request alone."""
    steps = tokens = drafted = 0
    for request in requests:
        text = np.array(request, np.int32)
        at = context
        while at < len(text):
            copy = scan(text[:at], SHORTEST, LONGEST, drafts)
            accepted = 0
            while (
                accepted < len(copy)
                and at + accepted < len(text) - 1
                and copy[accepted] == text[at + accepted]
            ):
                accepted += 1
            drafted += len(copy)
            steps += 1
            tokens += accepted + 1
            at += accepted + 1
    return {"tokens_per_step": tokens / steps, "accept_rate": (tokens - steps) / max(1, drafted)}


def main() -> None:
    """Serve commands until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the peers print on import is no answer.
    text, drafts = np.zeros(0, np.int32), 0
    peers: dict[str, Propose] = {}
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if command["do"] == "setup":
            text, drafts = np.array(command["text"], np.int32), command["drafts"]
            peers = {"numba scan": scan_peer(drafts)}
            try:
                name, propose = vllm_peer(drafts)
                peers[name] = propose
            except ImportError:
                pass
            for propose in peers.values():
                propose([text[:64]])
            answer = {"peers": list(peers)}
        elif command["do"] == "replay":
            answer = replay(command["requests"], command["context"], drafts)
        else:
            length, width = command["length"], command.get("width", 1)
            histories = [
                [text[at + row : at + row + length] for row in range(width)]
                for at in range(command["calls"])
            ]
            answer = {
                name: median_us(propose, histories, fills_first="vllm" in name)
                for name, propose in peers.items()
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
