"""Model source: named models are prepared once, by one process at a time, where the flag says."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from phalanx.launch import tiny_model
from phalanx.launch.model_source import cache_dir, checkpoint_folder
from phalanx.runtime.flags import read_flags


def test_cache_folder_is_the_flags_or_the_users(tmp_path: Path) -> None:
    assert cache_dir(read_flags({"PHALANX_CACHE_DIR": str(tmp_path)})) == tmp_path
    assert cache_dir(read_flags({})) == Path.home() / ".cache/phalanx"


def test_a_path_is_taken_as_it_is() -> None:
    assert checkpoint_folder("/some/where", flags=read_flags({})) == Path("/some/where")


def test_tiny_is_prepared_under_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone else who wants the lock while the model is made does not get it."""
    held = []

    def prepare(cache: Path) -> Path:
        with (cache / "tiny.lock").open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        return cache / "tiny"

    monkeypatch.setattr(tiny_model, "prepare_tiny", prepare)
    flags = read_flags({"PHALANX_CACHE_DIR": str(tmp_path / "new")})
    assert checkpoint_folder("tiny", flags=flags) == tmp_path / "new" / "tiny"
    assert held == [True]
