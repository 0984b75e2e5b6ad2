"""A layer of slow rows on the device: summaries and scores are what they should be, choices those of the host to the
bit, and attention is that to the blocks that were chosen, wherever they were.
"""

import numpy as np
import pytest
import torch

from .batch import TOLERANCE
from .conftest import compile_sources
from .recall import SOURCES, Lane, compile_twin, recalling

pytestmark = pytest.mark.gpu

# Room to spare or none, every kind of head, one and several heads that choose; `all`: as many blocks as there are.
PLANS = {
    made.name: made
    for made in (
        recalling("spare", slow_rows=3, sparse=12, cache=16),
        recalling("tight-d80", slow_rows=4, sparse=9, cache=9, recent=4, sinks=2, head_dim=80, page_size=8),
        recalling("fp32-d256", slow_rows=2, sparse=9, cache=12, dtype="fp32", head_dim=256, kv_heads=1, ratio=2),
        recalling("fp16-d64", slow_rows=3, sparse=10, cache=11, dtype="fp16", head_dim=64, ratio=7, page_size=32),
        recalling("all", slow_rows=3, sparse=40, cache=40),
    )
}
LONG = recalling("long", slow_rows=12, sparse=256, cache=320, recent=9, kv_heads=8, context=131_072, max_batch=24)


@pytest.fixture(scope="module")
def lane_of(store, tmp_path_factory):
    """Makes lanes of a plan."""
    from dualpace.engine.device import Cubin

    made = {}

    def lane(layout, **sizes):
        if layout.name not in made:
            cubin = Cubin(compile_sources(layout, store, *SOURCES))
            made[layout.name] = cubin, compile_twin(layout, tmp_path_factory.mktemp(layout.name))
        return Lane(layout, *made[layout.name], **sizes)

    return lane


def worst(found, expected):
    """The largest error, relative to the largest value."""
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


def values_of(scores):
    """The floats that whole numbers of the same order stand for."""
    bits = scores.cpu().numpy().view(np.uint32) ^ np.uint32(1 << 31)
    return torch.from_numpy(np.where(bits >> 31, bits ^ np.uint32(0x7FFFFFFF), bits).view(np.float32)).cuda()


def check_layer(lane, layer, ticket):
    """Of a layer whose list had `ticket`; returns what it recalled."""
    tolerance, recalls = TOLERANCE[lane.plan.model.dtype], []
    for row, chosen in enumerate(lane.choices(layer, ticket)):
        recalls += chosen.recalls
        scored = lane.scored(layer, row)
        if len(scored):
            assert worst(values_of(lane.scores[layer, row, : len(scored)]), scored) < 1e-5
        assert worst(lane.out[layer, row], lane.attention(layer, row, chosen.pages)) < tolerance
    assert sorted(lane.recalls.pairs(ticket)) == sorted(recalls)
    return recalls


def check_step(lane):
    """Of a step that is done; returns how many blocks it recalled."""
    torch.cuda.synchronize()
    published = lane.recalls.published
    assert lane.recalls.ended == published
    first = published - lane.layers + 1
    recalled = sum(len(check_layer(lane, layer, first + layer)) for layer in range(lane.layers))
    assert lane.rows_agree()
    return recalled


@pytest.mark.parametrize("name", PLANS)
def test_a_token_attends_to_what_the_host_would_choose_by_its_scores(name, lane_of):
    layout = PLANS[name]
    size, rows = layout.attention.page_size, layout.schedule.slow_rows
    lane, recalled = lane_of(layout, rows=rows, tokens=38 * size), 0
    for row in range(rows):
        lane.fill(row, (3 + 9 * row) * size + 5 * row)
    for _ in range(size + 3):
        lane.say()
        lane.chain()
        recalled += check_step(lane)
        lane.send(range(rows))
    assert recalled > 0


