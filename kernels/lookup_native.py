"""The door to the compiled lookup tables: loads them once, or says why they cannot be used.

`NativeIndex` and `NativeScope` are the twins of `NgramIndex` in `proposers/ngram_index.py` and of
`TextScope` in `proposers/shared_lookup.py`: same calls, same answers, about ten times faster. They
are None where the package was installed without a C compiler; the twins in Python serve then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.kernels._lookup import NgramIndex, TextScope

EXPECTED_VERSION = 1
"""What the Python side was written against; a stale build carries another number."""

LOAD_PROBLEM: str | None = None
NativeIndex: type[NgramIndex] | None = None
NativeScope: type[TextScope] | None = None

try:
    from phalanx.kernels import _lookup as library
except ImportError as error:
    LOAD_PROBLEM = f"not built or not loadable ({error}) -- reinstall with a C compiler on the path"
else:
    if library.VERSION == EXPECTED_VERSION:
        NativeIndex = library.NgramIndex
        NativeScope = library.TextScope
    else:
        LOAD_PROBLEM = (
            f"stale build (version={library.VERSION}, expected {EXPECTED_VERSION}) -- "
            "reinstall the package to rebuild it"
        )
