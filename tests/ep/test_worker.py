"""The worker loop against a scripted channel: order of work, digest first, faults reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from phalanx.ep.commands import Command, Message, MtpPropose, Noop, Shutdown
from phalanx.ep.faults import CollectiveFailed, EPFault, ProtocolError, RankDesync, RankFailed
from phalanx.ep.frames import Received, decode, encode
from phalanx.ep.lockstep import StateDigest
from phalanx.ep.worker import worker_loop

PROPOSE = MtpPropose(slot=3, last_token=7, position=21, num_drafts=2, hidden_row=0, feed_rows=1)


class Script:
    """A channel and a liveness in one: rank 0's side is its own StateDigest."""

    def __init__(self, messages: list[Message | Exception]) -> None:
        self.head = StateDigest()
        self.stats: dict[str, int] = {}
        self.events: list[tuple[Any, ...]] = []
        self.checks = 0
        self._messages = messages
        self._seq = 0

    def receive(self) -> Received:
        message = self._messages.pop(0)
        if isinstance(message, Exception):
            raise message
        self._seq += 1
        self.head.remember(self._seq)
        encoded = encode(message, seq=self._seq, digest=self.head.value, placement=0)
        self.head.fold_command(self._seq, encoded.code, encoded.payload)
        return decode(encoded.frame, encoded.spill)

    def send(self, message: Message, *, digest: int, placement: int) -> int:
        raise AssertionError("workers do not send")

    def close(self) -> None:
        pass

    def phase(self, name: str) -> None:
        self.events.append(("phase", name))

    def command(self, seq: int, code: int) -> None:
        self.events.append(("command", seq, Command(code).name))

    def checked(self) -> None:
        self.checks += 1

    def fields_of_head(self, seq: int) -> Mapping[str, str | int] | None:
        return self.head.fields_at(seq)

    def fail(self, error: BaseException) -> EPFault:
        self.events.append(("fail", type(error).__name__))
        return error if isinstance(error, EPFault) else RankFailed(str(error))


def run(script: Script, digest: StateDigest | None = None, **handlers: Any) -> StateDigest:
    digest = digest or StateDigest()
    worker_loop(
        script,
        handlers={Command[name]: handler for name, handler in handlers.items()},
        digest=digest,
        liveness=script,
    )
    return digest


def test_commands_go_to_their_handlers_in_order_until_shutdown() -> None:
    seen: list[Message] = []
    script = Script([PROPOSE, Noop(), PROPOSE, Shutdown("done"), PROPOSE])
    digest = run(script, MTP_PROPOSE=seen.append, SHUTDOWN=seen.append)
    assert seen == [PROPOSE, PROPOSE, Shutdown("done")]
    assert script.checks == 4
    assert digest.value == script.head.value
    assert [event for event in script.events if event[0] == "command"] == [
        ("command", 1, "MTP_PROPOSE"),
        ("command", 2, "NOOP"),
        ("command", 3, "MTP_PROPOSE"),
        ("command", 4, "SHUTDOWN"),
    ]
    assert script.events[0] == ("phase", "idle")


def test_a_differing_state_stops_before_the_handler_and_names_the_field() -> None:
    executed: list[Message] = []
    script = Script([PROPOSE])
    script.head.set_slot(3, length=21, last_token=7, drafter_rows=20, num_blocks=2)
    digest = StateDigest()
    digest.set_slot(3, length=21, last_token=9, drafter_rows=20, num_blocks=2)
    with pytest.raises(RankDesync) as caught:
        run(script, digest, MTP_PROPOSE=executed.append)
    assert executed == []
    text = str(caught.value)
    assert "seq 1, command MTP_PROPOSE" in text
    assert "slot 3 last_token: rank 0 has 7, this rank has 9" in text
    assert script.checks == 0


def test_one_step_apart_is_found_at_the_next_command() -> None:
    """A near tie picked differently: the exchanged values differ, the next command says so."""
    script = Script([PROPOSE, PROPOSE, Shutdown()])
    digest = StateDigest()
    executed: list[Message] = []

    def handler(message: Message) -> None:
        executed.append(message)
        script.head.fold_exchange([17, 4])
        digest.fold_exchange([17, 9])

    with pytest.raises(
        RankDesync, match=r"last exchange: rank 0 has \[17,4\], this rank has \[17,9\]"
    ):
        run(script, digest, MTP_PROPOSE=handler)
    assert len(executed) == 1


def test_a_state_that_rank_0_no_longer_keeps_is_still_an_error() -> None:
    script = Script([PROPOSE])
    digest = StateDigest()
    digest.set_placement(1)
    script.fields_of_head = lambda seq: None  # type: ignore[method-assign]
    with pytest.raises(RankDesync, match="not to be had"):
        run(script, digest, MTP_PROPOSE=lambda message: None)


def test_a_handler_that_raises_ends_the_loop_with_a_report() -> None:
    def broken(message: Message) -> None:
        raise ZeroDivisionError("boom")

    script = Script([PROPOSE, PROPOSE])
    with pytest.raises(RankFailed, match="boom"):
        run(script, MTP_PROPOSE=broken)
    assert script.events[-1] == ("fail", "ZeroDivisionError")


def test_a_command_without_a_handler_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="no handler"):
        run(Script([PROPOSE]))


def test_a_lost_channel_is_reported() -> None:
    script = Script([Noop(), CollectiveFailed("closed")])
    with pytest.raises(CollectiveFailed):
        run(script)
    assert script.events[-1] == ("fail", "CollectiveFailed")
