"""Commands over a gloo group of their own: one broadcast each, two when the payload spills.

Three things keep it close to a bare broadcast. Frames live in two preallocated tensors used in
turn. Rank 0 does not wait for a broadcast to finish, only for the one before last, whose buffer it
needs. A worker posts the receive for the next frame before it executes the current command, so a
frame arrives, and is passed on to the ranks behind it, while this rank still computes.

Only the wait for a first word is unbounded: it is gloo's own wait with a deadline of years, and
liveness ends the process when rank 0 is gone. It shares no group with the model's collectives.
"""

from __future__ import annotations

from typing import Any

import torch

from phalanx.ep.channel import Mark, Numbering
from phalanx.ep.comm.groups import (
    FOREVER_S,
    KeyStore,
    broadcast_options,
    collective_failed,
    gloo_group,
)
from phalanx.ep.commands import Command, Message
from phalanx.ep.frames import (
    FRAME_WORDS,
    Received,
    decode_header,
    decode_payload,
    inline_payload,
)
from phalanx.ep.lockstep import StateDigest
from phalanx.ep.topology import EPConfig, RankInfo

_FIRST_SPILL_WORDS = 1024


class WordBuffer:
    """A tensor of 32-bit words and the same memory as bytes."""

    def __init__(self, words: int) -> None:
        self.tensor = torch.zeros(words, dtype=torch.int32)
        self.bytes = self.tensor.numpy().data.cast("B")
        self.work: Any = None

    @property
    def words(self) -> int:
        """Its capacity."""
        return len(self.bytes) // 4


class GlooChannel:
    """CommandChannel over gloo."""

    def __init__(
        self,
        group: Any,
        info: RankInfo,
        config: EPConfig,
        *,
        state: StateDigest | None = None,
        mark: Mark | None = None,
    ) -> None:
        """group: a gloo group that nothing else uses; state, mark: see Numbering, rank 0 only."""
        self._numbering = Numbering(state, mark)
        self.stats = self._numbering.stats
        self._info = info
        self._group = group
        self._deadline_s = config.command_deadline_s
        self._frames = (WordBuffer(FRAME_WORDS), WordBuffer(FRAME_WORDS))
        self._spills = [WordBuffer(_FIRST_SPILL_WORDS), WordBuffer(_FIRST_SPILL_WORDS)]
        self._bounded = broadcast_options(deadline_s=self._deadline_s)
        self._unbounded = broadcast_options(deadline_s=FOREVER_S)
        self._posted: WordBuffer | None = None

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """One broadcast, or two. Raises ProtocolError or CollectiveFailed."""
        encoded = self._numbering.outgoing(message, digest=digest, placement=placement)
        seq = self._numbering.seq
        frame = self._frames[seq & 1]
        try:
            _finish(frame)
            frame.bytes[:] = encoded.frame
            frame.work = self._group.broadcast([frame.tensor], self._bounded)
            if encoded.spill:
                words = len(encoded.spill) // 4
                spill = self._spill(seq, words)
                spill.bytes[: len(encoded.spill)] = encoded.spill
                spill.work = self._group.broadcast([spill.tensor[:words]], self._bounded)
        except RuntimeError as error:
            raise collective_failed(self._what(), self._info, error).located(
                seq=seq, command=encoded.code.name
            ) from error
        if encoded.code is Command.SHUTDOWN:
            self.flush()
        return seq

    def receive(self) -> Received:
        """The next command. Raises ProtocolError or CollectiveFailed."""
        frame = self._posted or self._post()
        self._posted = None
        try:
            _finish(frame)
            header = decode_header(frame.bytes)
            self._numbering.incoming(header)
            if header.spilled:
                spill = self._spill(header.seq, header.payload_words)
                part = spill.tensor[: header.payload_words]
                self._group.broadcast([part], self._bounded).wait()
                payload = bytes(spill.bytes[: 4 * header.payload_words])
            else:
                payload = inline_payload(header, frame.bytes)
            received = decode_payload(header, payload)
            if header.code is not Command.SHUTDOWN:
                self._posted = self._post()
        except RuntimeError as error:
            if isinstance(error, ValueError):
                raise  # a ProtocolError: bytes came, but they are no command
            raise collective_failed(self._what(), self._info, error) from error
        return received

    def flush(self) -> None:
        """Rank 0: until everything sent has left. Raises CollectiveFailed."""
        try:
            for buffer in (*self._frames, *self._spills):
                _finish(buffer)
        except RuntimeError as error:
            raise collective_failed(self._what(), self._info, error) from error

    def close(self) -> None:
        """Drop the group's sockets. Raises CollectiveFailed when something sent cannot leave."""
        if self._group is None:
            return
        if self._info.rank == 0:
            self.flush()
        self._group.shutdown()
        self._group = None

    def _post(self) -> WordBuffer:
        frame = self._frames[(self._numbering.seq + 1) & 1]
        frame.work = self._group.broadcast([frame.tensor], self._unbounded)
        return frame

    def _spill(self, seq: int, words: int) -> WordBuffer:
        """The spill buffer of this command, free and large enough."""
        spill = self._spills[seq & 1]
        _finish(spill)
        if spill.words < words:
            spill = self._spills[seq & 1] = WordBuffer(1 << (words - 1).bit_length())
        return spill

    def _what(self) -> str:
        return f"command broadcast (deadline {self._deadline_s:g} s)"


def gloo_channel(
    store: KeyStore,
    info: RankInfo,
    config: EPConfig,
    *,
    address: str,
    state: StateDigest | None = None,
    mark: Mark | None = None,
) -> GlooChannel:
    """A channel on a group of its own; every rank calls it. state, mark: rank 0 only."""
    group = gloo_group(store, info, name="commands", deadline_s=FOREVER_S, address=address)
    return GlooChannel(group, info, config, state=state, mark=mark)


def _finish(buffer: WordBuffer) -> None:
    """Wait until the buffer's broadcast is over."""
    if buffer.work is not None:
        work, buffer.work = buffer.work, None
        work.wait()
