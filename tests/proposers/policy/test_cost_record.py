"""Records of the spec-cost benchmark: the arithmetic of one window, and its result file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.confidence import LP_EDGES, ReachCounts
from phalanx.proposers.policy.cost_record import (
    EngineReading,
    RunRecord,
    SpecCostError,
    SpecCostParameters,
    WidthRecord,
    flat_figures,
    read_run,
    record_width,
    run_document,
)

START = EngineReading(
    decoded_tokens=1000,
    verify_steps=10,
    verify_seconds=5.0,
    propose_steps=10,
    propose_seconds=1.0,
    joules=50.0,
)
# 100 steps of 60 ms, 10 ms of them drafting, over an 8 s window at 4 streams: 720 tokens, 400 J.
END = EngineReading(
    decoded_tokens=1720,
    verify_steps=110,
    verify_seconds=11.0,
    propose_steps=110,
    propose_seconds=2.0,
    joules=450.0,
)


def window(**changed: object) -> WidthRecord:
    after = replace(END, **changed)  # type: ignore[arg-type]
    return record_width(START, after, n=4, k=2, window_s=8.0)


def test_a_speculative_window_splits_into_verify_and_draft() -> None:
    found = window()
    assert found.vacuous == ()
    assert (found.steps, found.wall_ms) == (100.0, pytest.approx(80.0))
    assert (found.verify_ms, found.draft_ms) == pytest.approx((50.0, 10.0))
    assert (found.verify_j, found.draft_j) == pytest.approx((4.0 * 5 / 6, 4.0 / 6))
    assert found.tok_per_step == pytest.approx(720 / 400)


def test_a_plain_window_counts_steps_by_tokens() -> None:
    found = record_width(START, END, n=4, k=0, window_s=9.0)
    assert (found.steps, found.wall_ms) == (180.0, pytest.approx(50.0))
    assert (found.verify_ms, found.draft_ms, found.tok_per_step) == pytest.approx((50.0, 0.0, 1.0))
    assert (found.verify_j, found.draft_j) == pytest.approx((400.0 / 180, 0.0))


def test_energy_without_a_meter_is_absent_not_zero() -> None:
    found = window(joules=None)
    assert (found.verify_j, found.draft_j, found.vacuous) == (None, None, ())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"decoded_tokens": 0}, "backwards"),
        ({"verify_seconds": 4.0}, "backwards"),
        ({"verify_seconds": math.nan}, "backwards"),
        ({"joules": 1.0}, "backwards"),
        ({"verify_steps": 29, "propose_steps": 29}, "19 steps"),
        ({"verify_steps": 10}, "0 steps"),
        ({"propose_steps": 10}, "propose phase not timed"),
        ({"propose_seconds": 9.0}, "draft 80 ms above step 60 ms"),
    ],
)
def test_a_window_that_measured_nothing_is_vacuous(changed: dict[str, object], named: str) -> None:
    found = window(**changed)
    assert any(named in reason for reason in found.vacuous)
    assert (found.verify_ms, found.verify_j) == (0.0, None)


def test_a_stream_that_ended_early_voids_the_window() -> None:
    found = record_width(START, END, n=4, k=2, window_s=8.0, ended_early=2)
    assert found.vacuous == ("2 streams ended early",)


def test_twenty_steps_are_enough() -> None:
    after = replace(END, verify_steps=30, propose_steps=30)
    assert record_width(START, after, n=4, k=2, window_s=8.0).vacuous == ()


readings = st.builds(
    EngineReading,
    decoded_tokens=st.integers(-100, 10**6),
    verify_steps=st.integers(-100, 10**4),
    verify_seconds=st.floats(),
    propose_steps=st.integers(-100, 10**4),
    propose_seconds=st.floats(),
    joules=st.none() | st.floats(),
)


@given(readings, readings, st.integers(1, 64), st.integers(0, 3), st.floats())
def test_odd_readings_give_a_vacuous_record_and_never_raise(
    before: EngineReading, after: EngineReading, n: int, k: int, window_s: float
) -> None:
    found = record_width(before, after, n=n, k=k, window_s=window_s)
    if not found.vacuous:
        assert found.steps >= 20 and found.wall_ms > 0.0
        assert found.verify_ms + found.draft_ms > 0.0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"k": -1}, "k=-1"),
        ({"k": 4}, "k=4"),
        ({"widths": ()}, "widths"),
        ({"widths": (2, 1)}, "widths"),
        ({"widths": (0, 1)}, "widths"),
        ({"widths": (1, 257)}, "widths"),
        ({"osl": 63}, "osl=63"),
        ({"osl": 16385}, "osl=16385"),
        ({"prompt_tokens": 0}, "prompt_tokens=0"),
        ({"window_s": 0.0}, "window_s"),
        ({"window_s": math.nan}, "window_s"),
        ({"settle_s": -1.0}, "settle_s"),
        ({"request_timeout_s": math.inf}, "request_timeout_s"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    changed: dict[str, object], named: str
) -> None:
    with pytest.raises(SpecCostError, match=named):
        replace(SpecCostParameters(k=1), **changed)  # type: ignore[arg-type]


def run(k: int = 2, **changed: object) -> RunRecord:
    size = len(LP_EDGES)
    made = RunRecord(
        machine_id="box-7",
        model="qwen/27b",
        parameters=SpecCostParameters(k=k, widths=(4, 8)),
        widths=(window(), replace(window(joules=None), n=8)),
        counts=ReachCounts(
            edges=LP_EDGES,
            reached=tuple(range(10, 10 + size)),
            accepted=tuple(range(size)),
            overflow=3,
            verify_steps=((2, 0, 11), (2, 1, 5), (2, 2, 7)),
        ),
        energy_source="nvml",
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def test_the_result_file_s_keys() -> None:
    flat = flat_figures(run())
    assert flat["k"] == 2
    assert flat["n4_wall_ms"] == pytest.approx(80.0)
    assert "n4_verify_j" in flat and "n8_verify_j" not in flat
    assert (flat["conf0_le"], flat["conf0_accepted"], flat["conf0_rejected"]) == (-4.0, 0, 10)
    assert flat["steps_d2_a1"] == 5
    assert flat["n8_vacuous"] == ""


def test_a_result_file_reads_back_equal() -> None:
    text = json.dumps(run_document(run()))
    assert read_run(json.loads(text)) == run()
    vacuous = run(widths=(replace(window(), n=4), WidthRecord(n=8, vacuous=("a", "b"))))
    assert read_run(json.loads(json.dumps(run_document(vacuous)))) == vacuous


def test_a_verdict_is_never_a_pass() -> None:
    assert run().verdict == "info"
    empty = (WidthRecord(n=4, vacuous=("x",)), WidthRecord(n=8, vacuous=("y",)))
    assert run(widths=empty).verdict == "inconclusive"


@pytest.mark.parametrize("missing", ["figures", "parameters", "machine_id", "model"])
def test_a_result_file_with_a_hole_is_refused_by_name(missing: str) -> None:
    document = run_document(run())
    del document[missing]
    with pytest.raises(SpecCostError, match=missing):
        read_run(document)


@pytest.mark.parametrize(
    ("name", "value"), [("n4_wall_ms", "fast"), ("k", 1.5), ("conf0_accepted", None)]
)
def test_a_figure_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    document = run_document(run())
    figures = document["figures"]
    assert isinstance(figures, dict)
    figures[name] = value
    with pytest.raises(SpecCostError, match=name):
        read_run(document)
