"""The static ladder, the width cap and the regime note."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.ladder import (
    DEFAULT_STEPS,
    Ladder,
    LadderPolicy,
    RungTable,
    WidthRegime,
    multi_seq_mode,
    parse_steps,
    resolve_max_seqs,
)
from tests.proposers.policy.views import outcome, view


def test_default_table_by_width() -> None:
    ladder = Ladder()
    expected = {1: 3, 4: 3, 5: 3, 8: 3, 9: 1, 16: 1, 17: 1, 24: 1, 32: 1, 64: 1}
    assert {width: ladder.drafts_for(width, 3) for width in expected} == expected


def test_ceiling_is_respected_and_zero_drafts_stay_zero() -> None:
    ladder = Ladder()
    assert ladder.drafts_for(4, 2) == 2
    assert ladder.drafts_for(4, 0) == 0
    assert ladder.drafts_for(4, -1) == 0


def test_zero_rung_is_raised_to_one() -> None:
    assert Ladder.resolve(flag="4:0").drafts_for(2, 3) == 1


def test_steps_parse_with_spaces_and_sort_by_width() -> None:
    steps = ((4, 3), (8, 3), (16, 2), (24, 2), (32, 2))
    assert parse_steps("32:2, 4:3,8:3, 16:2,24:2") == steps


@pytest.mark.parametrize(
    "raw", ["", "4:3,broken,8:2", "4:three", "4", "4:-1", "4:3,", ":", "4:3:2"]
)
def test_one_bad_piece_refuses_the_whole_ladder(raw: str) -> None:
    assert parse_steps(raw) is None
    ladder = Ladder.resolve(flag=raw)
    assert ladder.table == RungTable.from_upper_bounds(DEFAULT_STEPS)
    assert ladder.explicit
    assert ladder.complaint is not None and repr(raw) in ladder.complaint


def test_option_wins_over_flag() -> None:
    ladder = Ladder.resolve(option="2:1,64:2", flag="64:3")
    assert (ladder.drafts_for(2, 3), ladder.drafts_for(3, 3)) == (1, 2)
    assert ladder.complaint is None


def test_kill_switch_fixes_the_depth_whatever_its_text() -> None:
    ladder = Ladder.resolve(disable_flag="0")
    assert [ladder.drafts_for(width, 3) for width in (1, 16, 100)] == [3, 3, 3]
    assert not Ladder.resolve().disabled
    assert not Ladder.resolve().explicit


def _first_fitting(steps: list[tuple[int, int]], width: int) -> int:
    ordered = sorted(steps, key=lambda step: step[0])
    return next((drafts for n_max, drafts in ordered if width <= n_max), ordered[-1][1])


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 50),
)
def test_lower_bound_form_answers_like_the_upper_bounds(
    steps: list[tuple[int, int]], width: int
) -> None:
    table = RungTable.from_upper_bounds(steps)
    assert table.drafts_at(width) == _first_fitting(steps, width)


@given(st.text(alphabet="0123456789:, -x", max_size=20), st.integers(-5, 300), st.integers(-3, 9))
def test_no_ladder_text_breaks_a_lookup(raw: str, width: int, num_drafts: int) -> None:
    drafts = Ladder.resolve(flag=raw).drafts_for(width, num_drafts)
    assert drafts == 0 if num_drafts <= 0 else 1 <= drafts <= num_drafts


def test_width_cap_resolution_order() -> None:
    assert resolve_max_seqs() == 32
    assert resolve_max_seqs(ladder_disabled=True) == 4
    assert resolve_max_seqs(model=16) == 16
    assert resolve_max_seqs(model=0) == 32
    assert resolve_max_seqs(model=-1, ladder_disabled=True) == 4
    assert resolve_max_seqs(flag="8", model=16) == 8
    assert resolve_max_seqs(flag="junk", model=16) == 16
    assert resolve_max_seqs(option=2, flag="8", model=16) == 2


@pytest.mark.parametrize("good", [1, 128])
def test_width_cap_bounds_are_inclusive(good: int) -> None:
    assert resolve_max_seqs(option=good) == good


@pytest.mark.parametrize(
    ("source", "value"), [("--mtp-max-seqs", 0), ("--mtp-max-seqs", 129), ("the model", 200)]
)
def test_width_cap_out_of_range_is_refused_with_its_source(source: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"mtp_max_seqs={value} from {source}"):
        if source == "the model":
            resolve_max_seqs(model=value)
        else:
            resolve_max_seqs(option=value)


def test_flag_out_of_range_is_refused_too() -> None:
    with pytest.raises(ValueError, match="mtp_max_seqs=0 from MTP_MAX_SEQS"):
        resolve_max_seqs(flag="0")


def test_multi_sequence_mode_is_a_cap_above_one() -> None:
    assert [multi_seq_mode(cap) for cap in (1, 2, 32)] == [False, True, True]


def test_each_crossing_of_the_cap_is_one_flip() -> None:
    regime = WidthRegime()
    lines = [regime.note(width, 32) for width in (1, 8, 32, 33, 40, 64, 32, 31, 33)]
    assert [bool(line) for line in lines] == [False] * 3 + [True, False, False, True, False, True]
    assert regime.flips == 3
    assert lines[3] is not None and "DISENGAGED" in lines[3]
    assert lines[6] is not None and "DISENGAGED" not in lines[6]


def test_policy_follows_the_ladder_up_to_the_cap() -> None:
    policy = LadderPolicy(Ladder())
    depths = {width: policy.decide(view(width)).depth for width in (0, 1, 8, 9, 32, 33)}
    assert depths == {0: 0, 1: 3, 8: 3, 9: 1, 32: 1, 33: 0}
    assert policy.decide(view(33)).reason == "width over the cap"


def test_policy_clamps_to_the_tightest_slot() -> None:
    policy = LadderPolicy(Ladder())
    assert policy.decide(view(3, capacities=(3, 3, 1))).depth == 1
    assert policy.decide(view(2, slots=(0, 4), slot_cap=4)).depth == 0
    assert policy.decide(view(2, slots=(0, 3), slot_cap=4)).depth == 3


def test_disabled_ladder_is_a_fixed_depth() -> None:
    policy = LadderPolicy(Ladder(disabled=True))
    policy.observe(outcome(2, depth=3))
    decision = policy.decide(view(16))
    assert (decision.depth, decision.reason) == (3, "fixed depth")
