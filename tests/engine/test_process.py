"""The engine's process, driven over its rings."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.engine.scheduler import HostScheduler, LayoutError
from dualpace.engine.serve import serve
from dualpace.exits import Exit
from dualpace.model.random import random_weights
from dualpace.plan.abi import fixed_view
from dualpace.plan.manifest import HOST_ENGINE, HOST_RING, MANIFEST, BundleError, read_manifest
from tests.engine.rows import Rows

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


def start(bundle: Path, rings: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dualpace.engine", str(bundle), "--rings", str(rings), "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def engine(bundle: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], FrontendRing, Path]]:
    rings = tmp_path / "rings"
    with start(bundle, rings) as process:
        try:
            while not rings.exists():
                assert process.poll() is None
                time.sleep(0.02)
            ring = FrontendRing(bundle / HOST_RING, rings)
            yield process, ring, rings
            ring.close()
        finally:
            process.kill()


def refused(bundle: Path, tmp_path: Path, code: Exit = Exit.USAGE, **environment: str) -> str:
    """The one line that an engine which cannot serve `bundle` says."""
    command = [sys.executable, "-m", "dualpace.engine", str(bundle), "--rings", str(tmp_path / "rings")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "rings").exists()
    return done.stderr


def greedy(rows: Rows, prompt: list[int], count: int) -> list[int]:
    """The `count` best tokens after `prompt`, one at a time."""
    logits = rows.feed({0: prompt})[0]
    found = []
    for _ in range(count):
        found.append(int(logits[-1].argmax()))
        logits = rows.feed({0: found[-1:]})[0]
    return found


def test_tokens_over_the_rings_are_those_of_the_model(bundle, engine):
    _, ring, _ = engine
    # The longest takes three chunks of prefill.
    prompts = {7: [5, 6, 7], 8: list(range(80)), 9: [250]}
    for tag, prompt in prompts.items():
        assert ring.submit(tag, prompt, GREEDY)
    tokens: dict[int, list[int]] = {tag: [] for tag in prompts}
    finished: dict[int, Finish] = {}
    while len(finished) < len(prompts):
        for event in ring.wait(10.0):
            tokens[event.tag] += [event.token] if event.token >= 0 else []
            if event.finish:
                finished[event.tag] = event.finish
    assert set(finished.values()) == {Finish.LENGTH}
    plan = read_manifest(bundle).plan
    for tag, prompt in prompts.items():
        rows = Rows(plan, random_weights(plan), Kernels(bundle / HOST_ENGINE))
        for begin in range(0, len(prompt) - 32, 32):
            rows.feed({0: prompt[begin : begin + 32]})
        assert tokens[tag] == greedy(rows, prompt[rows.lengths[0] :], GREEDY.max_tokens)


def test_sigterm_ends_what_runs_tells_frontends_and_removes_the_rings(engine):
    process, ring, rings = engine
    assert ring.submit(1, [1, 2, 3], SamplingParams(max_tokens=400, temperature=0.0))
    while not ring.wait(10.0):
        pass
    process.send_signal(signal.SIGTERM)
    events = []
    while not (events and events[-1].finish):
        events += ring.wait(0.1)
    assert process.wait(10) == 0
    status = ring.status()
    assert status.stopped
    assert not status.alive
    assert not rings.exists()


def status(rings: Path) -> ctypes.Structure:
    """What the engine says of itself, to whoever reads its file without a claim."""
    kind = fixed_view("EngineStatus")
    with rings.open("rb") as file:
        file.seek(ctypes.sizeof(fixed_view("MemoryHeader")))
        return kind.from_buffer_copy(file.read(ctypes.sizeof(kind)))


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


FRONTEND = """
import sys, time
from dualpace.engine.ring import FrontendRing, SamplingParams
ring = FrontendRing(sys.argv[1], sys.argv[2])
for tag in range(12):
    assert ring.submit(tag, [1 + tag] * 20, SamplingParams(max_tokens=450, temperature=0.0))
