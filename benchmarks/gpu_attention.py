"""Decode attention on the GPU: error against float64, time and bandwidth of every route beside the floor.

    python -m benchmarks.gpu_attention [-o benchmarks/results/gpu_attention.json]

Contexts are those of benchmarks/traces/decode.json. A time is of one layer, merge included: of a graph of layers over
enough KV pools to miss the L2 cache, gaps between its kernels included. The list of tasks serves all layers of a step
and is timed apart. The floor is the bytes of KV over the read bandwidth of the target.
"""

import argparse
import json
import platform
import statistics
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from dualpace.build.store import Store
from dualpace.build.toolchain import find_compiler
from dualpace.engine.device import Cubin
from dualpace.plan.plan import Plan
from dualpace.plan.targets import GPUS
from tests.gpu.batch import Batch, Row
from tests.gpu.conftest import compile_engine
from tests.gpu.kernels import Kernels, Route
from tests.gpu.plans import plan

TRACES: dict[str, list[int]] = json.loads((Path(__file__).parent / "traces/decode.json").read_text())
FEW = ("1 row, 32k", "8 rows bimodal", "128 rows, 1k")
# Query heads a KV head, head size, and the traces; 8 KV heads, pages of 16 tokens, bf16.
SHAPES: dict[tuple[int, int], tuple[str, ...]] = {(4, 128): tuple(TRACES)} | dict.fromkeys(
    ((1, 128), (2, 128), (5, 128), (7, 128), (8, 128), (16, 128), (4, 64), (8, 64), (4, 256)), FEW
)
READ_BANDWIDTH = GPUS["h200"].read_bandwidth
ROTATED_BYTES = 512 << 20
LAYERS = 8  # at least, in a graph
REPEATS = 20


def graph_seconds(body: Callable[[], None]) -> float:
    """Median seconds of a graph replay of `body`."""
    body()
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
    return statistics.median(times[3:])


def layer_plan(ratio: int, head_dim: int) -> Plan:
    """A plan with one such layer: 128 rows of up to 128k tokens, more pages than there is memory for."""
    return plan(
        f"g{ratio}-d{head_dim}",
        dtype="bf16",
        kv_heads=8,
        ratio=ratio,
        head_dim=head_dim,
        page_size=16,
        context=131072,
        max_batch=128,
        step_tokens=2048,
        split_tokens=256,
    )


class Case:
    """Rows of those contexts, what their attention must come to, and copies of their KV to rotate over."""

    def __init__(self, cubin: Cubin, layout: Plan, contexts: list[int]) -> None:
        used = sum(-(-context // layout.attention.page_size) for context in contexts)
        pages = layout.pages[0].model_copy(update={"pages": used})
        model = layout.model
        self.batch = Batch(layout.model_copy(update={"pages": (pages,)}), [Row(context) for context in contexts])
        Kernels(cubin, self.batch).append(0)
        self.reference = self.batch.attention(0)
        self.kv_bytes = 2 * sum(contexts) * model.kv_heads * model.head_dim * model.element_bytes
        pool = self.batch.pools[0]
        pools = [pool] + [pool.clone() for _ in range(ROTATED_BYTES // self.kv_bytes)]
        self.pools = pools * -(-LAYERS // len(pools))

    def measure(self, cubin: Cubin, route: Route) -> dict[str, Any]:
        """Error and seconds of one layer's decode attention."""
        resident = cubin.resident_ctas("dp_attention")
        kernels = Kernels(cubin, self.batch, ctas=resident, route=route, shares=resident)
        error = (kernels.attend(0).double() - self.reference).norm(dim=-1) / self.reference.norm(dim=-1)
        tasks, partials, out = kernels.tasks(), kernels.partials(), self.batch.poisoned()

        def attend() -> None:
            for pool in self.pools:
                kernels.attention(0, pool, tasks, partials, out)

        def list_tasks() -> None:
            for _ in range(8):
                kernels.list_tasks(tasks)

        return {
            "route": route.name.lower(),
            "kv_bytes": self.kv_bytes,
            "floor_s": self.kv_bytes / READ_BANDWIDTH,
            "attention_s": graph_seconds(attend) / len(self.pools),
            "list_s": graph_seconds(list_tasks) / 8,
            "tasks": int(tasks[0]) * kernels.slices,
            "shares": int(tasks[1]) * kernels.slices,
            "worst_relative_error": error.max().item(),
        }


def machine() -> dict[str, str]:
    """What the figures were read on."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": str(torch.cuda.get_device_properties().multi_processor_count),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "nvcc": find_compiler("nvcc").version,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def line(ratio: int, head_dim: int, trace: str, figures: dict[str, Any]) -> str:
    """A line of the table."""
    return (
        f"g{ratio:<2} d{head_dim:<3} {trace:15} {figures['route']:9} error {figures['worst_relative_error']:.1e}  "
        f"{figures['attention_s'] * 1e6:6.1f} us  floor {figures['floor_s'] * 1e6:6.1f} us  "
        f"{figures['kv_bytes'] / figures['attention_s'] / 1e9:5.0f} GB/s  "
        f"{figures['tasks']:5} tasks listed in {figures['list_s'] * 1e6:4.1f} us"
    )


def main() -> None:
    """Compile, measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_attention.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    arguments = parser.parse_args()
    layouts = {shape: layer_plan(*shape) for shape in SHAPES}
    store = Store(arguments.store)
    with ThreadPoolExecutor() as pool:
        files = dict(zip(SHAPES, pool.map(lambda layout: compile_engine(layout, store), layouts.values()), strict=True))
    results = []
    for (ratio, head_dim), traces in SHAPES.items():
        cubin = Cubin(files[ratio, head_dim])
        for trace in traces:
            case = Case(cubin, layouts[ratio, head_dim], TRACES[trace])
            for route in (Route.SPLIT, Route.WORKQUEUE):
                figures = case.measure(cubin, route)
                results.append({"gqa_ratio": ratio, "head_dim": head_dim, "trace": trace, **figures})
                print(line(ratio, head_dim, trace, figures), flush=True)
    report = {"machine": machine(), "read_bytes_per_s": READ_BANDWIDTH, "results": results}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
