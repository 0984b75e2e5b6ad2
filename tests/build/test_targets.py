"""The real templates compile for every target, without a warning, to what the plan says."""

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import ISAS, Library, Unit, libraries
from dualpace.render.sources import render
from tests.plans import example
from tests.render.test_render import CHANGES, SPARSE

# And a kernel of each.
UNITS = {
    "kv_append": b"dp_kv_append",
    "transfer": b"dp_transfer",
    "recall": b"dp_choose",
    "summaries": b"dp_score",
}
SMS = ("80", "86", "89", "90a", "100a")


def units(plan) -> dict[str, Unit]:
    return {unit.label: unit for library in libraries(plan, render(plan)) for unit in library.units}


def test_kernels_are_compiled_for_each_instruction_set_and_the_least_is_linked_first():
    plan = example("quickstart")
    _, engine = libraries(plan, render(plan))
    compiled = [unit.label for unit in engine.units if unit.source == "host/kernels.cpp"]
    assert compiled == [f"host/kernels.cpp for {isa}" for isa in ISAS]
    first = next(i for i, unit in enumerate(engine.units) if unit.source == "host/kernels.cpp")
    assert all(unit.source == "host/kernels.cpp" for unit in engine.units[first:])


def test_a_cuda_target_needs_the_ring_library_and_a_cubin_of_its_own_for_prefill():
    plan = example("llama-3.1-8b-h200")
    outputs = [library.output for library in libraries(plan, render(plan))]
    assert outputs == ["host/libring.so", "cuda/engine.cubin", "cuda/prefill.cubin"]


@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(("name", "kernel"), UNITS.items())
def test_a_cuda_unit_compiles_without_a_warning(name, kernel, sm, tmp_path, said):
    plan = example("llama-3.1-8b-128k-offload", offload=SPARSE)
    plan = plan.model_copy(update={"target": plan.target.model_copy(update={"sm": sm})})
    unit = units(plan)[f"cuda/{name}.cu for sm_{sm}"]
    link = Library(tool="nvcc", output="x", units=(unit,), flags=(f"-arch=sm_{sm}", "-dlink", "-cubin", "-lcudadevrt"))
    cubin = compile_libraries((link,), render(plan), Store(tmp_path), said)["x"]
    assert kernel in cubin.read_bytes()
    assert [note for note in said.notes if not note.startswith("compiled ")] == []


def kernel(plan, store, said) -> bytes:
    """The kernels of `plan` for the least instruction set, compiled quickly."""
    unit = units(plan)["host/kernels.cpp for v3"]
    unit = unit.model_copy(update={"flags": (*unit.flags, "-O1")})
    library = Library(tool="g++", output="x", units=(unit,), flags=("-shared", "-Wl,--build-id=none"))
    return compile_libraries((library,), render(plan), store, said)["x"].read_bytes()


@pytest.mark.parametrize("change", CHANGES)
def test_what_kernels_depend_on_changes_the_compiled_kernel(change, tmp_path_factory, said):
    store = Store(tmp_path_factory.getbasetemp() / "kernels")
    assert kernel(example("quickstart"), store, said) != kernel(example("quickstart", **CHANGES[change]), store, said)


def test_kernels_of_flashinfer_are_compiled_with_its_headers_where_the_plan_has_the_route():
    plan = example("llama-3.1-8b-h200", attention={"route": "flashinfer"})
    found = {unit.source: unit.headers for unit in units(plan).values() if unit.headers}
    assert found == {"cuda/attention_flashinfer.cu": ("flashinfer",)}
    assert not any(unit.headers for unit in units(example("llama-3.1-8b-h200")).values())
