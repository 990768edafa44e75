"""Deadlines for work that was only enqueued: sees a collective that does not leave its stream.

After each collective an event is recorded; a thread looks at the oldest one. Inside graph capture
nothing is recorded (a captured event cannot be asked), so a replayed collective is watched through
the eager ones around it and through liveness.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

_LOOK_EVERY_S = 0.1
_MAX_WAITING = 256


class Mark(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """True when the stream has passed it."""
        ...


def mark_stream(device: torch.device) -> Mark | None:
    """A mark at the end of the current stream, or None where there is nothing to watch."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    cuda: Any = torch.cuda  # its classes are untyped
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    marked: Mark = event
    return marked


class StreamWatch:
    """Watches one communicator's operations."""

    def __init__(
        self,
        device: torch.device,
        *,
        deadline_s: float,
        on_stuck: Callable[[str, float], None],
        mark: Callable[[torch.device], Mark | None] = mark_stream,
    ) -> None:
        """on_stuck(operation, age in seconds): called once, from the watching thread."""
        self._device = device
        self._deadline_s = deadline_s
        self._on_stuck = on_stuck
        self._mark = mark
        self._waiting: deque[tuple[str, float, Mark]] = deque(maxlen=_MAX_WAITING)
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def enqueued(self, operation: str) -> None:
        """An operation was put on the current stream."""
        mark = self._mark(self._device)
        if mark is None:
            return
        self._waiting.append((operation, time.monotonic(), mark))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="phalanx-stream", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._is_closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._is_closing.wait(_LOOK_EVERY_S):
            while self._waiting and self._waiting[0][2].query():
                self._waiting.popleft()
            if not self._waiting:
                continue
            operation, since, _ = self._waiting[0]
            age_s = time.monotonic() - since
            if age_s > self._deadline_s:
                self._on_stuck(operation, age_s)
                return
