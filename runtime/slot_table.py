"""What a rank holds about each slot: tokens, blocks, drafter rows; and what rewinds them.

Every rank keeps one, rank 0 included, and changes it by commands alone; what a command changed is
reported to the digest at its end, so that two ranks that differ find out before the next one. A
verify's rows count as appended until its verdict takes some back; a slot whose verdict is due
cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from phalanx.ep.commands import Admit, Verdict
from phalanx.ep.lockstep import StateDigest
from phalanx.proposers.base import DraftProposer, ProposerState
from phalanx.runtime.batch import BlockTables
from phalanx.runtime.errors import EngineError


@dataclass(slots=True, kw_only=True)
class Slot:
    """One sequence as a rank holds it. Written by its SlotTable alone."""

    request_id: int
    state: ProposerState | None
    tokens: list[int] = field(default_factory=list)
    """Tokens whose rows were computed, rejected drafts included until their verdict."""
    num_blocks: int = 0
    due_rows: int = 0
    """Rows of the verify whose verdict is due; 0 = none."""
    first_row: int = 0
    """Where the sequence's rows are in the last forward."""
    num_rows: int = 0
    """How many they are; 0 = it was not in the last forward."""
    start: int = 0
    """Position of the first of them."""


class SlotTable:
    """The occupied slots of one rank."""

    def __init__(
        self, *, tables: BlockTables, digest: StateDigest, proposer: DraftProposer | None
    ) -> None:
        self._tables, self._digest, self._proposer = tables, digest, proposer
        # Rows of a drafter that rank 0 runs alone are no other rank's business.
        self._lockstep = proposer if proposer is not None and proposer.needs_comm() else None
        self._slots: dict[int, Slot] = {}
        self._touched: dict[int, None] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def admit(self, message: Admit) -> None:
        """A sequence enters an empty slot."""
        if message.slot in self._slots:
            raise EngineError(
                f"slot is taken (slot={message.slot}, by request "
                f"{self._slots[message.slot].request_id}) -- two sequences would share a cache -- "
                "release it first"
            )
        state = None
        if self._proposer is not None:
            budget = message.prompt_tokens + message.max_tokens
            state = self._proposer.alloc_state_for(budget)
        self._slots[message.slot] = Slot(request_id=message.request_id, state=state)
        self.touch(message.slot)

    def release(self, indices: Sequence[int]) -> None:
        """The sequences in these slots are gone."""
        for index in indices:
            slot = self.ready(index)
            if self._proposer is not None and slot.state is not None:
                self._proposer.free_state(slot.state)
            del self._slots[index]
            self._touched.pop(index, None)
            self._tables.clear(index)
            self._digest.clear_slot(index)

    def ready(self, index: int) -> Slot:
        """The slot, which must be occupied and have no verdict due.

        Raises:
            EngineError: it is not.
        """
        slot = self._slots.get(index)
        if slot is None or slot.due_rows:
            state = "empty" if slot is None else f"{slot.due_rows} rows await a verdict"
            raise EngineError(
                f"slot cannot be used (slot={index}, {state}) -- its length is not known -- admit "
                "it, or send the verdict"
            )
        return slot

    def settle(self, verdicts: Sequence[Verdict]) -> None:
        """Take back the rejected rows of the verifies that these verdicts are about."""
        for verdict in verdicts:
            slot = self._slots.get(verdict.slot)
            if slot is None or slot.due_rows != verdict.num_rows:
                due = None if slot is None else slot.due_rows
                raise EngineError(
                    f"verdict about no such verify (slot={verdict.slot}, rows={verdict.num_rows}, "
                    f"due {due}) -- lengths would drift apart -- each verify gets one verdict"
                )
            slot.due_rows = 0
            if verdict.num_rewound:
                del slot.tokens[-verdict.num_rewound :]
            if self._lockstep is not None and slot.state is not None:
                self._lockstep.after_verify(verdict.num_accepted, slot.state)
            self.touch(verdict.slot)

    def grow(self, index: int, blocks: Sequence[int], *, end: int) -> None:
        """Append blocks to the slot's table; it must then cover the positions below `end`."""
        slot = self._slots[index]
        if blocks:
            self._tables.write(index, slot.num_blocks, blocks)
            slot.num_blocks += len(blocks)
        self._covered(index, slot.num_blocks, end)

    def lend(self, index: int, blocks: Sequence[int], *, end: int) -> None:
        """Blocks that the next FORWARD will bring, for rank 0's own drafter to write before."""
        slot = self._slots[index]
        self._tables.write(index, slot.num_blocks, blocks)
        self._covered(index, slot.num_blocks + len(blocks), end)

    def append(
        self, index: int, tokens: Sequence[int], *, first_row: int, verdict_due: bool
    ) -> None:
        """The rows of one sequence of a FORWARD were computed."""
        slot = self._slots[index]
        slot.start = len(slot.tokens)
        slot.tokens += tokens
        slot.first_row, slot.num_rows = first_row, len(tokens)
        slot.due_rows = len(tokens) if verdict_due else 0
        self.touch(index)

    def begin_forward(self) -> None:
        """The rows of the forward before are out of reach from now on."""
        for slot in self._slots.values():
            slot.num_rows = 0

    def touch(self, index: int) -> None:
        """The slot changed; `report` says how."""
        self._touched[index] = None

    def report(self) -> None:
        """Tell the digest what the slots hold that this command changed, each once."""
        for index in self._touched:
            slot = self._slots[index]
            rows = 0
            if self._lockstep is not None and slot.state is not None:
                rows = self._lockstep.drafter_rows(slot.state)
            self._digest.set_slot(
                index,
                length=len(slot.tokens),
                last_token=slot.tokens[-1] if slot.tokens else -1,
                drafter_rows=rows,
                num_blocks=slot.num_blocks,
            )
        self._touched.clear()

    def _covered(self, index: int, num_blocks: int, end: int) -> None:
        if end > num_blocks * self._tables.block_size:
            raise EngineError(
                f"rows without blocks (slot={index}, rows end at {end}, blocks={num_blocks} of "
                f"{self._tables.block_size}) -- they would overwrite another sequence -- rank 0 "
                "must send the blocks with the rows"
            )
