"""Sampled text: exactly the target's distribution, and with a seed the same under any drafting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from phalanx.proposers.scripted import junk_drafter
from phalanx.runtime.request import SamplingParams
from phalanx.runtime.sampling.sampler import filtered_distribution
from tests.support.fake_serve import ScriptedDepth, Shape, mtp, serve

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.9},
)


def sampled(**options: Any) -> dict[int, list[int]]:
    engine = serve(options.pop("shape", None), **options)
    for request_id, extra in enumerate(SETTINGS):
        engine.add(request_id, range(2 + 5 * request_id), max_tokens=24, seed=request_id, **extra)
    # A greedy request in the same batch: both heads run in one round.
    engine.add(9, (5, 5, 5), max_tokens=24)
    outputs = engine.drain()
    engine.close()
    return outputs


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    return sampled()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_seeded_text_does_not_depend_on_drafts_or_ranks(
    plain: dict[int, list[int]], depth: int, world_size: int
) -> None:
    shape = Shape(vocab_size=30, max_num_seqs=8, max_num_batched_tokens=70)
    reference = sampled(shape=shape)
    maker = mtp(lambda state: state % 4 == 0)
    assert sampled(shape=shape, make=maker, depth=depth, world_size=world_size) == reference


def test_seeded_text_does_not_depend_on_the_batch(plain: dict[int, list[int]]) -> None:
    for shape in (Shape(max_num_seqs=1), Shape(max_num_batched_tokens=5), Shape(num_blocks=16)):
        depth = ScriptedDepth(lambda call, seq: (call + seq) % 5)
        assert sampled(shape=shape, make=mtp(lambda s: s % 3 == 0), depth=depth) == plain


def test_seeds_differ() -> None:
    texts = set()
    for seed in range(20):
        engine = serve()
        engine.add(1, (1, 2, 3), max_tokens=8, temperature=1.0, seed=seed)
        texts.add(tuple(engine.drain()[1]))
    assert len(texts) > 15


def chi_square(counts: Counter[int], expected: np.ndarray, total: int) -> float:
    return sum(
        (counts[token] - total * p) ** 2 / (total * p)
        for token, p in enumerate(expected)
        if p > 0.0
    )


# Upper 1e-4 quantiles of chi-square with 1, 2 and 3 degrees of freedom.
LIMIT = {0: 1e-9, 1: 15.14, 2: 18.42, 3: 21.11}


@pytest.mark.parametrize("extra", [
    {"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 2.0},
    {"temperature": 1.0, "top_p": 0.8}, {"temperature": 2.0, "top_k": 2},
])  # fmt: skip
@pytest.mark.parametrize("drafter", ["off", "mtp", "junk"])
def test_tokens_under_drafting_follow_the_exact_distribution(
    extra: dict[str, Any], drafter: str
) -> None:
    """First and second token of many seeds: accepted drafts, corrections and bonus tokens."""
    makers: dict[str, Any] = {
        "off": None,
        "mtp": mtp(),
        "junk": lambda model, comm: junk_drafter(vocab_size=4),
    }
    shape = Shape(vocab_size=4, max_num_seqs=64, max_num_batched_tokens=512, num_blocks=512)
    engine = serve(shape, make=makers[drafter], depth=2 if drafter != "off" else 0)
    total = 900
    for seed in range(total):
        engine.add(seed, (1, 3, 2), max_tokens=3, seed=seed, **extra)
    outputs = engine.drain()

    model, params = engine.ranks[0].model, SamplingParams(**extra)
    for depth in (0, 1):
        groups: dict[tuple[int, ...], Counter[int]] = {}
        for tokens in outputs.values():
            groups.setdefault(tuple(tokens[:depth]), Counter())[tokens[depth]] += 1
        for before, counts in groups.items():
            number = sum(counts.values())
            if number < 100:
                continue
            state = 7
            for token in (1, 3, 2, *before):
                state = (state * 1664525 + token * 22695477 + 1013904223) % (1 << 24)
            expected = filtered_distribution(model.clean_logits(state).numpy(), params)
            assert not [token for token in counts if expected[token] == 0.0]
            freedom = int((expected > 0).sum()) - 1
            statistic = chi_square(counts, expected, number)
            assert statistic < LIMIT[freedom], (before, counts, expected)
