"""Where a step's time goes on the GPU: every kernel's share, and what lies between kernels.

    python -m benchmarks.gpu_step BUNDLE [--decode 1x1024 256x256] [--prompts 8x1024 1x32768]

The host drives the engine's own graphs under torch's profiler, so that each kernel of a step is seen with its begin and
its end. What the scheduler takes apart from them is `python -m benchmarks.gpu_scheduler`'s.
"""

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_engine import cell
from dualpace.engine.device import Cubin, mapped
from dualpace.engine.drive import GpuEngine
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.model.random import random_weights
from dualpace.plan.manifest import HOST_RING, cubins, read_manifest
from dualpace.plan.structs import StepKind

STEPS = 20
DECODE = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (256, 256))


def short(name: str) -> str:
    """A kernel's name without its template arguments."""
    return name.removeprefix("void ").partition("(")[0].partition("<")[0][-48:]


class Steps(NamedTuple):
    """Microseconds of each kernel by name, and for each step those in kernels and from its begin to its end."""

    kernels: dict[str, list[float]]
    inside: list[float]
    spans: list[float]


def recorded(run: Callable[[], None]) -> Steps:
    """The steps that `run` drives, but for the last, which no other follows."""
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        run()
    kernels = sorted(
        ((e.time_range.start, e.time_range.end, short(e.name)) for e in record.events() if e.device_index >= 0),
        key=lambda kernel: kernel[0],
    )
    kernels = [kernel for kernel in kernels if not kernel[2].startswith(("cu", "Mem", "mem")) or "::" in kernel[2]]
    found = Steps(defaultdict(list), [], [])
    starts = [i for i, kernel in enumerate(kernels) if kernel[2] == "dp_schedule"]
    for first, last in pairwise(starts):
        step = kernels[first + 1 : last]
        if not step:  # the scheduler found nothing to run
            continue
        found.spans.append(step[-1][1] - step[0][0])
        found.inside.append(sum(end - begin for begin, end, _ in step))
        for begin, end, name in step:
            found.kernels[name].append(end - begin)
    return found


def show(title: str, found: Steps) -> None:
    """Print a table of the mean step."""
    count = len(found.spans)
    span, inside = sum(found.spans) / count, sum(found.inside) / count
    print(f"{title}: {count} steps of {span:.0f} us, {inside:.0f} in kernels", flush=True)
    for name, times in sorted(found.kernels.items(), key=lambda each: -sum(each[1])):
        share, mean = sum(times) / count, sum(times) / len(times)
        print(f"  {share:8.1f} us  {len(times) / count:6.1f} x {mean:8.2f}  {name}")


class Drive:
    """An engine that this process drives, and a frontend's ring of it."""

    def __init__(self, engine: GpuEngine, ring: FrontendRing, vocabulary: int) -> None:
        self._engine, self._ring, self._vocabulary = engine, ring, vocabulary
        self._dice, self._tag = random.Random(0), 0

    def submit(self, rows: int, prompt: int, tokens: int) -> range:
        """Requests of random prompts of `prompt` tokens, each to generate `tokens`; their tags."""
        tags = range(self._tag, self._tag + rows)
        self._tag += rows
        for tag in tags:
            ids = [self._dice.randrange(self._vocabulary) for _ in range(prompt)]
            assert self._ring.submit(tag, ids, SamplingParams(max_tokens=tokens, temperature=0.0))
        return tags

    def decode(self, rows: int, context: int) -> Steps:
        """Steps of `rows` rows that decode."""
        tags = self.submit(rows, context, 4 * STEPS + 400)
        while self._ring.status().running < rows or self._advance() is not StepKind.DECODE:
            self._advance()

        def run() -> None:
            for _ in range(STEPS):
                self._advance()

        found = recorded(run)
        for tag in tags:
            self._ring.abort(tag)
        self._drain()
        return found

    def prefill(self, rows: int, prompt: int) -> Steps:
        """Steps that compute `rows` prompts."""
        self.submit(rows, prompt, 1)
        return recorded(self._drain)

    def _advance(self) -> StepKind:
        kind = self._engine.advance()
        self._ring.wait(0)
        return kind

    def _drain(self) -> None:
        """Until two looks in a row find nothing: the first after a submit may come too early."""
        idle = 0
        while idle < 2:
            idle = idle + 1 if self._advance() is StepKind.IDLE else 0


def main() -> None:
    """Serve a bundle from this process and print a table for each number of rows and each load of prompts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--decode", type=cell, nargs="*", default=DECODE, metavar="ROWSxCONTEXT")
    parser.add_argument("--prompts", type=cell, nargs="*", default=[(8, 1024), (1, 32_768)], metavar="ROWSxPROMPT")
    arguments = parser.parse_args()
    manifest = read_manifest(arguments.bundle)
    plan = manifest.plan
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        memory = RingMemory(Path(folder) / "rings", plan)
        with mapped(memory.address, memory.size) as address:
            cubin = Cubin(*cubins(arguments.bundle, manifest))
            engine = GpuEngine(plan, random_weights(plan, device="cuda"), cubin, address, plan.model.vocab, "host")
            engine.start()
            ring = FrontendRing(arguments.bundle / HOST_RING, memory.path)
            drive = Drive(engine, ring, plan.model.vocab)
            for rows, context in arguments.decode:
                show(f"{rows} rows of {context}", drive.decode(rows, context))
            for rows, prompt in arguments.prompts:
                show(f"{rows} prompts of {prompt}", drive.prefill(rows, prompt))
            engine.stop()
            ring.close()
        memory.close()


if __name__ == "__main__":
    main()
