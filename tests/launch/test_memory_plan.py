"""Memory plan: the arithmetic is what loading then holds, and experts divide over ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import ExpertPlacement, PlacementError
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.launch.memory_plan import (
    PROCESS_BYTES,
    free_host_bytes,
    measure_host,
    memory_of_ranks,
)
from phalanx.launch.tiny_model import prepare_tiny
from phalanx.runtime.config import CacheConfig, Config, ModelConfig
from phalanx.runtime.models.architectures import load_model
from phalanx.runtime.models.planning import Drafting

CONFIG = Config(model=ModelConfig(dtype="float32"), cache=CacheConfig(num_kv_blocks=10))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_tiny(tmp_path_factory.mktemp("cache"))


def test_arithmetic_equals_what_loading_holds(tiny: Path) -> None:
    [planned] = memory_of_ranks(tiny, CONFIG, ranks=1, drafting=Drafting.LOCKSTEP)
    _, report = load_model(
        tiny,
        dtype=torch.float32,
        comm=LocalCommunicator(torch.device("cpu")),
        kernels=make_kernels(Backend.REFERENCE, num_threads=1),
        placement=ExpertPlacement(num_experts=16, world_size=1),
    )
    assert planned.weights == report.bytes_held
    assert planned.total == planned.weights + planned.kv_pool + PROCESS_BYTES


def test_more_ranks_hold_less_each(tiny: Path) -> None:
    alone = memory_of_ranks(tiny, CONFIG, ranks=1, drafting=Drafting.LOCKSTEP)[0].weights
    four = [m.weights for m in memory_of_ranks(tiny, CONFIG, ranks=4, drafting=Drafting.LOCKSTEP)]
    assert max(four) < alone < sum(four)


def test_a_drafter_on_rank_0_alone_weighs_on_rank_0(tiny: Path) -> None:
    first, second = memory_of_ranks(tiny, CONFIG, ranks=2, drafting=Drafting.RANK_0_ONLY)
    off = memory_of_ranks(tiny, CONFIG, ranks=2, drafting=Drafting.OFF)
    assert second.weights < first.weights
    assert off[1].weights <= second.weights


def test_more_ranks_than_experts_is_refused(tiny: Path) -> None:
    with pytest.raises(PlacementError, match="more ranks than experts"):
        memory_of_ranks(tiny, CONFIG, ranks=17, drafting=Drafting.OFF)


def test_a_container_limit_counts(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) > 0
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert free_host_bytes(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_host_bytes(tmp_path) > 5000


def test_host_facts_are_plausible() -> None:
    host = measure_host(CONFIG, local_rank=0, local_world_size=2)
    assert host.cores >= 1 and host.free_bytes > 0 and host.local_world_size == 2
