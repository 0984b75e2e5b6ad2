"""Slow rows on the device without a scheduler: a lane's kernels layer by layer, beside the same decisions on the host.

All KV is made beforehand, so that what a block has to hold is known wherever it is. Slots and host memory are NaN until
something is written there.
"""

import ctypes
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dualpace.build.units import HOST
from dualpace.plan import abi
from dualpace.plan.plan import Offload, Plan
from dualpace.plan.recall import offloaded_layers
from dualpace.plan.structs import Route, StepKind
from dualpace.render.sources import render

from .batch import DTYPES, step_buffers
from .plans import plan
from .transfer import UNTIL, Queue

if TYPE_CHECKING:
    from dualpace.engine.device import Cubin

TWIN = Path(__file__).with_name("recall_twin.cpp")
KERNELS = ("recall", "summaries", "transfer", "attention", "attention_tasks")
SOURCES = tuple(f"cuda/{name}.cu" for name in KERNELS)
LAUNCHED = ("dp_score", "dp_choose", "dp_attention_tasks", "dp_await", "dp_attention")
LAYERS, HOST_PAGES = 3, 200
COPYING_CTAS = 2


def recalling(
    name: str, *, slow_rows: int, sparse: int, cache: int, sinks: int = 1, recent: int = 3, **shape: Any
) -> Plan:
    """A plan whose layers are all in host memory."""
    made = plan(name, **{"dtype": "bf16", "ratio": 4, "page_size": 16, "kv_heads": 2, "head_dim": 128, **shape})
    (group,), (pages,) = made.model.groups, made.pages
    model = made.model.model_copy(
        update={"layers": LAYERS, "groups": (group.model_copy(update={"layers": tuple(range(LAYERS))}),)}
    )
    offload = Offload(
        mode="recall",
        host_budget=1 << 30,
        host_pages=HOST_PAGES,
        sparse_blocks=sparse,
        sinks=sinks,
        recent=recent,
        cache_blocks=cache,
    )
    return made.model_copy(
        update={
            "model": model,
            "offload": offload,
            "pages": (pages.model_copy(update={"pages": slow_rows * cache + 5}),),
            "schedule": made.schedule.model_copy(update={"slow_rows": slow_rows}),
        }
    )


