"""Blocks between host memory and the card: all of a list arrive, nothing else changes, and nothing is said early."""

import time
from itertools import pairwise

import pytest
import torch

from dualpace.plan.plan import Offload

from .conftest import compile_sources
from .plans import plan
from .transfer import Queue

pytestmark = pytest.mark.gpu

SLOW_ROWS, SLOTS, PLACES = 3, 13, 2
HOST_BLOCKS, POOL_BLOCKS = 301, 97


def offloading(name: str, **shape):
    """A plan whose lists hold what three rows have slots for."""
    made = plan(name, **{"dtype": "bf16", "ratio": 4, "page_size": 16, **shape})
    return made.model_copy(
        update={
            "schedule": made.schedule.model_copy(update={"slow_rows": SLOW_ROWS}),
            "offload": Offload(
                mode="recall", host_budget=1 << 30, sparse_blocks=0, sinks=1, recent=3, cache_blocks=SLOTS
            ),
        }
    )


# 10 KiB are not whole chunks of 8.
PLANS = {
    made.name: made
    for made in (
        offloading("blocks of 64 KiB", kv_heads=8, head_dim=128),
        offloading("blocks of 10 KiB", kv_heads=2, head_dim=80),
        offloading("blocks of 1 KiB", kv_heads=1, head_dim=32, page_size=8),
    )
}


# What GPUs without bulk copies do, on one that has them.
PLAIN = "plain copies"


class Blocks:
    """Blocks in pinned host memory and on the card, all different, and the kernel that copies them."""

    def __init__(self, cubin, block_bytes):
        self._cubin = cubin
        words = block_bytes // 8
        self.host = torch.arange(HOST_BLOCKS * words).view(HOST_BLOCKS, words).pin_memory()
        self.pool = -1 - torch.arange(POOL_BLOCKS * words, device="cuda").view(POOL_BLOCKS, words)

    def copy(self, queue, ctas, leaving=False):
        """Launch the copies of `queue`."""
        places = (self.pool, self.host) if leaving else (self.host, self.pool)
        self._cubin.launch("dp_transfer", (ctas,), queue.words, *places)


def compile_copies(name, store):
    """The kernel of a plan, or the one that plain GPUs have."""
    layout = PLANS["blocks of 64 KiB" if name == PLAIN else name]
    edit = {"UnitCopy<BlockQueue, ": "VectorCopy<BlockQueue, "} if name == PLAIN else {}
    return layout, compile_sources(layout, store, "cuda/transfer.cu", edit=edit)


@pytest.fixture(params=[*PLANS, PLAIN])
def blocks(request, store):
    from dualpace.engine.device import Cubin

    layout, path = compile_copies(request.param, store)
    cubin = Cubin(path)
    assert cubin.constant("dp_transfer_queue_bytes") == Queue(PLACES, SLOW_ROWS * SLOTS).words.nbytes
    return Blocks(cubin, layout.pages[0].block_bytes)


def random_lists(sizes, leaving=False):
    """Lists of so many pairs, no block twice where one is written."""
    torch.manual_seed(sum(sizes))
    host, pool = torch.randperm(HOST_BLOCKS), torch.randperm(POOL_BLOCKS)
    ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    pairs = torch.stack((host[: ends[-1]], pool[: ends[-1]]), -1)
    return [(pairs.flip(-1) if leaving else pairs)[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("ctas", [1, 5])
@pytest.mark.parametrize("sizes", [(39,), (1, 0), (0, 7)], ids=str)
@pytest.mark.parametrize("leaving", [False, True], ids=["arriving", "leaving"])
def test_what_is_listed_arrives_and_nothing_else_changes(blocks, ctas, sizes, leaving):
    queue = Queue(PLACES, SLOW_ROWS * SLOTS)
    expected = {True: blocks.host.clone(), False: blocks.pool.cpu()}[leaving]
    for pairs in random_lists(sizes, leaving):
        queue.write(pairs)
        expected[pairs[:, 1]] = (blocks.pool.cpu() if leaving else blocks.host)[pairs[:, 0]]
    queue.publish()
    queue.end_with_last()
    blocks.copy(queue, ctas, leaving)
    torch.cuda.synchronize()
    assert torch.equal(blocks.host if leaving else blocks.pool.cpu(), expected)
    assert queue.ended == len(sizes)


def test_launches_go_on_where_the_last_one_ended_and_tickets_wrap(blocks):
    ended, expected = 2**32 - 3, blocks.pool.cpu()
    queue = Queue(PLACES, SLOW_ROWS * SLOTS, ended)
    for seed in range(3):
        for pairs in random_lists([5 + seed, 9]):
            queue.write(pairs)
            expected[pairs[:, 1]] = blocks.host[pairs[:, 0]]
        queue.publish()
        queue.end_with_last()
        blocks.copy(queue, 2)
        torch.cuda.synchronize()
        ended = (ended + 2) % 2**32
        assert queue.ended == ended
        assert torch.equal(blocks.pool.cpu(), expected)


def test_a_launch_waits_for_lists_and_ends_none_before_it_is_there(blocks):
    queue, copying, publishing = Queue(PLACES, SLOW_ROWS * SLOTS), torch.cuda.Stream(), torch.cuda.Stream()
    lists = random_lists([39, 20])
    slots = [pairs[:, 1].cuda() for pairs in lists]
    for pairs in lists:
        queue.write(pairs)
    queue.end_with_last()
    # What is called below while the kernel waits has to be loaded, or it would wait for the kernel.
    untouched = [blocks.pool[some].cpu() for some in slots]
    queue.publish(0)
    assert queue.ended == 0
    torch.cuda.synchronize()
    with torch.cuda.stream(copying):
        blocks.copy(queue, 3)
    with torch.cuda.stream(publishing):
        for ticket, (pairs, some, before) in enumerate(zip(lists, slots, untouched, strict=True), 1):
            time.sleep(0.02)
            assert queue.ended == ticket - 1
            assert torch.equal(blocks.pool[some].cpu(), before)
            queue.publish(ticket)
            deadline = time.monotonic() + 10
            while queue.ended != ticket:
                assert time.monotonic() < deadline
            assert torch.equal(blocks.pool[some].cpu(), blocks.host[pairs[:, 0]])
    copying.synchronize()


@pytest.mark.parametrize("ctas", [1, 4])
def test_many_lists_in_a_row_beside_other_work(blocks, ctas):
    torch.manual_seed(0)
    queue, work = Queue(PLACES, SLOW_ROWS * SLOTS), torch.cuda.Stream()
    weights, count = torch.randn(4096, 4096, device="cuda"), 100
    expected = blocks.pool.cpu()
    with torch.cuda.stream(work):
        for _ in range(40):
            weights @ weights
    for turn in range(count):
        for _ in range(PLACES):
            size = int(torch.randint(0, SLOW_ROWS * SLOTS + 1, ()))
            pairs = torch.stack((torch.randint(0, HOST_BLOCKS, (size,)), torch.randperm(POOL_BLOCKS)[:size]), -1)
            queue.write(pairs)
            expected[pairs[:, 1]] = blocks.host[pairs[:, 0]]
        queue.publish()
        queue.end_with_last()
        blocks.copy(queue, ctas)
        assert queue.ended == PLACES * (turn + 1)
    assert torch.equal(blocks.pool.cpu(), expected)
