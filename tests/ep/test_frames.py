"""Frames: layout, round trip, and a decoder that any bytes can be thrown at."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.commands import Command, Forward, Message, MtpPropose, Noop, Shutdown, Verdict
from phalanx.ep.faults import ProtocolError
from phalanx.ep.frames import (
    FRAME_BYTES,
    INLINE_BYTES,
    MAX_PAYLOAD_WORDS,
    PROTOCOL_VERSION,
    decode,
    encode,
)
from tests.ep.messages import messages

PROPOSE = MtpPropose(slot=3, last_token=7, position=21, num_drafts=2, hidden_row=0, feed_rows=1)


def words_of(frame: bytes) -> list[int]:
    return list(struct.unpack("<64I", frame))


def with_word(frame: bytes, index: int, value: int) -> bytes:
    words = words_of(frame)
    words[index] = value
    return struct.pack("<64I", *words)


@settings(max_examples=60, deadline=None)
@given(
    message=messages,
    seq=st.integers(0, 2**32 - 1),
    digest=st.integers(0, 2**64 - 1),
    placement=st.integers(0, 2**32 - 1),
)
def test_what_is_encoded_is_decoded(
    message: Message, seq: int, digest: int, placement: int
) -> None:
    encoded = encode(message, seq=seq, digest=digest, placement=placement)
    received = decode(encoded.frame, encoded.spill)
    assert received.message == message
    assert (received.seq, received.code) == (seq, encoded.code)
    assert (received.digest, received.placement) == (digest, placement)
    assert received.payload == encoded.payload
    assert len(encoded.frame) == FRAME_BYTES
    assert (encoded.spill == b"") == (len(encoded.payload) <= INLINE_BYTES)
    assert len(encoded.spill) % 4 == 0


def test_the_words_of_a_frame_are_where_the_table_says() -> None:
    encoded = encode(PROPOSE, seq=0x1_0000_0005, digest=0xAAAA0001BBBB0002, placement=9)
    words = words_of(encoded.frame)
    padding = 4 * words[3] - len(encoded.payload)
    assert words[0] == 0xFFFFFFF5
    assert words[1] == PROTOCOL_VERSION | padding << 16
    assert words[2] == 5
    assert words[3] == (len(encoded.payload) + 3) // 4
    assert (words[4], words[5]) == (0xBBBB0002, 0xAAAA0001)
    assert (words[6], words[7]) == (9, 3)
    assert words[8 + words[3] :] == [0] * (56 - words[3])


@pytest.mark.parametrize("length", range(INLINE_BYTES - 12, INLINE_BYTES + 9))
def test_a_payload_spills_exactly_when_it_does_not_fit_56_words(length: int) -> None:
    reason = "x" * (
        length - len(encode(Shutdown("x" * 40), seq=1, digest=0, placement=0).payload) + 40
    )
    encoded = encode(Shutdown(reason), seq=1, digest=0, placement=0)
    assert bool(encoded.spill) == (len(encoded.payload) > INLINE_BYTES)
    assert decode(encoded.frame, encoded.spill).message == Shutdown(reason)


@settings(max_examples=60, deadline=None)
@given(frame=st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES), spill=st.binary(max_size=600))
def test_random_bytes_raise_only_protocol_errors(frame: bytes, spill: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(frame, spill)


@settings(max_examples=120, deadline=None)
@given(
    message=messages,
    changes=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_a_damaged_frame_is_refused_or_is_a_valid_command(
    message: Message, changes: list[tuple[int, int]]
) -> None:
    encoded = encode(message, seq=1, digest=2, placement=3)
    frame = bytearray(encoded.frame)
    for index, value in changes:
        frame[index] = value
    try:
        received = decode(bytes(frame), encoded.spill)
    except ProtocolError as error:
        assert error.field
    else:
        again = encode(
            received.message, seq=received.seq, digest=received.digest, placement=received.placement
        )
        assert decode(again.frame, again.spill).message == received.message


@settings(max_examples=60, deadline=None)
@given(message=messages, cut=st.integers(0, 4000))
def test_truncated_bytes_are_refused(message: Message, cut: int) -> None:
    encoded = encode(message, seq=1, digest=2, placement=3)
    if encoded.spill:
        with pytest.raises(ProtocolError, match="payload bytes"):
            decode(encoded.frame, encoded.spill[: cut % len(encoded.spill)])
    with pytest.raises(ProtocolError, match="frame length"):
        decode(encoded.frame[: cut % FRAME_BYTES], encoded.spill)


@pytest.mark.parametrize(
    ("index", "value", "field"),
    [
        (0, 0xFFFFFFF2, "command code"),
        (0, 17, "command code"),
        (1, PROTOCOL_VERSION + 1, "protocol version"),
        (1, PROTOCOL_VERSION | 1 << 25, "flags"),
        (1, PROTOCOL_VERSION | 1 << 18, "spilled flag"),
        (3, 0, "payload length"),
        (3, MAX_PAYLOAD_WORDS + 1, "payload length"),
        (3, 56, "payload"),
        (3, 57, "spilled flag"),
        (7, 4, "slot or width"),
    ],
)
def test_each_bad_header_word_is_named(index: int, value: int, field: str) -> None:
    frame = encode(PROPOSE, seq=1, digest=0, placement=0).frame
    with pytest.raises(ProtocolError) as caught:
        decode(with_word(frame, index, value))
    assert caught.value.field == field


def test_the_code_and_the_payload_must_be_of_one_command() -> None:
    frame = encode(PROPOSE, seq=1, digest=0, placement=0).frame
    with pytest.raises(ProtocolError) as caught:
        decode(with_word(frame, 0, int(Command.CHECKPOINT)))
    assert caught.value.field == "payload tag"


def test_nonzero_padding_is_refused() -> None:
    encoded = encode(Noop(), seq=1, digest=0, placement=0)
    assert len(encoded.payload) % 4 != 0, encoded.payload
    frame = bytearray(encoded.frame)
    frame[32 + len(encoded.payload)] = 1
    with pytest.raises(ProtocolError) as caught:
        decode(bytes(frame))
    assert caught.value.field == "padding"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rows": [0, 1]}, "rows"),
        ({"kinds": [1, 3]}, "kinds"),
        ({"tokens": [1, -1, 2]}, "tokens"),
        ({"tokens": [1, 1.5, 2]}, "tokens"),
        ({"starts": [0, 2**32]}, "starts"),
        ({"owners": [-2, 0]}, "owners"),
        ({"new_blocks": [[1], [-1]]}, "new_blocks"),
        ({"rows": [1]}, "len(rows)"),
        ({"wants": [1, 1, 1]}, "len(wants)"),
        ({"tokens": [1, 2]}, "len(tokens)"),
        ({"slots": [4, 4]}, "slots"),
        ({"verdicts": [Verdict(0, 2, 2)]}, "verdict num_accepted"),
        ({"verdicts": [Verdict(0, 2, 1), Verdict(0, 2, 0)]}, "verdict slots"),
    ],
)
def test_rank_0_refuses_a_bad_batch_and_names_the_field(changes: dict, field: str) -> None:
    good = Forward(
        slots=[4, 9],
        rows=[2, 1],
        kinds=[2, 1],
        starts=[10, 3],
        new_blocks=[[], [7]],
        tokens=[1, 2, 3],
        wants=[1, 1],
        owners=[-1, -1],
    )
    encode(good, seq=1, digest=0, placement=0)
    with pytest.raises(ProtocolError) as caught:
        encode(msgspec.structs.replace(good, **changes), seq=1, digest=0, placement=0)
    assert caught.value.field == field
    assert "--" in str(caught.value)


def test_a_receiver_refuses_what_rank_0_would_have_refused() -> None:
    """The same rules on bytes that did not come through `encode`."""
    bad = MtpPropose(slot=1, last_token=1, position=1, num_drafts=1, hidden_row=0, feed_rows=2)
    payload = msgspec.msgpack.encode(bad)
    words = (len(payload) + 3) // 4
    flags = PROTOCOL_VERSION | (4 * words - len(payload)) << 16
    header = struct.pack("<8I", int(Command.MTP_PROPOSE), flags, 1, words, 0, 0, 0, 1)
    with pytest.raises(ProtocolError) as caught:
        decode((header + payload).ljust(FRAME_BYTES, b"\0"))
    assert caught.value.field == "feed_rows"


def test_a_huge_payload_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolError, match="payload length"):
        encode(Shutdown("x" * (4 * MAX_PAYLOAD_WORDS)), seq=1, digest=0, placement=0)
