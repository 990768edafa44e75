"""`python -m phalanx.launch`: the `phalanx` command as a module, as torchrun and spawn start it."""

from __future__ import annotations

import sys

from phalanx.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
