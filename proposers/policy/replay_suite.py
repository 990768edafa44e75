"""The replay's scenarios: recorded runs as data, and the mechanisms compared on them.

A fixture file is JSON. Of kind `windows` it holds runs of a chain drafter: cost cells by width and
depth and windows of accept counts, replayed at every width. Of kind `counts` it holds runs of a
block drafter on one stream: one step table and, per run, how often each accepted length came;
their order is drawn from a seed. `figures` are what an earlier implementation reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from phalanx.proposers.policy.acceptance import AcceptanceSettings, ColdMode, ColdPrior
from phalanx.proposers.policy.adaptive import AdaptiveRung, RungPolicy
from phalanx.proposers.policy.calibration import Calibration, DrafterIdentity
from phalanx.proposers.policy.chain import conditional_from_marginal
from phalanx.proposers.policy.controller import Controller, ControllerSettings
from phalanx.proposers.policy.cost_key import CostKey
from phalanx.proposers.policy.cost_online import OnlineSource
from phalanx.proposers.policy.cost_sources import CostSource, MeasuredSource, StepTableSource
from phalanx.proposers.policy.cost_table import CostCell, CostTable
from phalanx.proposers.policy.dflash_rung import DflashPolicy, DflashRung
from phalanx.proposers.policy.ladder import Ladder, LadderPolicy
from phalanx.proposers.policy.mtp_gate import GatePolicy
from phalanx.proposers.policy.objective import Margins, Objective, ObjectiveKind
from phalanx.proposers.policy.planner import MeasuredPlanner
from phalanx.proposers.policy.policy import Policy
from phalanx.proposers.policy.replay import (
    FixedDepth,
    PolicyFactory,
    ReplayError,
    ReplayResult,
    Trace,
    run_replay,
    trace_from_counts,
    trace_from_windows,
)

CHAIN_CYCLES: Final = 2
BLOCK_CYCLES: Final = 4
"""Times a replay goes through its trace, about: some thousand tokens, so that learning is a small
part (a chain drafter's trace is twice as long as a block drafter's)."""

PLANNER_SLACK: Final = 0.05

BLOCK_DWELL: Final = 4
"""Plain choices running before a lone block-drafted stream decodes plainly. Short: one
stream's text turns within tens of steps. The production value is for batches."""

CHAIN_DWELL: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One trace at one width, with the prices that hold there."""

    fixture: str
    trace_name: str
    n: int
    trace: Trace
    cost: CostSource
    cold_rates: tuple[float, ...]
    """Conditional rates a drafter of this kind showed elsewhere: the controller's cold prior."""
    table: CostTable | None = None
    """The measured table behind `cost`; None for a block drafter's step table."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Mechanism -> tokens per millisecond that an earlier implementation reached."""

    @property
    def name(self) -> str:
        """Key of the scenario in results."""
        return f"{self.fixture}/{self.trace_name}/n{self.n}"

    @property
    def block(self) -> bool:
        """A block drafter's run."""
        return self.table is None

    @property
    def budget_tokens(self) -> int:
        """Tokens one replay emits."""
        cycles = BLOCK_CYCLES if self.block else CHAIN_CYCLES
        return round(cycles * len(self.trace.accepted) * (1.0 + self.trace.mean_accepted))


def controller_settings(
    scenario: Scenario, *, objective: Objective | None = None
) -> ControllerSettings:
    """The controller's settings in replays: every depth may run, cold prior from the fixture."""
    chosen = objective if objective is not None else Objective(kind=ObjectiveKind.THROUGHPUT)
    cold = ColdPrior(mode=ColdMode.RATES, rates=scenario.cold_rates)
    return ControllerSettings(
        objective=chosen,
        margins=Margins(suspend=0.03),
        dwell=BLOCK_DWELL if scenario.block else CHAIN_DWELL,
        explore_every=16 if scenario.block else 32,
        explore_max=256 if scenario.block else 512,
        explore_fade=0.5,
        acceptance=AcceptanceSettings(cold=cold),
        every_depth=True,
    )


def run_priors(trace: Trace) -> Calibration:
    """A calibration with the run's own rates by position, known in hindsight."""
    return Calibration(
        drafter=DrafterIdentity(weights_sha256="", vocab=1, quantization="", context=True),
        edges=(0.0,),
        p_accept=(trace.marginals()[0],),
        prior_by_position=conditional_from_marginal(trace.marginals()),
    )


def mechanisms(scenario: Scenario) -> dict[str, PolicyFactory]:
    """Every mechanism that is compared on the scenario, by name, each with fresh state."""
    depth = scenario.trace.k_logged
    settings = controller_settings(scenario)

    def controller(cost: CostSource) -> Policy:
        return Controller(FixedDepth(depth), cost=cost, settings=settings)

    def ladder() -> Policy:
        return LadderPolicy(Ladder())

    def source() -> Policy:
        return FixedDepth(depth) if scenario.block else ladder()

    built: dict[str, PolicyFactory] = {
        "controller": lambda: controller(scenario.cost),
        "controller-online": lambda: controller(OnlineSource(max_k=depth)),
        "gate": lambda: GatePolicy(source()),
        "ladder": ladder,
    }
    table = scenario.table
    if table is None:
        built["rung"] = lambda: DflashPolicy(DflashRung(depth + 1))
    else:
        priors = run_priors(scenario.trace)
        built["rung"] = lambda: RungPolicy(AdaptiveRung(Ladder()))
        built["planner"] = lambda: MeasuredPlanner(table, priors, slack=PLANNER_SLACK)
    return built


