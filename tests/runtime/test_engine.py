"""The loop: events, finish reasons, request-scoped failures, order of commands, counters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from phalanx.ep.commands import Forward, MtpPropose, MtpProposeBatch, Noop, Release, Shutdown
from phalanx.proposers.policy.policy import Decision, PolicyView, SpecLimits, StepOutcome
from phalanx.runtime.depth import PolicyDepth
from phalanx.runtime.errors import RequestError
from tests.support.fake_serve import Shape, mtp, serve


def test_a_round_is_forward_then_propose_then_forward() -> None:
    target = serve(make=mtp(), depth=2)
    target.add(1, (1, 2, 3), max_tokens=10)
    target.drain()
    names = [type(message).__name__ for message in target.channel.sent]
    rounds = ["Forward", "MtpPropose"] * 3
    assert names == ["Admit", *rounds, "Forward", "Release"]
    # One verdict for each verify; the last one rides in the release.
    verdicts = [len(getattr(message, "verdicts", [])) for message in target.channel.sent]
    assert verdicts == [0, 0, 0, 0, 1, 0, 1, 0, 1]


def test_every_request_ends_once_with_its_reason() -> None:
    text = serve()
    text.add(1, (1, 2, 3), max_tokens=12)
    answer = text.drain()[1]
    target = serve(Shape(eos=(answer[4],), max_model_len=20))
    stop_at = answer.index(answer[4]) + 1
    target.add(1, (1, 2, 3), max_tokens=12)
    target.add(2, (1, 2, 3), max_tokens=12, ignore_eos=True)
    target.add(3, (1, 2, 3), max_tokens=99, ignore_eos=True)
    target.add(4, (1, 2, 3), max_tokens=12, ignore_eos=True, stop_token_ids=(answer[1],))
    target.add(5, (9, 9), max_tokens=12)
    target.engine.abort(5)
    target.drain()
    reasons = {id: event.finish_reason for id, event in target.finished.items()}
    assert reasons == {1: "stop", 2: "length", 3: "length", 4: "stop", 5: "abort"}
    assert target.outputs[1] == answer[:stop_at]
    assert target.outputs[2] == answer
    assert target.outputs[3][:12] == answer and len(target.outputs[3]) == 17
    assert target.outputs[4] == answer[: answer.index(answer[1]) + 1]
    assert target.outputs[5] == []
    assert not target.engine.abort(1)


@pytest.mark.parametrize(
    ("prompt", "params"),
    [((), {}), ((1,) * 64, {}), ((32,), {}), ((1,), {"top_p": 0.0}), ((1,), {"max_tokens": 0})],
)
def test_a_bad_request_fails_alone(prompt: tuple[int, ...], params: dict[str, Any]) -> None:
    target, lonely = serve(make=mtp(), depth=3), serve()
    target.add(1, (5, 6), max_tokens=20)
    lonely.add(1, (5, 6), max_tokens=20)
    target.step()
    with pytest.raises(RequestError):
        target.add(2, prompt, **params)
    target.step()
    assert target.drain() == lonely.drain()


def test_a_row_nothing_can_be_drawn_from_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, lonely = serve(make=mtp(), depth=3), serve()
    lonely.add(1, (5, 6), max_tokens=20)
    target.add(1, (5, 6), max_tokens=20)
    target.add(2, (7, 7), max_tokens=20, temperature=1.0)
    for _ in range(3):
        target.step()
    monkeypatch.setattr(
        target.ranks[0].model, "logits", lambda rows: torch.full((len(rows), 32), float("nan"))
    )
    assert target.drain()[1] == lonely.drain()[1]
    last = target.finished[2]
    assert last.finish_reason == "error" and "no token can be drawn" in last.error


def test_shutdown_settles_verdicts_and_lets_the_ranks_leave() -> None:
    target = serve(make=mtp(lambda state: True), depth=3, world_size=2)
    for request_id in (1, 2, 3, 4, 5):
        target.add(request_id, (1, 2, request_id), max_tokens=30)
    for _ in range(3):
        target.step()
    target.close()
    *_, release, shutdown = target.channel.sent
    assert isinstance(release, Release) and sorted(release.slots) == [0, 1, 2, 3]
    assert isinstance(shutdown, Shutdown) and shutdown.reason == "end of test"
    assert not list(target.ranks[1].executor.slots)


def test_a_heartbeat_is_a_command_without_work() -> None:
    target = serve()
    target.engine.heartbeat()
    assert target.channel.sent == [Noop()]


def test_counters_of_run_and_request() -> None:
    target = serve(make=mtp(lambda state: state % 3 == 0), depth=3)
    target.add(1, (1, 2, 3), max_tokens=20)
    target.add(2, range(20), max_tokens=10)
    target.drain()
    run = target.engine.stats.as_dict()
    sent = [type(message) for message in target.channel.sent]
    assert run["rounds"] == run["commands"]["FORWARD"] == sent.count(Forward)
    assert run["commands"].get("MTP_PROPOSE", 0) == sent.count(MtpPropose)
    assert run["commands"].get("MTP_PROPOSE_BATCH", 0) == sent.count(MtpProposeBatch)
    assert (run["prompt_rows"], run["output_tokens"]) == (23, 30)
    spec = run["spec"]
    assert spec["acceptance_length"] == 1 + spec["num_accepted_tokens"] / spec["num_drafts"]
    assert sum(spec["accepted_per_position"]) == spec["num_accepted_tokens"]
    assert sorted(spec["accepted_per_position"], reverse=True) == spec["accepted_per_position"]
    mine = [target.finished[request_id].spec for request_id in (1, 2)]
    assert all(stats is not None for stats in mine)
    assert sum(stats.accepted for stats in mine if stats) == spec["num_accepted_tokens"]
    assert sum(stats.drafted for stats in mine if stats) == spec["num_draft_tokens"]
    assert target.engine.stats.request(1) is None, "ended requests are forgotten"


def test_a_policy_chooses_and_learns() -> None:
    class Alternating:
        def __init__(self) -> None:
            self.views: list[PolicyView] = []
            self.outcomes: list[StepOutcome] = []

        def decide(self, view: PolicyView) -> Decision:
            self.views.append(view)
            return Decision(depth=(0, 3)[len(self.views) % 2], reason="turn")

        def observe(self, outcome: StepOutcome) -> None:
            self.outcomes.append(outcome)

    policy = Alternating()
    depth = PolicyDepth(policy, limits=SpecLimits(num_drafts=3))
    target, plain = serve(make=mtp(), depth=depth), serve()
    for serving in (target, plain):
        serving.add(1, (1, 2, 3), max_tokens=20)
        serving.add(2, (4,), max_tokens=20)
    assert target.drain() == plain.drain()
    assert {outcome.depth for outcome in policy.outcomes} == {0, 3}
    emitted = sum(outcome.num_emitted for outcome in policy.outcomes)
    assert emitted == 38, "all but the first token of each, which the prompt's rows gave"
    assert all(view.stream_ids == (1, 2) for view in policy.views[:3])
    assert depth.decision is not None and depth.decision.reason == "turn"


def test_unseeded_requests_get_a_seed_each() -> None:
    target = serve()
    seeds = iter((5, 6))
    target.engine._new_seed = lambda: next(seeds)
    seeded = serve()
    for request_id in (0, 1):
        target.add(request_id, (1, 2), temperature=1.0, max_tokens=9)
        seeded.add(request_id, (1, 2), temperature=1.0, max_tokens=9, seed=5 + request_id)
    outputs = target.drain()
    assert outputs == seeded.drain() and outputs[0] != outputs[1]


def test_memory_of_a_round_does_not_grow_with_history() -> None:
    """What a decoding round builds is the same size early and late, but for the block table."""
    target = serve(Shape(num_blocks=150, max_model_len=500))
    target.add(1, (1, 2, 3), max_tokens=400)
    sizes = []
    for _ in range(300):
        target.step()
        forward = target.channel.sent[-1]
        if isinstance(forward, Forward) and len(forward.rows) == 1:
            sizes.append((sum(forward.rows), len(forward.tokens), len(forward.new_blocks[0])))
    assert set(sizes[5:]) <= {(1, 1, 0), (1, 1, 1)}
    assert np.mean([size[2] for size in sizes[5:]]) < 0.3
