"""Acceptance: prefix rule, row bound, and the classical rule as the measure of both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.sampling.rejection import (
    accept_chain,
    accept_chain_reference,
    accept_picks,
    residual,
)
from phalanx.runtime.sampling.sampler import draw

TOKENS = st.lists(st.integers(0, 3), max_size=6)


@pytest.mark.parametrize(
    ("drafts", "picks", "accepted", "emitted"),
    [
        ([], [7], 0, (7,)),
        ([1, 2, 3], [1, 2, 3, 4], 3, (1, 2, 3, 4)),
        ([1, 2, 3], [1, 2, 9, 4], 2, (1, 2, 9)),
        ([1, 2, 3], [1, 9, 3, 4], 1, (1, 9)),
        ([1, 2, 3], [9, 2, 3, 4], 0, (9,)),
    ],
)
def test_the_prefix_that_agrees_stays(
    drafts: list[int], picks: list[int], accepted: int, emitted: tuple[int, ...]
) -> None:
    for got in (
        accept_picks(drafts, picks),
        accept_chain(drafts, picks.__getitem__, num_rows=len(picks)),
    ):
        assert (got.num_accepted, got.token_ids) == (accepted, emitted)


@given(drafts=TOKENS, picks=st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_rows_bound_the_walk_and_both_forms_agree(drafts: list[int], picks: list[int]) -> None:
    """Surplus drafts, dropped before the forward, are never accepted."""
    got = accept_picks(drafts, picks)
    assert got == accept_chain(drafts, picks.__getitem__, num_rows=len(picks))
    assert got.num_accepted <= min(len(drafts), len(picks) - 1)
    assert len(got.token_ids) == got.num_accepted + 1
    assert list(got.token_ids) == picks[: got.num_accepted + 1]
    assert drafts[: got.num_accepted] == picks[: got.num_accepted]


def test_rows_behind_a_rejection_are_not_drawn() -> None:
    asked: list[int] = []

    def target(row: int) -> int:
        asked.append(row)
        return 5

    accept_chain([5, 6, 5], target, num_rows=4)
    assert asked == [0, 1]


def test_the_residual_is_the_rest() -> None:
    np.testing.assert_allclose(residual(np.array([0.5, 0.2, 0.3]), 0), [0.0, 0.4, 0.6])
    with pytest.raises(ValueError, match="draft=1"):
        residual(np.array([0.0, 1.0]), 1)


def test_drawing_first_equals_the_classical_rule() -> None:
    """Outcome frequencies (accepted count, last token) of both rules, and of the product formula.

    3 drafts over 4 tokens; 10,000 trials each; every frequency within 5 standard deviations.
    """
    rng = np.random.default_rng(4)
    mass = [rng.dirichlet([1.0, 1.0, 1.0, 1.0]) for _ in range(4)]
    drafts, trials = [0, 2, 1], 10_000
    exact: dict[tuple[int, int], float] = {}
    reached = 1.0
    for row, draft in enumerate(drafts):
        for token in range(4):
            if token != draft:
                exact[row, token] = reached * mass[row][token]
        reached *= mass[row][draft]
    for token in range(4):
        exact[3, token] = reached * mass[3][token]
    assert abs(sum(exact.values()) - 1.0) < 1e-12

    def ours() -> tuple[int, int]:
        got = accept_chain(drafts, lambda row: draw(mass[row], rng.random()), num_rows=4)
        return got.num_accepted, got.token_ids[-1]

    def classical() -> tuple[int, int]:
        got = accept_chain_reference(
            drafts, mass, [rng.random() for _ in drafts], lambda p: draw(p, rng.random())
        )
        return got.num_accepted, got.token_ids[-1]

    for rule in (ours, classical):
        counts = dict.fromkeys(exact, 0)
        for _ in range(trials):
            counts[rule()] += 1
        for outcome, p in exact.items():
            spread = (trials * p * (1 - p)) ** 0.5
            assert abs(counts[outcome] - trials * p) < 5 * spread + 1, (rule, outcome)
