"""Where compilers are found, and what is said when they are not."""

import re
from pathlib import Path

import pytest

from dualpace.build.errors import BuildError
from dualpace.build.toolchain import Tool, find_compiler


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    find_compiler.cache_clear()
    yield
    monkeypatch.undo()
    find_compiler.cache_clear()


def program(folder: Path, name: str, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f'#!/bin/sh\necho "{name} version {version}"\n')
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("tool", "remedy"), [("g++", "apt install g++"), ("nvcc", r"pip install 'dualpace\[cuda\]'")], ids=["g++", "nvcc"]
)
def test_a_missing_compiler_comes_with_its_remedy(tool: Tool, remedy: str, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(BuildError, match=rf"^{re.escape(tool)} was not found: .*{remedy}"):
        find_compiler(tool)


def test_nvcc_is_found_in_the_cuda_packages(monkeypatch, tmp_path):
    program(tmp_path / "bin", "g++", "12.2.0")
    packaged = program(tmp_path / "site" / "nvidia" / "cu13" / "bin", "nvcc", "13.0.88")
    library = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libcudadevrt.a"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    nvcc = find_compiler("nvcc")
    assert nvcc.path == packaged
    assert nvcc.link_flags == (f"-L{library.parent}",)
    assert nvcc.version == "nvcc version 13.0.88 with g++ version 12.2.0"


def test_a_compiler_that_is_too_old_is_refused(monkeypatch, tmp_path):
    program(tmp_path, "g++", "9.4.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"is version 9\.4\.0, at least 12 is needed: .*apt install"):
        find_compiler("g++")


def test_a_compiler_knows_the_path_that_it_was_found_on(monkeypatch, tmp_path):
    program(tmp_path, "g++", "12.2.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler("g++").search == str(tmp_path)
