"""Copies of blocks between the host's memory and the GPU's: their rate alone and beside decode, and decode beside them.

    python -m benchmarks.gpu_transfer [--kernels FOLDER] [-o benchmarks/results/gpu_transfer.json]

Lists of blocks in no order, as a layer's recalls are, are copied by one launch for all of them, or by one for each.
Beside that run layers of Llama-3.1-8B at `ROWS` rows of `CONTEXT` tokens, our products and attention, in graphs one
after the other. Those that the copies cover are compared with the same without copies; the copies are covered by them,
but for the first ones. The copy engine is timed for comparison, with one copy for all.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_linear import OF_A_LAYER, Step, weight
from benchmarks.machine import gpu_machine, save
from benchmarks.transfer_kernels import LAYER, LAYERS, SLOTS, SLOW_ROWS, UNITS, compile_all
from dualpace.build.store import Store
from dualpace.engine.calibrate import Layer
from dualpace.engine.device import Cubin
from dualpace.plan.structs import Route
from tests.gpu.transfer import HEAD, Queue

ROWS, CONTEXT = 8, 8192
WEIGHTS, GRAPH_LAYERS = 8, 16  # distinct, and in a graph
HOST_BYTES, POOL_BYTES, COPIED_BYTES = 4 << 30, 1 << 30, 128 << 20
SECONDS = 0.05  # of copies beside decode
BLOCK, PIECE = UNITS.values()


class Case(NamedTuple):
    """Copies of units of `unit` bytes by a way, on so many CTAs, in lists of `list_bytes`.

    `together`: one launch for all lists. `leaving`: from the card to the host.
    """

    copy: str
    ctas: int = 0
    unit: int = BLOCK
    list_bytes: int = 8 << 20
    together: bool = True
    leaving: bool = False


def cases() -> Iterator[Case]:
    """What is measured."""
    yield Case("copy engine")
    for unit in (BLOCK, PIECE):
        yield from (Case("BulkCopy", ctas, unit) for ctas in (1, 2, 3, 4))
        yield from (Case("VectorCopy", ctas, unit) for ctas in (4, 8, 16))
    yield Case("BulkCopy", 2, list_bytes=2 << 20)
    yield from (Case("BulkCopy", 2, list_bytes=size, together=False) for size in (2 << 20, 8 << 20))
    yield Case("copy engine", leaving=True)
    yield from (Case("BulkCopy", ctas, leaving=True) for ctas in (1, 2))
    yield Case("VectorCopy", 1, leaving=True)


def graph_of(body: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`body` on the current stream, captured after one run."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def event() -> torch.cuda.Event:
    """An event that keeps time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Decode:
    """Layers of a decode step as a graph, and what a replay takes alone."""

    def __init__(self, products: Cubin, attention: Cubin) -> None:
        step, layer, contexts = Step(products, ROWS), Layer(LAYER, attention), [CONTEXT] * ROWS
        weights = [{name: weight(name) for name in OF_A_LAYER} for _ in range(WEIGHTS)]
        rows, pools = layer.step(contexts), layer.pools(contexts)
        layer.list_tasks(rows, Route.WORKQUEUE)

        def body() -> None:
            for i in range(GRAPH_LAYERS):
                step.own_layer(weights[i % WEIGHTS])
                layer.attend(rows, ROWS, Route.WORKQUEUE, [pools[i % len(pools)]])

        self._graph, self._stream = graph_of(body), torch.cuda.Stream(priority=-1)
        self._held = (step, layer, weights, rows, pools)
        events = self.replays(40)
        torch.cuda.synchronize()
        self.seconds = statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairwise(events[3:]))

    def replays(self, count: int) -> list[torch.cuda.Event]:
        """Begin `count` replays; events before the first and after each."""
        events = [event() for _ in range(count + 1)]
        with torch.cuda.stream(self._stream):
            events[0].record()
            for after in events[1:]:
                self._graph.replay()
                after.record()
        return events


