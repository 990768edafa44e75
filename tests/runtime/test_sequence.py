"""A sequence knows what is computed, and tells each block to the ranks once."""

from __future__ import annotations

from phalanx.runtime.request import Request, SamplingParams
from phalanx.runtime.sequence import Phase, open_sequence


def test_a_new_sequence_waits_with_nothing_computed() -> None:
    prompt = (1, 2, 3)
    request = Request(id=7, prompt_token_ids=prompt, params=SamplingParams())
    sequence = open_sequence(request, seed=5, arrival=2)
    assert (sequence.id, sequence.phase, sequence.slot) == (7, Phase.WAITING, -1)
    assert (sequence.num_output, sequence.num_to_compute) == (0, 3)
    sequence.tokens.append(9)
    assert sequence.num_output == 1
    assert request.prompt_token_ids == prompt


def test_blocks_are_told_once() -> None:
    request = Request(id=1, prompt_token_ids=(1,), params=SamplingParams())
    sequence = open_sequence(request, seed=0, arrival=1)
    sequence.blocks += [4, 5]
    assert sequence.take_new_blocks() == [4, 5]
    assert sequence.take_new_blocks() == []
    sequence.blocks.append(9)
    assert sequence.take_new_blocks() == [9]
