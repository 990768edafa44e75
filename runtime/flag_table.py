"""The table of every `PHALANX_*` environment flag: the one place a flag is declared.

Classes and defaults are the reference rules that these flags keep, so that a launch script moves
over by changing the prefix. `runtime/flags.py` reads the table, `phalanx flags` prints it, and
`docs/flags.md` is made from it (a test compares them). `wired` says honestly whether this version
acts on the flag; a flag that is only parsed warns when it is set.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.proposers.policy.confidence import parse_draft_conf_tau
from phalanx.proposers.policy.ladder import parse_steps
from phalanx.proposers.policy.levers import parse_count, parse_finite

FlagValue = bool | int | float | str | None


class FlagClass(enum.Enum):
    """How the text of a flag becomes a value. The traps are kept on purpose (see `flags.parse`)."""

    PRESENCE = "presence"
    STRICT_ONE = "strict-one"
    STRICT_ZERO = "strict-zero"
    TRUTHY = "truthy"
    TRUTHY_EXACT = "truthy-exact"
    VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One declared flag."""

    name: str
    """The whole name, prefix included."""
    kind: FlagClass
    effect: str
    """One line: what happens when it is on, or what its value means."""
    default: FlagValue = False
    """The value when unset, and for a VALUE flag also when its text cannot be read."""
    read: Callable[[str], FlagValue] | None = None
    """VALUE only: text to value, None when the text is not accepted."""
    accepts: str = ""
    """VALUE only: what is accepted, in words."""
    agree: bool = True
    """Every rank must have the same value, or the start-up agreement stops them all."""
    wired: bool = False
    """This version acts on it. False: parsed, shown and compared, and nothing else."""


def _is_ladder(raw: str) -> FlagValue:
    """The ladder's text when it parses (kept as text: the ladder itself is the policy's)."""
    return None if parse_steps(raw) is None else raw


def _positive(raw: str) -> FlagValue:
    number = parse_finite(raw)
    return None if number is None or number <= 0.0 else number


def _tau(raw: str) -> FlagValue:
    """The confidence floor; a text that the parser turns into 0 was either `0` or unreadable."""
    tau = parse_draft_conf_tau(raw)
    return tau if tau > 0.0 or parse_finite(raw) == 0.0 else None


def _tree(raw: str) -> FlagValue:
    """The shape's text when it parses."""
    from phalanx.proposers.trees import TreeShapeError, parse_tree_shape  # imports numpy

    try:
        parse_tree_shape(raw)
    except TreeShapeError:
        return None
    return raw


def _one_of(*choices: str) -> Callable[[str], FlagValue]:
    return lambda raw: raw if raw in choices else None


def _text(raw: str) -> FlagValue:
    return raw or None


def _between(low: int, high: int) -> Callable[[str], FlagValue]:
    def read(raw: str) -> FlagValue:
        count = parse_count(raw)
        return count if count is not None and low <= count <= high else None

    return read


def _switch(name: str, kind: FlagClass, effect: str, *, wired: bool = False) -> Flag:
    default = kind is FlagClass.STRICT_ZERO
    return Flag(name=f"PHALANX_{name}", kind=kind, effect=effect, default=default, wired=wired)


def _count(name: str, default: int, effect: str) -> Flag:
    return Flag(
        name=f"PHALANX_{name}",
        kind=FlagClass.VALUE,
        effect=effect,
        default=default,
        read=parse_count,
        accepts="an integer of 0 or more",
    )


def _factor(name: str, default: float, effect: str) -> Flag:
    return Flag(
        name=f"PHALANX_{name}",
        kind=FlagClass.VALUE,
        effect=effect,
        default=default,
        read=_positive,
        accepts="a number above 0",
    )


START_FLAGS = (
    Flag(
        name="PHALANX_CACHE_DIR",
        kind=FlagClass.VALUE,
        effect="folder for prepared models; unset: ~/.cache/phalanx",
        default=None,
        read=_text,
        accepts="a folder name",
        agree=False,
        wired=True,
    ),
    Flag(
        name="PHALANX_STARTUP_PARITY",
        kind=FlagClass.VALUE,
        effect="what a differing setting does at start: `fail` stops every rank, `warn` only logs",
        default="fail",
        read=_one_of("fail", "warn"),
        accepts="fail or warn",
        agree=False,
        wired=True,
    ),
    _switch(
        "NO_NATIVE_KERNELS",
        FlagClass.PRESENCE,
        "plain torch instead of the compiled CPU kernels",
        wired=True,
    ),
)

DRAFTER_FLAGS = (
    _switch(
        "NO_MTP_EP_PROPOSE",
        FlagClass.STRICT_ONE,
        "the drafter runs on rank 0 alone, whole, instead of on every rank in lockstep",
        wired=True,
    ),
    Flag(
        name="PHALANX_MTP_DRAFT_CONF",
        kind=FlagClass.VALUE,
        effect="drafts are dropped when their least confident one is below this probability",
        default=0.0,
        read=_tau,
        accepts="a probability, 0 to 0.99",
        wired=True,
    ),
    Flag(
        name="PHALANX_MTP_SHADOW_TOPK",
        kind=FlagClass.VALUE,
        effect="log the drafter's best k tokens beside each draft",
        default=0,
        read=_between(0, 8),
        accepts="an integer, 0 to 8",
    ),
    Flag(
        name="PHALANX_TREE_SHAPE",
        kind=FlagClass.VALUE,
        effect="draft trees: nodes at each depth, spine first; unset: chains",
        default=None,
        read=_tree,
        accepts="nodes per depth, like 1,2,2",
    ),
    _switch("MTP_ACCEPT_DEBUG", FlagClass.PRESENCE, "log acceptance per batch width"),
    _switch(
        "MTP_ACCEPT_FOLD_AT_16",
        FlagClass.PRESENCE,
        "batch widths above 16 share one acceptance bucket",
    ),
)

