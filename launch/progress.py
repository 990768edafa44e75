"""A progress bar on stderr for what takes seconds: preparing a model, loading weights.

Draws only on a terminal; elsewhere it says one line when the work is done, and nothing at all
when told to be quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[int, int], None]

CELLS = 30
REDRAW_S = 0.1
# Work that was over sooner than this needs no line.
WORTH_A_LINE_S = 1.0


def bar(label: str, *, quiet: bool, stream: TextIO | None = None) -> Progress | None:
    """A callback for (done, total); None when quiet."""
    return None if quiet else ProgressBar(label, stream=stream or sys.stderr)


class ProgressBar:
    """Draws `label [####....] 40%` in place. Called with what is done and the whole."""

    __slots__ = ("_drawn_at", "_label", "_started_at", "_stream")

    def __init__(self, label: str, *, stream: TextIO) -> None:
        """Start the clock; nothing is drawn before the first call."""
        self._label, self._stream = label, stream
        self._started_at = time.monotonic()
        self._drawn_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Some more is done; at `done >= total` the line is finished."""
        now = time.monotonic()
        finished = done >= total
        if not self._stream.isatty():
            if finished and now - self._started_at > WORTH_A_LINE_S:
                self._stream.write(f"{self._label}: {now - self._started_at:.1f} s\n")
            return
        if not finished and now - self._drawn_at < REDRAW_S:
            return
        self._drawn_at = now
        share = 1.0 if total <= 0 else min(1.0, done / total)
        cells = "#" * round(share * CELLS)
        end = "\r\033[K" if finished else ""
        self._stream.write(f"\r{self._label} [{cells.ljust(CELLS, '.')}] {share:4.0%}{end}")
        self._stream.flush()
