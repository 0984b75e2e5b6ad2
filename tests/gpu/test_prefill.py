"""Prompt chunks, attended by dp_prefill, beside decoding rows, by dp_attention: one step writes its whole output."""

from functools import cache, partial

import pytest
import torch

from dualpace.build.compile import compile_libraries
from dualpace.build.units import libraries
from dualpace.plan.manifest import CUDA_CUBINS
from dualpace.plan.memory import prefill_bytes
from dualpace.plan.plan import Plan, PrefillKernel
from dualpace.render.sources import render

from .batch import TOLERANCE, Batch, Row, step_buffers
from .conftest import Silent
from .kernels import Kernels
from .plans import plan as make_plan
from .prefill import Prefill
from .test_attention import worst_error

pytestmark = pytest.mark.gpu

CHUNK = 257
UNITS = [f"cuda/{name}.cu" for name in ("attention", "attention_tasks", "kv_append", "prefill", "prefill_tasks")]


def chunked(name: str, **options) -> Plan:
    return make_plan(name, step_tokens=640, **options)


def plans_of(prefill: PrefillKernel) -> list[Plan]:
    """Every GQA group, head size, page size and element type in some of the plans."""
    make = partial(chunked, prefill=prefill)
    windows = {"windows": (100, 0), "qk_norm": True}
    return [
        make(f"{prefill}-g1-d64-p16-bf16", dtype="bf16", kv_heads=2, ratio=1, head_dim=64, page_size=16),
        make(f"{prefill}-g2-d80-p32-fp16", dtype="fp16", kv_heads=2, ratio=2, head_dim=80, page_size=32),
        make(f"{prefill}-g4-d128-p16-bf16", dtype="bf16", kv_heads=8, ratio=4, head_dim=128, page_size=16),
        make(f"{prefill}-g5-d128-p64-fp16", dtype="fp16", kv_heads=2, ratio=5, head_dim=128, page_size=64),
        make(f"{prefill}-g6-d64-p8-fp16", dtype="fp16", kv_heads=1, ratio=6, head_dim=64, page_size=8),
        make(f"{prefill}-g7-d128-p128-bf16", dtype="bf16", kv_heads=1, ratio=7, head_dim=128, page_size=128),
        make(f"{prefill}-g8-d256-p16-bf16", dtype="bf16", kv_heads=1, ratio=8, head_dim=256, page_size=16),
        make(f"{prefill}-g16-d128-p16-bf16", dtype="bf16", kv_heads=1, ratio=16, head_dim=128, page_size=16),
        make(f"{prefill}-windows-d96-p8", dtype="fp16", kv_heads=1, ratio=3, head_dim=96, page_size=8, **windows),
        make(f"{prefill}-windows-d256", dtype="bf16", kv_heads=1, ratio=4, head_dim=256, page_size=16, **windows),
        make(f"{prefill}-softcap-d64", dtype="bf16", kv_heads=1, ratio=2, head_dim=64, page_size=16, softcap=1.5),
    ]


KERNELS: tuple[PrefillKernel, ...] = ("wgmma", "mma")
PLANS = {plan.name: plan for kernel in KERNELS for plan in plans_of(kernel)}
LONG = {
    prefill: make_plan(
        f"{prefill}-long",
        dtype="bf16",
        kv_heads=1,
        ratio=4,
        head_dim=128,
        page_size=16,
        context=131_072,
        max_batch=2,
        step_tokens=2049,
        prefill=prefill,
    )
    for prefill in KERNELS
}
MIXED = [Row(300, 13), Row(5), Row(17, 17), Row(2048, 100), Row(109, 9), Row(2, 2), Row(1024, CHUNK), Row(129, 128)]


def compile_attention(plan, store):
    sources = render(plan)
    wanted = [
        library.model_copy(update={"units": tuple(unit for unit in library.units if unit.source in UNITS)})
        for library in libraries(plan, sources)
        if library.output in CUDA_CUBINS
    ]
    return tuple(compile_libraries(wanted, sources, store, Silent()).values())


