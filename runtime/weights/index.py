"""Read safetensors headers: where each tensor of a checkpoint lies. No torch.

A checkpoint folder holds either one `model.safetensors`, or an HF index with its shards; an
`mtp.safetensors` beside them carries a drafter trained for the model. A header is believed only
when its tensors fill the rest of the file exactly, so a half-written file is found before a byte of
weights is used.
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

    Raises CheckpointError naming the file when one is missing, cut short, or lists a tensor that
    another one has too.
    """
    entries: dict[str, TensorEntry] = {}
    for file in checkpoint_files(folder):
        for entry in read_header(file):
            if entry.name in entries:
                raise CheckpointError(
                    f"tensor stored twice (name={entry.name}, files={entries[entry.name].file.name}"
                    f" and {file.name}) -- which one counts is unknown -- remove one file"
                )
            entries[entry.name] = entry
    return entries


def checkpoint_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder, all of which exist.

    Raises CheckpointError.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"no such checkpoint folder (path={folder}) -- nothing can be loaded -- check --model"
        )
    listed = folder / INDEX_FILE
    files = [folder / name for name in (_listed(listed) if listed.exists() else [SINGLE_FILE])]
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"weight file is missing (file={file}) -- the checkpoint is incomplete -- copy it "
                "again"
            )
    extra = folder / MTP_FILE
    return [*files, extra] if extra.is_file() else files


def _listed(index: Path) -> list[str]:
    """File names of an HF index."""
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        plain = [name for name in names if Path(name).name == name]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as damaged:
        raise CheckpointError(
            f"checkpoint index cannot be read (file={index}) -- it may be half-written -- copy the "
            "checkpoint again"
        ) from damaged
    if not names or plain != names:
        raise CheckpointError(
            f"checkpoint index lists no files of its own folder (file={index}, lists={names[:3]}) "
            "-- the weights must lie beside it -- copy the checkpoint again"
        )
    return plain


def read_header(file: Path) -> list[TensorEntry]:
    """The tensors of one safetensors file, checked against the file's size.

    Raises CheckpointError.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            prefix = handle.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise _damaged(file, f"header length {length} in a file of {size} bytes")
            header = json.loads(handle.read(length))
    except OSError as unreadable:
        raise CheckpointError(
            f"weight file cannot be read (file={file}: {unreadable.strerror}) -- nothing can be "
            "loaded from it -- check its permissions and the file system"
        ) from unreadable
    except ValueError as broken:
        if isinstance(broken, CheckpointError):
            raise
        raise _damaged(file, "header is not JSON") from broken
    if not isinstance(header, dict):
        raise _damaged(file, "header is not an object")
    header.pop("__metadata__", None)
    entries = [_entry(file, name, about, 8 + length) for name, about in header.items()]
    _check_tiling(file, entries, start=8 + length, size=size)
    return entries


def _entry(file: Path, name: str, about: Any, base: int) -> TensorEntry:
    try:
        begin, end = (int(offset) for offset in about["data_offsets"])
        dtype, shape = str(about["dtype"]), tuple(int(extent) for extent in about["shape"])
    except (KeyError, TypeError, ValueError) as broken:
        raise _damaged(file, f"bad entry of {name}") from broken
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"unsupported element type (tensor={name}, dtype={dtype} in {file}, supported: "
            f"{', '.join(DTYPE_BYTES)}) -- its values cannot be converted here -- use a bfloat16, "
            "float16 or float32 checkpoint"
        )
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != expected or begin < 0 or min(shape, default=0) < 0:
        raise _damaged(file, f"{name} is {dtype} {list(shape)} in {end - begin} bytes")
    return TensorEntry(
        name=name, file=file, dtype=dtype, shape=shape, start=base + begin, num_bytes=expected
    )


def _check_tiling(file: Path, entries: list[TensorEntry], *, start: int, size: int) -> None:
    """Tensors lie one behind the other from the header to the file's end."""
    end = start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.num_bytes)):
        if entry.start + entry.num_bytes > size:
            last = entry.start + entry.num_bytes
            raise _damaged(file, f"{entry.name} ends at byte {last} of a file of {size} bytes")
        if entry.start != end:
            raise _damaged(file, f"{entry.name} begins at byte {entry.start}, expected {end}")
        end += entry.num_bytes
    if end != size:
        raise _damaged(file, f"{size - end} bytes behind the last tensor")


def _damaged(file: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"damaged weight file (file={file}: {what}) -- it is half-written or not safetensors -- "
        "copy the checkpoint again"
    )
