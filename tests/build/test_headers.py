"""Where header libraries are found, what is said when they are not, and that what they hold is part of a unit's key."""

import ctypes
from pathlib import Path

import pytest

from dualpace.build.compile import compile_libraries
from dualpace.build.errors import BuildError
from dualpace.build.headers import FIRST, RELEASE, SYSTEM, find_headers, include_flags
from dualpace.build.store import Store
from dualpace.build.units import HOST, SHARED, Library, Unit

SOURCES = {"host/one.cpp": '#include <flashinfer/one.cuh>\nextern "C" int dp_one() { return kOne; }\n'}
FLAGS = (*HOST, *include_flags("flashinfer"))
UNIT = Unit(tool="g++", source="host/one.cpp", object="one.o", label="one", flags=FLAGS, headers=("flashinfer",))
LIBRARY = Library(tool="g++", output="host/libtest.so", units=(UNIT,), flags=SHARED)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder of packages, the only one that there is."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr("sys.path", [str(site)])
    find_headers.cache_clear()
    yield site
    find_headers.cache_clear()


def install(site: Path, one: int, release: str = RELEASE) -> Path:
    """A FlashInfer whose header says that `kOne` is `one`."""
    info = site / f"flashinfer_python-{release}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: flashinfer-python\nVersion: {release}\n")
    data = site / "flashinfer" / "data"
    for folder in (*FIRST, *SYSTEM):
        (data / folder / "flashinfer").mkdir(parents=True, exist_ok=True)
        (data / folder / "flashinfer" / "empty.cuh").touch()
    (data / "include/flashinfer/one.cuh").write_text(f"constexpr int kOne = {one};\n")
    find_headers.cache_clear()
    return data


def one(store: Path, said) -> int:
    library = compile_libraries((LIBRARY,), SOURCES, Store(store), said)["host/libtest.so"]
    return ctypes.CDLL(str(library)).dp_one()


@pytest.mark.usefixtures("site")
def test_missing_headers_come_with_their_remedy():
    with pytest.raises(BuildError, match=rf"not found: run `pip install --no-deps flashinfer-python=={RELEASE}`"):
        find_headers("flashinfer")


def test_another_release_is_refused(site):
    install(site, 1, release="0.7.4")
    with pytest.raises(BuildError, match=rf"is version 0\.7\.4, {RELEASE} is needed: run `pip install"):
        find_headers("flashinfer")


def test_a_package_without_headers_is_refused(site):
    (install(site, 1) / "cccl/cub/flashinfer/empty.cuh").unlink()
    with pytest.raises(BuildError, match=r"has no headers in .*/cccl/cub: run `pip install"):
        find_headers("flashinfer")


def test_a_unit_is_compiled_again_when_a_header_changed_and_only_then(site, tmp_path, said):
    install(site, 1)
    assert one(tmp_path / "store", said) == 1
    install(site, 1)
    assert one(tmp_path / "store", said) == 1
    assert len(said.compiled) == 1
    install(site, 2)
    assert one(tmp_path / "store", said) == 2
    assert len(said.compiled) == 2


@pytest.mark.parametrize("page", ["README.md", "docs/attention.md"])
def test_pages_name_the_release_that_is_needed(page):
    assert f"pip install --no-deps flashinfer-python=={RELEASE}" in (Path(__file__).parents[2] / page).read_text()
