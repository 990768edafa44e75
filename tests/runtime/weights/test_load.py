"""A rank reads only its own slices, and a damaged checkpoint gives one clear error."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from phalanx.ep.placement import ExpertPlacement, PlacementError
from phalanx.runtime.models.architectures import open_checkpoint, plan_shards
from phalanx.runtime.models.planning import Drafting, RankShare
from phalanx.runtime.weights.index import CheckpointError, read_index
from phalanx.runtime.weights.load import WeightsReport, load_targets
from tests.support.tiny_checkpoint import save_glm4_moe, save_mixtral


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_glm4_moe(tmp_path_factory.mktemp("glm"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def load_rank(
    folder: Path, rank: int, world: int, *, drafting: Drafting = Drafting.LOCKSTEP
) -> tuple[dict[str, torch.Tensor], WeightsReport]:
    spec, entries = open_checkpoint(folder)
    placement = ExpertPlacement(num_experts=spec.num_experts, world_size=world)
    share = RankShare.of(spec, placement, rank=rank, drafting=drafting)
    return load_targets(plan_shards(spec, share), entries, dtype=torch.float32)


def test_four_ranks_read_little_more_than_a_quarter_of_an_expert_dominated_model(
    tmp_path: Path,
) -> None:
    save_mixtral(
        tmp_path, hidden_size=64, intermediate_size=512, num_local_experts=16, head_dim=8,
        num_attention_heads=8,
    )  # fmt: skip
    entries = read_index(tmp_path)
    experts = sum(e.num_bytes for e in entries.values() if ".experts." in e.name)
    reports = [load_rank(tmp_path, rank, 4)[1] for rank in range(4)]
    assert experts / reports[0].bytes_total >= 0.9
    for report in reports:
        assert report.bytes_read == report.bytes_held
        assert report.bytes_read <= 0.35 * report.bytes_total


def test_ranks_together_hold_every_expert_once(saved: Path) -> None:
    whole, _ = load_rank(saved, 0, 1)
    for world in (2, 3, 4, 8):
        parts = [load_rank(saved, rank, world)[0] for rank in range(world)]
        for name in ("layers.1.gate_up", "layers.2.down", "mtp.block.gate_up"):
            assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])
        assert torch.equal(torch.cat([part["head"] for part in parts]), whole["head"])


def test_drafting_on_rank_0_alone_gives_it_every_expert_of_the_drafter(saved: Path) -> None:
    first, _ = load_rank(saved, 0, 2, drafting=Drafting.RANK_0_ONLY)
    second, _ = load_rank(saved, 1, 2, drafting=Drafting.RANK_0_ONLY)
    assert first["mtp.block.gate_up"].shape[0] == 8
    assert first["layers.1.gate_up"].shape[0] == 4
    assert not [name for name in second if name.startswith("mtp.")]


def test_fused_weights_hold_their_parts_in_order(saved: Path) -> None:
    raw = load_file(str(saved / "model.safetensors"))
    held, _ = load_rank(saved, 1, 2)
    attention = "model.layers.2.self_attn."
    qkv = [raw[f"{attention}{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(held["layers.2.qkv"], torch.cat(qkv))
    expert = "model.layers.2.mlp.experts.5."
    gate_up = [raw[f"{expert}gate_proj.weight"], raw[f"{expert}up_proj.weight"]]
    assert torch.equal(held["layers.2.gate_up"][1], torch.cat(gate_up))
    assert torch.equal(held["layers.2.down"][1], raw[f"{expert}down_proj.weight"])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_convert_while_loading(folder: Path, stored: torch.dtype) -> None:
    raw = load_file(str(folder / "model.safetensors"))
    save_file({n: t.to(stored) for n, t in raw.items()}, str(folder / "model.safetensors"))
    held, _ = load_rank(folder, 0, 1)
    assert held["embedding"].dtype is torch.float32
    assert torch.equal(held["embedding"], raw["model.embed_tokens.weight"].to(stored).float())


def test_progress_ends_at_the_total(saved: Path) -> None:
    spec, entries = open_checkpoint(saved)
    seen: list[tuple[int, int]] = []
    _, report = load_targets(
        plan_shards(spec, RankShare.whole(spec)),
        entries,
        dtype=torch.float32,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (report.bytes_read, report.bytes_read)


def test_a_promised_mtp_layer_that_is_absent_means_no_drafter(tmp_path: Path) -> None:
    spec, _ = open_checkpoint(save_glm4_moe(tmp_path, mtp=False))
    assert spec.num_mtp_layers == 0


def rewrite(folder: Path, change: object) -> None:
    tensors = load_file(str(folder / "model.safetensors"))
    change(tensors)  # type: ignore[operator]
    save_file(tensors, str(folder / "model.safetensors"))


def test_missing_tensor_is_named_with_the_nearest_one(folder: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.out_proj.weight"] = tensors.pop(
            "model.layers.1.self_attn.o_proj.weight"
        )

    rewrite(folder, rename)
    with pytest.raises(CheckpointError, match=r"missing, first .*o_proj.*has .*out_proj.*nothing"):
        load_rank(folder, 0, 1)


def test_wrong_shape_names_both_shapes(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.norm.weight": torch.ones(47)}))
    with pytest.raises(CheckpointError, match=r"norm\.weight, shape=\[47\].*asks for \[48\]"):
        load_rank(folder, 0, 1)


@pytest.mark.parametrize("keep", [0, 5, 40, 5000])
def test_half_written_file_is_refused(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"damaged weight file .*half-written"):
        load_rank(folder, 0, 1)


def test_header_with_overlong_offsets_is_refused(folder: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(CheckpointError, match="x ends at byte"):
        read_index(folder)


def test_missing_files_and_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such checkpoint folder \(path=.*nowhere"):
        read_index(tmp_path / "nowhere")
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"weight file is missing .*model-1\.safetensors"):
        read_index(folder)
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="index cannot be read"):
        read_index(folder)


def test_more_ranks_than_experts_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"ranks=9, experts=8.*at most 8 ranks"):
        ExpertPlacement(num_experts=8, world_size=9)


@pytest.mark.parametrize(("experts", "world"), [(8, 3), (10, 4), (5, 5), (7, 1)])
def test_linear_placement_gives_the_last_rank_the_remainder(experts: int, world: int) -> None:
    placement = ExpertPlacement(num_experts=experts, world_size=world)
    held = [placement.experts_of(rank) for rank in range(world)]
    assert [e for part in held for e in part] == list(range(experts))
    assert {len(part) for part in held[:-1]} <= {experts // world}
    owners = placement.ranks_of_experts()
    assert all(e in held[owners[e][0]] and len(owners[e]) == 1 for e in range(experts))