class Memory:
    """Host memory and a pool on the GPU."""

    def __init__(self) -> None:
        self.host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        self.host.view(torch.int64).copy_(torch.arange(HOST_BYTES // 8))
        self.pool = torch.empty(POOL_BYTES, dtype=torch.uint8, device="cuda").random_()
        self._in_graphs: list[object] = []

    def copies(self, case: Case, files: dict[str, Path]) -> torch.cuda.CUDAGraph:
        """COPIED_BYTES by `case`, which are compared once."""
        source, target = (self.pool, self.host) if case.leaving else (self.host, self.pool)
        if case.copy == "copy engine":
            return graph_of(lambda: target[:COPIED_BYTES].copy_(source[:COPIED_BYTES], non_blocking=True))
        torch.manual_seed(0)
        count = COPIED_BYTES // case.unit
        pairs = torch.stack([torch.randperm(len(place) // case.unit)[:count] for place in (source, target)], -1)
        lists = pairs.reshape(-1, case.list_bytes // case.unit, 2)
        cubin, queue = Cubin(files[f"{case.copy}-{case.unit}.cubin"]), Queue(2 * LAYERS, SLOW_ROWS * SLOTS)
        for each in lists:
            queue.write(each)
        ends = [len(lists)] if case.together else range(1, len(lists) + 1)
        heads = [torch.tensor([end, end, begin], dtype=torch.int32).cuda() for begin, end in pairwise([0, *ends])]

        def body() -> None:
            for head in heads:
                queue.words[:HEAD].copy_(head)
                cubin.launch("dp_transfer", (case.ctas,), queue.words, source, target)

        graph = graph_of(body)
        self._in_graphs.append((queue, heads))
        some = pairs[:: count // 64]
        (read, written) = (place.view(-1, case.unit) for place in (source, target))
        written[some[:, 1].to(target.device)] = 0
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(read[some[:, 0].to(source.device)].cpu(), written[some[:, 1].to(target.device)].cpu())
        return graph


def measure(decode: Decode, copies: torch.cuda.CUDAGraph) -> dict[str, float]:
    """Rates of copies in bytes a second, and decode's time beside them over that alone."""
    stream = torch.cuda.Stream()

    def copy(times: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = event(), event()
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(times):
                copies.replay()
            end.record()
        return begin, end

    begin, end = copy(4)
    torch.cuda.synchronize()
    alone = begin.elapsed_time(end) / 4e3
    times = max(2, round(SECONDS / alone))
    decode.replays(1)
    begin, end = copy(times)
    steps = decode.replays(int(2.5 * times * alone / decode.seconds) + 4)
    torch.cuda.synchronize()
    copying = begin.elapsed_time(end) / 1e3
    moments = [begin.elapsed_time(step) / 1e3 for step in steps]
    assert moments[-1] > copying
    return {
        "alone_bytes_per_s": COPIED_BYTES / alone,
        "beside_bytes_per_s": times * COPIED_BYTES / copying,
        "decode_ratio": statistics.mean(b - a for a, b in pairwise(moments) if a > 0 and b < copying) / decode.seconds,
    }


def line(figures: dict[str, Any]) -> str:
    """A line of the table."""
    launch = "one launch" if figures["together"] else "a launch each"
    return (
        f"{figures['copy']:11} {figures['ctas']:2} CTAs  {'leaving' if figures['leaving'] else 'arriving':8} "
        f"{figures['unit'] >> 10:2} KiB, lists of {figures['list_bytes'] >> 20} MiB, {launch:13}  "
        f"alone {figures['alone_bytes_per_s'] / 1e9:4.1f} GB/s  beside decode "
        f"{figures['beside_bytes_per_s'] / 1e9:4.1f}, decode x {figures['decode_ratio']:.3f}"
    )


def main() -> None:
    """Measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_transfer.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, help="what benchmarks.transfer_kernels compiled; else it is compiled")
    arguments = parser.parse_args()
    if arguments.kernels:
        files = {path.name: path for path in arguments.kernels.iterdir()}
    else:
        files = compile_all(Store(arguments.store))
    memory, decode = Memory(), Decode(Cubin(files["products.cubin"]), Cubin(files["attention.cubin"]))
    results: list[dict[str, Any]] = []
    report = {
        "machine": gpu_machine(),
        "decode": {"rows": ROWS, "context": CONTEXT, "layers": GRAPH_LAYERS, "seconds": decode.seconds},
        "results": results,
    }
    for case in cases():
        results.append({**case._asdict(), **measure(decode, memory.copies(case, files))})
        print(line(results[-1]), flush=True)
        save(report, arguments.output)


if __name__ == "__main__":
    main()
