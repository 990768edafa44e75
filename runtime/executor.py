"""What every rank does with a command: forward, head, propose; commit and rewind its own state.

`Executor.execute` is the one function that all ranks run on the same bytes. Nothing in here looks
at a clock, the environment or its own rank; only what is read back differs (logits arrive on rank
0 alone). All that must be equal between ranks is reported to the digest as it changes.

    FORWARD   verdicts, new blocks, rows of every sequence, picks or logits of the rows wanted
    PROPOSE   verdicts, new blocks, committed rows into the drafter, then the chains
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.commands import (
    Admit,
    Checkpoint,
    Command,
    Forward,
    Message,
    MtpPropose,
    MtpProposeBatch,
    Noop,
    Release,
    RowKind,
    Want,
)
from phalanx.ep.lockstep import StateDigest
from phalanx.kernels.kernel_set import KernelSet
from phalanx.proposers.base import Draft, DraftInput, DraftProposer, DraftRows
from phalanx.runtime.batch import BlockTables, take_rows
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.errors import EngineError
from phalanx.runtime.layers.step_context import StepContext
from phalanx.runtime.models.decoder_model import CausalModel
from phalanx.runtime.slot_table import SlotTable

Logits = NDArray[np.float32]
PHASES = {RowKind.PREFILL: "prefill", RowKind.DECODE: "decode", RowKind.VERIFY: "verify"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """What a FORWARD gave, per sequence of the command."""

    picks: list[list[int]]
    """Exchanged arg-max ids of the wanted rows; [] unless the sequence wants ARGMAX."""
    logits: list[Logits | None]
    """[wanted rows, vocabulary] where the sequence wants LOGITS, on rank 0; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeResult:
    """What a PROPOSE gave, per sequence of the command; the same on every rank."""

    drafts: list[Draft]


