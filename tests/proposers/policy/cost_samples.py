"""Small cost tables, calibrations and policy views that the tests share."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.proposers.policy.calibration import Calibration, DrafterIdentity
from phalanx.proposers.policy.cost_key import CostKey, make_key
from phalanx.proposers.policy.cost_table import CostCell, CostTable
from phalanx.proposers.policy.policy import (
    UNLIMITED,
    PolicyView,
    SpecLimits,
    StepOutcome,
    StreamOutcome,
)

DRAFTER = DrafterIdentity(weights_sha256="ab12", vocab=248320, quantization="bf16", context=True)


def cost_key(**changed: str) -> CostKey:
    digests = {"verify": "v1", "verify_batch": "b1", "draft": "d1"}
    return make_key(
        box_class=changed.get("box_class", "gb10"),
        recipe=changed.get("recipe", "qwen/27b"),
        plan_digests=digests | {k: v for k, v in changed.items() if k in digests},
    )


def cell(n: int, k: int, ms: float = 10.0, joules: float = 1.0) -> CostCell:
    """A cell whose drafting costs 1 ms and 0.1 J per draft."""
    return CostCell(n=n, k=k, verify_ms=ms, verify_j=joules, draft_ms=float(k), draft_j=0.1 * k)


def grid_table() -> CostTable:
    """Widths 1 and 4, depths 0..2; verify = 10 n + k ms, n + k / 10 J."""
    cells = [cell(n, k, 10.0 * n + k, n + 0.1 * k) for n in (1, 4) for k in range(3)]
    return CostTable(key=cost_key(), cells=cells)


def row_table(n: int, *, row_ms: float, row_j: float, max_k: int = 3) -> CostTable:
    """One width; 10 ms and 1 J, a price for each verify row on top, 1 ms and 0.05 J a draft."""
    cells = [
        CostCell(
            n=n,
            k=k,
            verify_ms=10.0 + row_ms * n * (k + 1),
            verify_j=1.0 + row_j * n * (k + 1),
            draft_ms=1.0 * k,
            draft_j=0.05 * k,
        )
        for k in range(max_k + 1)
    ]
    return CostTable(key=cost_key(), cells=cells)


def calibration(priors: Sequence[float] = (0.8, 0.6, 0.4)) -> Calibration:
    """Log-probability up to -1: rate .3; up to -0.1: .6; above: .9."""
    return Calibration(
        drafter=DRAFTER,
        edges=(-1.0, -0.1, 0.0),
        p_accept=(0.3, 0.6, 0.9),
        prior_by_position=tuple(priors),
    )


def view(
    n: int, *, num_drafts: int = 3, pinned: bool = False, first_id: int = 0, max_seqs: int = 32
) -> PolicyView:
    ids = tuple(range(first_id, first_id + n))
    return PolicyView(
        stream_ids=ids,
        pending_drafts=(num_drafts,) * n,
        slots=tuple(range(n)),
        capacities=(UNLIMITED,) * n,
        limits=SpecLimits(num_drafts=num_drafts, max_seqs=max_seqs),
        pinned=pinned,
    )


def outcome(
    depth: int,
    ms: float,
    accepted: Sequence[int],
    *,
    pinned: bool = False,
    first_id: int = 0,
    joules: float | None = None,
) -> StepOutcome:
    """What a step of `depth` drafts did; one entry of `accepted` per stream."""
    return StepOutcome(
        depth=depth,
        wall_s=ms / 1000.0,
        streams=tuple(
            StreamOutcome(
                stream_id=first_id + index,
                num_drafts=depth,
                num_accepted=min(run, depth),
                num_emitted=min(run, depth) + 1,
            )
            for index, run in enumerate(accepted)
        ),
        joules=joules,
        pinned=pinned,
    )