def run_scenario(scenario: Scenario) -> dict[str, ReplayResult]:
    """Replay every mechanism on the scenario.

    Raises:
        ReplayError: a depth without a price.
    """
    return run_replay(
        mechanisms(scenario),
        scenario.trace,
        cost=scenario.cost,
        n=scenario.n,
        budget_tokens=scenario.budget_tokens,
    )


def read_fixture(document: Mapping[str, object], *, seed: int = 0) -> tuple[Scenario, ...]:
    """Read one fixture document into its scenarios; `seed` orders traces known by counts.

    Raises:
        ReplayError: another kind, or a key missing or of another type, naming it.
    """
    try:
        kind = document["kind"]
        if kind == "windows":
            return tuple(_window_scenarios(document))
        if kind == "counts":
            return tuple(_count_scenarios(document, seed))
    except (KeyError, TypeError, IndexError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from error
    raise _unreadable(f"kind={kind!r}, limit windows or counts")


def _unreadable(trouble: str) -> ReplayError:
    return ReplayError(
        f"replay fixture not readable ({trouble}) -- nothing can be replayed from it -- compare "
        "it with the fixtures of the tests"
    )


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is not a list")
    return value


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not an object")
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number")
    return float(value)


def _numbers(value: object, name: str) -> list[float]:
    return [_number(item, name) for item in _list(value, name)]


def _counts(value: object, name: str) -> list[int]:
    return [round(number) for number in _numbers(value, name)]


def _figures(owner: Mapping[str, object]) -> dict[str, float]:
    figures = _mapping(owner.get("figures", {}), "figures")
    return {name: _number(value, name) for name, value in figures.items()}


def _cold_rates(document: Mapping[str, object]) -> tuple[float, ...]:
    return conditional_from_marginal(_numbers(document["cold_marginals"], "cold_marginals"))


def _window_scenarios(document: Mapping[str, object]) -> Iterator[Scenario]:
    fixture, k_logged = str(document["name"]), round(_number(document["k_logged"], "k_logged"))
    for item in _list(document["runs"], "runs"):
        run = _mapping(item, "run")
        table = _table(fixture, [_numbers(row, "cells") for row in _list(run["cells"], "cells")])
        windows = [_counts(row, "windows") for row in _list(run["windows"], "windows")]
        trace = trace_from_windows(windows, k_logged=k_logged)
        for n in table.widths:
            figures = _mapping(run.get("figures", {}), "figures").get(str(n), {})
            yield Scenario(
                fixture=fixture,
                trace_name=str(run["name"]),
                n=n,
                trace=trace,
                cost=MeasuredSource(table),
                cold_rates=_cold_rates(document),
                table=table,
                figures=_figures({"figures": figures}),
            )


def _table(fixture: str, rows: Sequence[Sequence[float]]) -> CostTable:
    cells = [
        CostCell(n=round(n), k=round(k), verify_ms=vms, verify_j=vj, draft_ms=dms, draft_j=dj)
        for n, k, vms, vj, dms, dj in rows
    ]
    key = CostKey(box_class="recorded", recipe=f"replay/{fixture}", plan_digests={})
    return CostTable(key=key, cells=cells)


def _count_scenarios(document: Mapping[str, object], seed: int) -> Iterator[Scenario]:
    steps = dict(enumerate(_numbers(document["step_ms"], "step_ms")))
    for item in _list(document["traces"], "traces"):
        run = _mapping(item, "trace")
        k_logged = round(_number(run["k_logged"], "k_logged"))
        yield Scenario(
            fixture=str(document["name"]),
            trace_name=str(run["name"]),
            n=1,
            trace=trace_from_counts(_counts(run["counts"], "counts"), k_logged=k_logged, seed=seed),
            cost=StepTableSource(steps),
            cold_rates=_cold_rates(document),
            figures=_figures(run),
        )


def tokens_per_ms(
    documents: Sequence[Mapping[str, object]],
    *,
    seeds: Sequence[int] = (0,),
    note: Callable[[str], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Replay every scenario of the fixtures: {scenario: {mechanism: tokens per millisecond}}.

    Traces known by counts are averaged over `seeds`; the figures of the best fixed depth, chosen
    in hindsight, stand beside the mechanisms as `best-fixed`. `note` hears each scenario's name.

    Raises:
        ReplayError: no seed, a fixture that cannot be read, or a depth without a price.
    """
    if not seeds:
        raise _unreadable("seeds=[], limit at least one")
    sums: dict[str, dict[str, float]] = {}
    times: dict[str, int] = {}
    for document in documents:
        for seed in seeds if document.get("kind") == "counts" else seeds[:1]:
            for scenario in read_fixture(document, seed=seed):
                if note is not None:
                    note(scenario.name)
                row = {name: done.tokens_per_ms for name, done in run_scenario(scenario).items()}
                row["best-fixed"] = scenario.trace.best_fixed(scenario.n, cost=scenario.cost)[1]
                total = sums.setdefault(scenario.name, dict.fromkeys(row, 0.0))
                for name, value in row.items():
                    total[name] += value
                times[scenario.name] = times.get(scenario.name, 0) + 1
    return {
        scenario: {name: value / times[scenario] for name, value in row.items()}
        for scenario, row in sums.items()
    }
