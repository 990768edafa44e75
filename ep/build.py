"""The build id: a hash of this package's sources, so that ranks of two versions refuse each other.

The version number alone is not enough: a checkout is edited between two starts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

ROOMS = ("ep", "kernels", "launch", "proposers", "runtime")
SUFFIXES = (".py", ".c", ".h")


def build_id(rooms: Sequence[str] = ROOMS) -> str:
    """`version+hash` over every source file of the rooms that are installed here."""
    mixed = blake2b(digest_size=8)
    for room in rooms:
        for root in _folders(f"phalanx.{room}"):
            mixed.update(hash_of(root).encode())
    return f"{_version()}+{mixed.hexdigest()}"


def hash_of(root: Path) -> str:
    """Hash of the names and contents of the source files under `root`."""
    mixed = blake2b(digest_size=8)
    for path in sorted(root.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            data = path.read_bytes()
            mixed.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
            mixed.update(data)
    return mixed.hexdigest()


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _version() -> str:
    try:
        return importlib.metadata.version("phalanx")
    except importlib.metadata.PackageNotFoundError:
        return "uninstalled"
