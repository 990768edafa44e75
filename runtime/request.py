"""What a user asked for: prompt ids and sampling parameters. Checked once, then frozen.

Everything here is about one request, so that whatever is wrong with it is a `RequestError` for
that request alone and never reaches a rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from phalanx.runtime.errors import RequestError

MAX_SEED: Final = 2**64 - 1
MAX_STOP_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when the answer ends.

    Raises:
        RequestError: a value outside its range.
    """

    temperature: float = 0.0
    """0 takes the most probable token; otherwise logits are divided by it."""
    top_p: float = 1.0
    """Keep the fewest most probable tokens that together have at least this probability."""
    top_k: int = 0
    """Keep this many most probable tokens; 0 keeps all."""
    seed: int | None = None
    """Fixes the draws: the same text for any batch, draft count or number of ranks."""
    max_tokens: int = 128
    """Longest answer."""
    ignore_eos: bool = False
    """Go on after the model's end-of-text token."""
    stop_token_ids: tuple[int, ...] = ()
    """Further tokens that end the answer; they are its last token."""

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, low=0.0, high=100.0, mend="use 0 for greedy")
        _number("top_p", self.top_p, low=0.0, high=1.0, mend="use 1 to keep every token")
        if self.top_p == 0.0:
            raise RequestError(
                "top_p out of range (value=0.0, limit > 0) -- no token would be left to choose "
                "from -- use temperature 0 for the most probable token"
            )
        _integer("top_k", self.top_k, low=0, high=2**31 - 1, mend="use 0 to keep every token")
        _integer("max_tokens", self.max_tokens, low=1, high=2**31 - 1, mend="ask for at least one")
        if self.seed is not None:
            _integer("seed", self.seed, low=0, high=MAX_SEED, mend="give a non-negative integer")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise RequestError(
                f"too many stop tokens (count={len(self.stop_token_ids)}, limit {MAX_STOP_TOKENS}) "
                "-- each is compared with every token -- give fewer"
            )
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, low=0, high=2**31 - 1, mend="give token ids")

    @property
    def is_greedy(self) -> bool:
        """No draw takes place."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to answer it."""

    id: int
    """Never reused within a run."""
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams


def check_request(request: Request, *, vocab_size: int, max_model_len: int) -> None:
    """Refuse what the model cannot serve. The answer itself is cut at the context's end.

    Raises:
        RequestError: an empty prompt, a token id outside the vocabulary, or a prompt that leaves
            no room for a single token.
    """
    prompt = request.prompt_token_ids
    if not prompt:
        raise RequestError(
            f"empty prompt (request={request.id}, tokens=0, limit >= 1) -- there is nothing to "
            "continue -- give at least one token"
        )
    if len(prompt) >= max_model_len:
        raise RequestError(
            f"prompt too long (request={request.id}, tokens={len(prompt)}, limit "
            f"{max_model_len - 1} of context {max_model_len}) -- no room is left for an answer -- "
            "shorten the prompt, or raise --max-model-len"
        )
    if set(map(type, prompt)) != {int}:
        bad_type = next(token for token in prompt if type(token) is not int)
        raise RequestError(
            f"prompt holds something that is no token id (request={request.id}, "
            f"value={bad_type!r}) -- ids are integers -- give a list of integers"
        )
    # min and max run at C speed; the culprit is looked for only when there is one.
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        bad = next(token for token in prompt if not 0 <= token < vocab_size)
        raise RequestError(
            f"token id outside the vocabulary (request={request.id}, id={bad}, limit "
            f"0..{vocab_size - 1}) -- it has no embedding -- check that the prompt was made with "
            "this model's tokenizer"
        )


def _number(name: str, value: float, *, low: float, high: float, mend: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(
            f"{name} is not a number (value={value!r}, limit {low:g}..{high:g}) -- tokens cannot "
            f"be chosen by it -- {mend}"
        )
    if not low <= value <= high:
        raise RequestError(
            f"{name} out of range (value={value}, limit {low:g}..{high:g}) -- tokens cannot be "
            f"chosen by it -- {mend}"
        )


def _integer(name: str, value: int, *, low: int, high: int, mend: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(
            f"{name} out of range (value={value!r}, limit {low}..{high}) -- the request cannot be "
            f"served with it -- {mend}"
        )
