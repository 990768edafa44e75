"""Who may speculate, and which pins hold a step to a verify."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.eligibility import (
    Lane,
    SequenceState,
    all_eligible,
    block_pinned,
    eligible,
    entry_pinned,
    parse_entry_pin,
    parse_resume_guard,
    think_lever,
)


def test_outside_thinking_without_a_guard_is_eligible() -> None:
    for dflash in (False, True):
        assert eligible(SequenceState(), lane=Lane(dflash=dflash))


def test_thinking_needs_the_lever_on_both_lanes() -> None:
    inside = SequenceState(inside_thinking=True, output_len=50)
    for dflash in (False, True):
        assert not eligible(inside, lane=Lane(dflash=dflash))
        assert eligible(inside, lane=Lane(dflash=dflash, spec_think=True))


@pytest.mark.parametrize(
    "refused", [SequenceState(suppress_tool_call=True), SequenceState(disable_mtp=True)]
)
def test_tool_suppression_and_opt_out_dominate(refused: SequenceState) -> None:
    assert not eligible(refused, lane=Lane(spec_think=True))


def test_guard_counts_output_inside_thinking_and_post_think_tokens_outside() -> None:
    lane = Lane(spec_think=True, resume_guard=5)
    inside = SequenceState(inside_thinking=True, output_len=5, post_think_emitted=0)
    assert eligible(inside, lane=lane)
    assert not eligible(SequenceState(inside_thinking=True, output_len=4), lane=lane)
    assert not eligible(SequenceState(output_len=100, post_think_emitted=4), lane=lane)
    assert eligible(SequenceState(output_len=100, post_think_emitted=5), lane=lane)


def test_block_lane_guard_counts_post_think_tokens() -> None:
    lane = Lane(dflash=True, resume_guard=3)
    assert not eligible(SequenceState(output_len=100, post_think_emitted=2), lane=lane)
    assert eligible(SequenceState(post_think_emitted=3), lane=lane)


def test_one_ineligible_sequence_stops_the_step() -> None:
    lane = Lane()
    states = [SequenceState(), SequenceState(inside_thinking=True)]
    assert not all_eligible(states, lane=lane)
    assert all_eligible(states[:1], lane=lane)
    assert all_eligible([], lane=lane)


@pytest.mark.parametrize(
    ("model_type", "mtp", "dflash_flag", "expected"),
    [
        ("glm5_next", None, None, True),
        ("glm5_next_text", None, None, True),
        ("qwen3_next", None, None, False),
        ("qwen3_next", "1", None, True),
        ("glm5_next", "0", None, False),
        ("glm5_next", None, "0", False),
        ("glm5_next", "1", "0", True),
        ("glm5_next", "yes", None, True),
        ("qwen3_next", "yes", "1", False),
    ],
)
def test_think_lever_of_the_mtp_lane(
    model_type: str, mtp: str | None, dflash_flag: str | None, *, expected: bool
) -> None:
    lever = think_lever(dflash=False, model_type=model_type, mtp_flag=mtp, dflash_flag=dflash_flag)
    assert lever is expected


def test_think_lever_of_the_block_lane_is_a_strict_opt_in() -> None:
    assert think_lever(dflash=True, model_type="x", dflash_flag="1")
    for raw in (None, "0", "true", "2"):
        assert not think_lever(dflash=True, model_type="glm5_next", dflash_flag=raw, mtp_flag="1")


@pytest.mark.parametrize(
    ("raw", "pin"),
    [(None, 8), ("0", 0), ("12", 12), ("junk", 8), ("-3", 8), ("", 8), ("4294967296", 8)],
)
def test_entry_pin_text(raw: str | None, pin: int) -> None:
    assert parse_entry_pin(raw) == pin


def test_resume_guard_text() -> None:
    assert [parse_resume_guard(raw) for raw in (None, "3", "junk", "-1")] == [0, 3, 0, 0]


def test_entry_pin_covers_the_first_eight_tokens() -> None:
    assert [entry_pinned([emitted], pin=8) for emitted in range(10)] == [True] * 8 + [False] * 2


def test_entry_pin_looks_at_the_newest_stream_and_zero_is_off() -> None:
    assert entry_pinned([500, 3, 90], pin=8)
    assert not entry_pinned([500, 8], pin=8)
    assert not entry_pinned([0], pin=0)
    assert not entry_pinned([], pin=8)


def test_block_pin_holds_one_and_two_streams() -> None:
    assert [block_pinned(n, dflash=True, lever=True) for n in range(4)] == [
        False,
        True,
        True,
        False,
    ]
    assert not block_pinned(1, dflash=False, lever=True)
    assert not block_pinned(1, dflash=True, lever=False)


@given(
    st.builds(
        SequenceState,
        inside_thinking=st.booleans(),
        post_think_emitted=st.integers(-5, 20),
        output_len=st.integers(-5, 20),
        suppress_tool_call=st.booleans(),
        disable_mtp=st.booleans(),
    ),
    st.builds(Lane, dflash=st.booleans(), spec_think=st.booleans(), resume_guard=st.integers(0, 8)),
)
def test_more_tokens_never_make_a_sequence_ineligible(state: SequenceState, lane: Lane) -> None:
    later = SequenceState(
        inside_thinking=state.inside_thinking,
        post_think_emitted=state.post_think_emitted + 7,
        output_len=state.output_len + 7,
        suppress_tool_call=state.suppress_tool_call,
        disable_mtp=state.disable_mtp,
    )
    assert eligible(later, lane=lane) or not eligible(state, lane=lane)
