"""House rules that a linter does not know: one home for the environment, no pickle, no globals."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.architecture.tree import ROOMS, ROOT, all_files, nodes, package_files, places, syntax

READS_ENVIRONMENT = {Path("runtime/flags.py"), Path("launch/ranks.py")}
PICKLE_CALLS = {
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
}
PICKLE_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
DRAWER_NAMES = {"utils.py", "util.py", "common.py", "core.py", "helpers.py", "misc.py"}


def test_no_basename_occurs_twice_among_the_packages() -> None:
    counts = Counter(path.name for path in package_files() if path.name != "__init__.py")
    twice = sorted(name for name, count in counts.items() if count > 1)
    assert not twice, f"two rooms with one name: {twice}"


def test_no_drawers() -> None:
    drawers = [path for path in package_files() if path.name in DRAWER_NAMES]
    assert not drawers, f"a room needs a subject: {drawers}"


def test_init_files_are_empty() -> None:
    full = [p for p in package_files() if p.name == "__init__.py" and (ROOT / p).stat().st_size]
    assert not full, f"importing a room must do nothing: {full}"


def test_every_module_has_its_sign() -> None:
    found = []
    for path in package_files():
        if path.name == "__init__.py":
            continue
        first = (ast.get_docstring(syntax(path)) or "").split("\n")[0]
        if not first.rstrip().endswith((".", ":", "?")) or len(first) > 98:
            found.append((path, 1, f"first docstring line is no sign: {first!r}"))
    assert not found, places(found)


def test_environment_is_read_in_two_places_only() -> None:
    found = []
    for path in package_files():
        if path in READS_ENVIRONMENT:
            continue
        for node in nodes(path, ast.Attribute, ast.ImportFrom):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
                found.append((path, node.lineno, f"touches {node.attr}"))
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                names = {alias.name for alias in node.names} & {"environ", "getenv"}
                found.extend((path, node.lineno, f"imports {name}") for name in sorted(names))
    assert not found, places(found)


def test_no_global_statement() -> None:
    found = [
        (path, node.lineno, "global")
        for path in package_files()
        for node in nodes(path, ast.Global)
        if isinstance(node, ast.Global)
    ]
    assert not found, places(found)


def test_no_pickle_on_the_wire_or_on_disk() -> None:
    found = []
    for path in all_files():
        for node in nodes(path, ast.Import, ast.ImportFrom, ast.Attribute):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names} & PICKLE_MODULES
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]} & PICKLE_MODULES
            elif isinstance(node, ast.Attribute):
                names = {node.attr} & PICKLE_CALLS
                if node.attr in ("load", "save") and isinstance(node.value, ast.Name):
                    names |= {f"torch.{node.attr}"} if node.value.id == "torch" else set()
            else:
                names = set()
            line = getattr(node, "lineno", 0)
            found.extend((path, line, f"pickles through {name}") for name in sorted(names))
    assert not found, places(found)


def test_asserts_carry_values() -> None:
    found = [
        (path, node.lineno, "assert without a message")
        for path in package_files()
        for node in nodes(path, ast.Assert)
        if isinstance(node, ast.Assert) and node.msg is None
    ]
    assert not found, places(found)


def test_nothing_is_left_unfinished() -> None:
    found = []
    pattern = re.compile(r"NotImplementedError|\bTODO\b|\bFIXME\b|\bXXX\b")
    for path in package_files():
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
            if pattern.search(line):
                found.append((path, number, line.strip()))
    assert not found, places(found)


def test_rooms_are_imported_by_their_whole_name_only() -> None:
    found = []
    for path in all_files():
        for node in nodes(path, ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                heads = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                heads = {(node.module or "").split(".")[0]}
            else:
                heads = set()
            line = getattr(node, "lineno", 0)
            found.extend((path, line, f"flat import {head}") for head in sorted(heads & set(ROOMS)))
    assert not found, places(found)
