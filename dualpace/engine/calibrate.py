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
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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


def graph_seconds(bodies: Sequence[Callable[[], None]], repeats: int = REPEATS) -> list[float]:
    """Median seconds of a graph replay of each body; they take turns."""
    graphs = []
    for body in bodies:
        body()
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            body()
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(repeats):
        for graph, seconds in zip(graphs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
    return [statistics.median(seconds[3:]) for seconds in times]


class Layer:
    """One layer of a plan's first layer group on this GPU: random KV, and the kernels of `cubin` that attend to it."""

    def __init__(self, plan: Plan, cubin: Cubin) -> None:
        self.plan, self._cubin, self._lists = plan, cubin, cubin
        model = plan.model
        self.ctas = cubin.resident_ctas("dp_attention")
        self.flashinfer_ctas = cubin.resident_ctas(FLASHINFER_KERNEL) if cubin.has(FLASHINFER_KERNEL) else 0
        self._page_elements = 2 * model.kv_heads * plan.attention.page_size * model.head_dim
        room = min(KV_BYTES, int(KV_SHARE * torch.cuda.mem_get_info()[0]))
        self.capacity = room // (self._page_elements * model.element_bytes)
        self._pool = torch.empty(self.capacity, self._page_elements, dtype=DTYPES[model.dtype], device="cuda").normal_()
        self._tasks = torch.empty(cubin.constant("dp_attention_tasks_bytes"), dtype=torch.uint8, device="cuda")
        partials = cubin.constant("dp_attention_max_tasks") * cubin.constant("dp_attention_slice_heads")
        self._partial = torch.empty(partials, model.head_dim, device="cuda")
        self._lse = torch.empty(partials, device="cuda")
        rows, columns = plan.schedule.max_batch, (model.heads + 2 * model.kv_heads) * model.head_dim
        self.qkv = torch.randn(rows, columns, device="cuda").to(self._pool.dtype)
        self.out = torch.empty(rows, model.heads * model.head_dim, dtype=self._pool.dtype, device="cuda")

    def with_lists(self, lists: Cubin) -> "Layer":
        """The same layer with its lists of tasks from `lists`."""
        other = copy(self)
        other._lists = lists
        return other

    @property
    def routes(self) -> tuple[Route, ...]:
        """Those whose kernels are there."""
        own = (Route.WORKQUEUE, Route.SPLIT)
        return (*own, Route.FLASHINFER) if self.flashinfer_ctas else own

    def holds(self, contexts: Sequence[int]) -> bool:
        """Whether the plan and the KV take rows of these contexts."""
        schedule, size = self.plan.schedule, self.plan.attention.page_size
        fits = len(contexts) <= schedule.max_batch and max(contexts) <= schedule.max_context
        return fits and sum(-(-context // size) for context in contexts) <= self.capacity

    def pages_of(self, contexts: Sequence[int]) -> list[npt.NDArray[np.int32]]:
        """The pages of each of these rows, in no order."""
        counts = [-(-context // self.plan.attention.page_size) for context in contexts]
        pages = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
        return np.split(pages, np.cumsum(counts)[:-1])

    def step(self, contexts: Sequence[int]) -> torch.Tensor:
        """StepBuffers on the device: a decode step of rows with these contexts."""
        step: Any = view("StepBuffers", self.plan)()
        rows = len(contexts)
        step.kind, step.rows, step.tokens = StepKind.DECODE, rows, rows
        table = np.ctypeslib.as_array(step.table)[0]
        for row, pages in enumerate(self.pages_of(contexts)):
            table[row, : len(pages)] = pages
        for name, values in (
            ("position", np.array(contexts) - 1),
            ("context", contexts),
            ("token_row", range(rows)),
            ("row_slot", range(rows)),
            ("query_begin", range(rows + 1)),
        ):
            np.ctypeslib.as_array(getattr(step, name))[: len(values)] = values
        return torch.frombuffer(bytearray(step), dtype=torch.uint8).cuda()

    def pools(self, contexts: Sequence[int]) -> list[torch.Tensor]:
        """At least LAYERS pools of pages for these rows, over more memory than the L2 cache holds if there is room."""
        used = sum(-(-context // self.plan.attention.page_size) for context in contexts)
        page_bytes = self._page_elements * self.plan.model.element_bytes
        copies = min(ROTATED_BYTES // (used * page_bytes) + 1, self.capacity // used)
        pools = [self._pool[i * used : (i + 1) * used] for i in range(copies)]
        return pools * -(-LAYERS // len(pools))

    def list_tasks(self, step: torch.Tensor, route: Route, split_tokens: int = 0) -> None:
        """Launch dp_attention_tasks for `step`; Route.AUTO leaves the choice to the device."""
        arguments = (int(route), split_tokens, self.ctas, self.flashinfer_ctas, self._tasks)
        self._lists.launch("dp_attention_tasks", (1,), step, *arguments)

    def work(self, step: torch.Tensor) -> Any:
        """The AttentionWork that a list of tasks left in `step`."""
        place = view("StepBuffers", self.plan).attention
        held = step[place.offset : place.offset + place.size].cpu().numpy().tobytes()
        return view("AttentionWork", self.plan).from_buffer_copy(held)

    def attend(self, step: torch.Tensor, rows: int, route: Route, pools: Sequence[torch.Tensor]) -> None:
        """Launch a layer over each of `pools`, by the list of tasks that is there, which is for `route`."""
        flashinfer = route == Route.FLASHINFER
        name, ctas = (FLASHINFER_KERNEL, self.flashinfer_ctas) if flashinfer else ("dp_attention", self.ctas)
        for layer, pool in enumerate(pools):
            operands = (self.qkv[:rows], pool, self._partial, self._lse, self.out[:rows])
            self._cubin.launch(name, (ctas,), step, 0, self._tasks, *operands, overlap=layer > 0)

    def seconds(self, step: torch.Tensor, contexts: Sequence[int], route: Route, split_tokens: int = 0) -> float:
        """A layer of `step`, that of rows with these contexts, by `route`."""
        self.list_tasks(step, route, split_tokens)
        taken, pools = Route(self.work(step).route), self.pools(contexts)
        (layers,) = graph_seconds([lambda: self.attend(step, len(contexts), taken, pools)])
        return layers / len(pools)

    def list_seconds(self, step: torch.Tensor, route: Route, split_tokens: int = 0) -> float:
        """The list of tasks that all layers of `step` share."""

        def lists() -> None:
            for _ in range(LISTS):
                self.list_tasks(step, route, split_tokens)

        return graph_seconds([lists])[0] / LISTS


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
            ctas = layer.flashinfer_ctas if route == Route.FLASHINFER else layer.ctas
            for size in sizes if route == Route.SPLIT else [0]:
                work = split_work(seen, count, size, ctas) if size else workqueue_work(seen, count, ctas)
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
        flashinfer_gain=gain(found),
    )


def gain(found: Sequence[Sample]) -> float:
    """The share of a batch's time, on average, by which FlashInfer's kernel is the fastest route."""
    batches: dict[tuple[int, ...], list[Sample]] = {}
    for sample in found:
        batches.setdefault(tuple(sample.contexts), []).append(sample)
    gains = []
    for batch in batches.values():
        own = min(sample.measured.seconds for sample in batch if sample.route != Route.FLASHINFER)
        gains.append(1 - min(own, *(sample.measured.seconds for sample in batch)) / own)
    return statistics.mean(gains)


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
    if not torch.cuda.is_available():
        sys.exit("torch finds no NVIDIA GPU: calibrate on a machine that has the target's, with torch for CUDA")
    plan = Plan.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    layer = calibrate(plan, Cubin(Path(sys.argv[2])))
    found = Calibration(
        target=plan.target.name, read_bandwidth=plan.target.read_bandwidth, machine=machine(), layers=(layer,)
    )
    sys.stdout.write(found.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
