"""Options: made from the config, never abbreviated, and wrong ones answered with the right one."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from phalanx.launch.args import (
    Parser,
    add_config,
    add_dataclass,
    field_docs,
    option_name,
    read_speculative_config,
    take_config,
    take_dataclass,
)
from phalanx.proposers.base import SpecConfig
from phalanx.runtime.config import Config, ConfigError
from phalanx.runtime.request import SamplingParams


def parser() -> Parser:
    made = Parser(prog="t")
    add_config(made)
    return made


def parse(*arguments: str) -> Config:
    return take_config(vars(parser().parse_args(list(arguments))))


def test_no_options_give_the_defaults() -> None:
    assert parse() == Config()


def test_every_plain_config_field_has_an_option_with_help() -> None:
    text = parser().format_help()
    for branch, cls in typing.get_type_hints(Config).items():
        docs = field_docs(cls)
        for item in dataclasses.fields(cls):
            assert option_name(item.name) in text, f"{branch}.{item.name}"
            assert docs.get(item.name), f"{branch}.{item.name} has no docstring under it"


def test_given_options_reach_their_branch() -> None:
    config = parse("--threads", "3", "--spec", "mtp", "--num-drafts", "2", "--max-num-seqs", "4")
    assert config.model.threads == 3
    assert (config.spec.method, config.spec.num_drafts) == ("mtp", 2)
    assert config.schedule.max_num_seqs == 4


def test_sampling_options_are_made_the_same_way() -> None:
    made = Parser(prog="t")
    add_dataclass(made, SamplingParams, title="sampling")
    options = made.parse_args(["--temperature", "0.5", "--ignore-eos", "--seed", "9"])
    params = take_dataclass(SamplingParams, vars(options))
    assert params == SamplingParams(temperature=0.5, ignore_eos=True, seed=9)


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("--num-draft=3", "did you mean --num-drafts?"),
        ("--dtyp", "did you mean --dtype?"),
        ("--zzzzqqq", "see --help"),
    ],
)
def test_unknown_options_name_the_nearest(
    argument: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse_args([argument])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert hint in error and error.count("\n") == 1


def test_options_are_never_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--thread", "2"])
    assert "did you mean --threads?" in capsys.readouterr().err


def test_speculative_config_takes_the_common_json() -> None:
    config = parse("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
    assert config.spec == SpecConfig(method="mtp", num_drafts=2)
    over = parse("--speculative-config", '{"method": "mtp"}', "--num-drafts", "5")
    assert over.spec == SpecConfig(method="mtp", num_drafts=5)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"metod": "mtp"}', "did you mean method?"),
        ('{"num_drafts": 3}', "unknown key"),
        ('{"num_speculative_tokens": "3"}', "expected int"),
        ('{"num_speculative_tokens": true}', "expected int"),
        ('{"method": "nobody"}', "nobody"),
    ],
)
def test_bad_speculative_config_is_one_clear_line(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        read_speculative_config(text)
    assert "\n" not in str(caught.value)


def test_a_number_without_a_point_is_a_float_too() -> None:
    assert read_speculative_config('{"draft_conf_tau": 0}').draft_conf_tau == 0.0


def test_config_error_is_the_users_mistake() -> None:
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(ValueError, match="threads out of range"):
        parse("--threads", "-1")
