"""What liveness says on its sockets: length-prefixed msgspec, no pickle.

Four bytes of little-endian length, then one tagged array. A connection that breaks these rules, or
does not say the job's token first, is a stranger and is closed.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
from typing import TypeAlias

import msgspec

from phalanx.ep.faults import FaultReport

MAX_MESSAGE_BYTES = 1 << 20
_SEND_PATIENCE_S = 0.5
_LENGTH = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message in both directions: who speaks, and where its status page is."""

    token: str
    rank: int
    world_size: int
    host: str
    pid: int
    machine: str
    page_fd: int
    page_token: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """I am here, and this is where I am."""

    phase: str
    seq: int
    command: str
    digest_checks: int


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Worker to rank 0: this went wrong here. Rank 0 to all: this is the cause, leave."""

    fault: FaultReport


class AskFields(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Worker to rank 0: your lockstep state before command `seq`?"""

    seq: int


class TellFields(msgspec.Struct, frozen=True, array_like=True, tag="tell"):
    """Rank 0's answer; None when it no longer keeps that one."""

    seq: int
    fields: dict[str, str | int] | None


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """I leave on purpose; my closing connection is not a death."""

    digest_checks: int


Said: TypeAlias = Hello | Beat | Report | AskFields | TellFields | Farewell

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


def ready(sock: socket.socket, event: int, *, wait_s: float) -> bool:
    """Wait until the socket is readable or writable (poll, because select ends at fd 1023)."""
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(max(0, math.ceil(wait_s * 1000))))


class WireError(ValueError):
    """The other end does not speak this protocol."""


class Line:
    """One connection: a socket that is never waited on without a limit, and its unread bytes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._unread = bytearray()
        self._saying = threading.Lock()

    def say(self, message: Said) -> bool:
        """Send; False when the other end is gone or has not read for half a second. Any thread."""
        data = _ENCODER.encode(message)
        with self._saying:
            return self._send(memoryview(_LENGTH.pack(len(data)) + data))

    def _send(self, rest: memoryview) -> bool:
        while rest:
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                if not ready(self.sock, select.POLLOUT, wait_s=_SEND_PATIENCE_S):
                    return False
            except (OSError, ValueError):
                return False
        return True

    def hear(self) -> tuple[list[Said], bool]:
        """(messages that are complete now, is the connection still open). Never waits.

        Raises WireError for anything that is not a message.
        """
        is_open = True
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                is_open = False
                break
            self._unread += data
        return self._complete(), is_open

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def _complete(self) -> list[Said]:
        messages: list[Said] = []
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > MAX_MESSAGE_BYTES:
                raise WireError(f"message too long (bytes={length}, limit {MAX_MESSAGE_BYTES})")
            if len(self._unread) < _LENGTH.size + length:
                break
            data = bytes(self._unread[_LENGTH.size : _LENGTH.size + length])
            del self._unread[: _LENGTH.size + length]
            try:
                messages.append(_DECODER.decode(data))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise WireError(f"not a liveness message ({error})") from error
        return messages
