"""Attention of decoding rows on the CPU, beside torch's and the rate at which the same threads read memory.

    python -m benchmarks.cpu_attention [--threads 1,4] [--dtype fp16] [--isa NAME] [--small-pages] [--seconds S]
        [--built FOLDER] [-o FILE]
    python -m benchmarks.cpu_attention --build FOLDER

One layer's KV for every head size and GQA ratio, larger than the caches, in pages that the rows have in order or
scattered. Each round reads memory, attends and lets torch attend, one after the other, so that all see the same
machine; a figure is the median of the rounds, and so is a share of the rate of reading, taken in each. torch gets its
KV contiguous, and a GQA group as queries of one head, which is its fastest way. One thread is timed by its own CPU
time, which a busy machine disturbs less; several by the wall clock.

Exit code 1 if a bar is missed: KV at 90% of the rate of reading with one thread, at 85% with more. `--build` compiles
what is needed for a machine that has no compiler.
"""

import argparse
import ctypes
import mmap
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import SEED, host_machine, save
from dualpace.engine.host_pool import map_pool
from dualpace.engine.kernels import Kernels
from dualpace.engine.threads import default_threads
from dualpace.model.weights import DTYPES
from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.plan.structs import LINE
from dualpace.spec.models import Spec
from tests.engine.compiled import kernel_library

HERE = Path(__file__).parent
READER = "read_bandwidth.so"
HEAD_DIMS = (64, 128, 256)
RATIOS = (1, 2, 4, 8)
KV_HEADS = 4
PAGE = 16
ROWS = 8
# Of keys and values.
KV_BYTES = 1 << 30
DRAWN = 32 << 20
WORD = 8
BARS = {1: 0.9}
BAR = 0.85


def main() -> int:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default=f"1,{default_threads()}", metavar="N,...")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--isa", default="", help="kernels of this instruction set, not of the machine's best")
    parser.add_argument("--shapes", default="", metavar="DxG,...", help="head sizes and ratios; all if absent")
    parser.add_argument("--small-pages", action="store_true", help="KV in pages of 4 KiB")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="compile into this folder, and no more")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build made there")
    parser.add_argument("-o", type=Path, default=HERE / "results" / "cpu_attention.json", metavar="FILE")
    given = parser.parse_args()
    chosen = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",") if shape]
    shapes = chosen or [(head_dim, ratio) for head_dim in HEAD_DIMS for ratio in RATIOS]
    plans = [layer_plan(head_dim, ratio, given.dtype) for head_dim, ratio in shapes]
    if given.build:
        compile_into(given.build, plans)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = given.built or Path(name)
        if not given.built:
            compile_into(folder, plans)
        figures = []
        memory = kv_memory(DTYPES[given.dtype], given.small_pages)
        for plan in plans:
            layer = Layer(plan, memory, folder, given.isa)
            for threads in map(int, given.threads.split(",")):
                figures.append(measure(layer, threads, given.seconds))
                print(line(figures[-1]), flush=True)
    setting = {"dtype": given.dtype, "page_size": PAGE, "rows": ROWS, "small_pages": given.small_pages}
    save({"machine": host_machine("torch"), **setting, "figures": figures}, given.o)
    return 0 if all(figure["of_read"]["ours"] >= BARS.get(figure["threads"], BAR) for figure in figures) else 1


def layer_plan(head_dim: int, ratio: int, dtype: str) -> Plan:
    """A plan with one such layer, whose pages ROWS rows of the longest context fill."""
    context = KV_BYTES // (2 * KV_HEADS * head_dim * DTYPES[dtype].itemsize) // ROWS
    shape = {
        "family": "llama",
        "layers": 1,
        "hidden": 64,
        "heads": ratio * KV_HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": head_dim,
        "intermediate": 64,
        "vocab": 64,
        "context": context,
    }
    spec = {
        "name": f"d{head_dim}-g{ratio}-{dtype}",
        "model": {"shape": shape, "dtype": dtype, "max_context": context, "weights": {"random": SEED}},
        "attention": {"page_size": PAGE},
        "scheduler": {"max_batch": ROWS, "prefill_chunk": 64},
        "target": {"cpu": True, "kv_budget": f"{(KV_BYTES >> 20) + 64}MiB"},
    }
    return resolve(Spec.model_validate(spec), Path.cwd())


def compile_into(folder: Path, plans: Sequence[Plan]) -> None:
    """The kernels of every plan by its name, and what reads memory."""
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [
        "g++",
        "-O3",
        "-march=x86-64-v3",
        "-fopenmp",
        "-shared",
        "-fPIC",
        HERE / "read_bandwidth.cpp",
    ]
    subprocess.run([*command, "-o", folder / READER], check=True)
    for plan in plans:
        shutil.copyfile(kernel_library(plan, Path("build/store")), folder / f"{plan.name}.so")


