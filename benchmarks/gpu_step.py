"""Where a decode step's time goes on the GPU: every kernel's share, and what lies between kernels.

    python -m benchmarks.gpu_step BUNDLE [--rows 1 8 32] [--context 1024]

The host drives the engine's own graphs under torch's profiler, so that each kernel of a step is seen with its begin and
its end. What the scheduler takes apart from them is `python -m benchmarks.gpu_scheduler`'s.
"""

import argparse
import random
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from dualpace.engine.device import Cubin, mapped
from dualpace.engine.drive import GpuEngine
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.model.random import random_weights
from dualpace.plan.manifest import HOST_RING, cubins, read_manifest
from dualpace.plan.structs import StepKind

STEPS = 20


def short(name: str) -> str:
    """A kernel's name without its template arguments."""
    return name.removeprefix("void ").partition("(")[0].partition("<")[0][-48:]


def steps(engine: GpuEngine, ring: FrontendRing) -> tuple[dict[str, list[float]], float, float]:
    """Microseconds of each kernel by name, and for one step those in kernels and from its begin to its end."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(STEPS):
            assert engine.advance() is StepKind.DECODE
            ring.wait(0)
    kernels = sorted(
        ((e.time_range.start, e.time_range.end, short(e.name)) for e in recorded.events() if e.device_index >= 0),
        key=lambda kernel: kernel[0],
    )
    kernels = [kernel for kernel in kernels if not kernel[2].startswith(("cu", "Mem", "mem")) or "::" in kernel[2]]
    by_name: dict[str, list[float]] = defaultdict(list)
    for begin, end, name in kernels:
        by_name[name].append(end - begin)
    starts = [i for i, kernel in enumerate(kernels) if kernel[2] == "dp_schedule"]
    spans, inside = [], []
    for first, last in pairwise(starts):
        step = kernels[first + 1 : last]
        spans.append(step[-1][1] - step[0][0])
        inside.append(sum(end - begin for begin, end, _ in step))
    return by_name, sum(inside) / len(inside), sum(spans) / len(spans)


def main() -> None:
    """Serve a bundle from this process and print a table for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 256])
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    manifest = read_manifest(arguments.bundle)
    plan = manifest.plan
    dice = random.Random(0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        memory = RingMemory(Path(folder) / "rings", plan)
        with mapped(memory.address, memory.size) as address:
            cubin = Cubin(*cubins(arguments.bundle, manifest))
            engine = GpuEngine(plan, random_weights(plan, device="cuda"), cubin, address, plan.model.vocab, "host")
            engine.start()
            ring = FrontendRing(arguments.bundle / HOST_RING, memory.path)
            tag = 0
            for rows in arguments.rows:
                tags = range(tag, tag + rows)
                tag += rows
                for each in tags:
                    prompt = [dice.randrange(plan.model.vocab) for _ in range(arguments.context)]
                    assert ring.submit(each, prompt, SamplingParams(max_tokens=4 * STEPS + 400, temperature=0.0))
                while ring.status().running < rows or engine.advance() is not StepKind.DECODE:
                    engine.advance()
                    ring.wait(0)
                by_name, inside, span = steps(engine, ring)
                print(f"{rows} rows of {arguments.context}: {span:.0f} us, {inside:.0f} in kernels")
                for name, times in sorted(by_name.items(), key=lambda each: -sum(each[1])):
                    share = sum(times) / STEPS
                    print(f"  {share:8.1f} us  {len(times) // STEPS:4} x {sum(times) / len(times):7.2f}  {name}")
                for each in tags:
                    ring.abort(each)
                while engine.advance() is not StepKind.IDLE or ring.wait(0):
                    pass
            engine.stop()
            ring.close()
        memory.close()


if __name__ == "__main__":
    main()
