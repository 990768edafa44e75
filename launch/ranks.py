"""Who am I: this process's rank, and where the ranks meet, from options or a launcher's variables.

The first of these that is there wins: explicit options, our own spawn, torchrun, a SLURM step, MPI;
with none of them the process is alone (or is the parent that spawns). A family of variables that is
only half there is an error that names what is missing: guessing a rank makes jobs that hang. This
file and `runtime/flags.py` are the only ones that look at the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.ep.meeting import Meeting
from phalanx.ep.topology import Launcher, RankInfo
from phalanx.launch.hostlist import expand

SPAWN_PREFIX = "PHALANX_INTERNAL_"
SPAWN_NAMES = ("RANK", "WORLD_SIZE", "ADDRESS", "PORT", "LISTEN_FD", "JOB")
CAUSE_FD = SPAWN_PREFIX + "CAUSE_FD"
TORCHRUN_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
SLURM_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NODELIST")
MPI_FAMILIES = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# SLURM gives no port: one is derived from job and step, outside the usual ephemeral range.
SLURM_FIRST_PORT = 15_000
SLURM_NUM_PORTS = 15_000


class LaunchError(ValueError):
    """The launcher's variables or the options do not say who this process is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line said about ranks; None = not given."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This process in its job. meeting is None when it is alone."""

    info: RankInfo
    meeting: Meeting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This process as the system sees it."""

    host: str
    pid: int


def who_am_i(
    options: Options | None = None, *, environ: Mapping[str, str] | None = None
) -> Identity:
    """This process's identity (see the head of this file for the order).

    Raises LaunchError naming the variables or options that are missing or cannot be read.
    """
    given = options or Options()
    variables = os.environ if environ is None else environ
    here = Here(host=socket.gethostname(), pid=os.getpid())
    finders: tuple[Callable[[], Identity | None], ...] = (
        lambda: _explicit(given, here),
        lambda: _spawned(variables, here),
        lambda: _torchrun(variables, here),
        lambda: _slurm(variables, given, here),
        lambda: _mpi(variables, given, here),
    )
    for find in finders:
        found = find()
        if found is not None:
            return found
    return _identity(here, "single", rank=0, world=1, local=(0, 1), meeting=None)


def is_launched(environ: Mapping[str, str] | None = None) -> bool:
    """True when a launcher already started the ranks, so that nobody may spawn more of them."""
    variables = os.environ if environ is None else environ
    return who_am_i(environ=variables).info.launcher != "single"


def spawned_environment(
    *, rank: int, world_size: int, port: int, listen_fd: int, job: str, cause_fd: int
) -> dict[str, str]:
    """The environment of a rank that we spawn: ours, without other launchers' variables."""
    others = {*TORCHRUN_NAMES, *SLURM_NAMES, *(name for names in MPI_FAMILIES for name in names)}
    environment = {name: value for name, value in os.environ.items() if name not in others}
    values = (rank, world_size, "127.0.0.1", port, listen_fd, job)
    for name, value in zip(SPAWN_NAMES, values, strict=True):
        environment[SPAWN_PREFIX + name] = str(value)
    environment[CAUSE_FD] = str(cause_fd)
    # Several ranks share the cores: each starts with one thread and is told when it may use more.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def cause_fd(environ: Mapping[str, str] | None = None) -> int:
    """Where a spawned rank writes the cause of its end for the parent to print; -1 = nowhere."""
    variables = os.environ if environ is None else environ
    return _number(variables, CAUSE_FD) if variables.get(CAUSE_FD) else -1


def _explicit(given: Options, here: Here) -> Identity | None:
    if given.rank is None:
        if given.local_rank is not None or given.local_world_size is not None:
            raise _half("options", ["--rank"])
        return None
    needed = {
        "--world-size": given.world_size,
        "--master-addr": given.master_addr,
        "--master-port": given.master_port,
    }
    missing = [name for name, value in needed.items() if value is None]
    if given.world_size == 1:
        return _identity(here, "explicit", rank=given.rank, world=1, local=(0, 1), meeting=None)
    if missing or given.world_size is None or given.master_port is None:
        raise _half("options", missing)
    meeting = _meeting(given.master_addr or "", given.master_port, job="explicit", fits_here=False)
    local = (given.local_rank or 0, given.local_world_size or (given.local_rank or 0) + 1)
    return _identity(
        here, "explicit", rank=given.rank, world=given.world_size, local=local, meeting=meeting
    )


def _spawned(variables: Mapping[str, str], here: Here) -> Identity | None:
    names = [SPAWN_PREFIX + name for name in SPAWN_NAMES]
    if not any(name in variables for name in names):
        return None
    _need("our own spawn's variables", names, variables)
    rank, world, port, fd = (
        _number(variables, SPAWN_PREFIX + name)
        for name in ("RANK", "WORLD_SIZE", "PORT", "LISTEN_FD")
    )
    meeting = Meeting(
        address=variables[SPAWN_PREFIX + "ADDRESS"],
        port=port,
        job=variables[SPAWN_PREFIX + "JOB"],
        listen_fd=fd,
        on_one_host=True,
    )
    return _identity(here, "spawn", rank=rank, world=world, local=(rank, world), meeting=meeting)


