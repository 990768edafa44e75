"""Read safetensors headers: where each tensor of a checkpoint lies. No torch.

A checkpoint folder holds either one `model.safetensors`, or an HF index with its shards; an
`mtp.safetensors` beside them carries a drafter trained for the model.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

INDEX_FILE: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"
MTP_FILE: Final = "mtp.safetensors"
DTYPE_BYTES: Final[Mapping[str, int]] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip
MAX_HEADER_BYTES: Final = 100 << 20


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: bytes `start .. start + num_bytes` of `file`."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def read_index(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the checkpoint by name.

    Raises CheckpointError naming the file when one is missing, cut short, or listed twice.
    """
    entries: dict[str, TensorEntry] = {}
    for file in _files(folder):
        for entry in read_header(file):
            if entry.name in entries:
                raise CheckpointError(
                    f"tensor stored twice (name={entry.name}, files={entries[entry.name].file.name}"
                    f" and {file.name}) -- which one counts is unknown -- remove one file"
                )
            entries[entry.name] = entry
    return entries


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CheckpointError(
            f"no such checkpoint folder (path={folder}) -- nothing can be loaded -- check --model"
        )
    listed = folder / INDEX_FILE
    if listed.exists():
        try:
            names = sorted(set(json.loads(listed.read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as damaged:
            raise CheckpointError(
                f"checkpoint index cannot be read (file={listed}) -- it may be half-written -- "
                "copy the checkpoint again"
            ) from damaged
    else:
        names = [SINGLE_FILE]
    files = [folder / name for name in names]
    for file in files:
        if not file.exists():
            raise CheckpointError(
                f"weight file is missing (file={file}) -- the checkpoint is incomplete -- copy it "
                "again"
            )
    extra = folder / MTP_FILE
    return [*files, extra] if extra.exists() else files


def read_header(file: Path) -> list[TensorEntry]:
    """The tensors of one safetensors file, checked against the file's size."""
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise _damaged(file, f"header length {length} in a file of {size} bytes")
        try:
            header: dict[str, Any] = json.loads(handle.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError) as broken:
            raise _damaged(file, "header is not JSON") from broken
    header.pop("__metadata__", None)
    return [_entry(file, name, about, 8 + length, size) for name, about in header.items()]


def _entry(file: Path, name: str, about: Any, base: int, size: int) -> TensorEntry:
    try:
        begin, end = (int(offset) for offset in about["data_offsets"])
        dtype, shape = str(about["dtype"]), tuple(int(extent) for extent in about["shape"])
    except (KeyError, TypeError, ValueError) as broken:
        raise _damaged(file, f"bad entry of {name}") from broken
    expected = math.prod(shape) * DTYPE_BYTES.get(dtype, 0)
    if dtype not in DTYPE_BYTES or end - begin != expected or begin < 0:
        raise _damaged(file, f"{name} is {dtype} {list(shape)} in {end - begin} bytes")
    if base + end > size:
        raise _damaged(file, f"{name} ends at byte {base + end} of a file of {size} bytes")
    return TensorEntry(
        name=name, file=file, dtype=dtype, shape=shape, start=base + begin, num_bytes=expected
    )


def _damaged(file: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"damaged weight file (file={file}: {what}) -- it is half-written or not safetensors -- "
        "copy the checkpoint again"
    )
