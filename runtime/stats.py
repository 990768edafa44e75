"""Counters of one run: rounds, commands by code, tokens, drafts and their acceptance by position.

Written by the engine only; totals of one loaded model. The speculation counters and their log
lines are `spec_stats.py`; this is the run around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.ep.commands import Command
from phalanx.runtime.spec_stats import RequestSpecStats, SpecStats, StatLine


class RunStats:
    """Totals of a run, and speculation per request while it is open."""

    __slots__ = (
        "_requests",
        "commands",
        "num_drafts_limit",
        "num_output_tokens",
        "num_prompt_rows",
        "rounds",
        "spec",
    )

    def __init__(self, *, num_drafts_limit: int = 0) -> None:
        """`num_drafts_limit` is the configured draft count."""
        self.num_drafts_limit = num_drafts_limit
        self.rounds = 0
        """Forwards."""
        self.commands: dict[Command, int] = {}
        """Commands sent, by code."""
        self.num_prompt_rows = 0
        """Prompt tokens computed; those of a preempted sequence count again."""
        self.num_output_tokens = 0
        """Tokens given to requests."""
        self.spec = SpecStats()
        self._requests: dict[int, RequestSpecStats] = {}

    def count_command(self, code: Command) -> None:
        """A command was sent."""
        self.commands[code] = self.commands.get(code, 0) + 1

    def open_request(self, request_id: int) -> None:
        """A request was taken."""
        self._requests[request_id] = RequestSpecStats(num_spec_tokens=self.num_drafts_limit)

    def close_request(self, request_id: int) -> RequestSpecStats | None:
        """A request has ended: its counters, which are forgotten here."""
        return self._requests.pop(request_id, None)

    def request(self, request_id: int) -> RequestSpecStats | None:
        """The counters of an open request."""
        return self._requests.get(request_id)

    def record_rows(
        self, request_id: int, *, matches: Sequence[bool], num_accepted: int, seq_len: int
    ) -> tuple[StatLine, ...]:
        """Count a decoding sequence's round: `matches[j]` says that draft j+1 is the target's
        token of its row, as far as that row was looked at. Returns log lines that are due."""
        request = self._requests.get(request_id)
        if request is not None:
            request.record_verify(drafts=len(matches), accepted=num_accepted)
        return self.spec.record_verify(matches, accepted=num_accepted, seq_len=seq_len)

    def as_dict(self) -> dict[str, Any]:
        """The run as plain values, for JSON."""
        totals = self.spec.totals()
        return {
            "rounds": self.rounds,
            "commands": {code.name: count for code, count in sorted(self.commands.items())},
            "prompt_rows": self.num_prompt_rows,
            "output_tokens": self.num_output_tokens,
            "spec": {
                "num_drafts": totals.num_drafts,
                "num_draft_tokens": totals.num_draft_tokens,
                "num_accepted_tokens": totals.num_accepted_tokens,
                "acceptance_length": totals.acceptance_length,
                "accepted_per_position": list(totals.accepted_per_pos),
            },
        }
