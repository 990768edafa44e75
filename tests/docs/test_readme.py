"""README and docs: the tree is the tree, every named path exists, flags.md is the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.launch.commands.flags_command import markdown
from tests.architecture.tree import ROOMS, ROOT
from tests.docs.readme_tree import BEGIN, END, ROOM_SIGNS, readme_with_tree

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks/README.md",
]
TOP = {*ROOMS, "tests", "docs", "benchmarks", ".ci"}


def test_the_tree_in_the_readme_is_the_tree() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in text and END in text
    assert readme_with_tree(text) == text, "README's tree is stale: run `make tree`"
    assert set(ROOM_SIGNS) == set(ROOMS)


def test_the_flag_document_is_the_flag_table() -> None:
    text = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    assert text == markdown(), "docs/flags.md is stale: run `make tree`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_named_in_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.\-]+(?:/[\w.\-]+)+/?)(?::\w+)?`", text))
    missing = sorted(
        name for name in named if name.split("/")[0] in TOP and not (ROOT / name).exists()
    )
    assert not missing, f"{document.name} names what is not there: {missing}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_in_a_document_resolves(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", text)
    dead = [link for link in links if not (document.parent / link).exists()]
    assert not dead, f"{document.name} links to what is not there: {dead}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_function_named_in_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = []
    for name, symbol in re.findall(r"`([\w./\-]+\.py):(\w+)`", text):
        path = ROOT / name
        pattern = rf"(def|class) {symbol}\b|^{symbol}\b"
        if not path.is_file() or not re.search(pattern, path.read_text(), flags=re.MULTILINE):
            missing.append(f"{name}:{symbol}")
    assert not missing, f"{document.name} names what is not there: {missing}"
