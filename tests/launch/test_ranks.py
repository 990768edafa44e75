"""Who am I: one order of precedence, no guessing, and no half-set family goes unnoticed."""

from __future__ import annotations

import os
import socket

import pytest

from phalanx.launch.ranks import (
    CAUSE_FD,
    MPI_FAMILIES,
    TORCHRUN_NAMES,
    LaunchError,
    Options,
    cause_fd,
    is_launched,
    spawned_environment,
    who_am_i,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_STEP_TASKS_PER_NODE": "3,2,1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "4000",
}
EXPLICIT = Options(
    rank=1, world_size=3, local_rank=0, local_world_size=1, master_addr="m", master_port=5
)


def spawned(rank: int = 2) -> dict[str, str]:
    return spawned_environment(
        rank=rank, world_size=3, port=4321, listen_fd=-1, job="abc", cause_fd=9
    )


def test_nothing_set_means_alone() -> None:
    identity = who_am_i(environ={})
    assert (identity.info.rank, identity.info.world_size, identity.meeting) == (0, 1, None)
    assert identity.info.launcher == "single"
    assert identity.info.pid == os.getpid()
    assert identity.info.host == socket.gethostname()
    assert not is_launched({})


def test_torchrun_says_rank_and_meeting() -> None:
    identity = who_am_i(environ=TORCHRUN)
    info, meeting = identity.info, identity.meeting
    assert (info.rank, info.world_size, info.local_rank, info.local_world_size) == (5, 8, 1, 4)
    assert info.launcher == "torchrun"
    assert meeting is not None
    assert (meeting.address, meeting.port) == ("head", 29400)
    assert not meeting.hosted_elsewhere
    assert not meeting.on_one_host
    assert is_launched(TORCHRUN)


def test_torchrun_agent_holds_the_store_and_restarts_do_not_share_keys() -> None:
    agent = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "r"}
    first = who_am_i(environ=agent | {"TORCHELASTIC_RESTART_COUNT": "0"}).meeting
    second = who_am_i(environ=agent | {"TORCHELASTIC_RESTART_COUNT": "1"}).meeting
    assert first is not None
    assert second is not None
    assert first.hosted_elsewhere
    assert first.job != second.job


@pytest.mark.parametrize("missing", TORCHRUN_NAMES)
def test_a_half_set_torchrun_family_names_what_is_missing(missing: str) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(LaunchError, match=rf"missing: {missing}\b"):
        who_am_i(environ=environ)


def test_a_master_address_alone_does_not_make_a_rank() -> None:
    environ = {"MASTER_ADDR": "head", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "4"}
    assert who_am_i(environ=environ).info.launcher == "single"


def test_a_slurm_step_says_rank_node_and_first_host() -> None:
    identity = who_am_i(environ=SLURM)
    info, meeting = identity.info, identity.meeting
    assert (info.rank, info.world_size, info.local_rank, info.local_world_size) == (4, 6, 1, 2)
    assert info.launcher == "slurm"
    assert meeting is not None
    assert meeting.address == "gpu03"
    assert 15_000 <= meeting.port < 30_000


def test_all_tasks_of_a_slurm_step_meet_at_one_port_and_steps_at_different_ones() -> None:
    other_task = SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    other_step = SLURM | {"SLURM_STEP_ID": "1"}
    first, same, other = (
        who_am_i(environ=environ).meeting for environ in (SLURM, other_task, other_step)
    )
    assert first == same
    assert first is not None
    assert other is not None
    assert first.port != other.port


def test_a_slurm_step_of_one_task_is_not_a_rank() -> None:
    """A launcher that forks inside one task has SLURM_PROCID=0 in every child."""
    assert who_am_i(environ=SLURM | {"SLURM_STEP_NUM_TASKS": "1"}).info.launcher == "single"


def test_a_slurm_batch_script_is_not_a_rank() -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    assert who_am_i(environ=environ).info.launcher == "single"


