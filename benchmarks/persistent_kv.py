"""The protocol of the PersistentKV paper: decode attention by the device's policy over FlashInfer.

    python -m benchmarks.persistent_kv [-o benchmarks/results/persistent_kv.json]

Contexts are drawn for four families of traces at 1, 4, 8 and 32 rows. The policy's constants are fitted to the traces
of one seed, the list builder is compiled with them, and the traces of five other seeds are measured. A step's
attention is the list of tasks once, or FlashInfer's planning on the host, and then 32 layers, as Llama-3.1-8B has.
FlashInfer is the faster of its two kernels in each trace. All of a trace take turns in one process.
"""

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from benchmarks.attention_kernels import compile_all, compile_list_builder, layer_plan
from benchmarks.flashinfer import FlashInfer, Kernel
from benchmarks.machine import gpu_machine, save
from dualpace.build.store import Store
from dualpace.engine.calibrate import Layer, graph_seconds, samples
from dualpace.engine.device import Cubin, check
from dualpace.engine.route_fit import fit, relative_error
from dualpace.plan.plan import AttentionPolicy, Plan
from dualpace.plan.structs import Route
from dualpace.plan.targets import GPUS

ROWS = (1, 4, 8, 32)
FITTED, HELD_OUT = 0, (1, 2, 3, 4, 5)
RATIO, HEAD_DIM = 4, 128  # Llama-3.1-8B's
LAYERS = 32
PLANS = 20
READ_BANDWIDTH = GPUS["h200"].read_bandwidth
KERNELS: tuple[Kernel, ...] = ("decode", "prefill")


def uniform(draw: random.Random, rows: int) -> list[int]:
    """4k to 32k."""
    return [draw.randint(4096, 32768) for _ in range(rows)]


def bimodal(draw: random.Random, rows: int) -> list[int]:
    """One in four at 24k to 64k, the others at 2k to 12k."""
    return [draw.randint(24576, 65536) if i % 4 == 0 else draw.randint(2048, 12288) for i in range(rows)]


def zipf(draw: random.Random, rows: int) -> list[int]:
    """2,048 + 65,536 / sqrt(rank), in an order of the seed's."""
    contexts = [int(2048 + 65536 / rank**0.5) for rank in range(1, rows + 1)]
    draw.shuffle(contexts)
    return contexts


def bucketed(draw: random.Random, rows: int) -> list[int]:
    """One of 8k, 16k, 32k and 64k."""
    return [draw.choice((8192, 16384, 32768, 65536)) for _ in range(rows)]


FAMILIES: dict[str, Callable[[random.Random, int], list[int]]] = {
    "uniform": uniform,
    "bimodal": bimodal,
    "zipf": zipf,
    "bucketed": bucketed,
}


def traces(seed: int) -> Iterator[tuple[str, list[int]]]:
    """Family and contexts of every trace of a seed."""
    for family, contexts in FAMILIES.items():
        for rows in ROWS:
            yield family, contexts(random.Random(f"{family} {rows} {seed}"), rows)


@dataclass(frozen=True)
class Context:
    """A row, as FlashInfer's side asks for it."""

    context: int


@dataclass(frozen=True)
class Rows:
    """A step of ours, as FlashInfer's side asks for it: the same queries over the same pages."""

    plan: Plan
    rows: Sequence[Context]
    tables: Sequence[np.ndarray]
    row_slots: np.ndarray
    qkv: torch.Tensor


def fitted(layer: Layer) -> tuple[AttentionPolicy, float]:
    """The policy that the traces of one seed come to, among our own routes, and its relative error over them."""
    found = list(samples(layer, (contexts for _, contexts in traces(FITTED))))
    own = [sample.measured for sample in found if sample.route is not Route.FLASHINFER]
    cost = fit(own)
    policy = AttentionPolicy(source=f"traces of seed {FITTED}", measured=True, ctas=layer.ctas, own=cost)
    return policy, relative_error(cost, own)


