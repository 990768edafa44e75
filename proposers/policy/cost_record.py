"""Records of the spec-cost benchmark: from two metric readings to the cost of one width.

One run serves one depth k at several widths. For each width it reads the engine's counters twice,
a window apart, while n streams decode, and this file turns the difference into milliseconds and
joules per step. A window that measured nothing real is kept as vacuous with its reasons, never
dropped in silence. Splitting the joules between verify and draft in proportion to their time is
an assumption; the total is what was metered. Pure arithmetic: who reads the metrics passes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from phalanx.proposers.policy.confidence import ReachCounts

DEFAULT_WIDTHS: Final = (1, 2, 4, 8, 16)
MIN_STEPS: Final = 20
"""Steps a window must hold to say anything."""

_STEPS_KEY: Final = re.compile(r"steps_d([0-9]{1,3})_a([0-9]{1,3})", re.ASCII)

_FIGURES: Final = (
    "steps",
    "wall_ms",
    "verify_ms",
    "verify_j",
    "draft_ms",
    "draft_j",
    "tok_per_step",
)


class SpecCostError(ValueError):
    """Parameters or records of the spec-cost benchmark that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCostParameters:
    """What one run does. Checked when built; all but `k` and
    `prompt_tokens` must agree between the runs of one table."""

    k: int
    """Depth, 0..3; it has no default: a table needs one run of every depth."""
    widths: tuple[int, ...] = DEFAULT_WIDTHS
    osl: int = 1024
    """Output tokens asked of each stream."""
    prompt_tokens: int = 512
    """Prompt length of each stream, about; runs of several lengths make a context axis."""
    window_s: float = 8.0
    settle_s: float = 3.0
    request_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Raise SpecCostError naming the first value out of range."""
        ascending = all(left < right for left, right in pairwise(self.widths))
        widths_ok = bool(self.widths) and ascending
        checks = (
            ("k", self.k, 0 <= self.k <= 3, "0..3, stated"),
            ("widths", list(self.widths), widths_ok, "strictly ascending, at least one"),
            ("widths", list(self.widths), all(1 <= n <= 256 for n in self.widths), "1..256"),
            ("osl", self.osl, 64 <= self.osl <= 16384, "64..16384"),
            ("prompt_tokens", self.prompt_tokens, self.prompt_tokens >= 1, "at least 1"),
            ("window_s", self.window_s, 0.0 < self.window_s < math.inf, "finite, above 0"),
            ("settle_s", self.settle_s, 0.0 <= self.settle_s < math.inf, "finite, at least 0"),
            (
                "request_timeout_s",
                self.request_timeout_s,
                0.0 < self.request_timeout_s < math.inf,
                "finite, above 0",
            ),
        )
        for name, value, fine, limit in checks:
            if not fine:
                raise SpecCostError(
                    f"spec-cost parameter out of range ({name}={value}, limit {limit}) -- the "
                    "window would measure something else -- give a value inside"
                )

    def shared(self) -> dict[str, object]:
        """The parameters all runs of one table must share: all but depth and prompt length."""
        return {
            "widths": list(self.widths),
            "osl": self.osl,
            "window_s": self.window_s,
            "settle_s": self.settle_s,
            "request_timeout_s": self.request_timeout_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """The engine's counters at one moment; all only ever grow."""

    decoded_tokens: int
    verify_steps: int
    """Speculative steps timed (verify and propose together)."""
    verify_seconds: float
    propose_steps: int
    propose_seconds: float
    joules: float | None = None
    """Energy counter; None where no meter exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthRecord:
    """What one width cost in one run. Figures are 0.0 when the window is vacuous."""

    n: int
    steps: float = 0.0
    wall_ms: float = 0.0
    """Window over steps: the step and the loop around it."""
    verify_ms: float = 0.0
    verify_j: float | None = None
    """None without a meter."""
    draft_ms: float = 0.0
    draft_j: float | None = None
    tok_per_step: float = 0.0
    """Tokens per stream and step."""
    vacuous: tuple[str, ...] = ()
    """Why the window says nothing; empty for a good one."""


def _went_back(before: EngineReading, after: EngineReading) -> bool:
    pairs = [
        (before.decoded_tokens, after.decoded_tokens),
        (before.verify_steps, after.verify_steps),
        (before.verify_seconds, after.verify_seconds),
        (before.propose_steps, after.propose_steps),
        (before.propose_seconds, after.propose_seconds),
    ]
    if before.joules is not None and after.joules is not None:
        pairs.append((before.joules, after.joules))
    # `not (<=)` also catches NaN.
    return any(not earlier <= later for earlier, later in pairs)


def record_width(
    before: EngineReading,
    after: EngineReading,
    *,
    n: int,
    k: int,
    window_s: float,
    ended_early: int = 0,
) -> WidthRecord:
    """Turn two readings `window_s` apart into the cost of n streams at depth k.

    `ended_early` = streams that finished inside the window.
    """
    reasons: list[str] = []
    if ended_early > 0:
        reasons.append(f"{ended_early} streams ended early")
    if _went_back(before, after):
        reasons.append("counters went backwards")
        return WidthRecord(n=n, vacuous=tuple(reasons))
    tokens = after.decoded_tokens - before.decoded_tokens
    steps = float(after.verify_steps - before.verify_steps) if k > 0 else tokens / n
    if not steps >= MIN_STEPS:
        reasons.append(f"{steps:g} steps, limit at least {MIN_STEPS}")
    if k > 0 and after.propose_steps == before.propose_steps:
        reasons.append("propose phase not timed")
    if not steps > 0.0 or not 0.0 < window_s < math.inf:
        return WidthRecord(n=n, vacuous=tuple(reasons) or ("no window",))
    wall_ms = 1000.0 * window_s / steps
    step_ms, draft_ms = wall_ms, 0.0
    if k > 0:
        step_ms = 1000.0 * (after.verify_seconds - before.verify_seconds) / steps
        draft_ms = 1000.0 * (after.propose_seconds - before.propose_seconds) / steps
    if draft_ms > step_ms:
        reasons.append(f"draft {draft_ms:g} ms above step {step_ms:g} ms")
    if reasons or not step_ms > 0.0:
        return WidthRecord(n=n, steps=steps, vacuous=tuple(reasons) or ("step not timed",))
    draft_j, verify_j = _split_joules(before, after, steps=steps, share=draft_ms / step_ms)
    return WidthRecord(
        n=n,
        steps=steps,
        wall_ms=wall_ms,
        verify_ms=step_ms - draft_ms,
        verify_j=verify_j,
        draft_ms=draft_ms,
        draft_j=draft_j,
        tok_per_step=tokens / (n * steps),
    )


def _split_joules(
    before: EngineReading, after: EngineReading, *, steps: float, share: float
) -> tuple[float | None, float | None]:
    """(draft, verify) joules per step; None twice without a meter."""
    if before.joules is None or after.joules is None:
        return None, None
    step_j = (after.joules - before.joules) / steps
    draft_j = step_j * share
    return draft_j, step_j - draft_j


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run of the benchmark: one depth, several widths, and the acceptance telemetry."""

    machine_id: str
    model: str
    parameters: SpecCostParameters
    widths: tuple[WidthRecord, ...]
    counts: ReachCounts
    energy_source: str | None = None
    """nvml, rapl, or None: energy absent."""

    @property
    def verdict(self) -> str:
        """`info` when any width was measured, else `inconclusive`; never a pass."""
        measured = any(not record.vacuous for record in self.widths)
        return "info" if measured else "inconclusive"


