"""Fingerprints of hidden rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.hidden_fingerprint import BASIS, fingerprint_text, hidden_fingerprint

STANDARD_PRIME = 0x100000001B3


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (bytes.fromhex("803f"), "56eeba07b65d0620"),
        (bytes.fromhex("803f00c0"), "3c500eaabd94c7e0"),
        (bytes(8), "22c64032281a39c5"),
        (b"", "cbf29ce484222325"),
    ],
)
def test_vectors(row: bytes, text: str) -> None:
    assert fingerprint_text(hidden_fingerprint(row)) == text


def test_the_multiplier_is_not_the_standard_prime() -> None:
    standard = BASIS
    for byte in bytes.fromhex("803f"):
        standard = ((standard ^ byte) * STANDARD_PRIME) % 2**64
    assert fingerprint_text(standard) == "09e58907b65d0620"
    assert hidden_fingerprint(bytes.fromhex("803f")) != standard


def test_bit_patterns_read_little_endian() -> None:
    row = np.array([0x3F80, 0xC000], dtype=np.uint16)
    assert fingerprint_text(hidden_fingerprint(row)) == "3c500eaabd94c7e0"
    assert hidden_fingerprint(row.astype(">u2").astype(np.uint16)) == hidden_fingerprint(row)


def test_strided_row_is_read_in_order() -> None:
    row = np.arange(12, dtype=np.uint16)[::3]
    assert hidden_fingerprint(row) == hidden_fingerprint(np.ascontiguousarray(row))


def test_failed_copy_is_zero() -> None:
    assert hidden_fingerprint(None) == 0
    assert fingerprint_text(0) == "0" * 16


@pytest.mark.parametrize(
    "row", [np.zeros((2, 2), dtype=np.uint16), np.zeros(4, dtype=np.float32), np.zeros(2, np.int16)]
)
def test_anything_but_one_row_of_bits_is_refused(row: np.ndarray) -> None:
    with pytest.raises(ValueError, match="dtype="):
        hidden_fingerprint(row)


@given(st.lists(st.integers(0, 0xFFFF), max_size=40))
def test_array_and_bytes_agree(bits: list[int]) -> None:
    row = np.array(bits, dtype=np.uint16)
    raw = b"".join(value.to_bytes(2, "little") for value in bits)
    assert hidden_fingerprint(row) == hidden_fingerprint(raw) == hidden_fingerprint(memoryview(raw))
    assert 0 <= hidden_fingerprint(raw) < 2**64


@given(st.binary(min_size=2, max_size=40), st.data())
def test_one_changed_byte_changes_the_fingerprint(raw: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = bytearray(raw)
    changed[place] ^= 1 + data.draw(st.integers(0, 254))
    assert hidden_fingerprint(bytes(changed)) != hidden_fingerprint(raw)
