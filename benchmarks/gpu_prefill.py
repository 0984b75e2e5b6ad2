"""Prefill attention on the GPU: error against float64 and time, beside FlashInfer's and the floor.

    python -m benchmarks.gpu_prefill [--kernels FOLDER] [-o benchmarks/results/gpu_prefill.json]

A time is of one layer: of a graph of layers over pools of KV that take turns. Ours, with wgmma and with mma, and
FlashInfer's kernel for Hopper take turns too, in one process; the best of the turns counts. Lists of tasks serve all
layers of a step and are timed apart: ours are made on the GPU, FlashInfer's on the host. The floor is the products that
causal attention needs, at the rate of large matrix products on the target.
"""

import argparse
import ctypes
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import gpu_machine, save
from benchmarks.prefill_kernels import KERNELS, compile_all, layer_plan
from dualpace.build.store import Store
from dualpace.engine.calibrate import graph_seconds
from dualpace.engine.device import Cubin
from dualpace.plan.targets import GPUS
from tests.gpu.batch import Batch, Row
from tests.gpu.kernels import Kernels
from tests.gpu.prefill import Prefill

FLOPS = GPUS["h200"].flops
CHUNK = 2048
# The first 32k tokens of a row in chunks, as an engine runs them; then steps of one kind each.
PROMPT = tuple(f"32k row, chunk {i + 1}" for i in range(16))
STEPS: dict[str, list[Row]] = {
    "32 rows of 1,024 at once": [Row(1024, 1024)] * 32,
    "2 rows of 1,024": [Row(1024, 1024)] * 2,
    "8 x 256 behind 3,840": [Row(4096, 256)] * 8,
    "2,048 behind 129,024": [Row(131_072, CHUNK)],
    "64 behind 131,008": [Row(131_072, 64)],
    "540 behind 15,844": [Row(16_384, 540)],
} | {name: [Row((i + 1) * CHUNK, CHUNK)] for i, name in enumerate(PROMPT)}
ROTATED_BYTES = 128 << 20
LAYERS = 4  # at least, in a graph
TURNS = 2
REPEATS = 9


