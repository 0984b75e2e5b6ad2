"""Attention compiles where an SM has the least shared memory; needs nvcc, but no GPU."""

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.headers import find_headers
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


@pytest.fixture
def headers():
    try:
        find_headers("flashinfer")
    except BuildError as error:
        pytest.skip(str(error))


def compiled(plan, source: str, store: Store) -> bytes:
    """The cubin of one source of `plan`."""
    sources = render(plan)
    engine = next(library for library in libraries(plan, sources) if library.output.endswith(".cubin"))
    unit = next(unit for unit in engine.units if unit.source == source)
    attention = Library(tool="nvcc", output="attention", units=(unit,), flags=engine.flags)
    return compile_libraries((attention,), sources, store, Silent())["attention"].read_bytes()


@pytest.mark.usefixtures("nvcc")
def test_the_largest_heads_fit_the_smallest_shared_memory(tmp_path):
    largest = plan("g4-d256-sm86", dtype="bf16", kv_heads=1, ratio=4, head_dim=256, page_size=16, sm="86")
    assert b"dp_attention_merge" in compiled(largest, "cuda/attention.cu", Store(tmp_path))


@pytest.mark.usefixtures("nvcc", "headers")
@pytest.mark.parametrize(("ratio", "kernel"), [(2, "decode"), (16, "prefill")])
def test_the_largest_heads_of_flashinfer_fit_the_smallest_shared_memory(ratio, kernel, tmp_path):
    largest = plan(
        kernel, dtype="fp16", kv_heads=1, ratio=ratio, head_dim=256, page_size=128, sm="86", flashinfer=kernel
    )
    assert b"dp_attention_flashinfer" in compiled(largest, "cuda/attention_flashinfer.cu", Store(tmp_path))
