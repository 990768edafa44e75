"""What can go wrong for one request, or inside the engine.

    RequestError      the user's: this request is refused or ends, all others go on
    ├── OverloadError too many requests wait; try again later
    └── SamplingError the model gave this request a row that nothing can be drawn from
    EngineError       ours: a broken promise inside one rank; the process must not go on

Messages: what (name=value, limit) -- why it matters -- what to do. What can go wrong between
ranks is in `ep/faults.py`, what can be wrong with a configuration in `runtime/config.py`.
"""

from __future__ import annotations


class RequestError(ValueError):
    """One request cannot be served as asked."""


class OverloadError(RequestError):
    """The waiting line is full."""


class SamplingError(RequestError):
    """A row of logits from which nothing can be drawn."""


class EngineError(RuntimeError):
    """The engine's own bookkeeping contradicts itself."""
