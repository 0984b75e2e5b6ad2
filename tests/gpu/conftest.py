"""Cubins of the plans under test: compiled once, side by side, kept in pytest's cache folder by content."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.plan.manifest import CUDA_ENGINE
from dualpace.plan.plan import Plan
from dualpace.render.sources import render

from .plans import PLANS


class Silent:
    """A progress that says nothing."""

    def step(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        """A compiler's warnings fail the test that asked for the cubin."""
        assert "warning" not in text, text


def compile_cubin(plan: Plan, store: Store) -> Path:
    """The linked cubin of `plan`, from `store` if it has it."""
    sources = render(plan)
    engine = [library for library in libraries(plan, sources) if library.output == CUDA_ENGINE]
    return compile_libraries(engine, sources, store, Silent())[CUDA_ENGINE]


@pytest.fixture(scope="session")
def cubin_files(request):
    """Path of the cubin of every plan, by name."""
    store = Store(Path(request.config.cache.mkdir("cubins")))
    with ThreadPoolExecutor() as pool:
        return dict(zip(PLANS, pool.map(lambda plan: compile_cubin(plan, store), PLANS.values()), strict=True))


@pytest.fixture(scope="session", params=PLANS.values(), ids=PLANS)
def plan(request):
    return request.param


@pytest.fixture(scope="session")
def cubin(plan, cubin_files):
    from .device import Cubin

    return Cubin(cubin_files[plan.name])
