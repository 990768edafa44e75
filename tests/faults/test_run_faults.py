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
        self.log = folder / "stderr"
        environ = os.environ | {"PHALANX_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        self.parent = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdout=(folder / "stdout").open("wb"),
            stderr=self.log.open("wb"),
            env=environ,
        )
        self.text = folder / "stdout"
        self.ranks = self._ranks()

    def _ranks(self) -> list[psutil.Process]:
        """The rank processes in order, once text streams (so all are past start-up)."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.text.stat().st_size > 40:
                return psutil.Process(self.parent.pid).children()
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

    def last_line(self) -> str:
        return self.log.read_text().strip().splitlines()[-1]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


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
