"""FlashInfer's batch decode as its users get it, to be timed beside ours: see flashinfer.cu."""

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from tests.gpu.batch import Batch

Kernel = Literal["decode", "prefill"]
DECODE_RATIOS = (1, 2, 3, 4, 8)  # DISPATCH_GQA_GROUP_SIZE of its utils.cuh


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "pool", "out", "query_begin", "page_begin", "pages", "last_page")),
        ("q_stride", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


class FlashInfer:
    """`kernel` of the `library` for decode attention of `batch`, planned."""

    def __init__(self, library: Path, batch: Batch, kernel: Kernel) -> None:
        self._library, self._batch = ctypes.CDLL(str(library)), batch
        model, size = batch.plan.model, batch.plan.attention.page_size
        counts = [-(-row.context // size) for row in batch.rows]
        self._begins = ctypes.c_int32 * (len(counts) + 1)
        self._query_begin, self._page_begin = self._begins(*range(len(counts) + 1)), self._begins(*_before(counts))
        tables = torch.from_numpy(batch.tables[0][batch.row_slots]).to(torch.int32).cuda()
        self._pages = torch.cat([table[:count] for table, count in zip(tables, counts, strict=True)])
        self._rows = torch.tensor(
            [self._query_begin, self._page_begin, [*((row.context - 1) % size + 1 for row in batch.rows), 0]],
            dtype=torch.int32,
            device="cuda",
        )
        create = self._library.flashinfer_create
        create.restype = ctypes.c_void_p
        shape = (len(counts), model.heads, model.kv_heads, size)
        self._attention = ctypes.c_void_p(create(ctypes.c_bool(kernel == "prefill"), *map(ctypes.c_int32, shape)))
        self.plan()

    def plan(self) -> float:
        """Plan on the host, as is needed in every step; the seconds that it took."""
        start = time.perf_counter()
        status = self._library.flashinfer_plan(self._attention, self._query_begin, self._page_begin, _stream())
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        assert status == 0, status
        return seconds

    def run(self, pool: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of one layer over `pool`."""
        model = self._batch.plan.model
        rows = [row.data_ptr() for row in self._rows]
        layer = _Layer(
            self._batch.qkv.data_ptr(),
            pool.data_ptr(),
            out.data_ptr(),
            *rows[:2],
            self._pages.data_ptr(),
            rows[2],
            self._batch.qkv.stride(0),
            model.attention_scale,
        )
        status = self._library.flashinfer_run(self._attention, ctypes.byref(layer), _stream())
        assert status == 0, status

    def close(self) -> None:
        """Free its workspaces."""
        torch.cuda.synchronize()
        self._library.flashinfer_destroy(self._attention)


def _before(counts: Sequence[int]) -> list[int]:
    """The sum of the counts before each, and of all."""
    return [sum(counts[:i]) for i in range(len(counts) + 1)]


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
