"""The scheduler's part of the memory map against what the compiler makes of its structs."""

import subprocess

import pytest

from dualpace.render.sources import render
from tests.plans import example

PROGRAM = """#include <cstdio>
#include "common/scheduler.hpp"
int main() { std::printf("%zu", sizeof(dp::StateMemory) + sizeof(dp::StepBuffers)); }
"""


@pytest.mark.parametrize("name", ["quickstart", "llama-3.1-8b-h200", "qwen2.5-7b-a100"])
def test_states_and_step_buffers_are_counted_to_within_a_few_percent(name, tmp_path):
    plan = example(name)
    (tmp_path / "common").mkdir()
    for path, text in render(plan).items():
        if path.startswith("common/"):
            (tmp_path / path).write_text(text)
    (tmp_path / "size.cpp").write_text(PROGRAM)
    subprocess.run(["g++", "-std=c++20", "-I.", "size.cpp", "-o", "size"], cwd=tmp_path, check=True)
    size = int(subprocess.run(["./size"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    assert plan.memory.scheduler + plan.memory.history == pytest.approx(size, rel=0.03)
