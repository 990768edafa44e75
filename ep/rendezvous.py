"""Rendezvous: the ranks find each other, agree, watch each other, and get their channels.

Order: store, agreement (over the store only), liveness, then the groups, so that a rank that dies
while sockets are being connected is already watched. Every wait has the start deadline. A world of
one gets the same things without a socket.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
from torch import device as torch_device

from phalanx.ep.agreement import Agreed, Agreement, Parity, agree, compare
from phalanx.ep.channel import CommandChannel, LocalChannel, Mark
from phalanx.ep.channel_gloo import gloo_channel
from phalanx.ep.channel_nccl import NcclChannel
from phalanx.ep.comm.choose import choose_communicator
from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.comm.groups import FOREVER_S, KeyStore, plain_reason, prefixed_store, tcp_store
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.faults import EPFault, RendezvousFailed
from phalanx.ep.liveness import Liveness, LivenessClient, OnFault
from phalanx.ep.liveness_server import LivenessServer
from phalanx.ep.lockstep import StateDigest
from phalanx.ep.meeting import Meeting
from phalanx.ep.status_page import machine_key
from phalanx.ep.topology import EPConfig, RankInfo

LOOPBACK = "127.0.0.1"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What this rank brings to the agreement besides who it is."""

    protocol: int
    build: str
    flags: dict[str, str]
    config_digest: int
    config: dict[str, str]
    free_memory_bytes: int
    max_kv_blocks: int
    parity: Parity = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank that is in the job. The caller closes it, on success and on failure."""

    info: RankInfo
    agreed: Agreed
    liveness: Liveness
    digest: StateDigest
    channel: CommandChannel
    comm: Communicator
    store: KeyStore | None

    def close(self) -> None:
        """Say farewell, then drop the sockets: a closing socket is not a death then."""
        if self.info.rank == 0 and isinstance(self.liveness, LivenessServer):
            self.liveness.wait_for_farewells(_FAREWELL_WAIT_S)
        self.liveness.close()
        self.channel.close()
        self.comm.close()


_FAREWELL_WAIT_S = 5.0


def join(
    info: RankInfo,
    config: EPConfig,
    *,
    meeting: Meeting | None,
    sheet: Sheet,
    device: torch_device,
    on_fault: OnFault,
) -> Joined:
    """Join the job. Every rank calls it once, with its own `info` and `sheet`.

    on_fault: called once, on the liveness thread, with the cause that ends the job.
    Raises RendezvousFailed (not all came, port taken, unreachable) or AgreementFailed.
    """
    digest = StateDigest()
    if info.world_size == 1:
        return _join_alone(
            info, config, sheet=sheet, digest=digest, device=device, on_fault=on_fault
        )
    if meeting is None:
        raise RendezvousFailed(
            "no address to meet at -- several ranks need one -- start them with a launcher, or "
            "give --master-addr and --master-port"
        ).located(info, phase="rendezvous")
    store = _broken_store_is_a_fault(info, lambda: open_store(info, config, meeting))
    own = own_address(meeting)
    token = _broken_store_is_a_fault(info, lambda: _shared(info, store, "token", secrets.token_hex))
    mine = _agreement(info, sheet, address=own)
    agreed = agree(store, mine, deadline_s=config.startup_deadline_s)
    address = LOOPBACK if agreed.on_one_machine else own
    liveness = _open_liveness(
        info, config, store=store, token=token, address=address, on_fault=on_fault
    )
    try:
        liveness.phase("connect")
        channel = open_channel(
            store, info, config, address=address, device=device, state=digest,
            mark=liveness.command,
        )  # fmt: skip
        comm = choose_communicator(
            config, info, store=store, name="model", device=device, address=address,
            on_stuck=liveness.fail,
        )  # fmt: skip
    except Exception as error:
        raise liveness.fail(error) from error
    if isinstance(liveness, LivenessServer):
        liveness.serve_fields(digest.fields_at)
    liveness.phase("joined")
    return Joined(
        info=info,
        agreed=agreed,
        liveness=liveness,
        digest=digest,
        channel=channel,
        comm=comm,
        store=store,
    )


def open_store(info: RankInfo, config: EPConfig, meeting: Meeting) -> KeyStore:
    """The job's store, with the keys of this job only. Raises RendezvousFailed in words."""
    is_host = info.rank == 0 and not meeting.hosted_elsewhere
    try:
        store = tcp_store(
            meeting.address,
            meeting.port,
            hosts=info.world_size if is_host else None,
            listen_fd=meeting.listen_fd,
            deadline_s=config.startup_deadline_s,
        )
    except (RuntimeError, ValueError) as error:
        place = f"{meeting.address}:{meeting.port}"
        if is_host:
            what = f"cannot listen at {place}"
            mend = "another program has that port: choose another MASTER_PORT or --master-port"
        else:
            what = f"cannot reach the store at {place}"
            mend = "see whether rank 0 runs there and whether that port is open between the hosts"
        raise RendezvousFailed(
            f"{what} ({plain_reason(error)}) -- the ranks meet there -- {mend}"
        ).located(info, phase="rendezvous") from error
    return prefixed_store(store, f"phalanx/{meeting.job}")


