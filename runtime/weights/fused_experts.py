"""Checkpoints that keep all experts of a layer in one tensor, seen as one tensor per expert.

transformers holds experts in memory as gate_up_proj [E, 2F, D] (gate rows first) and down_proj
[E, D, F] under `mlp`, and can save them so. In row-major order every expert's gate, up and down
matrix is a consecutive run of bytes, so the entries are cut by arithmetic and the rest of the
loader never knows. No torch, no bytes read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from phalanx.runtime.weights.index import TensorEntry

FUSED_BLOCK: Final = "mlp"
GATE_UP: Final = "experts.gate_up_proj"
DOWN: Final = "experts.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """How a family names its MoE block, and one expert's matrices in it."""

    block: str
    gate: str
    up: str
    down: str

    def of(self, layer: str, expert: int) -> tuple[str, str, str]:
        """(gate, up, down) checkpoint names of one expert."""
        prefix = f"{layer}.{self.block}.experts.{expert}"
        gate, up, down = (f"{prefix}.{name}.weight" for name in (self.gate, self.up, self.down))
        return gate, up, down


def split_fused(entries: Mapping[str, TensorEntry], names: ExpertNames) -> dict[str, TensorEntry]:
    """`entries` in a family's own names, with every fused expert tensor cut into its experts.

    A fused tensor of an impossible shape stays as it is, to be reported as matching nothing.
    """
    split: dict[str, TensorEntry] = {}
    for entry in entries.values():
        layer, block, rest = entry.name.partition(f".{FUSED_BLOCK}.")
        if not block:
            split[entry.name] = entry
            continue
        for part in _experts_of(entry, layer, rest, names):
            split[part.name] = part
    return split


def _experts_of(
    entry: TensorEntry, layer: str, rest: str, names: ExpertNames
) -> Iterator[TensorEntry]:
    """The entry itself under the family's block name, or its experts."""
    shape = entry.shape
    fused = len(shape) == 3 and ((rest == GATE_UP and shape[1] % 2 == 0) or rest == DOWN)
    if not fused:
        yield replace(entry, name=f"{layer}.{names.block}.{rest}")
        return
    matrices = 2 if rest == GATE_UP else 1
    size = entry.num_bytes // max(1, shape[0] * matrices)
    for expert in range(shape[0]):
        gate, up, down = names.of(layer, expert)
        for at, name in enumerate((gate, up) if rest == GATE_UP else (down,)):
            yield replace(
                entry,
                name=name,
                shape=(shape[1] // matrices, shape[2]),
                start=entry.start + (expert * matrices + at) * size,
                num_bytes=size,
            )
