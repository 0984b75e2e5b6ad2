"""Engines of the plans under test: compiled once, cubins side by side, kept in pytest's cache folder by content."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.headers import find_headers
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.plan.manifest import CUDA_CUBINS, CUDA_ENGINE, HOST_ENGINE, HOST_RING
from dualpace.plan.plan import Attention, Plan
from dualpace.render.sources import render

from .plans import PLANS


class Silent:
    """A progress that says nothing."""

    def step(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        """A compiler's warnings fail the test that asked for the cubin."""
        assert "warning" not in text, text


def compile_engine(plan: Plan, store: Store) -> Path:
    """The linked cubin, or for a CPU plan the host library, of `plan`; from `store` if it has it."""
    return _compile(plan, store, CUDA_ENGINE if plan.target.kind == "cuda" else HOST_ENGINE)


def compile_cubins(plan: Plan, store: Store) -> tuple[Path, ...]:
    """All that the engine of `plan` loads."""
    sources = render(plan)
    wanted = [library for library in libraries(plan, sources) if library.output in CUDA_CUBINS]
    return tuple(compile_libraries(wanted, sources, store, Silent()).values())


def compile_ring(plan: Plan, store: Store) -> Path:
    """The ring library of `plan`."""
    return _compile(plan, store, HOST_RING)


def compile_sources(plan: Plan, store: Store, *paths: str, edit: Mapping[str, str] | None = None) -> Path:
    """A cubin of the CUDA sources `paths` of `plan` alone, in which `edit` has replaced text by text."""
    sources = render(plan)
    for before, after in (edit or {}).items():
        assert any(before in sources[path] for path in paths)
        sources |= {path: sources[path].replace(before, after) for path in paths}
    engine = next(library for library in libraries(plan, sources) if library.output == CUDA_ENGINE)
    some = engine.model_copy(update={"units": tuple(unit for unit in engine.units if unit.source in paths)})
    return compile_libraries((some,), sources, store, Silent())[CUDA_ENGINE]


def _compile(plan: Plan, store: Store, output: str) -> Path:
    sources = render(plan)
    wanted = [library for library in libraries(plan, sources) if library.output == output]
    return compile_libraries(wanted, sources, store, Silent())[output]


def without_flashinfer(plan: Plan) -> Attention:
    """The attention of `plan` with our own kernels alone."""
    return plan.attention.model_copy(update={"flashinfer": "none"})


def host_twin(plan: Plan) -> Plan:
    """The same plan for the CPU."""
    return plan.model_copy(update={"target": plan.target.model_copy(update={"kind": "cpu", "sm": ""})})


@pytest.fixture(scope="session")
def store(request):
    return Store(Path(request.config.cache.mkdir("engines")))


@pytest.fixture(scope="session")
def plans():
    """Every plan by name, without FlashInfer's kernels where its headers are missing."""
    try:
        find_headers("flashinfer")
    except BuildError:
        return {name: plan.model_copy(update={"attention": without_flashinfer(plan)}) for name, plan in PLANS.items()}
    return PLANS


@pytest.fixture(scope="session")
def cubin_files(request, store, plans):
    """Path of the cubin of every plan that the tests to run name, by name."""
    parameters = [item.callspec.params.values() for item in request.session.items if hasattr(item, "callspec")]
    named = {name: plan for name, plan in plans.items() if any(name in values for values in parameters)}
    with ThreadPoolExecutor() as pool:
        return dict(zip(named, pool.map(lambda plan: compile_engine(plan, store), named.values()), strict=True))


@pytest.fixture(scope="session", params=PLANS)
def plan(request, plans):
    return plans[request.param]


@pytest.fixture(scope="session")
def cubin(plan, cubin_files):
    from dualpace.engine.device import Cubin

    return Cubin(cubin_files[plan.name])


@pytest.fixture(scope="module", params=[("llama", "fp32"), ("gemma3", "fp32"), ("llama", "bf16")], ids="-".join)
def served(request, tmp_path_factory, store):
    """A tiny model, and what serves it."""
    from .serving import make

    return make(*request.param, tmp_path_factory.mktemp("served"), store)
