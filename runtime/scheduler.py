"""Which tokens run this round: admission, chunked prefill, preemption. No tensors, rank 0 only.

A round's rows: one for every decoding sequence, then its drafts, then prompt chunks, together at
most `max_num_batched_tokens`. While prompts wait, drafts leave them half of what is left. Older
requests are served first and are never preempted for younger ones; when blocks run out the
youngest sequence goes back to the front of the line with all its tokens and computes them again.
Drafts never preempt anybody: a draft without a block is dropped.

The scheduler alone writes `Sequence`. It decides block ids, slots and order; the commands it
builds carry all of it, so that no rank decides anything. A verdict rides in the next command.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable

from phalanx.ep.commands import Message, Release, RowKind, Verdict
from phalanx.runtime.cache.blocks import BlockAllocator
from phalanx.runtime.errors import EngineError, OverloadError, SamplingError
from phalanx.runtime.request import Request, check_request
from phalanx.runtime.round_plan import (
    DraftMode,
    PlanItem,
    ProposeItem,
    RoundPlan,
    SchedulerLimits,
    TokenEvent,
    admit_command,
    forward_command,
    plan_items,
)
from phalanx.runtime.sampling.rejection import Acceptance
from phalanx.runtime.sequence import FinishReason, Phase, Sequence, open_sequence


class Scheduler:
    """Waiting and running sequences, their slots and blocks."""

    def __init__(self, limits: SchedulerLimits, *, eos_token_ids: Iterable[int] = ()) -> None:
        self.limits = limits
        self.eos_token_ids = frozenset(eos_token_ids)
        self.allocator = BlockAllocator(limits.num_blocks)
        self.running: list[Sequence] = []
        """Oldest first."""
        self.waiting: deque[Sequence] = deque()
        """Next to be admitted first; preempted ones are older than all that never ran."""
        self.num_preemptions = 0
        self._by_id: dict[int, Sequence] = {}
        self._by_slot: dict[int, Sequence] = {}
        self._free_slots = list(range(limits.max_num_seqs))
        self._arrivals = 0
        self._verdicts: list[Verdict] = []
        self._to_release: list[int] = []
        self._events: list[TokenEvent] = []

    @property
    def has_work(self) -> bool:
        """Somebody runs or waits, or somebody has yet to be told something."""
        return bool(self.running or self.waiting or self._events or self._to_release)

    def add(self, request: Request, *, seed: int) -> None:
        """Put a request into the line.

        Raises:
            RequestError: it can never be served, or too many wait (OverloadError).
        """
        limits = self.limits
        check_request(request, vocab_size=limits.vocab_size, max_model_len=limits.max_model_len)
        if request.id in self._by_id:
            raise EngineError(
                f"request id used twice (request={request.id}) -- its tokens could not be told "
                "apart -- number requests once"
            )
        if len(self.waiting) >= limits.max_waiting:
            raise OverloadError(
                f"too many requests wait (waiting={len(self.waiting)}, limit "
                f"{limits.max_waiting}) -- this one was not taken -- try again later"
            )
        self._arrivals += 1
        sequence = open_sequence(request, seed=seed, arrival=self._arrivals)
        self._by_id[request.id] = sequence
        self.waiting.append(sequence)

    def abort(self, request_id: int) -> bool:
        """End a request between two rounds; False if it is not there (any more)."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return False
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        self._finish(sequence, "abort")
        self._events.append(TokenEvent(request_id=request_id, token_ids=(), finish_reason="abort"))
        return True

    def take_events(self) -> list[TokenEvent]:
        """What happened outside of rounds."""
        events, self._events = self._events, []
        return events

    @property
    def pending_verdicts(self) -> list[Verdict]:
        """Verdicts no rank has been sent."""
        return list(self._verdicts)

    def take_verdicts(self) -> list[Verdict]:
        """Verdicts no rank has been sent; they count as sent from now on."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def take_release(self) -> Release | None:
        """The command for the slots that have become empty, with the pending verdicts."""
        if not self._to_release:
            return None
        slots, self._to_release = self._to_release, []
        return Release(slots=sorted(slots), verdicts=self.take_verdicts())

    # -- planning -----------------------------------------------------------------------------

    def plan(self) -> RoundPlan:
        """The coming round. What it plans counts as under way: execute it, then `commit`."""
        preempted_before = self.num_preemptions
        decoding = self._back_rows()
        left = self.limits.max_num_batched_tokens - len(decoding)
        prompts_wait = bool(self.waiting and self._free_slots) or len(self.running) > len(decoding)
        self._share_drafts(decoding, left - left // 2 if prompts_wait else left)
        left -= sum(len(sequence.drafts) for sequence in decoding)

        chunks: list[tuple[Sequence, int]] = []
        admitted: list[Sequence] = []
        for sequence in self.running:
            if sequence.phase is Phase.PREFILL and left:
                chunks.append((sequence, min(left, sequence.num_to_compute)))
                left -= chunks[-1][1]
        # Whoever was preempted this round must not take the blocks back in the same one.
        while left and self.waiting and self.num_preemptions == preempted_before:
            newcomer = self._admit()
            if newcomer is None:
                break
            admitted.append(newcomer)
            chunks.append((newcomer, min(left, newcomer.num_to_compute)))
            left -= chunks[-1][1]

        release = self.take_release()
        before: list[Message] = [release] if release else []
        decoding.sort(key=lambda sequence: sequence.slot)
        items = plan_items(decoding, chunks)
        for sequence in decoding:
            sequence.drafts = []
        return RoundPlan(
            before=[*before, *map(admit_command, admitted)],
            forward=forward_command(items, self.take_verdicts()) if items else None,
            items=items,
        )

    def _back_rows(self) -> list[Sequence]:
        """The decoding sequences, oldest first, each with a block under its next row."""
        for sequence in list(self.running):
            while sequence.phase is Phase.DECODE and not self._reserve(
                sequence, len(sequence.tokens)
            ):
                self._preempt(self.running[-1])
        return [sequence for sequence in self.running if sequence.phase is Phase.DECODE]

    def _reserve(self, sequence: Sequence, positions: int) -> bool:
        """Give the sequence blocks for its first `positions` positions, all or none."""
        missing = self.limits.blocks_for(positions) - len(sequence.blocks)
        if missing <= 0:
            return True
        last = sequence.blocks[-1] if sequence.blocks else -1
        blocks = self.allocator.allocate(missing, after=last)
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def _share_drafts(self, decoding: list[Sequence], budget: int) -> None:
        """Cut drafts to their blocks and, deepest first, to the row budget."""
        for sequence in decoding:
            if sequence.drafts:
                room = len(sequence.blocks) * self.limits.block_size - len(sequence.tokens)
                del sequence.drafts[room:]
        depth = max((len(sequence.drafts) for sequence in decoding), default=0)
        while sum(min(depth, len(sequence.drafts)) for sequence in decoding) > budget:
            depth -= 1
        for sequence in decoding:
            del sequence.drafts[depth:]

    def _admit(self) -> Sequence | None:
        """Move the head of the line into a slot, or None if there is no room for it yet."""
        sequence = self.waiting[0]
        needed = self.limits.blocks_for(len(sequence.tokens) + 1)
        # Those already running may each need a block soon; keep one for each.
        spare = len(self.running)
        if not self._free_slots or not self.allocator.can_allocate(needed + spare):
            return None
        self.waiting.popleft()
        self._reserve(sequence, len(sequence.tokens) + 1)
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.phase = Phase.PREFILL
        self._by_slot[sequence.slot] = sequence
        insort(self.running, sequence, key=lambda running: running.arrival)
        return sequence

    def _preempt(self, sequence: Sequence) -> None:
        """Send the sequence back to the front of the line; its tokens are kept."""
        self._leave(sequence)
        sequence.phase = Phase.WAITING
        sequence.num_committed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    # -- committing ---------------------------------------------------------------------------

    def commit(
        self, plan: RoundPlan, outcomes: Iterable[Acceptance | SamplingError | None]
    ) -> list[TokenEvent]:
        """Make the round's tokens permanent. An outcome per item; None where nothing was wanted.

        A verify's verdict is noted for the next command whatever became of the sequence.
        """
        events: list[TokenEvent] = []
        for item, outcome in zip(plan.items, outcomes, strict=True):
            sequence = item.sequence
            accepted = outcome.num_accepted if isinstance(outcome, Acceptance) else 0
            if item.kind is RowKind.VERIFY:
                self._verdicts.append(
                    Verdict(slot=sequence.slot, num_rows=item.num_rows, num_accepted=accepted)
                )
                sequence.num_committed += accepted + 1
            else:
                sequence.num_committed += item.num_rows
            if isinstance(outcome, SamplingError):
                self._finish(sequence, "error")
                events.append(
                    TokenEvent(
                        request_id=sequence.id,
                        token_ids=(),
                        finish_reason="error",
                        error=str(outcome),
                    )
                )
            elif outcome is not None:
                events.append(self._emit(sequence, outcome.token_ids))
        return events

    def _emit(self, sequence: Sequence, token_ids: tuple[int, ...]) -> TokenEvent:
        """Append tokens up to the first that ends the answer."""
        params = sequence.request.params
        room = min(
            params.max_tokens - sequence.num_output,
            self.limits.max_model_len - len(sequence.tokens),
        )
        reason: FinishReason | None = "length" if len(token_ids) >= room else None
        token_ids = token_ids[:room]
        for index, token in enumerate(token_ids):
            ends_text = token in self.eos_token_ids and not params.ignore_eos
            if ends_text or token in params.stop_token_ids:
                token_ids, reason = token_ids[: index + 1], "stop"
                break
        sequence.tokens += token_ids
        sequence.phase = Phase.DECODE
        if reason is not None:
            self._finish(sequence, reason)
        return TokenEvent(request_id=sequence.id, token_ids=token_ids, finish_reason=reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.slot >= 0:
            self._leave(sequence)
        sequence.phase = Phase.FINISHED
        sequence.finish_reason = reason
        del self._by_id[sequence.id]

    def _leave(self, sequence: Sequence) -> None:
        """Take the sequence out of its slot; the ranks hear of it in the next release."""
        self.running.remove(sequence)
        self.allocator.free(sequence.blocks)
        self._to_release.append(sequence.slot)
        heapq.heappush(self._free_slots, sequence.slot)
        del self._by_slot[sequence.slot]
        sequence.slot = -1
        sequence.blocks = []
        sequence.num_sent_blocks = 0
        sequence.drafts = []

    # -- drafting -----------------------------------------------------------------------------

    def draftable(self, plan: RoundPlan) -> list[Sequence]:
        """The sequences of the round that go on, in the order `plan_propose` counts them."""
        return [item.sequence for item in self._going_on(plan)]

    def _going_on(self, plan: RoundPlan) -> list[PlanItem]:
        return [
            item
            for item in plan.items
            if item.sequence.slot >= 0 and item.sequence.phase is not Phase.FINISHED
        ]

    def plan_propose(
        self, plan: RoundPlan, depths: Iterable[int], *, mode: DraftMode
    ) -> list[ProposeItem]:
        """What the drafter is asked after the round: at most `depths` drafts per sequence.

        The blocks of the rows that will verify the drafts are reserved here. A sequence whose
        next round is its last gets none and need not be fed.
        """
        items: list[ProposeItem] = []
        for item, depth in zip(self._going_on(plan), depths, strict=True):
            sequence = item.sequence
            room = self._draft_room(sequence)
            if room < 1:
                continue
            num_drafts = min(depth, room) if sequence.phase is Phase.DECODE else 0
            while num_drafts and not self._reserve(sequence, len(sequence.tokens) + num_drafts):
                num_drafts -= 1
            if not num_drafts and not mode.feeds_hidden:
                continue
            feed_rows = sequence.num_committed - item.start
            items.append(
                ProposeItem(
                    slot=sequence.slot,
                    last_token=sequence.tokens[sequence.num_committed],
                    position=sequence.num_committed,
                    num_drafts=num_drafts,
                    hidden_row=item.first_row + feed_rows - 1,
                    feed_rows=feed_rows,
                    new_blocks=(
                        sequence.take_new_blocks()
                        if mode.by_command
                        else sequence.blocks[sequence.num_sent_blocks :]
                    ),
                )
            )
        return items

    def install_drafts(self, slot: int, token_ids: list[int]) -> None:
        """Keep drafts for the slot's next round; an id outside the vocabulary ends the chain."""
        vocab_size = self.limits.vocab_size
        for index, token in enumerate(token_ids):
            if not 0 <= token < vocab_size:
                token_ids = token_ids[:index]
                break
        self._by_slot[slot].drafts = list(token_ids)

    def _draft_room(self, sequence: Sequence) -> int:
        """Drafts that can still be emitted; the verify adds one token of its own."""
        left = min(
            sequence.request.params.max_tokens - sequence.num_output,
            self.limits.max_model_len - len(sequence.tokens),
        )
        return left - 1
