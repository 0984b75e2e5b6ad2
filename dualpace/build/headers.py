"""C++ header libraries that units are compiled with: where they are, and what is in them.

A library is found as an installed Python package, and never imported. Units see it as a folder of its name beside the
sources, so that no path of the machine gets into an object.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from dualpace.build.errors import BuildError
from dualpace.build.store import digest
from dualpace.files import file_digest
from dualpace.frozen import Frozen

HeaderLibrary = Literal["flashinfer"]
# Kernels are instantiated from what FlashInfer does not call its interface: any other release may have changed it.
RELEASE = "0.6.11"
# All that FlashInfer depends on, torch among it, is for its Python side.
REMEDY = f"run `pip install --no-deps flashinfer-python=={RELEASE}`"
# Relative to the library. FlashInfer is written against the CCCL that it brings, so that precedes the toolkit's.
FIRST = ("cccl/libcudacxx/include", "cccl/cub", "cccl/thrust")
SYSTEM = ("include", "cutlass/include")


class Headers(Frozen):
    """A header library at `path`. `version` names release and content, and is part of every key of what uses it."""

    path: Path
    version: str


def include_flags(library: HeaderLibrary) -> tuple[str, ...]:
    """The flags that a unit is compiled with to include `library`."""
    first = (f"-I{library}/{folder}" for folder in FIRST)
    system = (flag for folder in SYSTEM for flag in ("-isystem", f"{library}/{folder}"))
    return (*first, *system)


@cache
def find_headers(library: HeaderLibrary) -> Headers:
    """`library` from the Python package that it comes in. Raises BuildError."""
    package = f"{library}-python"
    try:
        found = distribution(package)
    except PackageNotFoundError as error:
        raise BuildError(f"the headers of {package} were not found: {REMEDY}") from error
    if found.version != RELEASE:
        raise BuildError(f"{package} is version {found.version}, {RELEASE} is needed: {REMEDY}")
    path = Path(str(found.locate_file(f"{library}/data")))
    parts = []
    for folder in (*FIRST, *SYSTEM):
        files = sorted(file for file in (path / folder).rglob("*") if file.is_file())
        if not files:
            raise BuildError(f"{package} has no headers in {path / folder}: {REMEDY}")
        parts += [part for file in files for part in (file.relative_to(path).as_posix(), file_digest(file))]
    return Headers(path=path, version=f"{package} {found.version}, sha256 {digest(parts)}")
