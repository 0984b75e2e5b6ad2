"""What a run was offered from: the machine, which is also the server's where that is local."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dualpace.bench.energy import gpus


def machine() -> dict[str, Any]:
    """Processor, cores, load, versions, and GPUs with their driver where NVML tells."""
    found: dict[str, Any] = {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in ("uvloop", "httptools"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | gpus()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
