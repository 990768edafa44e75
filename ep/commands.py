"""The commands rank 0 sends: their codes and the message each one carries.

Everything that shapes a collective is in here, because a rank never decides any of it for itself.
Codes are frozen by a test and never reused; where the meaning is the same they have the values of
the reference protocol. Messages are msgspec structs written as arrays, so the field order IS the
wire format: new fields go last, with a default, and `frames.PROTOCOL_VERSION` goes up.
How a message becomes 64-word frames: frames.py.

Legend: n = sequences in the batch; every list without another note has n entries, in batch order.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec


class Command(enum.IntEnum):
    """Word 0 of a frame."""

    ADMIT = 0xFFFFFFF1
    MTP_PROPOSE = 0xFFFFFFF5
    CHECKPOINT = 0xFFFFFFF8
    FORWARD = 0xFFFFFFF9
    MTP_PROPOSE_BATCH = 0xFFFFFFFA
    RELEASE = 0xFFFFFFFC
    PLACEMENT = 0xFFFFFFFD
    NOOP = 0xFFFFFFFE
    SHUTDOWN = 0xFFFFFFFF


EP_CMD_ADMIT = Command.ADMIT
EP_CMD_MTP_PROPOSE = Command.MTP_PROPOSE
EP_CMD_CHECKPOINT = Command.CHECKPOINT
EP_CMD_FORWARD = Command.FORWARD
EP_CMD_MTP_PROPOSE_BATCH = Command.MTP_PROPOSE_BATCH
EP_CMD_RELEASE = Command.RELEASE
EP_CMD_PLACEMENT = Command.PLACEMENT
EP_CMD_NOOP = Command.NOOP
EP_CMD_SHUTDOWN = Command.SHUTDOWN

MAX_TOKEN_ID = 0x7FFFFFFF
MAX_WORD = 0xFFFFFFFF

# Ranges are part of the types: msgspec checks them in C while it decodes, on rank 0 too.
Word: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_WORD)]
Token: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORD)]
Owner: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=MAX_TOKEN_ID)]
RequestId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
KindWord: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2)]


class RowKind(enum.IntEnum):
    """What the rows of one sequence are in a FORWARD."""

    PREFILL = 0
    DECODE = 1
    VERIFY = 2


class Want(enum.IntEnum):
    """What rank 0 needs of a sequence's rows.

    A PREFILL chunk that is not the last one wants NONE; the last one is read at its last row only;
    DECODE and VERIFY at every row.
    """

    NONE = 0
    ARGMAX = 1
    LOGITS = 2


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """About the slot's rows in the previous FORWARD.

    Rows 0..num_accepted stay; num_rows-1-num_accepted are rewound.
    """

    slot: Word
    num_rows: Count
    num_accepted: Word

    @property
    def num_rewound(self) -> int:
        """Rows to take back."""
        return self.num_rows - 1 - self.num_accepted


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.ADMIT)):
    """A request enters a slot."""

    slot: Word
    request_id: RequestId
    prompt_tokens: Word
    max_tokens: Word
    verdicts: list[Verdict] = []


class Release(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.RELEASE)):
    """The sequences in these slots are gone; verdicts first, then the release."""

    slots: list[Word]
    verdicts: list[Verdict] = []


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.FORWARD)):
    """One batched forward: prefill chunks, plain rows and verify rows together.

    rows: rows per sequence; starts: position of the first row, which is the committed length;
    new_blocks: appended to the slot's block table before the rows are written; tokens: flat,
    sequence-major, sum(rows) of them; owners: rank that owns a sequence's rows, -1 = every rank;
    key: words of the verify key, [] = eager.
    """

    slots: list[Word]
    rows: list[Count]
    kinds: list[KindWord]
    starts: list[Word]
    new_blocks: list[list[Word]]
    tokens: list[Token]
    wants: list[KindWord]
    owners: list[Owner]
    key: list[Word] = []
    verdicts: list[Verdict] = []


class MtpPropose(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.MTP_PROPOSE)):
    """Draft for one sequence.

    position: committed length after the verdict = index of last_token. hidden_row: row of the last
    FORWARD that is the last committed row of this sequence. The drafter consumes feed_rows rows
    ending there, then drafts num_drafts tokens; 0 = feed only.
    """

    slot: Word
    last_token: Token
    position: Word
    num_drafts: Word
    hidden_row: Word
    feed_rows: Word
    new_blocks: list[Word] = []
    verdicts: list[Verdict] = []


class MtpProposeBatch(
    msgspec.Struct, frozen=True, array_like=True, tag=int(Command.MTP_PROPOSE_BATCH)
):
    """Draft for several sequences; the fields of MtpPropose, one entry per sequence."""

    slots: list[Word]
    last_tokens: list[Token]
    positions: list[Word]
    hidden_rows: list[Word]
    feed_rows: list[Word]
    num_drafts: list[Word]
    new_blocks: list[list[Word]]
    verdicts: list[Verdict] = []


class Placement(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.PLACEMENT)):
    """A new expert placement: for each expert, the ranks that hold it."""

    version: Word
    ranks_of_experts: list[list[Word]]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.CHECKPOINT)):
    """Keep a snapshot of the slot's recurrent state at `tokens` committed tokens."""

    slot: Word
    tokens: Word


class Noop(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.NOOP)):
    """Nothing to do; says that rank 0 is there."""


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag=int(Command.SHUTDOWN)):
    """Leave the worker loop."""

    reason: str = ""


Message: TypeAlias = (
    Admit
    | Release
    | Forward
    | MtpPropose
    | MtpProposeBatch
    | Placement
    | Checkpoint
    | Noop
    | Shutdown
)


_CODE_OF: dict[type[msgspec.Struct], Command] = {
    Admit: Command.ADMIT,
    Release: Command.RELEASE,
    Forward: Command.FORWARD,
    MtpPropose: Command.MTP_PROPOSE,
    MtpProposeBatch: Command.MTP_PROPOSE_BATCH,
    Placement: Command.PLACEMENT,
    Checkpoint: Command.CHECKPOINT,
    Noop: Command.NOOP,
    Shutdown: Command.SHUTDOWN,
}

FIELD_NAMES: dict[Command, tuple[str, ...]] = {
    code: kind.__struct_fields__ for kind, code in _CODE_OF.items()
}


def code_of(message: Message) -> Command:
    """The command code a message travels under."""
    return _CODE_OF[type(message)]


def width_of(message: Message) -> int:
    """Word 7 of the frame: the slot of a one-sequence message, else the batch width."""
    if isinstance(message, (Forward, MtpProposeBatch, Release)):
        return len(message.slots)
    if isinstance(message, (MtpPropose, Admit, Checkpoint)):
        return message.slot
    return 0
