"""What figures were read on, and the files that keep them."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dualpace import __version__
from dualpace.bench.machine import machine
from dualpace.build.toolchain import find_compiler

# Of prompts, lengths and samples that are drawn.
SEED = 0


def gpu_machine() -> dict[str, str]:
    """The GPU, its driver, and the versions that matter; makes no context on the GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    return {
        "gpu": name,
        "driver": driver,
        "nvcc": find_compiler("nvcc").version,
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def host_machine(*packages: str) -> dict[str, Any]:
    """The machine, how busy it is, and the versions that matter, those of `packages` among them."""
    compiler = {"compiler": find_compiler("g++").version} if shutil.which("g++") else {}
    return machine() | compiler | {name: version(name) for name in packages}


def save(report: Mapping[str, Any], path: Path) -> None:
    """Write a result file, with the version that was measured, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"dualpace": __version__, **report}, indent=1) + "\n")
