"""The native libraries' build; everything else about the package is in pyproject.toml.

`optional=True`: where there is no C compiler the package installs without the library and every
operation runs on its torch reference.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("kernels/native")
# The stable ABI from 3.11 on; a free-threaded Python does not offer it.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")

LOOKUP_SOURCES = ("lookup.c", "lookup_index.c", "lookup_scope.c")

setup(
    ext_modules=[
        Extension(
            "phalanx.kernels._lookup",
            sources=[f"kernels/{name}" for name in LOOKUP_SOURCES],
            depends=["kernels/lookup.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            extra_compile_args=[
                "-std=gnu11",
                "-O3",
                "-g0",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
            ],
            optional=True,
        ),
        Extension(
            "phalanx.kernels._native",
            sources=sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            # No -march: one build must run anywhere; functions carry their own targets.
            # No contraction: tiles of different shapes must round alike.
            extra_compile_args=[
                "-std=gnu11",
                "-O3",
                "-g0",
                "-fno-math-errno",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-pthread",
                "-Wall",
                "-Wextra",
            ],
            extra_link_args=["-pthread"],
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