def open_channel(
    store: KeyStore,
    info: RankInfo,
    config: EPConfig,
    *,
    address: str,
    device: torch_device,
    state: StateDigest,
    mark: Mark,
) -> CommandChannel:
    """The command channel of several ranks. Every rank calls it. mark: see channel.Numbering."""
    is_head = info.rank == 0
    sender_state, sender_mark = (state, mark) if is_head else (None, None)
    if config.command_transport == "nccl":
        # The device communicator has one deadline for all it does, idle waits included.
        patient = replace(config, backend="nccl", collective_deadline_s=FOREVER_S)
        comm = choose_communicator(
            patient, info, store=store, name="commands", device=device, address=address
        )
        return NcclChannel(comm, state=sender_state, mark=sender_mark)
    return gloo_channel(store, info, config, address=address, state=sender_state, mark=sender_mark)


def own_address(meeting: Meeting) -> str:
    """The local address that packets to the meeting place leave from; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((meeting.address, meeting.port))
            address = str(probe.getsockname()[0])
        except OSError:
            address = LOOPBACK
    if not address.startswith("127.") or meeting.on_one_host:
        return address
    # Rank 0's own name often stands for loopback in its hosts file; a route outwards tells more.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return address


def _join_alone(
    info: RankInfo,
    config: EPConfig,
    *,
    sheet: Sheet,
    digest: StateDigest,
    device: torch_device,
    on_fault: OnFault,
) -> Joined:
    liveness = LivenessServer(info, config, token="", on_fault=on_fault)
    return Joined(
        info=info,
        agreed=compare([_agreement(info, sheet, address=LOOPBACK)]),
        liveness=liveness,
        digest=digest,
        channel=LocalChannel(state=digest, mark=liveness.command),
        comm=LocalCommunicator(device),
        store=None,
    )


def _agreement(info: RankInfo, sheet: Sheet, *, address: str) -> Agreement:
    return Agreement(
        rank=info.rank,
        world_size=info.world_size,
        local_rank=info.local_rank,
        host=info.host,
        pid=info.pid,
        machine=machine_key(),
        address=address,
        protocol=sheet.protocol,
        build=sheet.build,
        flags=sheet.flags,
        config_digest=sheet.config_digest,
        config=sheet.config,
        free_memory_bytes=sheet.free_memory_bytes,
        max_kv_blocks=sheet.max_kv_blocks,
        parity=sheet.parity,
    )


def _open_liveness(
    info: RankInfo,
    config: EPConfig,
    *,
    store: KeyStore,
    token: str,
    address: str,
    on_fault: OnFault,
) -> Liveness:
    """Rank 0 listens and says where; the others connect; returns when all have."""
    if info.rank == 0:
        server = LivenessServer(info, config, token=token, on_fault=on_fault, bind=address)
        place = msgspec.msgpack.encode((address, server.port))
        _broken_store_is_a_fault(info, lambda: store.set("liveness", place))
        server.phase("rendezvous")
        server.wait_for_peers(config.startup_deadline_s)
        return server
    place = _broken_store_is_a_fault(info, lambda: store.get("liveness"))
    host, port = msgspec.msgpack.decode(place, type=tuple[str, int])
    return LivenessClient(info, config, token=token, on_fault=on_fault, address=(host, port))


def _shared(info: RankInfo, store: KeyStore, key: str, make: Callable[[], str]) -> str:
    """Rank 0's value of `key`, for every rank."""
    if info.rank == 0:
        store.set(key, make().encode())
    return bytes(store.get(key)).decode()


def _broken_store_is_a_fault(info: RankInfo, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except EPFault:
        raise
    except RuntimeError as error:
        raise RendezvousFailed(
            f"the store does not answer ({plain_reason(error)}) -- the ranks meet there -- see "
            "whether rank 0, or the launcher that holds it, has ended"
        ).located(info, phase="rendezvous") from error
