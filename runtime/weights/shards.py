"""Pure: which slices of which checkpoint tensors this rank holds, and where they land.

A target is one fused tensor of the running model; its pieces say which rows of which checkpoint
tensor fill which part of it. Every checkpoint name must be used by a piece or be known as another
rank's (`skipped`), and every piece must find its tensor with the right shape: both ways an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from phalanx.runtime.weights.index import CheckpointError, TensorEntry

TargetType = Literal["weight", "float32", "int64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one checkpoint tensor into part of a target."""

    source: str
    source_shape: tuple[int, ...]
    """The whole tensor as the model expects it in the checkpoint."""
    rows: range | None = None
    """Rows along the first axis to take; None = all."""
    expert: int | None = None
    """Index on the target's first axis; None = the target has no such axis."""
    at: int = 0
    """First row of the part that is filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One tensor of the running model."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    type: TargetType = "weight"


@dataclass(slots=True)
class ShardPlan:
    """Targets by name; built once by a model family, then only read."""

    targets: dict[str, Target] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    """Known names that this rank does not hold."""

    def whole(self, target: str, source: str, shape: tuple[int, ...], **more: TargetType) -> None:
        """One checkpoint tensor as it is."""
        piece = Piece(source=source, source_shape=shape)
        self.targets[target] = Target(shape=shape, pieces=(piece,), **more)

    def rows(self, target: str, source: str, shape: tuple[int, int], rows: range) -> None:
        """Some rows of one checkpoint matrix."""
        piece = Piece(source=source, source_shape=shape, rows=rows)
        self.targets[target] = Target(shape=(len(rows), shape[1]), pieces=(piece,))

    def stack(self, target: str, sources: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Checkpoint tensors one below the other."""
        pieces, at = [], 0
        shape: tuple[int, ...] = ()
        for source, shape in sources:
            pieces.append(Piece(source=source, source_shape=shape, at=at))
            at += shape[0]
        self.targets[target] = Target(shape=(at, *shape[1:]), pieces=tuple(pieces))

    def check(self, entries: Mapping[str, TensorEntry]) -> None:
        """Raise CheckpointError when plan and checkpoint do not fit each other."""
        wanted: dict[str, Piece] = {}
        for target in self.targets.values():
            wanted.update((piece.source, piece) for piece in target.pieces)
        missing = sorted(name for name in wanted if name not in entries)
        unknown = sorted(
            name for name in entries if name not in wanted | dict.fromkeys(self.skipped)
        )
        if missing or unknown:
            raise CheckpointError(_mismatch(missing, unknown))
        for name, piece in wanted.items():
            if entries[name].shape != piece.source_shape:
                raise CheckpointError(
                    f"wrong shape (tensor={name}, shape={list(entries[name].shape)} in "
                    f"{entries[name].file.name}, config.json asks for {list(piece.source_shape)}) "
                    "-- weights and config belong to different models -- use a matching pair"
                )


def _mismatch(missing: list[str], unknown: list[str]) -> str:
    parts = []
    if missing:
        near = difflib.get_close_matches(missing[0], unknown, 1, 0.8)
        hint = f"; the checkpoint has {near[0]}" if near else ""
        parts.append(f"{len(missing)} tensors are missing, first {missing[0]}{hint}")
    if unknown:
        parts.append(f"{len(unknown)} tensors match nothing in the model, first {unknown[0]}")
    return (
        f"checkpoint does not fit its config.json ({'; '.join(parts)}) -- a model with guessed "
        "weights would answer nonsense -- use the config.json that came with these weights"
    )
