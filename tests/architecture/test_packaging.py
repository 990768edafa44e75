"""Packaging: what is installed is what is in the tree, under the names that the code imports."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.architecture.tree import ROOMS, ROOT


def project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_with_code_is_a_package() -> None:
    folders = {
        "phalanx." + str(path.parent.relative_to(ROOT)).replace("/", ".")
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    listed = set(project()["tool"]["setuptools"]["packages"])  # type: ignore[index,call-overload]
    assert listed == folders


def test_every_room_is_typed_for_those_who_import_it() -> None:
    untyped = [room for room in ROOMS if not (ROOT / room / "py.typed").is_file()]
    assert not untyped, f"no py.typed: {untyped}"


def test_pins_cover_every_dependency_that_the_project_installs() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    metadata = project()["project"]
    extras = metadata["optional-dependencies"]
    wanted = [*metadata["dependencies"], *extras["demo"], *extras["dev"]]  # type: ignore[misc,index]
    names = {item.split(">=")[0].split("==")[0].split(";")[0].strip().lower() for item in wanted}
    assert names <= pinned, f"not pinned: {sorted(names - pinned)}"


def test_a_fresh_clone_ships_no_build_products() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    for product in (".venv/", ".build/", "build/", "*.so", "*.egg-info/", "__pycache__/"):
        assert product in ignored, f"{product} is not ignored"
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o100, ".ci/run is not executable"
