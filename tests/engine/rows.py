"""Rows driven through the executor without a scheduler: step buffers and page tables made by hand, badly on purpose.

Pages are handed out in random order, every slot that holds no token is NaN, and a page that has left the window is
taken away and poisoned at once.
"""

import ctypes
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.structs import LINE, StepKind

POISON = float("nan")


class Rows:
    """Row slots 0 to max_batch - 1, each with the tokens it has seen."""

    def __init__(self, plan: Plan, weights: Mapping[str, torch.Tensor], kernels: Any, seed: int = 0) -> None:
        self._plan = plan
        self._head = weights["head"].float()
        self._step = aligned(abi.view("StepBuffers", plan))
        self._executor = self._open(weights, kernels)
        for pool in self._executor.pools:
            pool.fill_(POISON)
        shuffle = random.Random(seed)
        self._free = [shuffle.sample(range(pages.pages), pages.pages) for pages in plan.pages]
        self.lengths = [0] * plan.schedule.max_batch
        ctypes.memset(ctypes.addressof(self._step.table), 0xFF, ctypes.sizeof(self._step.table))

    @property
    def step_address(self) -> int:
        """The step buffers."""
        return ctypes.addressof(self._step)

    def pages(self, group: int) -> list[int]:
        """The pages of the first row slot, by position."""
        return [page for page in self._step.table[group][0] if page >= 0]

    @property
    def attention(self) -> Any:
        """The AttentionWork of every layer group in the last step."""
        return self._step.attention

    def feed(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Run one step with these tokens by row slot; returns the logits after each, [tokens, vocab]."""
        step = self._step
        token = 0
        for row, (slot, chunk) in enumerate(chunks.items()):
            begin = self.lengths[slot]
            self.lengths[slot] += len(chunk)
            step.query_begin[row], step.row_slot[row] = token, slot
            step.context[row], step.sample_slot[row] = self.lengths[slot], slot
            for group in range(len(self._plan.pages)):
                self._page(group, slot, begin)
            for position, value in enumerate(chunk, begin):
                step.token[token], step.position[token], step.token_row[token] = value, position, row
                for group in range(len(self._plan.pages)):
                    page_size = self._plan.attention.page_size
                    page = step.table[group][slot][position // page_size]
                    step.slot[group][token] = page * page_size + position % page_size
                token += 1
            step.sample_index[row] = token - 1
        step.query_begin[len(chunks)] = token
        step.rows, step.tokens, step.samples = len(chunks), token, len(chunks)
        step.kind = StepKind.DECODE if token == len(chunks) else StepKind.MIXED
        self._run(token, len(chunks))
        return self._logits(chunks)

    def _open(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> Any:
        """What has the buffers and the pools and runs the step."""
        return Executor(self._plan, weights, kernels, self.step_address)

    def _run(self, tokens: int, samples: int) -> None:
        self._executor.run(tokens, samples)

    def _logits(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Sampled positions by the engine's own head, the others from the last hidden states."""
        result = {}
        for row, (slot, chunk) in enumerate(chunks.items()):
            begin = self._step.query_begin[row]
            hidden = self._executor.buffers["x"][begin : begin + len(chunk)].float()
            result[slot] = hidden @ self._head.t()
            result[slot][-1] = self._executor.buffers["logits"][row]
        return result

    def _page(self, group: int, slot: int, begin: int) -> None:
        """Give the row the pages of its new tokens and take those that its query at `begin` no longer sees."""
        page_size = self._plan.attention.page_size
        table = self._step.table[group][slot]
        for page in range(-(-self.lengths[slot] // page_size)):
            if table[page] < 0 and page >= begin // page_size:
                table[page] = self._free[group].pop()
        window = self._plan.model.groups[group].window
        if window:
            for page in range(max(begin - window + 1, 0) // page_size):
                if table[page] >= 0:
                    for layer in self._plan.model.groups[group].layers:
                        self._executor.pools[layer][table[page]] = POISON
                    self._free[group].insert(0, table[page])
                    table[page] = -1


def aligned(struct: type[ctypes.Structure]) -> Any:
    """A zeroed `struct` at a multiple of a cache line, where compiled code expects it."""
    room = ctypes.create_string_buffer(ctypes.sizeof(struct) + LINE)
    return struct.from_buffer(room, -ctypes.addressof(room) % LINE)


def reference_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' logits after each token, [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].float()
