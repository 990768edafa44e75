"""The engine over a real (tiny, random) checkpoint: transformers' text, whatever is drafted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.ep.channel import LocalChannel
from phalanx.ep.comm.local import LocalCommunicator
from phalanx.ep.lockstep import StateDigest
from phalanx.ep.placement import ExpertPlacement
from phalanx.kernels.backend import Backend
from phalanx.kernels.kernel_set import make_kernels
from phalanx.kernels.native_library import native_problem
from phalanx.proposers.base import DraftProposer
from phalanx.proposers.mtp import MtpProposer
from phalanx.proposers.scripted import replay_drafter
from phalanx.runtime.cache.kv_pool import KVPool
from phalanx.runtime.depth import DepthChooser, FixedDepth
from phalanx.runtime.engine import Engine
from phalanx.runtime.executor import Executor
from phalanx.runtime.models.architectures import load_model
from phalanx.runtime.models.spec import load_spec
from phalanx.runtime.request import Request, SamplingParams
from phalanx.runtime.round_plan import SchedulerLimits
from phalanx.runtime.scheduler import Scheduler
from tests.support.fake_serve import ScriptedDepth
from tests.support.thread_ranks import DEADLINE_S, QueueChannel, ThreadComm, ThreadGroup, Worker
from tests.support.tiny_checkpoint import VOCAB, save_glm4_moe

PROMPTS = ((5, 6, 7), tuple(range(40, 63)), (9,))
NEW_TOKENS = 14
NATIVE = native_problem() is None
LIMITS = SchedulerLimits(
    max_num_seqs=3,
    max_num_batched_tokens=14,
    max_model_len=64,
    block_size=4,
    num_blocks=40,
    vocab_size=VOCAB,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_glm4_moe(tmp_path_factory.mktemp("glm"))


@pytest.fixture(scope="module")
def greedy(folder: Path) -> dict[int, list[int]]:
    """transformers, one prompt at a time."""
    from transformers import Glm4MoeForCausalLM

    model = Glm4MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = {}
    with torch.inference_mode():
        for index, prompt in enumerate(PROMPTS):
            tokens = list(prompt)
            for _ in range(NEW_TOKENS):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            texts[index] = tokens[len(prompt) :]
    return texts


class OneRank:
    """One rank's executor over the checkpoint."""

    def __init__(self, folder: Path, comm: Any, backend: Backend, drafter: Any) -> None:
        spec = load_spec(folder)
        kernels = make_kernels(backend, num_threads=1)
        model, _ = load_model(
            folder,
            dtype=torch.float32,
            comm=comm,
            kernels=kernels,
            placement=ExpertPlacement(num_experts=spec.num_experts, world_size=comm.world_size),
        )
        kv = KVPool(spec, num_blocks=LIMITS.num_blocks, block_size=LIMITS.block_size)
        head = model.draft_head(kv)
        assert head is not None
        self.digest = StateDigest()
        self.proposer: DraftProposer | None = MtpProposer(head) if drafter == "mtp" else drafter
        self.executor = Executor(
            model=model,
            kv=kv,
            kernels=kernels,
            comm=comm,
            digest=self.digest,
            num_slots=LIMITS.max_num_seqs,
            max_blocks=20,
            proposer=self.proposer,
        )


def generate(
    folder: Path,
    *,
    drafter: Any = None,
    depth: DepthChooser | int = 3,
    world_size: int = 1,
    **params: Any,
) -> tuple[dict[int, list[int]], dict[str, Any]]:
    group = ThreadGroup(world_size)
    # The native library has one pool of threads per process, so ranks that are threads go without.
    backend = Backend.NATIVE if NATIVE and world_size == 1 else Backend.REFERENCE
    comms: list[Any] = [ThreadComm(group, rank) for rank in range(world_size)]
    ranks = [
        OneRank(folder, comm if world_size > 1 else LocalCommunicator(), backend, drafter)
        for comm in comms
    ]
    workers = [
        Worker(
            rank=1,
            digest=rank.digest,
            execute=rank.executor.execute,
            head=ranks[0].digest,
            on_error=group.barrier.abort,
        )
        for rank in ranks[1:]
    ]
    digest = ranks[0].digest
    channel: Any = QueueChannel(digest, workers) if workers else LocalChannel(state=digest)
    engine = Engine(
        scheduler=Scheduler(LIMITS),
        executor=ranks[0].executor,
        channel=channel,
        digest=digest,
        proposer=ranks[0].proposer,
        depth=FixedDepth(depth) if isinstance(depth, int) else depth,
    )
    threads = [threading.Thread(target=worker.loop, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    outputs: dict[int, list[int]] = {}
    for index, prompt in enumerate(PROMPTS):
        wanted = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, **params)
        engine.add_request(Request(id=index, prompt_token_ids=prompt, params=wanted))
    while engine.has_work:
        for event in engine.step():
            outputs.setdefault(event.request_id, []).extend(event.token_ids)
    engine.shutdown("done")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [worker.error for worker in workers] == [None] * len(workers)
    return outputs, engine.stats.as_dict()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("world_size", [1, 2])
def test_greedy_text_equals_transformers(
    folder: Path, greedy: dict[int, list[int]], world_size: int
) -> None:
    changing = ScriptedDepth(lambda call, seq: (call + seq) % 5)
    replay = replay_drafter(
        [[*prompt, *greedy[index]] for index, prompt in enumerate(PROMPTS)], flaw_every=5
    )
    for drafter, depth in ((None, 0), ("mtp", 3), ("mtp", changing)):
        text, _ = generate(folder, drafter=drafter, depth=depth, world_size=world_size)
        assert text == greedy
    text, stats = generate(folder, drafter=replay, depth=4, world_size=world_size)
    assert text == greedy
    assert stats["spec"]["num_accepted_tokens"] > 10


@pytest.mark.skipif(not NATIVE, reason="rows are the same bits in any batch only natively")
def test_sampled_text_does_not_depend_on_drafts(folder: Path) -> None:
    plain, _ = generate(folder, depth=0, temperature=0.8, top_p=0.9, seed=11)
    drafted, stats = generate(folder, drafter="mtp", depth=4, temperature=0.8, top_p=0.9, seed=11)
    assert drafted == plain and stats["spec"]["num_draft_tokens"] > 20
    replay = replay_drafter([[*prompt, *plain[i]] for i, prompt in enumerate(PROMPTS)])
    replayed, stats = generate(folder, drafter=replay, depth=4, temperature=0.8, top_p=0.9, seed=11)
    assert replayed == plain
    assert stats["spec"]["num_accepted_tokens"] == stats["spec"]["num_draft_tokens"] > 20
