"""Codes and fields are a wire format: frozen here."""

from __future__ import annotations

import typing

import msgspec

from phalanx.ep import commands
from phalanx.ep.commands import Command, Forward, Message, MtpPropose, RowKind, Verdict, Want

CODES = {
    "ADMIT": 0xFFFFFFF1,
    "MTP_PROPOSE": 0xFFFFFFF5,
    "CHECKPOINT": 0xFFFFFFF8,
    "FORWARD": 0xFFFFFFF9,
    "MTP_PROPOSE_BATCH": 0xFFFFFFFA,
    "RELEASE": 0xFFFFFFFC,
    "PLACEMENT": 0xFFFFFFFD,
    "NOOP": 0xFFFFFFFE,
    "SHUTDOWN": 0xFFFFFFFF,
}


def test_codes_never_change() -> None:
    assert {code.name: int(code) for code in Command} == CODES


def test_every_code_has_its_module_constant_and_one_message() -> None:
    for code in Command:
        assert getattr(commands, f"EP_CMD_{code.name}") is code
    kinds = typing.get_args(Message)
    assert {commands.code_of(_an_instance(kind)) for kind in kinds} == set(Command)
    assert len(kinds) == len(Command)
    for kind in kinds:
        assert kind.__struct_config__.tag == int(commands.code_of(_an_instance(kind)))


def test_field_order_is_frozen() -> None:
    assert commands.FIELD_NAMES[Command.FORWARD] == (
        "slots",
        "rows",
        "kinds",
        "starts",
        "new_blocks",
        "tokens",
        "wants",
        "owners",
        "key",
        "verdicts",
    )
    assert commands.FIELD_NAMES[Command.MTP_PROPOSE] == (
        "slot",
        "last_token",
        "position",
        "num_drafts",
        "hidden_row",
        "feed_rows",
        "new_blocks",
        "verdicts",
    )
    assert [int(kind) for kind in RowKind] == [0, 1, 2]
    assert [int(want) for want in Want] == [0, 1, 2]


def test_a_verdict_counts_what_is_rewound() -> None:
    assert Verdict(slot=0, num_rows=4, num_accepted=3).num_rewound == 0
    assert Verdict(slot=0, num_rows=4, num_accepted=0).num_rewound == 3


def test_word_seven_is_the_slot_or_the_batch_width() -> None:
    assert commands.width_of(MtpPropose(5, 1, 2, 3, 0, 1)) == 5
    assert (
        commands.width_of(
            Forward([4, 9], [1, 1], [1, 1], [0, 0], [[], []], [1, 2], [1, 1], [-1, -1])
        )
        == 2
    )
    assert commands.width_of(commands.Noop()) == 0


def _an_instance(kind: type[typing.Any]) -> typing.Any:
    required = [f for f in msgspec.structs.fields(kind) if f.required]
    values = {f.name: "" if f.type is str else [] if "list" in str(f.type) else 1 for f in required}
    return kind(**values)