def flat_figures(run: RunRecord) -> dict[str, float | int | str]:
    """The run as flat keys: `k`, `n4_verify_ms`, `conf3_accepted`, `steps_d3_a1`, ...

    A figure that was not measured (joules without a meter) has no key.
    """
    flat: dict[str, float | int | str] = {"k": run.parameters.k}
    for record in run.widths:
        for name in _FIGURES:
            value = getattr(record, name)
            if value is not None:
                flat[f"n{record.n}_{name}"] = value
        flat[f"n{record.n}_vacuous"] = "; ".join(record.vacuous)
    counts = run.counts
    for index, edge in enumerate(counts.edges):
        flat[f"conf{index}_le"] = edge
        flat[f"conf{index}_accepted"] = counts.accepted[index]
        flat[f"conf{index}_rejected"] = counts.reached[index] - counts.accepted[index]
    for drafts, accepted, verifies in counts.verify_steps:
        flat[f"steps_d{drafts}_a{accepted}"] = verifies
    return flat


def run_document(run: RunRecord) -> dict[str, object]:
    """The run as the value of its JSON result file."""
    return {
        "machine_id": run.machine_id,
        "model": run.model,
        "parameters": run.parameters.shared() | {"prompt_tokens": run.parameters.prompt_tokens},
        "energy_source": run.energy_source,
        "verdict": run.verdict,
        "conf_overflow": run.counts.overflow,
        "figures": flat_figures(run),
    }


