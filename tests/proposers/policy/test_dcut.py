"""D-Cut: which drafts are worth a verify row."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.dcut import (
    RATIOS,
    DcutSettings,
    DcutTelemetry,
    chunk_ranges,
    kept_prunable,
    plan,
    select,
    snap_ratio,
)

NO_LPS: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("lps", "ratio", "retained"),
    [
        ([[-0.1, -2.0, -3.0]] * 4, 1.0, [3, 3, 3, 3]),
        ([[-0.1, -2.0, -3.0]] * 4, 0.0, [1, 1, 1, 1]),
        ([[-0.01, -0.02, -0.03], [-3.0, -4.0, -5.0]], 0.5, [3, 1]),
        ([[-5.0, -5.0, -5.0], []], 0.5, [1, 3]),
    ],
)
def test_pinned_selections(lps: list[list[float]], ratio: float, retained: list[int]) -> None:
    assert select(lps, 3, row_budget=96, ratio=ratio) == retained


def test_doubtful_middle_draft_hides_the_confident_last_one() -> None:
    retained = select([[-0.1, -9.0, -0.001], [-0.2, -0.2, -0.2]], 3, row_budget=96, ratio=0.5)
    assert retained[0] <= 2


def test_row_budget_binds_confident_streams() -> None:
    retained = select([[-0.01] * 3] * 8, 3, row_budget=24, ratio=1.0)
    assert sum(depth + 1 for depth in retained) <= 24


def test_half_rounds_away_from_zero() -> None:
    """Three streams of three drafts keep five of six prunable ones: rows 4, 4, 3."""
    assert kept_prunable(3, 3, row_budget=96, ratio=0.75) == 5
    assert select([[], [], []], 3, row_budget=96, ratio=0.75) == [3, 3, 2]


def test_shallow_and_empty_batches() -> None:
    assert select([[-1.0]] * 3, 1, row_budget=96, ratio=0.5) == [1, 1, 1]
    assert select([[-1.0]] * 3, 0, row_budget=96, ratio=0.5) == [0, 0, 0]
    assert select([], 3, row_budget=96, ratio=0.5) == []


def _obvious(lps: list[list[float]], k_drafts: int, *, row_budget: int, ratio: float) -> list[int]:
    """The rule read aloud: score every (stream, depth >= 2), keep the best, take the deepest."""
    n = len(lps)
    scored = []
    for i, chain in enumerate(lps):
        for depth in range(2, k_drafts + 1):
            total = sum(chain[:depth])
            scored.append((-total, i, depth))
    prunable = n * (k_drafts - 1)
    keep = min(math.floor(prunable * ratio + 0.5), max(0, row_budget - 2 * n), prunable)
    retained = [1] * n
    for _, i, depth in sorted(scored)[:keep]:
        retained[i] = max(retained[i], depth)
    return retained


@given(
    st.integers(1, 5).flatmap(
        lambda k: st.tuples(
            st.just(k),
            st.lists(
                st.lists(st.sampled_from([0.0, -0.25, -0.5, -1.0, -4.0]), max_size=k), min_size=1
            ),
        )
    ),
    st.integers(0, 100),
    st.sampled_from(RATIOS),
)
def test_equals_the_rule_read_aloud(
    batch: tuple[int, list[list[float]]], row_budget: int, ratio: float
) -> None:
    k_drafts, lps = batch
    assert select(lps, k_drafts, row_budget=row_budget, ratio=ratio) == _obvious(
        lps, k_drafts, row_budget=row_budget, ratio=ratio
    )


@given(
    st.lists(st.lists(st.floats(), max_size=6), max_size=12),
    st.integers(-1, 6),
    st.integers(-5, 120),
    st.floats(),
)
def test_any_numbers_give_depths_within_the_chain_and_the_budget(
    lps: list[list[float]], k_drafts: int, row_budget: int, ratio: float
) -> None:
    retained = select(lps, k_drafts, row_budget=row_budget, ratio=ratio)
    assert len(retained) == len(lps)
    assert all(min(1, max(k_drafts, 0)) <= depth <= max(k_drafts, 0) for depth in retained)
    if lps and k_drafts >= 1 and row_budget >= 2 * len(lps):
        assert sum(depth + 1 for depth in retained) <= row_budget
    if lps and k_drafts >= 1:
        kept = kept_prunable(len(lps), k_drafts, row_budget=row_budget, ratio=ratio)
        assert sum(retained) == len(lps) + kept


def test_unmeasured_is_never_pruned_before_measured() -> None:
    retained = select([[-0.01, -0.01, -0.01], [math.nan] * 3], 3, row_budget=96, ratio=0.5)
    assert retained == [1, 3]


@pytest.mark.parametrize(
    ("ratio", "bucket"),
    [(0.6, 0.5), (0.9, 1.0), (0.1, 0.25), (0.75, 0.75), (0.375, 0.25), (7.0, 1.0), (-1.0, 0.25)],
)
def test_ratio_snaps_to_the_nearest_bucket_and_ties_go_down(ratio: float, bucket: float) -> None:
    assert snap_ratio(ratio) == bucket


def test_settings_from_flags() -> None:
    assert DcutSettings.resolve() == DcutSettings(ratio=0.75, max_seqs=8)
    settings = DcutSettings.resolve(ratio_option=0.9, ratio_flag="0.25", max_seqs_flag="0")
    assert (settings.ratio, settings.max_seqs) == (1.0, 0)
    assert DcutSettings.resolve(ratio_flag="0.6").ratio == 0.5
    assert DcutSettings.resolve(ratio_flag="junk", max_seqs_flag="-2") == DcutSettings()
    assert DcutSettings.resolve(disable_flag="0").disabled


@pytest.mark.parametrize(
    ("width", "k_drafts", "settings"),
    [
        (4, 3, DcutSettings(disabled=True)),
        (4, 1, DcutSettings()),
        (9, 3, DcutSettings()),
        (1, 3, DcutSettings(max_seqs=0)),
    ],
)
def test_plan_is_uniform_when_nothing_is_pruned(
    width: int, k_drafts: int, settings: DcutSettings
) -> None:
    chosen = plan(
        [k_drafts] * width, [[-9.0] * k_drafts] * width, k_drafts=k_drafts, settings=settings
    )
    assert chosen.drafts == (k_drafts,) * width
    assert not chosen.pruned


def test_plan_of_an_empty_batch_is_empty() -> None:
    chosen = plan([], [], k_drafts=3, settings=DcutSettings())
    assert (chosen.drafts, chosen.pruned) == ((), False)


def test_plan_prunes_up_to_eight_streams() -> None:
    chosen = plan([3] * 8, [NO_LPS] * 8, k_drafts=3, settings=DcutSettings())
    assert chosen.pruned
    assert sum(chosen.rows) == 16 + 12


def test_confidences_of_another_length_are_not_measured() -> None:
    doubtful = [-9.0, -9.0, -9.0]
    settings = DcutSettings(ratio=0.5)
    measured = plan([3, 3], [doubtful, [-0.1] * 3], k_drafts=3, settings=settings)
    assert measured.drafts == (1, 3)
    mismatched = plan([4, 3], [doubtful, [-0.1] * 3], k_drafts=3, settings=settings)
    assert mismatched.drafts == (3, 1)


def test_confidence_stop_caps_every_depth_but_keeps_one_draft() -> None:
    sure, unsure = [-0.01, -0.02, -0.01], [-3.0, -0.01, -0.01]
    middle = [-0.01, -3.0, -0.01]
    for settings in (
        DcutSettings(ratio=1.0, stop_tau=0.5),
        DcutSettings(disabled=True, stop_tau=0.5),
    ):
        chosen = plan([3, 3, 3], [sure, unsure, middle], k_drafts=3, settings=settings)
        assert chosen.drafts == (3, 1, 1)
        assert chosen.pruned


def test_no_stream_verifies_more_than_it_holds() -> None:
    chosen = plan([3, 1, 0], [NO_LPS] * 3, k_drafts=3, settings=DcutSettings(ratio=1.0))
    assert chosen.drafts == (3, 1, 0)


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        ([4] * 8, [(0, 8)]),
        ([3] * 32, [(0, 32)]),
        ([3] * 33, [(0, 32), (32, 33)]),
        ([4] * 25, [(0, 24), (24, 25)]),
        ([2] * 49, [(0, 48), (48, 49)]),
        ([3] * 10, [(0, 10)]),
        ([], []),
        ([200, 2], [(0, 1), (1, 2)]),
    ],
)
def test_pinned_chunks(rows: list[int], ranges: list[tuple[int, int]]) -> None:
    assert chunk_ranges(rows) == ranges


@given(st.lists(st.integers(-2, 120), max_size=150), st.integers(-3, 120))
def test_chunks_cover_the_batch_within_the_budget(rows: list[int], row_budget: int) -> None:
    rows = sorted(rows, reverse=True)
    ranges = chunk_ranges(rows, row_budget=row_budget)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges)][: len(ranges)]
    assert all(start < end for start, end in ranges)
    assert (ranges[-1][1] if ranges else 0) == len(rows)
    for start, end in ranges:
        assert end - start == 1 or sum(max(r, 0) for r in rows[start:end]) <= max(row_budget, 0)


def test_telemetry_line_every_200_steps() -> None:
    telemetry = DcutTelemetry()
    chosen = plan([3] * 3, [NO_LPS] * 3, k_drafts=3, settings=DcutSettings())
    lines = [telemetry.record(chosen, k_drafts=3, ratio=0.75) for _ in range(400)]
    assert [index for index, line in enumerate(lines) if line] == [199, 399]
    assert lines[199] is not None
    for piece in ("ratio=0.75", "steps=200", "rows_full=2400", "rows_kept=2200", "last=[4, 4, 3]"):
        assert piece in lines[199]
