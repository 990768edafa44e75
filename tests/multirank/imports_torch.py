"""A rank for the spawn tests: it imports torch, joins, and stays; started as its own process.

`python -m tests.multirank.imports_torch PLACE FOLDER` makes the file `PLACE.RANK` in FOLDER when it
is there. PLACE import: inside the import of torch, before anything of ours is up; idle: joined.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


class StayInImport(MetaPathFinder):
    """Makes the import of one torch module last for ever."""

    def __init__(self, said: Path) -> None:
        self._said = said

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Called by the import system for every module."""
        if name == "torch.nn":
            self._said.touch()
            time.sleep(120)


def main() -> int:
    """Come to the place and stay."""
    place, folder = sys.argv[1], Path(sys.argv[2])
    rank = os.environ["PHALANX_INTERNAL_RANK"]
    said = folder / f"{place}.{rank}"
    if place == "import":
        sys.meta_path.insert(0, StayInImport(said))
        import torch

        raise AssertionError(f"torch was imported ({torch.__version__})")
    from phalanx.launch.rank_main import RankJob, make_sheet, run_rank
    from phalanx.launch.ranks import who_am_i
    from tests.multirank.programs import quick_config

    identity = who_am_i()

    def coordinate(rank: Any, loaded: None) -> int:
        rank.liveness.phase("idle")
        said.touch()
        time.sleep(120)
        return 0

    def handlers(rank: Any, loaded: None) -> dict[Any, Any]:
        said.touch()
        return {}

    return run_rank(
        RankJob(load=lambda rank: None, coordinate=coordinate, handlers=handlers),
        quick_config(),
        identity.info,
        meeting=identity.meeting,
        sheet=make_sheet(flags={}, settings={}),
    )


if __name__ == "__main__":
    sys.exit(main())
