"""The publisher's and collector's source is the device's too."""

import subprocess

import pytest

from dualpace.build.errors import BuildError
from dualpace.build.toolchain import find_compiler
from dualpace.build.units import CUDA
from tests.scheduler.engines import write_sources

from .plans import HERE, SMALL


def test_the_device_compiler_takes_the_same_source_without_a_warning(tmp_path):
    try:
        compiler = find_compiler("nvcc")
    except BuildError as error:
        pytest.skip(str(error))
    write_sources(SMALL, tmp_path)
    command = [
        str(compiler.path),
        *CUDA,
        "-gencode=arch=compute_90a,code=sm_90a",
        str(HERE / "device.cu"),
        "-o",
        "cubin",
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    assert b"publish_and_collect" in (tmp_path / "cubin").read_bytes()
