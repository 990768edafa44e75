"""A target and a drafter made of arithmetic, which notice every bookkeeping mistake.

The target's state after a context is a hash over its tokens, read back from the paged pool through
the block tables, so a wrong slot, table, rewind or reused block changes the text. Hidden column 0
is that state. The drafter knows the same recurrence: fed the right pairs it drafts exactly what
the target will say, and one wrong or missing pair in its rows spoils every draft after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MODULUS = 1 << 24
EMPTY = -1


def mix(state: int, token: int) -> int:
    """The state after one token more."""
    return (state * 1664525 + token * 22695477 + 1013904223) % MODULUS


class Picks(NamedTuple):
    ids_R: Tensor
    logprob_R: Tensor


class FakePool:
    """Stands for the KV pool; one row per physical slot."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens = np.full(num_blocks * block_size, EMPTY, dtype=np.int64)
        self.pairs = np.full((num_blocks * block_size, 2), EMPTY, dtype=np.int64)

    def context(self, rows: Any, table_B: Any, last: int) -> list[Any]:
        """Rows of logical positions 0..last of a sequence."""
        blocks = table_B[: last // self.block_size + 1].astype(np.int64)
        slots = blocks[:, None] * self.block_size + np.arange(self.block_size)
        found: list[Any] = rows[slots.ravel()[: last + 1]].tolist()
        return found


class FakeModel:
    """Satisfies CausalModel. `sharpness` scales logits; `noise` is added to this rank's own."""

    def __init__(
        self,
        *,
        vocab_size: int,
        pool: FakePool,
        comm: Any,
        sharpness: float = 2.0,
        noise: Callable[[int], Tensor] | None = None,
        levels: int = 0,
    ) -> None:
        self.vocab_size, self.pool, self.comm = vocab_size, pool, comm
        self._sharpness, self._noise, self._levels = sharpness, noise, levels
        self._calls = 0
        self._known: dict[int, Tensor] = {}
        self.spec = None

    def embed(self, tokens_R: Tensor) -> Tensor:
        return tokens_R[:, None].float()

    def forward(self, ctx: Any) -> Tensor:
        tokens = ctx.tokens_R.tolist()
        bad = [token for token in tokens if not 0 <= token < self.vocab_size]
        assert not bad, f"tokens that have no embedding reached the model: {bad}"
        assert ctx.positions_R.tolist() == ctx.row_last_R.tolist()
        self.pool.tokens[ctx.slots_R.numpy()] = tokens
        tables = ctx.block_tables_SB.numpy()
        states: list[int] = []
        for seq, last in zip(ctx.row_seq_R.tolist(), ctx.row_last_R.tolist(), strict=True):
            state = 7
            for token in self.pool.context(self.pool.tokens, tables[seq], last):
                state = mix(state, token)
            states.append(state)
        self.comm.all_reduce(torch.zeros(len(tokens), 2))
        return torch.tensor(states, dtype=torch.float32)[:, None]

    def clean_logits(self, state: int) -> Tensor:
        if state not in self._known:
            self._known[state] = self._new_logits(state)
        return self._known[state]

    def _new_logits(self, state: int) -> Tensor:
        ids = torch.arange(self.vocab_size, dtype=torch.int64)
        unit = ((state * 48271 + ids * 40692 + (ids * ids) * 69621) % 10007).double() / 10007.0
        if self._levels:
            unit = (unit * self._levels).floor() / self._levels
        return (unit * self._sharpness).float()

    def own_logits(self, hidden_RD: Tensor) -> Tensor:
        rows = torch.stack([self.clean_logits(int(state)) for state in hidden_RD[:, 0].tolist()])
        if self._noise is None:
            return rows
        self._calls += 1
        return rows + self._noise(self._calls)

    def pick(self, hidden_RD: Tensor) -> Picks:
        return exchanged_pick(self.own_logits(hidden_RD), self.comm)

    def logits(self, hidden_RD: Tensor) -> Tensor | None:
        own = self.own_logits(hidden_RD)
        share = own.chunk(self.comm.world_size, dim=1)[self.comm.rank].contiguous()
        gathered = self.comm.gather(share)
        return None if gathered is None else torch.cat(list(gathered), dim=1)

    def drafter_hidden(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD

    def draft_head(self, kv: Any) -> None:
        return None


def exchanged_pick(logits_RV: Tensor, comm: Any) -> Picks:
    """Arg-max of a vocabulary split over ranks; each rank looks at its own share alone."""
    share = logits_RV.chunk(comm.world_size, dim=1)[comm.rank]
    start = comm.rank * share.shape[1]
    value = share.amax(dim=1)
    ids = torch.where(share == value[:, None], torch.arange(share.shape[1]), 1 << 30).amin(dim=1)
    shares = comm.all_gather(torch.stack([value.double(), (ids + start).double()]))
    best_value, best_id = shares[0]
    for value_R, id_R in shares[1:]:
        larger = value_R > best_value
        best_value = torch.where(larger, value_R, best_value)
        best_id = torch.where(larger, id_R, best_id)
    return Picks(best_id.long(), best_value.float() - logits_RV.logsumexp(dim=1))


class FakeDraftHead:
    """Satisfies DraftHead; `flaw(state)` says where it drafts something else."""

    def __init__(
        self, model: FakeModel, *, comm: Any, flaw: Callable[[int], bool] | None = None
    ) -> None:
        self._model, self._pool, self._comm, self._flaw = model, model.pool, comm, flaw
        self.widths: list[int] = []

    def extend(
        self,
        *,
        tokens_R: Tensor,
        hidden_RD: Tensor,
        positions_R: Tensor,
        slots_R: Tensor,
        block_tables_SB: Tensor,
        row_seq_R: Tensor,
        row_last_R: Tensor,
    ) -> Tensor:
        self.widths.append(len(tokens_R))
        states_R = hidden_RD[:, 0].long().numpy()
        self._pool.pairs[slots_R.numpy()] = np.stack([states_R, tokens_R.numpy()], axis=1)
        tables = block_tables_SB.numpy()
        out: list[int] = []
        for seq, last in zip(row_seq_R.tolist(), row_last_R.tolist(), strict=True):
            pairs = self._pool.context(self._pool.pairs, tables[seq], last)
            ends = [mix(state, token) for state, token in pairs]
            whole = all(end == pair[0] for end, pair in zip(ends, pairs[1:], strict=False))
            out.append(ends[-1] if whole else (ends[-1] + 1) % MODULUS)
        self._comm.all_reduce(torch.zeros(len(tokens_R), 2))
        return torch.tensor(out, dtype=torch.float32)[:, None]

    def pick(self, hidden_RD: Tensor) -> Picks:
        logits = torch.stack(
            [self._model.clean_logits(int(state)) for state in hidden_RD[:, 0].tolist()]
        )
        picks = exchanged_pick(logits, self._comm)
        if self._flaw is None:
            return picks
        flawed = torch.tensor([self._flaw(int(state)) for state in hidden_RD[:, 0].tolist()])
        other = (picks.ids_R + 1) % self._model.vocab_size
        return Picks(torch.where(flawed, other, picks.ids_R), picks.logprob_R)
