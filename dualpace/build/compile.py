"""Sources to libraries and cubins: compile what the store does not have, and link it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock

from dualpace.build.errors import BuildError, compile_error
from dualpace.build.headers import find_headers
from dualpace.build.progress import Progress
from dualpace.build.store import Store, digest
from dualpace.build.toolchain import Compiler, find_compiler
from dualpace.build.units import Library, Unit, inputs

OUTPUT = "output"


def compile_libraries(
    libraries: Sequence[Library], sources: Mapping[str, str], store: Store, progress: Progress
) -> dict[str, Path]:
    """Output path in the bundle -> the file in `store`, for every library. Raises BuildError.

    `sources` are the rendered texts by path. The bytes depend on the sources, the flags and the versions of compilers
    and header libraries alone. Units are compiled side by side, one a core.
    """
    missing = [library for library in libraries if store.find(_library_key(library, sources)) is None]
    units = {_unit_key(unit, sources): unit for library in missing for unit in library.units}
    pending = {key: unit for key, unit in units.items() if store.find(key) is None}
    if pending:
        _compile(pending, sources, store, progress)
    for library in missing:
        progress.step(f"link {library.output}")
        objects = {unit.object: store.path(_unit_key(unit, sources)) / OUTPUT for unit in library.units}
        store.add(_library_key(library, sources), partial(_link, library, objects, progress))
    return {library.output: store.path(_library_key(library, sources)) / OUTPUT for library in libraries}


def _unit_key(unit: Unit, sources: Mapping[str, str]) -> str:
    texts = inputs(unit.source, sources)
    versions = [find_compiler(unit.tool).version, *(find_headers(library).version for library in unit.headers)]
    return digest(["unit", *versions, *unit.flags, *(part for item in texts.items() for part in item)])


def _library_key(library: Library, sources: Mapping[str, str]) -> str:
    units = (_unit_key(unit, sources) for unit in library.units)
    return digest(["library", find_compiler(library.tool).version, *library.flags, *units])


def _compile(units: Mapping[str, Unit], sources: Mapping[str, str], store: Store, progress: Progress) -> None:
    begun, done = count(1), count(1)
    under_way: dict[str, str] = {}
    change = Lock()

    def make(folder: Path, key: str, unit: Unit) -> None:
        with change:
            under_way[key] = f"compile {next(begun)} of {len(units)}: {unit.label}"
            progress.step(under_way[key])
        start = time.monotonic()
        store.add(key, lambda entry: _compile_unit(unit, sources, folder, entry, progress))
        with change:  # what lasts longest is said last
            progress.note(f"compiled {next(done)} of {len(units)}: {unit.label}, {time.monotonic() - start:.1f} s")
            del under_way[key]
            if under_way:
                progress.step(next(reversed(under_way.values())))

    with tempfile.TemporaryDirectory(prefix="dualpace-") as name:
        folder = Path(name)
        for path, text in sources.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        for library in {library for unit in units.values() for library in unit.headers}:
            (folder / library).symlink_to(find_headers(library).path)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            futures = [pool.submit(make, folder, key, unit) for key, unit in units.items()]
            try:
                for future in as_completed(futures):
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _compile_unit(unit: Unit, sources: Mapping[str, str], folder: Path, entry: Path, progress: Progress) -> None:
    compiler = find_compiler(unit.tool)
    mode = () if unit.tool == "nvcc" else ("-c",)
    result = _run(compiler, [*unit.flags, *mode, unit.source, "-o", str(entry / OUTPUT)], folder)
    if result.returncode:
        raise compile_error(unit.source, result.stdout, sources)
    if result.stdout.strip():
        progress.note(result.stdout.rstrip())


def _link(library: Library, objects: Mapping[str, Path], progress: Progress, entry: Path) -> None:
    """Link in a folder of its own, where objects have the relative names that every build gives them."""
    if not library.flags:
        (program,) = objects.values()
        shutil.copy(program, entry / OUTPUT)
        return
    compiler = find_compiler(library.tool)
    with tempfile.TemporaryDirectory(prefix="dualpace-") as name:
        folder = Path(name)
        for path, file in objects.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).symlink_to(file.resolve())
        output = str(entry / OUTPUT)
        result = _run(compiler, [*objects, *library.flags, *compiler.link_flags, "-o", output], folder)
    if result.returncode:
        raise BuildError(f"{library.output} does not link; {compiler.tool}'s text is above", output=result.stdout)
    if result.stdout.strip():
        progress.note(result.stdout.rstrip())


def _run(compiler: Compiler, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler; both its streams come back as stdout. Of the environment only what cannot change its output."""
    return subprocess.run(
        [compiler.path, *arguments],
        cwd=folder,
        env={"PATH": compiler.search, "TMPDIR": tempfile.gettempdir(), "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
