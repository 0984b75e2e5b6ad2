"""A row with KV in host memory on the CPU engine's kernels: host memory plays both sides, threads play the link.

The lane is `tests/recall/lane.cpp` over common/recall.hpp; the executor is the engine's own, but for attention of the
layers that are in host memory, which waits for the lane and then runs over the tables that it made.
"""

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dualpace.build.units import HOST
from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES
from dualpace.plan import abi
from dualpace.plan.plan import Offload, Plan
from dualpace.plan.program import Op
from dualpace.render.sources import render

from .rows import Rows, aligned

LANE = Path(__file__).parents[1] / "recall" / "lane.cpp"
SINKS, RECENT = 1, 3
# Of a layer's blocks that may be chosen: scores, higher is better, from the executor and the layer.
Score = Callable[["RecallExecutor", int], torch.Tensor]


def recalling(plan: Plan, sparse_blocks: int, cache_blocks: int) -> Plan:
    """`plan` with one slow row, whose tokens attend to so many blocks of a layer, 0: to all that it has slots for."""
    offload = Offload(
        mode="recall",
        host_budget=1,
        sparse_blocks=sparse_blocks,
        sinks=SINKS,
        recent=RECENT,
        cache_blocks=cache_blocks,
    )
    schedule = plan.schedule.model_copy(update={"slow_rows": 1})
    return plan.model_copy(update={"offload": offload, "schedule": schedule})


def compile_lane(plan: Plan, folder: Path) -> ctypes.CDLL:
    """The lane of a plan."""
    for path, text in render(plan).items():
        if path.startswith("common/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    library = folder / "liblane.so"
    command = ["g++", *HOST, "-O1", "-Werror", "-pthread", "-shared", str(LANE), "-o", str(library)]
    subprocess.run(command, cwd=folder, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.lane_create.restype = ctypes.c_void_p
    return loaded


class Attended(NamedTuple):
    """What a layer's token attended to: pages of the row, of which `misses` were recalled, and the output."""

    layer: int
    pages: list[int]
    misses: int
    query: torch.Tensor
    output: torch.Tensor


class RecallExecutor(Executor):
    """The engine's executor of one slow row; `keys` has all KV of each layer, [token][K or V][head][element]."""

    def __init__(
        self, plan: Plan, weights: Mapping[str, torch.Tensor], kernels: Kernels, step: Any, score: Score
    ) -> None:
        self.full = [layer for group in plan.model.groups if not group.window for layer in group.layers]
        self.attended: list[Attended] = []
        self._score, self._view = score, aligned(abi.view("StepBuffers", plan))
        self.lane: Callable[[str], Any] = lambda name: None
        super().__init__(plan, weights, kernels, ctypes.addressof(step))
        model = plan.model
        shape = (plan.schedule.max_context, 2, model.kv_heads, model.head_dim)
        self.kv = {layer: torch.empty(shape, dtype=DTYPES[model.dtype]) for layer in self.full}

    def _attention(self, op: Op) -> Callable[[], Any]:
        if op.layer not in self.full:
            return super()._attention(op)
        model, size = self._plan.model, self._plan.attention.page_size
        group, index = model.group_of(op.layer), self.full.index(op.layer)
        attend = partial(
            self._kernels.dp_attention,
            ctypes.addressof(self._view),
            group,
            self._address(op.inputs[0]),
            self.pools[op.layer].data_ptr(),
            self._workspace.data_ptr(),
            self._address(op.outputs[0]),
        )

        def call() -> None:
            batch = self._batch
            page, offset = divmod(batch.slot[group][0], size)
            self.kv[op.layer][batch.position[0]] = self.pools[op.layer][page, :, :, offset]
            pages, misses = (ctypes.c_int32 * self._plan.pages[group].pages_per_row)(), ctypes.c_int32()
            score = _ordered(self._score(self, op.layer))
            count = self.lane("recall")(
                index,
                score.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_void_p(self._step),
                ctypes.byref(self._view),
                pages,
                ctypes.byref(misses),
            )
            attend()
            query = self.buffers["qkv"][0, : model.heads * model.head_dim].view(model.heads, model.head_dim)
            output = self.buffers["attn"][0].view(model.heads, model.head_dim)
            self.attended.append(Attended(op.layer, pages[:count], misses.value, query.clone(), output.clone()))

        return call


def _ordered(score: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Scores as whole numbers of the same order."""
    bits = score.float().numpy().view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | 0x8000_0000).astype(np.uint32)


class SlowRow(Rows):
    """One row, token by token, whose blocks leave for host memory as they fill."""

    def __init__(
        self, plan: Plan, weights: Mapping[str, torch.Tensor], kernels: Any, library: ctypes.CDLL, score: Score
    ) -> None:
        self._score = score
        super().__init__(plan, weights, kernels)
        executor, model = self.executor, plan.model
        self._group = model.group_of(executor.full[0])
        block = executor.pools[executor.full[0]][0].numel()
        pages = plan.pages[self._group].pages_per_row
        self._host = torch.full((pages, len(executor.full), block), torch.nan, dtype=DTYPES[model.dtype])
        self._host_pages = torch.randperm(pages, generator=torch.Generator().manual_seed(1)).tolist()
        pools = (ctypes.c_void_p * len(executor.full))(*(executor.pools[layer].data_ptr() for layer in executor.full))
        slots = [self._free[self._group].pop() for _ in range(plan.offload.cache_blocks)]
        self._library = library
        self._handle = ctypes.c_void_p(
            library.lane_create(pools, ctypes.c_void_p(self._host.data_ptr()), (ctypes.c_int32 * len(slots))(*slots))
        )
        executor.lane = lambda name: partial(getattr(library, f"lane_{name}"), self._handle)

    @property
    def executor(self) -> RecallExecutor:
        """What runs the row."""
        executor: RecallExecutor = self._executor
        return executor

    def close(self) -> None:
        """End the link's threads."""
        self._library.lane_destroy(self._handle)

    def say(self, token: int) -> torch.Tensor:
        """The logits after one more token, [vocab]."""
        self.executor.attended.clear()
        found = self.feed({0: [token]})[0][0]
        if self.lengths[0] % self._plan.attention.page_size == 0:
            self.executor.lane("send_page")(self._host_pages.pop())
        return found

    def _open(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> RecallExecutor:
        return RecallExecutor(self._plan, weights, kernels, self._step, self._score)

    def _page(self, group: int, slot: int, begin: int) -> None:
        if self._plan.model.groups[group].window:
            super()._page(group, slot, begin)
        elif begin % self._plan.attention.page_size == 0:
            page = self.executor.lane("begin_page")()
            self._step.table[group][slot][begin // self._plan.attention.page_size] = page
