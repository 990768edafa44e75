"""config.json is checked field by field; what cannot run here is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.runtime.models.spec import ModelSpecError, load_spec, parse_spec

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 100, "hidden_size": 32,
    "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
GLM = {
    "architectures": ["Glm4MoeForCausalLM"], "vocab_size": 100, "hidden_size": 32,
    "intermediate_size": 64, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 2,
}  # fmt: skip


def test_rotary_settings_are_found_in_both_places() -> None:
    assert parse_spec(MIXTRAL | {"rope_theta": 5.0}, source="x").rope_theta == 5.0
    nested = {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}
    assert parse_spec(MIXTRAL | nested, source="x").rope_theta == 7.0
    partial = {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 9.0}}
    spec = parse_spec(GLM | {"head_dim": 16} | partial, source="x")
    assert (spec.rotary_dim, spec.rope_theta) == (4, 9.0)


def test_glm_shared_experts_widen_one_mlp() -> None:
    assert parse_spec(GLM, source="x").shared_intermediate == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"LlamaForCausalLM.*supported: Glm4Moe.*Mixtral"),
        ({"architectures": None}, "unknown architecture"),
        ({"vocab_size": None}, r"vocab_size=None.*integer >= 1"),
        ({"hidden_size": "32"}, r"hidden_size='32'"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers=0"),
        ({"num_experts_per_tok": 5}, r"num_experts_per_tok=5.*number of experts=4"),
        ({"num_attention_heads": 5}, r"num_attention_heads=5.*multiple of num_key_value_heads=2"),
        ({"sliding_window": 128}, r"sliding_window=128"),
        ({"hidden_act": "gelu"}, r"hidden_act='gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, r"rope_type='yarn'"),
        ({"num_nextn_predict_layers": 2}, r"num_nextn_predict_layers=2"),
        ({"rms_norm_eps": 0}, r"rms_norm_eps=0"),
    ],
)
def test_bad_fields_are_named_with_their_limit(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelSpecError, match=message):
        parse_spec(MIXTRAL | change, source="config.json")


def test_groups_must_divide_experts() -> None:
    with pytest.raises(ModelSpecError, match=r"n_group=3.*divisor of the number of experts=8"):
        parse_spec(GLM | {"n_group": 3}, source="x")


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelSpecError, match=r"no config\.json"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text("{half")
    with pytest.raises(ModelSpecError, match="cannot be read"):
        load_spec(tmp_path)
