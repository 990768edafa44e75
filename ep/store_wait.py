"""Waiting for the other ranks through the store, before there is any collective.

Each rank writes one value and reads everybody's. Who has not written is known by name, so a wait
that passes its deadline says which ranks are late, and a long one says it every few seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from phalanx.ep.comm.groups import KeyStore
from phalanx.ep.faults import RendezvousFailed
from phalanx.ep.topology import RankInfo

_SAY_EVERY_S = 10.0
_POLL_S = (0.002, 0.05)
_LOG = logging.getLogger(__name__)


def exchange(
    store: KeyStore | None,
    info: RankInfo,
    *,
    name: str,
    value: bytes,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[bytes]:
    """Every rank's value, in rank order. A name may be used once per job.

    Raises RendezvousFailed naming the ranks that are late, or the store that is gone.
    """
    if store is None:
        return [value]
    values: dict[int, bytes] = {}
    try:
        store.set(f"{name}/{info.rank}", value)
        _collect(store, info, name=name, deadline_s=deadline_s, clock=clock, values=values)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RendezvousFailed):
            raise
        raise RendezvousFailed(
            f"the store is gone while waiting for {name!r} ({' '.join(str(error).split())[:200]}) "
            "-- ranks find each other through it -- its holder (rank 0 or the launcher) has ended"
        ).located(info) from error
    return [values[rank] for rank in range(info.world_size)]


def _collect(
    store: KeyStore,
    info: RankInfo,
    *,
    name: str,
    deadline_s: float,
    clock: Callable[[], float],
    values: dict[int, bytes],
) -> None:
    began = clock()
    say_at = began + _SAY_EVERY_S
    pause_s = _POLL_S[0]
    missing = list(range(info.world_size))
    while True:
        for rank in list(missing):
            if store.check([f"{name}/{rank}"]):
                values[rank] = bytes(store.get(f"{name}/{rank}"))
                missing.remove(rank)
        if not missing:
            return
        now = clock()
        if now - began > deadline_s:
            raise RendezvousFailed(
                f"ranks {missing} did not reach {name!r} (startup_deadline_s={deadline_s:g}) -- "
                "the job needs all of them at this point -- look at their logs, or raise the "
                "deadline if they are only slow"
            ).located(info, phase=name)
        if now >= say_at:
            say_at = now + _SAY_EVERY_S
            _LOG.warning("%s: waiting for ranks %s at %r, %.0f s", info, missing, name, now - began)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_S[1])
