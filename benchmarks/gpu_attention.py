"""Decode attention on the GPU: every route beside FlashInfer as its users get it, and beside the floor.

    python -m benchmarks.gpu_attention [-o benchmarks/results/gpu_attention.json]

Contexts are those of benchmarks/traces/decode.json. A time is of one layer, merge included: of a graph of layers over
enough KV pools to miss the L2 cache, gaps between its kernels included. All of a case take turns. The list of tasks,
and FlashInfer's plan, serve all layers of a step and are timed apart. The floor is the bytes of KV over the read
bandwidth of the target.

Compiling needs no GPU, and takes long: benchmarks.attention_kernels does only that, `--kernels` measures what it made.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention_kernels import SHAPES, TRACES, compile_all, layer_plan
from benchmarks.flashinfer import DECODE_RATIOS, FlashInfer, Kernel
from benchmarks.machine import gpu_machine, save
from dualpace.build.store import Store
from dualpace.engine.calibrate import graph_seconds
from dualpace.engine.device import Cubin
from dualpace.plan.attention_cost import split_sizes
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Route
from dualpace.plan.targets import GPUS
from tests.gpu.batch import Batch, Row
from tests.gpu.kernels import Kernels, kernel_of

READ_BANDWIDTH = GPUS["h200"].read_bandwidth
ROTATED_BYTES = 512 << 20
LAYERS = 8  # at least, in a graph
REPEATS = 20


@dataclass
class Contender:
    """One way to the attention of a case: `attend(pool, out, first)` does a layer, which may be the first of a step."""

    name: str
    attend: Callable[[torch.Tensor, torch.Tensor, bool], None]
    figures: dict[str, Any]


class Case:
    """Rows of those contexts, what their attention must come to, and copies of their KV to rotate over."""

    def __init__(self, cubin: Cubin, layout: Plan, contexts: list[int]) -> None:
        used = sum(-(-context // layout.attention.page_size) for context in contexts)
        pages = layout.pages[0].model_copy(update={"pages": used})
        model = layout.model
        self.cubin = cubin
        self.batch = Batch(layout.model_copy(update={"pages": (pages,)}), [Row(context) for context in contexts])
        Kernels(cubin, self.batch).append(0)
        self.reference = self.batch.attention(0)
        self.kv_bytes = 2 * sum(contexts) * model.kv_heads * model.head_dim * model.element_bytes
        pool = self.batch.pools[0]
        pools = [pool] + [pool.clone() for _ in range(ROTATED_BYTES // self.kv_bytes)]
        self.pools = pools * -(-LAYERS // len(pools))

    def ours(self, route: Route, split_tokens: int = 0) -> Contender:
        """One of our routes, with as many CTAs as the GPU runs at once."""
        resident = self.cubin.resident_ctas(kernel_of(route))
        kernels = Kernels(self.cubin, self.batch, resident, route, resident, split_tokens)
        tasks, partials = kernels.tasks(), kernels.partials()

        def list_tasks() -> None:
            for _ in range(LAYERS):
                kernels.list_tasks(tasks)

        (seconds,) = graph_seconds([list_tasks], REPEATS)
        figures = {"list_s": seconds / LAYERS, "tasks": int(tasks[0]) * kernels.slices}

        def attend(pool: torch.Tensor, out: torch.Tensor, first: bool) -> None:
            kernels.attention(0, pool, tasks, partials, out, overlap=not first)

        return Contender(f"{route.name.lower()} {split_tokens or ''}".rstrip(), attend, figures)

    @contextmanager
    def theirs(self, library: Path, kernel: Kernel) -> Iterator[Contender]:
        """FlashInfer with its own planner."""
        attention = FlashInfer(library, self.batch, kernel)
        plan_s = statistics.median(attention.plan() for _ in range(REPEATS))
        run = attention.run
        yield Contender(f"flashinfer's {kernel}", lambda pool, out, _: run(pool, out), {"plan_s": plan_s})
        attention.close()

    def measure(self, contenders: list[Contender]) -> Iterator[dict[str, Any]]:
        """Error and seconds of one layer's decode attention, by contender."""
        outs = [self.batch.poisoned() for _ in contenders]

        def layers(contender: Contender, out: torch.Tensor) -> Callable[[], None]:
            def body() -> None:
                for layer, pool in enumerate(self.pools):
                    contender.attend(pool, out, layer == 0)

            return body

        bodies = [layers(contender, out) for contender, out in zip(contenders, outs, strict=True)]
        times = graph_seconds(bodies, REPEATS)
        for contender, out, seconds in zip(contenders, outs, times, strict=True):
            error = (out.double() - self.reference).norm(dim=-1) / self.reference.norm(dim=-1)
            yield {
                "route": contender.name,
                "kv_bytes": self.kv_bytes,
                "floor_s": self.kv_bytes / READ_BANDWIDTH,
                "attention_s": seconds / len(self.pools),
                "worst_relative_error": error.max().item(),
                **contender.figures,
            }


def measure(layout: Plan, cubin: Cubin, library: Path, trace: str) -> Iterator[dict[str, Any]]:
    """The figures of every contender on `trace`."""
    case = Case(cubin, layout, TRACES[trace])
    sizes = split_sizes(layout.attention.split_tokens, max(TRACES[trace]))
    ours = [case.ours(Route.SPLIT, size) for size in sizes] + [case.ours(Route.WORKQUEUE)]
    if layout.attention.flashinfer != "none":
        ours.append(case.ours(Route.FLASHINFER))
    with case.theirs(library, "prefill") as prefill:
        if layout.model.gqa_ratio not in DECODE_RATIOS:
            yield from case.measure([*ours, prefill])
            return
        with case.theirs(library, "decode") as decode:
            yield from case.measure([*ours, decode, prefill])


def line(name: str, trace: str, figures: dict[str, Any]) -> str:
    """A line of the table."""
    before = figures["plan_s"] if "plan_s" in figures else figures["list_s"]
    return (
        f"{name:8} {trace:15} {figures['route']:20} error {figures['worst_relative_error']:.1e}  "
        f"{figures['attention_s'] * 1e6:6.1f} us  floor {figures['floor_s'] * 1e6:6.1f} us  "
        f"{figures['kv_bytes'] / figures['attention_s'] / 1e9:5.0f} GB/s  "
        f"{'planned on the host' if 'plan_s' in figures else 'listed'} in {before * 1e6:5.1f} us"
    )


def main() -> None:
    """Compile, measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_attention.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="what benchmarks.attention_kernels made")
    arguments = parser.parse_args()
    if arguments.kernels:
        files = {path.name: path for path in arguments.kernels.iterdir()}
    else:
        files = compile_all(Store(arguments.store))
    results = []
    for (ratio, head_dim), traces in SHAPES.items():
        layout = layer_plan(ratio, head_dim)
        cubin, library = Cubin(files[f"{layout.name}.cubin"]), files[f"flashinfer-d{head_dim}.so"].resolve()
        for trace in traces:
            for figures in measure(layout, cubin, library, trace):
                results.append({"gqa_ratio": ratio, "head_dim": head_dim, "trace": trace, **figures})
                print(line(layout.name, trace, figures), flush=True)
    report = {"machine": gpu_machine(), "read_bytes_per_s": READ_BANDWIDTH, "results": results}
    save(report, arguments.output)


if __name__ == "__main__":
    main()
