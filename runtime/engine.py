"""THE LOOP. Plan, send, execute, commit, propose. Rank 0 only.

One `step` is one round: the scheduler plans it, each command is sent to the other ranks and
executed here from the same message, the verdict is found on this rank alone, and the drafter is
asked for the next round. What this rank decided reaches the others inside commands only; verdicts
ride in the next command of any kind, a propose, a release or a forward.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable

import msgspec

from phalanx.ep.channel import CommandChannel
from phalanx.ep.commands import Message, Noop, RowKind, Shutdown, Want, code_of
from phalanx.ep.lockstep import StateDigest
from phalanx.proposers.base import Draft, DraftProposer
from phalanx.proposers.policy.policy import StepOutcome, StreamOutcome
from phalanx.runtime.depth import DepthChooser, FixedDepth
from phalanx.runtime.errors import EngineError, SamplingError
from phalanx.runtime.executor import Executor, ForwardResult, Logits, ProposeResult
from phalanx.runtime.request import Request
from phalanx.runtime.round_plan import DraftMode, PlanItem, RoundPlan, TokenEvent, propose_command
from phalanx.runtime.sampling.rejection import Acceptance, accept_chain, accept_picks
from phalanx.runtime.sampling.sampler import draw_token
from phalanx.runtime.scheduler import Scheduler
from phalanx.runtime.stats import RunStats

Outcome = Acceptance | SamplingError | None


class Engine:
    """Serves requests round by round."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        channel: CommandChannel,
        digest: StateDigest,
        proposer: DraftProposer | None = None,
        depth: DepthChooser | None = None,
        draft_conf_tau: float = 0.0,
        stats: RunStats | None = None,
        placement: int = 0,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """`proposer` is the executor's own; `depth` says how many drafts (none without it).
        `placement` is the version of the expert placement in force; `new_seed` seeds requests
        that bring none.
        """
        self._scheduler, self._executor = scheduler, executor
        self._channel, self._digest = channel, digest
        self._proposer = proposer
        self._mode = DraftMode(
            by_command=proposer is not None and proposer.needs_comm(),
            feeds_hidden=proposer is not None and proposer.needs_hidden(),
        )
        self._depth: DepthChooser = depth or FixedDepth(0)
        self._tau = draft_conf_tau
        self._drafting_s = 0.0
        """Time of the latest propose: the price of the drafts that the next round verifies."""
        self._placement, self._clock, self._new_seed = placement, clock, new_seed
        self.stats = stats or RunStats()

    @property
    def has_work(self) -> bool:
        """`step` would do something."""
        return self._scheduler.has_work

    @property
    def scheduler(self) -> Scheduler:
        """Waiting and running requests, to read."""
        return self._scheduler

    def add_request(self, request: Request) -> None:
        """Take a request into the line.

        Raises:
            RequestError: it cannot be served, or too many wait. No other request is affected.
        """
        seed = request.params.seed
        self._scheduler.add(request, seed=self._new_seed() if seed is None else seed)
        self.stats.open_request(request.id)

    def abort(self, request_id: int) -> bool:
        """End a request; its last event comes with the next step. False if it is not there."""
        return self._scheduler.abort(request_id)

    def step(self) -> list[TokenEvent]:
        """One round; what each request gets to see of it, in no particular order."""
        began = self._clock()
        events = self._scheduler.take_events()
        plan = self._scheduler.plan()
        for message in plan.before:
            self._run(message)
        if plan.forward is not None:
            result = self._forwarded(self._run(plan.forward))
            outcomes = [
                self._outcome(item, picks, logits)
                for item, picks, logits in zip(plan.items, result.picks, result.logits, strict=True)
            ]
            events += self._scheduler.commit(plan, outcomes)
            self._count(plan, outcomes, result)
            verified = self._clock()
            if self._depth.learns:
                self._teach(plan, outcomes, wall_s=self._drafting_s + verified - began)
            self._propose(plan)
            self._drafting_s = self._clock() - verified
        elif self._scheduler.running:
            raise EngineError(
                f"sequences run but none has a row (running={len(self._scheduler.running)}) -- "
                "they would wait for ever -- this is a defect of the scheduler"
            )
        return [self._closed(event) for event in events]

    def heartbeat(self) -> None:
        """Tell the other ranks that this one is there and idle."""
        self._run(Noop())

    def shutdown(self, reason: str) -> None:
        """End what runs, settle every verdict, and let the other ranks leave."""
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            self._scheduler.abort(sequence.id)
        release = self._scheduler.take_release()
        if release is not None:
            self._run(release)
        self._send(Shutdown(reason=reason))

    # -- one command --------------------------------------------------------------------------

    def _run(self, message: Message) -> ForwardResult | ProposeResult | None:
        self._send(message)
        return self._executor.execute(message)

    def _send(self, message: Message) -> None:
        self._channel.send(message, digest=self._digest.value, placement=self._placement)
        self.stats.count_command(code_of(message))

    def _forwarded(self, result: ForwardResult | ProposeResult | None) -> ForwardResult:
        if not isinstance(result, ForwardResult):
            raise EngineError(f"a forward gave {type(result).__name__} -- nothing to read")
        return result

    # -- verdict ------------------------------------------------------------------------------

    def _outcome(self, item: PlanItem, picks: list[int], logits: Logits | None) -> Outcome:
        """The tokens a sequence gets. An error is its own; the round goes on without it."""
        if item.want == Want.NONE:
            return None
        if item.want == Want.ARGMAX:
            return accept_picks(item.drafts, picks)
        if logits is None:
            raise EngineError(
                f"no logits to draw from (slot={item.sequence.slot}) -- only rank 0 is given them "
                "-- run the engine on rank 0"
            )
        rows_V = logits
        sequence = item.sequence
        position = len(sequence.tokens)

        def target_token(row: int) -> int:
            return draw_token(
                rows_V[row], sequence.request.params, seed=sequence.seed, position=position + row
            )

        try:
            return accept_chain(item.drafts, target_token, num_rows=len(rows_V))
        except SamplingError as error:
            return error

    # -- drafting -----------------------------------------------------------------------------

    def _propose(self, plan: RoundPlan) -> None:
        """Ask the drafter for the next round."""
        if self._proposer is None:
            return
        going_on = self._scheduler.draftable(plan)
        if not going_on:
            return
        depths = self._depth.depths(going_on, now_s=self._clock())
        items = self._scheduler.plan_propose(plan, depths, mode=self._mode)
        if not items:
            return
        if self._mode.by_command:
            result = self._run(propose_command(items, self._scheduler.take_verdicts()))
        else:
            verdicts = self._scheduler.pending_verdicts
            result = self._executor.draft_alone(propose_command(items, verdicts))
        if not isinstance(result, ProposeResult):
            raise EngineError(f"a propose gave {type(result).__name__} -- nothing to read")
        for item, draft in zip(items, result.drafts, strict=True):
            if draft.token_ids and not self._too_unsure(draft):
                self._scheduler.install_drafts(item.slot, draft.token_ids)

    def _too_unsure(self, draft: Draft) -> bool:
        """The confidence floor: the chain is as sure as its least sure draft."""
        return (
            self._tau > 0.0 and bool(draft.logprobs) and (math.exp(min(draft.logprobs)) < self._tau)
        )

    # -- counting -----------------------------------------------------------------------------

    def _count(self, plan: RoundPlan, outcomes: list[Outcome], result: ForwardResult) -> None:
        self.stats.rounds += 1
        for item, outcome, picks in zip(plan.items, outcomes, result.picks, strict=True):
            if item.kind is RowKind.PREFILL:
                self.stats.num_prompt_rows += item.num_rows
            elif isinstance(outcome, Acceptance):
                targets = picks or outcome.token_ids
                lines = self.stats.record_rows(
                    item.sequence.id,
                    matches=[
                        draft == target for draft, target in zip(item.drafts, targets, strict=False)
                    ]
                    + [False] * (len(item.drafts) - len(targets)),
                    num_accepted=outcome.num_accepted,
                    seq_len=len(item.sequence.tokens),
                )
                for line in lines:
                    level = logging.WARNING if line.warning else logging.INFO
                    logging.getLogger(__name__).log(level, line.text)

    def _closed(self, event: TokenEvent) -> TokenEvent:
        """A last event carries the request's counters."""
        self.stats.num_output_tokens += len(event.token_ids)
        if event.finish_reason is None:
            return event
        if self._depth.learns:
            self._depth.retire(event.request_id)
        return msgspec.structs.replace(event, spec=self.stats.close_request(event.request_id))

    def _teach(self, plan: RoundPlan, outcomes: list[Outcome], *, wall_s: float) -> None:
        """Tell the chooser what the drafts of this round cost and gave. `wall_s` is the verify
        with the propose that made them (the round before), so that a change of depth charges
        each depth its own time. A round with prompt rows is no price of any depth.
        """
        decoded = [
            (item, outcome)
            for item, outcome in zip(plan.items, outcomes, strict=True)
            if item.kind is not RowKind.PREFILL and isinstance(outcome, Acceptance)
        ]
        if not decoded:
            return
        streams = tuple(
            StreamOutcome(
                stream_id=item.sequence.id,
                num_drafts=len(item.drafts),
                num_accepted=outcome.num_accepted,
                num_emitted=len(outcome.token_ids),
                slot=max(item.sequence.slot, 0),
            )
            for item, outcome in decoded
        )
        mixed = any(item.kind is RowKind.PREFILL for item in plan.items)
        self._depth.observe(
            StepOutcome(
                depth=max(len(item.drafts) for item, _ in decoded),
                wall_s=math.nan if mixed else wall_s,
                streams=streams,
                now_s=self._clock(),
            )
        )
