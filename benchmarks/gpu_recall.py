"""A layer of rows with KV in host memory: its kernels beside their floors, and decode by a chain of layers.

    python -m benchmarks.gpu_recall [--kernels FOLDER] [-o benchmarks/results/gpu_recall.json]

The deployment is benchmarks/specs/llama-8b-recall.yaml's: Llama-3.1-8B, 8 GiB for KV on the card, rows that attend to
256 blocks of a layer and have 320 slots for them. Kernels are timed in graphs over summaries that do not fit the L2
cache; the floor is the bytes of summaries over the read bandwidth of the target.

Decode is a graph of all layers, with our products: score, choose, recall, wait, attend, layer by layer, beside one
launch that copies; of all rows together, or of two batches of them side by side, so that one computes while the other
waits for its blocks. What tokens choose is random, or replayed: what successive tokens of a text chose in a model
(benchmarks/traces/blocks.json), of four places of the text side by side, so that there are as many blocks. Scores are
computed all the same, and not used. Host pages are shared by the rows, which takes less memory and no less copying.

The baseline is the same layers, but that the heads of each KV head choose for themselves: eight times the scores, and a
copy by the driver for each piece of 8 KiB, as many bytes as ours; before each layer the host waits for its list. Dense
is the row that fits the same memory.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.block_trace import chosen
from benchmarks.gpu_attention import READ_BANDWIDTH, ROTATED_BYTES
from benchmarks.gpu_linear import OF_A_LAYER, Step, weight
from benchmarks.gpu_transfer import event, graph_of
from benchmarks.linear_kernels import ROWS as BUCKETS
from benchmarks.machine import gpu_machine, save
from benchmarks.pages import ROOT
from benchmarks.recall_kernels import BLOCKS, LAYERS, RECENT, ROWS, SINKS, SLOTS, compile_all, recalling
from dualpace.build.store import Store
from dualpace.engine.calibrate import graph_seconds
from dualpace.engine.device import Cubin
from dualpace.plan.structs import Route, StepKind
from tests.gpu.batch import step_buffers
from tests.gpu.recall import LAUNCHED, Twin
from tests.gpu.transfer import ENDED, HEAD, PUBLISHED, UNTIL

PLAN = recalling()
MODEL, SIZE = PLAN.model, PLAN.attention.page_size
BLOCK = PLAN.pages[0].block_bytes
HEADWISE_PIECE = 8 << 10
HOST_PAGES = PLAN.offload.host_pages
SUMMARY = 2 * MODEL.head_dim * MODEL.element_bytes
CONTEXTS, ROW_COUNTS = (32_768, 65_536, 131_072), (1, 4, ROWS)
CHAIN_CONTEXT = 32_768
HOST_BYTES = CHAIN_CONTEXT // SIZE * LAYERS * BLOCK
WEIGHTS = 8  # distinct layers of them
SIDES = 4  # of the text, that make one row
STEPS = 64
TRACE = ROOT / "benchmarks/traces/blocks.json"
COPYING_CTAS = 2


class Rows:
    """Slow rows of so many tokens each on the device, whose pages have all left, and a step of them."""

    def __init__(
        self, cubin: Cubin, twin: Path, contexts: list[int], host_pages: int, first: int = 0, seed: int = 0
    ) -> None:
        """`first` of the deployment's rows is their first, whose slots differ; `seed`: of host pages."""
        self.cubin, self.rows = cubin, len(contexts)
        draw, rows = np.random.default_rng(seed), Twin(twin, PLAN)
        slots = np.random.default_rng(0).permutation(PLAN.pages[0].pages).astype(np.int32).reshape(ROWS, SLOTS)
        for row, context in enumerate(contexts):
            rows.start(row, slots[first + row])
            pages = -(-context // SIZE)
            host = draw.permutation(host_pages).astype(np.int32)
            rows.assume(row, np.resize(np.roll(host, (first + row) * pages), pages))
        self.slow_rows = torch.from_numpy(rows.bytes.flatten()).cuda()
        self.candidates = max(rows.candidates(row) for row in range(self.rows))
        self.step = step_buffers(
            PLAN,
            step=0,
            kind=StepKind.DECODE,
            rows=self.rows,
            tokens=self.rows,
            row_slot=range(self.rows),
            query_begin=range(self.rows + 1),
            context=contexts,
        )
        self.queue = rows.queue()
        self.making = torch.zeros(cubin.constant("dp_making_bytes"), dtype=torch.uint8, device="cuda")
        self.view = step_buffers(PLAN)

    def choose(self, layer: int, scores: torch.Tensor) -> None:
        """dp_choose; scores are the layer's."""
        operands = (self.step, self.view, layer, self.slow_rows, scores, self.queue.words, self.making)
        self.cubin.launch("dp_choose", (self.rows,), *operands, overlap=True)


class Summaries:
    """Summaries of all layers, the heads that choose, and dp_score and dp_summarise over them."""

    def __init__(self, cubin: Cubin) -> None:
        self.cubin, self.ctas = cubin, cubin.resident_ctas("dp_score")
        self.summaries = torch.empty(LAYERS, HOST_PAGES, 2, MODEL.head_dim, dtype=torch.bfloat16, device="cuda")
        self.summaries.normal_()
        self.retrieval = torch.tensor([[0, MODEL.gqa_ratio]] * LAYERS, dtype=torch.int32, device="cuda")
        self.done = torch.zeros(cubin.constant("dp_summarised_bytes"), dtype=torch.uint8, device="cuda")

    def score(self, rows: Rows, layer: int, qkv: torch.Tensor, scores: torch.Tensor) -> None:
        """dp_score."""
        operands = (rows.slow_rows, self.retrieval, qkv, self.summaries, scores)
        self.cubin.launch("dp_score", (self.ctas,), rows.step, layer, *operands, overlap=True)

    def summarise(self, rows: Rows, pools: torch.Tensor) -> None:
        """dp_summarise."""
        operands = (self.done, self.retrieval, pools, self.summaries)
        self.cubin.launch("dp_summarise", (self.ctas,), rows.queue.words, *operands, overlap=True)


def per_launch(body: Callable[[], int]) -> float:
    """Seconds of one of the launches of `body`, which returns how many these are."""
    counts: list[int] = []
    (seconds,) = graph_seconds([lambda: counts.append(body())])
    return seconds / counts[-1]


def measure_kernels(cubin: Cubin, twin: Path, pools: torch.Tensor) -> Iterator[dict[str, Any]]:
    """What a layer's kernels take, by context and rows."""
    summaries = Summaries(cubin)
    qkv = torch.randn(ROWS, (MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim, device="cuda").bfloat16()
    random = torch.randint(-(2**31), 2**31, (2, ROWS, HOST_PAGES // ROWS), dtype=torch.int32, device="cuda")
    scratch = torch.empty_like(random[0])
    for context in CONTEXTS:
        for count in ROW_COUNTS:
            read = count * context // SIZE * SUMMARY
            variants = [
                Rows(cubin, twin, [context] * count, HOST_PAGES, seed=seed)
                for seed in range(min(max(1, ROTATED_BYTES // (LAYERS * read)), 8))
            ]
            rows = variants[0]

            def score(variants: list[Rows] = variants) -> int:
                for each in variants:
                    for layer in range(LAYERS):
                        summaries.score(each, layer, qkv, scratch)
                return len(variants) * LAYERS

            def choose(scores: torch.Tensor, rows: Rows = rows) -> int:
                for layer in range(LAYERS):
                    for some in scores:
                        rows.choose(layer, some)
                    rows.queue.words[ENDED : ENDED + 1].copy_(rows.queue.words[PUBLISHED : PUBLISHED + 1])
                return LAYERS * len(scores)

            same = random[:1].expand(2, -1, -1)
            yield {
                "context": context,
                "rows": count,
                "summary_bytes": read,
                "score_seconds": per_launch(score),
                "score_floor_seconds": read / READ_BANDWIDTH,
                "choose_found_seconds": per_launch(lambda choose=choose, same=same: choose(same)),
                "choose_random_seconds": per_launch(lambda choose=choose: choose(random)),
            }
    yield from measure_summarise(summaries, twin, cubin, pools)


def measure_summarise(summaries: Summaries, twin: Path, cubin: Cubin, pools: torch.Tensor) -> Iterator[dict[str, Any]]:
    """What summaries take of a page of each row in all layers, and of a prompt's chunk of 120 pages."""
    for pages in (ROWS, 120):
        rows, draw = Rows(cubin, twin, [CHAIN_CONTEXT] * ROWS, HOST_PAGES), np.random.default_rng(1)
        slots, host = draw.permutation(PLAN.pages[0].pages)[:pages], draw.permutation(HOST_PAGES)[:pages]
        pairs = [
            (layer * PLAN.pages[0].pages + int(a), int(b) * LAYERS + layer)
            for a, b in zip(slots, host, strict=True)
            for layer in range(LAYERS)
        ]
        rows.queue.write(pairs)
        rows.queue.publish()
        rows.queue.end_with_last()

        def body(rows: Rows = rows) -> int:
            for _ in range(LAYERS):
                summaries.done.zero_()
                summaries.summarise(rows, pools)
            return LAYERS

        def empty() -> int:
            for _ in range(LAYERS):
                summaries.done.zero_()
            return LAYERS

        read = len(pairs) * SIZE * MODEL.head_dim * MODEL.element_bytes
        yield {
            "summarised_blocks": len(pairs),
            "summarise_seconds": per_launch(body) - per_launch(empty),
            "summarise_floor_seconds": read / READ_BANDWIDTH,
        }


def random_choices(generator: torch.Generator) -> torch.Tensor:
    """Scores [STEPS][LAYERS][ROWS][candidates] that know nothing."""
    shape = (STEPS, LAYERS, ROWS, CHAIN_CONTEXT // SIZE)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device="cuda", generator=generator)


def traced_choices() -> torch.Tensor:
    """Scores likewise, by which what a text's tokens chose is chosen.

    A row's candidates are those of SIDES tokens of the text far apart, side by side, and each row and layer begins at
    other tokens.
    """
    traces = [[sorted(pages) for pages in tokens] for tokens in chosen(json.loads(TRACE.read_text("utf-8"))).values()]
    candidates = CHAIN_CONTEXT // SIZE
    side = candidates // SIDES
    scores = np.zeros((STEPS, LAYERS, ROWS, candidates), np.int32)
    draw = np.random.default_rng(0)
    for layer in range(LAYERS):
        sets = traces[layer % len(traces)]
        for row in range(ROWS):
            begins = draw.permutation(len(sets) // STEPS)[:SIDES] * STEPS
            for step in range(STEPS):
                pages = [part * side + page for part, begin in enumerate(begins) for page in sets[begin + step]]
                scores[step, layer, row, pages] = 1
    return torch.from_numpy(scores).cuda()


class Chain:
    """Rows of the deployment, `count` from `first` on, through all layers, step after step."""

    def __init__(self, deployment: "Deployment", choices: torch.Tensor, first: int = 0, count: int = ROWS) -> None:
        files = deployment.files
        self.cubin, self.pools, self.choices = Cubin(files["recall.cubin"]), deployment.pools, choices
        self.first, self.count = first, count
        self.step = Step(deployment.products, next(rows for rows in BUCKETS if rows >= count))
        host_pages = CHAIN_CONTEXT // SIZE
        self.rows = Rows(self.cubin, files["twin.so"], [CHAIN_CONTEXT - 7] * count, host_pages, first)
        self.summaries, self.attention = deployment.summaries, Attention(self.cubin)
        self.computing, self.copying = torch.cuda.Stream(), torch.cuda.Stream()
        for kernel in LAUNCHED:
            self.cubin.resident_ctas(kernel)
        for name in OF_A_LAYER:
            deployment.products.resident_ctas(f"dp_linear_{name}_{self.step.rows}")
            deployment.products.constant(f"dp_linear_{name}_{self.step.rows}_ctas")
        longest = PLAN.pages[0].pages_per_row
        self.scratch = torch.empty(ROWS, longest, dtype=torch.int32, device="cuda")
        self.scores = torch.zeros(LAYERS, ROWS, longest, dtype=torch.int32, device="cuda")
        # There and back, so that no step follows one far away.
        self.order = torch.tensor([*range(STEPS), *range(STEPS - 2, 0, -1)], device="cuda")
        self.turn, self.place = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
        self.chosen = torch.empty_like(choices[:1])
        # What allocates memory, loads a kernel or reads a constant while copies wait for lists may wait for the copies.
        self.next_choices()

    def next_choices(self) -> None:
        """The scores of the next step."""
        self.turn.add_(1).remainder_(len(self.order))
        torch.index_select(self.order, 0, self.turn, out=self.place)
        torch.index_select(self.choices, 0, self.place, out=self.chosen)
        own = self.chosen[0, :, self.first : self.first + self.count]
        self.scores[:, : self.count, : own.shape[-1]].copy_(own)
        self.rows.step.view(torch.int64)[:1].add_(1)

    def first_half(self, layer: int, weights: dict[str, torch.Tensor], headwise: bool = False) -> None:
        """The layer up to its list of recalls."""
        self.step.own("qkv", weights["qkv"])
        for _ in range(MODEL.kv_heads if headwise else 1):
            self.summaries.score(self.rows, layer, self.step.qkv, self.scratch)
        self.rows.choose(layer, self.scores[layer])
        if layer == 0:
            self.attention.list_tasks(self.rows.view)

    def second_half(self, layer: int, weights: dict[str, torch.Tensor]) -> None:
        """The layer from its attention on."""
        pages = PLAN.pages[0].pages
        self.attention.attend(self.rows.view, self.step, self.pools[layer * pages : (layer + 1) * pages])
        for name in OF_A_LAYER[1:]:
            self.step.own(name, weights[name])

    def listed(self) -> int:
        """Blocks in the lists of the last step."""
        last = self.rows.queue.published
        return sum(len(self.rows.queue.pairs(last - i)) for i in range(LAYERS))


class Attention:
    """dp_attention by workqueues."""

    def __init__(self, cubin: Cubin) -> None:
        self.cubin, self.ctas = cubin, cubin.resident_ctas("dp_attention")
        self.tasks = torch.zeros(cubin.constant("dp_attention_tasks_bytes"), dtype=torch.uint8, device="cuda")
        partials = cubin.constant("dp_attention_max_tasks") * cubin.constant("dp_attention_slice_heads")
        self.partial = torch.empty(partials, MODEL.head_dim, device="cuda"), torch.empty(partials, device="cuda")

    def list_tasks(self, view: torch.Tensor) -> None:
        """dp_attention_tasks."""
        self.cubin.launch("dp_attention_tasks", (1,), view, int(Route.WORKQUEUE), 0, self.ctas, 0, self.tasks)

    def attend(self, view: torch.Tensor, step: Step, pool: torch.Tensor, overlap: bool = False) -> None:
        """dp_attention."""
        operands = (self.tasks, step.qkv, pool, *self.partial, step.attn)
        self.cubin.launch("dp_attention", (self.ctas,), view, 0, *operands, overlap=overlap)


class Deployment:
    """The memory that all chains share: pools, the host's, weights."""

    def __init__(self, files: dict[str, Path], pools: torch.Tensor) -> None:
        self.files, self.products, self.pools = files, Cubin(files["products.cubin"]), pools
        self.host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        self.host.copy_(self.pools.view(torch.uint8).flatten()[:HOST_BYTES])
        self.summaries = Summaries(Cubin(files["recall.cubin"]))
        self.weights = [{name: weight(name) for name in OF_A_LAYER} for _ in range(WEIGHTS)]

    def of(self, layer: int) -> dict[str, torch.Tensor]:
        """A layer's weights."""
        return self.weights[layer % WEIGHTS]

    def ours(self, choices: torch.Tensor, batches: int) -> dict[str, Any]:
        """A graph of a step, replayed; of so many batches of rows, none of which waits for another."""
        count = ROWS // batches
        chains = [Chain(self, choices, batch * count, count) for batch in range(batches)]

        def layers(chain: Chain) -> None:
            queue, stream = chain.rows.queue, torch.cuda.current_stream()
            queue.words[UNTIL : UNTIL + 1].add_(LAYERS)
            chain.copying.wait_stream(stream)
            with torch.cuda.stream(chain.copying):
                ctas = COPYING_CTAS // batches
                chain.cubin.launch("dp_transfer", (ctas,), queue.words, self.host, self.pools)
            chain.next_choices()
            for layer in range(LAYERS):
                chain.first_half(layer, self.of(layer))
                chain.cubin.launch("dp_await", (1,), queue.words, overlap=True)
                chain.second_half(layer, self.of(layer))
            stream.wait_stream(chain.copying)

        def body() -> None:
            stream = torch.cuda.current_stream()
            for chain in chains:
                chain.computing.wait_stream(stream)
                with torch.cuda.stream(chain.computing):
                    layers(chain)
            for chain in chains:
                stream.wait_stream(chain.computing)

        return timed(graph_of(body).replay, chains, steps=24, warm=8)

    def headwise(self, choices: torch.Tensor, steps: int, warm: int) -> dict[str, Any]:
        """Halves of layers as graphs, between which the host reads what has to be copied and asks for each piece."""
        chain = Chain(self, choices)
        queue, library = chain.rows.queue, ctypes.CDLL(str(self.files["copies.so"]))
        copy = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2, ctypes.c_void_p)
        listed = torch.empty_like(queue.words[HEAD:], device="cpu").pin_memory()

        def first(layer: int) -> Callable[[], None]:
            def body() -> None:
                if layer == 0:
                    chain.next_choices()
                else:
                    chain.second_half(layer - 1, self.of(layer - 1))
                chain.first_half(layer, self.of(layer), headwise=True)
                queue.words[ENDED : ENDED + 1].copy_(queue.words[PUBLISHED : PUBLISHED + 1])

            return body

        halves = [graph_of(first(layer)) for layer in range(LAYERS)]
        last = graph_of(lambda: chain.second_half(LAYERS - 1, self.of(LAYERS - 1)))
        ticket = queue.published

        def step() -> None:
            nonlocal ticket
            stream = torch.cuda.current_stream()
            for half in halves:
                half.replay()
                ticket += 1
                count, items = queue.place(ticket)
                listed[: 1 + items.numel()].copy_(torch.cat((count, items.flatten())), non_blocking=True)
                stream.synchronize()
                library.copy_pieces(
                    copy,
                    ctypes.c_void_p(listed[1:].data_ptr()),
                    int(listed[0]),
                    ctypes.c_void_p(self.host.data_ptr()),
                    ctypes.c_uint64(self.pools.data_ptr()),
                    ctypes.c_int64(BLOCK),
                    ctypes.c_int64(HEADWISE_PIECE),
                    ctypes.c_void_p(stream.cuda_stream),
                )
            last.replay()

        return timed(step, [chain], steps, warm)

    def dense(self) -> float:
        """Seconds of a step of the one row that the same KV memory holds, all of it on the card."""
        cubin, step = Cubin(self.files["recall.cubin"]), Step(self.products, 1)
        attention, pages = Attention(cubin), CHAIN_CONTEXT // SIZE
        view = step_buffers(
            PLAN,
            kind=StepKind.DECODE,
            rows=1,
            tokens=1,
            position=[CHAIN_CONTEXT - 1],
            token_row=[0],
            row_slot=[0],
            query_begin=[0, 1],
            context=[CHAIN_CONTEXT],
            table=np.random.default_rng(0).permutation(pages).astype(np.int32)[None, None],
        )
        attention.list_tasks(view)

        def body() -> None:
            for layer in range(LAYERS):
                step.own("qkv", self.of(layer)["qkv"])
                attention.attend(view, step, self.pools[layer * PLAN.pages[0].pages :], overlap=True)
                for name in OF_A_LAYER[1:]:
                    step.own(name, self.of(layer)[name])

        return graph_seconds([body])[0]


def timed(step: Callable[[], object], chains: list[Chain], steps: int, warm: int) -> dict[str, Any]:
    """Seconds of `steps` steps in a row after some, and what they recalled."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    begin, end = event(), event()
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    wall = time.perf_counter() - began
    listed = []
    for _ in range(warm):
        step()
        torch.cuda.synchronize()
        listed.append(sum(chain.listed() for chain in chains))
    seconds, blocks = max(begin.elapsed_time(end) / 1e3, wall) / steps, statistics.mean(listed)
    return {
        "rows": ROWS,
        "step_seconds": seconds,
        "tokens_per_s": ROWS / seconds,
        "hits": 1 - blocks / (LAYERS * ROWS * (BLOCKS - SINKS - RECENT)),
        "recalled_bytes": blocks * BLOCK,
        "link_bytes_per_s": blocks * BLOCK / seconds,
    }


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks/results/gpu_recall.json")
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, help="what benchmarks.recall_kernels compiled; else it is compiled")
    parser.add_argument("--part", choices=("kernels", "decode"), help="only these")
    arguments = parser.parse_args()
    if arguments.kernels:
        files = {path.name: path for path in arguments.kernels.iterdir()}
    else:
        files = compile_all(Store(arguments.store))
    kernels: list[dict[str, Any]] = []
    decode: list[dict[str, Any]] = []
    report = {"machine": gpu_machine(), "context": CHAIN_CONTEXT, "kernels": kernels, "decode": decode}

    def found(where: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        where.append(figures)
        print(json.dumps(figures), flush=True)
        save(report, arguments.output)

    pools = torch.empty(LAYERS * PLAN.pages[0].pages, BLOCK // 2, dtype=torch.bfloat16, device="cuda").normal_()
    if arguments.part != "decode":
        for figures in measure_kernels(Cubin(files["recall.cubin"]), files["twin.so"], pools):
            found(kernels, figures)
    if arguments.part != "kernels":
        deployment = Deployment(files, pools)
        dense = deployment.dense()
        found(decode, {"case": "dense", "batches": 1, "rows": 1, "step_seconds": dense, "tokens_per_s": 1 / dense})
        random = random_choices(torch.Generator("cuda").manual_seed(0))
        for name, choices in (("traced", traced_choices()), ("random", random)):
            for batches in (1, 2):
                found(decode, {"case": name, "batches": batches, **deployment.ours(choices, batches)})
            counts = {"traced": (12, 4), "random": (2, 1)}[name]
            found(decode, {"case": f"{name}, headwise", "batches": 1, **deployment.headwise(choices, *counts)})


if __name__ == "__main__":
    main()
