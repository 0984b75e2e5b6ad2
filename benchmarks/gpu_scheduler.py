"""A step of the scheduler on the GPU beside the same step on one core of the host, and sampling on the GPU.

    python -m benchmarks.gpu_scheduler [-o benchmarks/results/gpu_scheduler.json]

A step of decoding rows retires and publishes a token a row, seals and indexes the pages that it filled, a sixteenth of
the rows', reads the rings and lays out the next step, with the plan of Llama-3.1-8B on H200. The ring is in host memory
that the GPU maps. A step's time is that of a node of a graph of steps, gaps between its nodes included; one without
anything in the L2 cache that of reading half a gigabyte and a step, less that of reading alone. Where the pool is full
every page that a row takes is evicted first. Phases are by the clock of the SM, of one step without what surrounds it.
"""

import argparse
import ctypes
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import gpu_machine, save
from benchmarks.scheduler import SAMPLERS, Bench, schedule_times
from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.engine.device import Cubin, mapped
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.plan.abi import view
from dualpace.plan.manifest import CUDA_ENGINE, HOST_ENGINE, HOST_RING
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind
from dualpace.render.sources import render
from tests.gpu.conftest import Silent, host_twin
from tests.plans import example
from tests.scheduler.engines import Libraries

PLAN = example("llama-3.1-8b-h200")
PHASES = ("begin", "retire", "poll", "admit", "lay out", "publish", "end")
ROWS = (1, 8, 32, 128, 256)
PROMPT = 128
STEPS = 8  # of a graph; their tokens fit the ring twice
REPEATS = 40
FLUSHED = 1 << 27  # words
CACHED = 100_000  # tokens of a prompt that fills the pool
# Logits are normal, of that spread; the peaked have a hundred that stand out.
SPREADS = {"flat": 3.0, "peaked": 1.0}
ROOT = Path(__file__).parents[1]


def compile_parts(plan: Plan, store: Store, *paths: str) -> dict[str, Path]:
    """Libraries of `plan` from these of its sources, by output; the benchmark's own kernels are among them."""
    sources = render(plan) | {"cuda/scheduler_phases.cu": (ROOT / "benchmarks/scheduler_phases.cu").read_text()}
    return compile_libraries(libraries(plan, paths), sources, store, Silent())


class DeviceBench:
    """A scheduler on the GPU with `rows` running rows."""

    def __init__(
        self, cleanup: ExitStack, cubin: Cubin, ring_library: Path, rows: int, *, cached: int = 0, **params: Any
    ) -> None:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        self.memory = cleanup.enter_context(closing(RingMemory(folder / "rings", host_twin(PLAN))))
        self.frontend = cleanup.enter_context(closing(FrontendRing(ring_library, self.memory.path)))
        self.rings = cleanup.enter_context(mapped(self.memory.address, self.memory.size))
        self.cubin = cubin
        self._view = view("StepBuffers", PLAN)
        self.state = torch.zeros(cubin.constant("dp_state_bytes"), dtype=torch.uint8, device="cuda")
        self.step = torch.zeros(ctypes.sizeof(self._view), dtype=torch.uint8, device="cuda")
        self.cubin.launch("dp_start", (1,), self.state, self.step, PLAN.model.vocab)
        sampled = self._view.sampled
        self.step[sampled.offset :][: sampled.size].view(torch.int32).fill_(2)
        for tag in range(cached):
            self._run([tag, *(n % 30_000 for n in range(CACHED))], tag, 1)
        for tag in range(rows):
            # No two rows share a prefix, and each step fills the pages of every sixteenth.
            tokens = [30_000 + tag, *(n % 30_000 for n in range(PROMPT + tag % PLAN.attention.page_size))]
            assert self.frontend.submit(tag, tokens, SamplingParams(8000, **params))
        while self._schedule() != (StepKind.DECODE, rows):
            self.drain()

    def _run(self, prompt: list[int], tag: int, tokens: int) -> None:
        """A request from its submission to its end."""
        assert self.frontend.submit(tag, prompt, SamplingParams(tokens))
        while not self.drain():
            self._schedule()

    def _schedule(self) -> tuple[StepKind, int]:
        self.schedule()
        step = self._view.from_buffer_copy(self.step.cpu().numpy())
        return StepKind(step.kind), step.rows

    def schedule(self) -> None:
        """Launch a step."""
        self.cubin.launch("dp_schedule", (1,), self.state, self.step, self.rings)

    def drain(self) -> int:
        """Take the events that were published; how many there were."""
        return sum(map(len, iter(lambda: self.frontend.wait(0), [])))

    def phases(self) -> dict[str, float]:
        """Cycles of each phase, the median of steps."""
        cycles = torch.zeros(len(PHASES), dtype=torch.int64, device="cuda")
        seen = []
        for _ in range(4 * STEPS):
            self.cubin.launch("dp_schedule_phases", (1,), self.state, self.step, self.rings, cycles)
            seen.append(cycles.tolist())
            self.drain()
        return {name: statistics.median(column) for name, column in zip(PHASES, zip(*seen, strict=True), strict=True)}


