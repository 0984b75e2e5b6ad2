"""A batch of rows on the device, as the scheduler would leave it, and what its attention must come to in float64."""

import ctypes
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from dualpace.plan.abi import view
from dualpace.plan.plan import Plan
from dualpace.plan.rope import inverse_frequencies
from dualpace.plan.structs import StepKind

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
QUERY_BLOCK = 64  # queries attended at once
TOLERANCE = {"bf16": 5e-3, "fp16": 1e-3, "fp32": 1e-5}


def step_buffers(plan: Plan, **fields: ArrayLike) -> torch.Tensor:
    """The bytes of StepBuffers on the device; what `fields` leave out is poison."""
    step = view("StepBuffers", plan)()
    ctypes.memset(ctypes.byref(step), 0x88, ctypes.sizeof(step))
    for name, value in fields.items():
        values = np.asarray(value)
        if values.shape:
            np.ctypeslib.as_array(getattr(step, name))[tuple(slice(n) for n in values.shape)] = values
        else:
            setattr(step, name, int(values))
    return torch.frombuffer(bytearray(step), dtype=torch.uint8).cuda()


@dataclass(frozen=True)
class Row:
    """`context` tokens of KV after the step, the last `queries` of which are the step's."""

    context: int
    queries: int = 1


def batches(plan: Plan) -> dict[str, list[Row]]:
    """Batches with contexts about every boundary of `plan`: of a page, a split, the windows, the longest context."""
    page, split = plan.attention.page_size, plan.attention.split_tokens
    window = max(group.window for group in plan.model.groups) or 3 * page
    longest = plan.schedule.max_context
    decode = [1, 2, page - 1, page, page + 1, split, split + 1, 3 * split + 5]
    edges = [2 * page, 2 * page + 1, split - 1, 2 * split, window, window + 1, window + page + 1, longest]
    return {
        "decode": [Row(context) for context in decode],
        "edges": [Row(context) for context in edges],
        "full": [Row(longest)] * plan.schedule.max_batch,
        "mixed": [Row(1), Row(300, 13), Row(17, 17), Row(longest), Row(window + 7, 9)],
    }


