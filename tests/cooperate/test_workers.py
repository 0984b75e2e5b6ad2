"""The engine's CPU workers over a real host pool: exact against float64 for any split of the blocks among producers."""

import ctypes
import random

import pytest
import torch

from dualpace.engine.host_pool import map_pool
from dualpace.engine.scheduler import LayoutError
from dualpace.engine.threads import worker_cpus
from dualpace.engine.workers import Workers
from dualpace.model.weights import DTYPES

from .compiled import cooperative, publisher_library, workers_library
from .plans import SMALL

BLOCKS = 200
# Relative to the largest output: tile registers take queries and weights to 16 bits of their mantissa.
BOUNDS = {"fp32": 2e-6, "fp16": 2e-6, "bf16": 2e-5}
FOREVER = 60 * 10**9


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


SHAPES = [
    ("fp32", 64, 2, 16), ("fp32", 128, 5, 8), ("fp16", 128, 8, 16), ("bf16", 128, 1, 16), ("bf16", 128, 8, 16),
    ("bf16", 256, 4, 32),
]  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def asked(request, tmp_path_factory, store):
    return Asked(cooperative(*request.param), store, tmp_path_factory.mktemp("publisher"))


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("seed", range(4))
def test_any_split_of_blocks_among_producers_is_exact(asked, seed):
    chance = random.Random(seed)
    first, second = sorted(chance.randrange(1, BLOCKS) for _ in range(2))
    mine, theirs, recalled = asked.order[:first], asked.order[first:second] or asked.order[-1:], asked.order[second:]
    cpus = worker_cpus()
    with Workers(asked.library, asked.plan, asked.kv.data_ptr(), cpus, note=lambda text: None) as workers:
        found, back = asked.give(workers.address, theirs, FOREVER, cpus)
    assert not back or len(theirs) > len(back)
    rest = [asked.exact(blocks) for blocks in (mine, recalled, back) if blocks]
    exact = asked.exact(asked.order if theirs != asked.order[-1:] else [*mine, *theirs, *recalled])[0]
    error = (merged([*found.values(), *rest]).double() - exact).abs().max()
    assert error < BOUNDS[asked.plan.model.dtype] * exact.abs().max()


def test_an_lse_is_that_of_the_blocks(asked):
    cpus = worker_cpus(1)
    with Workers(asked.library, asked.plan, asked.kv.data_ptr(), cpus, note=lambda text: None) as workers:
        found, _ = asked.give(workers.address, asked.order[:3], FOREVER, cpus)
    torch.testing.assert_close(found[0][1].double(), asked.exact(asked.order[:3])[1], rtol=0, atol=2e-5)


def test_what_no_worker_answers_comes_back(asked):
    with Workers(asked.library, asked.plan, asked.kv.data_ptr(), (), note=lambda text: None) as workers:
        found, back = asked.give(workers.address, asked.order, 10**6, ())
    assert found == {}
    assert back == asked.order


def test_workers_say_where_they_are(asked):
    notes = []
    cpus = worker_cpus(1)
    with Workers(asked.library, asked.plan, asked.kv.data_ptr(), cpus, notes.append):
        pass
    with Workers(asked.library, asked.plan, asked.kv.data_ptr(), [1023], notes.append):
        pass
    assert notes == [f"CPU workers on {cpus[0]}, pinned", "CPU workers on 1023; 1 could not be pinned"]


def test_a_library_of_another_plan_is_refused(asked):
    with pytest.raises(LayoutError, match="build it again"):
        Workers(asked.library, SMALL, 0, ())