@pytest.fixture(scope="module")
def cubin_of(store):
    from dualpace.engine.device import Cubin

    return cache(lambda plan: Cubin(*compile_attention(plan, store)))


@pytest.fixture(params=PLANS.values(), ids=PLANS, scope="module")
def plan(request):
    return request.param


@pytest.fixture(scope="module")
def cubin(plan, cubin_of):
    return cubin_of(plan)


def step_output(cubin, batch: Batch, group: int, shares: int = 132) -> torch.Tensor:
    """The step's attention: decoding rows, then chunks."""
    kernels = Kernels(cubin, batch)
    kernels.append(group)
    out = kernels.attend(group)
    Prefill(cubin, batch, shares).attend(group, out)
    return out


def check(cubin, batch: Batch, shares: int = 132) -> None:
    for group in range(len(batch.pools)):
        out = step_output(cubin, batch, group, shares)
        assert worst_error(out, batch.attention(group)) < TOLERANCE[batch.plan.model.dtype]


def tokens_of_chunks(batch: Batch) -> list[int]:
    return [t for t, row in enumerate(batch.token_rows) if batch.rows[row].queries > 1]


def tokens_that_decode(batch: Batch) -> list[int]:
    return [t for t, row in enumerate(batch.token_rows) if batch.rows[row].queries == 1]


def test_the_plan_has_room_for_lists_and_partial_results(plan, cubin):
    tokens = max(program.tokens for program in plan.schedule.programs)
    planned = prefill_bytes(plan.model, plan.attention.prefill, tokens, plan.schedule.max_batch)
    assert planned == sum(cubin.constant(f"dp_prefill_{name}_bytes") for name in ("tasks", "partials"))


@pytest.mark.parametrize("shares", [1, 7, 132, 256])
def test_chunks_and_decoding_rows_match_float64(plan, cubin, shares):
    check(cubin, Batch(plan, MIXED), shares)


@pytest.mark.parametrize("queries", [2, 16, 17, 31, 32, 33, 64, 127, 128, 129, 511, 640])
@pytest.mark.parametrize("history", [0, 1, 127, 128, 1408])
@pytest.mark.parametrize("kernel", KERNELS)
def test_chunks_about_every_boundary_match_float64(cubin_of, kernel, queries, history):
    plan = PLANS[f"{kernel}-g4-d128-p16-bf16"]
    check(cubin_of(plan), Batch(plan, [Row(history + queries, queries)]))


def test_lists_serve_every_layer_and_results_do_not_depend_on_who_comes_last(plan, cubin):
    batch = Batch(plan, MIXED)
    Kernels(cubin, batch).append(0)
    prefill = Prefill(cubin, batch)
    lists, partials, chunks = prefill.lists(), prefill.partials(), tokens_of_chunks(batch)
    outs = [batch.poisoned() for _ in range(4)]
    for out in outs:
        prefill.attention(0, batch.pools[0], lists, partials, out)
    assert not outs[0][chunks].isnan().any()
    for out in outs:
        assert torch.equal(out[chunks], outs[0][chunks])


def test_each_kernel_writes_its_own_rows_alone(plan, cubin):
    batch = Batch(plan, MIXED)
    kernels = Kernels(cubin, batch)
    kernels.append(0)
    assert kernels.attend(0)[tokens_of_chunks(batch)].isnan().all()
    out = batch.poisoned()
    Prefill(cubin, batch).attend(0, out)
    assert out[tokens_that_decode(batch)].isnan().all()


def test_a_step_without_chunks_touches_nothing(plan, cubin):
    batch = Batch(plan, [Row(5)])
    for step in (batch.step, step_buffers(plan, kind=0, rows=0, tokens=0, query_begin=[0])):
        batch.step = step
        out = batch.poisoned()
        Prefill(cubin, batch).attend(0, out)
        assert out.isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("queries", [2, 31, 2047, 2048])
def test_chunks_beside_long_histories_match_float64(cubin_of, kernel, queries):
    plan = LONG[kernel]
    check(cubin_of(plan), Batch(plan, [Row(131_072, queries), Row(131_071)]))
