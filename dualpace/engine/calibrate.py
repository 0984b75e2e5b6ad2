"""Measures a deployment's attention on the GPU of this machine and fits the constants that its policy decides by.

    python -m dualpace.engine.calibrate PLAN.json KERNELS.cubin

Prints a Calibration. Times are of one layer, merge included: of graphs of layers over enough KV to miss the L2 cache.
"""

import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dualpace.engine.capture import FLASHINFER_KERNEL
from dualpace.engine.device import Cubin
from dualpace.engine.route_fit import Measured, fit
from dualpace.model.weights import DTYPES
from dualpace.plan.abi import view
from dualpace.plan.attention_cost import SeenKeys, slices, split_sizes, split_work, workqueue_work
from dualpace.plan.calibration import CalibratedLayer, Calibration
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Route, StepKind

ROTATED_BYTES = 512 << 20
LAYERS = 8  # at least, in a graph
REPEATS = 15
LISTS = 8
# Most memory that the measurements' KV takes, of what the card has free.
KV_BYTES = 8 << 30
KV_SHARE = 0.5


def graph_seconds(body: Callable[[], None], repeats: int = REPEATS) -> float:
    """Median seconds of a graph replay of `body`."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    times: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


class Layer:
    """One layer of a plan on this GPU: random KV, and the kernels that attend to it.

    Only the first layer group is measured, and without its window.
    """

    def __init__(self, plan: Plan, cubin: Cubin) -> None:
        self.plan, self.cubin = plan, cubin
        model = plan.model
        self.ctas = cubin.resident_ctas("dp_attention")
        self.flashinfer_ctas = cubin.resident_ctas(FLASHINFER_KERNEL) if cubin.has(FLASHINFER_KERNEL) else 0
        self._page_elements = 2 * model.kv_heads * plan.attention.page_size * model.head_dim
        room = min(KV_BYTES, int(KV_SHARE * torch.cuda.mem_get_info()[0]))
        self.pages = room // (self._page_elements * model.element_bytes)
        self._pool = torch.empty(self.pages, self._page_elements, dtype=DTYPES[model.dtype], device="cuda").normal_()
        self._tasks = torch.empty(cubin.constant("dp_attention_tasks_bytes"), dtype=torch.uint8, device="cuda")
        partials = cubin.constant("dp_attention_max_tasks") * cubin.constant("dp_attention_slice_heads")
        self._partial = torch.empty(partials, model.head_dim, device="cuda")
        self._lse = torch.empty(partials, device="cuda")
        rows, columns = plan.schedule.max_batch, (model.heads + 2 * model.kv_heads) * model.head_dim
        self._qkv = torch.randn(rows, columns, device="cuda").to(self._pool.dtype)
        self._out = torch.empty(rows, model.heads * model.head_dim, dtype=self._pool.dtype, device="cuda")

    @property
    def routes(self) -> tuple[Route, ...]:
        """Those whose kernels are there."""
        own = (Route.WORKQUEUE, Route.SPLIT)
        return (*own, Route.FLASHINFER) if self.flashinfer_ctas else own

    def holds(self, contexts: Sequence[int]) -> bool:
        """Whether the plan and the KV take rows of these contexts."""
        schedule, size = self.plan.schedule, self.plan.attention.page_size
        fits = len(contexts) <= schedule.max_batch and max(contexts) <= schedule.max_context
        return fits and sum(-(-context // size) for context in contexts) <= self.pages

    def step(self, contexts: Sequence[int]) -> torch.Tensor:
        """StepBuffers on the device: a decode step of rows with these contexts, their pages in no order."""
        size = self.plan.attention.page_size
        step: Any = view("StepBuffers", self.plan)()
        rows = len(contexts)
        step.kind, step.rows, step.tokens = StepKind.DECODE, rows, rows
        counts = [-(-context // size) for context in contexts]
        pages = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
        table = np.ctypeslib.as_array(step.table)[0]
        for row, (count, mine) in enumerate(zip(counts, np.split(pages, np.cumsum(counts)[:-1]), strict=True)):
            table[row, :count] = mine
        for name, values in (
            ("position", np.array(contexts) - 1),
            ("context", contexts),
            ("token_row", range(rows)),
            ("row_slot", range(rows)),
            ("query_begin", range(rows + 1)),
        ):
            np.ctypeslib.as_array(getattr(step, name))[: len(values)] = values
        return torch.frombuffer(bytearray(step), dtype=torch.uint8).cuda()

    def seconds(self, step: torch.Tensor, contexts: Sequence[int], route: Route, split_tokens: int = 0) -> float:
        """A layer of `step`, that of rows with these contexts, by `route`, which Route.AUTO leaves to the device."""
        self.list_tasks(step, route, split_tokens)
        taken, pools = Route(self.work(step).route), self._pools(contexts)
        return graph_seconds(lambda: self._attend(step, contexts, taken, pools)) / len(pools)

    def list_seconds(self, step: torch.Tensor, route: Route, split_tokens: int = 0) -> float:
        """The list of tasks that all layers of `step` share."""

        def lists() -> None:
            for _ in range(LISTS):
                self.list_tasks(step, route, split_tokens)

        return graph_seconds(lists) / LISTS

    def list_tasks(self, step: torch.Tensor, route: Route, split_tokens: int = 0) -> None:
        """dp_attention_tasks of the first layer group."""
        arguments = (int(route), split_tokens, self.ctas, self.flashinfer_ctas, self._tasks)
        self.cubin.launch("dp_attention_tasks", (1,), step, *arguments)

    def work(self, step: torch.Tensor) -> Any:
        """The AttentionWork that a list of tasks left in `step`."""
        kind = view("StepBuffers", self.plan)
        place = kind.attention
        held = step[place.offset : place.offset + place.size].cpu().numpy().tobytes()
        return view("AttentionWork", self.plan).from_buffer_copy(held)

    def _attend(self, step: torch.Tensor, contexts: Sequence[int], route: Route, pools: Sequence[torch.Tensor]) -> None:
        """A layer for each of `pools`, by the list of tasks that is there."""
        flashinfer = route == Route.FLASHINFER
        name, ctas = (FLASHINFER_KERNEL, self.flashinfer_ctas) if flashinfer else ("dp_attention", self.ctas)
        rows = len(contexts)
        for pool in pools:
            operands = (self._qkv[:rows], pool, self._partial, self._lse, self._out[:rows])
            self.cubin.launch(name, (ctas,), step, 0, self._tasks, *operands)

    def _pools(self, contexts: Sequence[int]) -> list[torch.Tensor]:
        """At least LAYERS pools of pages for these rows, over more memory than the L2 cache holds if there is room."""
        used = sum(-(-context // self.plan.attention.page_size) for context in contexts)
        page_bytes = self._page_elements * self.plan.model.element_bytes
        copies = min(ROTATED_BYTES // (used * page_bytes) + 1, self.pages // used)
        pools = [self._pool[i * used : (i + 1) * used] for i in range(copies)]
        return pools * -(-LAYERS // len(pools))


def batches(longest: int, most_rows: int, seed: int) -> Iterator[list[int]]:
    """Contexts of decode steps from one short row to many long ones, alike and not."""
    draw = random.Random(seed)
    rows = [n for n in (1, 2, 4, 8, 32, 128) if n <= most_rows]
    lengths = [n for n in (512, 2048, 8192, 32768, 131072) if n <= longest]
    for n in rows:
        yield from ([length] * n for length in lengths)
        top = min(longest, 65536)
        yield [draw.randint(1, top // 16) for _ in range(n)]
        yield [draw.randint(top // 16 + 1, top // 2) for _ in range(n)]
        yield [
            draw.randint(top // 3 + 1, top) if i % 4 == 0 else draw.randint(top // 32 + 1, top // 5) for i in range(n)
        ]


class Sample(NamedTuple):
    """A step of rows with these contexts by a route, and what a layer of it took."""

    contexts: Sequence[int]
    route: Route
    split_tokens: int
    measured: Measured


def samples(layer: Layer, contexts: Iterable[Sequence[int]]) -> Iterator[Sample]:
    """Every route, and every second split size, over every one of the batches that the layer holds."""
    model, base = layer.plan.model, layer.plan.attention.split_tokens
    count, window = slices(model), model.groups[0].window
    for rows in filter(layer.holds, contexts):
        step = layer.step(rows)
        seen = [SeenKeys(max(context - window, 0) if window else 0, context) for context in rows]
        sizes = split_sizes(base, max(keys.end - keys.begin for keys in seen))[::2]
        for route in layer.routes:
            flashinfer = route == Route.FLASHINFER
            ctas = layer.flashinfer_ctas if flashinfer else layer.ctas
            for size in sizes if route == Route.SPLIT else [0]:
                queue = workqueue_work(seen, count, ctas, all_partial=flashinfer)
                work = split_work(seen, count, size, ctas) if size else queue
                seconds = layer.seconds(step, rows, route, size)
                yield Sample(rows, route, size, Measured(work, seconds))


def calibrate(plan: Plan, cubin: Cubin, seed: int = 0) -> CalibratedLayer:
    """The constants of `plan`'s layers on this GPU."""
    layer = Layer(plan, cubin)
    found = list(samples(layer, batches(plan.schedule.max_context, plan.schedule.max_batch, seed)))
    return constants(layer, found)


def constants(layer: Layer, found: Sequence[Sample]) -> CalibratedLayer:
    """What the samples of `layer` come to."""
    model = layer.plan.model
    own = [sample.measured for sample in found if sample.route != Route.FLASHINFER]
    theirs = [sample.measured for sample in found if sample.route == Route.FLASHINFER]
    return CalibratedLayer(
        head_dim=model.head_dim,
        gqa_ratio=model.gqa_ratio,
        kv_heads=model.kv_heads,
        page_size=layer.plan.attention.page_size,
        dtype=model.dtype,
        ctas=layer.ctas,
        own=fit(own),
        flashinfer_ctas=layer.flashinfer_ctas,
        flashinfer=fit(theirs) if theirs else None,
    )


def machine() -> dict[str, str]:
    """What the figures were read on."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": str(torch.cuda.get_device_properties().multi_processor_count),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure and print."""
    plan = Plan.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    layer = calibrate(plan, Cubin(Path(sys.argv[2])))
    found = Calibration(
        target=plan.target.name, read_bandwidth=plan.target.read_bandwidth, machine=machine(), layers=(layer,)
    )
    sys.stdout.write(found.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
