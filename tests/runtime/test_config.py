"""Config: what is open is resolved in words, what cannot be honoured is refused, digests agree."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.base import SpecConfig
from phalanx.runtime.config import (
    DEFAULT_MAX_MODEL_LEN,
    RANK_LOCAL,
    CacheConfig,
    Config,
    ConfigError,
    Host,
    ModelConfig,
    ModelFacts,
    ScheduleConfig,
    resolve,
)

HOST = Host(cores=4, free_bytes=1 << 30, local_world_size=2)
FACTS = ModelFacts(max_position=2048, bytes_per_kv_block=1 << 14, has_mtp=True)


def test_resolve_leaves_nothing_open_and_says_what_it_chose() -> None:
    resolved = resolve(Config(), host=HOST, facts=FACTS)
    assert resolved.config.model.max_model_len == 2048
    assert resolved.config.model.threads == 2
    assert resolved.config.cache.num_kv_blocks > 0
    assert [line.split(" ")[0] for line in resolved.changes] == [
        "model.max_model_len",
        "model.threads",
        "cache.num_kv_blocks",
    ]


def test_resolve_of_a_resolved_config_changes_nothing() -> None:
    first = resolve(Config(), host=HOST, facts=FACTS)
    second = resolve(first.config, host=HOST, facts=FACTS)
    assert second.config == first.config and second.changes == ()


def test_given_settings_are_kept() -> None:
    config = Config(
        model=ModelConfig(max_model_len=100, threads=7), cache=CacheConfig(num_kv_blocks=33)
    )
    assert resolve(config, host=HOST, facts=FACTS).config == config


def test_long_contexts_are_capped_unless_asked_for() -> None:
    facts = dataclasses.replace(FACTS, max_position=1 << 20)
    assert resolve(Config(), host=HOST, facts=facts).config.model.max_model_len == (
        DEFAULT_MAX_MODEL_LEN
    )
    asked = Config(model=ModelConfig(max_model_len=8192))
    assert resolve(asked, host=HOST, facts=facts).config.model.max_model_len == 8192


@given(
    free=st.integers(1 << 20, 1 << 34),
    ranks=st.integers(1, 8),
    limit=st.integers(1, 2048),
    block=st.integers(1, 64),
)
def test_kv_pool_serves_one_full_sequence_or_the_start_fails(
    free: int, ranks: int, limit: int, block: int
) -> None:
    config = Config(model=ModelConfig(max_model_len=limit), cache=CacheConfig(block_size=block))
    host = Host(cores=4, free_bytes=free, local_world_size=ranks)
    try:
        blocks = resolve(config, host=host, facts=FACTS).config.cache.num_kv_blocks
    except ConfigError as error:
        assert "lower --max-model-len" in str(error)
        return
    assert blocks * block > limit
    assert blocks * FACTS.bytes_per_kv_block * ranks <= free * config.cache.kv_memory_share


def test_a_pool_that_cannot_hold_one_sequence_is_refused() -> None:
    config = Config(model=ModelConfig(max_model_len=100), cache=CacheConfig(num_kv_blocks=6))
    with pytest.raises(ConfigError, match=r"num_kv_blocks=6, limit >= 7"):
        resolve(config, host=HOST, facts=FACTS)


def test_context_beyond_the_model_is_refused() -> None:
    config = Config(model=ModelConfig(max_model_len=4096))
    with pytest.raises(ConfigError, match=r"max_model_len=4096, model limit 2048"):
        resolve(config, host=HOST, facts=FACTS)


def test_mtp_without_a_module_is_refused() -> None:
    facts = dataclasses.replace(FACTS, has_mtp=False)
    with pytest.raises(ConfigError, match="--spec off"):
        resolve(Config(spec=SpecConfig(method="mtp")), host=HOST, facts=facts)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ModelConfig(dtype="float16"), "accepted float32, bfloat16"),
        (lambda: ModelConfig(device="tpu"), "unknown device"),
        (lambda: ModelConfig(threads=-1), "threads out of range"),
        (lambda: CacheConfig(block_size=0), "block_size out of range"),
        (lambda: CacheConfig(kv_memory_share=1.5), "kv_memory_share"),
        (lambda: ScheduleConfig(max_num_seqs=0), "max_num_seqs"),
        (lambda: ScheduleConfig(max_num_seqs=9, max_num_batched_tokens=8), "needs a row each"),
    ],
)
def test_values_out_of_range_are_refused(make: object, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()  # type: ignore[operator]


def test_digest_is_the_same_in_another_process() -> None:
    code = "from phalanx.runtime.config import Config; print(Config().digest())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == Config().digest()


def test_digest_sees_every_shared_field_and_no_local_one() -> None:
    base = Config()
    other = {int: lambda v: v + 3, float: lambda v: v / 2 + 0.1, bool: lambda v: not v}
    seen = 0
    for branch in dataclasses.fields(base):
        values = getattr(base, branch.name)
        for item in dataclasses.fields(values):
            value = getattr(values, item.name)
            if type(value) not in other:
                continue
            changed = dataclasses.replace(values, **{item.name: other[type(value)](value)})
            config = dataclasses.replace(base, **{branch.name: changed})
            local = f"{branch.name}.{item.name}" in RANK_LOCAL
            assert (config.digest() == base.digest()) is local, item.name
            seen += 1
    assert seen > 10


def test_fields_name_the_setting_that_differs() -> None:
    one = Config().fields()
    two = Config(spec=SpecConfig(method="mtp")).fields()
    assert {name for name in one if one[name] != two[name]} == {"spec.method"}
