"""Commands over a gloo group of their own: one broadcast each, two when the payload spills.

Buffers and options are made once. Rank 0 finishes each broadcast before it goes on: left unfinished
it would wait for a core while rank 0 computes, and every other rank with it. For the same reason a
worker posts its receive when it is idle, not before it executes a command. Measured beside a bare
broadcast in benchmarks/bench_commands.py.

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
from phalanx.ep.commands import Message
from phalanx.ep.faults import CollectiveFailed
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
        self.words = words
        self.tensor = torch.zeros(words, dtype=torch.int32)
        self.bytes = self.tensor.numpy().data.cast("B")


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
        """state, mark: see channel.Numbering; both are rank 0's."""
        self._numbering = Numbering(state, mark)
        self.stats = self._numbering.stats
        self._info = info
        self._group = group
        self._is_closed = False
        self._deadline_s = config.command_deadline_s
        self._frame = WordBuffer(FRAME_WORDS)
        self._spill = WordBuffer(_FIRST_SPILL_WORDS)
        self._bounded = broadcast_options(deadline_s=self._deadline_s)
        self._unbounded = broadcast_options(deadline_s=FOREVER_S)

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        """One broadcast, or two. Raises ProtocolError or CollectiveFailed."""
        encoded = self._numbering.outgoing(message, digest=digest, placement=placement)
        self._frame.bytes[:] = encoded.frame
        try:
            first = self._group.broadcast([self._frame.tensor], self._bounded)
            if encoded.spill:
                # Started before the first has finished: they travel one behind the other.
                spill = self._spill_of(len(encoded.spill) // 4)
                self._spill.bytes[: len(encoded.spill)] = encoded.spill
                self._group.broadcast([spill], self._bounded).wait()
            first.wait()
        except RuntimeError as error:
            raise self._failed(error, self._numbering.seq, encoded.code.name) from error
        return self._numbering.seq

    def receive(self) -> Received:
        """The next command. Raises ProtocolError or CollectiveFailed."""
        try:
            self._group.broadcast([self._frame.tensor], self._unbounded).wait()
        except RuntimeError as error:
            raise self._failed(error) from error
        header = decode_header(self._frame.bytes)
        self._numbering.incoming(header)
        if not header.spilled:
            return decode_payload(header, inline_payload(header, self._frame.bytes))
        spill = self._spill_of(header.payload_words)
        try:
            self._group.broadcast([spill], self._bounded).wait()
        except RuntimeError as error:
            raise self._failed(error, header.seq, header.code.name) from error
        return decode_payload(header, bytes(self._spill.bytes[: 4 * header.payload_words]))

    def close(self) -> None:
        """Drop the group's sockets; everything sent has left. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._group.shutdown()

    def _spill_of(self, words: int) -> torch.Tensor:
        """The first `words` of the spill buffer, which grows as needed."""
        if self._spill.words < words:
            self._spill = WordBuffer(1 << (words - 1).bit_length())
        return self._spill.tensor[:words]

    def _failed(
        self, error: RuntimeError, seq: int | None = None, command: str = ""
    ) -> CollectiveFailed:
        what = f"command broadcast (deadline {self._deadline_s:g} s)"
        fault = collective_failed(what, self._info, error)
        return fault if seq is None else fault.located(seq=seq, command=command)


def gloo_channel(
    store: KeyStore,
    info: RankInfo,
    config: EPConfig,
    *,
    address: str,
    state: StateDigest | None = None,
    mark: Mark | None = None,
) -> GlooChannel:
    """A channel on a group of its own; every rank calls it. state, mark: see GlooChannel."""
    group = gloo_group(store, info, name="commands", deadline_s=FOREVER_S, address=address)
    return GlooChannel(group, info, config, state=state, mark=mark)
