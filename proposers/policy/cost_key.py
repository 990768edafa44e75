"""Identity of a cost table: which machine, which recipe, which kernel plans it was measured on.

Costs of another machine or of other kernels are not an approximation of ours, they are wrong, so
a table whose key differs from the serve's is refused and every difference is named. A plan digest
is a hash over everything that shapes the kernels of one mode (model and graph configuration).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

SCHEMA: Final = 1
MODES: Final = ("verify", "verify_batch", "draft")
"""The step kinds a key needs a plan digest for."""


class CostTableError(ValueError):
    """A cost table that cannot be loaded or written."""


class CostKeyMismatch(CostTableError):
    """A cost table measured under another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostKey:
    """What a table was measured on."""

    box_class: str
    """Hardware class, e.g. `h200`."""
    recipe: str
    """`family/id` of the model and serve recipe."""
    plan_digests: Mapping[str, str]
    """Mode -> digest of the kernel plan of that mode."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Freeze the digests in a sorted order, so equal keys render to equal text."""
        ordered = dict(sorted(self.plan_digests.items()))
        object.__setattr__(self, "plan_digests", MappingProxyType(ordered))


def plan_digest(mode: str, plan: Mapping[str, object]) -> str:
    """SHA-256 over a mode and the plain values (JSON types) that shape its kernels.

    Raises:
        CostTableError: a value JSON cannot hold, which would not hash the same twice.
    """
    try:
        text = json.dumps([mode, plan], sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CostTableError(
            f"plan not hashable (mode={mode!r}, {error}) -- the digest must be equal for equal "
            "plans -- pass numbers, strings, lists and mappings only"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def make_key(*, box_class: str, recipe: str, plan_digests: Mapping[str, str]) -> CostKey:
    """Build the key of a serve or of a table to be written.

    Raises:
        CostTableError: an empty box class or recipe, or a mode without a plan digest: a recipe
            that declares no plan for a mode cannot be told from another one.
    """
    trouble = [
        f"{name} is empty"
        for name, text in (("box_class", box_class), ("recipe", recipe))
        if not text.strip()
    ]
    trouble += [f"no plan digest for {mode}" for mode in MODES if not plan_digests.get(mode)]
    if trouble:
        raise CostTableError(
            f"cost key incomplete ({'; '.join(trouble)}) -- the table could be loaded by a serve "
            "it was not measured on -- name the box, the recipe and all three plans"
        )
    return CostKey(box_class=box_class, recipe=recipe, plan_digests=plan_digests)


def key_differences(table: CostKey, serve: CostKey) -> tuple[str, ...]:
    """Every difference between the two keys, in words; empty when they are the same."""
    pairs: list[tuple[str, object, object]] = [
        ("schema", table.schema, serve.schema),
        ("box_class", table.box_class, serve.box_class),
        ("recipe", table.recipe, serve.recipe),
    ]
    for mode in sorted({*table.plan_digests, *serve.plan_digests}):
        mine, theirs = table.plan_digests.get(mode), serve.plan_digests.get(mode)
        pairs.append((f"plan_digests.{mode}", mine, theirs))
    return tuple(
        f"{name}: table {_shown(mine)}, serve {_shown(theirs)}"
        for name, mine, theirs in pairs
        if mine != theirs
    )


def _shown(value: object) -> str:
    return "has none" if value is None else repr(value)


def check_key(table: CostKey, serve: CostKey) -> None:
    """Refuse a table of another key.

    Raises:
        CostKeyMismatch: naming every difference.
    """
    differences = key_differences(table, serve)
    if differences:
        raise CostKeyMismatch(
            f"cost table refused ({'; '.join(differences)}) -- its milliseconds and joules belong "
            "to another serve and are never approximated -- measure a table on this one"
        )