class LastForward:
    """The last forward as the drafter reads it, and the tables; satisfies `DraftContext`."""

    def __init__(self, model: CausalModel, tables: BlockTables) -> None:
        self._model, self._tables = model, tables
        self._hidden: Tensor | None = None
        self._for_drafter: Tensor | None = None
        self.tokens: list[int] = []

    def replace(self, hidden_RD: Tensor, tokens: list[int]) -> None:
        """A forward took place."""
        self._hidden, self._for_drafter, self.tokens = hidden_RD, None, tokens

    @property
    def target_hidden(self) -> Tensor:
        """[R, D] as the drafter was trained to read it."""
        if self._for_drafter is None:
            if self._hidden is None:
                raise EngineError("no forward to draft from -- a propose follows a forward")
            self._for_drafter = self._model.drafter_hidden(self._hidden)
        return self._for_drafter

    def rows(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> DraftRows:
        return self._tables.rows(slots, starts, counts)

    def chain_rows(
        self, slots: Sequence[int], starts: Sequence[int], steps: int
    ) -> list[DraftRows]:
        return self._tables.chain_rows(slots, starts, steps)

    def token_tensor(self, tokens: Sequence[int]) -> Tensor:
        return self._tables.token_tensor(tokens)


class Executor:
    """One rank's execution of commands."""

    def __init__(
        self,
        *,
        model: CausalModel,
        kv: KVPool,
        kernels: KernelSet,
        comm: Communicator,
        digest: StateDigest,
        num_slots: int,
        max_blocks: int,
        proposer: DraftProposer | None = None,
        report_phase: Callable[[str], object] | None = None,
    ) -> None:
        """`max_blocks` bounds one sequence's block table. `report_phase` hears what begins."""
        self._model, self._kv, self._kernels, self._comm = model, kv, kernels, comm
        self._digest, self._proposer = digest, proposer
        self._report = report_phase or _unheard
        self._tables = BlockTables(
            num_slots=num_slots,
            max_blocks=max_blocks,
            block_size=kv.block_size,
            device=comm.device,
        )
        self._slots = SlotTable(tables=self._tables, digest=digest, proposer=proposer)
        self._last = LastForward(model, self._tables)
        self._acts: dict[type, Callable[[Any], ForwardResult | ProposeResult | None]] = {
            Admit: self._admit,
            Release: self._release,
            Forward: self._forward,
            MtpPropose: self._propose,
            MtpProposeBatch: self._propose,
            Checkpoint: _nothing,
            Noop: _nothing,
        }

    @property
    def slots(self) -> SlotTable:
        """What each occupied slot holds, to read."""
        return self._slots

    def execute(self, message: Message) -> ForwardResult | ProposeResult | None:
        """Carry out one command.

        Raises:
            EngineError: the command does not fit this rank's state. It was not begun; the rank
                must not go on.
        """
        act = self._acts.get(type(message))
        if act is None:
            raise EngineError(
                f"no rank executes this command (type={type(message).__name__}) -- nothing would "
                "happen where something was asked -- this build has no such feature"
            )
        with torch.inference_mode():
            result = act(message)
        self._slots.report()
        return result

    def handlers(self) -> dict[Command, Callable[[Message], None]]:
        """What the worker loop calls for each code."""

        def handle(message: Message) -> None:
            self.execute(message)

        return {code: handle for code in Command if code is not Command.SHUTDOWN}

    def _admit(self, message: Admit) -> None:
        self._slots.settle(message.verdicts)
        self._slots.admit(message)

    def _release(self, message: Release) -> None:
        self._slots.settle(message.verdicts)
        self._slots.release(message.slots)

    # -- forward ------------------------------------------------------------------------------

    def _forward(self, message: Forward) -> ForwardResult:
        self._report(PHASES[RowKind(max(message.kinds, default=RowKind.DECODE))])
        self._slots.settle(message.verdicts)
        self._check_forward(message)
        ends = [start + count for start, count in zip(message.starts, message.rows, strict=True)]
        for index, blocks, end in zip(message.slots, message.new_blocks, ends, strict=True):
            self._slots.grow(index, blocks, end=end)
        rows = self._tables.rows(message.slots, message.starts, message.rows)
        hidden_RD = self._model.forward(
            StepContext(
                tokens_R=self._tables.token_tensor(message.tokens),
                positions_R=rows.positions_R,
                slots_R=rows.slots_R,
                block_tables_SB=rows.block_tables_SB,
                row_seq_R=rows.row_seq_R,
                row_last_R=rows.row_last_R,
                kv=self._kv,
                kernels=self._kernels,
                comm=self._comm,
            )
        )
        self._last.replace(hidden_RD, message.tokens)
        self._slots.begin_forward()
        row = 0
        for index, count, kind in zip(message.slots, message.rows, message.kinds, strict=True):
            tokens = message.tokens[row : row + count]
            self._slots.append(index, tokens, first_row=row, verdict_due=kind == RowKind.VERIFY)
            row += count
        return self._read_heads(message, hidden_RD)

    def _check_forward(self, message: Forward) -> None:
        if message.key or any(owner != -1 for owner in message.owners):
            raise EngineError(
                f"forward in a form this build has not (key={message.key}, owners="
                f"{message.owners}) -- it would run differently than asked -- start every rank "
                "with one build"
            )
        for index, start in zip(message.slots, message.starts, strict=True):
            slot = self._slots.ready(index)
            if len(slot.tokens) != start:
                raise EngineError(
                    f"rows do not continue the sequence (slot={index}, start={start}, committed "
                    f"{len(slot.tokens)}) -- the cache would have a hole or an overlap -- this is "
                    "a defect of the scheduler's bookkeeping"
                )

    def _read_heads(self, message: Forward, hidden_RD: Tensor) -> ForwardResult:
        """Picks and logits of the rows wanted: one exchange for all picks, one for all logits."""
        wanted: dict[int, list[int]] = {Want.ARGMAX: [], Want.LOGITS: []}
        counts: list[int] = []
        row = 0
        for count, kind, want in zip(message.rows, message.kinds, message.wants, strict=True):
            first = row + count - 1 if kind == RowKind.PREFILL else row
            row += count
            counts.append(row - first if want else 0)
            if want:
                wanted[want] += range(first, row)
        ids: list[int] = []
        if wanted[Want.ARGMAX]:
            ids = self._model.pick(take_rows(hidden_RD, wanted[Want.ARGMAX])).ids_R.tolist()
            self._digest.fold_exchange(ids)
        logits_RV: Logits | None = None
        if wanted[Want.LOGITS]:
            gathered = self._model.logits(take_rows(hidden_RD, wanted[Want.LOGITS]))
            logits_RV = None if gathered is None else gathered.cpu().numpy()
        result = ForwardResult(picks=[], logits=[])
        id_at = logits_at = 0
        for count, want in zip(counts, message.wants, strict=True):
            picks: list[int] = []
            logits: Logits | None = None
            if want == Want.ARGMAX:
                picks = ids[id_at : id_at + count]
                id_at += count
            elif want == Want.LOGITS and logits_RV is not None:
                logits = logits_RV[logits_at : logits_at + count]
                logits_at += count
            result.picks.append(picks)
            result.logits.append(logits)
        return result

    # -- propose ------------------------------------------------------------------------------

    def _propose(self, message: MtpPropose | MtpProposeBatch) -> ProposeResult:
        self._report("propose")
        if self._proposer is None or not self._proposer.needs_comm():
            raise EngineError(
                "propose for a rank without its share of the drafter -- the others would wait in "
                "its first collective -- start every rank with one speculation setting"
            )
        batch = as_batch(message)
        self._slots.settle(batch.verdicts)
        for at, index in enumerate(batch.slots):
            self._slots.ready(index)
            end = batch.positions[at] + max(0, batch.num_drafts[at] - 1)
            self._slots.grow(index, batch.new_blocks[at], end=end)
        drafts = self._drafts(self._proposer, self._draft_inputs(batch))
        for index in batch.slots:
            self._slots.touch(index)
        drafted = [token for draft in drafts for token in draft.token_ids]
        if drafted:
            self._digest.fold_exchange(drafted)
        return ProposeResult(drafts=drafts)

    def draft_alone(self, message: MtpPropose | MtpProposeBatch) -> ProposeResult:
        """Propose on this rank only, with a drafter that no other rank runs: no command was sent.

        The verdicts reach the ranks, this one included, with the next command; here they only trim
        the drafter. Nothing that the digest sees changes.
        """
        if self._proposer is None or self._proposer.needs_comm():
            raise EngineError("this drafter runs on every rank -- send the command instead")
        batch = as_batch(message)
        with torch.inference_mode():
            for verdict in batch.verdicts:
                state = self._slots[verdict.slot].state
                if state is not None:
                    self._proposer.after_verify(verdict.num_accepted, state)
            for at, index in enumerate(batch.slots):
                end = batch.positions[at] + max(0, batch.num_drafts[at] - 1)
                self._slots.lend(index, batch.new_blocks[at], end=end)
            drafts = self._drafts(self._proposer, self._draft_inputs(batch))
        return ProposeResult(drafts=drafts)

    def _draft_inputs(self, batch: MtpProposeBatch) -> list[DraftInput]:
        inputs: list[DraftInput] = []
        for at, index in enumerate(batch.slots):
            slot = self._slots[index]
            position, row = batch.positions[at], batch.hidden_rows[at]
            feed_rows, state = batch.feed_rows[at], slot.state
            kept = row - slot.first_row + 1
            fits = 0 < kept <= slot.num_rows and feed_rows <= kept
            if state is None or not (fits and position == slot.start + kept):
                raise EngineError(
                    f"propose does not follow the last forward (slot={index}, position={position}, "
                    f"hidden_row={row}, feed_rows={feed_rows}; its {slot.num_rows} rows began at "
                    f"row {slot.first_row}, position {slot.start}) -- the drafter would read "
                    "another sequence's hiddens -- propose right after the forward"
                )
            fed: list[int] = []
            if feed_rows:
                fed = self._last.tokens[row + 2 - feed_rows : row + 1]
                fed.append(batch.last_tokens[at])
            inputs.append(
                DraftInput(
                    state=state,
                    slot=index,
                    last_token=batch.last_tokens[at],
                    position=position,
                    num_drafts=batch.num_drafts[at],
                    feed_tokens=fed,
                    hidden_row=row,
                    history=slot.tokens,
                )
            )
        return inputs

    def _drafts(self, proposer: DraftProposer, inputs: list[DraftInput]) -> list[Draft]:
        """Batches as wide as the drafter takes; one by one where it declines."""
        drafts: list[Draft] = []
        widest = max(1, proposer.propose_batch_max())
        for first in range(0, len(inputs), widest):
            part = inputs[first : first + widest]
            batched = proposer.propose_batch(part, self._last) if len(part) > 1 else None
            if batched is None:
                batched = [proposer.propose(item, self._last) for item in part]
            drafts += batched
        return drafts


def as_batch(message: MtpPropose | MtpProposeBatch) -> MtpProposeBatch:
    """The batch form of either."""
    if isinstance(message, MtpProposeBatch):
        return message
    return MtpProposeBatch(
        slots=[message.slot],
        last_tokens=[message.last_token],
        positions=[message.position],
        hidden_rows=[message.hidden_row],
        feed_rows=[message.feed_rows],
        num_drafts=[message.num_drafts],
        new_blocks=[message.new_blocks],
        verdicts=message.verdicts,
    )


def _nothing(message: Message) -> None:
    """A command without work on this build: a heartbeat, or a mark for recurrent state."""


def _unheard(phase: str) -> None:
    """Nobody listens to phases."""