time.sleep(600)
"""


def test_what_a_killed_frontend_left_is_free_soon_though_no_other_comes(bundle, engine):
    _, ring, rings = engine
    wait_until(lambda: status(rings).ready == 1, 60)
    ring.close()
    with subprocess.Popen([sys.executable, "-c", FRONTEND, bundle / HOST_RING, rings]) as frontend:
        # It does not read, and its ring has no room for all of their tokens.
        wait_until(lambda: status(rings).waiting + status(rings).running == 12, 60)
        assert status(rings).free_pages < status(rings).total_pages
        frontend.kill()
    wait_until(lambda: status(rings).waiting + status(rings).running == 0, 2)
    assert status(rings).free_pages == status(rings).total_pages
    again = FrontendRing(bundle / HOST_RING, rings)
    assert again.submit(1, [5, 6, 7], GREEDY)
    assert again.wait(10.0)[0].tag == 1
    again.close()


def test_a_library_of_another_page_size_is_refused_although_its_step_buffers_are_equal(bundle, tmp_path):
    plan = read_manifest(bundle).plan
    other = plan.model_copy(update={"attention": plan.attention.model_copy(update={"page_size": 32})})
    memory = RingMemory(tmp_path / "rings", other)
    with pytest.raises(LayoutError, match=r"libengine\.so: layout [0-9a-f]{16}, the plan's is .*; build it again"):
        HostScheduler(bundle / HOST_ENGINE, memory, other)
    memory.close()


def test_a_bundle_of_another_layout_is_refused_by_name(bundle, tmp_path):
    other = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((other / MANIFEST).read_text())
    (other / MANIFEST).write_text(json.dumps(manifest | {"layout": "0123456789abcdef"}))
    said = refused(other, tmp_path)
    assert "layout 0123456789abcdef" in said
    assert "build the spec again" in said


def test_told_to_stop_while_loading_it_ends_before_it_is_ready(bundle, tmp_path):
    said: list[str] = []
    serve(bundle, read_manifest(bundle), tmp_path / "rings", 1, lambda: True, said.append)
    assert not any(line.startswith("ready") for line in said)
    assert not (tmp_path / "rings").exists()


def test_without_its_library_the_engine_says_so_in_one_line(bundle, tmp_path):
    other = shutil.copytree(bundle, tmp_path / "bundle")
    (other / HOST_ENGINE).unlink()
    assert f"{HOST_ENGINE} is missing: build the spec again" in refused(other, tmp_path)


def test_a_library_that_cannot_be_loaded_is_named_in_one_line(tmp_path):
    (tmp_path / "libengine.so").write_bytes(b"no library")
    with pytest.raises(BundleError, match=r"libengine\.so cannot be loaded here .*: build the spec again"):
        Kernels(tmp_path / "libengine.so")


def test_without_torch_the_remedy_is_named_in_one_line(bundle, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    said = refused(bundle, tmp_path, PYTHONPATH=path)
    assert "needs torch: run `pip install 'dualpace[serve]'`" in said


def test_without_verbs_a_bundle_with_rdma_names_the_remedy(bundle, tmp_path):
    other = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((other / MANIFEST).read_text())
    nic = dict.fromkeys(("tls_certificate", "tls_key", "key_file"), "/absent")
    nic |= {"device": "mlx5_0", "port": 1, "gid_index": 3, "memory": "host", "gate_host": "::1", "gate_port": 0}
    manifest["plan"]["nic"] = nic
    (other / MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / "pyverbs.py").write_text("raise ModuleNotFoundError(\"No module named 'pyverbs'\", name='pyverbs')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    said = refused(other, tmp_path, PYTHONPATH=path)
    assert said == "engine: RDMA needs pyverbs: install python3-pyverbs or `pip install 'dualpace[rdma]'`\n"


def for_a_gpu(bundle: Path, folder: Path) -> Path:
    """A bundle that says it is for an H200."""
    other = shutil.copytree(bundle, folder / "bundle")
    manifest = json.loads((other / MANIFEST).read_text())
    manifest["plan"]["target"] |= {"name": "h200", "kind": "cuda", "sm": "90a"}
    (other / MANIFEST).write_text(json.dumps(manifest))
    return other


def test_without_the_cuda_bindings_a_bundle_for_a_gpu_names_the_remedy(bundle, tmp_path):
    (tmp_path / "cuda.py").write_text("raise ModuleNotFoundError(\"No module named 'cuda'\", name='cuda')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    said = refused(for_a_gpu(bundle, tmp_path), tmp_path, PYTHONPATH=path)
    assert "serving on a GPU needs cuda: run `pip install 'dualpace[serve,cuda]'`" in said


def test_without_a_gpu_a_bundle_for_one_says_so(bundle, tmp_path):
    # Enough of the bindings to be imported; nothing may be called before the machine is known to have a GPU.
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "bindings" / "driver.py").touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())])
    said = refused(for_a_gpu(bundle, tmp_path), tmp_path, Exit.HARDWARE, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="")
    assert "is built for h200 and this machine shows no NVIDIA GPU: serve it on one that has it" in said


def test_a_checkpoint_that_was_not_there_at_build_is_refused(bundle, tmp_path):
    other = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((other / MANIFEST).read_text())
    weights = {"folder": str(tmp_path), "files": {}}
    (other / MANIFEST).write_text(json.dumps(manifest | {"weights": weights}))
    assert f"{tmp_path} was not there when the bundle was built" in refused(other, tmp_path, Exit.WEIGHTS)