class FlashInfer:
    """FlashInfer's paged prefill of the chunks of `batch`, planned by its own host code."""

    def __init__(self, library: Path, batch: Batch) -> None:
        self._library, self._qkv = ctypes.CDLL(str(library)), batch.qkv
        size = batch.plan.attention.page_size
        counts = [-(-row.context // size) for row in batch.rows]
        tables = zip(batch.row_slots, counts, strict=True)
        self._pages = torch.tensor(
            np.concatenate([batch.tables[0][slot, :count] for slot, count in tables]), dtype=torch.int32, device="cuda"
        )
        self._begins = np.cumsum([0, *(row.queries for row in batch.rows)], dtype=np.int32)
        self._page_begins = np.cumsum([0, *counts], dtype=np.int32)
        self._contexts = np.array([row.context for row in batch.rows], np.int32)
        self._scale = batch.plan.model.attention_scale
        self._tokens = batch.tokens

    def plan(self) -> float:
        """Plan, as is needed in every step; the seconds that it took."""
        arrays = (self._begins, self._page_begins, self._contexts)
        begin = time.perf_counter()
        status = self._library.plan(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), len(self._contexts), _stream())
        seconds = time.perf_counter() - begin
        assert status == 0, status
        torch.cuda.synchronize()
        return seconds

    def run(self, pool: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of one layer."""
        stride, tokens = ctypes.c_int64(self._qkv.stride(0)), ctypes.c_int64(self._tokens)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self._qkv, pool, self._pages, out)]
        qkv, *rest = pointers
        status = self._library.run(qkv, stride, tokens, *rest, ctypes.c_float(self._scale), _stream())
        assert status == 0, status


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Case:
    """A step, what its attention must come to, and copies of its KV to take turns with."""

    def __init__(self, cubin: Cubin, rows: list[Row]) -> None:
        layout = layer_plan(KERNELS[0])
        used = sum(-(-row.context // layout.attention.page_size) for row in rows)
        pages = layout.pages[0].model_copy(update={"pages": used})
        self.batch = Batch(layout.model_copy(update={"pages": (pages,)}), rows)
        Kernels(cubin, self.batch).append(0)
        self.reference = self.batch.attention(0)
        self.chunks = [t for t, row in enumerate(self.batch.token_rows) if rows[row].queries > 1]
        pool = self.batch.pools[0]
        copies = [pool.clone() for _ in range(min(ROTATED_BYTES // pool.nbytes, LAYERS - 1))]
        self.pools = [pool, *copies] * -(-LAYERS // (1 + len(copies)))
        model = layout.model
        keys = sum(sum(range(row.context - row.queries + 1, row.context + 1)) for row in rows if row.queries > 1)
        self.flops = 4 * model.heads * model.head_dim * keys

    def measure(self, cubins: dict[str, Cubin], library: Path) -> dict[str, Any]:
        """Errors and seconds of every kernel, a layer."""
        out, ways, errors, lists = self.batch.poisoned(), {}, {}, {}
        for name, cubin in cubins.items():
            prefill = Prefill(cubin, self.batch, shares=cubin.resident_ctas("dp_prefill"))
            tasks, partials = prefill.lists(), prefill.partials()
            ways[name] = lambda pool, p=prefill, t=tasks, r=partials: p.attention(0, pool, t, r, out)
            (lists[name],) = graph_seconds([lambda p=prefill, t=tasks: p.list_tasks(t)], REPEATS)
        flashinfer = FlashInfer(library, self.batch)
        plans = [flashinfer.plan() for _ in range(5)]
        ways["flashinfer"] = lambda pool: flashinfer.run(pool, out)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURNS):
            layers = graph_seconds([lambda w=way: [w(p) for p in self.pools] for way in ways.values()], REPEATS)
            for name, found in zip(ways, layers, strict=True):
                seconds[name].append(found / len(self.pools))
        for name, way in ways.items():
            way(self.batch.pools[0])
            reference = self.reference[self.chunks]
            error = (out[self.chunks].double() - reference).norm(dim=-1) / reference.norm(dim=-1)
            errors[name] = error.max().item()
        return {
            "flops": self.flops,
            "floor_s": self.flops / FLOPS,
            "seconds": {name: min(times) for name, times in seconds.items()},
            "list_s": lists,
            "flashinfer_plan_s": statistics.median(plans),
            "worst_relative_error": errors,
        }


def line(step: str, figures: dict[str, Any]) -> str:
    """A line of the table."""
    times = "  ".join(
        f"{name} {seconds * 1e6:8.1f} us {figures['flops'] / seconds / 1e12:4.0f} TFLOP/s {error:.1e}"
        for (name, seconds), error in zip(
            figures["seconds"].items(), figures["worst_relative_error"].values(), strict=True
        )
    )
    lists = f"list {figures['list_s'][KERNELS[0]] * 1e6:4.1f} us, plan {figures['flashinfer_plan_s'] * 1e6:4.0f} us"
    return f"{step:34} floor {figures['floor_s'] * 1e6:7.1f} us  {times}  {lists}"


def main() -> None:
    """Measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_prefill.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, help="what benchmarks.prefill_kernels compiled; else it is compiled")
    arguments = parser.parse_args()
    if arguments.kernels:
        files = {path.name: path for path in arguments.kernels.iterdir()}
    else:
        files = compile_all(Store(arguments.store))
    cubins = {name: Cubin(files[f"{name}-engine.cubin"], files[f"{name}-prefill.cubin"]) for name in KERNELS}
    results = []
    for step, rows in STEPS.items():
        figures = Case(cubins[KERNELS[0]], rows).measure(cubins, files["flashinfer.so"])
        results.append({"step": step, **figures})
        print(line(step, figures), flush=True)
    report = {"machine": gpu_machine(), "flops_per_s": FLOPS, "results": results}
    save(report, arguments.output)


if __name__ == "__main__":
    main()
