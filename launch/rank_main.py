"""The function every process runs: join, load, then rank 0 coordinates and the rest serve.

What is loaded and executed comes in as callables, so this file knows ranks and nothing of models.
However it ends, the process leaves: after SHUTDOWN with 0, after a fault with the fault's exit code
and the cause as the last thing it says (to the launcher that asked for it, else on stderr).
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
import psutil
import torch

from phalanx.ep.agreement import Parity
from phalanx.ep.build import build_id
from phalanx.ep.channel import CommandChannel
from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.commands import Command, Shutdown
from phalanx.ep.faults import EPFault, RankFailed
from phalanx.ep.frames import PROTOCOL_VERSION
from phalanx.ep.liveness import Liveness, LivenessClient, OnFault
from phalanx.ep.liveness_server import LivenessServer
from phalanx.ep.lockstep import StateDigest
from phalanx.ep.meeting import Meeting
from phalanx.ep.rendezvous import Joined, Sheet, join
from phalanx.ep.store_wait import exchange
from phalanx.ep.topology import EPConfig, RankInfo
from phalanx.ep.worker import Handler, worker_loop
from phalanx.launch.interrupts import GatedChannel, InterruptGate
from phalanx.launch.ranks import cause_fd

Loaded = TypeVar("Loaded")
INTERRUPTED_EXIT = 130
_FAREWELL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank that is in the job: what engine, executor and worker loop are built on."""

    info: RankInfo
    config: EPConfig
    joined: Joined

    @property
    def comm(self) -> Communicator:
        """The model's collectives."""
        return self.joined.comm

    @property
    def channel(self) -> CommandChannel:
        """Commands from rank 0."""
        return self.joined.channel

    @property
    def digest(self) -> StateDigest:
        """This rank's lockstep state."""
        return self.joined.digest

    @property
    def liveness(self) -> Liveness:
        """Phases, and the way to end the job."""
        return self.joined.liveness

    @property
    def kv_blocks(self) -> int:
        """The agreed minimum of what the ranks' sheets offered."""
        return self.joined.agreed.kv_blocks

    def agree_min(self, name: str, value: int) -> int:
        """The smallest of every rank's `value`. Every rank calls it; a name may be used once.

        Raises RendezvousFailed naming the ranks that are late.
        """
        values = self._exchange(f"min/{name}", str(value).encode())
        return min(int(text) for text in values)

    def ready(self, name: str = "ready") -> None:
        """Wait under the start deadline until every rank is here. A name may be used once.

        Loading and warm-up may take longer on one rank than any collective may: so the ranks meet
        here, before the first collective. Raises RendezvousFailed naming the ranks that are late.
        """
        self._exchange(f"ready/{name}", b"1")

    def lockstep_checks(self) -> int:
        """Digests compared so far on all ranks together, as far as rank 0 has heard."""
        if not isinstance(self.liveness, LivenessServer):
            return self.liveness.status.digest_checks
        return sum(status.digest_checks for status in self.liveness.statuses().values())

    def close(self) -> None:
        """Leave in good order."""
        self.joined.close()

    def _exchange(self, name: str, value: bytes) -> list[bytes]:
        return exchange(
            self.joined.store,
            self.info,
            name=name,
            value=value,
            deadline_s=self.config.startup_deadline_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob(Generic[Loaded]):
    """What the ranks do. Every rank gets the same one.

    load: on every rank, before the first command; whatever it returns is handed to the others.
    coordinate: rank 0's work; its result is the exit code. handlers: for the workers' loop.
    """

    load: Callable[[Rank], Loaded]
    coordinate: Callable[[Rank, Loaded], int]
    handlers: Callable[[Rank, Loaded], Mapping[Command, Handler]]


def make_sheet(
    *,
    flags: Mapping[str, str],
    settings: Mapping[str, str],
    max_kv_blocks: int = 0,
    device: torch.device | None = None,
    parity: Parity = "fail",
) -> Sheet:
    """What this rank shows at the start-up agreement.

    flags: environment flags that ranks must agree on; settings: the resolved configuration, names
    and values as text; versions of Python and torch are added. max_kv_blocks: 0 when it is agreed
    later with `Rank.agree_min`. parity "warn", when every rank asks for it, only logs differing
    flags and settings.
    """
    config = dict(settings) | {
        "python version": platform.python_version(),
        "torch version": str(torch.__version__),
    }
    mixed = blake2b(msgspec.msgpack.encode(sorted(config.items())), digest_size=8)
    return Sheet(
        protocol=PROTOCOL_VERSION,
        build=build_id(),
        flags=dict(flags),
        config_digest=int.from_bytes(mixed.digest(), "little"),
        config=config,
        free_memory_bytes=free_memory_bytes(device or torch.device("cpu")),
        max_kv_blocks=max_kv_blocks,
        parity=parity,
    )


def free_memory_bytes(device: torch.device) -> int:
    """What could still be allocated on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def open_rank(
    config: EPConfig,
    info: RankInfo,
    *,
    meeting: Meeting | None,
    sheet: Sheet,
    device: torch.device | None = None,
    threads: int | None = None,
    on_fault: OnFault | None = None,
) -> Rank:
    """Join the job. Every rank calls it once.

    threads: torch threads of this process; None = 1 when there are several ranks, which share the
    cores, else torch's own choice. on_fault: what ends this process when the job ends with a fault
    (default: say the cause and leave). Raises RendezvousFailed or AgreementFailed.
    """
    if threads is not None or info.world_size > 1:
        torch.set_num_threads(threads or 1)
    joined = join(
        info,
        config,
        meeting=meeting,
        sheet=sheet,
        device=device or torch.device("cpu"),
        on_fault=on_fault or end_process,
    )
    return Rank(info=info, config=config, joined=joined)


def serve_worker(rank: Rank, handlers: Mapping[Command, Handler]) -> None:
    """A worker's life: commands until SHUTDOWN. Raises the cause when the job ends otherwise."""
    liveness = rank.liveness
    if not isinstance(liveness, LivenessClient):
        raise ValueError(
            f"rank {rank.info.rank} sends commands and cannot serve them -- only ranks above 0 do"
        )
    worker_loop(rank.channel, handlers=handlers, digest=rank.digest, liveness=liveness)


def run_rank(
    job: RankJob[Loaded],
    config: EPConfig,
    info: RankInfo,
    *,
    meeting: Meeting | None,
    sheet: Sheet,
    device: torch.device | None = None,
    threads: int | None = None,
) -> int:
    """One rank from join to end; the exit code. A fault ends the process instead of returning."""
    try:
        rank = open_rank(config, info, meeting=meeting, sheet=sheet, device=device, threads=threads)
    except EPFault as fault:
        end_process(fault)
        return fault.exit_code
    if info.rank > 0:
        # Ctrl-C is for rank 0, which ends the others in good order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        rank.liveness.phase("load")
        loaded = job.load(rank)
        rank.liveness.phase("ready")
        rank.ready()
        code = 0
        if info.rank == 0:
            code = _coordinate(job, rank, loaded)
        else:
            serve_worker(rank, job.handlers(rank, loaded))
    except Exception as error:
        _leave_with(rank, error)
        return EPFault.exit_code
    rank.close()
    return code


def _coordinate(job: RankJob[Loaded], rank: Rank, loaded: Loaded) -> int:
    """Rank 0's work, with a SHUTDOWN at its end however it ends short of a fault."""
    try:
        rank.liveness.phase("coordinate")
        with InterruptGate() as gate:
            gated = replace(rank.joined, channel=GatedChannel(rank.channel, gate))
            code = job.coordinate(replace(rank, joined=gated), loaded)
    except KeyboardInterrupt:
        _shut_down(rank, reason="interrupted")
        return INTERRUPTED_EXIT
    _shut_down(rank, reason="finished")
    return code


def _shut_down(rank: Rank, *, reason: str) -> None:
    """SHUTDOWN to every rank. Raises RankFailed when they do not all leave in time."""
    rank.liveness.phase("shutdown")
    rank.channel.send(Shutdown(reason), digest=rank.digest.value, placement=0)
    if isinstance(rank.liveness, LivenessServer):
        late = rank.liveness.wait_for_farewells(_FAREWELL_WAIT_S)
        if late:
            raise RankFailed(
                f"ranks {late} did not leave within {_FAREWELL_WAIT_S:g} s of SHUTDOWN ({reason}) "
                "-- they are inside a command that cannot finish -- every rank is ended"
            )


def _leave_with(rank: Rank, error: Exception) -> None:
    """Tell the others, then leave with the cause of the whole job."""
    cause = error if rank.liveness.cause is error else rank.liveness.fail(error)
    if isinstance(cause, EPFault):
        end_process(cause)


def end_process(fault: EPFault) -> None:
    """Say the cause where the launcher listens, else as the last line of stderr; then leave.

    It runs on any thread, and the main thread may sit inside a collective for ever: hence _exit.
    """
    flushing = threading.Thread(target=sys.stdout.flush, daemon=True)
    flushing.start()
    flushing.join(timeout=0.5)
    target = cause_fd()
    line = str(fault) if target < 0 else msgspec.json.encode(fault.report).decode()
    try:
        os.write(2 if target < 0 else target, f"{line}\n".encode())
    finally:
        os._exit(fault.exit_code)
