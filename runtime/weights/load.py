"""Read the planned slices from mapped files into preallocated tensors.

Only the bytes of the slices are touched, so a rank reads its own experts and no others'; the
report proves it. Fused tensors are allocated once and filled in place: no second copy exists.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from phalanx.runtime.weights.index import CheckpointError, TensorEntry
from phalanx.runtime.weights.shards import Piece, ShardPlan, Target

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes this rank will read)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """What one rank read and holds, in bytes."""

    bytes_read: int
    """Checkpoint bytes this rank touched."""
    bytes_held: int
    """Bytes of the tensors in memory."""
    bytes_total: int
    """Bytes of the whole checkpoint."""


def load_targets(
    plan: ShardPlan,
    entries: Mapping[str, TensorEntry],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> tuple[dict[str, Tensor], WeightsReport]:
    """Fill every target of `plan`; `plan.check(entries)` is called first.

    Raises CheckpointError when names or shapes do not fit, or a file cannot be mapped.
    """
    plan.check(entries)
    types = {"weight": dtype, "float32": torch.float32, "int64": torch.int64}
    total = sum(_piece_bytes(p, entries) for t in plan.targets.values() for p in t.pieces)
    read, tensors = 0, {}
    with ExitStack() as stack:
        maps: dict[Path, mmap.mmap] = {}
        for name, target in plan.targets.items():
            tensor = torch.empty(target.shape, dtype=types[target.type], device=device)
            for piece in target.pieces:
                entry = entries[piece.source]
                if entry.file not in maps:
                    maps[entry.file] = _map(entry.file, stack)
                _fill(tensor, target, piece, _source(maps[entry.file], entry, piece))
                read += _piece_bytes(piece, entries)
            if progress is not None:
                progress(read, total)
            tensors[name] = tensor
    held = sum(tensor.nbytes for tensor in tensors.values())
    whole = sum(entry.num_bytes for entry in entries.values())
    return tensors, WeightsReport(bytes_read=read, bytes_held=held, bytes_total=whole)


def _map(file: Path, stack: ExitStack) -> mmap.mmap:
    handle = stack.enter_context(file.open("rb"))
    try:
        # Not closed by hand: tensors that view it may outlive this call for a moment.
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as failed:
        raise CheckpointError(
            f"cannot map weight file (file={file}: {failed}) -- its bytes are read in place -- "
            "check the file system"
        ) from failed


def _piece_bytes(piece: Piece, entries: Mapping[str, TensorEntry]) -> int:
    entry = entries[piece.source]
    if piece.rows is None:
        return entry.num_bytes
    return entry.num_bytes // max(1, entry.shape[0]) * len(piece.rows)


def _source(mapped: mmap.mmap, entry: TensorEntry, piece: Piece) -> Tensor:
    """A view of the piece's rows in the mapped file."""
    dtype = TORCH_DTYPES[entry.dtype]
    shape, start = entry.shape, entry.start
    if piece.rows is not None:
        start += entry.num_bytes // shape[0] * piece.rows.start
        shape = (len(piece.rows), *shape[1:])
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(mapped, dtype=torch.uint8, offset=start, count=count * dtype.itemsize)
    if start % dtype.itemsize:
        raw = raw.clone()  # a view of wider elements must be aligned
    return raw.view(dtype).view(shape)


def _fill(tensor: Tensor, target: Target, piece: Piece, source: Tensor) -> None:
    part = tensor if piece.expert is None else tensor[piece.expert]
    if part.shape == source.shape and piece.at == 0:
        part.copy_(source)
    else:
        part[piece.at : piece.at + source.shape[0]].copy_(source)
