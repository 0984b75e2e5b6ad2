"""Sources become libraries: what is compiled, when, and to which bytes."""

import ctypes
from threading import Event

import pytest

from dualpace.build import compile as compiling
from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.store import Store
from dualpace.build.units import CUDA, HOST, SHARED, Library, Unit

CONFIG = "constexpr int kPageSize = 16;  // attention.page_size\nconstexpr int kSplit = 8;\n"
ONE = '#include "common/config.hpp"\nextern "C" int dp_one() { return kPageSize; }\n'
TWO = '#include "two.hpp"\nextern "C" int dp_two() { return two(); }\n'
SOURCES = {
    "common/config.hpp": CONFIG,
    "host/one.cpp": ONE,
    "host/two.cpp": TWO,
    "host/two.hpp": "#pragma once\ninline int two() { return 2; }\n",
}


def library(*names: str) -> Library:
    units = tuple(
        Unit(tool="g++", source=f"host/{name}.cpp", object=f"host/{name}.o", label=name, flags=HOST) for name in names
    )
    return Library(tool="g++", output="host/libtest.so", units=units, flags=SHARED)


BOTH = (library("one", "two"),)


def test_a_library_is_what_its_sources_say(tmp_path, said):
    path = compile_libraries(BOTH, SOURCES, Store(tmp_path), said)["host/libtest.so"]
    loaded = ctypes.CDLL(str(path))
    assert (loaded.dp_one(), loaded.dp_two()) == (16, 2)
    assert said.steps[0].startswith("compile 1 of 2: ")
    assert len(said.notes) == 2, "each unit says when it is done, and no compiler had a warning"


def test_the_step_is_one_that_is_still_being_compiled(tmp_path, said, monkeypatch):
    quick_is_done = Event()
    compile_unit = compiling._compile_unit

    def compile_in_order(unit, *arguments):
        if unit.label == "one":
            assert quick_is_done.wait(60)
        compile_unit(unit, *arguments)

    def note(text):
        said.notes.append(text)
        if ": two, " in text:
            # What is said next is said before the other ends: it waits for it.
            said.step = lambda step: (said.steps.append(step), quick_is_done.set())

    monkeypatch.setattr(compiling, "_compile_unit", compile_in_order)
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda _: {0, 1})
    said.note = note
    compile_libraries(BOTH, SOURCES, Store(tmp_path), said)
    steps = [step.rpartition(" ")[2] for step in said.steps]
    assert steps[2] == "one"


def test_the_second_build_compiles_nothing(tmp_path, said):
    first = compile_libraries(BOTH, SOURCES, Store(tmp_path), said)
    said.steps.clear()
    assert compile_libraries(BOTH, SOURCES, Store(tmp_path), said) == first
    assert said.steps == []


def test_only_units_that_include_a_changed_header_are_compiled_again(tmp_path, said):
    compile_libraries(BOTH, SOURCES, Store(tmp_path), said)
    said.steps.clear()
    changed = SOURCES | {"host/two.hpp": "#pragma once\ninline int two() { return 3; }\n"}
    path = compile_libraries(BOTH, changed, Store(tmp_path), said)["host/libtest.so"]
    assert said.compiled == ["compile 1 of 1: two"]
    assert ctypes.CDLL(str(path)).dp_two() == 3


def test_changed_flags_are_a_new_unit(tmp_path, said):
    compile_libraries(BOTH, SOURCES, Store(tmp_path), said)
    said.steps.clear()
    one, two = BOTH[0].units
    slower = BOTH[0].model_copy(update={"units": (one, two.model_copy(update={"flags": (*HOST, "-O1")}))})
    compile_libraries((slower,), SOURCES, Store(tmp_path), said)
    assert said.compiled == ["compile 1 of 1: two"]


def test_bytes_do_not_depend_on_where_the_store_is(tmp_path, said):
    here = compile_libraries(BOTH, SOURCES, Store(tmp_path / "here"), said)
    there = compile_libraries(BOTH, SOURCES, Store(tmp_path / "some" / "where" / "else"), said)
    assert here["host/libtest.so"].read_bytes() == there["host/libtest.so"].read_bytes()