class Batch:
    """Rows with permuted row slots and pages. Whatever of the pools no row may read is NaN."""

    def __init__(self, plan: Plan, rows: Sequence[Row], seed: int = 0) -> None:
        self.plan = plan
        self.rows = rows
        self.dtype = DTYPES[plan.model.dtype]
        self._numpy = np.random.default_rng(seed)
        self._torch = torch.Generator("cuda").manual_seed(seed)
        model = plan.model
        self.tokens = sum(row.queries for row in rows)
        self.positions = [p for row in rows for p in range(row.context - row.queries, row.context)]
        self.token_rows = [r for r, row in enumerate(rows) for _ in range(row.queries)]
        self.row_slots = self._numpy.permutation(plan.schedule.max_batch)[: len(rows)]
        self.qkv = self.random(self.tokens, model.heads + 2 * model.kv_heads, model.head_dim)
        self.q_norm, self.k_norm = self.random(model.head_dim), self.random(model.head_dim)
        self.frequencies = [
            torch.tensor(inverse_frequencies(group.rope, model.head_dim), device="cuda") for group in model.groups
        ]
        self.tables = [self._table(group) for group in range(len(model.groups))]
        self.pools = [self._pool(group) for group in range(len(model.groups))]
        self.step = self._step()

    def random(self, *shape: int) -> torch.Tensor:
        """Normal values in the model's dtype."""
        return torch.randn(*shape, device="cuda", generator=self._torch).to(self.dtype)

    def alone(self, row: int) -> "Batch":
        """The same KV and queries in a batch of that row only."""
        batch = copy(self)
        mine = [t for t, r in enumerate(self.token_rows) if r == row]
        batch.rows, batch.row_slots = [self.rows[row]], self.row_slots[[row]]
        batch.tokens, batch.token_rows = len(mine), [0] * len(mine)
        batch.positions, batch.qkv = [self.positions[t] for t in mine], self.qkv[mine]
        batch.step = batch._step()
        return batch

    def poisoned(self) -> torch.Tensor:
        """An attention output [tokens][heads][head_dim] that nobody has written yet."""
        return torch.full((self.tokens, self.plan.model.heads, self.plan.model.head_dim), torch.nan, device="cuda").to(
            self.dtype
        )

    def slots(self, group: int) -> torch.Tensor:
        """Page and offset in it, [tokens][2], of where each token's KV goes."""
        size = self.plan.attention.page_size
        where = [
            (self.tables[group][self.row_slots[r], p // size], p % size)
            for r, p in zip(self.token_rows, self.positions, strict=True)
        ]
        return torch.tensor(where, device="cuda").reshape(-1, 2).long()

    def rotated(self, heads: torch.Tensor, group: int, norm: torch.Tensor, magnitude: float) -> torch.Tensor:
        """`heads` [tokens][n][head_dim] normalised and rotated, in float64."""
        model = self.plan.model
        x = heads.double()
        if model.qk_norm:
            x = x * (x.square().mean(-1, keepdim=True) + model.norm_eps).rsqrt() * (norm.double() + model.norm_offset)
        positions = torch.tensor(self.positions, device="cuda", dtype=torch.float32)
        angle = (positions[:, None] * self.frequencies[group]).double()[:, None]
        low, high = x.chunk(2, -1)
        return magnitude * torch.cat(
            (low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1
        )

    def attention(self, group: int) -> torch.Tensor:
        """Attention of the queries in `qkv` to the pool as they are, [tokens][heads][head_dim], in float64."""
        model, size = self.plan.model, self.plan.attention.page_size
        window = model.groups[group].window
        out = torch.zeros(self.tokens, model.heads, model.head_dim, device="cuda", dtype=torch.float64)
        begins = np.cumsum([0, *(row.queries for row in self.rows)])
        for slot, row, begin, end in zip(self.row_slots, self.rows, begins[:-1], begins[1:], strict=True):
            held = np.arange(self._first_key(group, row), row.context)
            pages = torch.tensor(self.tables[group][slot, held // size], device="cuda").long()
            offsets = torch.tensor(held % size, device="cuda")
            keys, values = (self.pools[group][pages, i, :, offsets].double() for i in (0, 1))  # [n][kv head][d]
            for block in (slice(t, min(t + QUERY_BLOCK, end)) for t in range(begin, end, QUERY_BLOCK)):
                positions, held_keys = np.array(self.positions[block])[:, None], held[None]
                seen = (held_keys <= positions) & ((held_keys > positions - window) if window else True)
                query = self.qkv[block, : model.heads].double().unflatten(1, (model.kv_heads, model.gqa_ratio))
                scores = torch.einsum("tkgd,nkd->tkgn", query, keys) * model.attention_scale
                if model.attention_softcap:
                    scores = model.attention_softcap * (scores / model.attention_softcap).tanh()
                scores.masked_fill_(~torch.tensor(seen, device="cuda")[:, None, None], -torch.inf)
                out[block] = torch.einsum("tkgn,nkd->tkgd", scores.softmax(-1), values).flatten(1, 2)
        return out

    def _table(self, group: int) -> np.ndarray:
        """Block table by row slot: pages in no order; -1 before every window and past the row's end."""
        plan = self.plan
        size, pages = plan.attention.page_size, plan.pages[group]
        table = np.full((plan.schedule.max_batch, pages.pages_per_row), -1, np.int32)
        free = list(self._numpy.permutation(pages.pages))
        for slot, row in zip(self.row_slots, self.rows, strict=True):
            for index in range(self._first_key(group, row) // size, -(-row.context // size)):
                table[slot, index] = free.pop()
        return table

    def _pool(self, group: int) -> torch.Tensor:
        model, size = self.plan.model, self.plan.attention.page_size
        shape = (self.plan.pages[group].pages, 2, model.kv_heads, size, model.head_dim)
        pool = torch.full(shape, torch.nan, device="cuda", dtype=self.dtype)
        for slot, row in zip(self.row_slots, self.rows, strict=True):
            held = np.arange(self._first_key(group, row), row.context - row.queries)
            pages = torch.tensor(self.tables[group][slot, held // size], device="cuda").long()
            pool[pages, :, :, torch.tensor(held % size, device="cuda")] = self.random(
                len(held), 2, model.kv_heads, model.head_dim
            )
        return pool

    def _first_key(self, group: int, row: Row) -> int:
        window = self.plan.model.groups[group].window
        return max(row.context - row.queries + 1 - window, 0) if window else 0

    def _step(self) -> torch.Tensor:
        begins = np.cumsum([0, *(row.queries for row in self.rows)])
        slots = [
            self.slots(group).cpu().numpy() @ [self.plan.attention.page_size, 1] for group in range(len(self.pools))
        ]
        return step_buffers(
            self.plan,
            kind=StepKind.MIXED if self.tokens > len(self.rows) else StepKind.DECODE,
            rows=len(self.rows),
            tokens=self.tokens,
            position=self.positions,
            token_row=self.token_rows,
            slot=slots,
            row_slot=self.row_slots,
            query_begin=begins,
            context=[row.context for row in self.rows],
            table=self.tables,
        )
