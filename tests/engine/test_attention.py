"""Attention of decoding rows against float64, over permuted pages and poisoned slots."""

import ctypes
import math
import random

import pytest
import torch

from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES
from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.structs import LINE
from tests.engine.models import CASES, CONTEXT, MAX_BATCH
from tests.engine.rows import POISON
from tests.engine.test_parity import ISAS

# Relative to the largest value. In tile registers queries and weights are rounded to 16 bits of their mantissa.
BOUNDS = {"fp32": 2e-6, "fp16": 2e-6, "bf16": 2e-6}
TILE_BOUND = 2e-5


def contexts(plan: Plan) -> list[int]:
    """Around the bounds of pages, of tiles and of splits."""
    edges = {plan.attention.page_size, 16, 32, plan.attention.split_tokens, 2 * plan.attention.split_tokens}
    near = {edge + by for edge in edges for by in (-1, 0, 1)} | {1, 2, CONTEXT - 1, CONTEXT}
    return sorted(near)[:MAX_BATCH]


class Decoding:
    """A step of rows that decode with these contexts, over KV of normal numbers in one layer's pool."""

    def __init__(self, plan: Plan, group: int, lengths: list[int]) -> None:
        self.plan, self.group, self.lengths = plan, group, lengths
        model, page = plan.model, plan.attention.page_size
        generator = torch.Generator().manual_seed(1)
        pages = plan.pages[group].pages
        self.pool = torch.full((pages, 2, model.kv_heads, page, model.head_dim), POISON, dtype=DTYPES[model.dtype])
        self.qkv = 2 * torch.randn(len(lengths), model.heads + 2 * model.kv_heads, model.head_dim, generator=generator)
        view = abi.view("StepBuffers", plan)
        self._room = torch.zeros(ctypes.sizeof(view) + LINE, dtype=torch.uint8)
        self._address = self._room.data_ptr() + -self._room.data_ptr() % LINE
        step = view.from_address(self._address)
        step.rows = step.tokens = len(lengths)
        free = random.Random(2).sample(range(pages), pages)
        self.kv = []
        for row, length in enumerate(lengths):
            step.row_slot[row], step.query_begin[row + 1], step.context[row] = row, row + 1, length
            # [K or V, KV head, position, element]
            kv = torch.randn(2, model.kv_heads, length, model.head_dim, generator=generator).to(self.pool.dtype)
            first = self._seen(length).start // page
            for index in range(first, math.ceil(length / page)):
                step.table[group][row][index] = free.pop()
                part = kv[:, :, index * page : (index + 1) * page]
                self.pool[step.table[group][row][index], :, :, : part.shape[2]] = part
            self.kv.append(kv)

    def _seen(self, length: int) -> range:
        window = self.plan.model.groups[self.group].window
        return range(max(length - window, 0) if window else 0, length)

    def run(self, kernels: Kernels) -> torch.Tensor:
        """[row, query head, element]"""
        out = torch.full((len(self.lengths), self.plan.model.heads, self.plan.model.head_dim), POISON)
        workspace = torch.empty(kernels.workspace_bytes + LINE, dtype=torch.uint8)
        scratch = workspace.data_ptr() + -workspace.data_ptr() % LINE
        kernels.dp_attention(
            self._address, self.group, self.qkv.data_ptr(), self.pool.data_ptr(), scratch, out.data_ptr()
        )
        return out

    def exact(self) -> torch.Tensor:
        """The same in float64."""
        model = self.plan.model
        rows = []
        for query, kv, length in zip(self.qkv[:, : model.heads].double(), self.kv, self.lengths, strict=True):
            key, value = (part[:, self._seen(length)].double() for part in kv)
            grouped = query.view(model.kv_heads, model.gqa_ratio, model.head_dim)
            scores = grouped @ key.transpose(1, 2) * model.attention_scale
            if model.attention_softcap:
                scores = model.attention_softcap * torch.tanh(scores / model.attention_softcap)
            rows.append((scores.softmax(-1) @ value).view(model.heads, model.head_dim))
        return torch.stack(rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bf16") for name in CASES),
        *((name, "fp16") for name in ("llama", "llama3-rope", "qwen2")),
        ("gemma2", "fp32"),
    ],
)
def test_decoding_rows_equal_float64(name, dtype, isa, tiny, kernels_of):
    case = tiny(name, dtype)
    kernels = kernels_of(case.library, isa)
    bound = TILE_BOUND if isa == "v4_amx" and dtype == "bf16" else BOUNDS[dtype]
    for group in range(len(case.plan.model.groups)):
        rows = Decoding(case.plan, group, contexts(case.plan))
        exact = rows.exact()
        error = (rows.run(kernels).double() - exact).abs().max()
        assert error < bound * exact.abs().max(), group
