"""The state digest: equal for equal states, however they were reached; different otherwise."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.lockstep import StateDigest, differing_fields

slot_states = st.fixed_dictionaries(
    {
        "length": st.integers(0, 10**6),
        "last_token": st.integers(0, 2**31 - 1),
        "drafter_rows": st.integers(0, 10**6),
        "num_blocks": st.integers(0, 10**5),
    }
)
changes = st.lists(st.tuples(st.integers(0, 7), st.none() | slot_states), max_size=40)


def apply(digest: StateDigest, slot: int, state: dict[str, int] | None) -> None:
    if state is None:
        digest.clear_slot(slot)
    else:
        digest.set_slot(slot, **state)


@settings(max_examples=60, deadline=None)
@given(changes)
def test_the_digest_depends_on_the_state_and_not_on_its_history(
    made: list[tuple[int, dict[str, int] | None]],
) -> None:
    stepwise, final = StateDigest(), {}
    for slot, state in made:
        apply(stepwise, slot, state)
        final[slot] = state
    at_once = StateDigest()
    for slot, state in sorted(final.items(), reverse=True):
        apply(at_once, slot, state)
    assert stepwise.value == at_once.value
    assert stepwise.fields() == at_once.fields()


@settings(max_examples=60, deadline=None)
@given(slot_states, st.sampled_from(["length", "last_token", "drafter_rows", "num_blocks"]))
def test_any_changed_field_changes_the_digest_and_is_named(
    state: dict[str, int], name: str
) -> None:
    one, other = StateDigest(), StateDigest()
    one.set_slot(3, **state)
    other.set_slot(3, **(state | {name: state[name] + 1}))
    assert one.value != other.value
    assert differing_fields(one.fields(), other.fields()) == [
        (f"slot 3 {name}", state[name], state[name] + 1)
    ]


def test_the_same_state_in_another_slot_is_another_state() -> None:
    one, other = StateDigest(), StateDigest()
    values: dict[str, Any] = {"length": 1, "last_token": 2, "drafter_rows": 1, "num_blocks": 1}
    one.set_slot(0, **values)
    other.set_slot(1, **values)
    assert one.value != other.value
    named = [field for field, _, _ in differing_fields(one.fields(), other.fields())]
    assert "slot 0 length" in named
    assert "slot 1 length" in named


def test_commands_and_exchanges_are_order_sensitive() -> None:
    one, other = StateDigest(), StateDigest()
    one.fold_command(1, 0xFFFFFFF9, b"a")
    one.fold_command(2, 0xFFFFFFF9, b"b")
    other.fold_command(1, 0xFFFFFFF9, b"b")
    other.fold_command(2, 0xFFFFFFF9, b"a")
    assert one.value != other.value
    one, other = StateDigest(), StateDigest()
    one.fold_exchange([17, 4])
    other.fold_exchange([17, 9])
    assert differing_fields(one.fields(), other.fields())[-1] == (
        "last exchange",
        "[17,4]",
        "[17,9]",
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=6))
def test_exchanges_are_not_merely_concatenated(values: list[list[int]]) -> None:
    one, other = StateDigest(), StateDigest()
    for exchanged in values:
        one.fold_exchange(exchanged)
    other.fold_exchange([value for exchanged in values for value in exchanged])
    assert (one.value == other.value) == (len(values) == 1)


def test_placement_is_part_of_the_state() -> None:
    digest = StateDigest()
    before = digest.value
    digest.set_placement(2)
    assert digest.value != before
    assert digest.fields()["placement"] == 2
    digest.set_placement(0)
    assert digest.value == before


def test_the_last_64_commands_are_remembered() -> None:
    digest = StateDigest()
    for seq in range(1, 101):
        digest.remember(seq)
        digest.set_slot(0, length=seq, last_token=0, drafter_rows=0, num_blocks=0)
    assert digest.fields_at(36) is None
    for seq in range(37, 101):
        fields = digest.fields_at(seq)
        assert fields is not None
        assert fields["slot 0 length"] == seq - 1
    assert digest.fields_at(101) is None
