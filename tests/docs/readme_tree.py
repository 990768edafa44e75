"""The README's tree: every room with the sign on its door, made from the module docstrings.

`python -m tests.docs.readme_tree` (or `make tree`) rewrites the part of README.md between the two
marks; a test compares it.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.tree import ROOT

BEGIN = "<!-- tree: made by `make tree` -->\n"
END = "<!-- end of tree -->\n"

# The rooms' own signs: packages have empty __init__.py files, so theirs stand here.
ROOM_SIGNS = {
    "launch": "how a person or a program starts it",
    "runtime": "the engine and what it computes with",
    "ep": "the ranks: commands, lockstep, liveness, collectives, expert placement",
    "proposers": "who drafts, and how many",
    "kernels": "one operation a file: a torch reference, and a native CPU version where it pays",
}


def tree() -> str:
    """The tree as a fenced block."""
    lines = ["```"]
    for room in ("launch", "runtime", "ep", "proposers", "kernels"):
        lines.append(f"{room}/  {ROOM_SIGNS[room]}")
        lines.extend(_folder(ROOT / room, depth=1))
    return "\n".join([*lines, "```"]) + "\n"


def _folder(folder: Path, *, depth: int) -> list[str]:
    indent = "  " * depth
    lines = []
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            lines.append(f"{indent}{path.name.ljust(30 - 2 * depth)} {sign(path)}")
    for child in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        lines.append(f"{indent}{child.name}/")
        lines.extend(_folder(child, depth=depth + 1))
    return lines


def sign(path: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "(no sign)"
    return text.split("\n")[0]


def readme_with_tree(text: str) -> str:
    """README text with the part between the marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tree() + END + after


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(readme_with_tree(readme.read_text(encoding="utf-8")), encoding="utf-8")