@pytest.mark.parametrize("name", PLANS)
def test_the_layers_tables_are_those_of_the_host(name, lane_of):
    layout = PLANS[name]
    size, rows = layout.attention.page_size, layout.schedule.slow_rows
    lane = lane_of(layout, rows=rows, tokens=40 * size)
    for row in range(rows):
        lane.fill(row, 2 * size + row + row * (37 - 2) * size // rows)
    lane.say()
    for layer in range(lane.layers):
        lane.score(layer)
        lane.choose(layer)
        tables = lane.seen("table")
        for row, chosen in enumerate(lane.choices(layer, layer + 1)):
            assert tables[row, : len(chosen.table)].tolist() == chosen.table
            length = lane.lengths[row]
            assert lane.seen("context")[row] == length - size * (-(-length // size) - len(chosen.table))


@pytest.mark.parametrize("name", PLANS)
def test_a_summary_has_the_ends_of_a_blocks_keys_halfway_to_their_mean(name, lane_of):
    layout = PLANS[name]
    lane = lane_of(layout, rows=2, tokens=20 * layout.attention.page_size)
    for row in range(2):
        lane.fill(row, (13 + row) * layout.attention.page_size)
    for layer in range(lane.layers):
        for row, pages in enumerate(lane.host_pages_of):
            assert worst(lane.summaries[layer, pages], lane.summarised(layer, row)) < TOLERANCE[layout.model.dtype]
        assert int((~lane.summaries[layer].isnan()).flatten(1).any(-1).sum()) == 27


def test_with_all_blocks_attention_is_dense_attention_bit_for_bit(lane_of):
    layout = PLANS["all"]
    size, rows = layout.attention.page_size, layout.schedule.slow_rows
    lane = lane_of(layout, rows=rows, tokens=38 * size)
    for row in range(rows):
        lane.fill(row, (3 + 14 * row) * size + row)
    for _ in range(3):
        lane.say()
        lane.chain()
        check_step(lane)
        for layer in range(lane.layers):
            sparse = lane.out[layer, :rows].clone()
            assert torch.equal(sparse, lane.dense(layer)[:rows])
        lane.send(range(rows))


def test_a_captured_chain_goes_on_from_step_to_step(lane_of):
    layout = PLANS["spare"]
    size, rows = layout.attention.page_size, layout.schedule.slow_rows
    lane, recalled = lane_of(layout, rows=rows, tokens=50 * size), 0
    for row in range(rows):
        lane.fill(row, (12 + 9 * row) * size + 5 * row)
    lane.say()
    lane.chain()
    check_step(lane)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lane.chain()
    for _ in range(2 * size):
        lane.send(range(rows))
        lane.say()
        graph.replay()
        recalled += check_step(lane)
    assert recalled > 0


def test_rows_of_several_tokens_are_left_to_others(lane_of):
    layout = PLANS["spare"]
    size, rows = layout.attention.page_size, layout.schedule.slow_rows
    lane = lane_of(layout, rows=rows, tokens=30 * size)
    for row in range(rows):
        lane.fill(row, 25 * size + 1)
    lane.lay_out([1, 3, 1])
    lane.chain()
    torch.cuda.synchronize()
    for layer in range(lane.layers):
        chosen, _, last = lane.choices(layer, layer + 1)
        assert sorted(lane.recalls.pairs(layer + 1)) == sorted(chosen.recalls + last.recalls)
        assert worst(lane.out[layer, 0], lane.attention(layer, 0, chosen.pages)) < TOLERANCE[layout.model.dtype]
        assert lane.out[layer, 1:4].isnan().all()
        assert not lane.out[layer, 4].isnan().any()


@pytest.mark.parametrize("rows", [1, 12])
def test_long_rows_choose_as_the_host_does(rows, lane_of):
    lane, size = lane_of(LONG, rows=rows, tokens=16), LONG.attention.page_size
    longest, generator = LONG.pages[0].pages_per_row, np.random.default_rng(rows)
    for row, slot in enumerate(lane.row_slots):
        pages = int(generator.integers(300, longest)) if row else longest
        lane.twin.assume(slot, generator.integers(0, lane.host_pages, pages).astype(np.int32))
        lane.lengths[row] = pages * size
    # All different, all the same, a few that many have; then what the first did not leave alone.
    for step, kinds in enumerate((2**32, 1, 7, 2**32)):
        lane.lay_out([1] * rows)
        drawn = generator.integers(0, kinds, tuple(lane.scores[0].shape), dtype=np.uint64).astype(np.uint32)
        lane.scores[0].copy_(torch.from_numpy(drawn.view(np.int32)))
        lane.choose(0)
        assert lane.recalls.published == step + 1
        chosen = lane.choices(0, step + 1)
        assert sorted(lane.recalls.pairs(step + 1)) == sorted(pair for each in chosen for pair in each.recalls)
        tables = lane.seen("table")
        assert all(tables[row, : len(each.table)].tolist() == each.table for row, each in enumerate(chosen))
        assert lane.rows_agree()
