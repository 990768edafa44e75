"""What can go wrong between ranks: one exception per kind, each naming rank, command and phase.

A fault ends the job (a request-scoped error never becomes one). It crosses the liveness channel as
a `FaultReport`, so that the process that noticed and all the others print the same line. Fields
that were not known where the fault was raised are filled in later by `located`.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import msgspec

from phalanx.ep.topology import RankInfo

_UNKNOWN = -1


class FaultReport(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A fault as bytes: kind is the class name; -1 and "" mean "not known"."""

    kind: str
    cause: str
    rank: int = _UNKNOWN
    world_size: int = _UNKNOWN
    host: str = ""
    pid: int = _UNKNOWN
    seq: int = _UNKNOWN
    command: str = ""
    phase: str = ""


class EPFault(RuntimeError):
    """A fault between ranks. `str()` is one line; `exit_code` is what the process leaves with."""

    exit_code: ClassVar[int] = 70
    secondary: ClassVar[bool] = False
    """True when this is usually the consequence of another fault, for which it is worth waiting."""

    def __init__(self, cause: str, **known: Any) -> None:
        """`known`: any of rank, world_size, host, pid, seq, command, phase."""
        self.report = FaultReport(kind=type(self).__name__, cause=cause, **known)
        super().__init__(str(self))

    def __str__(self) -> str:
        return describe(self.report)

    def located(self, info: RankInfo | None = None, **known: Any) -> Self:
        """The same fault with what it did not know yet; what it already says is kept."""
        if info is not None and self.report.rank not in (_UNKNOWN, info.rank):
            return self  # about another rank: where this one is says nothing about it
        if info is not None:
            known = {
                "rank": info.rank,
                "world_size": info.world_size,
                "host": info.host,
                "pid": info.pid,
                **known,
            }
        missing = {
            name: value for name, value in known.items() if getattr(self.report, name) in (-1, "")
        }
        return self._with(msgspec.structs.replace(self.report, **missing))

    def adding(self, text: str) -> Self:
        """The same fault with more about the cause."""
        return self._with(
            msgspec.structs.replace(self.report, cause=f"{self.report.cause}; {text}")
        )

    def _with(self, report: FaultReport) -> Self:
        fault = copy.copy(self)
        fault.report = report
        fault.args = (describe(report),)
        fault.__cause__ = self.__cause__
        return fault


class RankLost(EPFault):
    """A rank's process is gone."""


class RankStopped(EPFault):
    """A rank is alive for the kernel and silent for us."""

    exit_code = 71


class RankFailed(EPFault):
    """A rank raised an exception outside any request."""

    exit_code = 70


class RankDesync(EPFault):
    """A rank's state differs from what rank 0's command assumes."""

    exit_code = 72


class ProtocolError(EPFault, ValueError):
    """Bytes that are not a command, or a command that contradicts itself; `field` says where."""

    exit_code = 73

    def __init__(self, cause: str, *, field: str = "", **known: Any) -> None:
        self.field = field
        super().__init__(cause, **known)


class CollectiveFailed(EPFault):
    """A collective did not finish: time-out, closed connection, or a library error."""

    exit_code = 74
    secondary = True


class AgreementFailed(EPFault, ValueError):
    """The ranks were not started alike."""

    exit_code = 78


class RendezvousFailed(EPFault):
    """The ranks did not find each other within the start deadline."""

    exit_code = 69


_KINDS: dict[str, type[EPFault]] = {
    kind.__name__: kind
    for kind in (
        EPFault,
        RankLost,
        RankStopped,
        RankFailed,
        RankDesync,
        ProtocolError,
        CollectiveFailed,
        AgreementFailed,
        RendezvousFailed,
    )
}


def from_report(report: FaultReport) -> EPFault:
    """The exception a report describes; an unknown kind (another build) keeps its name."""
    return _KINDS.get(report.kind, EPFault)(report.cause)._with(report)


def describe(report: FaultReport) -> str:
    """One line: kind, rank r of n (host, pid), seq, command, phase, then the cause."""

    def known(value: int | str) -> str:
        return "?" if value in (_UNKNOWN, "") else str(value)

    cause = " ".join(report.cause.split())
    return (
        f"{report.kind}: rank {known(report.rank)} of {known(report.world_size)} "
        f"(host {known(report.host)}, pid {known(report.pid)}), seq {known(report.seq)}, "
        f"command {known(report.command)}, phase {known(report.phase)}: {cause}"
    )
