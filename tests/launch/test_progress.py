"""Progress: draws on a terminal, is silent elsewhere unless the work took long."""

from __future__ import annotations

import io

import pytest

from phalanx.launch import progress
from phalanx.launch.progress import ProgressBar, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_draws_nothing_at_all() -> None:
    assert bar("x", quiet=True) is None


def test_bar_fills_and_is_wiped_at_the_end() -> None:
    stream = Terminal()
    draw = ProgressBar("loading", stream=stream)
    draw(1, 2)
    assert "loading [###############" in stream.getvalue() and "50%" in stream.getvalue()
    draw(2, 2)
    assert stream.getvalue().endswith("\r\033[K")


def test_nothing_to_do_is_done() -> None:
    stream = Terminal()
    ProgressBar("loading", stream=stream)(0, 0)
    assert "100%" in stream.getvalue()


def test_a_log_gets_one_line_and_only_for_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    draw = ProgressBar("loading", stream=stream)
    draw(1, 2)
    draw(2, 2)
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "WORTH_A_LINE_S", -1.0)
    draw(2, 2)
    assert stream.getvalue().startswith("loading: ") and stream.getvalue().count("\n") == 1
