"""Online costs: warm-up, clipping, staleness, and the scale on a given source."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.cost_online import (
    CalibratedSource,
    OnlineSettings,
    OnlineSource,
    choose_layer,
)
from phalanx.proposers.policy.cost_sources import CostSourceError, MeasuredSource, StepTableSource

from .cost_samples import grid_table


def feed(source: OnlineSource, n: int, k: int, samples: list[float]) -> None:
    for sample in samples:
        source.observe(n, k, ms=sample)


def price(source: OnlineSource, n: int, k: int) -> float | None:
    found = source.step(n, k)
    return None if found is None else found.ms


def test_a_cell_is_priced_after_three_samples_at_the_fastest() -> None:
    source = OnlineSource(max_k=3)
    feed(source, 1, 1, [900.0, 60.0])
    assert price(source, 1, 1) is None and source.needs_probe(1, 1)
    feed(source, 1, 1, [62.0])
    assert price(source, 1, 1) == 60.0 and not source.needs_probe(1, 1)


def test_a_stall_counts_as_twice_the_price() -> None:
    source = OnlineSource(max_k=3)
    feed(source, 1, 1, [900.0, 60.0, 62.0, 6000.0])
    assert price(source, 1, 1) == pytest.approx(78.0)


def test_a_cell_goes_stale_after_so_many_samples_of_others() -> None:
    source = OnlineSource(max_k=1, settings=OnlineSettings(stale_after=10))
    feed(source, 1, 0, [10.0] * 3)
    feed(source, 1, 1, [12.0] * 9)
    assert not source.needs_probe(1, 0)
    feed(source, 1, 1, [12.0])
    assert source.needs_probe(1, 0) and not source.needs_probe(1, 1)
    feed(source, 1, 0, [10.0])
    assert not source.needs_probe(1, 0)


def test_another_width_bucket_has_its_own_cells() -> None:
    source = OnlineSource(max_k=1)
    feed(source, 3, 1, [12.0] * 3)
    assert price(source, 4, 1) == 12.0
    assert price(source, 5, 1) is None and source.needs_probe(8, 1)


def test_joules_are_learned_and_forgotten_with_a_sample_that_lacks_them() -> None:
    source = OnlineSource(max_k=1)
    for joules in (9.0, 2.0, 3.0):
        source.observe(1, 1, ms=10.0, joules=joules)
    found = source.step(1, 1)
    assert found is not None and found.joules == 2.0
    source.observe(1, 1, ms=10.0, joules=99.0)
    found = source.step(1, 1)
    assert found is not None and found.joules == pytest.approx(2.0 + 0.3 * 2.0)
    source.observe(1, 1, ms=10.0)
    found = source.step(1, 1)
    assert found is not None and found.joules is None
    source.observe(1, 1, ms=10.0, joules=5.0)
    found = source.step(1, 1)
    assert found is not None and found.joules == 5.0


def test_a_warm_up_that_lacked_joules_once_has_none() -> None:
    source = OnlineSource(max_k=1)
    for joules in (2.0, None, 3.0):
        source.observe(1, 1, ms=10.0, joules=joules)
    found = source.step(1, 1)
    assert found is not None and found.joules is None


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_sample_that_is_no_duration_is_ignored(sample: float) -> None:
    source = OnlineSource(max_k=1)
    feed(source, 1, 1, [10.0] * 3 + [sample])
    assert price(source, 1, 1) == 10.0


def test_a_depth_beyond_the_cells_is_neither_priced_nor_probed() -> None:
    source = OnlineSource(max_k=1)
    feed(source, 1, 2, [10.0] * 3)
    feed(source, 1, -1, [10.0] * 3)
    assert price(source, 1, 2) is None and not source.needs_probe(1, 2)
    assert price(source, 1, -1) is None and source.needs_probe(1, 0)


@given(
    st.lists(
        st.tuples(st.integers(-3, 400), st.integers(-2, 4), st.floats(), st.none() | st.floats()),
        max_size=60,
    )
)
def test_odd_samples_never_corrupt_a_price(
    samples: list[tuple[int, int, float, float | None]],
) -> None:
    source = OnlineSource(max_k=2)
    for n, k, ms, joules in samples:
        source.observe(n, k, ms=ms, joules=joules)
    for n in (1, 2, 8, 300):
        for k in range(3):
            found = source.step(n, k)
            assert found is None or 0.0 < found.ms < math.inf
            assert found is None or found.joules is None or 0.0 < found.joules < math.inf


@pytest.mark.parametrize(
    "bad", [{"alpha": 0.0}, {"alpha": 1.5}, {"warm_up": 0}, {"stale_after": 0}, {"clip": 0.5}]
)
def test_settings_no_cell_could_learn_with_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        OnlineSettings(**bad)  # type: ignore[arg-type]


def test_calibration_follows_measured_over_given_in_its_own_bucket() -> None:
    source = CalibratedSource(MeasuredSource(grid_table()))
    given = grid_table().step(4, 1)
    assert given is not None and given.joules is not None
    source.observe(4, 1, ms=2 * given.ms, joules=3 * given.joules)
    assert source.scales(3) == pytest.approx((1.1, 1.2))
    assert source.scales(1) == (1.0, 1.0)
    found = source.step(4, 2)
    base = grid_table().step(4, 2)
    assert found is not None and base is not None and base.joules is not None
    assert (found.ms, found.joules) == pytest.approx((1.1 * base.ms, 1.2 * base.joules))


def test_calibration_switched_off_is_the_source_bit_for_bit() -> None:
    source = CalibratedSource(MeasuredSource(grid_table()), alpha=0.0)
    source.observe(4, 1, ms=999.0, joules=5.0)
    for n in (1, 2, 3, 4):
        for k in range(3):
            assert source.step(n, k) == grid_table().step(n, k)


@given(st.lists(st.tuples(st.floats(), st.none() | st.floats()), max_size=30))
def test_odd_samples_never_corrupt_a_scale(samples: list[tuple[float, float | None]]) -> None:
    source = CalibratedSource(MeasuredSource(grid_table()))
    for ms, joules in samples:
        source.observe(4, 1, ms=ms, joules=joules)
    assert all(0.0 < scale < math.inf for scale in source.scales(4))


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_a_calibration_weight_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(CostSourceError, match="alpha"):
        CalibratedSource(MeasuredSource(grid_table()), alpha=alpha)


def test_the_first_layer_there_is_prices_the_serve() -> None:
    table, steps = MeasuredSource(grid_table()), StepTableSource({1: 5.0})
    layer = choose_layer(measured=table, envelope="none given", cold_prior=steps)
    assert (layer.name, layer.source, layer.skipped) == ("measured", table, ())
    layer = choose_layer(measured="no --spec-cost-table", envelope="none given", cold_prior=steps)
    assert (layer.name, layer.source) == ("cold prior", steps)
    assert layer.skipped == ("measured: no --spec-cost-table", "envelope: none given")


def test_without_any_layer_every_reason_is_named() -> None:
    with pytest.raises(CostSourceError) as refused:
        choose_layer(measured="no table", envelope="no curve", cold_prior="no step table")
    for reason in ("no table", "no curve", "no step table"):
        assert reason in str(refused.value)