def _torchrun(variables: Mapping[str, str], here: Here) -> Identity | None:
    # MASTER_* and LOCAL_WORLD_SIZE alone are often set by an image for everybody.
    if not any(name in variables for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return None
    _need("torchrun's variables", TORCHRUN_NAMES, variables)
    rank, world, local_rank, local_world, port = (
        _number(variables, name)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    )
    run = variables.get("TORCHELASTIC_RUN_ID", "torchrun")
    meeting = _meeting(
        variables["MASTER_ADDR"],
        port,
        job=f"{run}.{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        fits_here=local_world == world,
        hosted_elsewhere=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    return _identity(
        here, "torchrun", rank=rank, world=world, local=(local_rank, local_world), meeting=meeting
    )


def _slurm(variables: Mapping[str, str], given: Options, here: Here) -> Identity | None:
    # A batch script has SLURM_PROCID=0 too, and a launcher that forks inside one task has it in
    # every child: only a step of several tasks says who is who.
    if variables.get("SLURM_STEP_NUM_TASKS", "1") == "1" or "SLURM_STEP_ID" not in variables:
        return None
    _need("the SLURM step's variables", SLURM_NAMES, variables)
    rank, local_rank, node = (_number(variables, name) for name in SLURM_NAMES[:3])
    world = _number(variables, "SLURM_STEP_NUM_TASKS")
    hosts = expand(variables["SLURM_STEP_NODELIST"])
    per_node = _tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_world = per_node[node] if node < len(per_node) else local_rank + 1
    step = f"{variables.get('SLURM_JOB_ID', '0')}.{variables['SLURM_STEP_ID']}"
    meeting = _meeting(
        given.master_addr or variables.get("MASTER_ADDR") or hosts[0],
        given.master_port or _port(variables, otherwise=_port_of_step(step)),
        job=f"slurm.{step}",
        fits_here=len(hosts) == 1,
    )
    return _identity(
        here, "slurm", rank=rank, world=world, local=(local_rank, local_world), meeting=meeting
    )


def _mpi(variables: Mapping[str, str], given: Options, here: Here) -> Identity | None:
    for names in MPI_FAMILIES:
        if names[0] not in variables or variables.get(names[1], "1") == "1":
            continue
        _need("MPI's variables", names, variables)
        rank, world, local_rank, local_world = (_number(variables, name) for name in names)
        address = given.master_addr or variables.get("MASTER_ADDR", "")
        port = given.master_port or _port(variables, otherwise=0)
        if not address or not port:
            missing = [
                name
                for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port))
                if not value
            ]
            raise _half("MPI's variables", missing)
        meeting = _meeting(address, port, job="mpi", fits_here=local_world == world)
        return _identity(
            here, "mpi", rank=rank, world=world, local=(local_rank, local_world), meeting=meeting
        )
    return None


def _identity(
    here: Here,
    launcher: Launcher,
    *,
    rank: int,
    world: int,
    local: tuple[int, int],
    meeting: Meeting | None,
) -> Identity:
    try:
        info = RankInfo(
            rank=rank,
            world_size=world,
            local_rank=local[0],
            local_world_size=local[1],
            host=here.host,
            pid=here.pid,
            launcher=launcher,
        )
    except ValueError as error:
        raise LaunchError(f"{error} (launcher={launcher})") from error
    return Identity(info=info, meeting=meeting if world > 1 else None)


def _meeting(
    address: str, port: int, *, job: str, fits_here: bool, hosted_elsewhere: bool = False
) -> Meeting:
    return Meeting(
        address=address,
        port=port,
        job=job,
        hosted_elsewhere=hosted_elsewhere,
        on_one_host=fits_here,
    )


def _port(variables: Mapping[str, str], *, otherwise: int) -> int:
    return _number(variables, "MASTER_PORT") if variables.get("MASTER_PORT") else otherwise


def _port_of_step(step: str) -> int:
    """The same port on every task, different ones for steps that run at once on a host."""
    job, _, number = step.partition(".")
    mixed = int(job or 0) * 31 + (int(number) if number.isdigit() else 0)
    return SLURM_FIRST_PORT + mixed % SLURM_NUM_PORTS


def _tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1]; text that cannot be read gives no answer, hence []."""
    counts: list[int] = []
    for item in filter(None, text.split(",")):
        number, _, times = item.partition("(x")
        if not number.isdigit() or not (not times or times.rstrip(")").isdigit()):
            return []
        counts.extend([int(number)] * int(times.rstrip(")") or 1))
    return counts


def _need(family: str, names: tuple[str, ...] | list[str], variables: Mapping[str, str]) -> None:
    missing = [name for name in names if variables.get(name, "") == ""]
    if missing:
        raise _half(family, missing)


def _half(family: str, missing: list[str]) -> LaunchError:
    return LaunchError(
        f"{family} are only half there (missing: {', '.join(missing)}) -- a guessed rank makes a "
        "job that hangs -- set the missing ones, or unset the others to start without a launcher"
    )


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise LaunchError(
            f"not a number ({name}={variables[name]!r}) -- it says which rank this is -- mend it"
        ) from None