LADDER_FLAGS = (
    Flag(
        name="PHALANX_MTP_K_LADDER",
        kind=FlagClass.VALUE,
        effect="drafts by batch width, as n_max:drafts steps; setting it pins the adaptive rung",
        default="4:3,8:3,16:1,32:1",
        read=_is_ladder,
        accepts="n_max:drafts[,n_max:drafts...]",
    ),
    _switch("NO_MTP_K_LADDER", FlagClass.PRESENCE, "the same draft count at every batch width"),
    Flag(
        name="PHALANX_MTP_MAX_SEQS",
        kind=FlagClass.VALUE,
        effect="widest batch that speculates",
        default=32,
        read=_between(1, 128),
        accepts="an integer, 1 to 128",
    ),
    _switch(
        "MTP_STATIC_RUNG", FlagClass.PRESENCE, "the rung of widths 9 to 16 stays at the ladder"
    ),
    _factor("MTP_RUNG_ENTER", 1.32, "tokens ratio from which the rung goes to 2 drafts"),
    _factor("MTP_RUNG_LEAVE", 1.30, "tokens ratio below which the rung goes back"),
    _factor("MTP_RUNG_ALPHA", 0.5, "weight of one flush in the averages that decide"),
    _factor("MTP_RUNG_ALPHA_SLOW", 0.15, "weight of one flush in the average that probes"),
    _factor("MTP_RUNG_PROBE_TICKS", 2048, "flushes after which the rung probes anyway"),
    _factor("MTP_RUNG_P1_TRIGGER", 0.08, "rise of first-draft acceptance that starts a probe"),
    _switch("MTP_POOL_FULL_WIDTH", FlagClass.PRESENCE, "every slot can hold the full draft count"),
)

GATE_FLAGS = (
    _switch("MTP_GATE_FORCE", FlagClass.STRICT_ONE, "no throughput gate: speculate when eligible"),
    _count("MTP_GATE_REPROBE", 256, "plain tokens between two tries of speculation"),
    _count("MTP_GATE_REFRESH", 1024, "speculated tokens between two looks at plain decoding"),
    _count("SPEC_ENTRY_PIN", 8, "first tokens of a turn that always speculate; 0 = none"),
    _switch("NO_MTP_DCUT", FlagClass.PRESENCE, "no pruning of unsure drafts"),
    Flag(
        name="PHALANX_MTP_DCUT_RATIO",
        kind=FlagClass.VALUE,
        effect="share of the drafts that pruning keeps, snapped to 0.25, 0.5, 0.75 or 1",
        default=0.75,
        read=parse_finite,
        accepts="a number",
    ),
    _count("MTP_DCUT_MAX_SEQS", 8, "widest batch that is pruned"),
    _switch(
        "NO_CANONICAL_VERIFY_KEY",
        FlagClass.PRESENCE,
        "verify batches in arrival order, whatever their width",
    ),
    _count("CANONICAL_KEY_MIN_WIDTH", 8, "batch width from which the canonical order holds"),
)

DFLASH_FLAGS = (
    _switch("DFLASH_STATIC_GAMMA", FlagClass.PRESENCE, "block drafts of one fixed length"),
    _switch(
        "DFLASH_GAMMA_RESOLVER",
        FlagClass.PRESENCE,
        "the length resolver runs although a length was given",
    ),
    _count("DFLASH_RUNG_MULTI", 4, "verify rows at two or more streams"),
    _count("DFLASH_RUNG_NARROW", 5, "narrow verify rows at one stream"),
    Flag(
        name="PHALANX_DFLASH_RUNG_WIDE",
        kind=FlagClass.VALUE,
        effect="wide verify rows at one stream; unset: the drafter's own length",
        default=None,
        read=parse_count,
        accepts="an integer of 0 or more",
    ),
    _count("DFLASH_RUNG_ENTER", 60, "hits in 64 steps from which the wide length is taken"),
    _count("DFLASH_RUNG_LEAVE", 46, "hits in 64 steps at which the narrow length is taken"),
    _count("DFLASH_RUNG_DWELL", 64, "least steps between two changes of length"),
    _count("DFLASH_RESUME_GUARD", 0, "plain tokens before speculation starts or resumes"),
    _switch("DFLASH_SPEC_THINK", FlagClass.STRICT_ONE, "block drafts inside thinking as well"),
    Flag(
        name="PHALANX_MTP_SPEC_THINK",
        kind=FlagClass.VALUE,
        effect="MTP drafts inside thinking; unset: the model type decides",
        default=None,
        read=_one_of("0", "1"),
        accepts="0 or 1",
    ),
    _switch(
        "DFLASH_GATE_PIN_C2",
        FlagClass.STRICT_ZERO,
        "block drafts of one or two streams are always verified",
    ),
)

FLAGS: tuple[Flag, ...] = START_FLAGS + DRAFTER_FLAGS + LADDER_FLAGS + GATE_FLAGS + DFLASH_FLAGS
