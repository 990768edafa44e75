"""What would stop this machine from running: one check a function, each with its mend.

Every check returns findings and raises nothing: a machine that fails one check must still hear
about the others. Nothing is loaded: memory is arithmetic over the checkpoint's headers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.runtime.flags import Flags

if TYPE_CHECKING:
    from phalanx.launch.asked import Asked

MIN_PYTHON = (3, 11)
# gloo and torch keep small segments there; NCCL wants more.
MIN_SHM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    """What was looked at."""
    status: str
    """`ok`, `warn` (runs, but not as it could) or `fail` (will not run)."""
    detail: str
    """What was found, with values."""
    mend: str = ""
    """What to do about it; empty when there is nothing to do."""


def ok(name: str, detail: str) -> Finding:
    """A check that passed."""
    return Finding(name=name, status="ok", detail=detail)


def warn(name: str, detail: str, *, mend: str) -> Finding:
    """Something that costs, but does not stop a run."""
    return Finding(name=name, status="warn", detail=detail, mend=mend)


def fail(name: str, detail: str, *, mend: str) -> Finding:
    """Something that stops a run."""
    return Finding(name=name, status="fail", detail=detail, mend=mend)


def check_python() -> Finding:
    """The interpreter is new enough."""
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        return fail("python", f"{version}, needs {wanted}", mend=f"use Python {wanted} or newer")
    return ok("python", f"{version} on {platform.platform(terse=True)}")


def check_packages() -> list[Finding]:
    """Every dependency of the package is installed and new enough."""
    findings = []
    for requirement in importlib.metadata.requires("phalanx") or []:
        if "extra ==" in requirement:
            continue
        match = re.match(r"([A-Za-z0-9_.\-]+)\s*(?:>=\s*([0-9.]+))?", requirement)
        if match is None:
            continue
        name, least = match.group(1), match.group(2) or "0"
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(fail(name, "not installed", mend=f'pip install "{requirement}"'))
            continue
        if _numbers(found) < _numbers(least):
            detail = f"{found}, needs {least}"
            findings.append(fail(name, detail, mend=f'pip install "{requirement}"'))
        else:
            findings.append(ok(name, found))
    return findings


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def check_native(flags: Flags) -> Finding:
    """The compiled CPU kernels are built and usable."""
    from phalanx.kernels.native_library import native_problem

    if flags.is_on("PHALANX_NO_NATIVE_KERNELS"):
        return warn(
            "native kernels",
            "switched off by PHALANX_NO_NATIVE_KERNELS: plain torch, several times slower on CPU",
            mend="unset PHALANX_NO_NATIVE_KERNELS",
        )
    problem = native_problem()
    if problem is not None:
        compiler = "a C compiler is there" if shutil.which("cc") else "no C compiler on the path"
        return warn(
            "native kernels",
            f"{problem} ({compiler}): plain torch, several times slower on CPU",
            mend="install a C compiler, then: pip install --no-build-isolation --force-reinstall "
            "--no-deps .",
        )
    return ok("native kernels", "built and loadable")


def check_cores(*, ranks: int, threads: int) -> Finding:
    """The compute threads of all ranks fit the cores of this host."""
    from phalanx.launch.memory_plan import usable_cores

    cores = usable_cores()
    each = threads or max(1, cores // ranks)
    detail = f"{cores} for {ranks} ranks of {each} threads"
    if ranks * each > cores:
        return warn(
            "cores",
            detail + ": ranks wait for each other's time slices at every collective",
            mend=f"use at most {cores} ranks x threads on this host, or more hosts",
        )
    return ok("cores", detail)


def check_shared_memory(path: Path = Path("/dev/shm")) -> Finding:
    """/dev/shm is there and not full."""
    if not path.is_dir():
        return warn("shared memory", f"{path} is missing", mend="mount a tmpfs there")
    free = shutil.disk_usage(path).free
    if free < MIN_SHM_BYTES:
        return warn(
            "shared memory",
            f"{path} has {megabytes(free)} free, wanted {megabytes(MIN_SHM_BYTES)}",
            mend="free it, or start the container with a larger --shm-size",
        )
    return ok("shared memory", f"{path} has {megabytes(free)} free")


def check_port(host: str, port: int) -> Finding:
    """The rendezvous port of a torchrun or SLURM launch is free on this host.

    Ranks that phalanx starts itself never need a known port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return warn(
                "port",
                f"{host}:{port} is taken ({error.strerror}); only torchrun and SLURM need it",
                mend=f"end what listens there, or give torchrun another --master-port than {port}",
            )
    return ok("port", f"{host}:{port} is free (only torchrun and SLURM need it)")


