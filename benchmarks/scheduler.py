"""Time of a scheduler step and of sampling a row, on one core of the host.

    python -m benchmarks.scheduler [-o benchmarks/results/scheduler.json]

The plan is that of Llama-3.1-8B on H200: 256 rows, its pages, its rings. A step retires and publishes 256 tokens, reads
the rings and lays out the next 256. The model's part is not run.
"""

import argparse
import json
import os
import platform
import re
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.engine.scheduler import HostScheduler
from dualpace.plan.structs import StepKind
from tests.plans import example
from tests.scheduler.engines import compile_host

SPEC = "llama-3.1-8b-h200"
PROMPT = 128
STEPS = 400
SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9, min_p 0.01": {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
}


class Bench:
    """A scheduler with `rows` running rows."""

    def __init__(self, folder: Path, rows: int, params: SamplingParams) -> None:
        self.plan = example(SPEC)
        libraries = compile_host(self.plan, folder, "-O3")
        self.memory = RingMemory(folder / "rings", self.plan)
        self.scheduler = HostScheduler(libraries.engine, self.memory, self.plan)
        self.ring = FrontendRing(libraries.ring, self.memory.path)
        for tag in range(rows):
            assert self.ring.submit(tag, [1] * PROMPT, params)
        while self.scheduler.schedule().kind is not StepKind.DECODE:
            self.accept()

    def accept(self) -> None:
        """Take the last step's tokens as sampled, and its events as read."""
        self.scheduler.buffers["sampled"][:] = 2
        while self.ring.wait(0):
            pass

    def close(self) -> None:
        """End ring, scheduler and memory."""
        self.ring.close()
        self.scheduler.close()
        self.memory.close()


def schedule_times(folder: Path, rows: int) -> list[float]:
    """Seconds of each step of `rows` decoding rows."""
    bench = Bench(folder, rows, SamplingParams(max_tokens=4096))
    times = []
    for _ in range(STEPS):
        bench.accept()
        start = time.perf_counter()
        step = bench.scheduler.schedule()
        times.append(time.perf_counter() - start)
        assert step.rows == rows
    bench.close()
    return times


def sample_times(folder: Path, params: SamplingParams) -> list[float]:
    """Seconds of sampling one row."""
    bench = Bench(folder, 1, params)
    logits = np.random.default_rng(0).normal(0, 3, (1, bench.plan.model.vocab)).astype(np.float32)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        bench.scheduler.sample(logits.ctypes.data, logits.shape[1])
        times.append(time.perf_counter() - start)
        bench.accept()
        bench.scheduler.schedule()
    bench.close()
    return times


def main() -> None:
    """Measure, print, and write what was printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    output = parser.parse_args().output
    results: dict[str, dict[str, float]] = {"step_us": {}, "sample_us": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in (1, 64, 256):
            times = schedule_times(folder, rows)
            results["step_us"][f"{rows} rows"] = round(statistics.median(times) * 1e6, 1)
            results["step_us"][f"{rows} rows, p99"] = round(statistics.quantiles(times, n=100)[-1] * 1e6, 1)
        for label, params in SAMPLERS.items():
            times = sample_times(folder, SamplingParams(max_tokens=100, **params))
            results["sample_us"][label] = round(statistics.median(times) * 1e6, 1)
    for kind, values in results.items():
        for label, value in values.items():
            print(f"{kind:10} {label:32} {value:8.1f}")
    if output:
        models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        machine = f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, g++ -O3"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps({"machine": machine, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
