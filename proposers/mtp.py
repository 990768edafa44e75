"""MTP drafter: the model's own multi-token prediction module, in the dense row space.

The network is `runtime/models/heads.py` (it satisfies `DraftHead`); this is the loop around it.
One propose first consumes the rows that the last target forward committed, with the target's true
hiddens, over whatever the previous chain had written there; so every key below `position` is
always a true pair, and acceptance does not decay with the length of the answer. Then the chain:
draft 1 from the last true pair, each later one from the module's own last output. Everything that
shapes a forward (rows, order, depth) comes from the inputs, which come from one command.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from phalanx.proposers.base import (
    Draft,
    DraftContext,
    DraftHead,
    DraftInput,
    DraftProposer,
    DraftRows,
    ProposerState,
)
from phalanx.proposers.trim import DenseRows

MAX_BATCH = 64
"""Sequences of one drafter forward: a decode band, like the verify's."""


class MtpState(ProposerState):
    """Row bookkeeping of one sequence. The rows themselves live in the target's paged pool."""

    __slots__ = ("released", "rows")

    def __init__(self) -> None:
        self.rows = DenseRows()
        self.released = False

    def map_rows_through(self, end: int) -> None:
        """Nothing to do: the sequence's block table backs the drafter's layer too."""


class MtpProposer(DraftProposer):
    """Greedy chains from one MTP module."""

    __slots__ = ("_batch_max", "_confidence", "_head", "_lockstep", "_measure")

    def __init__(
        self,
        head: DraftHead,
        *,
        lockstep: bool = True,
        batch_max: int = MAX_BATCH,
        measure_confidence: bool = False,
    ) -> None:
        """`lockstep`: the module is sharded, every rank runs each propose from a command. Without,
        rank 0 holds all of it and drafts alone. `measure_confidence` reads log-probabilities back.
        """
        self._head = head
        self._lockstep = lockstep
        self._batch_max = batch_max
        self._measure = measure_confidence
        self._confidence: float | None = None

    def alloc_state(self) -> MtpState:
        return MtpState()

    def free_state(self, state: ProposerState) -> None:
        own = self._own(state)
        own.released = True
        own.rows = DenseRows()

    def needs_comm(self) -> bool:
        return self._lockstep

    def needs_hidden(self) -> bool:
        return True

    def propose_batch_max(self) -> int:
        return self._batch_max

    def propose_batch_ready(self, items: Sequence[DraftInput]) -> bool:
        return 1 <= len(items) <= self._batch_max and all(
            isinstance(item.state, MtpState) and not item.state.released and item.feed_rows >= 1
            for item in items
        )

    def propose_batch_mirrors_serial(self) -> bool:
        return True

    def drafter_rows(self, state: ProposerState) -> int:
        return self._own(state).rows.rows

    def last_pair_key(self, state: ProposerState) -> int | None:
        return self._own(state).rows.last_pair_key

    def last_confidence(self) -> float | None:
        return self._confidence

    def after_verify(self, num_accepted: int, state: ProposerState) -> None:
        self._own(state).rows.after_verify(num_accepted)

    def propose(self, item: DraftInput, context: DraftContext) -> Draft:
        """Raises ValueError for a foreign or released state, or nothing to start the chain from."""
        if not self.propose_batch_ready((item,)):
            self._own(item.state)
            raise ValueError(
                f"MTP cannot propose (slot={item.slot}, feed_rows={item.feed_rows}, at least 1) "
                "-- a chain starts from the target's hidden of the last committed row -- feed it"
            )
        return self._run((item,), context)[0]

    def propose_batch(
        self, items: Sequence[DraftInput], context: DraftContext
    ) -> list[Draft] | None:
        return self._run(items, context) if self.propose_batch_ready(items) else None

    def _run(self, items: Sequence[DraftInput], context: DraftContext) -> list[Draft]:
        """Feed all, then draft depth by depth; a sequence leaves when its count is reached."""
        own_RD = self._feed(items, context)
        self._confidence = 1.0 if self._measure else None
        drafting = [index for index, item in enumerate(items) if item.num_drafts]
        drafts = [Draft(token_ids=[]) for _ in items]
        if not drafting:
            return drafts
        ends, end = [], -1
        for item in items:
            end += item.feed_rows
            ends.append(end)
        hidden_SD = _take(own_RD, [ends[index] for index in drafting])
        order: list[int] = []
        ids: list[Tensor] = []
        logprobs: list[Tensor] = []
        depth = 0
        ahead: Iterator[DraftRows] | None = None
        while True:
            picks = self._head.pick(hidden_SD)
            ids.append(picks.ids_R)
            if self._measure:
                logprobs.append(picks.logprob_R)
            order += drafting
            depth += 1
            for index in drafting:
                self._own(items[index].state).rows.draft_one()
            stay = [at for at, index in enumerate(drafting) if items[index].num_drafts > depth]
            if not stay:
                break
            tokens_S = picks.ids_R
            if len(stay) < len(drafting):
                tokens_S, hidden_SD = _take(tokens_S, stay), _take(hidden_SD, stay)
                drafting = [drafting[at] for at in stay]
                ahead = None
            if ahead is None:
                # Rows until the next sequence leaves, made in one go.
                steps = min(items[index].num_drafts for index in drafting) - depth
                ahead = iter(
                    context.chain_rows(
                        [items[index].slot for index in drafting],
                        [items[index].position - 1 + depth for index in drafting],
                        steps,
                    )
                )
            hidden_SD = self._extend(tokens_S, hidden_SD, next(ahead))
        self._read(order, ids, logprobs, drafts)
        return drafts

    def _feed(self, items: Sequence[DraftInput], context: DraftContext) -> Tensor:
        """One forward over the committed pairs of every sequence; the module's own output."""
        target_RD: Tensor = context.target_hidden
        tokens: list[int] = []
        fed: list[int] = []
        for item in items:
            rows = self._own(item.state).rows
            rows.feed(item.position - item.feed_rows, item.feed_rows)
            tokens += item.feed_tokens
            fed += range(item.hidden_row + 1 - item.feed_rows, item.hidden_row + 1)
        return self._extend(
            context.token_tensor(tokens),
            _take(target_RD, fed),
            context.rows(
                [item.slot for item in items],
                [item.position - item.feed_rows for item in items],
                [item.feed_rows for item in items],
            ),
        )

    def _extend(self, tokens_R: Tensor, hidden_RD: Tensor, rows: DraftRows) -> Tensor:
        out_RD: Tensor = self._head.extend(
            tokens_R=tokens_R,
            hidden_RD=hidden_RD,
            positions_R=rows.positions_R,
            slots_R=rows.slots_R,
            block_tables_SB=rows.block_tables_SB,
            row_seq_R=rows.row_seq_R,
            row_last_R=rows.row_last_R,
        )
        return out_RD

    def _read(
        self, order: list[int], ids: list[Tensor], logprobs: list[Tensor], drafts: list[Draft]
    ) -> None:
        """Bring the chain to the host in one copy; `order` says whose each id is."""
        for index, token in zip(order, torch.cat(ids).tolist(), strict=True):
            drafts[index].token_ids.append(token)
        if self._measure:
            values = torch.cat(logprobs).tolist()
            for index, logprob in zip(order, values, strict=True):
                drafts[index].logprobs.append(logprob)
            self._confidence = math.exp(min(values))

    def _own(self, state: ProposerState) -> MtpState:
        if not isinstance(state, MtpState):
            raise ValueError(
                f"foreign drafter state (type={type(state).__name__}, expected MtpState) -- its "
                "rows mean something else -- allocate states with the proposer that uses them"
            )
        return state


def _take(rows: Tensor, indices: list[int]) -> Tensor:
    """Rows by index; without a copy when they follow each other."""
    first, count = indices[0], len(indices)
    if indices == list(range(first, first + count)):
        return rows if count == rows.shape[0] else rows[first : first + count]
    return rows.index_select(0, torch.tensor(indices, device=rows.device))
