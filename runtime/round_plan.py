"""What one round computes, and what it gave: values between scheduler and engine. No tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from phalanx.ep.commands import (
    Admit,
    Forward,
    Message,
    MtpPropose,
    MtpProposeBatch,
    RowKind,
    Verdict,
    Want,
)
from phalanx.runtime.errors import EngineError
from phalanx.runtime.sequence import FinishReason, Sequence
from phalanx.runtime.spec_stats import RequestSpecStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the serve can hold; the same for the whole run."""

    max_num_seqs: int
    """Sequences that run at the same time, which is the number of slots."""
    max_num_batched_tokens: int
    """Rows of one round."""
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    block_size: int
    num_blocks: int
    vocab_size: int
    max_waiting: int = 4096
    """Requests that may wait; the next one is refused."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise EngineError(
                f"row budget below the number of slots (max_num_batched_tokens="
                f"{self.max_num_batched_tokens}, limit {self.max_num_seqs}) -- a running sequence "
                "could be left without its row -- raise the budget"
            )
        if self.max_model_len > self.num_blocks * self.block_size:
            raise EngineError(
                f"context larger than the cache (max_model_len={self.max_model_len}, cache "
                f"{self.num_blocks} blocks of {self.block_size}) -- one sequence alone could run "
                "out of blocks with nobody to preempt -- lower max_model_len or grow the cache"
            )

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many positions."""
        return -(-tokens // self.block_size)


class PlanItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence's rows in the round's forward."""

    sequence: Sequence
    kind: RowKind
    want: Want
    start: int
    """Position of the first row."""
    num_rows: int
    first_row: int
    """Index of the first row in the forward."""
    drafts: list[int]
    """Drafts under verification; empty unless the kind is VERIFY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """One round: commands that come first, then the forward."""

    before: list[Message]
    """Releases and admissions, to be executed in this order."""
    forward: Forward | None
    """None when nothing can run."""
    items: list[PlanItem] = field(default_factory=list)
    """In the forward's order."""


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request gets to see of a round."""

    request_id: int
    token_ids: tuple[int, ...]
    """New tokens of the answer; a stop token is included."""
    finish_reason: FinishReason | None = None
    error: str = ""
    """Why, when the reason is `error`."""
    spec: RequestSpecStats | None = None
    """The request's speculation counters, in its last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMode:
    """How the drafter is driven; a property of the drafter, fixed for the run."""

    by_command: bool
    """Every rank runs each propose. Otherwise rank 0 drafts alone and no rank hears of it."""
    feeds_hidden: bool
    """The drafter consumes every committed row, drafts wanted or not."""


class ProposeItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence of a propose; the fields of the command."""

    slot: int
    last_token: int
    position: int
    num_drafts: int
    hidden_row: int
    feed_rows: int
    new_blocks: list[int]


def plan_items(decoding: list[Sequence], chunks: list[tuple[Sequence, int]]) -> list[PlanItem]:
    """The forward's items in order: decoding sequences with their drafts, then prompt chunks."""
    items: list[PlanItem] = []
    row = 0
    for sequence in decoding:
        items.append(
            PlanItem(
                sequence=sequence,
                kind=RowKind.VERIFY if sequence.drafts else RowKind.DECODE,
                want=_wanted(sequence),
                start=sequence.num_committed,
                num_rows=1 + len(sequence.drafts),
                first_row=row,
                drafts=sequence.drafts,
            )
        )
        row += items[-1].num_rows
    for sequence, count in chunks:
        items.append(
            PlanItem(
                sequence=sequence,
                kind=RowKind.PREFILL,
                want=_wanted(sequence) if count == sequence.num_to_compute else Want.NONE,
                start=sequence.num_committed,
                num_rows=count,
                first_row=row,
                drafts=[],
            )
        )
        row += count
    return items


def _wanted(sequence: Sequence) -> Want:
    return Want.ARGMAX if sequence.request.params.is_greedy else Want.LOGITS


def admit_command(sequence: Sequence) -> Admit:
    """The command that puts the sequence into its slot on every rank."""
    return Admit(
        slot=sequence.slot,
        request_id=sequence.id,
        prompt_tokens=len(sequence.tokens),
        max_tokens=sequence.request.params.max_tokens - sequence.num_output,
    )


def forward_command(items: list[PlanItem], verdicts: list[Verdict]) -> Forward:
    """The round's forward; the items' new blocks count as sent from now on."""
    tokens: list[int] = []
    for item in items:
        if item.kind is RowKind.PREFILL:
            tokens += item.sequence.tokens[item.start : item.start + item.num_rows]
        else:
            tokens.append(item.sequence.tokens[-1])
            tokens += item.drafts
    return Forward(
        slots=[item.sequence.slot for item in items],
        rows=[item.num_rows for item in items],
        kinds=[int(item.kind) for item in items],
        starts=[item.start for item in items],
        new_blocks=[item.sequence.take_new_blocks() for item in items],
        tokens=tokens,
        wants=[int(item.want) for item in items],
        owners=[-1] * len(items),
        verdicts=verdicts,
    )


def propose_command(
    items: list[ProposeItem], verdicts: list[Verdict]
) -> MtpPropose | MtpProposeBatch:
    """The one-sequence form for one, the batch form for several."""
    if len(items) == 1:
        (item,) = items
        return MtpPropose(
            slot=item.slot,
            last_token=item.last_token,
            position=item.position,
            num_drafts=item.num_drafts,
            hidden_row=item.hidden_row,
            feed_rows=item.feed_rows,
            new_blocks=item.new_blocks,
            verdicts=verdicts,
        )
    return MtpProposeBatch(
        slots=[item.slot for item in items],
        last_tokens=[item.last_token for item in items],
        positions=[item.position for item in items],
        hidden_rows=[item.hidden_row for item in items],
        feed_rows=[item.feed_rows for item in items],
        num_drafts=[item.num_drafts for item in items],
        new_blocks=[item.new_blocks for item in items],
        verdicts=verdicts,
    )
