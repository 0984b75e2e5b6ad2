"""The host libraries of a plan, compiled as a bundle's are, and its kernels without the rest."""

from pathlib import Path

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import Library, libraries
from dualpace.plan.manifest import HOST_ENGINE, HOST_RING
from dualpace.plan.plan import Plan
from dualpace.render.sources import render

_SOURCES = ("host/dispatch.cpp", "host/kernels.cpp")


class Quiet:
    def step(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


def host_libraries(plan: Plan, store: Path) -> dict[str, Path]:
    """The engine's and the ring's library by their names in a bundle, in `store`, which may hold them already."""
    sources = render(plan)
    host = [library for library in libraries(plan, sources) if library.output in (HOST_ENGINE, HOST_RING)]
    return compile_libraries(host, sources, Store(store), Quiet())


def kernel_library(plan: Plan, store: Path) -> Path:
    """The library's path in `store`, which may hold it already."""
    sources = render(plan)
    (engine,) = (library for library in libraries(plan, sources) if library.output == HOST_ENGINE)
    units = tuple(unit for unit in engine.units if unit.source in _SOURCES)
    library = Library(tool="g++", output=HOST_ENGINE, units=units, flags=engine.flags)
    return compile_libraries([library], sources, Store(store), Quiet())[HOST_ENGINE]
