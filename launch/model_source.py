"""From `--model` to a checkpoint folder: a path as it is, `demo` and `tiny` prepared in the cache.

Preparing happens once per machine: whoever comes first holds a lock file while it works, so that
the ranks of a torchrun launch, or two launches at once, wait instead of preparing twice. The lock
is the kernel's and goes away with its holder, so a killed run blocks nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from phalanx.runtime.flags import Flags

Progress = Callable[[int, int], None]

NAMED = ("demo", "tiny")


def cache_dir(flags: Flags) -> Path:
    """Where prepared models live: PHALANX_CACHE_DIR, else ~/.cache/phalanx."""
    given = flags.value("PHALANX_CACHE_DIR")
    return Path(str(given)).expanduser() if given is not None else Path.home() / ".cache/phalanx"


def checkpoint_folder(model: str, *, flags: Flags, progress: Progress | None = None) -> Path:
    """The folder of a checkpoint, made first when `model` is one of the named ones.

    Raises:
        ValueError: the named model cannot be prepared (DemoModelError and its like say why).
        OSError: the cache folder cannot be written.
    """
    if model not in NAMED:
        return Path(model).expanduser()
    cache = cache_dir(flags)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{model}.lock"):
        if model == "tiny":
            from phalanx.launch.tiny_model import prepare_tiny

            return prepare_tiny(cache)
        from phalanx.launch.demo_model import prepare_demo

        return prepare_demo(cache, progress)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
