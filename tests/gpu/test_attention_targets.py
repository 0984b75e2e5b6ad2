"""Attention compiles where an SM has the least shared memory; needs nvcc, but no GPU."""

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.store import Store
from dualpace.build.toolchain import find_compiler
from dualpace.build.units import Library, libraries
from dualpace.render.sources import render

from .conftest import Silent
from .plans import plan


@pytest.fixture
def nvcc():
    try:
        find_compiler("nvcc")
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nvcc")
def test_the_largest_heads_fit_the_smallest_shared_memory(tmp_path):
    largest = plan("g4-d256-sm86", dtype="bf16", kv_heads=1, ratio=4, head_dim=256, page_size=16, sm="86")
    sources = render(largest)
    engine = next(library for library in libraries(largest, sources) if library.output.endswith(".cubin"))
    unit = next(unit for unit in engine.units if unit.source == "cuda/attention.cu")
    attention = Library(tool="nvcc", output="attention", units=(unit,), flags=engine.flags)
    cubin = compile_libraries((attention,), sources, Store(tmp_path), Silent())["attention"]
    assert b"dp_attention_merge" in cubin.read_bytes()
