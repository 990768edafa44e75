"""Bad requests are refused with the value, the limit and the mend; good ones pass."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.runtime.errors import RequestError
from phalanx.runtime.request import Request, SamplingParams, check_request


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", -1.0),
        ("top_k", -1),
        ("top_k", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", tuple(range(65))),
    ],
)
def test_bad_parameters_are_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=r" -- .* -- ") as error:
        SamplingParams(**{name: value})
    assert name in str(error.value) or "stop tokens" in str(error.value)


def test_good_parameters_pass() -> None:
    assert SamplingParams().is_greedy
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, seed=2**64 - 1, max_tokens=1)
    assert not params.is_greedy


def ask(prompt: tuple[Any, ...]) -> None:
    request = Request(id=4, prompt_token_ids=prompt, params=SamplingParams())
    check_request(request, vocab_size=10, max_model_len=6)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ((), "empty prompt .*request=4"),
        ((1,) * 6, "tokens=6, limit 5 of context 6"),
        ((1, 10), r"id=10, limit 0\.\.9"),
        ((-1,), r"id=-1, limit 0\.\.9"),
        ((1, "2"), "value='2'"),
        ((1, True), "value=True"),
        ((1, 2.0), "value=2.0"),
    ],
)
def test_bad_prompts_are_named(prompt: tuple[Any, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        ask(prompt)


def test_prompts_up_to_the_limits_pass() -> None:
    ask((0,))
    ask((9,) * 5)
