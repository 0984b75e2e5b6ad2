"""CPU workers over their rings: the rate at which they attend to a host pool, and how long one item takes.

    python -m benchmarks.cpu_workers [--threads 1,4] [--dtype fp16] [--shapes DxG,...] [--seconds S] [--gpu]
        [--built FOLDER] [-o FILE]
    python -m benchmarks.cpu_workers --build FOLDER

A publisher asks for all blocks of a pool, scattered, and collects: one CTA of a GPU with `--gpu`, else a thread that
stands in for it and with as many workers as cores shares one of them. A rate is the median of the rounds; so is the
time from giving an item to its answer, when nothing else is awaited: of a split, and of the most blocks that an
item has. What the GPU collects is merged and compared with float64.
"""

import argparse
import ctypes
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu_attention import KV_BYTES, KV_HEADS, PAGE, kv_memory
from benchmarks.machine import SEED, host_machine, save
from dualpace.engine.threads import default_threads, worker_cpus
from dualpace.engine.workers import Workers
from dualpace.model.weights import DTYPES
from dualpace.plan.plan import Plan
from dualpace.plan.structs import ITEM_SPLITS
from tests.cooperate.compiled import (
    DEVICE,
    PUBLISHER,
    cooperative,
    device_publisher,
    open_publisher,
    publisher_library,
    workers_library,
)
from tests.cooperate.device import DevicePublisher

HERE = Path(__file__).parent
SHAPES = ((128, 1), (128, 4), (128, 8))
ROUNDS = 200
COMPARED = 5  # items


def main() -> int:
    """Measure, print a line for each figure, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=f"1,{default_threads()}", metavar="N,...")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--shapes", default="", metavar="DxG,...", help="head sizes and ratios")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each rate")
    parser.add_argument("--gpu", action="store_true", help="a CTA of this machine's GPU publishes and collects")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile into this folder, and no more")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build made there")
    parser.add_argument("-o", type=Path, default=HERE / "results" / "cpu_workers.json", metavar="FILE")
    given = parser.parse_args()
    chosen = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",") if shape] or SHAPES
    plans = [cooperative(given.dtype, head_dim, ratio, PAGE, KV_HEADS) for head_dim, ratio in chosen]
    if given.build:
        compile_into(given.build, plans, gpu=given.gpu)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = given.built or Path(name)
        if not given.built:
            compile_into(folder, plans, gpu=given.gpu)
        memory = kv_memory(DTYPES[given.dtype], small_pages=False)
        figures = []
        for plan in plans:
            for threads in map(int, given.threads.split(",")):
                figures.append(measure(plan, folder / plan.name, memory, threads, given.seconds, gpu=given.gpu))
                print(line(figures[-1]), flush=True)
    save({"machine": host_machine("torch"), "dtype": given.dtype, "page_size": PAGE, "figures": figures}, given.o)
    return 0


def compile_into(folder: Path, plans: list[Plan], *, gpu: bool) -> None:
    """Each plan's libraries, in a folder of its name."""
    for plan in plans:
        with tempfile.TemporaryDirectory() as name:
            publisher_library(plan, Path(name))
            (folder / plan.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(name) / PUBLISHER, folder / plan.name / PUBLISHER)
            if gpu:
                shutil.copyfile(device_publisher(plan, Path(name)), folder / plan.name / DEVICE)
        shutil.copyfile(workers_library(plan, Path("build/store")), folder / plan.name / "libworkers.so")


class HostPublisher:
    """A thread of this process. `drive` gives the first `many` of the blocks to all workers and waits for them."""

    def __init__(self, folder: Path, workers: Workers, count: int, query: torch.Tensor, blocks: torch.Tensor) -> None:
        self._library = open_publisher(folder)
        self._handle = ctypes.c_void_p(self._library.publisher_create(ctypes.c_void_p(workers.address)))
        self._operands = (count, ctypes.c_void_p(query.data_ptr()), ctypes.c_void_p(blocks.data_ptr()))

    def drive(self, many: int) -> float:
        """Seconds that it took."""
        start = time.perf_counter()
        self._library.publisher_drive(self._handle, *self._operands, many)
        return time.perf_counter() - start

    def close(self) -> None:
        """The workers may go."""
        self._library.publisher_destroy(self._handle)


def measure(
    plan: Plan, folder: Path, memory: torch.Tensor, threads: int, seconds: float, *, gpu: bool
) -> dict[str, Any]:
    """One figure: bytes a second, and seconds for an item."""
    model = plan.model
    count = KV_BYTES // plan.pages[0].block_bytes
    blocks = torch.tensor(random.Random(SEED).sample(range(count), count), dtype=torch.int32)
    query = torch.randn(model.heads, model.head_dim)
    cpus = worker_cpus(threads)
    with Workers(folder / "libworkers.so", plan, memory.data_ptr(), cpus) as workers:
        publisher = (DevicePublisher if gpu else HostPublisher)(folder, workers, len(cpus), query, blocks)
        drive = publisher.drive
        rates, deadline = [], time.perf_counter() + seconds
        while len(rates) < 3 or time.perf_counter() < deadline:
            rates.append(KV_BYTES / drive(count))
        split = plan.attention.split_tokens // PAGE
        item = ITEM_SPLITS * split
        times = {
            name: statistics.median(drive(n) for _ in range(ROUNDS)) for name, n in (("split", split), ("item", item))
        }
        found = {}
        if isinstance(publisher, DevicePublisher):
            drive(COMPARED * item)
            exact = attention(plan, memory, query, blocks[: COMPARED * item])
            found["difference"] = float((publisher.merged(COMPARED) - exact).abs().max() / exact.abs().max())
        publisher.close()
    return {
        "head_dim": model.head_dim,
        "gqa_ratio": model.gqa_ratio,
        "publisher": "GPU" if gpu else "CPU",
        "workers": len(cpus),
        "rounds": len(rates),
        "rate": statistics.median(rates),
        "item_bytes": {"split": split * plan.pages[0].block_bytes, "item": item * plan.pages[0].block_bytes},
        "seconds": times,
        **found,
    }


def attention(plan: Plan, memory: torch.Tensor, query: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """A token's attention to these blocks in float64: [head, element]."""
    model = plan.model
    pool = memory.view(-1, 2, model.kv_heads, PAGE, model.head_dim)
    # [K or V, KV head, token, element]
    key, value = pool[blocks.long()].double().permute(1, 2, 0, 3, 4).flatten(2, 3)
    grouped = query.double().view(model.kv_heads, model.gqa_ratio, model.head_dim)
    weights = (grouped @ key.transpose(1, 2) * model.attention_scale).softmax(-1)
    return (weights @ value).view(model.heads, model.head_dim)


def line(figure: dict[str, Any]) -> str:
    """A figure for people."""
    times = ", ".join(
        f"{figure['item_bytes'][name] / 2**10:.0f} KiB in {seconds * 1e6:.0f} us"
        for name, seconds in figure["seconds"].items()
    )
    return (
        f"d {figure['head_dim']}, group {figure['gqa_ratio']}, {figure['workers']} workers, "
        f"{figure['publisher']} publishes: {figure['rate'] / 1e9:.1f} GB/s; {times}"
        + (f"; differs by {figure['difference']:.1e}" if "difference" in figure else "")
    )


if __name__ == "__main__":
    sys.exit(main())
