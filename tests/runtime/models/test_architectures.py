"""Building a model: other ranks' tensors are checked too, and a foreign placement is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import ExpertPlacement, PlacementError
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.launch.tiny_model import write_tiny
from phalanx.runtime.models.architectures import load_model, open_checkpoint, plan_shards
from phalanx.runtime.models.planning import Drafting, RankShare
from phalanx.runtime.weights.index import CheckpointError
from tests.support.single_rank import OneSequence, load_single


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("experts", "ranks"), [(16, 2), (8, 1)])
def test_a_placement_of_another_job_or_model_is_refused(
    folder: Path, experts: int, ranks: int
) -> None:
    with pytest.raises(PlacementError, match=rf"experts={experts}, ranks={ranks}; here 16 experts"):
        load_model(
            folder,
            dtype=torch.float32,
            comm=LocalCommunicator(),
            kernels=make_kernels(Backend.REFERENCE, num_threads=1),
            placement=ExpertPlacement(num_experts=experts, world_size=ranks),
        )


@pytest.mark.parametrize("drafting", list(Drafting))
@pytest.mark.parametrize("rank", [0, 3])
def test_every_rank_reports_the_same_bad_tensor(
    folder: Path, rank: int, drafting: Drafting
) -> None:
    """A wrong expert of the last rank ends the first one too, with the same words."""
    tensors = load_file(str(folder / "model.safetensors"))
    name = "model.layers.3.mlp.experts.15.up_proj.weight"
    tensors[name] = torch.zeros(3, 3)
    save_file(tensors, str(folder / "model.safetensors"))
    spec, entries = open_checkpoint(folder)
    placement = ExpertPlacement(num_experts=16, world_size=4)
    share = RankShare.of(spec, placement, rank=rank, drafting=drafting)
    with pytest.raises(CheckpointError, match=rf"{name}, shape=\[3, 3\].*asks for \[32, 64\]"):
        plan_shards(spec, share).check(entries)


def test_a_model_without_drafting_reads_no_drafter(folder: Path) -> None:
    model, report = load_model(
        folder,
        dtype=torch.float32,
        comm=LocalCommunicator(),
        kernels=make_kernels(Backend.REFERENCE, num_threads=1),
        placement=ExpertPlacement(num_experts=16, world_size=1),
        drafting=Drafting.OFF,
    )
    whole = load_single(folder)
    assert report.bytes_read < report.bytes_total
    assert model.draft_head(OneSequence(model).kv) is None
    assert whole.draft_head(OneSequence(whole).kv) is not None


def test_a_bfloat16_model_answers_like_the_float32_model_of_the_same_weights(
    tmp_path: Path,
) -> None:
    """The weights are halved in size, the arithmetic is not: activations stay float32."""
    write_tiny(tmp_path)
    path = str(tmp_path / "model.safetensors")
    rounded = {name: t.to(torch.bfloat16) for name, t in load_file(path).items()}
    save_file(rounded, path)
    tokens = list(range(3, 20))
    with torch.inference_mode():
        exact = load_single(tmp_path)
        compact = load_single(tmp_path, dtype=torch.bfloat16)
        expected = exact.logits(OneSequence(exact).forward(tokens, 0))
        got = compact.logits(OneSequence(compact).forward(tokens, 0))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
