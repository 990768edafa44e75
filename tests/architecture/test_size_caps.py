"""Size caps: 400 lines a file, 60 a function, so that a room stays readable in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.tree import ROOT, all_files, nodes, places

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_no_file_is_longer_than_the_cap() -> None:
    found = []
    for path in all_files():
        lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
        if lines > MAX_FILE_LINES:
            found.append((path, lines, f"{lines} lines, cap {MAX_FILE_LINES}"))
    assert not found, places(found)


def test_no_function_is_longer_than_the_cap() -> None:
    found: list[tuple[Path, int, str]] = []
    for path in all_files():
        for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append((path, node.lineno, f"{node.name}: {lines}, cap {MAX_FUNCTION_LINES}"))
    assert not found, places(found)
