"""The GPU engine through its rings: TTFT, and TPOT by rows and context.

    python -m benchmarks.gpu_engine [--spec benchmarks/specs/llama-8b-h200.yaml] [-o benchmarks/results/gpu_engine.json]
        [--cells 1x1024 ...]

The spec is built, its engine started as `serve` starts it, and a frontend's ring claimed by this process, which stamps
each event as it arrives. A cell is that many requests of random prompts of equal length, submitted together; its TPOT
is the median time from one token of a row to the next while all of them decode, its TTFT the time until the last has
its first token. The floor is the plan's, of the context halfway.
"""

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import SEED, gpu_machine, save
from dualpace.engine.ring import FrontendRing, SamplingParams, TokenEvent
from dualpace.lint.runner import lint_file
from dualpace.plan import roofline
from dualpace.plan.manifest import HOST_RING, read_manifest
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Finish

# Rows and prompt tokens; tokens to generate.
CELLS = ((1, 1024), (1, 32_768), (8, 1024), (8, 32_768), (32, 1024), (128, 1024), (256, 256))
TOKENS = 128
START_SECONDS = 240.0
CELL_SECONDS = 120.0


class Engine:
    """The engine of a bundle as a process of its own, and a ring of it.

    `ready_s` and the times in `said`, its lines, are in seconds since it was started.
    """

    def __init__(self, bundle: Path, folder: Path, *arguments: str) -> None:
        self.plan: Plan = read_manifest(bundle).plan
        self._rings = folder / "rings"
        self.said: list[tuple[float, str]] = []
        self._began = time.monotonic()
        command = [sys.executable, "-m", "dualpace.engine", str(bundle), "--rings", str(self._rings), *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, daemon=True).start()
        self._wait_for(self._rings.exists)
        self.ring = FrontendRing(bundle / HOST_RING, self._rings)
        self._wait_for(lambda: self.ring.status().ready)
        self.ready_s = time.monotonic() - self._began
        self._tag = 0

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.monotonic() - self._began, line))
            sys.stderr.write(line)

    def _wait_for(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not there():
            assert self.process.poll() is None, f"the engine ended with {self.process.returncode}"
            assert time.monotonic() < deadline, "the engine does not get ready"
            time.sleep(0.01)

    def run(self, prompts: list[list[int]], params: SamplingParams) -> dict[int, list[tuple[float, TokenEvent]]]:
        """Submit all prompts at once; each one's events with their times, from the moment before the first submit."""
        tags = [self.next_tag() for _ in prompts]
        events: dict[int, list[tuple[float, TokenEvent]]] = defaultdict(list)
        began = time.monotonic()
        waiting = list(zip(tags, prompts, strict=True))
        open_tags = set(tags)
        while open_tags:
            while waiting and self.ring.submit(*waiting[0], params):
                del waiting[0]
            batch = self.ring.wait(0.05)
            now = time.monotonic() - began
            for event in batch:
                events[event.tag - tags[0]].append((now, event))
                if event.finish is not Finish.NONE:
                    assert event.finish in (Finish.LENGTH, Finish.STOP), event
                    open_tags.discard(event.tag)
            assert now < CELL_SECONDS, f"{len(open_tags)} of {len(prompts)} requests do not end"
            assert self.process.poll() is None, f"the engine ended with {self.process.returncode}"
        return dict(events)

    def next_tag(self) -> int:
        """A name for a request that no other has had."""
        self._tag += 1
        return self._tag

    def close(self) -> None:
        """Give up the ring and end the process."""
        self.ring.close()
        self.process.terminate()
        self.process.wait(30)


def built(spec: Path, folder: Path) -> Path:
    """The bundle of `spec`, built in `folder`."""
    bundle = folder / "bundle"
    command = [sys.executable, "-m", "dualpace.cli", "build", str(spec), "--no-image", "-o", str(bundle)]
    subprocess.run(command, check=True)
    return bundle


def bundle_of(arguments: argparse.Namespace, folder: Path) -> Path:
    """The bundle that the command line names, which is one of its spec, or that spec's, built in `folder`."""
    if arguments.bundle is None:
        return built(arguments.spec, folder)
    if read_manifest(arguments.bundle).plan != lint_file(arguments.spec).plan:
        sys.exit(f"{arguments.bundle} was not built from {arguments.spec}: name its spec with --spec")
    return Path(arguments.bundle)


def measure(engine: Engine, rows: int, prompt: int, dice: random.Random) -> dict[str, Any]:
    """One cell."""
    vocabulary = engine.plan.model.vocab
    prompts = [[dice.randrange(vocabulary) for _ in range(prompt)] for _ in range(rows)]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    before = cpu_seconds(engine.process.pid)
    events = engine.run(prompts, params)
    engine_cpu = cpu_seconds(engine.process.pid) - before
    firsts = [stamps[0][0] for stamps in events.values()]
    last_first, first_last = max(firsts), min(stamps[-1][0] for stamps in events.values())
    gaps = [
        later - earlier
        for stamps in events.values()
        for (earlier, _), (later, _) in itertools.pairwise(stamps)
        if last_first <= earlier and later <= first_last
    ]
    return {
        "rows": rows,
        "prompt": prompt,
        "ttft_s": last_first,
        "first_ttft_s": min(firsts),
        "tpot_s": statistics.median(gaps) if gaps else None,
        "tpot_p99_s": statistics.quantiles(gaps, n=100)[98] if len(gaps) > 100 else None,
        "tokens": sum(len(stamps) for stamps in events.values()),
        "engine_cpu_s": engine_cpu,
        "floor_tpot_s": floor(engine.plan, rows, prompt),
    }


def cell(text: str) -> tuple[int, int]:
    """Rows and prompt tokens of a cell as the command line has it."""
    rows, prompt = text.split("x")
    return int(rows), int(prompt)


def floor(plan: Plan, rows: int, prompt: int) -> float:
    """The plan's floor of TPOT halfway through the tokens that are generated."""
    chunk = plan.schedule.prefill_chunk
    context = prompt + TOKENS // 2
    return roofline.floor(plan.model, plan.target, plan.attention, plan.policy, chunk, rows, context).seconds


def cpu_seconds(pid: int) -> float:
    """CPU time that the process has used, in ticks of the kernel's clock (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(cell: dict[str, Any]) -> str:
    """A line of the table."""
    tpot = cell["tpot_s"] or float("nan")
    return (
        f"{cell['rows']:4} x {cell['prompt']:6}  TPOT {1e3 * tpot:7.3f} ms (p99 {1e3 * (cell['tpot_p99_s'] or 0):7.3f})"
        f"  floor {1e3 * cell['floor_tpot_s']:6.3f}  TTFT {1e3 * cell['ttft_s']:8.1f} ms"
        f"  engine CPU {cell['engine_cpu_s']:.2f} s for {cell['tokens']} tokens"
    )


def command_line(description: str, results: str) -> argparse.ArgumentParser:
    """What a benchmark of an engine can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--spec", type=Path, default=Path("benchmarks/specs/llama-8b-h200.yaml"))
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results") / results)
    parser.add_argument("--bundle", type=Path, help="one that is built already")
    return parser


def write(arguments: argparse.Namespace, digest: str, figures: dict[str, Any]) -> None:
    """Write the result file: what was measured, of which bundle and where."""
    report = {"machine": gpu_machine(), "spec": arguments.spec.name, "digest": digest, "seed": SEED, **figures}
    save(report, arguments.output)


def main() -> None:
    """Build, serve, measure, print a table and write the result file."""
    parser = command_line(__doc__.splitlines()[0], "gpu_engine.json")
    parser.add_argument("--cells", type=cell, nargs="+", default=CELLS, metavar="ROWSxPROMPT")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        bundle = bundle_of(arguments, Path(folder))
        digest = read_manifest(bundle).digest
        engine = Engine(bundle, Path(folder))
        print(f"ready after {engine.ready_s:.1f} s", flush=True)
        dice = random.Random(SEED)
        try:
            first = measure(engine, 1, 64, dice)
            cells = []
            for rows, prompt in arguments.cells:
                cells.append(measure(engine, rows, prompt, dice))
                print(line(cells[-1]), flush=True)
        finally:
            engine.close()
    write(arguments, digest, {"ready_s": engine.ready_s, "first": first, "cells": cells})


if __name__ == "__main__":
    main()