def test_slurm_without_a_node_list_is_refused_not_localhost() -> None:
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}
    with pytest.raises(LaunchError, match="SLURM_STEP_NODELIST"):
        who_am_i(environ=environ)


def test_open_mpi_says_rank_and_needs_a_meeting_place() -> None:
    identity = who_am_i(environ=OPEN_MPI)
    assert (identity.info.rank, identity.info.launcher) == (1, "mpi")
    with pytest.raises(LaunchError, match="missing: MASTER_PORT"):
        who_am_i(environ={n: v for n, v in OPEN_MPI.items() if n != "MASTER_PORT"})


@pytest.mark.parametrize("family", MPI_FAMILIES)
def test_a_half_set_mpi_family_names_what_is_missing(family: tuple[str, ...]) -> None:
    environ = dict(zip(family[:2], ("1", "2"), strict=True))
    with pytest.raises(LaunchError, match=f"missing: {family[2]}, {family[3]}"):
        who_am_i(environ=environ)


def test_our_spawn_says_rank_and_inherited_socket() -> None:
    identity = who_am_i(environ=spawned())
    assert (identity.info.rank, identity.info.local_rank, identity.info.world_size) == (2, 2, 3)
    assert identity.info.launcher == "spawn"
    assert identity.meeting is not None
    assert (identity.meeting.port, identity.meeting.job) == (4321, "abc")
    assert identity.meeting.on_one_host


def test_a_half_set_spawn_family_is_refused() -> None:
    environ = spawned()
    del environ["PHALANX_INTERNAL_PORT"]
    with pytest.raises(LaunchError, match="missing: PHALANX_INTERNAL_PORT"):
        who_am_i(environ=environ)


def test_precedence_is_options_spawn_torchrun_slurm_mpi() -> None:
    everything = OPEN_MPI | SLURM | TORCHRUN | spawned()
    assert who_am_i(EXPLICIT, environ=everything).info.launcher == "explicit"
    assert who_am_i(environ=everything).info.launcher == "spawn"
    assert who_am_i(environ=OPEN_MPI | SLURM | TORCHRUN).info.launcher == "torchrun"
    assert who_am_i(environ=OPEN_MPI | SLURM).info.launcher == "slurm"
    assert who_am_i(environ=OPEN_MPI).info.launcher == "mpi"


def test_a_half_set_family_that_would_win_is_refused_even_if_a_later_one_is_whole() -> None:
    with pytest.raises(LaunchError, match="torchrun"):
        who_am_i(environ=SLURM | {"RANK": "0"})


def test_explicit_options_need_each_other() -> None:
    with pytest.raises(LaunchError, match="--world-size, --master-addr, --master-port"):
        who_am_i(Options(rank=0), environ={})
    with pytest.raises(LaunchError, match="--rank"):
        who_am_i(Options(local_rank=0), environ={})
    identity = who_am_i(EXPLICIT, environ={})
    assert (identity.info.rank, identity.info.world_size) == (1, 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "x", "RANK='x'"),
        ("RANK", "8", "rank out of range"),
        ("RANK", "-1", "rank out of range"),
        ("LOCAL_RANK", "4", "local rank out of range"),
        ("MASTER_PORT", "0", "port out of range"),
        ("MASTER_PORT", "70000", "port out of range"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        who_am_i(environ=TORCHRUN | {name: value})


def test_spawned_ranks_do_not_inherit_another_launchers_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (TORCHRUN | SLURM).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME_OF_TEST", "kept")
    environ = spawned(rank=1)
    assert not set(TORCHRUN_NAMES) & set(environ)
    assert "SLURM_PROCID" not in environ
    assert environ["HOME_OF_TEST"] == "kept"
    assert who_am_i(environ=environ).info.rank == 1


def test_spawned_ranks_start_with_one_thread_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert spawned()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert spawned()["OMP_NUM_THREADS"] == "3"


def test_cause_fd_is_minus_one_when_nobody_listens() -> None:
    assert cause_fd({}) == -1
    assert cause_fd({CAUSE_FD: "7"}) == 7
