"""Cost keys: a table of another machine or kernel plan is refused, naming every difference."""

from __future__ import annotations

import math

import pytest

from phalanx.proposers.policy.cost_key import (
    CostKey,
    CostKeyMismatch,
    CostTableError,
    check_key,
    key_differences,
    make_key,
    plan_digest,
)

from .cost_samples import cost_key


def test_equal_keys_pass() -> None:
    check_key(cost_key(), cost_key())
    assert key_differences(cost_key(), cost_key()) == ()


def test_all_five_differences_are_named_at_once() -> None:
    table = CostKey(
        box_class="gb10", recipe="a/b", plan_digests={"verify": "1", "draft": "2"}, schema=1
    )
    serve = CostKey(
        box_class="h200", recipe="a/c", plan_digests={"verify": "9", "verify_batch": "3"}, schema=2
    )
    differences = key_differences(table, serve)
    assert len(differences) == 6
    with pytest.raises(CostKeyMismatch) as refused:
        check_key(table, serve)
    for name in ("schema", "box_class", "recipe", "draft", "verify_batch", "verify:"):
        assert name in str(refused.value)
    assert "'gb10'" in str(refused.value) and "'h200'" in str(refused.value)
    assert "has none" in str(refused.value)


def test_one_other_digest_is_enough() -> None:
    with pytest.raises(CostKeyMismatch, match=r"plan_digests\.draft"):
        check_key(cost_key(), cost_key(draft="other"))


def test_a_key_needs_box_recipe_and_every_plan() -> None:
    with pytest.raises(CostTableError) as refused:
        make_key(box_class=" ", recipe="", plan_digests={"verify": "x"})
    for name in ("box_class", "recipe", "verify_batch", "draft"):
        assert name in str(refused.value)


def test_digests_depend_on_mode_and_plan_but_not_on_order() -> None:
    plan = {"layers": 4, "graph": {"rows": [2, 4]}}
    assert plan_digest("verify", plan) == plan_digest(
        "verify", {"graph": {"rows": [2, 4]}, "layers": 4}
    )
    assert plan_digest("verify", plan) != plan_digest("draft", plan)
    assert plan_digest("verify", plan) != plan_digest("verify", plan | {"layers": 5})


@pytest.mark.parametrize("value", [math.nan, object(), {1, 2}])
def test_a_plan_that_would_not_hash_twice_the_same_is_refused(value: object) -> None:
    with pytest.raises(CostTableError, match="not hashable"):
        plan_digest("verify", {"value": value})
