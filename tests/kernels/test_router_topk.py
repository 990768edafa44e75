"""Router top-k: the experts and weights that transformers' own routers give."""

from __future__ import annotations

import pytest
import torch
from transformers import Glm4MoeConfig, MixtralConfig, Qwen3MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import KernelSet, make_kernels
from phalanx.kernels.router_topk import ExpertChoice
from tests.kernels.nearness import assert_near


def assert_same_choice(found: ExpertChoice, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """The same experts with the same weights; transformers leaves the order open."""
    assert found.ids_RA.dtype == torch.int32
    found_ids, found_order = found.ids_RA.long().sort(dim=-1)
    expected_ids, expected_order = ids.sort(dim=-1)
    assert torch.equal(found_ids, expected_ids)
    assert_near(
        found.weights_RA.gather(1, found_order), weights.gather(1, expected_order), tolerance=2e-6
    )


def test_mixtral(native: KernelSet, reference: KernelSet) -> None:
    router = MixtralTopKRouter(
        MixtralConfig(hidden_size=16, num_local_experts=8, num_experts_per_tok=2)
    )
    torch.nn.init.normal_(router.weight)
    with torch.no_grad():
        logits, weights, ids = router(torch.randn(50, 16))
    for kernels in (native, reference):
        assert_same_choice(kernels.softmax_topk(logits, 2, normalize=True), ids, weights)


@pytest.mark.parametrize("normalize", [True, False])
def test_qwen3_moe(native: KernelSet, reference: KernelSet, normalize: bool) -> None:
    router = Qwen3MoeTopKRouter(
        Qwen3MoeConfig(
            hidden_size=16, num_experts=60, num_experts_per_tok=8, norm_topk_prob=normalize
        )
    )
    torch.nn.init.normal_(router.weight)
    with torch.no_grad():
        logits, weights, ids = router(torch.randn(50, 16))
    for kernels in (native, reference):
        assert_same_choice(kernels.softmax_topk(logits, 8, normalize=normalize), ids, weights)


@pytest.mark.parametrize(("num_groups", "topk_groups"), [(1, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("normalize", [True, False])
def test_glm4_moe_and_deepseek_v3(
    native: KernelSet, reference: KernelSet, num_groups: int, topk_groups: int, normalize: bool
) -> None:
    config = Glm4MoeConfig(
        hidden_size=16,
        n_routed_experts=32,
        num_experts_per_tok=6,
        n_group=num_groups,
        topk_group=topk_groups,
        norm_topk_prob=normalize,
        routed_scaling_factor=2.5,
    )
    router = Glm4MoeTopkRouter(config)
    torch.nn.init.normal_(router.weight)
    torch.nn.init.normal_(router.e_score_correction_bias, std=0.3)
    with torch.no_grad():
        logits, weights, ids = router(torch.randn(50, 16))
    for kernels in (native, reference):
        choice = kernels.grouped_sigmoid_topk(
            logits,
            router.e_score_correction_bias,
            top_k=6,
            num_groups=num_groups,
            topk_groups=topk_groups,
            normalize=normalize,
            scale=2.5,
        )
        assert_same_choice(choice, ids, weights)


def test_equal_scores_go_to_the_lower_id(native: KernelSet, reference: KernelSet) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 5] = 1.0
    for kernels in (native, reference):
        choice = kernels.softmax_topk(logits, 3, normalize=True)
        assert choice.ids_RA.tolist() == [[0, 1, 2], [5, 0, 1]]
        assert choice.weights_RA[0].tolist() == [pytest.approx(1 / 3, abs=1e-7)] * 3
        grouped = kernels.grouped_sigmoid_topk(
            torch.zeros(1, 8),
            torch.zeros(8),
            top_k=3,
            num_groups=4,
            topk_groups=2,
            normalize=True,
            scale=1.0,
        )
        assert grouped.ids_RA.tolist() == [[0, 1, 2]]


def test_all_experts_of_a_zero_router_share_exactly(native: KernelSet) -> None:
    choice = native.softmax_topk(torch.zeros(3, 8), 8, normalize=True)
    assert choice.ids_RA.tolist() == [list(range(8))] * 3
    assert torch.equal(choice.weights_RA, torch.full((3, 8), 0.125))


def test_the_bias_selects_but_does_not_weigh(native: KernelSet, reference: KernelSet) -> None:
    bias = torch.zeros(8)
    bias[6] = 10.0
    for kernels in (native, reference):
        choice = kernels.grouped_sigmoid_topk(
            torch.zeros(1, 8),
            bias,
            top_k=1,
            num_groups=2,
            topk_groups=1,
            normalize=False,
            scale=1.0,
        )
        assert choice.ids_RA.tolist() == [[6]]
        assert choice.weights_RA.tolist() == [[0.5]]


def test_rows_do_not_depend_on_batch_or_threads(native: KernelSet) -> None:
    logits = torch.randn(300, 64)
    whole = make_kernels(Backend.NATIVE, num_threads=3).softmax_topk(logits, 6, normalize=True)
    part = native.softmax_topk(logits[100:101], 6, normalize=True)
    assert torch.equal(part.ids_RA, whole.ids_RA[100:101])
    assert torch.equal(part.weights_RA, whole.weights_RA[100:101])


def test_nan_logits_still_give_distinct_valid_experts(native: KernelSet) -> None:
    logits = torch.full((1, 6), torch.nan)
    logits[0, 4] = 1.0
    choice = native.softmax_topk(logits, 4, normalize=True)
    assert choice.ids_RA.tolist() == [[4, 0, 1, 2]]


def test_no_rows(native: KernelSet) -> None:
    assert native.softmax_topk(torch.empty(0, 8), 2, normalize=True).ids_RA.shape == (0, 2)


def test_impossible_choices_are_refused(native: KernelSet, reference: KernelSet) -> None:
    for kernels in (native, reference):
        for top_k in (0, 9):
            with pytest.raises(ValueError, match=f"top_k={top_k}, experts=8"):
                kernels.softmax_topk(torch.randn(1, 8), top_k, normalize=True)
        for num_groups, topk_groups, top_k in ((3, 1, 1), (8, 1, 1), (4, 5, 1), (4, 1, 3)):
            with pytest.raises(ValueError, match="grouped_sigmoid_topk: bad groups"):
                kernels.grouped_sigmoid_topk(
                    torch.randn(1, 8),
                    torch.zeros(8),
                    top_k=top_k,
                    num_groups=num_groups,
                    topk_groups=topk_groups,
                    normalize=True,
                    scale=1.0,
                )


def test_unfit_operands_are_named(native: KernelSet) -> None:
    with pytest.raises(ValueError, match="softmax_topk: operands do not fit"):
        native.softmax_topk(torch.randn(2, 8).double(), 2, normalize=True)
    with pytest.raises(ValueError, match="softmax_topk: operands do not fit"):
        native.softmax_topk(torch.randn(8, 2).T, 2, normalize=True)
    with pytest.raises(ValueError, match="grouped_sigmoid_topk: operands do not fit"):
        native.grouped_sigmoid_topk(
            torch.randn(2, 8),
            torch.zeros(7),
            top_k=2,
            num_groups=1,
            topk_groups=1,
            normalize=True,
            scale=1.0,
        )
