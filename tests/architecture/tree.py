"""The source files of the packages and their syntax trees, for the architecture tests."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("runtime", "ep", "proposers", "kernels", "launch")


def package_files() -> list[Path]:
    """Every Python file of the packages, as paths relative to the root."""
    return _python_files(*ROOMS)


def all_files() -> list[Path]:
    """Every Python file of the repository: packages, benchmarks and tests."""
    return _python_files(*ROOMS, "benchmarks", "tests")


def _python_files(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT) for path in files]


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file (path relative to the root)."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def nodes(path: Path, *kinds: type[ast.AST]) -> list[ast.AST]:
    """Every node of these kinds in a file."""
    return [node for node in ast.walk(syntax(path)) if isinstance(node, kinds)]


def places(found: list[tuple[Path, int, str]]) -> str:
    """Findings as lines `file:line what`, for an assertion's message."""
    return "\n".join(f"{path}:{line} {what}" for path, line, what in found)
