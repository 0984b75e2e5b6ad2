"""The workers' library of a plan, compiled as a bundle's is, and a library that publishes to them."""

import ctypes
import subprocess
from pathlib import Path

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.toolchain import find_compiler
from dualpace.build.units import CUDA, HOST, libraries
from dualpace.plan.manifest import HOST_WORKERS
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.render.sources import render
from dualpace.spec.models import Spec
from tests.engine.compiled import Quiet
from tests.scheduler.engines import write_sources

from .plans import HERE

PUBLISHER = "libpublisher.so"
DEVICE = "publisher.cubin"


def cooperative(dtype: str, head_dim: int, ratio: int, page_size: int, kv_heads: int = 2) -> Plan:
    """A plan for a card whose CPU workers have one layer of this shape."""
    shape = {
        "family": "llama", "layers": 1, "hidden": 64, "heads": kv_heads * ratio, "kv_heads": kv_heads,
        "head_dim": head_dim, "intermediate": 64, "vocab": 64, "context": 65536,
    }  # fmt: skip
    spec = {
        "name": f"workers-d{head_dim}-g{ratio}-{dtype}",
        "model": {"shape": shape, "dtype": dtype, "weights": {"random": 0}},
        "attention": {"page_size": page_size},
        "scheduler": {"max_batch": 4},
        "offload": {"mode": "cooperative", "host_budget": "1GiB"},
        "target": {"gpu": "h200", "kv_budget": "64MiB"},
    }
    return resolve(Spec.model_validate(spec), Path.cwd())


def workers_library(plan: Plan, store: Path) -> Path:
    """The library's path in `store`, which may hold it already."""
    sources = render(plan)
    (library,) = (each for each in libraries(plan, sources) if each.output == HOST_WORKERS)
    return compile_libraries([library], sources, Store(store), Quiet())[HOST_WORKERS]


def publisher_library(plan: Plan, folder: Path) -> ctypes.CDLL:
    """Compiled in `folder`."""
    write_sources(plan, folder)
    command = ["g++", *HOST, "-O2", "-Werror", "-pthread", "-shared", str(HERE / "publisher.cpp"), "-o", PUBLISHER]
    subprocess.run(command, cwd=folder, check=True)
    return open_publisher(folder)


def device_publisher(plan: Plan, folder: Path) -> Path:
    """The cubin of a publisher on a card, compiled in `folder`. Raises BuildError without nvcc."""
    compiler = find_compiler("nvcc")
    write_sources(plan, folder)
    command = [compiler.path, *CUDA, "-gencode=arch=compute_90a,code=sm_90a", HERE / "device.cu", "-o", DEVICE]
    result = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    return folder / DEVICE


def open_publisher(folder: Path) -> ctypes.CDLL:
    """What `publisher_library` left in `folder`."""
    library = ctypes.CDLL(str(folder / PUBLISHER))
    library.publisher_create.restype = ctypes.c_void_p
    return library