def check_flags(flags: Flags) -> list[Finding]:
    """No flag says something that its author did not mean."""
    given = [name for name, setting in flags.settings.items() if setting.raw is not None]
    findings = [warn("flags", warning, mend="see `phalanx flags`") for warning in flags.warnings]
    return findings or [ok("flags", ", ".join(given) if given else "none set")]


def check_gpus(*, ranks: int, device: str) -> Finding:
    """Enough GPUs, when GPUs were asked for."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count)) or "none"
    if device == "cuda" and count < ranks:
        return fail(
            "gpus",
            f"{count} for {ranks} ranks ({names})",
            mend="use --device cpu, fewer ranks, or a machine with one GPU per rank",
        )
    return ok("gpus", names if count else "none; ranks compute on the CPU")


def check_nccl(*, device: str) -> Finding:
    """NCCL can be loaded, when GPUs were asked for."""
    import torch

    if torch.distributed.is_nccl_available() and torch.cuda.is_available():
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        direct = importlib.util.find_spec("nccl") is not None
        return ok("nccl", f"{version} through torch" + (", and nccl4py" if direct else ""))
    if device == "cuda":
        return fail("nccl", "this torch has none", mend="install a CUDA build of torch")
    return ok("nccl", "not in this torch; CPU ranks use gloo")


def check_memory(asked: Asked, *, ranks: int) -> list[Finding]:
    """Weights and KV pool of each rank fit this host, by arithmetic.

    A checkpoint that could not be loaded at all is one failed finding with the loader's own words.
    """
    from phalanx.launch.asked import make_definite
    from phalanx.launch.memory_plan import free_host_bytes, memory_of_ranks

    try:
        definite = make_definite(asked, local_world_size=ranks, world_size=ranks)
        memory = memory_of_ranks(
            definite.folder, definite.config, ranks=ranks, drafting=definite.drafting
        )
    except ValueError as error:
        return [fail("model", str(error), mend="see the line itself")]
    blocks = definite.config.cache.num_kv_blocks
    findings = [
        ok(
            f"rank {item.rank}",
            f"{megabytes(item.weights)} weights + {megabytes(item.kv_pool)} KV pool ({blocks} "
            f"blocks) = {megabytes(item.total)} with the process",
        )
        for item in memory
    ]
    total, free = sum(item.total for item in memory), free_host_bytes()
    detail = f"{megabytes(total)} for {ranks} ranks of {megabytes(free)} free"
    if definite.config.model.device == "cpu" and total > free:
        mend = "use more hosts, --dtype bfloat16, or a smaller --max-model-len or --num-kv-blocks"
        return [*findings, fail("memory", detail, mend=mend)]
    return [*findings, ok("memory", detail)]


def check_demo_extra() -> Finding:
    """The demo model can be prepared."""
    if importlib.util.find_spec("gguf") is None:
        return warn("demo", "package gguf is missing", mend='pip install "phalanx[demo]"')
    return ok("demo", "package gguf is there")


def megabytes(count: float) -> str:
    """A byte count in words."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def worst(findings: Sequence[Finding]) -> str:
    """`fail` if anything fails, else `warn` if anything warns, else `ok`."""
    statuses = {finding.status for finding in findings}
    return next((status for status in ("fail", "warn") if status in statuses), "ok")
