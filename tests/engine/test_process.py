"""The engine's process, driven over its rings."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.engine.kernels import Kernels
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.model.random import random_weights
from dualpace.plan.manifest import HOST_ENGINE, HOST_RING, MANIFEST, read_manifest
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec
from tests.engine.compiled import Quiet
from tests.engine.rows import Rows

SHAPE = {
    "family": "qwen3",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "intermediate": 96,
    "vocab": 300,
    "context": 512,
}
SPEC = {
    "name": "random",
    "model": {"shape": SHAPE, "dtype": "fp32", "max_context": 512, "weights": {"random": 3}},
    "scheduler": {"max_batch": 4, "prefill_chunk": 32},
    "target": {"cpu": True, "kv_budget": "8MiB"},
}
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("process") / "bundle"
    build(resolve(Spec.model_validate(SPEC), Path.cwd()), folder, Store(store), Quiet())
    return folder


def start(bundle: Path, rings: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dualpace.engine.cpu", str(bundle), "--rings", str(rings), "--threads", "1"]
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
    assert ring.submit(1, [1, 2, 3], SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True))
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


def test_a_bundle_of_another_layout_is_refused_by_name(bundle, tmp_path):
    other = tmp_path / "bundle"
    other.mkdir()
    manifest = json.loads((bundle / MANIFEST).read_text())
    (other / MANIFEST).write_text(json.dumps(manifest | {"layout": "0123456789abcdef"}))
    with start(other, tmp_path / "rings") as process:
        said = process.communicate()[1]
    assert process.returncode == 2
    assert len(said.splitlines()) == 1
    assert "layout 0123456789abcdef" in said
    assert "build the spec again" in said
