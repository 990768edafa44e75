"""Commands as broadcasts of a buffer on the device, over any Communicator.

Default on GPUs: the frame is copied to the device, broadcast there in order with nothing else on
its stream, and copied back; the spilled part follows in the same way. It needs a communicator of
its own, so that a rank waiting for a command does not sit inside the model's communicator, and a
stream of its own, so that the wait does not hold up the model's kernels.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from phalanx.ep.channel import Mark, Numbering
from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.commands import Message
from phalanx.ep.frames import (
    FRAME_BYTES,
    Received,
    decode_header,
    decode_payload,
    inline_payload,
)
from phalanx.ep.lockstep import StateDigest


class NcclChannel:
    """CommandChannel over a Communicator on the device."""

    def __init__(
        self, comm: Communicator, *, state: StateDigest | None = None, mark: Mark | None = None
    ) -> None:
        """comm: one that nothing else uses; state, mark: see Numbering, rank 0 only."""
        self._numbering = Numbering(state, mark)
        self.stats = self._numbering.stats
        self._comm = comm
        self._frame = torch.zeros(FRAME_BYTES, dtype=torch.uint8, device=comm.device)
        is_cuda = comm.device.type == "cuda"
        cuda: Any = torch.cuda  # its classes are untyped
        self._stream = cuda.Stream(comm.device) if is_cuda else None

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """One broadcast, or two. Raises ProtocolError or CollectiveFailed."""
        encoded = self._numbering.outgoing(message, digest=digest, placement=placement)
        with self._on_stream():
            self._frame.copy_(_as_tensor(encoded.frame))
            self._comm.broadcast(self._frame)
            if encoded.spill:
                self._comm.broadcast(_as_tensor(encoded.spill).to(self._comm.device))
        return self._numbering.seq

    def receive(self) -> Received:
        """The next command. Raises ProtocolError or CollectiveFailed."""
        with self._on_stream():
            frame = self._arrived(self._frame)
            header = decode_header(frame)
            self._numbering.incoming(header)
            if header.spilled:
                payload = self._arrived(self._frame.new_empty(4 * header.payload_words))
            else:
                payload = inline_payload(header, frame)
        return decode_payload(header, payload)

    def close(self) -> None:
        """Close the communicator, which is this channel's own."""
        if self._stream is not None:
            self._stream.synchronize()
        self._comm.close()

    def _arrived(self, buffer: torch.Tensor) -> bytes:
        """Broadcast into the device buffer and bring it to the host."""
        self._comm.broadcast(buffer)
        return buffer.cpu().numpy().tobytes()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
