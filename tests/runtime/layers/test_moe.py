"""A mixture split over ranks is the whole mixture, in the same bits for a row alone or not."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from phalanx.ep.comm.communicator import Communicator
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.placement import ExpertPlacement
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.runtime.layers.moe import GatedWeights, MoeMlp, MoeWeights
from phalanx.runtime.models.spec import ModelSpec, parse_spec
from tests.runtime.models.test_spec import GLM, MIXTRAL
from tests.support.thread_ranks import ThreadComm, ThreadGroup

KERNELS = make_kernels(Backend.REFERENCE, num_threads=1)
SPECS = {
    "softmax": parse_spec(MIXTRAL, source="x"),
    "grouped_sigmoid": parse_spec(GLM, source="x"),
}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3


def layer(spec: ModelSpec, experts: range) -> MoeMlp:
    """The same random layer on every rank, cut to `experts`."""
    e, d, f = spec.num_experts, spec.hidden_size, spec.expert_intermediate
    held = slice(experts.start, experts.stop)
    shared = None
    if spec.shared_intermediate:
        s = spec.shared_intermediate
        shared = GatedWeights(draw(2 * s, d), draw(d, s))
    weights = MoeWeights(
        router_ED=draw(e, d),
        correction_bias_E=draw(e) if spec.router == "grouped_sigmoid" else None,
        gate_up_EGD=draw(e, 2 * f, d)[held],
        down_EDF=draw(e, d, f)[held],
        shared=shared,
    )
    return MoeMlp(spec, weights, experts=experts)


def on_ranks(spec: ModelSpec, x_RD: Tensor, world_size: int) -> tuple[list[Tensor], set[str]]:
    """Every rank's output, and the collectives they used."""
    group = ThreadGroup(world_size)
    placement = ExpertPlacement(num_experts=spec.num_experts, world_size=world_size)
    outputs: dict[int, Tensor] = {}
    comms: list[Communicator] = [ThreadComm(group, rank) for rank in range(world_size)]

    def work(rank: int) -> None:
        mlp = layer(spec, placement.experts_of(rank))
        outputs[rank] = mlp.forward(x_RD.clone(), KERNELS, comms[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    counts = {f"{name} x {n}" for comm in comms for name, n in comm.counts.items()}
    return [outputs[rank] for rank in range(world_size)], counts


@pytest.mark.parametrize("router", sorted(SPECS))
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_partial_sums_of_the_ranks_make_the_whole_mixture(router: str, world_size: int) -> None:
    spec, x_RD = SPECS[router], draw(7, 32)
    comm = LocalCommunicator()
    whole = layer(spec, range(spec.num_experts)).forward(x_RD, KERNELS, comm)
    assert not comm.counts, "one rank exchanges nothing"
    outputs, counts = on_ranks(spec, x_RD, world_size)
    torch.testing.assert_close(outputs[0], whole)
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    assert len(counts) == 1, "exactly one exchange, the same on every rank"


def test_the_shared_expert_is_added_once() -> None:
    spec = SPECS["grouped_sigmoid"]
    bare = replace(spec, shared_intermediate=0)
    x_RD = draw(5, 32)
    with_shared, _ = on_ranks(spec, x_RD, 4)
    without, _ = on_ranks(bare, x_RD, 4)
    s = spec.shared_intermediate
    shared = KERNELS.gated_mlp(x_RD, draw(2 * s, 32), draw(32, s))
    torch.testing.assert_close(with_shared[0] - without[0], shared)


def test_rows_of_no_local_expert_contribute_nothing() -> None:
    spec = SPECS["softmax"]
    mlp = layer(spec, range(1))
    ids_RA, _ = mlp.route(draw(6, 32), KERNELS)
    assert set(ids_RA.unique().tolist()) <= {-1, 0}
    everything = layer(spec, range(spec.num_experts)).route(draw(6, 32), KERNELS)[0]
    assert torch.equal(ids_RA == 0, everything == 0)
