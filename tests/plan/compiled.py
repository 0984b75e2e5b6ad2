"""Formulas that plan and device share, compiled by g++."""

import ctypes
import subprocess
from pathlib import Path

from tests.scheduler.engines import write_sources

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off", "-fPIC", "-shared")


def compiled(plan, folder, source):
    """The library of a source beside this file over the sources of `plan`, made in `folder`."""
    write_sources(plan, folder)
    library = folder / "formulas.so"
    subprocess.run(["g++", *FLAGS, f"-I{folder}", HERE / source, "-o", library], check=True, timeout=120)
    return ctypes.CDLL(str(library))
