"""A rank's life in a world of one, and how a process says why it leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from phalanx.ep.commands import Command, Noop
from phalanx.ep.faults import FaultReport, RankDesync, from_report
from phalanx.ep.topology import EPConfig, RankInfo
from phalanx.launch import rank_main
from phalanx.launch.rank_main import (
    INTERRUPTED_EXIT,
    Rank,
    RankJob,
    end_process,
    make_sheet,
    open_rank,
    run_rank,
    serve_worker,
)
from phalanx.launch.ranks import CAUSE_FD

ALONE = RankInfo(rank=0, world_size=1, local_rank=0, local_world_size=1, host="h", pid=1)
CONFIG = EPConfig()
FAULT = RankDesync("slot 3 length: rank 0 has 5, this rank has 4", rank=1, world_size=2, seq=812)


class Left(BaseException):
    """Stands for os._exit."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes of processes that would have ended."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(rank_main.os, "_exit", leave)
    return codes


@pytest.fixture
def alone() -> Iterator[Rank]:
    """A rank of a world of one."""
    sheet = make_sheet(flags={}, settings={}, max_kv_blocks=12)
    rank = open_rank(CONFIG, ALONE, meeting=None, sheet=sheet)
    yield rank
    rank.close()


def run_alone(coordinate: Any, **more: Any) -> int:
    values = {"load": lambda rank: "loaded", "handlers": lambda rank, loaded: {}}
    job = RankJob(**(values | {"coordinate": coordinate} | more))
    return run_rank(job, CONFIG, ALONE, meeting=None, sheet=make_sheet(flags={}, settings={}))


def test_a_rank_alone_agrees_with_itself(alone: Rank) -> None:
    assert alone.kv_blocks == 12
    assert alone.agree_min("blocks", 7) == 7
    alone.ready()
    assert alone.comm.world_size == 1
    assert alone.lockstep_checks() == 0


def test_one_rank_uses_torchs_own_threads_unless_told() -> None:
    before = torch.get_num_threads()
    sheet = make_sheet(flags={}, settings={})
    try:
        open_rank(CONFIG, ALONE, meeting=None, sheet=sheet).close()
        assert torch.get_num_threads() == before
        open_rank(CONFIG, ALONE, meeting=None, sheet=sheet, threads=3).close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_rank_0_cannot_serve(alone: Rank) -> None:
    with pytest.raises(ValueError, match="rank 0 sends commands"):
        serve_worker(alone, {})


def test_the_result_of_the_work_is_the_exit_code_and_shutdown_is_sent() -> None:
    seen: list[Rank] = []

    def coordinate(rank: Rank, loaded: str) -> int:
        assert loaded == "loaded"
        rank.channel.send(Noop(), digest=rank.digest.value, placement=0)
        seen.append(rank)
        return 3

    assert run_alone(coordinate) == 3
    assert seen[0].channel.stats == {Command.NOOP.name: 1, Command.SHUTDOWN.name: 1}


def test_an_interrupt_ends_in_good_order_with_its_own_exit_code() -> None:
    seen: list[Rank] = []

    def coordinate(rank: Rank, loaded: str) -> int:
        seen.append(rank)
        raise KeyboardInterrupt

    assert run_alone(coordinate) == INTERRUPTED_EXIT
    assert seen[0].channel.stats == {Command.SHUTDOWN.name: 1}


@pytest.mark.parametrize("place", ["load", "coordinate"])
def test_an_exception_leaves_with_its_type_text_and_phase(
    place: str, exits: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[Rank] = []

    def broken(rank: Rank, *_: Any) -> Any:
        seen.append(rank)
        raise KeyError("no such tensor")

    options: dict[str, Any] = {"load": broken} if place == "load" else {}
    with pytest.raises(Left):
        run_alone(broken, **options)
    seen[0].close()  # the process would be gone
    assert exits[-1] == 70
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("RankFailed: rank 0 of 1")
    assert f"phase {place}" in line
    assert "KeyError: 'no such tensor'" in line


def test_the_cause_is_the_last_line_on_stderr_when_nobody_asked_for_it(
    exits: list[int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CAUSE_FD, raising=False)
    with pytest.raises(Left):
        end_process(FAULT)
    assert exits == [72]
    assert capfd.readouterr().err.splitlines()[-1] == str(FAULT)


def test_the_cause_goes_to_the_launcher_that_asked_for_it(
    exits: list[int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(CAUSE_FD, str(writing))
    with pytest.raises(Left):
        end_process(FAULT)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        [line] = pipe.read().splitlines()
    told = from_report(msgspec.json.decode(line, type=FaultReport))
    assert type(told) is RankDesync
    assert told.report == FAULT.report
    assert capfd.readouterr().err == ""


def test_the_sheet_shows_versions_and_its_digest_follows_the_settings() -> None:
    first = make_sheet(flags={"PHALANX_A": "on"}, settings={"a": "1"})
    same = make_sheet(flags={}, settings={"a": "1"})
    other = make_sheet(flags={}, settings={"a": "2"})
    assert first.config["torch version"] == str(torch.__version__)
    assert first.config_digest == same.config_digest != other.config_digest
    assert first.free_memory_bytes > 0
    assert first.parity == "fail"
