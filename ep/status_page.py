"""One rank's status in a shared page: phase, last command, lockstep checks.

A heartbeat is up to a second old; a page is exact, and the kernel keeps it for whoever has mapped
it after its writer was killed. Peers on the same machine map it through /proc; a peer that cannot
(another host, another pid namespace, not Linux) falls back to the last heartbeat. Writing costs
one pack into mapped memory, so the executor may mark every phase.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
from typing import NamedTuple

from phalanx.ep.commands import Command

_LAYOUT = struct.Struct("<16sQQI32s")
_PAGE_BYTES = 4096
_NAMES = {int(code): code.name for code in Command}


class Status(NamedTuple):
    """Where a rank is. seq -1 and command "" before the first command."""

    phase: str
    seq: int
    command: str
    digest_checks: int


class StatusPage:
    """The writer's side. One thread writes phase and command: the executor's."""

    def __init__(self) -> None:
        self.token = secrets.token_bytes(16)
        self.fd = -1
        self._phase = "start"
        self._seq = -1
        self._code = 0
        self._digest_checks = 0
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("phalanx-status", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, _PAGE_BYTES)
        self._memory = mmap.mmap(self.fd, _PAGE_BYTES)
        self._write()

    def phase(self, name: str) -> None:
        """What the rank does now; at most 32 bytes are kept."""
        self._phase = name
        self._write()

    def command(self, seq: int, code: int) -> None:
        """The command being executed."""
        self._seq, self._code = seq, code
        self._write()

    def checked(self) -> None:
        """One more digest compared and found equal."""
        self._digest_checks += 1

    @property
    def status(self) -> Status:
        """The current values."""
        name = _NAMES.get(self._code, "")
        return Status(self._phase, self._seq, name, self._digest_checks)

    def close(self) -> None:
        """Unmap; readers keep their own mapping."""
        with contextlib.suppress(ValueError, BufferError):
            self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _write(self) -> None:
        _LAYOUT.pack_into(
            self._memory,
            0,
            self.token,
            self._seq & 0xFFFFFFFFFFFFFFFF,
            self._digest_checks,
            self._code,
            self._phase.encode()[:32],
        )


class PageReader:
    """The reader's side of another process's page."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def read(self) -> Status:
        """The last values written, also after the writer is gone."""
        _, seq, checks, code, phase = _LAYOUT.unpack_from(self._memory)
        known = seq < 1 << 63
        name = phase.rstrip(b"\0").decode(errors="replace")
        return Status(name, seq if known else -1, _NAMES.get(code, ""), checks)

    def close(self) -> None:
        """Unmap."""
        self._memory.close()


def map_page(*, pid: int, fd: int, token: bytes) -> PageReader | None:
    """The page of process `pid` on this machine, or None when it cannot be reached or is not it."""
    if fd < 0:
        return None
    try:
        handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = mmap.mmap(handle, _PAGE_BYTES, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)
    if memory[:16] != token:
        memory.close()
        return None
    return PageReader(memory)


def machine_key() -> str:
    """Equal for processes that can reach each other through loopback and /proc.

    Boot id plus network and pid namespaces: two containers or two network namespaces of one
    machine are two hosts, as they are for sockets.
    """
    parts = []
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
    except OSError:
        parts.append(os.uname().nodename)
    for space in ("net", "pid"):
        try:
            parts.append(os.readlink(f"/proc/self/ns/{space}"))
        except OSError:
            parts.append(os.uname().nodename)
    return "/".join(parts)


def process_state(pid: int) -> str:
    """The kernel's one-letter state of a process here ("T" = stopped by a signal), "" if gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
