"""What figures were read on."""

import platform
import subprocess
from importlib.metadata import version

from dualpace.build.toolchain import find_compiler


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
