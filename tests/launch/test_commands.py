"""The commands as a user meets them: what they write, refuse and return."""

import socket
import subprocess
import sys

import pytest

from dualpace import gpu
from dualpace.render.sources import render
from tests.launch.machines import bundle_of, checkpoint
from tests.plans import SPECS, example


def dualpace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_render_writes_every_source_and_names_it(tmp_path):
    result = dualpace("render", SPECS / "llama-3.1-8b-h200.yaml", "-o", tmp_path)
    assert result.returncode == 0
    files = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == render(example("llama-3.1-8b-h200"))
    assert set(result.stdout.splitlines()) == {str(tmp_path / path) for path in files}


def test_a_folder_that_is_no_bundle_is_named(tmp_path):
    result = dualpace("serve", tmp_path)
    assert result.returncode == 2
    assert result.stderr == f"dualpace: {tmp_path} is not a bundle: it has no manifest.json; run `dualpace build`\n"


@pytest.mark.skipif(gpu.there_is_one(), reason="this machine has a GPU")
@pytest.mark.parametrize("command", [("serve",), ("generate", "--prompt", "a")])
def test_a_spec_for_a_gpu_is_not_built_to_be_served_where_there_is_none(command, tmp_path):
    spec = SPECS / "llama-3.1-8b-h200.yaml"
    result = dualpace(command[0], spec, *command[1:], "--store", tmp_path / "store")
    assert result.returncode == 2
    assert f"dualpace: {spec} is built for h200 and this machine shows no NVIDIA GPU" in result.stderr
    assert not (tmp_path / "store").exists()


def test_nothing_is_built_for_an_address_that_another_has(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = dualpace("serve", SPECS / "quickstart.yaml", "--port", port, "--store", tmp_path / "store")
    assert result.returncode == 2
    assert f"dualpace: cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr
    assert not (tmp_path / "store").exists()


def test_a_bundle_at_an_address_that_another_has_is_refused_before_its_weights_are_looked_at(tmp_path):
    bundle = bundle_of(example("quickstart"), tmp_path, checkpoint(tmp_path / "weights"))
    (tmp_path / "weights" / "model.safetensors").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = dualpace("serve", bundle, "--port", port)
    assert result.returncode == 2
    assert result.stderr == (
        f"dualpace: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --host and --port\n"
    )


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("generate", "--prompt", "a"), ("bench",)])
def test_nothing_is_built_to_be_served_without_its_checkpoint(command, tmp_path):
    spec = tmp_path / "specs" / "quickstart.yaml"
    spec.parent.mkdir()
    spec.write_text((SPECS / "quickstart.yaml").read_text())
    result = dualpace(command[0], spec, *command[1:], "--store", tmp_path / "store")
    assert result.returncode == 5
    checkpoint = tmp_path / "models" / "gemma-3-270m.gguf"
    assert result.stderr == f"dualpace: {checkpoint} is not here: put the checkpoint there\n"
    assert not (tmp_path / "store").exists()
