"""Faults say who, where and why in one line, and survive the trip to the other ranks."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.ep import faults
from phalanx.ep.faults import (
    AgreementFailed,
    CollectiveFailed,
    EPFault,
    FaultReport,
    ProtocolError,
    RankDesync,
    RankFailed,
    RankLost,
    RankStopped,
    RendezvousFailed,
    describe,
    from_report,
)
from phalanx.ep.topology import RankInfo

KINDS = [
    AgreementFailed,
    CollectiveFailed,
    ProtocolError,
    RankDesync,
    RankFailed,
    RankLost,
    RankStopped,
    RendezvousFailed,
]
INFO = RankInfo(
    rank=2, world_size=4, local_rank=2, local_world_size=4, host="node1", pid=77, launcher="spawn"
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_survives_the_wire(kind: type[EPFault]) -> None:
    fault = kind("why -- what for -- what to do").located(
        INFO, seq=812, command="FORWARD", phase="verify"
    )
    back = from_report(
        msgspec.msgpack.decode(msgspec.msgpack.encode(fault.report), type=FaultReport)
    )
    assert type(back) is kind
    assert str(back) == str(fault)
    assert str(fault) == (
        f"{kind.__name__}: rank 2 of 4 (host node1, pid 77), seq 812, command FORWARD, "
        "phase verify: why -- what for -- what to do"
    )


def test_every_kind_can_be_read_back_and_leaves_with_a_status_of_failure() -> None:
    found = {kind for kind in vars(faults).values() if isinstance(kind, type)}
    kinds = {kind for kind in found if issubclass(kind, EPFault)}
    for kind in kinds:
        assert type(from_report(FaultReport(kind=kind.__name__, cause="x"))) is kind
        assert 0 < kind.exit_code < 126
    codes = {kind.exit_code for kind in (RankLost, RankStopped, RankDesync, ProtocolError)}
    assert len(codes) == 4


def test_a_kind_of_another_build_is_still_a_fault() -> None:
    fault = from_report(FaultReport(kind="RankOnFire", cause="smoke", rank=1))
    assert type(fault) is EPFault
    assert str(fault).startswith("RankOnFire: rank 1 of ?")


def test_what_is_unknown_is_filled_in_and_what_is_known_is_kept() -> None:
    fault = RankDesync("differs", seq=5, command="FORWARD")
    located = fault.located(INFO, seq=6, command="NOOP", phase="idle")
    assert (located.report.seq, located.report.command) == (5, "FORWARD")
    assert (located.report.rank, located.report.phase) == (2, "idle")
    assert located.located(INFO, phase="load").report.phase == "idle"


def test_a_fault_about_another_rank_is_not_given_this_ranks_place() -> None:
    fault = RankLost("gone", rank=3, world_size=4)
    assert fault.located(INFO, seq=9, phase="verify") is fault


def test_locating_keeps_class_field_and_cause() -> None:
    try:
        raise ProtocolError("bad", field="rows") from KeyError("x")
    except ProtocolError as error:
        located = error.located(INFO)
    assert type(located) is ProtocolError
    assert located.field == "rows"
    assert isinstance(located.__cause__, KeyError)
    assert str(located.adding("more")).endswith("bad; more")


def test_the_line_is_one_line_whatever_the_cause() -> None:
    assert "\n" not in describe(FaultReport(kind="RankLost", cause="a\n  b\n"))
    assert describe(FaultReport(kind="RankLost", cause="a\n  b\n")).endswith(": a b")


def test_only_a_broken_collective_waits_for_its_cause() -> None:
    assert [kind for kind in KINDS if kind.secondary] == [CollectiveFailed]
