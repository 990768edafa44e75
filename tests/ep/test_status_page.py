"""A rank's status page: exact, readable by others, and still there after its writer is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phalanx.ep.commands import Command
from phalanx.ep.status_page import (
    Status,
    StatusPage,
    machine_key,
    map_page,
    process_state,
)

WRITER = """
import sys
from phalanx.ep.commands import Command
from phalanx.ep.status_page import StatusPage
page = StatusPage()
page.command(4_294_967_295, Command.FORWARD)
page.checked()
page.phase("verify")
print(page.fd, page.token.hex(), flush=True)
sys.stdin.read()
"""

needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="pages are shared through /proc"
)


def test_a_page_says_what_was_written_last() -> None:
    page = StatusPage()
    assert page.status == Status("start", -1, "", 0)
    page.command(7, Command.MTP_PROPOSE)
    page.phase("propose")
    page.checked()
    assert page.status == Status("propose", 7, "MTP_PROPOSE", 1)
    page.close()
    page.close()


@needs_proc
def test_the_last_status_of_a_killed_process_can_be_read() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            fd, token = writer.stdout.readline().split()
            reader = map_page(pid=writer.pid, fd=int(fd), token=bytes.fromhex(token))
            assert reader is not None
        finally:
            writer.kill()
        writer.wait()
    assert reader.read() == Status("verify", 4_294_967_295, "FORWARD", 1)
    reader.close()


@needs_proc
def test_a_page_that_is_not_the_one_meant_is_not_read() -> None:
    page = StatusPage()
    mapped = map_page(pid=os.getpid(), fd=page.fd, token=page.token)
    assert mapped is not None
    mapped.close()
    assert map_page(pid=os.getpid(), fd=page.fd, token=b"x" * 16) is None
    assert map_page(pid=os.getpid(), fd=-1, token=page.token) is None
    assert map_page(pid=2**22 + 1, fd=page.fd, token=page.token) is None
    assert map_page(pid=os.getpid(), fd=0, token=page.token) is None
    page.close()


def test_a_long_phase_is_cut_and_not_an_error() -> None:
    page = StatusPage()
    page.phase("ä" * 40)
    if page.fd >= 0:
        mapped = map_page(pid=os.getpid(), fd=page.fd, token=page.token)
        assert mapped is not None
        assert mapped.read().phase.startswith("ä" * 16)
        mapped.close()
    page.close()


def test_processes_of_one_machine_have_one_key() -> None:
    code = "from phalanx.ep.status_page import machine_key; print(machine_key())"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == machine_key()
    assert machine_key().count("/") == 2


@needs_proc
def test_a_running_process_is_told_from_one_that_is_gone() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == ""
