"""Decode benchmark as a script: the same as `phalanx bench decode`, with its options."""

from __future__ import annotations

import sys

from phalanx.launch.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "decode", *sys.argv[1:]]))
