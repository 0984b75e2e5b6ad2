"""`dualpace calibrate` up to the GPU that it needs, with the process that measures played by another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dualpace.build import calibrate as module
from dualpace.build.calibrate import calibrate
from dualpace.build.errors import BuildError
from dualpace.build.store import Store
from dualpace.build.units import attention_kernels
from dualpace.plan.calibration import KNOWN, Calibration
from dualpace.render.sources import render
from tests.plans import example

LLAMA = example("llama-3.1-8b-h200")
FOUND = (KNOWN / "h200.json").read_text()


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """Takes the place of the process that measures and of the compilers; says what the process was given."""
    given = {}
    program = tmp_path / "measures.py"

    def play(text):
        program.write_text(text)

    def compiled(libraries, sources, store, progress):
        given["units"] = [unit.source for library in libraries for unit in library.units]
        return dict.fromkeys((library.output for library in libraries), tmp_path / "kernels.cubin")

    run = subprocess.run

    def started(command, **options):
        given["plan"] = json.loads(Path(command[3]).read_text())
        return run([sys.executable, str(program), *command[3:]], **options)

    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "compile_libraries", compiled)
    monkeypatch.setattr(module.subprocess, "run", started)
    return play, given


def test_what_was_measured_is_read_back(measuring, tmp_path, said):
    play, given = measuring
    play(f"print({FOUND!r})")
    found = calibrate(LLAMA, Store(tmp_path / "store"), said)
    assert found == Calibration.model_validate_json(FOUND)
    assert {"cuda/attention.cu", "cuda/attention_tasks.cu"} <= set(given["units"])
    assert all(unit.startswith("cuda/attention") for unit in given["units"])
    assert given["plan"]["model"] == LLAMA.model_dump(mode="json")["model"]


def test_without_its_headers_the_flashinfer_route_is_left_out_and_said_so(measuring, tmp_path, said, monkeypatch):
    play, given = measuring
    play(f"print({FOUND!r})")

    def missing(library):
        raise BuildError(f"no {library}")

    monkeypatch.setattr(module, "find_headers", missing)
    calibrate(LLAMA, Store(tmp_path / "store"), said)
    assert said.notes == ["the flashinfer route is not measured: no flashinfer"]
    assert "cuda/attention_flashinfer.cu" not in given["units"]


def test_a_process_that_fails_is_a_build_error_with_its_last_line(measuring, tmp_path, said):
    play, _ = measuring
    play("import sys; sys.exit('a line\\nRuntimeError: no GPU')")
    with pytest.raises(BuildError, match="attention could not be measured: RuntimeError: no GPU") as error:
        calibrate(LLAMA, Store(tmp_path / "store"), said)
    assert error.value.output == "a line"


def test_without_a_gpu_the_process_that_measures_says_so_in_one_line(tmp_path):
    (tmp_path / "plan.json").write_text(LLAMA.model_dump_json())
    # Enough of the bindings to be imported; nothing of them may be called.
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "driver.py").touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    done = subprocess.run(
        [sys.executable, "-m", module.CALIBRATE, str(tmp_path / "plan.json"), str(tmp_path / "kernels.cubin")],
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("torch finds no NVIDIA GPU: calibrate on a machine that has the target's")
    assert done.stderr.count("\n") == 1


def test_the_cpu_has_nothing_to_calibrate(tmp_path, said):
    with pytest.raises(BuildError, match="only a GPU has attention routes") as error:
        calibrate(example("quickstart"), Store(tmp_path), said)
    assert error.value.key == "target"


def test_what_is_missing_is_named_with_its_remedy(tmp_path, said, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(
        BuildError, match=r"measuring needs torch, numpy, cuda: run `pip install 'dualpace\[serve,cuda\]'`"
    ):
        calibrate(LLAMA, Store(tmp_path), said)


def test_only_attention_is_compiled():
    units = attention_kernels(LLAMA, render(LLAMA)).units
    assert [unit.source for unit in units] == ["cuda/attention.cu", "cuda/attention_tasks.cu"]
