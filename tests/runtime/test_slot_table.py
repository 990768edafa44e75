"""Slots: what is told to the digest, and what a forward leaves for the drafter."""

from __future__ import annotations

import pytest
import torch

from phalanx.ep.commands import Admit, Verdict
from phalanx.ep.lockstep import StateDigest
from phalanx.runtime.batch import BlockTables
from phalanx.runtime.errors import EngineError
from phalanx.runtime.slot_table import SlotTable


def table() -> tuple[SlotTable, StateDigest]:
    digest = StateDigest()
    tables = BlockTables(num_slots=3, max_blocks=4, block_size=4, device=torch.device("cpu"))
    return SlotTable(tables=tables, digest=digest, proposer=None), digest


def test_every_change_reaches_the_digest() -> None:
    slots, digest = table()
    seen = {digest.value}

    def changed() -> None:
        slots.report()
        assert digest.value not in seen, "a change that the digest did not see"
        seen.add(digest.value)

    slots.admit(Admit(slot=1, request_id=5, prompt_tokens=1, max_tokens=1))
    changed()
    slots.grow(1, [3, 4], end=8)
    slots.append(1, [7, 8, 9], first_row=0, verdict_due=True)
    changed()
    slots.settle([Verdict(1, 3, 1)])
    changed()
    assert slots[1].tokens == [7, 8]
    slots.grow(1, [2], end=9)
    slots.touch(1)
    changed()
    slots.release([1])
    assert digest.value == StateDigest().value


def test_a_forward_puts_older_rows_out_of_reach() -> None:
    slots, _ = table()
    for index in (0, 1):
        slots.admit(Admit(slot=index, request_id=index, prompt_tokens=1, max_tokens=1))
        slots.grow(index, [index], end=4)
    slots.append(0, [1, 2], first_row=0, verdict_due=False)
    slots.begin_forward()
    slots.append(1, [3], first_row=0, verdict_due=False)
    assert (slots[0].num_rows, slots[1].num_rows, slots[1].start) == (0, 1, 0)


def test_blocks_lent_are_not_counted() -> None:
    slots, digest = table()
    slots.admit(Admit(slot=0, request_id=0, prompt_tokens=1, max_tokens=1))
    slots.grow(0, [1], end=4)
    slots.report()
    before = digest.value
    slots.lend(0, [2], end=8)
    assert slots[0].num_blocks == 1 and digest.value == before
    with pytest.raises(EngineError, match="rows end at 9"):
        slots.lend(0, [2], end=9)
