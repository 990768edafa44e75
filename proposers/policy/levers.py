"""Lever parsers: how the text of one flag becomes one value.

Pure functions of `str | None` (None = the flag is not set); nobody here reads an environment. The
classes are the ones of the flag table: PRESENCE (set at all, even to `0`), STRICT_ONE (on only
for exactly `1`), STRICT_ZERO (on unless exactly `0`), VALUE (a number; unset or unreadable text
gives the default, so that a typing mistake never switches a feature off).
"""

from __future__ import annotations

import math
import re
from typing import Final

_COUNT: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


def is_present(raw: str | None) -> bool:
    """PRESENCE: True for any set value, `0` and the empty text included."""
    return raw is not None


def is_one(raw: str | None) -> bool:
    """STRICT_ONE: True for exactly `1`; `true`, `yes`, `1 ` are all False."""
    return raw == "1"


def unless_zero(raw: str | None) -> bool:
    """STRICT_ZERO: False for exactly `0`, True for everything else, unset included."""
    return raw != "0"


def parse_count(raw: str | None) -> int | None:
    """Return the non-negative integer in `raw`, spaces around it allowed; None if unreadable."""
    if raw is None:
        return None
    text = raw.strip()
    return int(text) if _COUNT.fullmatch(text) else None


def count_or(raw: str | None, default: int) -> int:
    """VALUE: the non-negative integer in `raw`, else `default`."""
    count = parse_count(raw)
    return default if count is None else count


def parse_finite(raw: str | None) -> float | None:
    """Return the finite number in `raw`, spaces around it allowed; None if unreadable."""
    if raw is None or "_" in raw:
        return None
    try:
        number = float(raw)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def positive_or(raw: str | None, default: float) -> float:
    """VALUE: the finite number above zero in `raw`, else `default`."""
    number = parse_finite(raw)
    return default if number is None or number <= 0.0 else number
