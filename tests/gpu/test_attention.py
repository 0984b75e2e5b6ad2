from dataclasses import replace
from itertools import chain

import pytest
import torch

from .batch import TOLERANCE, Batch, Row, batches, step_buffers
from .kernels import ROUTES, Kernels, Route

pytestmark = pytest.mark.gpu


def worst_error(out, reference):
    """Largest relative error of a head of a token; NaN stays NaN."""
    return ((out.double() - reference).norm(dim=-1) / reference.norm(dim=-1)).max().item()


def bits(tensor):
    return tensor.view(dtype=torch.uint8)


@pytest.fixture(params=["decode", "edges", "full", "mixed"])
def kernels(request, plan, cubin):
    return Kernels(cubin, Batch(plan, batches(plan)[request.param]))


def test_append_rotates_queries_and_keys_and_copies_values(kernels):
    batch, model = kernels.batch, kernels.batch.plan.model
    before = batch.qkv.clone()
    queries, keys, values = before.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
    for group, pool in enumerate(batch.pools):
        batch.qkv.copy_(before)
        kernels.append(group, magnitude=1.25)
        pages, offsets = batch.slots(group).unbind(1)
        rotated_queries = batch.rotated(queries, group, batch.q_norm, 1.25)
        rotated_keys = batch.rotated(keys, group, batch.k_norm, 1.25)
        assert worst_error(batch.qkv[:, : model.heads], rotated_queries) < TOLERANCE[model.dtype]
        assert worst_error(pool[pages, 0, :, offsets], rotated_keys) < TOLERANCE[model.dtype]
        assert torch.equal(pool[pages, 1, :, offsets], values)


def test_append_writes_no_other_slot(kernels):
    batch = kernels.batch
    for group, pool in enumerate(batch.pools):
        before = pool.clone()
        kernels.append(group)
        pages, offsets = batch.slots(group).unbind(1)
        pool[pages, :, :, offsets] = before[pages, :, :, offsets]
        assert torch.equal(bits(pool), bits(before))


@pytest.fixture(params=ROUTES, ids=[route.name.lower() for route in ROUTES])
def route(request, plan):
    if request.param is Route.FLASHINFER and plan.attention.flashinfer == "none":
        pytest.skip("FlashInfer has no kernel for these heads, or its headers are missing")
    return request.param


def test_attention_matches_float64(kernels, route):
    batch, kernels = kernels.batch, replace(kernels, route=route)
    for group in range(len(batch.pools)):
        kernels.append(group)
        assert "many-pages" not in batch.plan.name or batch.tables[group].max() > 0xFFFF
        reference = batch.attention(group)
        for out in (kernels.attend(group), kernels.attend_apart(group)):
            assert worst_error(out, reference) < TOLERANCE[batch.plan.model.dtype]


@pytest.mark.parametrize("shares", [1, 5, 132, 1024, 2000])
def test_attention_matches_float64_for_any_number_of_shares(plan, cubin, route, shares):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["decode"]), route=route, shares=shares)
    for group in range(len(plan.model.groups)):
        kernels.append(group)
        assert worst_error(kernels.attend(group), kernels.batch.attention(group)) < TOLERANCE[plan.model.dtype]


def test_tasks_serve_every_layer_of_their_group(plan, cubin, route):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["edges"]), route=route)
    tasks, partials = kernels.tasks(), kernels.partials()
    kernels.append(0)
    outs = [kernels.batch.poisoned() for _ in range(3)]
    for out in outs:
        kernels.attention(0, kernels.batch.pools[0], tasks, partials, out)
    assert torch.equal(outs[0], kernels.attend(0))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_merge_takes_partial_results_from_any_producer(plan, cubin, route):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["edges"]), route=route)
    ratio, tasks, partials = plan.model.gqa_ratio, kernels.tasks(), kernels.partials()
    ranges = kernels.task_ranges(tasks)
    count = ranges[-1][-1].stop
    partials.out[:count] = torch.randn_like(partials.out[:count])
    partials.lse[:count] = 20 * torch.randn_like(partials.lse[:count])
    # No key seen by any task of token 0, nor by the first of each slice of token 1.
    unseen = [*chain(*ranges[0]), *(mine.start for mine in ranges[1])]
    partials.lse[unseen], partials.out[unseen] = -torch.inf, torch.nan
    out = kernels.batch.poisoned()
    kernels.merge(0, tasks, partials, out)
    assert (out[0] == 0).all()
    group_slices = kernels.slices // plan.model.kv_heads
    for token in range(1, kernels.batch.tokens):
        for piece in range(kernels.slices):
            mine = list(ranges[token][piece])[token == 1 :]
            begin = piece // group_slices * ratio + piece % group_slices * kernels.slice_heads
            heads = min(kernels.slice_heads, ratio - piece % group_slices * kernels.slice_heads)
            weights = partials.lse[mine, :heads].double().softmax(0)
            expected = (weights[:, :, None] * partials.out[mine, :heads].double()).sum(0)
            if mine:
                assert worst_error(out[token, begin : begin + heads], expected) < TOLERANCE[plan.model.dtype]


def test_result_does_not_depend_on_the_number_of_ctas(plan, cubin, route):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["edges"]), route=route)
    for group in range(len(plan.model.groups)):
        kernels.append(group)
        assert torch.equal(replace(kernels, ctas=1).attend(group), replace(kernels, ctas=1000).attend(group))


def test_result_of_the_split_route_does_not_depend_on_the_other_rows(plan, cubin):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["edges"]))
    for group in range(len(plan.model.groups)):
        kernels.append(group)
        together = kernels.attend(group)
        for row in range(len(kernels.batch.rows)):
            assert torch.equal(replace(kernels, batch=kernels.batch.alone(row)).attend(group)[0], together[row])


def test_step_without_rows_touches_nothing(plan, cubin):
    batch = Batch(plan, [Row(5)])
    batch.step = step_buffers(plan, kind=0, rows=0, tokens=0, query_begin=[0])
    kernels = Kernels(cubin, batch)
    before, queries = batch.pools[0].clone(), batch.qkv.clone()
    kernels.append(0)
    assert kernels.attend(0).isnan().all()
    assert torch.equal(bits(batch.pools[0]), bits(before))
    assert torch.equal(batch.qkv, queries)
