"""Time of a scheduler step and of sampling a row, on one core of the host.

    python -m benchmarks.scheduler [-o benchmarks/results/scheduler.json]

A step of 256 rows retires and publishes 256 tokens, seals and indexes the 16 pages they fill, reads the rings and lays
out the next 256, with the plan of Llama-3.1-8B on H200. What it touches, in cache lines, is counted where clang is.
Sampling is of its 128,256 ids and of the 262,144 of Gemma 3. The model's part is not run.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import host_machine, save
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.engine.scheduler import HostScheduler
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind
from tests.plans import example
from tests.scheduler.engines import CLANGS, HERE, Libraries, compile_host

SPECS = ("llama-3.1-8b-h200", "quickstart")
ROWS = (1, 64, 256)
PROMPT = 128
LONG_PROMPT = 4_000
LONG = "4,000 tokens"
STEPS = 400
ROOT = Path(__file__).parents[1]
CLANG = next(filter(shutil.which, CLANGS), None)
PENALTIES = {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5}
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9, min_p 0.01": {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "greedy, logprobs": {"temperature": 0.0, "logprobs": 0},
    "greedy, 20 top logprobs": {"temperature": 0.0, "logprobs": 20},
    "greedy, all penalties": PENALTIES,
    f"greedy, all penalties, {LONG}": PENALTIES,
    "temperature, 300 biases": {"logit_bias": tuple((token, 1.0) for token in range(300))},
}


class Bench:
    """A scheduler with `rows` running rows."""

    def __init__(
        self, folder: Path, plan: Plan, libraries: Libraries, rows: int, prompt: int = PROMPT, **params: Any
    ) -> None:
        self.memory = RingMemory(folder / "rings", plan)
        self.scheduler = HostScheduler(libraries.engine, self.memory, plan)
        self.ring = FrontendRing(libraries.ring, self.memory.path)
        for tag in range(rows):
            # No two rows share a prefix, and each step fills the pages of every sixteenth.
            tokens = [tag, *(n % 30_000 for n in range(prompt + tag % 16))]
            assert self.ring.submit(tag, tokens, SamplingParams(4096, **params))
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


def schedule_times(bench: Bench, rows: int) -> list[float]:
    """Seconds of each step of `rows` decoding rows."""
    times = []
    for _ in range(STEPS):
        bench.accept()
        start = time.perf_counter()
        step = bench.scheduler.schedule()
        times.append(time.perf_counter() - start)
        assert step.rows == rows
    return times


def touched_bytes(folder: Path, rows: int) -> list[int]:
    """Bytes of the cache lines that each step of `rows` decoding rows touches; `folder` has the sources."""
    flags = ("-std=c++20", "-O2", "-w", "-I.", f"-I{ROOT}", f"-I{HERE}", "-pthread")
    counted = "-fsanitize-coverage=func,trace-loads,trace-stores"
    for command in (
        (CLANG, *flags, "-c", ROOT / "benchmarks/touched_lines.cpp"),
        (CLANG, *flags, counted, ROOT / "benchmarks/scheduler_bytes.cpp", "touched_lines.o", "-o", "scheduler_bytes"),
    ):
        subprocess.run(command, cwd=folder, check=True)
    counts = subprocess.run(
        ["./scheduler_bytes", str(rows), "64"], cwd=folder, check=True, capture_output=True, text=True
    )
    return [int(line) for line in counts.stdout.split()]


def sample_times(bench: Bench, vocab: int) -> list[float]:
    """Seconds of sampling one row."""
    logits = np.random.default_rng(0).normal(0, 3, (1, vocab)).astype(np.float32)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        bench.scheduler.sample(logits.ctypes.data, vocab)
        times.append(time.perf_counter() - start)
        bench.accept()
        bench.scheduler.schedule()
    return times


def main() -> None:
    """Measure, print, and write what was printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    output = parser.parse_args().output
    results: dict[str, dict[str, float]] = {"step_us": {}}
    for spec in SPECS:
        plan = example(spec)
        vocab = plan.model.vocab
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            libraries = compile_host(plan, folder, "-O3")
            bench = partial(Bench, folder, plan, libraries)
            for rows in ROWS if spec == SPECS[0] else ():
                with closing(bench(rows)) as running:
                    times = schedule_times(running, rows)
                results["step_us"][f"{rows} rows"] = round(statistics.median(times) * 1e6, 1)
                results["step_us"][f"{rows} rows, p99"] = round(statistics.quantiles(times, n=100)[-1] * 1e6, 1)
            if spec == SPECS[0] and CLANG is not None:
                touched = {f"{rows} rows": statistics.mean(touched_bytes(folder, rows)) / rows for rows in ROWS}
                results["bytes touched a row"] = {label: round(count) for label, count in touched.items()}
            of_vocab = results.setdefault(f"sample_us, {vocab:,} ids", {})
            for label, params in SAMPLERS.items():
                with closing(bench(1, LONG_PROMPT if label.endswith(LONG) else PROMPT, **params)) as running:
                    of_vocab[label] = round(statistics.median(sample_times(running, vocab)) * 1e6, 1)
    for kind, values in results.items():
        for label, value in values.items():
            print(f"{kind:24} {label:36} {value:8.1f}")
    if output:
        save({"machine": host_machine(), **results}, output)


if __name__ == "__main__":
    main()