def compile_twin(layout: Plan, folder: Path) -> Path:
    """recall_twin.cpp for a plan, a library in `folder`."""
    for path, text in render(layout).items():
        if path.startswith("common/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    library = folder / "twin.so"
    subprocess.run(["g++", *HOST, "-O2", "-shared", str(TWIN), "-o", str(library)], cwd=folder, check=True)
    return library


Pair = tuple[int, int]


@dataclass(frozen=True)
class Chosen:
    """What a row's token attends to in a layer: the row's pages, the pool's, and what has to be brought there."""

    pages: list[int]
    table: list[int]
    recalls: list[Pair]


class Twin:
    """SlowRow [rows] on the host."""

    def __init__(self, library: Path, layout: Plan) -> None:
        self._library, self._layout = ctypes.CDLL(str(library)), layout
        self._library.twin_row_bytes.restype = ctypes.c_size_t
        self.bytes = np.zeros((layout.schedule.slow_rows, self._library.twin_row_bytes()), np.uint8)

    def queue(self) -> Queue:
        """A queue on the device, for what this plan's lists hold."""
        return Queue(self._library.twin_places(), self._library.twin_most())

    def start(self, row: int, slots: np.ndarray) -> None:
        """A row that has its slots, pages of the pool, and nothing in them."""
        self._library.twin_start(self._row(row), pointer(slots))

    def assume(self, row: int, host: np.ndarray) -> None:
        """A row whose pages have all left for these pages of the host pool."""
        self._library.twin_assume(self._row(row), len(host), pointer(host))

    def begin_page(self, row: int) -> int:
        """The page of the pool of the row's next page."""
        return int(self._library.twin_begin_page(self._row(row)))

    def let_choose(self, row: int, chooses: bool) -> None:
        """Whether the row's token chooses."""
        self._library.twin_let_choose(self._row(row), int(chooses))

    def candidates(self, row: int) -> int:
        """Pages that the row's token may choose from."""
        return int(self._library.twin_candidates(self._row(row)))

    def send_page(self, row: int, host: int, ticket: int) -> list[Pair]:
        """The row's next page leaves for a page of the host pool."""
        pairs = np.empty((offloaded_layers(self._layout.model), 2), np.int32)
        self._library.twin_send_page(self._row(row), host, ctypes.c_uint32(ticket), pointer(pairs))
        return [tuple(pair) for pair in pairs.tolist()]

    def choose(self, row: int, layer: int, scores: np.ndarray, step: int, ticket: int) -> Chosen:
        """Choose, place and tabulate."""
        longest = self._layout.pages[0].pages_per_row
        pairs, table, pages = np.empty((longest, 2), np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
        misses = ctypes.c_int()
        count = self._library.twin_choose(
            self._row(row),
            layer,
            pointer(scores),
            ctypes.c_uint32(step),
            ctypes.c_uint32(ticket),
            pointer(pairs),
            ctypes.byref(misses),
            pointer(table),
            pointer(pages),
        )
        recalls = [tuple(pair) for pair in pairs[: misses.value].tolist()]
        return Chosen(pages[:count].tolist(), table[:count].tolist(), recalls)

    def _row(self, row: int) -> ctypes.c_void_p:
        return pointer(self.bytes[row])


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """Where an array begins."""
    return ctypes.c_void_p(array.ctypes.data)


class Lane:
    """Rows of a plan with `tokens` each to say at most, and all that a lane's kernels work on."""

    def __init__(self, layout: Plan, cubin: "Cubin", library: Path, rows: int, tokens: int) -> None:
        model, offload, size = layout.model, layout.offload, layout.attention.page_size
        self.plan, self.cubin, self.rows, self.size = layout, cubin, rows, size
        self.layers, self.lengths = offloaded_layers(model), [0] * rows
        self._random, self._shuffle = torch.Generator("cuda").manual_seed(rows), np.random.default_rng(rows)
        self._steps = 2**32 - 3
        # [row][layer][token][K or V][KV head][element]
        self.kv = self.random(rows, self.layers, tokens, 2, model.kv_heads, model.head_dim)
        self.host_pages, self.pool_pages = offload.host_pages, layout.pages[0].pages
        block = (2, model.kv_heads, size, model.head_dim)
        self.pools = self._nan(self.layers * self.pool_pages, *block)
        self.host = self._nan(self.host_pages * self.layers, *block).cpu().pin_memory()
        self.summaries = self._nan(self.layers, self.host_pages, 2, model.head_dim)
        slow_rows, longest = layout.schedule.slow_rows, layout.pages[0].pages_per_row
        self.scores = torch.zeros(self.layers, slow_rows, longest, dtype=torch.int32, device="cuda")
        # In each layer other heads choose: all of a KV head, in the first layer one alone.
        self.heads = [(layer % model.kv_heads * model.gqa_ratio, model.gqa_ratio) for layer in range(self.layers)]
        self.heads[0] = (model.heads - 1, 1)
        self._retrieval = torch.tensor(self.heads, dtype=torch.int32, device="cuda")
        self._summarised, self._making = (self._zeros(f"dp_{name}_bytes") for name in ("summarised", "making"))
        self._free_host = self._shuffle.permutation(self.host_pages).tolist()
        self.host_pages_of: list[list[int]] = [[] for _ in range(rows)]
        self.row_slots = self._shuffle.permutation(slow_rows)[:rows].tolist()
        self.twin, self._filling = Twin(library, layout), [0] * rows
        self.recalls, self.departures = self.twin.queue(), self.twin.queue()
        pages = self._shuffle.permutation(self.pool_pages)[: rows * offload.cache_blocks].astype(np.int32)
        for slot, some in zip(self.row_slots, pages.reshape(rows, -1), strict=True):
            self.twin.start(slot, some)
        self.slow_rows = self._zeros("dp_slow_rows_bytes")
        assert self.slow_rows.numel() == self.twin.bytes.size
        self.step, self.view = step_buffers(layout), step_buffers(layout)
        self._tasks = self._zeros("dp_attention_tasks_bytes")
        partials = cubin.constant("dp_attention_max_tasks") * cubin.constant("dp_attention_slice_heads")
        self._partials = torch.empty(partials, model.head_dim, device="cuda"), torch.empty(partials, device="cuda")
        self._ctas = cubin.resident_ctas("dp_attention")
        most_tokens = max(program.tokens for program in layout.schedule.programs)
        columns = (model.heads + 2 * model.kv_heads) * model.head_dim
        self.qkv = self.random(self.layers, most_tokens, columns)
        self.out = self._nan(self.layers, most_tokens, model.heads, model.head_dim)
        self._copying = torch.cuda.Stream()
        # A kernel that is not loaded yet would wait for copies to end that wait for it.
        for kernel in LAUNCHED:
            cubin.resident_ctas(kernel)

    def random(self, *shape: int) -> torch.Tensor:
        """Normal values in the model's dtype."""
        return torch.randn(*shape, device="cuda", generator=self._random).to(DTYPES[self.plan.model.dtype])

    def fill(self, row: int, tokens: int) -> None:
        """The row gets so many more tokens without a step: pages leave as they are full."""
        while tokens > 0:
            some = min(tokens, self.size - self.lengths[row] % self.size)
            self._write(row, some)
            tokens -= some
            self.send([row])

    def send(self, rows: Iterable[int]) -> None:
        """The last pages of these rows leave if they are full, are summarised, and have left."""
        pairs: list[Pair] = []
        for row in rows:
            if self.lengths[row] % self.size == 0:
                self.host_pages_of[row].append(self._free_host.pop())
                ticket = self.departures.ended + 1
                pairs += self.twin.send_page(self.row_slots[row], self.host_pages_of[row][-1], ticket)
        if pairs:
            self.departures.write(pairs)
            self.departures.publish()
            self.departures.end_with_last()
            operands = (self._summarised, self._retrieval, self.pools, self.summaries)
            self.cubin.launch("dp_summarise", (7,), self.departures.words, *operands)
            self.cubin.launch("dp_transfer", (1,), self.departures.words, self.pools, self.host)
            torch.cuda.synchronize()

    def say(self) -> None:
        """Each row gets a token, and the lane a step of them."""
        for row in range(self.rows):
            self._write(row, 1)
        self.lay_out([1] * self.rows)

    def lay_out(self, queries: Sequence[int]) -> None:
        """The lane's step is of so many tokens of each row, whose KV is there. Queries are random, outputs NaN."""
        self._steps += 1
        for slot, count in zip(self.row_slots, queries, strict=True):
            self.twin.let_choose(slot, count == 1)
        begin = np.cumsum([0, *queries])
        self.step.copy_(
            step_buffers(
                self.plan,
                step=self._steps,
                kind=StepKind.MIXED if max(queries) > 1 else StepKind.DECODE,
                rows=self.rows,
                tokens=begin[-1],
                row_slot=self.row_slots,
                query_begin=begin,
                context=self.lengths,
            )
        )
        self.slow_rows.copy_(torch.from_numpy(self.twin.bytes).flatten())
        self.qkv.copy_(self.random(*self.qkv.shape))
        self.out.fill_(torch.nan)

    def score(self, layer: int) -> None:
        """dp_score."""
        operands = (self._retrieval, self.qkv[layer], self.summaries, self.scores[layer])
        # The first one comes after what laid the step out.
        self.cubin.launch("dp_score", (13,), self.step, layer, self.slow_rows, *operands, overlap=layer > 0)

    def choose(self, layer: int) -> None:
        """dp_choose."""
        operands = (self.slow_rows, self.scores[layer], self.recalls.words, self._making)
        grid = (self.plan.schedule.slow_rows,)
        self.cubin.launch("dp_choose", grid, self.step, self.view, layer, *operands, overlap=True)

    def attend(self, layer: int) -> None:
        """Attention over what was recalled, once it is there."""
        self.cubin.launch("dp_await", (1,), self.recalls.words, overlap=True)
        self._attend(self.view, layer, self.pools[layer * self.pool_pages :][: self.pool_pages])

    def chain(self) -> None:
        """All of a step's layers, beside one launch that copies what they recall."""
        self.recalls.words[UNTIL] += self.layers
        self._copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copying):
            self.cubin.launch("dp_transfer", (COPYING_CTAS,), self.recalls.words, self.host, self.pools)
        for layer in range(self.layers):
            self.score(layer)
            self.choose(layer)
            if layer == 0:
                self._list_tasks(self.view)
            self.attend(layer)
        torch.cuda.current_stream().wait_stream(self._copying)

    def choices(self, layer: int, ticket: int) -> list[Chosen]:
        """What the host chooses by the scores that are on the device, by row; its rows change as the device's did."""
        scores = self.scores[layer, : self.rows].cpu().numpy()
        rows = zip(self.row_slots, scores, strict=True)
        return [self.twin.choose(slot, layer, row, self._steps, ticket) for slot, row in rows]

    def rows_agree(self) -> bool:
        """Whether the rows on the device are those on the host, to the bit."""
        return torch.equal(self.slow_rows.cpu(), torch.from_numpy(self.twin.bytes).flatten())

    def seen(self, field: str) -> np.ndarray:
        """A field of the view, in which rows have the numbers that they have in the step."""
        place = getattr(abi.view("StepBuffers", self.plan), field)
        held = self.view[place.offset : place.offset + place.size].cpu().numpy().view(np.int32)
        return held.reshape(self.plan.schedule.max_batch, -1)

    def attention(self, layer: int, row: int, pages: Sequence[int]) -> torch.Tensor:
        """Attention of a row's query to these of its pages, in float64: [heads][head_dim]."""
        model, length = self.plan.model, self.lengths[row]
        tokens = [t for page in pages for t in range(page * self.size, min((page + 1) * self.size, length))]
        keys, values = self.kv[row, layer, tokens].double().unbind(1)
        query = self.qkv[layer, row, : model.heads * model.head_dim].double()
        query = query.view(model.kv_heads, model.gqa_ratio, model.head_dim)
        scores = torch.einsum("kgd,nkd->kgn", query, keys) * model.attention_scale
        return torch.einsum("kgn,nkd->kgd", scores.softmax(-1), values).flatten(0, 1)

    def dense(self, layer: int) -> torch.Tensor:
        """Attention of the rows' queries to all of their KV, by the same kernel over pages in a row."""
        pages = -(-max(self.lengths) // self.size)
        kv = self.kv[:, layer, : pages * self.size].unflatten(1, (pages, self.size))
        pool = kv.permute(0, 1, 3, 4, 2, 5).flatten(0, 1).contiguous()
        table = np.full((1, self.rows, pages), 0, np.int32)
        table[0] = np.arange(self.rows * pages).reshape(self.rows, pages)
        step = step_buffers(
            self.plan,
            kind=StepKind.DECODE,
            rows=self.rows,
            tokens=self.rows,
            position=np.array(self.lengths) - 1,
            token_row=range(self.rows),
            row_slot=range(self.rows),
            query_begin=range(self.rows + 1),
            context=self.lengths,
            table=table,
        )
        self._list_tasks(step)
        self._attend(step, layer, pool)
        return self.out[layer].clone()

    def scored(self, layer: int, row: int) -> torch.Tensor:
        """What the row's candidates promise by the summaries on the device, in float64."""
        model, sinks = self.plan.model, self.plan.offload.sinks
        candidates = self.host_pages_of[row][sinks : sinks + self.twin.candidates(self.row_slots[row])]
        low, high = self.summaries[layer, candidates].double().unbind(1)
        first, heads = self.heads[layer]
        query = self.qkv[layer, row, first * model.head_dim : (first + heads) * model.head_dim].double()
        query = query.view(heads, 1, model.head_dim)
        return torch.maximum(query * low, query * high).sum((0, -1))

    def summarised(self, layer: int, row: int) -> torch.Tensor:
        """What the summaries of the row's full pages say, in float64: [page][2][head_dim]."""
        pages, kv_head = self.lengths[row] // self.size, self.heads[layer][0] // self.plan.model.gqa_ratio
        keys = self.kv[row, layer, : pages * self.size, 0, kv_head].double().unflatten(0, (pages, self.size))
        return torch.stack([(end + keys.mean(1)) / 2 for end in (keys.amin(1), keys.amax(1))], 1)

    def _list_tasks(self, step: torch.Tensor) -> None:
        split = self.plan.attention.split_tokens
        self.cubin.launch("dp_attention_tasks", (1,), step, int(Route.SPLIT), split, self._ctas, 0, self._tasks)

    def _attend(self, step: torch.Tensor, layer: int, pool: torch.Tensor) -> None:
        operands = (self._tasks, self.qkv[layer], pool, *self._partials, self.out[layer])
        self.cubin.launch("dp_attention", (self._ctas,), step, 0, *operands)

    def _write(self, row: int, tokens: int) -> None:
        """KV of the row's next tokens, all of one page, goes to its slot in every layer."""
        begin = self.lengths[row]
        if begin % self.size == 0:
            self._filling[row] = self.twin.begin_page(self.row_slots[row])
        self.lengths[row] += tokens
        for layer in range(self.layers):
            block = self.pools[layer * self.pool_pages + self._filling[row]]
            some = self.kv[row, layer, begin : begin + tokens]
            block[:, :, begin % self.size : begin % self.size + tokens] = some.permute(1, 2, 0, 3)

    def _nan(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=DTYPES[self.plan.model.dtype], device="cuda")

    def _zeros(self, size: str) -> torch.Tensor:
        return torch.zeros(self.cubin.constant(size), dtype=torch.uint8, device="cuda")
