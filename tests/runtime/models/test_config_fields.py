"""Odd values in config.json: each is refused with its name, value and limit, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.models.spec import ModelSpec, ModelSpecError, load_spec, parse_spec
from tests.runtime.models.test_spec import GLM, MIXTRAL

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
FIELDS = sorted(
    {*GLM, *MIXTRAL, "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling"}
    | {"partial_rotary_factor", "max_position_embeddings", "eos_token_id", "bos_token_id"}
    | {"tie_word_embeddings", "use_qk_norm", "attention_bias", "norm_topk_prob", "hidden_act"}
    | {"routed_scaling_factor", "first_k_dense_replace", "num_nextn_predict_layers", "phalanx_mtp"}
    | {"sliding_window"}
)


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (GLM, {"partial_rotary_factor": 2.0}, r"rotary dimension=16.*2 to head_dim=8"),
        (GLM, {"partial_rotary_factor": 0.01}, r"rotary dimension=0"),
        (GLM, {"n_group": 8}, r"n_group=8.*at least 2 of the 8 experts"),
        (GLM, {"num_experts_per_tok": 5}, r"num_experts_per_tok=5.*topk_group=1"),
        (GLM, {"topk_group": 3}, r"topk_group=3.*n_group=2"),
        (GLM, {"first_k_dense_replace": 3}, r"first_k_dense_replace=3.*num_hidden_layers=2"),
        (GLM, {"use_qk_norm": "yes"}, r"use_qk_norm='yes'.*true or false"),
        (MIXTRAL, {"tie_word_embeddings": 1}, r"tie_word_embeddings=1"),
        (MIXTRAL, {"eos_token_id": "</s>"}, r"eos_token_id='</s>'.*0\.\.99"),
        (MIXTRAL, {"eos_token_id": [2, 100]}, r"eos_token_id=\[2, 100\].*0\.\.99"),
        (MIXTRAL, {"rope_theta": 0}, r"rope_theta=0.*number > 0"),
        (MIXTRAL, {"rms_norm_eps": float("nan")}, r"rms_norm_eps=nan"),
        (MIXTRAL, {"rope_parameters": [1]}, r"rope_type='unreadable'"),
        (MIXTRAL, {"phalanx_mtp": {"vocab": 101}}, r"phalanx_mtp\.vocab=101.*0\.\.100"),
    ],
)
def test_incoherent_fields_are_named(
    base: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelSpecError, match=message):
        parse_spec(base | change, source="config.json")


@given(st.sampled_from([GLM, MIXTRAL]), st.sampled_from(FIELDS), JSON)
def test_any_value_of_any_field_is_taken_or_refused_by_name(
    base: dict[str, Any], name: str, value: Any
) -> None:
    try:
        spec = parse_spec(base | {name: value}, source="config.json")
    except ModelSpecError as refused:
        assert "config.json" in str(refused)
    else:
        assert isinstance(spec, ModelSpec)
        assert 0 < spec.rotary_dim <= spec.head_dim
        assert all(0 <= token < spec.vocab_size for token in spec.eos_token_ids)


def test_ids_may_be_one_a_list_or_absent() -> None:
    assert parse_spec(MIXTRAL, source="x").eos_token_ids == ()
    assert parse_spec(MIXTRAL | {"eos_token_id": 7}, source="x").eos_token_ids == (7,)
    assert parse_spec(MIXTRAL | {"eos_token_id": [7, 9]}, source="x").eos_token_ids == (7, 9)
    assert parse_spec(MIXTRAL | {"bos_token_id": 1}, source="x").bos_token_id == 1


@pytest.mark.parametrize("text", ["[1]", "3", '"x"', "null"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelSpecError, match="not an object"):
        load_spec(tmp_path)


def test_a_file_given_as_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ModelSpecError, match=r"no config\.json"):
        load_spec(tmp_path / "plain")
