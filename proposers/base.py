"""DraftProposer, ProposerState and DraftHead protocols; SpecConfig; what a draft is asked with.

A proposer is an algorithm: the loop over depth and the bookkeeping of its rows. A network, where
it has one, is a `DraftHead` (`runtime/models/heads.py`) that it is given. It sees no layer, no
rank and no wire; tensors pass through this file as opaque values. The engine knows drafters only
through these protocols, so a new one touches `proposers/` and a line of `catalog.py`.

Words. position: committed tokens of the sequence, which is the index of `last_token` (the newest
token, whose own row was not computed yet). Pair key k: the drafter input (embedding of token
t[k+1], target hidden h[k]) from which t[k+2] is drafted. Hiddens are the residual BEFORE the final
norm, as the drafter has its own input norm (the model says where its drafter was trained
otherwise).

A drafter can never change the text, only how often its drafts are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

UNKNOWN_BUDGET: Final = 2**63 - 1
"""`alloc_state_for` budget of a request whose length nobody knows."""

METHODS: Final = ("off", "mtp")
"""What `SpecConfig.method` may name. Scripted drafters are handed over in code, never by name."""

MAX_DRAFTS: Final = 16
"""Longest chain a configuration may ask for."""


class SpecConfigError(ValueError):
    """A speculation setting outside its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """Speculation: who drafts, and how many."""

    method: str = "off"
    """Who drafts: off, or mtp (the model's own multi-token prediction module)."""
    num_drafts: int = 3
    """Most drafts of a sequence in one round, 1 to 16; a verify has one row more."""
    draft_conf_tau: float = 0.0
    """Drafts whose least sure pick has a probability below this are dropped; 0 is off, most 0.99.
    """

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise SpecConfigError(
                f"unknown speculation method (method={self.method!r}, known {', '.join(METHODS)}) "
                "-- nothing of that name drafts -- choose a known one"
            )
        if not 1 <= self.num_drafts <= MAX_DRAFTS:
            raise SpecConfigError(
                f"draft count out of range (num_drafts={self.num_drafts}, limit 1..{MAX_DRAFTS}) "
                "-- every draft is a row of the verify -- lower it, or use method off"
            )
        if not 0.0 <= self.draft_conf_tau <= 0.99:
            raise SpecConfigError(
                f"confidence floor out of range (draft_conf_tau={self.draft_conf_tau}, limit "
                "0..0.99) -- it is compared with a probability -- give 0 to switch it off"
            )


class ProposerState(Protocol):
    """One sequence's state inside a drafter; opaque to all but the proposer that made it."""

    def map_rows_through(self, end: int) -> None:
        """Back the memory that the drafter will write for target positions below `end`."""
        ...


class DraftInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence as `propose` gets it; derived from the command alone, the same on every rank."""

    state: ProposerState
    slot: int
    """The sequence's row of the block tables."""
    last_token: int
    position: int
    num_drafts: int
    """0 = only feed the committed rows."""
    feed_tokens: Sequence[int]
    """Token t[k+1] of each committed pair to consume first, oldest first; the last is last_token.
    """
    hidden_row: int
    """Row of `DraftContext.target_hidden` of the last pair; the pairs before it precede it."""
    history: Sequence[int]
    """The sequence's tokens, of which the first `position` are committed and what follows is
    stale; owned by the caller, never copied."""

    @property
    def feed_rows(self) -> int:
        """Committed pairs to consume."""
        return len(self.feed_tokens)


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one sequence got."""

    token_ids: list[int]
    logprobs: list[float] = []
    """Top-1 log-probability of each draft; empty = not measured."""


class DraftRows(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rows of one drafter forward, as the layers want them (tensors of the caller's device)."""

    positions_R: Any
    slots_R: Any
    block_tables_SB: Any
    row_seq_R: Any
    row_last_R: Any


