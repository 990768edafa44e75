"""What a run reports: the JSON object of `phalanx run --json`, and the table for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BAR_CELLS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """`stop`, `length`, `abort`, or `error: ...` for a request that was refused."""
    prompt_tokens: int

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFigures:
    """How speculation went, counted over verifies (rounds of one sequence that had drafts)."""

    method: str
    num_drafts: int
    """Most drafts of one verify, as configured."""
    num_verifies: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    """Accepted drafts at position 1, 2, ... of the chain."""

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verify, the target's own included; None before the first verify."""
        if not self.num_verifies:
            return None
        return 1.0 + self.num_accepted_tokens / self.num_verifies

    @property
    def acceptance_rates(self) -> tuple[float, ...]:
        """Share of the verifies that accepted a draft at each position."""
        return tuple(count / max(1, self.num_verifies) for count in self.accepted_per_position)

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        length = self.acceptance_length
        return {
            "method": self.method,
            "num_drafts": self.num_drafts,
            "num_verifies": self.num_verifies,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_length": None if length is None else round(length, 4),
            "accepted_per_position": list(self.accepted_per_position),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run of one engine."""

    model: str
    ranks: int
    outputs: tuple[Output, ...]
    seconds: float
    """From the first prompt handed in to the last token, loading excluded."""
    rounds: int
    commands: Mapping[str, int]
    """Commands sent, by name."""
    spec: SpecFigures
    digest_checks: int
    """Comparisons of a rank's digest with rank 0's; all agreed, or the run would have ended."""
    weights_bytes_per_rank: tuple[int, ...]
    config: Mapping[str, Any]

    @property
    def num_tokens(self) -> int:
        """Tokens generated."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        """Over all outputs, prompt time included."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {
            "model": self.model,
            "ranks": self.ranks,
            "outputs": [output.as_json() for output in self.outputs],
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "rounds": self.rounds,
            "commands": dict(self.commands),
            "spec": self.spec.as_json(),
            "lockstep": {"digest_checks": self.digest_checks, "mismatches": 0},
            "weights_bytes_per_rank": list(self.weights_bytes_per_rank),
            "config": dict(self.config),
        }


def table(report: RunReport, *, plain_tokens_per_second: float | None = None) -> str:
    """The lines after a run, aligned; the last compares with speculation off when it was run."""
    rows = [
        ("tokens", f"{report.num_tokens}"),
        ("tokens/s", f"{report.tokens_per_second:.1f}"),
        ("rounds", f"{report.rounds}"),
    ]
    if report.spec.acceptance_length is not None:
        rows.append(("acceptance length", f"{report.spec.acceptance_length:.2f} tokens a verify"))
    rows.append(("lockstep", _lockstep(report)))
    if plain_tokens_per_second is not None:
        ratio = report.tokens_per_second / max(plain_tokens_per_second, 1e-9)
        rows.append(
            ("speculation off", f"{plain_tokens_per_second:.1f} tokens/s (on is {ratio:.2f} x)")
        )
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
    bars = histogram(report.spec.acceptance_rates)
    return "\n".join([*lines, *(["accepted drafts by position", *bars] if bars else [])])


def _lockstep(report: RunReport) -> str:
    if report.ranks == 1:
        return "one rank: nothing to compare"
    return f"{report.digest_checks} checks passed on {report.ranks} ranks"


def histogram(rates: Sequence[float]) -> list[str]:
    """One bar a position."""
    lines = []
    for position, rate in enumerate(rates, start=1):
        filled = round(rate * BAR_CELLS)
        bar = "█" * filled + "·" * (BAR_CELLS - filled)
        lines.append(f"  {position}  {bar} {rate:4.0%}")
    return lines