def test_an_error_names_template_line_and_spec_value(tmp_path, said):
    broken = 'static_assert(kPageSize % 32 == 0,\n              "too small");\n'
    sources = SOURCES | {"host/one.cpp": f'#include "common/config.hpp"\n{broken}'}
    with pytest.raises(BuildError) as caught:
        compile_libraries((library("one"),), sources, Store(tmp_path), said)
    message = str(caught.value)
    assert message.startswith(
        "dualpace/templates/host/one.cpp: line 2 of host/one.cpp: static assertion failed: too small"
    )
    assert message.endswith("kPageSize is 16 from attention.page_size")
    assert caught.value.key == "attention.page_size"
    assert "host/one.cpp:2" in caught.value.output


def test_an_error_in_a_rendered_file_names_the_template_behind_it(tmp_path, said):
    sources = SOURCES | {"common/config.hpp": CONFIG.replace("16", "sixteen")}
    with pytest.raises(
        BuildError, match=r"dualpace/templates/common/config\.hpp\.j2: line 1 of common/config\.hpp: .*sixteen"
    ):
        compile_libraries((library("one"),), sources, Store(tmp_path), said)


def test_an_error_on_a_line_without_plan_constants_blames_no_spec_value(tmp_path, said):
    sources = SOURCES | {"host/one.cpp": "int broken( {\n"}
    with pytest.raises(BuildError, match=r"dualpace/templates/host/one\.cpp: line 1") as caught:
        compile_libraries((library("one"),), sources, Store(tmp_path), said)
    assert caught.value.key == ""


def test_an_undefined_symbol_fails_the_link_not_the_load(tmp_path, said):
    sources = SOURCES | {"host/one.cpp": "int nowhere();\nint one() { return nowhere(); }\n"}
    with pytest.raises(BuildError, match=r"host/libtest\.so does not link") as caught:
        compile_libraries((library("one"),), sources, Store(tmp_path), said)
    assert "nowhere" in caught.value.output


def test_a_failed_unit_leaves_nothing_behind(tmp_path, said):
    sources = SOURCES | {"host/one.cpp": "int broken( {\n"}
    with pytest.raises(BuildError):
        compile_libraries((library("one"),), sources, Store(tmp_path), said)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.name.startswith(".")]


DEVICE = """\
#include <cuda/atomic>
#include "common/config.hpp"
__device__ int other(int* p);
extern "C" __global__ void dp_one(int* p) {
  cuda::atomic_ref<int, cuda::thread_scope_system> flag(*p);
  flag.store(other(p) * kPageSize, cuda::memory_order_release);
}
"""
OTHER = """\
__global__ void dp_again(int* p) { *p = 1; }
__device__ int other(int* p) {
  dp_again<<<1, 1, 0, cudaStreamTailLaunch>>>(p);
  return *p;
}
"""


def cuda_library(sm: str) -> Library:
    units = tuple(
        Unit(tool="nvcc", source=f"cuda/{n}.cu", object=f"cuda/{n}.cubin", label=n, flags=(*CUDA, f"-arch=sm_{sm}"))
        for n in ("one", "other")
    )
    flags = (f"-arch=sm_{sm}", "-dlink", "-cubin", "-lcudadevrt")
    return Library(tool="nvcc", output="cuda/engine.cubin", units=units, flags=flags)


@pytest.mark.usefixtures("nvcc")
def test_a_linked_cubin_repeats_wherever_it_is_built(tmp_path, said):
    sources = SOURCES | {"cuda/one.cu": DEVICE, "cuda/other.cu": OTHER}
    cubins = [
        compile_libraries((cuda_library("90a"),), sources, Store(tmp_path / name), said)[
            "cuda/engine.cubin"
        ].read_bytes()
        for name in ("here", "there")
    ]
    assert cubins[0] == cubins[1]
    assert b"dp_one" in cubins[0]
    assert all(note.startswith("compiled ") for note in said.notes), "no compiler had a warning"
