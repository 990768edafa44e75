"""Pure: which slices of which checkpoint tensors this rank holds, and where they land.

A target is one fused tensor of the running model; its pieces say which rows of which checkpoint
tensor fill which part of it. Every checkpoint name must be used by a piece or be known as another
rank's (`skip`), and every name of the model must be there with the right shape, other ranks' too:
so all ranks report a bad checkpoint alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from phalanx.runtime.weights.index import CheckpointError, TensorEntry

TargetType = Literal["weight", "float32", "int64"]
"""Element type of a target: the model's, always float32, or ids."""
FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})
INTEGERS: Final = frozenset({"I64", "I32"})


class Expected(NamedTuple):
    """What a checkpoint tensor must be."""

    shape: tuple[int, ...]
    type: TargetType


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
    others: dict[str, Expected] = field(default_factory=dict)
    """Checkpoint tensors that other ranks hold."""
    unused: set[str] = field(default_factory=set)
    """Names that a checkpoint may have and nobody reads."""

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

    def leave_to_others(self, plan: ShardPlan) -> None:
        """All that `plan` reads is held by other ranks."""
        self.others |= plan.expected()

    def expected(self) -> dict[str, Expected]:
        """Every checkpoint tensor of the model as this plan knows it."""
        known = dict(self.others)
        for target in self.targets.values():
            for piece in target.pieces:
                known[piece.source] = Expected(piece.source_shape, target.type)
        return known

    def check(self, entries: Mapping[str, TensorEntry]) -> None:
        """Raise CheckpointError when plan and checkpoint do not fit each other."""
        expected = self.expected()
        missing = sorted(name for name in expected if name not in entries)
        unknown = sorted(
            name for name in entries if name not in expected and name not in self.unused
        )
        if missing or unknown:
            raise CheckpointError(_mismatch(missing, unknown))
        for name, want in expected.items():
            _check_entry(entries[name], want)


def _check_entry(entry: TensorEntry, want: Expected) -> None:
    if entry.shape != want.shape:
        raise CheckpointError(
            f"wrong shape (tensor={entry.name}, shape={list(entry.shape)} in {entry.file.name}, "
            f"config.json asks for {list(want.shape)}) -- weights and config belong to different "
            "models -- use a matching pair"
        )
    allowed = INTEGERS if want.type == "int64" else FLOATS
    if entry.dtype not in allowed:
        raise CheckpointError(
            f"wrong element type (tensor={entry.name}, dtype={entry.dtype} in {entry.file.name}, "
            f"supported: {', '.join(sorted(allowed))}) -- its numbers would mean something else -- "
            "use an unquantised checkpoint"
        )


def _mismatch(missing: list[str], unknown: list[str]) -> str:
    parts = []
    if missing:
        near = difflib.get_close_matches(missing[0], unknown[:1000], 1, 0.8)
        hint = f"; the checkpoint has {near[0]}" if near else ""
        parts.append(f"{len(missing)} tensors are missing, first {missing[0]}{hint}")
    if unknown:
        parts.append(f"{len(unknown)} tensors match nothing in the model, first {unknown[0]}")
    return (
        f"checkpoint does not fit its config.json ({'; '.join(parts)}) -- a model with guessed "
        "weights would answer nonsense -- use the config.json that came with these weights"
    )
