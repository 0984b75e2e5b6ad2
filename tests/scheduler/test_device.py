"""The scheduler's source is the device's too."""

import subprocess

import pytest

from dualpace.build.errors import BuildError
from dualpace.build.toolchain import find_compiler
from dualpace.build.units import CUDA
from dualpace.render.sources import render
from tests.plans import example
from tests.recall.plans import EXACT

from .plans import TIGHT


@pytest.mark.parametrize("plan", [TIGHT, EXACT], ids=lambda plan: plan.name)
def test_the_device_compiler_takes_the_same_source_without_a_warning(plan, tmp_path):
    try:
        compiler = find_compiler("nvcc")
    except BuildError as error:
        pytest.skip(str(error))
    target = plan.target.model_copy(update={"kind": "cuda", "sm": "90a"})
    plan = plan.model_copy(update={"target": target, "policy": example("llama-3.1-8b-h200").policy})
    for path, text in render(plan).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [str(compiler.path), *CUDA, "-gencode=arch=compute_90a,code=sm_90a", "cuda/scheduler.cu", "-o", "cubin"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    assert b"dp_schedule" in (tmp_path / "cubin").read_bytes()
