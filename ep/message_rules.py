"""What a message must satisfy before it is sent, and again before it is executed.

Types and ranges are checked by msgspec while decoding (they are in the field types of
commands.py); here are lengths that must agree and values that must not repeat. Both sides run the
same rules: rank 0 so that a mistake of ours ends at its origin with nothing sent, the others
because bytes may come from another build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.ep.commands import (
    Admit,
    Forward,
    Message,
    MtpPropose,
    MtpProposeBatch,
    Placement,
    Release,
    Verdict,
)
from phalanx.ep.faults import ProtocolError


def check_message(message: Message) -> None:
    """Raises ProtocolError naming the field, its value and the limit."""
    rule = _RULES.get(type(message))
    if rule is not None:
        rule(message)


def _fail(field: str, value: object, limit: str) -> ProtocolError:
    return ProtocolError(
        f"bad {field} ({field}={value!r}, limit {limit}) -- the command contradicts itself, so "
        "ranks could read it differently -- it was refused before anything ran",
        field=field,
    )


def _counts(message: Forward | MtpProposeBatch, fields: Sequence[str]) -> ProtocolError:
    """The error for the first field whose length is not the batch width."""
    width = len(message.slots)
    field = next(name for name in fields if len(getattr(message, name)) != width)
    return _fail(f"len({field})", len(getattr(message, field)), f"{width} = len(slots)")


def _distinct(field: str, values: Sequence[int]) -> None:
    if len(set(values)) != len(values):
        raise _fail(field, list(values), "every entry once")


def _verdicts(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        if verdict.num_accepted >= verdict.num_rows:
            raise _fail("verdict num_accepted", verdict.num_accepted, f"0..{verdict.num_rows - 1}")
    if len(verdicts) > 1:
        _distinct("verdict slots", [verdict.slot for verdict in verdicts])


def _admit(message: Admit) -> None:
    _verdicts(message.verdicts)


def _release(message: Release) -> None:
    _distinct("slots", message.slots)
    _verdicts(message.verdicts)


_FORWARD_LISTS = ("rows", "kinds", "starts", "new_blocks", "wants", "owners")


def _forward(message: Forward) -> None:
    width = len(message.slots)
    if not (
        len(message.rows) == width
        and len(message.kinds) == width
        and len(message.starts) == width
        and len(message.new_blocks) == width
        and len(message.wants) == width
        and len(message.owners) == width
    ):
        raise _counts(message, _FORWARD_LISTS)
    if width > 1:
        _distinct("slots", message.slots)
    if len(message.tokens) != sum(message.rows):
        raise _fail("len(tokens)", len(message.tokens), f"{sum(message.rows)} = sum(rows)")
    _verdicts(message.verdicts)


def _mtp_propose(message: MtpPropose) -> None:
    if message.feed_rows > message.hidden_row + 1:
        raise _fail("feed_rows", message.feed_rows, f"{message.hidden_row + 1} = hidden_row + 1")
    _verdicts(message.verdicts)


_PROPOSE_LISTS = (
    "last_tokens",
    "positions",
    "hidden_rows",
    "feed_rows",
    "num_drafts",
    "new_blocks",
)


def _mtp_propose_batch(message: MtpProposeBatch) -> None:
    width = len(message.slots)
    if not (
        len(message.last_tokens) == width
        and len(message.positions) == width
        and len(message.hidden_rows) == width
        and len(message.feed_rows) == width
        and len(message.num_drafts) == width
        and len(message.new_blocks) == width
    ):
        raise _counts(message, _PROPOSE_LISTS)
    _distinct("slots", message.slots)
    _distinct("hidden_rows", message.hidden_rows)
    for feed, hidden in zip(message.feed_rows, message.hidden_rows, strict=True):
        if feed > hidden + 1:
            raise _fail("feed_rows", feed, f"{hidden + 1} = hidden_row + 1")
    _verdicts(message.verdicts)


def _placement(message: Placement) -> None:
    for ranks in message.ranks_of_experts:
        if not ranks:
            raise _fail("ranks_of_experts", ranks, "at least one rank for each expert")
        _distinct("ranks_of_experts", ranks)


_RULES: dict[type, Callable[[Any], None]] = {
    Admit: _admit,
    Release: _release,
    Forward: _forward,
    MtpPropose: _mtp_propose,
    MtpProposeBatch: _mtp_propose_batch,
    Placement: _placement,
}
