"""CPU workers over their rings: the rate at which they attend to a host pool, and how long one item takes.

    python -m benchmarks.cpu_workers [--threads 1,4] [--dtype fp16] [--shapes DxG,...] [--seconds S]
        [--built FOLDER] [-o FILE]
    python -m benchmarks.cpu_workers --build FOLDER

A publisher on this machine's CPU stands in for the device's: it asks for all blocks of a pool, scattered, and collects.
With as many workers as cores it shares one of them. A rate is the median of the rounds; so is the time from giving an
item to its answer, when nothing else is awaited: of a split of a row, and of the most blocks that an item has.
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
from tests.cooperate.compiled import PUBLISHER, cooperative, open_publisher, publisher_library, workers_library

HERE = Path(__file__).parent
SHAPES = ((128, 1), (128, 4), (128, 8))
ROUNDS = 200


def main() -> int:
    """Measure, print a line for each figure, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=f"1,{default_threads()}", metavar="N,...")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--shapes", default="", metavar="DxG,...", help="head sizes and ratios")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each rate")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile into this folder, and no more")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build made there")
    parser.add_argument("-o", type=Path, default=HERE / "results" / "cpu_workers.json", metavar="FILE")
    given = parser.parse_args()
    chosen = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",") if shape] or SHAPES
    plans = [cooperative(given.dtype, head_dim, ratio, PAGE, KV_HEADS) for head_dim, ratio in chosen]
    if given.build:
        compile_into(given.build, plans)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = given.built or Path(name)
        if not given.built:
            compile_into(folder, plans)
        memory = kv_memory(DTYPES[given.dtype], small_pages=False)
        figures = []
        for plan in plans:
            for threads in map(int, given.threads.split(",")):
                figures.append(measure(plan, folder / plan.name, memory, threads, given.seconds))
                print(line(figures[-1]), flush=True)
    save({"machine": host_machine("torch"), "dtype": given.dtype, "page_size": PAGE, "figures": figures}, given.o)
    return 0


def compile_into(folder: Path, plans: list[Plan]) -> None:
    """Each plan's libraries, in a folder of its name."""
    for plan in plans:
        with tempfile.TemporaryDirectory() as name:
            publisher_library(plan, Path(name))
            (folder / plan.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(name) / PUBLISHER, folder / plan.name / PUBLISHER)
        shutil.copyfile(workers_library(plan, Path("build/store")), folder / plan.name / "libworkers.so")


def measure(plan: Plan, folder: Path, memory: torch.Tensor, threads: int, seconds: float) -> dict[str, Any]:
    """One figure: bytes a second, and seconds for an item."""
    model, publisher = plan.model, open_publisher(folder)
    count = KV_BYTES // plan.pages[0].block_bytes
    blocks = (ctypes.c_int32 * count)(*random.Random(SEED).sample(range(count), count))
    query = torch.randn(model.heads, model.head_dim)
    cpus = worker_cpus(threads)
    with Workers(folder / "libworkers.so", plan, memory.data_ptr(), cpus) as workers:
        handle = ctypes.c_void_p(publisher.publisher_create(ctypes.c_void_p(workers.address)))

        def drive(many: int) -> float:
            start = time.perf_counter()
            publisher.publisher_drive(handle, len(cpus), ctypes.c_void_p(query.data_ptr()), blocks, many)
            return time.perf_counter() - start

        rates, deadline = [], time.perf_counter() + seconds
        while len(rates) < 3 or time.perf_counter() < deadline:
            rates.append(KV_BYTES / drive(count))
        item = int(publisher.publisher_item_blocks())
        split = plan.attention.split_tokens // PAGE
        times = {
            name: statistics.median(drive(n) for _ in range(ROUNDS)) for name, n in (("split", split), ("item", item))
        }
        publisher.publisher_destroy(handle)
    return {
        "head_dim": model.head_dim,
        "gqa_ratio": model.gqa_ratio,
        "workers": len(cpus),
        "rounds": len(rates),
        "rate": statistics.median(rates),
        "item_bytes": {"split": split * plan.pages[0].block_bytes, "item": item * plan.pages[0].block_bytes},
        "seconds": times,
    }


def line(figure: dict[str, Any]) -> str:
    """A figure for people."""
    times = ", ".join(
        f"{figure['item_bytes'][name] / 2**10:.0f} KiB in {seconds * 1e6:.0f} us"
        for name, seconds in figure["seconds"].items()
    )
    return (
        f"d {figure['head_dim']}, group {figure['gqa_ratio']}, {figure['workers']} workers: "
        f"{figure['rate'] / 1e9:.1f} GB/s; {times}"
    )


if __name__ == "__main__":
    sys.exit(main())
