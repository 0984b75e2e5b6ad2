"""Decode attention on the GPU: error against float64, and time beside the bandwidth floor, for layers of Llama-3.1.

    python -m benchmarks.gpu_first_light [-o benchmarks/results/gpu_first_light.json]

Times are of graph replays that rotate over enough KV pools to miss the L2 cache. The floor is the bytes of KV over the
bandwidth at which a sum reads 4 GiB in the same run.
"""

import argparse
import json
import platform
import statistics
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch

from dualpace.build.store import Store
from dualpace.build.toolchain import find_compiler
from dualpace.plan.plan import Plan
from tests.gpu.batch import Batch, Row
from tests.gpu.conftest import compile_engine
from tests.gpu.device import Cubin
from tests.gpu.kernels import Kernels
from tests.gpu.plans import plan

TRACES = {
    "1 row of 8k": [8192],
    "1 row of 32k": [32768],
    "1 row of 128k": [131072],
    "8 rows of 32k": [32768] * 8,
    "32 rows of 1k": [1024] * 32,
    "32 rows, 8 of 48k and 24 of 6k": ([49152] + [6144] * 3) * 8,
    "128 rows of 1k": [1024] * 128,
}
LAYERS = {
    "Llama-3.1-8B": {"kv_heads": 8, "ratio": 4},
    "Llama-3.1-70B": {"kv_heads": 8, "ratio": 8},
}
ROTATED_BYTES = 512 << 20
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


def read_bandwidth() -> float:
    """Bytes a second of a sum over 4 GiB."""
    values = torch.rand(1 << 30, device="cuda")
    return 4 * values.numel() / graph_seconds(lambda: values.sum())


def layer_plan(layer: str, split_tokens: int) -> Plan:
    """A plan with one layer of that shape: 128 rows of up to 128k tokens, more pages than there is memory for."""
    return plan(
        layer,
        **LAYERS[layer],
        dtype="bf16",
        head_dim=128,
        page_size=16,
        context=131072,
        max_batch=128,
        step_tokens=2048,
        split_tokens=split_tokens,
    )


def measure(cubin: Cubin, layout: Plan, contexts: list[int]) -> dict[str, float]:
    """Errors and seconds of one layer's decode attention for rows of those contexts."""
    used = sum(-(-context // layout.attention.page_size) for context in contexts)
    pages = layout.pages[0].model_copy(update={"pages": used})
    batch = Batch(layout.model_copy(update={"pages": (pages,)}), [Row(context) for context in contexts])
    model, resident = layout.model, cubin.resident_ctas("dp_attention")
    kernels = Kernels(cubin, batch, ctas=max(resident // model.kv_heads, 1))
    kernels.append(0)
    reference = batch.attention(0)
    error = (kernels.attend(0).double() - reference).norm(dim=-1) / reference.norm(dim=-1)

    kv_bytes = 2 * sum(contexts) * model.kv_heads * model.head_dim * model.element_bytes
    pools = [batch.pools[0]] + [batch.pools[0].clone() for _ in range(ROTATED_BYTES // kv_bytes)]
    tasks, (partial, lse), out = kernels.tasks(), kernels.partials(), batch.poisoned()

    def attend() -> None:
        for pool in pools:
            kernels.attention(0, pool, tasks, partial, lse)

    def merge() -> None:
        for _ in pools:
            kernels.merge(0, tasks, partial, lse, out)

    return {
        "kv_bytes": kv_bytes,
        "tasks": int(tasks[0]),
        "worst_relative_error": error.max().item(),
        "attention_s": graph_seconds(attend) / len(pools),
        "merge_s": graph_seconds(merge) / len(pools),
        "tasks_s": graph_seconds(lambda: [kernels.list_tasks(tasks) for _ in range(8)]) / 8,
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


def main() -> None:
    """Compile, measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_first_light.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--split-tokens", type=int, nargs="+", default=[256])
    arguments = parser.parse_args()
    bandwidth = read_bandwidth()
    results = []
    for layer, split_tokens in product(LAYERS, arguments.split_tokens):
        layout = layer_plan(layer, split_tokens)
        cubin = Cubin(compile_engine(layout, Store(arguments.store)))
        for trace, contexts in TRACES.items():
            figures = measure(cubin, layout, contexts)
            figures["floor_s"] = figures["kv_bytes"] / bandwidth
            results.append({"layer": layer, "trace": trace, "split_tokens": split_tokens, **figures})
            print(
                f"{layer:14} {trace:31} split {split_tokens:4}  error {figures['worst_relative_error']:.1e}  "
                f"attention {figures['attention_s'] * 1e6:6.1f} us  merge {figures['merge_s'] * 1e6:5.1f} us  "
                f"floor {figures['floor_s'] * 1e6:5.1f} us  "
                f"{figures['kv_bytes'] / figures['attention_s'] / 1e9:5.0f} GB/s"
            )
    report = {"machine": machine(), "read_bytes_per_s": bandwidth, "results": results}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
