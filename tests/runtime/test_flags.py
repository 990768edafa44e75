"""Flags: each class parses exactly as declared, and every doubtful text is answered in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.flag_table import FLAGS, Flag, FlagClass
from phalanx.runtime.flags import PREFIX, parse, parse_truthy, parse_truthy_exact, read_flags

texts = st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["0", "1", "", "true", "TRUE"]))


def flag(kind: FlagClass) -> Flag:
    return Flag(name="PHALANX_X", kind=kind, effect="x", default=kind is FlagClass.STRICT_ZERO)


@given(texts)
def test_presence_is_on_for_any_text_at_all(raw: str | None) -> None:
    assert parse(flag(FlagClass.PRESENCE), raw) is (raw is not None)


@given(texts)
def test_strict_one_is_on_for_exactly_one_text(raw: str | None) -> None:
    assert parse(flag(FlagClass.STRICT_ONE), raw) is (raw == "1")


@given(texts)
def test_strict_zero_is_off_for_exactly_one_text(raw: str | None) -> None:
    assert parse(flag(FlagClass.STRICT_ZERO), raw) is (raw != "0")


@pytest.mark.parametrize(
    ("raw", "truthy", "exact"),
    [
        ("1", True, True),
        ("true", True, True),
        ("TRUE", True, False),
        ("True", True, False),
        ("yes", False, False),
        ("1 ", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_truthy_classes_differ_in_case_only(raw: str | None, truthy: bool, exact: bool) -> None:
    assert parse_truthy(raw) is truthy
    assert parse_truthy_exact(raw) is exact
    assert parse(flag(FlagClass.TRUTHY), raw) is truthy
    assert parse(flag(FlagClass.TRUTHY_EXACT), raw) is exact


@given(st.sampled_from(FLAGS), st.text(max_size=8))
def test_no_text_stops_the_start_or_yields_another_type(flag: Flag, raw: str) -> None:
    value = parse(flag, raw)
    if flag.kind is FlagClass.VALUE:
        assert value == flag.default or (flag.read is not None and flag.read(raw) == value)
    else:
        assert isinstance(value, bool)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_declared_flag_is_whole(flag: Flag) -> None:
    assert flag.name.startswith(PREFIX)
    assert flag.effect and "\n" not in flag.effect
    if flag.kind is FlagClass.VALUE:
        assert flag.read is not None and flag.accepts
        if flag.default is not None:
            assert flag.read(str(flag.default)) == flag.default
    else:
        assert flag.default is (flag.kind is FlagClass.STRICT_ZERO)
        assert flag.read is None


def test_no_flag_is_declared_twice() -> None:
    assert len({flag.name for flag in FLAGS}) == len(FLAGS)


def test_kill_switch_set_to_zero_still_disables_and_says_so() -> None:
    flags = read_flags({"PHALANX_NO_NATIVE_KERNELS": "0"})
    assert flags.is_on("PHALANX_NO_NATIVE_KERNELS")
    [warning] = flags.warnings
    assert "even to 0" in warning and "unset it" in warning


def test_strict_one_set_to_true_does_nothing_and_says_so() -> None:
    flags = read_flags({"PHALANX_NO_MTP_EP_PROPOSE": "true"})
    assert not flags.is_on("PHALANX_NO_MTP_EP_PROPOSE")
    assert "does nothing" in flags.warnings[0]


def test_unreadable_value_keeps_the_default_and_says_what_is_accepted() -> None:
    flags = read_flags({"PHALANX_STARTUP_PARITY": "Warn"})
    assert flags.value("PHALANX_STARTUP_PARITY") == "fail"
    assert "accepted: fail or warn" in flags.warnings[0]


@pytest.mark.parametrize("raw", ["4:3,broken,8:2", "", "4:three"])
def test_a_broken_ladder_is_refused_whole(raw: str) -> None:
    flags = read_flags({"PHALANX_MTP_K_LADDER": raw})
    assert flags.value("PHALANX_MTP_K_LADDER") == "4:3,8:3,16:1,32:1"
    assert flags.raw("PHALANX_MTP_K_LADDER") == raw
    assert any("cannot be read" in warning for warning in flags.warnings)


def test_a_flag_that_nothing_acts_on_says_so_when_set() -> None:
    idle = next(flag for flag in FLAGS if not flag.wired and flag.kind is FlagClass.PRESENCE)
    assert any(
        "no step of this version acts on it" in w for w in read_flags({idle.name: "1"}).warnings
    )
    assert not read_flags({}).warnings


def test_unknown_name_warns_with_the_nearest_known_one() -> None:
    flags = read_flags({"PHALANX_NO_MTP_EP_PROPOSALS": "1", "OTHER": "1"})
    [warning] = flags.warnings
    assert "did you mean PHALANX_NO_MTP_EP_PROPOSE?" in warning


def test_launcher_variables_are_not_taken_for_flags() -> None:
    assert not read_flags({"PHALANX_INTERNAL_RANK": "1"}).warnings


def test_source_tells_environment_from_default() -> None:
    flags = read_flags({"PHALANX_CACHE_DIR": "/x"})
    assert flags.settings["PHALANX_CACHE_DIR"].source == "environment"
    assert flags.settings["PHALANX_STARTUP_PARITY"].source == "default"


def test_agreement_leaves_out_what_ranks_may_differ_in() -> None:
    agreed = read_flags({"PHALANX_CACHE_DIR": "/x"}).agreement()
    assert "PHALANX_CACHE_DIR" not in agreed
    assert agreed["PHALANX_NO_MTP_EP_PROPOSE"] == "False"


def test_reading_an_undeclared_flag_is_a_programming_error() -> None:
    with pytest.raises(KeyError, match="declare it"):
        read_flags({}).value("PHALANX_NOBODY_DECLARED_THIS")
    with pytest.raises(TypeError, match="not a switch"):
        read_flags({"PHALANX_CACHE_DIR": "/x"}).is_on("PHALANX_CACHE_DIR")
