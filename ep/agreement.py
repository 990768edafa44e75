"""Start-up agreement: every rank shows what it was started with, and all refuse a difference.

It runs over the store, before any collective, so that ranks which would not survive a collective
together still say why. Every rank compares the same sheets and therefore fails with the same line.
Free memory and KV blocks may differ: the job gets the minimum. When every rank asks for the lenient
parity, differing flags and settings are only logged; builds, ranks and devices never may differ.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from phalanx.ep.comm.groups import KeyStore
from phalanx.ep.faults import AgreementFailed, EPFault, RendezvousFailed

_POLL_S = 0.02
_READ_PATIENCE_S = 10.0
_SHOWN_VALUES = 8
_MAX_SETTINGS = 6
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

Parity = Literal["fail", "warn"]
"""What a differing flag or setting does: stop every rank, or only be logged."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's sheet. flags and config: names and values as text; machine: see status_page.py."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    machine: str
    address: str
    protocol: int
    build: str
    flags: dict[str, str]
    config_digest: int
    config: dict[str, str]
    free_memory_bytes: int
    max_kv_blocks: int
    parity: Parity = "fail"


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks now know: the KV blocks of the job, and every sheet in rank order.

    tolerated: the differences that were only logged.
    """

    kv_blocks: int
    free_memory_bytes: int
    sheets: tuple[Agreement, ...]
    tolerated: tuple[str, ...] = ()

    @property
    def on_one_machine(self) -> bool:
        """True when all ranks can reach each other through loopback."""
        return len({sheet.machine for sheet in self.sheets}) == 1


def agree(store: KeyStore, mine: Agreement, *, deadline_s: float) -> Agreed:
    """Show `mine`, read everybody's, compare. Every rank calls it once.

    Raises AgreementFailed naming the setting and each rank's value, or the two processes that are
    the same rank; RendezvousFailed naming the ranks that did not come within `deadline_s` seconds.
    """
    return located(mine, lambda: _agree(store, mine, deadline_s))


def compare(sheets: Sequence[Agreement]) -> Agreed:
    """Compare the sheets of ranks 0..n-1. Raises AgreementFailed naming every difference."""
    problems = _differences(_identity_columns(sheets))
    settings = _differences(_setting_columns(sheets))
    tolerated = () if any(sheet.parity != "warn" for sheet in sheets) else tuple(settings)
    if not tolerated:
        problems += settings
        if not settings:
            digests = [f"{sheet.config_digest:016x}" for sheet in sheets]
            problems += _differences([("config digest", digests)])
    problems += _shared_devices(sheets)
    if problems:
        more = len(problems) - _MAX_SETTINGS
        shown = "; ".join(problems[:_MAX_SETTINGS]) + (f"; and {more} more" if more > 0 else "")
        raise AgreementFailed(
            f"the ranks were not started alike: {shown} -- they would run different collectives "
            "-- start every rank with the same options, flags and build",
            phase="agreement",
        )
    return Agreed(
        kv_blocks=min(sheet.max_kv_blocks for sheet in sheets),
        free_memory_bytes=min(sheet.free_memory_bytes for sheet in sheets),
        sheets=tuple(sheets),
        tolerated=tolerated,
    )


def _agree(store: KeyStore, mine: Agreement, deadline_s: float) -> Agreed:
    encoded = msgspec.msgpack.encode(mine)
    if store.add(f"agree/claim/{mine.rank}", 1) > 1:
        _refuse_second(store, mine)
    store.set(_sheet_key(mine.rank), encoded)
    sheets = _read_all(store, mine, deadline_s)
    try:
        agreed = compare(sheets)
        for difference in agreed.tolerated if mine.rank == 0 else ():
            _LOG.warning("the ranks were not started alike, and go on: %s", difference)
        return agreed
    finally:
        _wait_until_all_have_read(store, mine)


def _refuse_second(store: KeyStore, mine: Agreement) -> None:
    """This rank number is taken: tell everybody, then fail."""
    until = time.monotonic() + _READ_PATIENCE_S
    while not store.check([_sheet_key(mine.rank)]) and time.monotonic() < until:
        time.sleep(_POLL_S)
    first = "a process that did not say who it is"
    if store.check([_sheet_key(mine.rank)]):
        other = msgspec.msgpack.decode(store.get(_sheet_key(mine.rank)), type=Agreement)
        first = f"host {other.host} pid {other.pid}"
    cause = (
        f"two processes are rank {mine.rank}: {first}, and host {mine.host} pid {mine.pid} -- each "
        "rank must be started once -- check the rank variables of the launcher"
    )
    store.set("agree/refused", cause.encode())
    raise AgreementFailed(cause, phase="agreement")


def _read_all(store: KeyStore, mine: Agreement, deadline_s: float) -> list[Agreement]:
    until = time.monotonic() + deadline_s
    sheets: dict[int, Agreement] = {}
    while len(sheets) < mine.world_size:
        if store.check(["agree/refused"]):
            raise AgreementFailed(store.get("agree/refused").decode(), phase="agreement")
        for rank in range(mine.world_size):
            if rank not in sheets and store.check([_sheet_key(rank)]):
                sheets[rank] = _read_sheet(store.get(_sheet_key(rank)), rank)
                _check_world(mine, sheets[rank])
        if len(sheets) == mine.world_size:
            break
        if time.monotonic() > until:
            missing = [rank for rank in range(mine.world_size) if rank not in sheets]
            raise RendezvousFailed(
                f"ranks that never came: {missing} (world_size={mine.world_size}, "
                f"startup_deadline_s={deadline_s:g}) -- the job needs all of them -- look at "
                "their logs, or raise the deadline",
                phase="agreement",
            )
        time.sleep(_POLL_S)
    return [sheets[rank] for rank in range(mine.world_size)]


def _read_sheet(data: bytes, rank: int) -> Agreement:
    try:
        return msgspec.msgpack.decode(data, type=Agreement)
    except msgspec.MsgspecError as error:
        raise AgreementFailed(
            f"rank {rank}'s sheet cannot be read ({error}) -- it runs another build -- start every "
            "rank from one build",
            phase="agreement",
        ) from error


def _check_world(mine: Agreement, other: Agreement) -> None:
    """At once, not in `compare`: with different sizes some rank would wait for ever."""
    if other.world_size != mine.world_size:
        raise AgreementFailed(
            f"world_size differs: rank {mine.rank} has {mine.world_size}, rank {other.rank} has "
            f"{other.world_size} -- they wait for different ranks -- give every rank the same size",
            phase="agreement",
        )


def _wait_until_all_have_read(store: KeyStore, mine: Agreement) -> None:
    """Rank 0 may host the store: it must not go away while others still read from it."""
    read = store.add("agree/read", 1)
    until = time.monotonic() + _READ_PATIENCE_S
    while mine.rank == 0 and read < mine.world_size and time.monotonic() < until:
        time.sleep(_POLL_S)
        read = store.add("agree/read", 0)


def _identity_columns(sheets: Sequence[Agreement]) -> list[tuple[str, list[str]]]:
    """(name, its value on each rank) for what no parity makes acceptable."""
    return [
        ("protocol version", [str(sheet.protocol) for sheet in sheets]),
        ("build", [sheet.build for sheet in sheets]),
    ]


def _setting_columns(sheets: Sequence[Agreement]) -> list[tuple[str, list[str]]]:
    """(setting, its value on each rank) for flags, then for the configuration."""
    columns = []
    for kind in ("flags", "config"):
        tables: list[dict[str, str]] = [getattr(sheet, kind) for sheet in sheets]
        names = dict.fromkeys(name for table in tables for name in table)
        columns += [(name, [table.get(name, "(none)") for table in tables]) for name in names]
    return columns


def _shared_devices(sheets: Sequence[Agreement]) -> list[str]:
    """Ranks of one machine that would take the same device."""
    problems = []
    first: dict[tuple[str, int], int] = {}
    for sheet in sheets:
        other = first.setdefault((sheet.machine, sheet.local_rank), sheet.rank)
        if other != sheet.rank:
            problems.append(
                f"ranks {other} and {sheet.rank} on host {sheet.host} are both local rank "
                f"{sheet.local_rank}"
            )
    return problems


def _differences(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """In words, the columns whose values are not all equal."""
    found = (_difference(name, values) for name, values in columns)
    return [difference for difference in found if difference is not None]


def _difference(name: str, values: Sequence[str]) -> str | None:
    """`name: rank 0 has a, ranks 1, 2 have b`, or None when all are equal."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    if len(groups) == 1:
        return None
    said = []
    for value, ranks in groups.items():
        shown = ", ".join(map(str, ranks[:_SHOWN_VALUES])) + (
            " ..." if len(ranks) > _SHOWN_VALUES else ""
        )
        said.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}: {value}")
    return f"{name} ({'; '.join(said)})"


def _sheet_key(rank: int) -> str:
    return f"agree/sheet/{rank}"


def located(mine: Agreement, call: Callable[[], _T]) -> _T:
    """Run `call`; its fault says which rank it comes from, a broken store becomes one too."""
    known: dict[str, Any] = {
        "rank": mine.rank,
        "world_size": mine.world_size,
        "host": mine.host,
        "pid": mine.pid,
    }
    try:
        return call()
    except EPFault as fault:
        raise fault.located(phase="agreement", **known) from fault
    except RuntimeError as error:
        raise RendezvousFailed(
            f"the store broke while the ranks agreed ({' '.join(str(error).split())}) -- its host "
            "is rank 0 or the launcher -- look at what ended there",
            phase="agreement",
            **known,
        ) from error