class DraftContext(Protocol):
    """What the runtime lends to a propose."""

    @property
    def target_hidden(self) -> Any:
        """[R, D] hiddens of the last target forward, as the drafter reads them."""
        ...

    def rows(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> DraftRows:
        """Rows at logical positions starts[i] .. starts[i]+counts[i]-1 of each slot."""
        ...

    def chain_rows(
        self, slots: Sequence[int], starts: Sequence[int], steps: int
    ) -> Sequence[DraftRows]:
        """One row per slot for each of `steps` forwards: step i at positions starts[..] + i."""
        ...

    def token_tensor(self, tokens: Sequence[int]) -> Any:
        """[R] int64 on the head's device."""
        ...


class TokenPicks(Protocol):
    """Arg-max of each row, equal on every rank that runs the head."""

    @property
    def ids_R(self) -> Any:
        """[R] int64."""
        ...

    @property
    def logprob_R(self) -> Any:
        """[R] float32, log-probability of the pick."""
        ...


class DraftHead(Protocol):
    """A draft network over one more layer of the target's paged pool."""

    def extend(
        self,
        *,
        tokens_R: Any,
        hidden_RD: Any,
        positions_R: Any,
        slots_R: Any,
        block_tables_SB: Any,
        row_seq_R: Any,
        row_last_R: Any,
    ) -> Any:
        """Write the rows' keys and values; return the block's raw output, [R, D]."""
        ...

    def pick(self, hidden_RD: Any) -> TokenPicks:
        """Drafted token of each row; one exchange when the head is split over ranks."""
        ...


class DraftProposer(Protocol):
    """Drafts tokens. The bodies here are the defaults for those who derive from it."""

    def alloc_state(self) -> ProposerState:
        """A fresh state: 0 rows, no pair key, nothing drafted."""
        ...

    def alloc_state_for(self, budget_tokens: int) -> ProposerState:
        """A fresh state for prompt + max_tokens tokens (`UNKNOWN_BUDGET` if nobody knows)."""
        return self.alloc_state()

    def free_state(self, state: ProposerState) -> None:
        """Give back what the state holds, once; a second call does nothing."""
        return None

    def needs_comm(self) -> bool:
        """Every rank must run each propose (a sharded drafter): it then follows a command."""
        return False

    def needs_hidden(self) -> bool:
        """Consumes every committed pair, so that each round ends in a propose, drafts or not."""
        return False

    def prefill_uses_shared_buffers(self) -> bool:
        """Feeding a prompt overwrites buffers of the target's forward."""
        return False

    def prefill_hidden_rows(self, max_seq_len: int) -> int:
        """Prompt hiddens that the proposer can ever use."""
        return max_seq_len

    def block_gamma(self) -> int | None:
        """Trained span of a block drafter; None for a chain."""
        return None

    def propose(self, item: DraftInput, context: DraftContext) -> Draft:
        """Drafts for one sequence: exactly `num_drafts`, or fewer for a drafter that looks up."""
        ...

    def propose_batch(
        self, items: Sequence[DraftInput], context: DraftContext
    ) -> list[Draft] | None:
        """Drafts for several sequences, one weight read per depth; counts may differ.

        None = declined as a whole, before anything was written: the caller proposes one by one.
        """
        return None

    def propose_batch_max(self) -> int:
        """Widest batch of one `propose_batch`; callers chunk by it."""
        return 1

    def propose_batch_ready(self, items: Sequence[DraftInput]) -> bool:
        """True exactly when `propose_batch` would not decline."""
        return False

    def propose_batch_mirrors_serial(self) -> bool:
        """The batched form gives what the single form gives."""
        return False

    def after_verify(self, num_accepted: int, state: ProposerState) -> None:
        """Trim the rows of rejected drafts, by the drafter's own count of what it drafted."""
        ...

    def drafter_rows(self, state: ProposerState) -> int:
        """Rows in the drafter's cache; 0 = none, or unknown."""
        return 0

    def last_pair_key(self, state: ProposerState) -> int | None:
        """Key of the newest row; None = untracked."""
        return None

    def last_confidence(self) -> float | None:
        """Least top-1 probability over the drafts of the latest propose; None = not measured."""
        return None
