"""Deaths under our own spawn: the parent ends, says the cause last, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.ep.status_page import process_state

PARENT = """
import sys
from phalanx.launch.spawn import spawn_ranks
sys.exit(spawn_ranks(sys.argv[1:], 2, module="tests.multirank.imports_torch"))
"""
PATIENCE_S = 90


@contextmanager
def spawned(place: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A parent with two ranks, all of them at `place`; the parent and the ranks' pids."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, place, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as parent:
        try:
            until = time.monotonic() + PATIENCE_S
            while not all((folder / f"{place}.{rank}").exists() for rank in range(2)):
                assert parent.poll() is None, parent.communicate()[0]
                assert time.monotonic() < until, f"ranks did not come to {place}"
                time.sleep(0.05)
            yield parent, ranks_of(parent.pid)
        finally:
            parent.kill()


def ranks_of(parent: int) -> list[int]:
    """Process ids of the ranks, by rank."""
    found: dict[int, int] = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        for item in environment:
            name, _, value = item.partition(b"=")
            if name == b"PHALANX_INTERNAL_RANK":
                found[int(value)] = int(child)
    return [found[rank] for rank in sorted(found)]


def ended(parent: subprocess.Popen[str], ranks: list[int]) -> tuple[int, str]:
    """Wait for the end; the exit status and the last line. Nobody may be left."""
    output, _ = parent.communicate(timeout=30)
    assert [process_state(pid) for pid in ranks if process_state(pid) not in ("", "Z")] == []
    return parent.returncode, output.strip().splitlines()[-1]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_inside_the_import_of_torch_is_named(tmp_path: Path, victim: int) -> None:
    with spawned("import", tmp_path) as (parent, ranks):
        os.kill(ranks[victim], signal.SIGKILL)
        status, line = ended(parent, ranks)
        assert status == 128 + signal.SIGKILL
        assert f"RankLost: rank {victim} of 2" in line
        assert f"pid {ranks[victim]}" in line
        assert "SIGKILL" in line


@pytest.mark.parametrize("victim", [0, 1])
def test_the_parents_last_line_is_what_the_surviving_ranks_know(
    tmp_path: Path, victim: int
) -> None:
    with spawned("idle", tmp_path) as (parent, ranks):
        os.kill(ranks[victim], signal.SIGKILL)
        status, line = ended(parent, ranks)
        assert status == 70, line
        assert f"RankLost: rank {victim} of 2" in line
        assert f"pid {ranks[victim]}" in line
        assert "phase idle" in line


def test_the_ranks_die_with_a_killed_parent(tmp_path: Path) -> None:
    with spawned("import", tmp_path) as (parent, ranks):
        parent.kill()
        parent.wait()
        until = time.monotonic() + 10
        while any(process_state(pid) not in ("", "Z") for pid in ranks):
            assert time.monotonic() < until, "a rank outlived its parent"
            time.sleep(0.02)
