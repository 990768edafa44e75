"""Slot capacities, pools and the serial verify plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.capacity import (
    VerifyArm,
    clamp_drafts,
    pool_capacities,
    serial_plan,
    spec_slot_cap,
)
from phalanx.proposers.policy.ladder import Ladder
from phalanx.proposers.policy.policy import UNLIMITED


def test_low_slot_bounds_the_step() -> None:
    assert clamp_drafts(3, [3, 3, 1]) == 1


def test_empty_and_unlimited_leave_the_drafts_alone() -> None:
    assert clamp_drafts(3, []) == 3
    assert clamp_drafts(3, [UNLIMITED, UNLIMITED]) == 3


@given(st.integers(-5, 20), st.lists(st.integers(-5, 20), max_size=8))
def test_clamp_is_the_minimum_and_never_negative(drafts: int, capacities: list[int]) -> None:
    assert clamp_drafts(drafts, capacities) == max(0, min([drafts, *capacities]))


@pytest.mark.parametrize(
    ("pending", "step", "keep", "arm"),
    [
        (3, 1, 1, VerifyArm.K2),
        (3, 2, 2, VerifyArm.K3),
        (3, 3, 3, VerifyArm.K4),
        (2, 3, 2, VerifyArm.K3),
        (0, 3, 0, VerifyArm.K2),
        (1, 3, 1, VerifyArm.K2),
        (8, 8, 8, VerifyArm.KN),
        (4, 4, 4, VerifyArm.KN),
        (5, 3, 3, VerifyArm.K4),
        (-1, -1, 0, VerifyArm.K2),
    ],
)
def test_serial_plan_of_a_chain(pending: int, step: int, keep: int, arm: VerifyArm) -> None:
    plan = serial_plan(pending, step)
    assert (plan.keep, plan.arm) == (keep, arm)


@pytest.mark.parametrize(
    ("pending", "step", "keep", "arm"),
    [
        (16, 16, 16, VerifyArm.DFLASH),
        (16, 1, 16, VerifyArm.DFLASH),
        (3, 3, 3, VerifyArm.K4),
        (2, 3, 2, VerifyArm.K3),
        (3, 1, 3, VerifyArm.K2),
    ],
)
def test_serial_plan_of_a_block_keeps_what_is_pending(
    pending: int, step: int, keep: int, arm: VerifyArm
) -> None:
    plan = serial_plan(pending, step, dflash=True)
    assert (plan.keep, plan.arm) == (keep, arm)


def test_one_draft_ladder_never_reaches_four_rows() -> None:
    ladder = Ladder.resolve(flag="1:1")
    arms = {serial_plan(p, ladder.drafts_for(n, 3)).arm for p in range(9) for n in range(1, 65)}
    assert arms == {VerifyArm.K2}


def test_default_pools_are_deep_for_eight_slots() -> None:
    tiers = pool_capacities(Ladder().drafts_for, num_slots=32, num_drafts=3)
    assert tiers == (3,) * 8 + (1,) * 24


def test_pool_tiers_cover_every_width_the_ladder_can_reach() -> None:
    ladder = Ladder.resolve(flag="4:1,12:3,16:2")
    tiers = pool_capacities(ladder.drafts_for, num_slots=20, num_drafts=3)
    for width in range(1, 21):
        assert clamp_drafts(ladder.drafts_for(width, 3), tiers[:width]) == ladder.drafts_for(
            width, 3
        )


def test_full_width_pools_give_every_slot_all_drafts() -> None:
    tiers = pool_capacities(Ladder().drafts_for, num_slots=12, num_drafts=3, full_width=True)
    assert tiers == (3,) * 12


def test_prompt_lookup_raises_the_first_slots_only() -> None:
    tiers = pool_capacities(
        Ladder().drafts_for, num_slots=10, num_drafts=3, lookup_max_seqs=8, lookup_max_drafts=8
    )
    assert tiers == (8,) * 8 + (1, 1)


def test_no_slots_no_tiers() -> None:
    assert pool_capacities(Ladder().drafts_for, num_slots=0, num_drafts=3) == ()


def test_default_pools_undo_the_adaptive_lift_at_nine_streams() -> None:
    """Nine active sequences hold a slot of index 8 or more, whose pool carries one draft."""
    tiers = pool_capacities(Ladder().drafts_for, num_slots=16, num_drafts=3)
    assert clamp_drafts(2, tiers[:9]) == 1


def test_slot_cap() -> None:
    assert spec_slot_cap(recurrent=False, max_batch=64, max_seqs=32) == 64
    assert spec_slot_cap(recurrent=True, max_batch=32, max_seqs=4) == 32
    assert spec_slot_cap(recurrent=True, max_batch=64, max_seqs=4) == 32
    assert spec_slot_cap(recurrent=True, max_batch=64, max_seqs=48) == 48
    assert spec_slot_cap(recurrent=True, max_batch=64, max_seqs=4, full_width=True) == 64
