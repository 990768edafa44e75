"""Reprobe: when to look at a depth that is not the chosen one.

A policy only sees what it runs: acceptance beyond the chosen depth is unknown, and after giving
drafting up nothing is known at all. `Exploration` verifies one draft more on a doubling schedule,
`Suspension` counts the plain tokens after which drafting gets another look, and `DeepProbe` asks
for a deep step when the first draft's acceptance has risen. They decide *when*, never *what*.
"""

from __future__ import annotations

import math


class Exploration:
    """Schedule of one stream's look at one draft more. Written by the controller only.

    Due on the `every`-th decision for the first time; then after `every` decisions when the
    chosen depth differs from the one at the last look, else after twice the gap before, up to
    `longest`: decisions 3, 7, 15, 31, 47 for every=4, longest=16.
    """

    __slots__ = ("_base", "_decisions", "_every", "_gap", "_last", "_longest")

    def __init__(self, *, every: int, longest: int) -> None:
        """`every` = 0 never explores."""
        self._every = every
        self._longest = max(longest, every)
        self.reset()

    def reset(self) -> None:
        """Start over, as for a new stream."""
        self._decisions = 0
        self._last = -1
        self._gap = self._every
        self._base: int | None = None

    def due(self, base: int) -> bool:
        """Count one decision for depth `base`; return whether this one should look deeper.

        A look that turns out impossible stays due. Call `explored` when it was made.
        """
        index = self._decisions
        self._decisions += 1
        if self._every <= 0:
            return False
        changed = self._base is not None and base != self._base
        return index - self._last >= (self._every if changed else self._gap)

    def explored(self, base: int) -> None:
        """Note that the latest decision looked one deeper than `base`."""
        if base == self._base:
            self._gap = min(2 * self._gap, self._longest)
        else:
            self._gap = self._every
        self._base = base
        self._last = self._decisions - 1


class Suspension:
    """One stream's plain stretch and the verifies after it. Written by the controller only."""

    __slots__ = ("_probe_steps", "_resume_after", "_tokens", "probe_left", "suspended")

    def __init__(self, *, resume_after: int, probe_steps: int) -> None:
        """`resume_after` = plain tokens until another look; 0 never suspends."""
        self._resume_after = resume_after
        self._probe_steps = probe_steps
        self._tokens = 0
        self.suspended = False
        self.probe_left = 0
        """Decisions left in which giving up again is not an option; the controller counts down."""

    def suspend(self) -> None:
        """Drafting was given up."""
        if self._resume_after > 0 and not self.suspended:
            self.suspended = True
            self._tokens = 0
            self.probe_left = 0

    def plain_tokens(self, tokens: int) -> bool:
        """Count plain tokens; return True when the stretch just ended."""
        if not self.suspended:
            return False
        self._tokens += max(tokens, 0)
        if self._tokens < self._resume_after:
            return False
        self.suspended = False
        self.probe_left = self._probe_steps
        return True


class DeepProbe:
    """Serve-wide trigger for a deep verify: when the first draft got better, look at the others.

    Due when no deep verify was ever seen, when the slow average of p1 rose by `rise` since the
    last one, or after `backstop` observations. Only a rise counts: text that drafts worse needs
    no deeper look. Written by the controller only.
    """

    __slots__ = ("_alpha", "_at_last", "_backstop", "_rise", "_seen", "_since", "_slow")

    def __init__(
        self, *, rise: float = 0.08, backstop: int = 2048, alpha_slow: float = 0.15
    ) -> None:
        self._rise = rise
        self._backstop = backstop
        self._alpha = min(max(alpha_slow, 0.0), 1.0)
        self._slow: float | None = None
        self._at_last = 0.0
        self._since = 0
        self._seen = False

    def due(self) -> bool:
        """Whether the coming verify should be a deep one."""
        if not self._seen:
            return True
        risen = self._slow is not None and self._slow - self._at_last >= self._rise
        return risen or self._since >= self._backstop

    def observe(self, p1: float, *, deep: bool) -> None:
        """Take the first draft's rate of one observation; `deep` = it verified at the deep depth.

        A p1 that is no finite number is ignored.
        """
        if not math.isfinite(p1):
            return
        p1 = min(max(p1, 0.0), 1.0)
        self._slow = p1 if self._slow is None else self._slow + self._alpha * (p1 - self._slow)
        self._since += 1
        if deep:
            self._seen = True
            self._since = 0
            self._at_last = self._slow