def read_run(document: Mapping[str, object]) -> RunRecord:
    """Read a result file's value back.

    Raises:
        SpecCostError: a key missing or of another type, naming it.
    """
    try:
        return _read_run(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecCostError(
            f"spec-cost result not readable ({type(error).__name__}: {error}) -- the table would "
            "be built on something else -- pass a file this benchmark wrote"
        ) from error


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number")
    return float(value)


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an integer")
    return value


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not an object")
    return value


def _read_run(document: Mapping[str, object]) -> RunRecord:
    figures = _mapping(document["figures"], "figures")
    shared = _mapping(document["parameters"], "parameters")
    listed = shared["widths"]
    if not isinstance(listed, list):
        raise TypeError(f"widths={listed!r} is not a list")
    widths = tuple(_count(n, "widths") for n in listed)
    parameters = SpecCostParameters(
        k=_count(figures["k"], "k"),
        widths=widths,
        osl=_count(shared["osl"], "osl"),
        prompt_tokens=_count(shared["prompt_tokens"], "prompt_tokens"),
        window_s=_number(shared["window_s"], "window_s"),
        settle_s=_number(shared["settle_s"], "settle_s"),
        request_timeout_s=_number(shared["request_timeout_s"], "request_timeout_s"),
    )
    source = document.get("energy_source")
    return RunRecord(
        machine_id=str(document["machine_id"]),
        model=str(document["model"]),
        parameters=parameters,
        widths=tuple(_read_width(figures, n) for n in widths),
        counts=_read_counts(figures, overflow=_count(document["conf_overflow"], "conf_overflow")),
        energy_source=None if source is None else str(source),
    )


def _read_width(figures: Mapping[str, object], n: int) -> WidthRecord:
    def number(name: str) -> float:
        return _number(figures[f"n{n}_{name}"], f"n{n}_{name}")

    def joules(name: str) -> float | None:
        return number(name) if f"n{n}_{name}" in figures else None

    reasons = str(figures[f"n{n}_vacuous"])
    return WidthRecord(
        n=n,
        steps=number("steps"),
        wall_ms=number("wall_ms"),
        verify_ms=number("verify_ms"),
        verify_j=joules("verify_j"),
        draft_ms=number("draft_ms"),
        draft_j=joules("draft_j"),
        tok_per_step=number("tok_per_step"),
        vacuous=tuple(reasons.split("; ")) if reasons else (),
    )


def _read_counts(figures: Mapping[str, object], *, overflow: int) -> ReachCounts:
    edges: list[float] = []
    reached: list[int] = []
    accepted: list[int] = []
    while f"conf{len(edges)}_le" in figures:
        name = f"conf{len(edges)}"
        kept = _count(figures[f"{name}_accepted"], f"{name}_accepted")
        accepted.append(kept)
        reached.append(kept + _count(figures[f"{name}_rejected"], f"{name}_rejected"))
        edges.append(_number(figures[f"{name}_le"], f"{name}_le"))
    steps: list[tuple[int, int, int]] = []
    for name, value in figures.items():
        found = _STEPS_KEY.fullmatch(name)
        if found is not None:
            steps.append((int(found[1]), int(found[2]), _count(value, name)))
    return ReachCounts(
        edges=tuple(edges),
        reached=tuple(reached),
        accepted=tuple(accepted),
        overflow=overflow,
        verify_steps=tuple(sorted(steps)),
    )
