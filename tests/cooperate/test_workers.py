"""The engine's CPU workers over a real host pool: exact against float64 for any split of the blocks among producers."""

import random

import pytest
import torch

from dualpace.engine.scheduler import LayoutError
from dualpace.engine.threads import worker_cpus
from dualpace.engine.workers import Workers

from .asked import BLOCKS, BOUNDS, Asked, merged
from .compiled import cooperative
from .plans import SMALL

FOREVER = 60 * 10**9


# Kernels of every kind: multiply-adds over each element type, tiles; and pages of all sizes.
SHAPES = [("fp32", 64, 2, 16), ("fp16", 128, 8, 16), ("bf16", 128, 1, 8), ("bf16", 256, 4, 32)]


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
