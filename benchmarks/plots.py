"""Figures of the speculation policies: what a step costs, what depth that makes, what it delivers.

Drawn with matplotlib (the `plot` extra), without a display, to whatever the file name's ending
says (svg, png, pdf). Equal inputs give equal SVG bytes. Called by `bench_replay --plot` and by the
spec-cost benchmark; the figures are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.proposers.policy.calibration import Calibration
from phalanx.proposers.policy.chain import tokens_by_depth
from phalanx.proposers.policy.cost_table import CostTable
from phalanx.proposers.policy.planner import propose_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PAPER, ACCENT, QUIET = "#1f2328", "#ffffff", "#c4511d", "#8a9199"
MECHANISM_COLORS = {
    "controller": ACCENT,
    "controller-online": "#e8a27c",
    "planner": "#2f6690",
    "gate": "#5b8fb9",
    "ladder": "#9aa7b2",
    "rung": "#c9d1d8",
}
ENDINGS = (".svg", ".png", ".pdf")


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    """An empty figure in the house style, and the pyplot-free matplotlib module."""
    try:
        import matplotlib
        import matplotlib.ticker
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(
            "no figure without matplotlib (--plot) -- it draws the file -- pip install "
            "'phalanx[plot]'"
        ) from error
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "phalanx",
            "font.size": 9,
            "text.color": INK,
            "axes.edgecolor": QUIET,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained"), matplotlib


def _save(figure: Figure, out: Path) -> None:
    if out.suffix not in ENDINGS:
        raise SystemExit(
            f"figure not written (--plot {out}, endings {', '.join(ENDINGS)}) -- the ending picks "
            "the format -- name the file accordingly"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if out.suffix == ".svg" else None
    figure.savefig(out, dpi=160, metadata=metadata)


def _grid(axes: Axes, values: Sequence[Sequence[float]], *, fmt: str, **style: Any) -> None:
    """A heat map with its numbers written in: row = depth, column = width."""
    image = axes.imshow(values, origin="lower", aspect="auto", **style)
    low, high = image.get_clim()
    for depth, row in enumerate(values):
        for column, value in enumerate(row):
            dark = high > low and (value - low) / (high - low) > 0.62
            axes.text(
                column,
                depth - 0.18,
                format(value, fmt),
                ha="center",
                va="center",
                color=PAPER if dark else INK,
            )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def plot_cost_surface(
    table: CostTable,
    calibration: Calibration,
    out: Path,
    *,
    slack: float = 0.05,
    title: str | None = None,
) -> None:
    """Draw a table: milliseconds by width and depth, and what depth they lead to.

    Left: one step's wall time. Right: expected tokens per millisecond as a share of the width's
    best, with the planner's depth (most tokens per joule within `slack` of depth 1's speed)
    marked by a dot and the fastest depth by a ring.
    """
    widths, depths = table.widths, range(table.max_k + 1)
    expected = tokens_by_depth(calibration.prior_by_position, table.max_k)
    costs = [[table.step(n, k) for n in widths] for k in depths]
    ms = [[cost.ms if cost is not None else 0.0 for cost in row] for row in costs]
    speed = [
        [n * expected[k] / value for n, value in zip(widths, row, strict=True)]
        for k, row in enumerate(ms)
    ]
    best = [max(column) for column in zip(*speed, strict=True)]
    share = [[value / top for value, top in zip(row, best, strict=True)] for row in speed]
    figure, _ = _figure(2.4 + 1.5 * len(widths), 1.6 + 0.62 * len(depths))
    left, right = figure.subplots(1, 2, sharey=True)
    least, most = min(min(row) for row in ms), max(max(row) for row in ms)
    _grid(left, ms, fmt=".1f", cmap="Greys", vmin=0.5 * least, vmax=1.6 * most)
    _grid(right, share, fmt=".0%", cmap="Oranges", vmin=min(min(row) for row in share), vmax=1.15)
    for column, n in enumerate(widths):
        planned = propose_depth(table, calibration, n=n, slack=slack, max_seqs=n)
        fastest = max(depths, key=lambda k: share[k][column])
        right.plot(column, planned + 0.22, "o", color=INK, markersize=7)
        right.plot(
            column, fastest + 0.22, "o", color=INK, markersize=12, fillstyle="none", linewidth=1
        )
    for axes in (left, right):
        axes.set_xticks(range(len(widths)), [str(n) for n in widths])
        axes.set_xlabel("streams")
    left.set_yticks(list(depths))
    left.set_ylabel("drafts per stream")
    left.set_title("milliseconds a step", loc="left", fontsize=10)
    right.set_title("expected speed, share of the best", loc="left", fontsize=10)
    key = table.key
    figure.suptitle(
        title or f"{key.recipe} on {key.box_class}", x=0.01, ha="left", fontsize=11, weight="bold"
    )
    figure.supxlabel(
        f"● planned depth (tokens per joule, slack {slack:g})     ○ fastest depth", fontsize=8
    )
    _save(figure, out)


def plot_replay(results: Mapping[str, Mapping[str, float]], out: Path) -> None:
    """Draw a replay: delivered speed of every mechanism per trace, best fixed depth = 100 %.

    `results` is what the replay benchmark prints: {scenario: {mechanism: tokens per ms}}, each
    row with the best fixed depth chosen in hindsight as `best-fixed`.
    """
    names = list(results)
    mechanisms = [name for name in MECHANISM_COLORS if any(name in row for row in results.values())]
    figure, matplotlib = _figure(9.0, 1.3 + 0.52 * len(names))
    axes = figure.subplots()
    low = 1.0
    for place, name in enumerate(reversed(names)):
        row = results[name]
        best = row["best-fixed"]
        # Drawn from the least to the most important, so that the controller is never hidden.
        for mechanism in reversed(mechanisms):
            if mechanism not in row:
                continue
            value = row[mechanism] / best
            low = min(low, value)
            main = mechanism == "controller"
            axes.plot(
                value,
                place,
                "D" if main else "o",
                color=MECHANISM_COLORS[mechanism],
                markersize=8 if main else 7,
                markeredgecolor=INK if main else "none",
                markeredgewidth=0.8,
            )
        axes.text(
            1.012, place, f"{best:.4f} tok/ms", va="center", fontsize=8, color=QUIET, clip_on=False
        )
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.axvline(0.95, color=QUIET, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_yticks(range(len(names)), [_short(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(min(low, 0.95) - 0.015, 1.01)
    axes.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(0.05))
    axes.xaxis.set_minor_locator(matplotlib.ticker.MultipleLocator(0.01))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y", color="#e6e9ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("delivered tokens per millisecond, share of the best fixed depth in hindsight")
    handles = [
        axes.plot([], [], "D" if name == "controller" else "o", color=color, label=name)[0]
        for name, color in MECHANISM_COLORS.items()
        if name in mechanisms
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
    _save(figure, out)


def _short(name: str) -> str:
    """`fixture/trace/n4` as a label of two words."""
    fixture, trace, width = name.split("/")
    return f"{fixture.split('_')[0]} {trace} ×{width.removeprefix('n')}"
