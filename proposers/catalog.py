"""Name to proposer: the one list of who can draft.

A new drafter is one file in this folder and one branch here.
"""

from __future__ import annotations

from phalanx.proposers.base import DraftHead, DraftProposer, SpecConfig, SpecConfigError
from phalanx.proposers.mtp import MtpProposer


def make_proposer(
    spec: SpecConfig, *, head: DraftHead | None, lockstep: bool = True
) -> DraftProposer | None:
    """The drafter that `spec` names; None when speculation is off.

    `head` is this rank's draft network. `lockstep` = False is the rank-0-only mode: call this with
    the whole head on rank 0, and with method off on the others, which then have no drafter.

    Raises:
        SpecConfigError: the method needs a draft network and the checkpoint has none.
    """
    if spec.method == "off":
        return None
    if head is None:
        raise SpecConfigError(
            f"no draft network in the checkpoint (method={spec.method!r}) -- there is nothing to "
            "draft with -- use method off, or a checkpoint with an MTP module"
        )
    return MtpProposer(head, lockstep=lockstep, measure_confidence=spec.draft_conf_tau > 0.0)
