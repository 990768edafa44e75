"""A checkpoint with one tensor for all experts of a layer loads as one with a tensor each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.ep.placement import ExpertPlacement
from phalanx.runtime.models.architectures import open_checkpoint, plan_shards
from phalanx.runtime.models.planning import Drafting, RankShare
from phalanx.runtime.weights.index import CheckpointError
from phalanx.runtime.weights.load import WeightsReport, load_targets
from tests.support.tiny_checkpoint import save_glm4_moe, save_mixtral


def save_fused(classic: Path, fused: Path) -> None:
    """The same model as transformers saves it when not asked for the original names."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(classic, dtype=torch.float32)
    model.save_pretrained(fused, save_original_format=False)


def load_rank(
    folder: Path, *, rank: int, world_size: int
) -> tuple[dict[str, torch.Tensor], WeightsReport]:
    spec, entries = open_checkpoint(folder)
    placement = ExpertPlacement(num_experts=spec.num_experts, world_size=world_size)
    share = RankShare.of(spec, placement, rank=rank, drafting=Drafting.LOCKSTEP)
    return load_targets(plan_shards(spec, share), entries, dtype=torch.float32)


@pytest.fixture(scope="module", params=["mixtral", "glm"])
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    savers: dict[str, Callable[..., Path]] = {"mixtral": save_mixtral, "glm": save_glm4_moe}
    more = {"mtp": False} if request.param == "glm" else {}
    classic = savers[request.param](tmp_path_factory.mktemp("classic"), **more)
    fused = tmp_path_factory.mktemp("fused")
    save_fused(classic, fused)
    names = load_file(str(fused / "model.safetensors"))
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in names)
    return classic, fused


@pytest.mark.parametrize("rank", [0, 2])
def test_every_rank_holds_the_same_and_reads_as_little(
    folders: tuple[Path, Path], rank: int
) -> None:
    classic, report = load_rank(folders[0], rank=rank, world_size=3)
    fused, fused_report = load_rank(folders[1], rank=rank, world_size=3)
    assert fused.keys() == classic.keys()
    assert all(torch.equal(fused[name], classic[name]) for name in classic)
    assert fused_report == report


def test_a_fused_tensor_of_another_shape_is_named(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    for file in folders[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(str(tmp_path / "model.safetensors"))
    name = "model.layers.2.mlp.experts.gate_up_proj"
    tensors[name] = tensors[name].flatten(1)
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"match nothing in the model, first .*gate_up_proj"):
        load_rank(tmp_path, rank=0, world_size=1)
