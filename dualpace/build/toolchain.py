"""The compilers: where they are and which version they are. Only here is PATH read."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from dualpace.build.errors import BuildError
from dualpace.frozen import Frozen

Tool = Literal["g++", "aarch64-linux-gnu-g++", "nvcc"]
MINIMUM = {"g++": 12, "aarch64-linux-gnu-g++": 12, "nvcc": 13}
REMEDY = {
    "g++": "install it (`apt install g++`)",
    "aarch64-linux-gnu-g++": "install it (`apt install g++-aarch64-linux-gnu`), for frontends on a SmartNIC's cores",
    "nvcc": "run `pip install 'dualpace[cuda]'` or put the CUDA toolkit's bin folder on PATH",
}


class Compiler(Frozen):
    """A compiler. `version` is its full version text, which is part of every key of what it makes.

    `search` is the PATH that it was looked for on, where it finds its assembler, linker and host compiler.
    """

    tool: Tool
    path: Path
    search: str
    version: str
    link_flags: tuple[str, ...] = ()


@cache
def find_compiler(tool: Tool) -> Compiler:
    """The compiler `tool`: from PATH, or nvcc from the CUDA packages beside this one. Raises BuildError."""
    search = os.environ.get("PATH", os.defpath)
    on_path = shutil.which(tool, path=search)
    path = Path(on_path) if on_path else next(_packaged(tool), None)
    if path is None:
        raise BuildError(f"{tool} was not found: {REMEDY[tool]}")
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"\d+(?:\.\d+)+", result.stdout)
    if result.returncode or release is None:
        raise BuildError(f"{path} --version failed: {REMEDY[tool]}", output=result.stderr)
    if int(release[0].split(".")[0]) < MINIMUM[tool]:
        raise BuildError(f"{path} is version {release[0]}, at least {MINIMUM[tool]} is needed: {REMEDY[tool]}")
    lines = result.stdout.strip().splitlines()
    if tool != "nvcc":
        return Compiler(tool=tool, path=path, search=search, version=lines[0])
    # nvcc preprocesses with g++, so g++'s headers are part of what it compiles. The packaged toolkit keeps its device
    # runtime where its own nvcc does not look.
    libraries = path.resolve().parent.parent / "lib"
    link_flags = (f"-L{libraries}",) if (libraries / "libcudadevrt.a").is_file() else ()
    version = f"{lines[-1]} with {find_compiler('g++').version}"
    return Compiler(tool=tool, path=path, search=search, version=version, link_flags=link_flags)


def _packaged(tool: Tool) -> Iterator[Path]:
    """The compiler in the toolkit's Python packages: `nvidia/cu13/bin/nvcc` in a folder of sys.path."""
    namespace = find_spec("nvidia")
    for folder in (namespace.submodule_search_locations or []) if namespace else []:
        yield from sorted(Path(folder).glob(f"cu1[3-9]/bin/{tool}"), reverse=True)
