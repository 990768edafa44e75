"""Counts of collectives, kept the same way by every communicator."""

from __future__ import annotations


def count(counts: dict[str, int], operation: str) -> None:
    """One more call of `operation`."""
    counts[operation] = counts.get(operation, 0) + 1
