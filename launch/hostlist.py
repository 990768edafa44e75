"""Host lists as SLURM writes them: `gpu[01-04,7],login` becomes its host names in order.

Our own parser, so that a machine without SLURM's tools does not quietly fall back to itself.
"""

from __future__ import annotations

import re

MAX_HOSTS = 100_000

_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")


class HostListError(ValueError):
    """A host list that cannot be read."""


def expand(text: str) -> list[str]:
    """The host names of `text`, in order; zero padding is kept, several brackets multiply.

    Raises HostListError naming the place that cannot be read.
    """
    hosts: list[str] = []
    for word in _split(text):
        hosts.extend(_expand_word(word, text))
        if len(hosts) > MAX_HOSTS:
            raise _bad(text, f"more than {MAX_HOSTS} hosts")
    if not hosts:
        raise _bad(text, "no host in it")
    return hosts


def _split(text: str) -> list[str]:
    """Words between the commas that are outside brackets."""
    words, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            raise _bad(text, f"brackets do not match at character {index}")
        if letter == "," and depth == 0:
            words.append(text[start:index])
            start = index + 1
    if depth:
        raise _bad(text, "a bracket is not closed")
    words.append(text[start:])
    return [word.strip() for word in words]


def _expand_word(word: str, text: str) -> list[str]:
    head, bracket, rest = word.partition("[")
    if not word or re.search(r"\s", word):
        raise _bad(text, f"{word!r} is not a host")
    if not bracket:
        return [head]
    inside, _, tail = rest.partition("]")
    numbers: list[str] = []
    for item in inside.split(","):
        found = _RANGE.match(item)
        if found is None:
            raise _bad(text, f"{item!r} is not a number or a range")
        low, high = found.group(1), found.group(2) or found.group(1)
        if int(high) < int(low) or int(high) - int(low) > MAX_HOSTS:
            raise _bad(text, f"range {item!r} runs backwards or is too long")
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
    tails = _expand_word(tail, text) if tail else [""]
    return [head + number + end for number in numbers for end in tails]


def _bad(text: str, why: str) -> HostListError:
    return HostListError(
        f"host list cannot be read (list={text!r}: {why}) -- the ranks would not know where to "
        "meet -- write it like gpu[01-04,7] or set MASTER_ADDR and MASTER_PORT"
    )
