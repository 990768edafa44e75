"""phalanx demo: an answer, the table, and the proof that speculation did not change the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.launch.cli import main


def test_demo_shows_text_table_and_that_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path))
    arguments = ["--ranks", "1", "--threads", "1", "--max-tokens", "6", "--ignore-eos"]
    assert main(["demo", "--model", "tiny", *arguments]) == 0
    said = capsys.readouterr().out
    assert "> Write a Python function" in said
    for word in ("tokens/s", "acceptance length", "lockstep", "speculation off", "identical"):
        assert word in said


def test_demo_of_a_checkpoint_without_a_drafter_is_a_plain_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path))
    arguments = ["--ranks", "1", "--threads", "1", "--max-tokens", "3", "--spec", "off"]
    assert main(["demo", "--model", "tiny", "--prompt", "hi", *arguments]) == 0
    said = capsys.readouterr().out
    assert "> hi" in said and "speculation off" not in said
