"""TOML text: written deterministically, read strictly."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.toml_text import read_toml, render_toml


class FileTrouble(ValueError):
    """What these tests ask the reader to raise."""


scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
flat = st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), scalars, max_size=5)
documents = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
    scalars | st.lists(scalars, max_size=4) | flat | st.lists(flat, min_size=1, max_size=3),
    max_size=5,
)


@given(documents)
def test_what_is_written_reads_back_equal(document: dict[str, object]) -> None:
    assert tomllib.loads(render_toml(document)) == document


def test_equal_documents_give_equal_bytes() -> None:
    document = {"a": {"b": 1.0}, "cells": [{"n": 1}, {"n": 2}], "top": 3}
    text = render_toml(document)
    assert text == "top = 3\n\n[a]\nb = 1.0\n\n[[cells]]\nn = 1\n\n[[cells]]\nn = 2\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, {1, 2}, object()])
def test_what_toml_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not writable"):
        render_toml({"a": value})


def test_types_are_checked_and_named() -> None:
    top = read_toml('n = 1.5\nb = true\ns = "x"\nl = [1, "y"]', what="sample", error=FileTrouble)
    for read, name in (
        (top.integer, "n"),
        (top.integer, "b"),
        (top.number, "b"),
        (top.number, "s"),
        (top.text, "n"),
        (top.boolean, "n"),
        (top.numbers, "l"),
        (top.numbers, "s"),
        (top.table, "n"),
        (top.tables, "n"),
        (top.integer, "missing"),
    ):
        with pytest.raises(FileTrouble, match=name):
            read(name)


def test_names_nobody_asked_for_are_refused() -> None:
    top = read_toml("a = 1\nmisspelt = 2", what="sample", error=FileTrouble)
    assert top.integer("a") == 1
    with pytest.raises(FileTrouble, match="misspelt"):
        top.done()


@pytest.mark.parametrize("text", ["a = ", "[a", "a = 1\na = 2", "a" * 10])
def test_text_that_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(FileTrouble, match="sample not readable"):
        read_toml(text, what="sample", error=FileTrouble)


def test_an_integer_too_large_for_a_float_is_refused() -> None:
    top = read_toml("a = " + "9" * 400, what="sample", error=FileTrouble)
    with pytest.raises(FileTrouble, match="too large"):
        top.number("a")
