"""The 64-word frame: how a message becomes words, and back.

One command is one broadcast of 64 little-endian u32 words; a payload longer than the 56 inline
words follows as a second broadcast of exactly the stated length. Pure bytes, no torch: the decoder
can be fuzzed, and a recorder can write frames to a file as they are.

    word 0      command code
    word 1      bits 0-15 protocol version, 16-17 padding bytes of the payload, 18 spilled
    word 2      sequence number, modulo 2^32
    word 3      payload length in words
    word 4, 5   rank 0's state digest before this command, low word first
    word 6      expert placement version
    word 7      slot, or batch width
    word 8..63  payload, or zeros when it is spilled
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import msgspec

from phalanx.ep.commands import FIELD_NAMES, Command, Message, code_of, width_of
from phalanx.ep.faults import ProtocolError
from phalanx.ep.message_rules import check_message

PROTOCOL_VERSION = 1
FRAME_WORDS = 64
FRAME_BYTES = 4 * FRAME_WORDS
HEADER_WORDS = 8
HEADER_BYTES = 4 * HEADER_WORDS
INLINE_WORDS = FRAME_WORDS - HEADER_WORDS
INLINE_BYTES = 4 * INLINE_WORDS
MAX_PAYLOAD_WORDS = 1 << 22
SEQ_MASK = 0xFFFFFFFF

_HEADER = struct.Struct("<8I")
_VERSION_MASK = 0xFFFF
_PADDING_SHIFT = 16
_SPILLED = 1 << 18
_KNOWN_FLAGS = _VERSION_MASK | (3 << _PADDING_SHIFT) | _SPILLED
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_CODES: dict[int, Command] = {int(code): code for code in Command}


class Encoded(NamedTuple):
    """A command as bytes. `spill` is b"" when the payload is inline, else whole words."""

    code: Command
    frame: bytes
    payload: bytes
    spill: bytes


class Header(NamedTuple):
    """Words 0..7, checked. payload_words and padding count what follows."""

    code: Command
    seq: int
    payload_words: int
    padding: int
    spilled: bool
    digest: int
    placement: int
    width: int


class Received(NamedTuple):
    """A command as its receiver sees it. payload: the msgpack bytes, for the state digest."""

    seq: int
    code: Command
    message: Message
    digest: int
    placement: int
    payload: bytes


def encode(message: Message, *, seq: int, digest: int, placement: int) -> Encoded:
    """Message to frame. Raises ProtocolError, before a byte is sent, for what no rank may get."""
    try:
        payload = _ENCODER.encode(message)
        _DECODER.decode(payload)
    except (msgspec.MsgspecError, TypeError, OverflowError) as error:
        field = _field_at(code_of(message), str(error))
        raise ProtocolError(
            f"bad {field} ({type(message).__name__}: {error}) -- ranks could not read this command "
            "-- it was not sent",
            field=field,
        ) from error
    check_message(message)
    words, rest = divmod(len(payload) + 3, 4)
    if words > MAX_PAYLOAD_WORDS:
        raise _bad("payload length", words, f"{MAX_PAYLOAD_WORDS} words")
    flags = PROTOCOL_VERSION | (3 - rest) << _PADDING_SHIFT
    code = code_of(message)
    spilled = words > INLINE_WORDS
    header = _HEADER.pack(
        code,
        flags | _SPILLED if spilled else flags,
        seq & SEQ_MASK,
        words,
        digest & SEQ_MASK,
        digest >> 32,
        placement,
        width_of(message),
    )
    if spilled:
        spill = payload.ljust(4 * words, b"\0")
        return Encoded(code, header.ljust(FRAME_BYTES, b"\0"), payload, spill)
    return Encoded(code, (header + payload).ljust(FRAME_BYTES, b"\0"), payload, b"")


def decode_header(frame: bytes | memoryview) -> Header:
    """Words 0..7 of a frame of exactly 256 bytes. Raises ProtocolError naming the field."""
    if len(frame) != FRAME_BYTES:
        raise _bad("frame length", len(frame), f"exactly {FRAME_BYTES} bytes")
    word, flags, seq, words, low, high, placement, width = _HEADER.unpack_from(frame)
    code = _CODES.get(word)
    if code is None:
        raise _bad("command code", f"{word:08X}", "a known command")
    version = flags & _VERSION_MASK
    if version != PROTOCOL_VERSION:
        raise _bad("protocol version", version, f"{PROTOCOL_VERSION} on this rank")
    if flags & ~_KNOWN_FLAGS:
        raise _bad("flags", f"{flags:08X}", "bits 0-18")
    if not 1 <= words <= MAX_PAYLOAD_WORDS:
        raise _bad("payload length", words, f"1..{MAX_PAYLOAD_WORDS} words")
    spilled = bool(flags & _SPILLED)
    if spilled != (words > INLINE_WORDS):
        raise _bad("spilled flag", spilled, f"set exactly above {INLINE_WORDS} words")
    padding = flags >> _PADDING_SHIFT & 3
    return Header(code, seq, words, padding, spilled, high << 32 | low, placement, width)


def decode_payload(header: Header, payload: bytes) -> Received:
    """Payload words (with padding) to a message. Raises ProtocolError naming the field."""
    if len(payload) != 4 * header.payload_words:
        raise _bad("payload bytes", len(payload), f"exactly {4 * header.payload_words}")
    if header.padding:
        payload, tail = payload[: -header.padding], payload[-header.padding :]
        if any(tail):
            raise _bad("padding", tail.hex(), "zero bytes")
    try:
        message = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        field = _field_at(header.code, str(error))
        raise _bad(field, str(error), f"the fields of {header.code.name}") from error
    if code_of(message) != header.code:
        raise _bad("payload tag", code_of(message).name, f"{header.code.name}, as in word 0")
    if width_of(message) != header.width:
        raise _bad("slot or width", header.width, f"{width_of(message)}, as in the payload")
    check_message(message)
    return Received(
        header.seq, header.code, message, header.digest, header.placement, bytes(payload)
    )


def decode(frame: bytes | memoryview, spill: bytes = b"") -> Received:
    """A whole command; the payload comes from `spill` when the frame says so."""
    header = decode_header(frame)
    if header.spilled:
        return decode_payload(header, spill)
    return decode_payload(header, inline_payload(header, frame))


def inline_payload(header: Header, frame: bytes | memoryview) -> bytes:
    """The inline payload's words."""
    return bytes(frame[HEADER_BYTES : HEADER_BYTES + 4 * header.payload_words])


def _field_at(code: Command, error: str) -> str:
    """The field a msgspec error points at: `... - at `$[3][0]`` is entry 2 after the tag."""
    found = re.search(r"at `\$\[(\d+)\]", error)
    names = FIELD_NAMES[code]
    index = int(found.group(1)) - 1 if found else -1
    return names[index] if 0 <= index < len(names) else "payload"


def _bad(field: str, value: object, limit: str) -> ProtocolError:
    return ProtocolError(
        f"bad {field} ({field}={value!r}, limit {limit}) -- the frame does not describe a command "
        "of this build -- check that every rank runs the same version",
        field=field,
    )
