"""Peers for the decode benchmark: other engines' own greedy generation on the same checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.launch.memory_plan import torch_dtype

PEERS = ("transformers",)

Peer = Callable[[Sequence[int], int], tuple[list[int], float]]
"""(prompt ids, most tokens) -> (answer ids, seconds)."""


def open_peer(name: str, folder: Path, *, dtype: str, threads: int) -> Peer:
    """Load a peer; `threads` is what it may compute with."""
    if name not in PEERS:
        raise ValueError(
            f"unknown peer (name={name!r}, known {', '.join(PEERS)}) -- nothing to compare with -- "
            "choose a known one"
        )
    import transformers  # seconds to import; only this benchmark needs it

    talk: Any = transformers.utils.logging
    talk.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch_dtype(dtype))
    model.train(False)

    def answer(prompt: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            ids = torch.tensor([list(prompt)])
            began = time.monotonic()
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=max_tokens,
                )
            seconds = time.monotonic() - began
        finally:
            torch.set_num_threads(before)
        return out[0, len(prompt) :].tolist(), seconds

    return answer
