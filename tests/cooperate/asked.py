"""A row that asks: its query and blocks in a host pool, and what its attention to them is in float64."""

import ctypes
import random

import torch

from dualpace.engine.host_pool import map_pool
from dualpace.model.weights import DTYPES

from .compiled import publisher_library, workers_library

BLOCKS = 200
# Relative to the largest output: tile registers take queries and weights to 16 bits of their mantissa.
BOUNDS = {"fp32": 2e-6, "fp16": 2e-6, "bf16": 2e-5}


class Asked:
    """A row's query and blocks in a host pool, the workers' library and what publishes to them."""

    def __init__(self, plan, store, folder):
        self.plan, model = plan, plan.model
        self.library = workers_library(plan, store)
        self.publisher = publisher_library(plan, folder)
        generator = torch.Generator().manual_seed(3)
        shape = (BLOCKS, 2, model.kv_heads, plan.attention.page_size, model.head_dim)
        kv = torch.randn(shape, generator=generator).to(DTYPES[model.dtype])
        self._pool = map_pool(kv.nbytes, note=lambda text: None)
        self.kv = torch.frombuffer(self._pool, dtype=kv.dtype)[: kv.numel()].view(shape)
        self.kv[:] = kv
        self.query = torch.randn(model.heads, model.head_dim, generator=generator)
        self.order = random.Random(4).sample(range(BLOCKS), BLOCKS)

    def exact(self, blocks):
        """Output and LSE over these blocks in float64: [head, element] and [head]."""
        model = self.plan.model
        # [K or V, KV head, token, element]
        keys, values = self.kv[blocks].double().permute(1, 2, 0, 3, 4).flatten(2, 3)
        query = self.query.double().view(model.kv_heads, model.gqa_ratio, model.head_dim)
        scores = query @ keys.transpose(1, 2) * model.attention_scale
        return (scores.softmax(-1) @ values).view(model.heads, -1), scores.logsumexp(-1).flatten()

    def give(self, address, blocks, patience, cpus):
        """What workers make of `blocks`: partial results by the blocks of each, and the blocks that came back."""
        p, model, size = self.publisher, self.plan.model, self.publisher.publisher_item_blocks()
        handle = ctypes.c_void_p(p.publisher_create(ctypes.c_void_p(address)))
        listed = (ctypes.c_int32 * len(blocks))(*blocks)
        pointer = ctypes.c_void_p(self.query.data_ptr())
        given = p.publisher_give(handle, 0, 1, pointer, listed, len(blocks), ctypes.c_uint64(patience))
        parts = [blocks[i : i + size] for i in range(0, given, size)]
        out = torch.full((len(parts), model.heads, model.head_dim), torch.nan)
        lse = torch.full((len(parts), model.heads), torch.nan)
        late, awaited = set(), len(parts)
        places = (ctypes.c_int32 * len(parts))()
        while awaited:
            addresses = (ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(lse.data_ptr()))
            awaited -= p.publisher_collect(handle, len(cpus), *addresses)
            count = p.publisher_withdraw(handle, places)
            late.update(places[:count])
            awaited -= count
        p.publisher_destroy(handle)
        found = {i: (out[i], lse[i]) for i in range(len(parts)) if i not in late}
        back = [block for i in sorted(late) for block in parts[i]] + blocks[given:]
        return found, back


def merged(parts):
    """Of partial results (output, LSE), as every merge does it, in fp32."""
    out, lse = (torch.stack([part[i].float() for part in parts]) for i in range(2))
    weights = (lse - lse.max(0).values).exp()
    return (weights[..., None] * out).sum(0) / weights.sum(0)[..., None]
