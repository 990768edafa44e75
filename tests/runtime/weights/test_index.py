"""A safetensors header is believed only when it describes the file; every error is clear."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from phalanx.runtime.weights.index import CheckpointError, read_header, read_index

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 3),
}


def write(folder: Path, header: Any, data: bytes) -> Path:
    """A file with this header in front of these bytes."""
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def entry(begin: int, end: int, **other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]} | other


def test_entries_say_where_the_bytes_lie(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, str(file), metadata={"format": "pt"})
    entries, raw = read_index(tmp_path), file.read_bytes()
    assert set(entries) == set(TENSORS)
    for name, tensor in TENSORS.items():
        found = entries[name]
        assert found.shape == tuple(tensor.shape)
        stored = raw[found.start : found.start + found.num_bytes]
        assert stored == tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ([1], 0, "not an object"),
        ({"a": 3}, 0, "bad entry of a"),
        ({"a": entry(0, 8, shape=[3])}, 8, r"a is F32 \[3\] in 8 bytes"),
        ({"a": entry(0, 8, shape=[-1, -2])}, 8, r"a is F32 \[-1, -2\]"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "b begins at byte"),
        ({"a": entry(0, 8), "b": entry(12, 20)}, 20, "b begins at byte"),
        ({"a": entry(0, 8)}, 10, "2 bytes behind the last tensor"),
        ({"a": entry(0, 8)}, 7, "a ends at byte"),
        ({"a": entry(0, 8, dtype="F8_E4M3")}, 8, "unsupported element type .*F8_E4M3"),
    ],
)
def test_headers_that_do_not_fit_the_file_are_refused(
    tmp_path: Path, header: Any, size: int, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_header(write(tmp_path, header, bytes(size)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_describes_itself(
    tmp_path: Path, data: st.DataObject
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, str(file))
    raw = bytearray(file.read_bytes())
    raw = raw[: data.draw(st.integers(0, len(raw)), label="keep")]
    for _ in range(data.draw(st.integers(0, 3), label="damages")):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(raw))
    try:
        entries = read_header(file)
    except CheckpointError as refused:
        assert str(file) in str(refused)
    else:
        assert all(e.start + e.num_bytes <= len(raw) for e in entries)


@pytest.mark.parametrize(
    "listing", ["{", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', "{}"]
)
def test_a_damaged_index_is_refused(tmp_path: Path, listing: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(listing)
    with pytest.raises(CheckpointError, match="index cannot be read"):
        read_index(tmp_path)


@pytest.mark.parametrize("listing", [{}, {"a": "../other.safetensors"}, {"a": "/etc/passwd"}])
def test_an_index_names_files_of_its_own_folder(tmp_path: Path, listing: dict[str, str]) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listing}))
    with pytest.raises(CheckpointError, match="no files of its own folder"):
        read_index(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, str(tmp_path / "model.safetensors"))
    save_file({"a": torch.zeros(1)}, str(tmp_path / "mtp.safetensors"))
    with pytest.raises(CheckpointError, match=r"stored twice \(name=a, .*mtp\.safetensors"):
        read_index(tmp_path)


def test_folders_in_place_of_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="weight file is missing"):
        read_index(tmp_path)
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        read_index(plain)
