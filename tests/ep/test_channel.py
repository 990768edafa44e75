"""Numbering, folding and the local channel; channels between processes are in tests/multirank."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.channel import LocalChannel, Numbering
from phalanx.ep.channel_nccl import NcclChannel
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.commands import Command, MtpPropose, Noop, Shutdown
from phalanx.ep.faults import ProtocolError
from phalanx.ep.frames import SEQ_MASK, decode_header, encode
from phalanx.ep.lockstep import StateDigest
from tests.ep.messages import messages


@settings(max_examples=30, deadline=None)
@given(sent=st.lists(messages, max_size=6))
def test_rank_0_numbers_counts_marks_and_folds_every_command(sent: list) -> None:
    state, marks = StateDigest(), []
    channel = LocalChannel(state=state, mark=lambda seq, code: marks.append((seq, code)))
    by_hand = StateDigest()
    for message in sent:
        seq = channel.send(message, digest=state.value, placement=0)
        encoded = encode(message, seq=seq, digest=0, placement=0)
        by_hand.fold_command(seq, encoded.code, encoded.payload)
    assert [seq for seq, _ in marks] == list(range(1, len(sent) + 1))
    assert sum(channel.stats.values()) == len(sent)
    assert state.value == by_hand.value


def test_the_state_before_a_command_is_what_a_worker_can_ask_for() -> None:
    state = StateDigest()
    channel = LocalChannel(state=state)
    state.set_slot(0, length=3, last_token=1, drafter_rows=0, num_blocks=1)
    seq = channel.send(Noop(), digest=state.value, placement=0)
    state.set_slot(0, length=4, last_token=1, drafter_rows=0, num_blocks=1)
    fields = state.fields_at(seq)
    assert fields is not None
    assert fields["slot 0 length"] == 3
    assert str(fields["commands"]).startswith("0 ")


def test_a_refused_message_takes_no_number() -> None:
    state = StateDigest()
    channel = LocalChannel(state=state)
    bad = MtpPropose(slot=-1, last_token=1, position=1, num_drafts=1, hidden_row=0, feed_rows=0)
    with pytest.raises(ProtocolError):
        channel.send(bad, digest=0, placement=0)
    assert channel.stats == {}
    assert state.value == StateDigest().value
    assert channel.send(Noop(), digest=0, placement=0) == 1


@pytest.mark.parametrize(("arriving", "word"), [(1, "replayed"), (0, "replayed"), (3, "order")])
def test_lost_and_repeated_commands_are_named(arriving: int, word: str) -> None:
    numbering = Numbering(None)
    numbering.incoming(decode_header(encode(Noop(), seq=1, digest=0, placement=0).frame))
    with pytest.raises(ProtocolError, match=word) as caught:
        numbering.incoming(decode_header(encode(Noop(), seq=arriving, digest=0, placement=0).frame))
    assert caught.value.field == "sequence number"
    assert caught.value.report.command == "NOOP"


def test_numbers_wrap_around() -> None:
    sender, receiver = Numbering(None), Numbering(None)
    sender.seq = receiver.seq = SEQ_MASK - 1
    for expected in (SEQ_MASK, 0, 1):
        header = decode_header(sender.outgoing(Noop(), digest=0, placement=0).frame)
        receiver.incoming(header)
        assert header.seq == expected == sender.seq == receiver.seq


def test_a_world_of_one_receives_only_a_shutdown() -> None:
    received = LocalChannel().receive()
    assert received.code is Command.SHUTDOWN


def test_the_device_channel_sends_one_broadcast_or_two() -> None:
    comm = LocalCommunicator()
    channel = NcclChannel(comm)
    channel.send(Noop(), digest=1, placement=0)
    assert comm.counts == {"broadcast": 1}
    channel.send(Shutdown("x" * 1000), digest=1, placement=0)
    assert comm.counts == {"broadcast": 3}
    assert channel.stats == {"NOOP": 1, "SHUTDOWN": 1}
    channel.close()
