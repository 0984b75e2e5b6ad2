"""The engine that the frontend is measured with plays what it is given, at its pace, and notes when."""

import signal
import subprocess
import sys
import time
from itertools import cycle, islice

import numpy as np

from benchmarks.replay import ARRIVAL, MOMENT, TOKEN, compiled
from dualpace.build.bundle import SOURCES
from dualpace.build.compile import compile_libraries
from dualpace.build.progress import report_to
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.model.tokenizer import Tokenizer
from dualpace.plan.manifest import HOST_RING, read_manifest
from dualpace.render.sources import render
from tests.appliance.bundles import write_bundle

TEXT = "hello stop sign"
STEP_S = 0.005


def with_ring_library(bundle, store):
    """What the frontend's bundle lacks for an engine: its sources, and the ring library."""
    sources = render(read_manifest(bundle).plan)
    for path, text in sources.items():
        (bundle / SOURCES / path).parent.mkdir(parents=True, exist_ok=True)
        (bundle / SOURCES / path).write_text(text)
    ring, *_ = libraries(read_manifest(bundle).plan, sources)
    (bundle / HOST_RING).parent.mkdir()
    with report_to(sys.stderr) as progress:
        made = compile_libraries([ring], sources, Store(store), progress)
    (bundle / HOST_RING).write_bytes(made[HOST_RING].read_bytes())


def events_of(ring, tags):
    events = {tag: [] for tag in tags}
    deadline = time.monotonic() + 20
    while not all(seen and seen[-1].finish for seen in events.values()):
        assert time.monotonic() < deadline
        for event in ring.wait(0.1):
            events[event.tag].append(event)
    return events


def test_it_plays_its_text_to_every_request_at_its_pace(tmp_path):
    bundle = write_bundle(tmp_path / "bundle")
    with_ring_library(bundle, tmp_path / "store")
    library = compiled(bundle, tmp_path / "store")
    rings, log, text = tmp_path / "rings", tmp_path / "log", tmp_path / "text"
    text.write_text(TEXT)
    command = [sys.executable, "-m", "benchmarks.replay", bundle, "--library", library, "--rings", rings]
    command += ["--text", text, "--log", log, "--step-ms", str(1e3 * STEP_S)]
    with subprocess.Popen(command) as process:
        try:
            while not rings.exists():
                assert process.poll() is None
                time.sleep(0.01)
            ring = FrontendRing(bundle / HOST_RING, rings)
            while not ring.status().ready:
                time.sleep(0.01)
            lengths = {1: 30, 2: 7}
            for tag, length in lengths.items():
                assert ring.submit(tag, [5, 6, 7], SamplingParams(length, seed=40 + tag))
            events = events_of(ring, lengths)
            assert ring.status().finished == len(lengths)
            ring.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
    script = Tokenizer(bundle).encode(TEXT)
    moments = np.fromfile(log, dtype=MOMENT)
    for tag, length in lengths.items():
        assert [event.token for event in events[tag]] == list(islice(cycle(script), length))
        assert events[tag][-1].finish is Finish.LENGTH
        own = moments[moments["seed"] == 40 + tag]
        [came] = own[own["what"] == ARRIVAL]["ns"]
        said = own[own["what"] == TOKEN]
        assert said["count"].tolist() == list(range(1, length + 1))
        assert came <= said["ns"][0]
        assert said["ns"][-1] - said["ns"][0] >= (length - 1) * STEP_S * 0.9e9
