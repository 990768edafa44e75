"""kill -9 and SIGSTOP of every rank of the real command while it decodes: all end, the cause named.

The phase a signal meets (prefill, verify, propose, between two commands) is whatever the ranks are
in at that moment; the phases are held still and hit one by one in tests/multirank/.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

RANKS = 3
COMMAND = (
    "-m", "phalanx.launch", "run", "--model", "tiny", "--ranks", str(RANKS), "--prompt", "hello",
    "--ignore-eos", "--max-tokens", "1900", "--silence-deadline-s", "4", "--heartbeat-s", "0.5",
)  # fmt: skip


class Job:
    """The running command, its ranks, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.log, self.text = folder / "stderr", folder / "stdout"
        environ = os.environ | {"PHALANX_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        with self.text.open("wb") as out, self.log.open("wb") as said:
            self.parent = subprocess.Popen(
                [sys.executable, *COMMAND], stdout=out, stderr=said, env=environ
            )
        self.ranks: list[psutil.Process] = []

    def wait_for_text(self) -> None:
        """Until text streams: all ranks are past their start. Fills `ranks`, in order."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.text.stat().st_size > 40:
                self.ranks = psutil.Process(self.parent.pid).children()
                return
            if self.parent.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no text came; it said: {self.log.read_text()[-2000:]}")

    def ends(self, *, within_s: float) -> int:
        """Exit status of the launcher; every rank must be gone by then or soon after."""
        status = self.parent.wait(timeout=within_s)
        _, alive = psutil.wait_procs(self.ranks, timeout=5)
        assert not alive, f"left running: {alive}; said: {self.log.read_text()[-2000:]}"
        return status

    def close(self) -> None:
        """Leave nothing behind, whatever the test found."""
        for process in self.ranks:
            if process.is_running():
                process.kill()
        self.parent.kill()
        self.parent.wait()

    def last_line(self) -> str:
        return self.log.read_text().strip().splitlines()[-1]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    running = Job(tmp_path)
    try:
        running.wait_for_text()
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("victim", range(RANKS))
@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_a_rank_lost_while_decoding_ends_the_job_and_is_named(
    job: Job, signalled: signal.Signals, victim: int
) -> None:
    assert len(job.ranks) == RANKS
    pid = job.ranks[victim].pid
    os.kill(pid, signalled)
    # 5 s after a death, or the silence deadline plus as much; and time to be scheduled.
    assert job.ends(within_s=25) not in (0, None)
    said = job.last_line()
    assert re.search(rf"rank {victim} of {RANKS} \(host \S+, pid {pid}\)", said), said
    assert re.search(r"seq \d+, command \w+, phase \w+", said), said
    assert re.match(r".*Rank(Lost|Stopped)", said), said
