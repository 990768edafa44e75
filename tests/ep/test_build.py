"""Build id: equal sources give one id; any change, new file or new name gives another."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.ep.build import build_id, hash_of


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_the_hash_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    files = {"a.py": "x", "sub/b.py": "y", "c.h": "z"}
    first = hash_of(tree(tmp_path / "one", files))
    assert hash_of(tree(tmp_path / "two", files)) == first
    changed = [
        files | {"a.py": "X"},
        files | {"d.py": ""},
        {"a2.py": "x", "sub/b.py": "y", "c.h": "z"},
        {"a.py": "y", "sub/b.py": "x", "c.h": "z"},
    ]
    hashes = {hash_of(tree(tmp_path / f"c{i}", change)) for i, change in enumerate(changed)}
    assert len(hashes) == len(changed)
    assert first not in hashes


def test_compiled_and_data_files_do_not_count(tmp_path: Path) -> None:
    first = hash_of(tree(tmp_path / "one", {"a.py": "x"}))
    more = {"a.py": "x", "__pycache__/a.pyc": "c", "notes.txt": "n"}
    assert hash_of(tree(tmp_path / "two", more)) == first


def test_the_id_of_this_build_is_version_plus_hash_and_needs_every_room() -> None:
    whole = build_id()
    assert re.fullmatch(r"[^+]+\+[0-9a-f]{16}", whole)
    assert build_id(("ep",)) != whole


def test_a_room_that_is_not_installed_is_left_out() -> None:
    assert build_id(("ep", "no_such_room")) == build_id(("ep",))
