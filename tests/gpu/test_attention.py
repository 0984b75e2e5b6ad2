from dataclasses import replace

import pytest
import torch

from .batch import TOLERANCE, Batch, Row, batches, step_buffers
from .kernels import Kernels

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


def test_attention_matches_float64(kernels):
    batch = kernels.batch
    for group in range(len(batch.pools)):
        kernels.append(group)
        assert "many-pages" not in batch.plan.name or batch.tables[group].max() > 0xFFFF
        assert worst_error(kernels.attend(group), batch.attention(group)) < TOLERANCE[batch.plan.model.dtype]


def test_merge_takes_partial_results_from_any_producer(plan, cubin):
    batch = Batch(plan, batches(plan)["edges"])
    kernels = Kernels(cubin, batch)
    tasks = kernels.tasks()
    first = tasks[1 : batch.tokens + 2].tolist()
    partial, lse = kernels.partials()
    partial[: first[-1]] = torch.randn_like(partial[: first[-1]])
    lse[: first[-1]] = 20 * torch.randn_like(lse[: first[-1]])
    # No key seen by any task of token 0, nor by the first of token 1.
    lse[: first[1] + 1], partial[: first[1] + 1] = -torch.inf, torch.nan
    out = batch.poisoned()
    kernels.merge(0, tasks, partial, lse, out)
    assert (out[0] == 0).all()
    for token in range(1, batch.tokens):
        mine = slice(first[token] + (token == 1), first[token + 1])
        weights = lse[mine].double().softmax(0)
        expected = (weights[:, :, None] * partial[mine].double()).sum(0)
        if mine.stop > mine.start:
            assert worst_error(out[token], expected) < TOLERANCE[plan.model.dtype]


def test_result_does_not_depend_on_the_number_of_ctas(plan, cubin):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["edges"]))
    for group in range(len(plan.model.groups)):
        kernels.append(group)
        assert torch.equal(replace(kernels, ctas=1).attend(group), replace(kernels, ctas=1000).attend(group))


def test_result_does_not_depend_on_the_other_rows(plan, cubin):
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