def graph_times(body: Callable[[], None], after: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of each replay of a graph of `body`; `after` runs between replays."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
        after()
    return times


def repeated(*bodies: Callable[[], None]) -> Callable[[], None]:
    """STEPS times one after the other."""

    def run() -> None:
        for _ in range(STEPS):
            for body in bodies:
                body()

    return run


@contextmanager
def device_bench(*arguments: Any, **options: Any) -> Iterator[DeviceBench]:
    """A DeviceBench, and its end."""
    with ExitStack() as cleanup:
        yield DeviceBench(cleanup, *arguments, **options)


def step_figures(cubin: Cubin, ring_library: Path) -> dict[str, Any]:
    """Microseconds of a step by rows, and cycles of its phases."""
    words, total = torch.zeros(FLUSHED, device="cuda"), torch.zeros(1, device="cuda")

    def nothing() -> None:
        cubin.launch("dp_nothing", (1,))

    def flush() -> None:
        cubin.launch("dp_read", (264,), words, ctypes.c_int64(FLUSHED), total)

    def micros(times: list[float]) -> float:
        return statistics.median(times[3:]) / STEPS * 1e6

    reading = micros(graph_times(repeated(flush)))
    figures: dict[str, Any] = {"an empty node": {"us": round(micros(graph_times(repeated(nothing))), 2)}}
    for rows, cached in [(rows, 0) for rows in ROWS] + [(ROWS[-1], 9)]:
        with device_bench(cubin, ring_library, rows, cached=cached) as bench:
            times = graph_times(repeated(bench.schedule), bench.drain)
            cold = graph_times(repeated(flush, bench.schedule), bench.drain)
            figures[f"{rows} rows" + (", full pool" if cached else "")] = {
                "us": round(micros(times), 2),
                "us, cold": round(micros(cold) - reading, 2),
                "worst us": round(max(times[3:]) / STEPS * 1e6, 2),
                "cycles": bench.phases(),
            }
    return figures


def sample_figures(cubin: Cubin, ring_library: Path, rows: int) -> dict[str, Any]:
    """Microseconds of sampling `rows` rows, by parameters and distribution."""
    vocab = PLAN.model.vocab
    generator = torch.Generator(device="cuda").manual_seed(0)
    figures: dict[str, Any] = {}
    scratch = torch.empty(rows, vocab, device="cuda")
    for spread, sigma in SPREADS.items():
        logits = torch.randn(rows, vocab, device="cuda", generator=generator) * sigma
        if spread == "peaked":
            logits[:, 1000:1100] += 6 + 6 * torch.rand(rows, 100, device="cuda", generator=generator)
        for label, params in SAMPLERS.items():
            if "4,000" in label:
                continue
            with device_bench(cubin, ring_library, rows, **params) as bench:

                def sample(bench: DeviceBench = bench, logits: torch.Tensor = logits) -> None:
                    stride = ctypes.c_int64(vocab)
                    cubin.launch("dp_sample", (rows,), bench.state, bench.step, logits, stride, scratch)

                sample()
                times = graph_times(sample)
                figures.setdefault(spread, {})[label] = round(statistics.median(times[3:]) * 1e6, 1)
    return figures


def host_figures(store: Store) -> dict[str, float]:
    """Median microseconds of a step on the host, by rows."""
    twin = host_twin(PLAN)
    files = compile_parts(twin, store, "host/engine.cpp", "host/ring.cpp")
    built = Libraries(files[HOST_ENGINE], files[HOST_RING])
    figures = {}
    for rows in ROWS:
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            closing(Bench(Path(folder), twin, built, rows)) as bench,
        ):
            figures[f"{rows} rows"] = round(statistics.median(schedule_times(bench, rows)) * 1e6, 2)
    return figures


def main() -> None:
    """Compile, measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_scheduler.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    arguments = parser.parse_args()
    store = Store(arguments.store)
    files = compile_parts(PLAN, store, "cuda/scheduler.cu", "cuda/scheduler_phases.cu", "host/ring.cpp")
    cubin, ring_library = Cubin(files[CUDA_ENGINE]), files[HOST_RING]
    report: dict[str, Any] = {"machine": gpu_machine(), "host step_us": host_figures(store)}
    report["step"] = step_figures(cubin, ring_library)
    for label, figures in report["step"].items():
        host = report["host step_us"].get(label, "-")
        cycles = ", ".join(f"{name} {count:.0f}" for name, count in figures.get("cycles", {}).items())
        cold = figures.get("us, cold", "-")
        print(f"{label:20} {figures['us']:6.2f} us, {cold:>6} cold, {host:>6} on the host; {cycles}", flush=True)
    for rows in (1, ROWS[-1]):
        report[f"sample_us, {rows} rows"] = sample_figures(cubin, ring_library, rows)
        for spread, figures in report[f"sample_us, {rows} rows"].items():
            for label, us in figures.items():
                print(f"sample {rows:3} rows, {spread:7} {label:34} {us:8.1f} us", flush=True)
    save(report, arguments.output)


if __name__ == "__main__":
    main()
