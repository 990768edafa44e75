"""Digest of the lockstep state and the check that all ranks agree on it.

Each rank keeps one `StateDigest`. The executor reports what it commits (`set_slot`, `clear_slot`,
`set_placement`, and `fold_exchange` for values that came out of an exchange); commands are folded
by the code that carries them: `CommandChannel.send` on rank 0, the worker loop elsewhere, so the
executor never calls `fold_command` itself. A command carries rank 0's value BEFORE it, hence a
rank that differs stops before the next collective, with the differing fields in the message.

Every update costs the same however many slots there are: the slots' hashes are summed modulo 2^64,
so a changed slot is one subtraction and one addition, in any order.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

_MASK = (1 << 64) - 1
_HISTORY = 64
_SLOT = struct.Struct("<5q")
_LINK = struct.Struct("<QQQ")
_COMMAND_WEIGHT = 0x9E3779B97F4A7C15
_EXCHANGE_WEIGHT = 0xC2B2AE3D27D4EB4F
_PLACEMENT_WEIGHT = 0x165667B19E3779F9


class SlotState(NamedTuple):
    """What must be equal on every rank about one slot."""

    length: int
    last_token: int
    drafter_rows: int
    num_blocks: int


class _Moment(NamedTuple):
    """Rank 0's state just before the command `seq`, for a rank that differs and asks."""

    seq: int
    slots: dict[int, SlotState]
    chains: tuple[int, int, int, int]
    placement: int
    exchanged: tuple[int, ...]


def _hash64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


class StateDigest:
    """64-bit digest of one rank's lockstep state. Written by that rank's executor thread only."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotState] = {}
        self._slot_hashes: dict[int, int] = {}
        self._slot_sum = 0
        self._commands = 0
        self._num_commands = 0
        self._exchanges = 0
        self._num_exchanges = 0
        self._exchanged: tuple[int, ...] = ()
        self._placement = 0
        self._history: list[_Moment | None] = [None] * _HISTORY

    def set_slot(
        self, slot: int, *, length: int, last_token: int, drafter_rows: int, num_blocks: int
    ) -> None:
        """The slot's committed state after a commit.

        length: committed tokens; drafter_rows: rows in the drafter's cache; num_blocks: KV blocks.
        """
        state = SlotState(length, last_token, drafter_rows, num_blocks)
        if self._slots.get(slot) == state:
            return
        new = _hash64(_SLOT.pack(slot, *state))
        self._slot_sum = (self._slot_sum - self._slot_hashes.get(slot, 0) + new) & _MASK
        self._slot_hashes[slot] = new
        self._slots[slot] = state

    def clear_slot(self, slot: int) -> None:
        """The slot is empty again; clearing an empty slot changes nothing."""
        self._slot_sum = (self._slot_sum - self._slot_hashes.pop(slot, 0)) & _MASK
        self._slots.pop(slot, None)

    def set_placement(self, version: int) -> None:
        """The expert placement in force."""
        self._placement = version

    def fold_command(self, seq: int, code: int, payload: bytes | memoryview) -> None:
        """A command that was accepted; called by the channel (rank 0) and the worker loop."""
        self._commands = _hash64(_LINK.pack(self._commands, seq, code) + payload)
        self._num_commands += 1

    def fold_exchange(self, values: Iterable[int]) -> None:
        """Values that came out of an exchange (token ids, votes); signed 64-bit each."""
        exchanged = tuple(values)
        packed = self._exchanges.to_bytes(8, "little") + array("q", exchanged).tobytes()
        self._exchanges = _hash64(packed)
        self._num_exchanges += 1
        self._exchanged = exchanged

    @property
    def value(self) -> int:
        """The digest, 0 .. 2^64-1."""
        return (
            self._slot_sum
            + self._commands * _COMMAND_WEIGHT
            + self._exchanges * _EXCHANGE_WEIGHT
            + self._placement * _PLACEMENT_WEIGHT
        ) & _MASK

    def remember(self, seq: int) -> None:
        """Keep the state before command `seq`; the last 64 are kept."""
        self._history[seq % _HISTORY] = self._moment(seq)

    def fields(self) -> dict[str, str | int]:
        """The state in words, for a message."""
        return _fields(self._moment(0))

    def fields_at(self, seq: int) -> dict[str, str | int] | None:
        """The remembered state before `seq`, or None when it is no longer kept. Any thread."""
        moment = self._history[seq % _HISTORY]
        return None if moment is None or moment.seq != seq else _fields(moment)

    def _moment(self, seq: int) -> _Moment:
        return _Moment(
            seq,
            dict(self._slots),
            (self._commands, self._num_commands, self._exchanges, self._num_exchanges),
            self._placement,
            self._exchanged,
        )


def _fields(moment: _Moment) -> dict[str, str | int]:
    commands, num_commands, exchanges, num_exchanges = moment.chains
    fields: dict[str, str | int] = {"placement": moment.placement}
    for slot in sorted(moment.slots):
        for name, value in moment.slots[slot]._asdict().items():
            fields[f"slot {slot} {name}"] = value
    fields["commands"] = f"{num_commands} ({commands:016x})"
    fields["exchanges"] = f"{num_exchanges} ({exchanges:016x})"
    shown = ",".join(map(str, moment.exchanged[:32]))
    more = len(moment.exchanged) - 32
    fields["last exchange"] = f"[{shown}{f',+{more}' if more > 0 else ''}]"
    return fields


def differing_fields(
    expected: Mapping[str, str | int], got: Mapping[str, str | int]
) -> list[tuple[str, str | int, str | int]]:
    """(field, expected, got) for every field that differs; "-" stands for an absent field."""
    return [
        (name, expected.get(name, "-"), got.get(name, "-"))
        for name in [*expected, *(name for name in got if name not in expected)]
        if expected.get(name, "-") != got.get(name, "-")
    ]
