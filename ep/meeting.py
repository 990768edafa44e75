"""Where the ranks of a job meet: the address of the store, and who hosts it.

Filled by `launch/ranks.py`, read by `rendezvous.py`. A port is never searched for and used later:
either somebody already listens on it (a launcher's agent, an inherited socket), or rank 0 binds it
and fails in words when it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A TCP store.

    hosted_elsewhere: the launcher's agent holds the store and every rank is a guest; otherwise
    rank 0 hosts it, on `listen_fd` when that is an inherited listening socket (>= 0).
    job: what this job's keys begin with, so that a store may serve several.
    on_one_host: every rank of the job is on the host of rank 0.
    """

    address: str
    port: int
    job: str
    hosted_elsewhere: bool = False
    listen_fd: int = -1
    on_one_host: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ValueError(
                f"port out of range (port={self.port}, limit 1..65535) -- the ranks meet there -- "
                "mend MASTER_PORT or --master-port"
            )
        if not self.address:
            raise ValueError(
                "no address to meet at (master_addr='') -- the ranks cannot find each other -- "
                "set MASTER_ADDR or --master-addr"
            )
