"""What a figure was measured on: machine, load and versions, for every benchmark's JSON."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from phalanx.kernels.native_library import library, native_problem
from phalanx.launch.memory_plan import usable_cores


def describe_machine() -> dict[str, Any]:
    """Processor, cores, load at this moment, instruction set in use, versions."""
    native = native_problem() is None
    return {
        "processor": processor_name(),
        "cores": usable_cores(),
        "load_1min": round(os.getloadavg()[0], 2),
        "native_kernels": library.instruction_set() if native else None,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