class Layer:
    """A step of ROWS rows that decode over all KV in `memory`, one layer's, and the same KV for torch."""

    def __init__(self, plan: Plan, memory: torch.Tensor, folder: Path, isa: str) -> None:
        self.plan, model = plan, plan.model
        self._kernels = Kernels(folder / f"{plan.name}.so")
        if isa and not self._kernels.use_isa(isa):
            raise SystemExit(f"this machine has no {isa}")
        self.isa = self._kernels.isa
        self._reader = ctypes.CDLL(str(folder / READER))
        self._reader.read_words.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        context = plan.schedule.max_context
        pages = context // PAGE
        self._pool = memory.view(ROWS, pages, 2, model.kv_heads, PAGE, model.head_dim)
        generator = torch.Generator().manual_seed(SEED)
        self._query = torch.randn(ROWS, (model.heads + 2 * model.kv_heads) * model.head_dim, generator=generator)
        self._out = torch.empty(ROWS, model.heads, model.head_dim)
        self._workspace = aligned(self._kernels.workspace_bytes)
        self._in_order = self._step(list(range(ROWS * pages)))
        self._scattered = self._step(random.Random(SEED).sample(range(ROWS * pages), ROWS * pages))
        # [row, KV head, position, element]
        self._key, self._value = (
            self._pool[:, :, part].transpose(1, 2).reshape(ROWS, model.kv_heads, context, model.head_dim)
            for part in range(2)
        )

    def _step(self, order: list[int]) -> torch.Tensor:
        """StepBuffers of rows whose pages are these."""
        view = abi.view("StepBuffers", self.plan)
        room = aligned(ctypes.sizeof(view))
        step = view.from_address(room.data_ptr())
        step.rows = step.tokens = ROWS
        pages = len(order) // ROWS
        for row in range(ROWS):
            step.row_slot[row], step.query_begin[row + 1], step.context[row] = row, row + 1, pages * PAGE
            step.table[0][row][:pages] = order[row * pages : (row + 1) * pages]
        return room

    def use_threads(self, threads: int) -> None:
        """Of OpenMP's runtime, which may be another than torch's."""
        self._reader.omp_set_num_threads(threads)
        torch.set_num_threads(threads)

    def read(self) -> None:
        """Read the KV in the order of memory."""
        self._reader.read_words(self._pool.data_ptr(), KV_BYTES // WORD)

    def attend(self) -> None:
        """Attend to it, rows having their pages in the order of memory."""
        self._attend(self._in_order)

    def attend_scattered(self) -> None:
        """Attend to it, rows having pages from anywhere."""
        self._attend(self._scattered)

    def _attend(self, step: torch.Tensor) -> None:
        self._kernels.dp_attention(
            step.data_ptr(),
            0,
            self._query.data_ptr(),
            self._pool.data_ptr(),
            self._workspace.data_ptr(),
            self._out.data_ptr(),
        )

    def attend_by_torch(self) -> torch.Tensor:
        """torch's, with the query heads of a KV head as queries of one head."""
        model = self.plan.model
        query = self._query[:, : model.heads * model.head_dim].to(DTYPES[model.dtype])
        grouped = query.view(ROWS, model.kv_heads, model.gqa_ratio, model.head_dim)
        found = torch.nn.functional.scaled_dot_product_attention(
            grouped, self._key, self._value, scale=model.attention_scale
        )
        return found.view(ROWS, model.heads, model.head_dim)

    def difference(self) -> float:
        """The largest between our output and torch's, which is in 16 bits, relative to the largest output."""
        self.attend()
        theirs = self.attend_by_torch().float()
        return float((self._out - theirs).abs().max() / theirs.abs().max())


def aligned(size: int) -> torch.Tensor:
    """Zeroed bytes at a multiple of a cache line, where compiled code expects them."""
    room = torch.zeros(size + LINE, dtype=torch.uint8)
    return room[-room.data_ptr() % LINE :]


def kv_memory(dtype: torch.dtype, small_pages: bool) -> torch.Tensor:
    """KV_BYTES of normal numbers, repeated, as a host pool lies or in small pages."""
    if small_pages:
        mapping = mmap.mmap(-1, KV_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    else:
        mapping = map_pool(KV_BYTES)
    memory = torch.frombuffer(mapping, dtype=dtype)
    memory.view(KV_BYTES // DRAWN, -1)[:] = torch.randn(DRAWN // dtype.itemsize).to(dtype)
    return memory


def measure(layer: Layer, threads: int, seconds: float) -> dict[str, Any]:
    """One figure; rates in bytes a second."""
    layer.use_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter

    def once(work: Callable[[], object]) -> float:
        start = clock()
        work()
        return clock() - start

    works = {
        "read": layer.read,
        "ours": layer.attend,
        "scattered": layer.attend_scattered,
        "torch": layer.attend_by_torch,
    }
    rounds: list[dict[str, float]] = []
    deadline = time.perf_counter() + seconds
    while len(rounds) < 3 or time.perf_counter() < deadline:
        rounds.append({name: KV_BYTES / once(work) for name, work in works.items()})
    rates = {name: statistics.median(rates[name] for rates in rounds) for name in works}
    return {
        "head_dim": layer.plan.model.head_dim,
        "gqa_ratio": layer.plan.model.gqa_ratio,
        "isa": layer.isa,
        "threads": threads,
        "rounds": len(rounds),
        "rates": rates,
        "of_read": {
            name: statistics.median(rates[name] / rates["read"] for rates in rounds) for name in works if name != "read"
        },
        "difference": layer.difference(),
    }


def line(figure: dict[str, Any]) -> str:
    """A figure for people."""
    rates = ", ".join(
        f"{name} {rate / 1e9:.1f}" + (f" ({figure['of_read'][name]:.0%})" if name != "read" else "")
        for name, rate in figure["rates"].items()
    )
    return (
        f"d {figure['head_dim']}, group {figure['gqa_ratio']}, {figure['threads']} threads, {figure['isa']}, "
        f"GB/s: {rates}; {figure['rounds']} rounds, differs by {figure['difference']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