def launches(body: Callable[[], None]) -> int:
    """Kernels that `body` launches."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        body()
    _, nodes = check(driver.cuGraphGetNodes(driver.CUgraph(graph.raw_cuda_graph()), 0))
    return int(nodes)


def measure(layer: Layer, library: Path, family: str, seed: int, contexts: list[int]) -> dict[str, Any]:
    """A step's attention by the policy and by FlashInfer, by turns."""
    step, pools = layer.step(contexts), layer.pools(contexts)
    layer.list_tasks(step, Route.AUTO)
    work, count = layer.work(step), len(contexts)
    out = torch.empty_like(layer.out[:count])
    table = np.zeros((count, max(map(len, layer.pages_of(contexts)))), np.int32)
    for row, pages in enumerate(layer.pages_of(contexts)):
        table[row, : len(pages)] = pages
    rows = Rows(layer.plan, [Context(n) for n in contexts], [table], np.arange(count), layer.qkv[:count])
    with ExitStack() as stack:
        theirs = {kernel: FlashInfer(library, rows, kernel) for kernel in KERNELS}
        for each in theirs.values():
            stack.callback(each.close)

        def runs(each: FlashInfer) -> Callable[[], None]:
            return lambda: [each.run(pool, out) for pool in pools]

        bodies = [lambda: layer.attend(step, count, Route(work.route), pools), *map(runs, theirs.values())]
        own, *others = (total / len(pools) for total in graph_seconds(bodies))
        layers = dict(zip(KERNELS, others, strict=True))
        counts = dict(zip(("own", *KERNELS), (launches(body) / len(pools) for body in bodies), strict=True))
        planning = {kernel: statistics.median(each.plan() for _ in range(PLANS)) for kernel, each in theirs.items()}
    faster = min(KERNELS, key=lambda kernel: layers[kernel])
    listing = layer.list_seconds(step, Route.AUTO)
    return {
        "family": family,
        "rows": count,
        "seed": seed,
        "tokens": sum(contexts),
        "floor_s": work.bytes / READ_BANDWIDTH,
        "route": Route(work.route).name.lower(),
        "split_tokens": work.split_tokens,
        "layer_s": own,
        "list_s": listing,
        "launches": 1 + LAYERS * counts["own"],
        "flashinfer": faster,
        "flashinfer_layer_s": layers[faster],
        "flashinfer_plan_s": planning[faster],
        "flashinfer_launches": LAYERS * counts[faster],
        "with_planning": (planning[faster] + LAYERS * layers[faster]) / (listing + LAYERS * own),
        "without_planning": layers[faster] / own,
    }


def main() -> None:
    """Fit, compile, measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/persistent_kv.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="what benchmarks.attention_kernels made")
    arguments = parser.parse_args()
    store, plan = Store(arguments.store.absolute()), layer_plan(RATIO, HEAD_DIM)
    folder = arguments.kernels
    files = {path.name: path for path in folder.iterdir()} if folder else compile_all(store)
    cubin, library = Cubin(files[f"{plan.name}.cubin"]), files[f"flashinfer-d{HEAD_DIM}.so"].resolve()
    layer = Layer(plan, cubin)
    policy, error = fitted(layer)
    layer = layer.with_lists(Cubin(compile_list_builder(plan.model_copy(update={"policy": policy}), store)))
    report: dict[str, Any] = {
        "machine": gpu_machine(),
        "read_bytes_per_s": READ_BANDWIDTH,
        "layers": LAYERS,
        "policy": policy.model_dump(),
        "fit_error": error,
        "results": [],
    }
    for seed in HELD_OUT:
        for family, contexts in traces(seed):
            report["results"].append(measure(layer, library, family, seed, contexts))
            print(line(report["results"][-1]), flush=True)
        save(report, arguments.output)


def line(figures: dict[str, Any]) -> str:
    """A line of the table."""
    return (
        f"{figures['family']:8} {figures['rows']:2} rows, seed {figures['seed']}: {figures['route']:10} "
        f"{figures['layer_s'] * 1e6:6.1f} us + list {figures['list_s'] * 1e6:4.1f}  "
        f"FlashInfer's {figures['flashinfer']:7} {figures['flashinfer_layer_s'] * 1e6:6.1f} us "
        f"+ plan {figures['flashinfer_plan_s'] * 1e6:5.0f}  "
        f"{figures['with_planning']:.2f} with planning, {figures['without_planning']:.2f} without, "
        f"{figures['launches']:.0f} launches for {figures['flashinfer_launches']:.0f}"
    )


if __name__ == "__main__":
    main()
