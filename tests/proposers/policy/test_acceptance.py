"""Acceptance model: decayed counts, smoothing, and one loop for the whole batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.acceptance import (
    AcceptanceModel,
    AcceptanceSettings,
    ColdMode,
    ColdPrior,
    Seed,
    batch_tokens,
    prior_terms,
    rates_of,
    smoothed_rates,
)
from phalanx.proposers.policy.chain import MAX_POSITIONS, tokens_by_depth

BARE = AcceptanceSettings(prior_weight=0.0, cold_weight=0.0, cold=ColdPrior(mode=ColdMode.NONE))
any_int = st.integers(-(10**12), 10**12)
verifies = st.lists(st.tuples(st.integers(0, 20), st.integers(-2, 22)), max_size=40)


def bare(decay: float, *, seed: Seed = Seed.UNIT) -> AcceptanceSettings:
    none = ColdPrior(mode=ColdMode.NONE)
    return AcceptanceSettings(decay=decay, prior_weight=0, cold_weight=0, seed=seed, cold=none)


def test_a_verify_touches_the_accepted_drafts_and_the_first_rejected_one() -> None:
    model = AcceptanceModel(BARE)
    model.observe(5, 2)
    assert [model.own_rate(j) for j in (1, 2, 3)] == [1.0, 1.0, 0.0]
    assert model.own_rate(4) is None


def test_a_full_accept_rejects_nothing() -> None:
    model = AcceptanceModel(BARE)
    model.observe(3, 3)
    assert model.obs[:4] == [1.0, 1.0, 1.0, 0.0]


def test_decay_forgets_a_bad_stretch() -> None:
    model = AcceptanceModel(bare(0.95))
    for accepted in [0] * 200 + [1] * 20:
        model.observe(1, accepted)
    assert 0.6 < (model.own_rate(1) or 0.0) < 0.7


def test_without_decay_the_bad_stretch_stays() -> None:
    model = AcceptanceModel(bare(1.0))
    for accepted in [0] * 200 + [1] * 20:
        model.observe(1, accepted)
    assert (model.own_rate(1) or 1.0) < 0.1


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60), st.floats(0.5, 0.99))
def test_steady_state_seeding_is_a_seeded_average(samples: list[float], decay: float) -> None:
    model = AcceptanceModel(bare(decay, seed=Seed.STEADY_STATE))
    average = samples[0]
    model.observe_rate(1, samples[0])
    for sample in samples[1:]:
        model.observe_rate(1, sample)
        average = decay * average + (1.0 - decay) * sample
    assert model.own_rate(1) == pytest.approx(average, abs=1e-12)


def test_rates_are_smoothed_by_the_global_rate_and_the_cold_prior() -> None:
    settings = AcceptanceSettings(cold=ColdPrior(mode=ColdMode.RATES, rates=(0.5, 0.25)))
    own, shared = AcceptanceModel(settings), AcceptanceModel(settings)
    own.observe(1, 1)
    shared.observe(1, 1)
    found = rates_of(own, settings=settings, shared=shared, depth=3)
    first = (1.0 + 4 * 1.0 + 8 * 0.5) / (1.0 + 4 + 8)
    # Nothing was seen at positions 2 and 3: the cold list alone, its last rate repeated.
    assert found == pytest.approx([first, 0.25, 0.25])


def test_a_chained_cold_prior_takes_the_rate_before_it() -> None:
    settings = AcceptanceSettings(prior_weight=0.0)
    own = AcceptanceModel(settings)
    own.observe(2, 1)
    found = rates_of(own, settings=settings, depth=3)
    second = (0.0 + 8 * 1.0) / (1.0 + 8)
    assert found == pytest.approx([1.0, second, second])


def test_a_position_without_information_takes_the_rate_before_it() -> None:
    own = AcceptanceModel(BARE)
    own.observe(1, 1)
    own.observe(1, 0)
    found = rates_of(own, settings=BARE, depth=4)
    assert found is not None and found == [found[0]] * 4


def test_without_any_information_there_are_no_rates() -> None:
    assert rates_of(AcceptanceModel(BARE), settings=BARE, depth=3) is None
    chained = AcceptanceSettings()
    assert rates_of(AcceptanceModel(chained), settings=chained, depth=3) is None


def test_softening_keeps_the_rate_and_drops_the_weight() -> None:
    model = AcceptanceModel(BARE)
    for accepted in (2, 0, 1, 2):
        model.observe(2, accepted)
    before, weight = model.own_rate(1), model.obs[0]
    model.soften(0.25)
    assert model.own_rate(1) == pytest.approx(before)
    assert model.obs[0] == pytest.approx(weight / 4)


def test_fading_touches_the_deeper_positions_only() -> None:
    model = AcceptanceModel(BARE)
    model.observe(3, 3)
    model.fade(2, 0.5)
    assert model.obs[:4] == [1.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("factor", [-0.1, 1.5, math.nan, math.inf])
def test_a_nonsense_factor_changes_nothing(factor: float) -> None:
    model = AcceptanceModel(BARE)
    model.observe(3, 2)
    before = (list(model.acc), list(model.obs))
    model.soften(factor)
    model.fade(1, factor)
    assert (model.acc, model.obs) == before


@pytest.mark.parametrize(
    ("position", "rate"), [(0, 0.5), (17, 0.5), (-3, 0.5), (1, math.nan), (1, math.inf)]
)
def test_an_invalid_rate_is_ignored(position: int, rate: float) -> None:
    model = AcceptanceModel(BARE)
    model.observe_rate(position, rate)
    assert model.obs == [0.0] * MAX_POSITIONS


def test_a_measured_rate_is_clamped() -> None:
    model = AcceptanceModel(BARE)
    model.observe_rate(1, 7.0)
    model.observe_rate(2, -1.0)
    assert (model.own_rate(1), model.own_rate(2)) == (1.0, 0.0)


@given(st.lists(st.tuples(any_int, any_int), max_size=50))
def test_odd_counts_never_corrupt_the_model(steps: list[tuple[int, int]]) -> None:
    model = AcceptanceModel(AcceptanceSettings())
    for drafts, accepted in steps:
        model.observe(drafts, accepted)
    for acc, obs in zip(model.acc, model.obs, strict=True):
        assert 0.0 <= acc <= obs <= 20.0 + 1e-9


@given(
    st.lists(verifies, min_size=1, max_size=6),
    st.integers(1, 20),
    st.sampled_from(list(ColdMode)),
)
def test_the_batch_loop_equals_each_stream_alone(
    histories: list[list[tuple[int, int]]], depth: int, mode: ColdMode
) -> None:
    cold = ColdPrior(mode=mode, rates=(0.6, 0.4) if mode is ColdMode.RATES else ())
    settings = AcceptanceSettings(cold=cold)
    shared = AcceptanceModel(settings)
    models = [AcceptanceModel(settings) for _ in histories]
    for model, history in zip(models, histories, strict=True):
        for drafts, accepted in history:
            model.observe(drafts, accepted)
            shared.observe(drafts, accepted)
    terms = prior_terms(settings, shared=shared, depth=depth)
    each = [smoothed_rates(model, terms) for model in models]
    found = batch_tokens(models, terms, depth=depth)
    if any(rates is None for rates in each):
        assert found is None
        return
    assert found is not None
    alone = [tokens_by_depth(rates or (), depth) for rates in each]
    assert found.slowest == [min(column) for column in zip(*alone, strict=True)]
    assert found.total == pytest.approx([sum(column) for column in zip(*alone, strict=True)])


def test_an_empty_batch_expects_nothing() -> None:
    terms = prior_terms(AcceptanceSettings(), shared=None, depth=3)
    found = batch_tokens([], terms, depth=3)
    assert found is not None and (found.total, found.slowest) == ([0.0] * 4, [0.0] * 4)


def test_deeper_than_sixteen_repeats_the_last_rate() -> None:
    settings = AcceptanceSettings()
    model = AcceptanceModel(settings)
    for _ in range(30):
        model.observe(16, 16)
    terms = prior_terms(settings, shared=None, depth=18)
    found = batch_tokens([model], terms, depth=18)
    assert found is not None and found.total[18] == pytest.approx(19.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"decay": 0.0},
        {"decay": 1.1},
        {"decay": math.nan},
        {"prior_weight": -1.0},
        {"cold_weight": math.inf},
    ],
)
def test_impossible_weights_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        AcceptanceSettings(**bad)  # type: ignore[arg-type]


def test_steady_state_seeding_needs_decay_below_one() -> None:
    with pytest.raises(ValueError, match="decay=1"):
        bare(1.0, seed=Seed.STEADY_STATE)


@pytest.mark.parametrize("rates", [(), (1.2,), (math.nan,)])
def test_a_cold_prior_of_no_rates_is_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="cold prior"):
        ColdPrior(mode=ColdMode.RATES, rates=rates)
